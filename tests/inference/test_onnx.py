"""Exported graphs: all families and heads equal bertjax, in ONNX Runtime and OpenVINO."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bertjax.config.model import TaggerConfig
from bertjax.inference import onnx_graph
from bertjax.inference.onnx_check import largest_differences, openvino_core, runtimes
from bertjax.inference.onnx_export import AXES, OLDEST_OPSET, Exported, write_onnx
from bertjax.model import HEADS, BertConfig, FeatureTagger
from bertjax.model.late_interaction import BertForLateInteraction, TokenMask
from bertjax.model.sentence_embedding import (
    ACTIVATIONS,
    BertForSentenceEmbedding,
    SentenceModule,
)
from bertjax.weights.families import FAMILIES, heads_of
from tests.cases import WEEKLY, others_weekly
from tests.weights.test_newer_families import chosen, odd_config

onnx = pytest.importorskip("onnx", reason="the extra `onnx` is not installed")
onnxruntime = pytest.importorskip("onnxruntime", reason="the extra `onnx` is not installed")

CONFIGS = 8
OF_EMBEDDINGS = ("sentence_embedding", "late_interaction", "sparse")
# (rows, tokens) that are compared, of which the first row alone as well, and those of every week.
SHAPES = ((1, 1), (7, 33))
WEEKLY_SHAPES = ((7, 1), (7, 7), (7, 512))

DENSE = SentenceModule("Dense", 12, use_residual=True)
LAYER_NORM = SentenceModule("LayerNorm")
NORMALIZE = SentenceModule("Normalize")


def random_params(model, seed: int):
    """Parameters of a model, all of which are random."""
    ids = np.zeros((1, 8), np.int32)
    shapes = jax.eval_shape(model.init, jax.random.key(seed), ids)["params"]
    rng = np.random.default_rng(seed)

    def drawn(path, leaf):
        middle = 1 if path[-1].key == "scale" else 0
        return np.asarray(rng.normal(middle, 0.15, leaf.shape), np.float32)

    return jax.tree_util.tree_map_with_path(drawn, shapes)


def exported_model(model, seed: int = 0, **changes) -> Exported:
    inputs = ["input_ids", "attention_mask"]
    if model.config.type_vocab_size > 1 or isinstance(model, BertForLateInteraction):
        inputs.append("token_type_ids")
    names = model.outputs or ("last_hidden_state",)
    outputs = {name: name for name in names}
    return Exported(model, random_params(model, seed), inputs, outputs, **changes)


def random_arrays(export: Exported, shape: tuple[int, ...], seed: int):
    """Inputs with padding at the end and in the middle."""
    config = export.model.config
    rng = np.random.default_rng([seed, *shape])
    length = shape[-1]
    lengths = rng.integers(1, length + 1, shape[:-1])
    mask = (np.arange(length) < lengths[..., None]) & (rng.random(shape) > 0.2)
    mask[..., 0] = True
    ids = rng.integers(5, config.vocab_size, shape)
    if config.token_dropout:
        is_masked = rng.random(shape) < 0.3
        is_masked[..., 0] = False
        ids = np.where(is_masked, config.mask_token_id, ids)
    is_inside = np.arange(length) < lengths[..., None]
    arrays = {
        "input_ids": np.where(is_inside, ids, config.pad_token_id or 0),
        "attention_mask": mask.astype(np.int64),
        "token_type_ids": rng.integers(0, max(config.type_vocab_size, 2), shape),
    }
    return {name: arrays[name] for name in export.inputs}


def check(export: Exported, file, shapes=SHAPES, run=None, opset: int = 20) -> float:
    """Writes a file, which must be valid, and compares its outputs with those of the model.

    Returns the largest difference, relative to the largest output where this is more than 1.
    """
    write_onnx(export, file, opset)
    written = onnx.load(file)
    onnx.checker.check_model(written, full_check=True)
    inferred = onnx.shape_inference.infer_shapes(written, strict_mode=True, data_prop=True)
    assert len(inferred.graph.value_info) > len(written.graph.value_info)
    if run is None:
        session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
        assert [x.name for x in session.get_inputs()] == list(export.inputs)
        assert [x.name for x in session.get_outputs()] == list(export.outputs)

        def run(arrays):
            return session.run(None, arrays)

    apply = jax.jit(export.apply)
    largest = 0.0
    for shape in shapes:
        arrays = random_arrays(export, shape, seed=3)
        small = {name: x.astype(np.int32) for name, x in arrays.items()}
        expected = apply(export.params, small)
        for rows in {shape[0], 1}:
            part = {name: x[:rows] for name, x in arrays.items()}
            is_token = part["attention_mask"] > 0
            if "is_scored" in expected:
                # Vectors that count for nothing may be those of tokens that attend to none.
                is_token &= np.asarray(expected["is_scored"])[:rows] > 0
            for name, found in zip(export.outputs, run(part), strict=True):
                values = np.asarray(expected[name], np.float64)[:rows]
                assert found.shape == values.shape, name
                difference = np.abs(values - found)
                if name == "is_scored":
                    assert not difference.any()
                elif found.shape[: len(shape)] == is_token.shape:
                    difference = difference[is_token]
                # Sums over tokens are large.
                relative = difference.max(initial=0.0) / max(1.0, np.abs(values).max())
                assert relative <= 1e-4, (name, shape, rows, export.model.config)
                largest = max(largest, relative)
    return largest


def axes_of(head: str) -> str:
    return "b, c, l" if head == "multiple_choice" else "b, l"


def shapes_of(head: str, shapes):
    if head == "multiple_choice":
        return [(rows, 3, length) for rows, length in shapes]
    return shapes


def fields_of(head: str, rng: np.random.Generator):
    """Random values of the fields that heads of embeddings have."""
    poolings = ("mean", "cls", "max", "lasttoken", "weightedmean", "mean_sqrt_len_tokens")
    if head == "sentence_embedding":
        modules = ((), (NORMALIZE,), (DENSE, NORMALIZE), (DENSE, LAYER_NORM))
        count = int(rng.integers(1, 3))
        return {
            "pooling": "+".join(rng.choice(poolings, count, replace=False)),
            "after_pooling": chosen(rng, *modules),
        }
    if head == "sparse":
        activation = chosen(rng, "relu", "log1p_relu")
        return {"pooling": chosen(rng, "max", "sum"), "activation": activation}
    if head == "late_interaction":
        skipped = chosen(rng, (), (7, 8, 9))
        mask = TokenMask(skipped=skipped, expansion=chosen(rng, True, False))
        return {
            "projection": (SentenceModule("Dense", 8, bias=False), NORMALIZE),
            "mask": mask,
            "attend_expansion": chosen(rng, True, False),
        }
    return {}


def of_family(family: str, base: BertConfig, seed: int, head: str, **changes) -> Exported:
    rng = np.random.default_rng([seed, *family.encode()])
    config = dataclasses.replace(odd_config(base, rng), **changes)
    if config.local_attention is not None:
        config = dataclasses.replace(config, local_attention=6)
    model = HEADS[head](config, **fields_of(head, rng))
    return exported_model(model, seed, axes=axes_of(head))


def all_heads():
    for family in FAMILIES:
        for head in heads_of(BertConfig(model_type=family)):
            yield family, head


# With BERT and DeBERTa in other tests, these need every operation that some family needs.
@pytest.mark.parametrize(
    "family", others_weekly(FAMILIES, "albert", slow=("esm", "roformer", "ultrabert"))
)
def test_every_family_equals_bertjax(family, tiny_family, tmp_path):
    check(of_family(family, tiny_family(family), 1, "encoder"), tmp_path / "model.onnx")


HEADS_OF_LOGITS = [head for head in HEADS if head not in OF_EMBEDDINGS]


@pytest.mark.parametrize(
    "head", others_weekly(HEADS_OF_LOGITS, "pretraining", slow=("multiple_choice", "rtd"))
)
def test_every_head_equals_bertjax(head, tiny_family, tmp_path):
    family = "deberta-v2" if head == "rtd" else "bert"
    export = of_family(family, tiny_family(family), 0, head)
    check(export, tmp_path / "model.onnx", shapes_of(head, SHAPES))


@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.parametrize(("family", "head"), [*all_heads()])
def test_odd_configs_equal_bertjax(family, head, tiny_family, tmp_path):
    largest = 0.0
    for seed in range(CONFIGS):
        base = tiny_family(family)
        export = of_family(family, base, seed, head, max_position_embeddings=520)
        shapes = WEEKLY_SHAPES[seed % 3 :: 3]  # all of them, over the configs
        opset = OLDEST_OPSET + seed % 6
        file = tmp_path / "model.onnx"
        largest = max(largest, check(export, file, shapes_of(head, shapes), opset=opset))
    print(f"{family} {head}: {CONFIGS} configs, largest difference {largest:.1e}")


@pytest.mark.parametrize(
    "fields",
    [
        pytest.param({"pooling": "mean", "normalize": True}, marks=WEEKLY),
        pytest.param({"pooling": "cls+max+mean_sqrt_len_tokens"}, marks=WEEKLY),
        {"pooling": "lasttoken+weightedmean", "after_pooling": (DENSE, LAYER_NORM, NORMALIZE)},
    ],
)
def test_embeddings_equal_bertjax(fields, tiny_family, tmp_path):
    model = BertForSentenceEmbedding(tiny_family("roberta"), **fields)
    check(exported_model(model), tmp_path / "model.onnx")


def test_every_activation_equals_bertjax(tiny_family, tmp_path):
    class Activated(HEADS["encoder"]):
        def head_outputs(self, encoded, rows):
            states = encoded["last_hidden_state"]
            return {name: activation(states) for name, activation in ACTIVATIONS.items()}

    outputs = {name: name for name in ACTIVATIONS}
    export = exported_model(Activated(tiny_family("bert", num_hidden_layers=1)))
    export = dataclasses.replace(export, outputs=outputs)
    check(export, tmp_path / "model.onnx", SHAPES[1:])


@pytest.mark.parametrize("name", others_weekly(ACTIVATIONS, slow=("GELU",)))
def test_every_activation_of_a_dense_module_equals_bertjax(name, tiny_family, tmp_path):
    dense = SentenceModule("Dense", 5, activation_function=f"torch.nn.modules.activation.{name}")
    model = BertForSentenceEmbedding(tiny_family("bert"), after_pooling=(dense,))
    check(exported_model(model), tmp_path / "model.onnx", SHAPES[1:])


@pytest.mark.slow
def test_prompts_that_the_pooling_leaves_out_are_left_out(tiny_family, tmp_path):
    model = BertForSentenceEmbedding(tiny_family("bert"), include_prompt=False)
    check(exported_model(model, prompt_length=4), tmp_path / "model.onnx", ((7, 33),))
    arrays = random_arrays(exported_model(model), (2, 9), 0)
    arrays["attention_mask"][:] = 1
    whole, part = [exported_model(model, prompt_length=n) for n in (0, 4)]
    params = whole.params
    states = jax.jit(model.apply)({"params": params}, arrays["input_ids"])["last_hidden_state"]
    vectors, others = [
        jax.jit(export.apply)(params, arrays)["sentence_embedding"] for export in (part, whole)
    ]
    np.testing.assert_allclose(vectors, states[:, 4:].mean(1), atol=1e-6)
    assert np.abs(others - vectors).max() > 1e-3


@pytest.mark.parametrize(
    ("pooling", "activation"),
    [
        ("max", "log1p_relu"),
        pytest.param("max", "relu", marks=WEEKLY),
        pytest.param("sum", "log1p_relu", marks=WEEKLY),
        pytest.param("sum", "relu", marks=WEEKLY),
    ],
)
def test_sparse_embeddings_equal_bertjax(pooling, activation, tiny_family, tmp_path):
    model = HEADS["sparse"](tiny_family("bert"), pooling=pooling, activation=activation)
    check(exported_model(model), tmp_path / "model.onnx")


def test_differences_of_large_outputs_are_relative(tiny_family, tmp_path):
    export = exported_model(HEADS["sequence_classification"](tiny_family("bert")))
    large = export.params | {
        "classifier": jax.tree.map(lambda x: 1e5 * x, export.params["classifier"])
    }
    export = dataclasses.replace(export, params=large)
    write_onnx(export, tmp_path / "model.onnx")
    arrays = random_arrays(export, (3, 9), 0)
    (logits,) = jax.jit(export.apply)(large, arrays).values()
    assert np.abs(logits).max() > 1e4
    (difference,) = largest_differences(export, tmp_path / "model.onnx", arrays).values()
    assert 0 < difference < 1e-5


@pytest.mark.parametrize("attend", others_weekly([True, False], slow=(True,)))
def test_late_interaction_equals_bertjax(attend, tiny_family, tmp_path):
    projection = (SentenceModule("Dense", 8, bias=False), NORMALIZE)
    mask = TokenMask(skipped=(7, 8, 9), expansion=attend)
    model = BertForLateInteraction(
        tiny_family("modernbert"), projection=projection, mask=mask, attend_expansion=attend
    )
    check(exported_model(model), tmp_path / "model.onnx")


@pytest.mark.parametrize("kind", others_weekly(["bilstm", "linear"], slow=("bilstm",)))
def test_taggers_on_a_frozen_encoder_equal_bertjax(kind, tiny_family, tmp_path):
    size = {"size": 6} if kind == "bilstm" else {}
    tagger = TaggerConfig(layers=(0, -1), kind=kind, **size)
    model = FeatureTagger(tiny_family("bert"), num_labels=3, tagger=tagger)
    check(exported_model(model), tmp_path / "model.onnx", ((1, 1), (3, 17)))


@pytest.mark.parametrize("opset", others_weekly([OLDEST_OPSET, 23], slow=(OLDEST_OPSET,)))
def test_every_version_of_the_operators_equals_bertjax(opset, tiny_family, tmp_path):
    for family in ("bert", "eurobert"):
        export = exported_model(HEADS["encoder"](tiny_family(family)))
        check(export, tmp_path / "model.onnx", SHAPES[1:], opset=opset)


IN_CI = (("deberta-v2", "encoder"),)


@pytest.mark.parametrize(
    ("family", "head"),
    [pytest.param(*x, marks=pytest.mark.slow if x in IN_CI else WEEKLY) for x in all_heads()],
)
def test_openvino_reads_the_same_file(family, head, tiny_family, tmp_path):
    if "OpenVINO" not in runtimes():  # importing it would send a report
        pytest.skip("openvino is not installed")
    file = tmp_path / "model.onnx"
    export = of_family(family, tiny_family(family), 2, head)
    write_onnx(export, file)
    precise = {"INFERENCE_PRECISION_HINT": "f32"}
    compiled = openvino_core().compile_model(file, "CPU", precise)

    def run(arrays):
        found = compiled(arrays)
        return [found[name] for name in export.outputs]

    largest = check(export, file, shapes_of(head, SHAPES), run)
    print(f"{family} {head}: largest difference of OpenVINO {largest:.1e}")


@pytest.mark.slow
def test_large_arrays_are_in_a_file_of_their_own(tiny_family, tmp_path, monkeypatch):
    monkeypatch.setattr(onnx_graph, "MAX_BYTES", 1000)
    export = exported_model(HEADS["masked_lm"](tiny_family("bert", tie_word_embeddings=True)))
    check(export, tmp_path / "model.onnx")
    sizes = {path.name: path.stat().st_size for path in tmp_path.iterdir()}
    assert sizes.keys() == {"model.onnx", "model.onnx_data"}
    assert sizes["model.onnx_data"] > sizes["model.onnx"]


def test_arrays_are_stored_once_and_axes_have_the_names_of_optimum(tiny_family, tmp_path):
    for family in ("bert", "albert"):
        config = tiny_family(family, num_hidden_layers=4, tie_word_embeddings=True)
        export = exported_model(HEADS["masked_lm"](config))
        write_onnx(export, tmp_path / "model.onnx")
        size = (tmp_path / "model.onnx").stat().st_size
        stored = sum(leaf.nbytes for leaf in jax.tree.leaves(export.params))
        tied = export.params["bert"]["embeddings"]["word_embeddings"]["embedding"].nbytes
        # Small tied matrices are stored a second time, transposed.
        assert size < stored + tied + 60_000
    graph = onnx.load(tmp_path / "model.onnx").graph
    for value in (*graph.input, *graph.output):
        sizes = [x.dim_param for x in value.type.tensor_type.shape.dim]
        assert sizes[:2] == [AXES["b"], AXES["l"]]


def test_layers_become_operators_that_runtimes_have(tiny_family, tmp_path):
    config = tiny_family("bert", hidden_act="gelu")
    write_onnx(exported_model(HEADS["encoder"](config)), tmp_path / "model.onnx")
    operators = [node.op_type for node in onnx.load(tmp_path / "model.onnx").graph.node]
    layers = config.num_hidden_layers
    assert operators.count("LayerNormalization") == 2 * layers + 1
    assert operators.count("Softmax") == operators.count("Gelu") == layers
    assert operators.count("MatMul") == 8 * layers
    assert operators.count("Where") == 1  # the mask, for all layers
    assert not {"Erf", "Exp", "Expand", "Loop", "Scan"} & {*operators}


def test_an_operation_without_a_translation_is_refused_by_name(tiny_family, tmp_path):
    class Sorted(HEADS["encoder"]):
        def head_outputs(self, encoded, rows):
            return {"sorted": jnp.sort(encoded["last_hidden_state"])}

    model = Sorted(tiny_family("bert"))
    export = dataclasses.replace(exported_model(model), outputs={"sorted": "sorted"})
    with pytest.raises(ValueError, match="no operator for sort in"):
        write_onnx(export, tmp_path / "model.onnx")
    assert not (tmp_path / "model.onnx").exists()
