"""Directories of sentence-transformers mean here what they mean there, both ways.

Each case is a directory that sentence-transformers itself has saved, or one rewritten to an older
layout, which it loads as well. Its own embeddings are the reference.
"""

import json
import re
import shutil

import numpy as np
import pytest

import bertjax
from bertjax.model.sentence_embedding import ACTIVATIONS, pooled
from bertjax.tasks import finetune_config
from bertjax.tokenization import load_tokenizer
from bertjax.weights import sentence_transformers as files
from bertjax.weights.source import open_source
from tests.cases import WEEKLY

pytestmark = pytest.mark.parity
MODEL = "config_sentence_transformers.json"
PROMPTS = {"query": "abc de: ", "document": "hij: ", "short": "fg "}
ALL = ["cls", "max", "mean", "mean_sqrt_len_tokens", "weightedmean", "lasttoken"]


@pytest.fixture(scope="module")
def library():
    pytest.importorskip("torch", reason="the extra `parity` is not installed")
    return pytest.importorskip("sentence_transformers")


@pytest.fixture(scope="module")
def texts(sentences):
    return [*sentences[:5], "", "A Bc " + sentences[6], " ".join(sentences[:9])]


@pytest.fixture(scope="module")
def save(library, encoder, tmp_path_factory):
    """A function that has sentence-transformers save a directory with some modules."""
    import torch
    from sentence_transformers.sentence_transformer import modules as kinds

    def make(pooling="mean", *described, include_prompt=True, cased=False, settings=None, **given):
        torch.manual_seed(0)
        target = tmp_path_factory.mktemp("sentence") / "m"
        source = shutil.copytree(encoder, target.parent / "source")
        if cased:
            load_tokenizer(source, do_lower_case=False).save(source)
        modules = [
            kinds.Transformer(str(source), **(settings or {})),
            kinds.Pooling(32, pooling, include_prompt),
        ]
        size = modules[-1].get_embedding_dimension()
        for kind in described:
            options = dict(kind) if isinstance(kind, dict) else {}
            if kind == "LayerNorm":
                modules.append(kinds.LayerNorm(size))
                torch.nn.init.normal_(modules[-1].norm.weight)
                torch.nn.init.normal_(modules[-1].norm.bias)
            elif kind == "Normalize":
                modules.append(kinds.Normalize())
            else:
                name = options.pop("activation", "Tanh")
                act = getattr(torch.nn, name)()
                width = options.pop("size", 24)
                modules.append(kinds.Dense(size, width, activation_function=act, **options))
                size = width
        safe = given.pop("safe", True)
        model = library.SentenceTransformer(modules=modules, device="cpu", **given)
        model.save(str(target), safe_serialization=safe)
        return target

    return make


def edit(file, remove=(), **changes):
    content = json.loads(file.read_text()) if file.is_file() else {}
    content = {name: value for name, value in content.items() if name not in remove}
    file.write_text(json.dumps(content | changes))


def in_0_transformer(folder):
    """The layout of version 0 and 1: the transformer has a folder of its own."""
    modules = json.loads((folder / "modules.json").read_text())
    (folder / "0_Transformer").mkdir()
    for file in [file for file in folder.iterdir() if file.is_file()]:
        if file.name not in ("modules.json", MODEL, "README.md"):
            file.rename(folder / "0_Transformer" / file.name)
    modules[0]["path"] = "0_Transformer"
    (folder / "modules.json").write_text(json.dumps(modules))


def of_version_2(folder, modes=("mean",)):
    """Names of classes, flags of poolings and settings as versions 2.0 to 2.2 wrote them."""
    modules = json.loads((folder / "modules.json").read_text())
    for module in modules:
        module["type"] = f"sentence_transformers.models.{module['type'].rpartition('.')[2]}"
    (folder / "modules.json").write_text(json.dumps(modules, indent=2))
    flags = ("cls_token", "mean_tokens", "max_tokens", "mean_sqrt_len_tokens")
    names = {"cls_token": "cls", "mean_tokens": "mean", "max_tokens": "max"}
    pooling = {f"pooling_mode_{flag}": names.get(flag, flag) in modes for flag in flags}
    config = {"word_embedding_dimension": 32, **pooling}
    (folder / "1_Pooling/config.json").write_text(json.dumps(config, indent=2))
    settings = {"max_seq_length": 20, "do_lower_case": False}
    (folder / "sentence_bert_config.json").write_text(json.dumps(settings, indent=2))
    versions = {"sentence_transformers": "2.0.0", "transformers": "4.6.1", "pytorch": "1.8.1"}
    (folder / MODEL).write_text(json.dumps({"__version__": versions}, indent=2))


def of_version_3(folder, modes):
    """Versions 2.4 to 5.3: all flags of poolings, prompts and the similarity."""
    of_version_2(folder, modes)
    config = {f"pooling_mode_{name}": False for name in ("cls_token", "mean_tokens")}
    config |= {"pooling_mode_max_tokens": False, "pooling_mode_mean_sqrt_len_tokens": False}
    config |= {"pooling_mode_weightedmean_tokens": False, "pooling_mode_lasttoken": False}
    for flag, mode in zip(config, ("cls", "mean", "max", ALL[3], ALL[4], ALL[5]), strict=True):
        config[flag] = mode in modes
    config = {"word_embedding_dimension": 32, **config, "include_prompt": True}
    (folder / "1_Pooling/config.json").write_text(json.dumps(config))
    edit(folder / MODEL, prompts=PROMPTS, default_prompt_name="query", similarity_fn_name="dot")


DENSE = {"size": 24}
CASES = {  # name -> (arguments of `save`, change of the directory)
    **{mode: ((mode,), {}, None) for mode in ALL},
    "all joined": ((ALL,), {}, None),
    "joined in another order": ((["lasttoken", "cls", "max"], "Normalize"), {}, None),
    "Dense": (("mean", DENSE), {}, None),
    "Dense without bias, normalised": (
        ("cls", {"bias": False, "activation": "Identity"}, "Normalize"),
        {},
        None,
    ),
    "Dense as a pickle": (("mean", {"activation": "GELU"}), {"safe": False}, None),
    "residual": (("mean", {"use_residual": True, "size": 32, "activation": "ReLU"}), {}, None),
    "projected residual": (("max", {"use_residual": True, "activation": "SiLU"}), {}, None),
    "LayerNorm": (("mean", "LayerNorm"), {}, None),
    "many modules": (
        (["mean", "max"], "Normalize", DENSE, "LayerNorm", {"size": 7}, "Normalize", "Normalize"),
        {},
        None,
    ),
    "prompts": (("mean",), {"prompts": PROMPTS}, None),
    "a default prompt": (
        ("mean", "Normalize"),
        {"prompts": PROMPTS, "default_prompt_name": "short"},
        None,
    ),
    **{
        f"without the prompt, {mode}": (
            (mode,),
            {"prompts": PROMPTS, "default_prompt_name": "query", "include_prompt": False},
            None,
        )
        for mode in (
            ["cls", "max"],
            ["mean", "weightedmean"],
            ["mean_sqrt_len_tokens"],
            "lasttoken",
        )
    },
    "lower-casing": (
        ("mean",),
        {"cased": True, "prompts": {"query": "ABC De: "}, "default_prompt_name": "query"},
        lambda folder: edit(folder / "sentence_bert_config.json", do_lower_case=True),
    ),
    "cased": (("mean",), {"cased": True}, None),
    "a length": (("lasttoken",), {"settings": {"max_seq_length": 6}}, None),
    "a truncated length 1": (("mean", "Normalize"), {"truncate_dim": 10}, None),
    "a truncated Dense": (("mean", DENSE), {"truncate_dim": 50}, None),
    "version 0": (("mean", DENSE), {}, in_0_transformer),
    "version 2": (("mean", "Normalize"), {}, of_version_2),
    "version 2, Dense, max": (("max", DENSE), {"safe": False}, lambda x: of_version_2(x, ["max"])),
    "version 2, two poolings": (
        (["cls", "mean"],),
        {},
        lambda folder: of_version_2(folder, ["mean", "cls"]),
    ),
    "version 3": (("weightedmean",), {}, lambda x: of_version_3(x, ["weightedmean"])),
    "version 5": ((["mean", "lasttoken"],), {}, lambda x: of_version_3(x, ["mean", "lasttoken"])),
}
QUICK = ("many modules",)
# Other cases have the same settings, together with others.
REPEATED = (
    *(mode for mode in ALL if mode != "lasttoken"),
    *("Dense", "Dense without bias, normalised", "prompts", "cased", "a truncated length 1"),
    *("without the prompt, ['cls', 'max']", "without the prompt, ['mean_sqrt_len_tokens']"),
    "without the prompt, ['mean', 'weightedmean']",
    *("version 2", "version 5"),
)


def theirs(library, folder, texts, **options):
    model = library.SentenceTransformer(str(folder), device="cpu")
    return model.encode(texts, **options)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "case",
    [
        *QUICK,
        *(pytest.param(x, marks=pytest.mark.slow) for x in CASES if x not in (*QUICK, *REPEATED)),
        *(pytest.param(x, marks=WEEKLY) for x in REPEATED),
    ],
)
def test_embeddings_equal_those_of_sentence_transformers(library, save, texts, tmp_path, case):
    arguments, options, change = CASES[case]
    folder = save(*arguments, **options)
    if change is not None:
        change(folder)
    expected = theirs(library, folder, texts)
    bert = bertjax.load_pretrained(folder)
    np.testing.assert_allclose(bert.embed(texts), expected, atol=1e-5)
    names = options.get("prompts", {})
    for name in names:
        np.testing.assert_allclose(
            bert.embed(texts, prompt=name),
            theirs(library, folder, texts, prompt_name=name),
            atol=1e-5,
        )
    for prompt in ("", "a text: ") if names else ():
        np.testing.assert_allclose(
            bert.embed(texts, prompt=prompt),
            theirs(library, folder, texts, prompt=prompt),
            atol=1e-5,
        )
    bert.save(tmp_path / "saved")
    np.testing.assert_allclose(theirs(library, tmp_path / "saved", texts), expected, atol=1e-5)
    kept = [file for file in folder.rglob("[0-9]*_*/*") if "0_Transformer" not in str(file)]
    for file in kept:
        copy = tmp_path / "saved" / file.relative_to(folder)
        assert copy.read_bytes() == file.read_bytes()
    similarity = library.SentenceTransformer(str(folder), device="cpu").similarity
    pairs = bert.predict([(texts[0], texts[1]), (texts[2], texts[6])])
    for prediction, (a, b) in zip(pairs, ((0, 1), (2, 6)), strict=True):
        wanted = float(similarity(expected[a], expected[b]))
        assert prediction["similarity"] == pytest.approx(wanted, abs=1e-4, rel=1e-5)


@pytest.mark.parametrize("name", sorted(ACTIVATIONS))
def test_activations_equal_those_of_pytorch(library, name):
    import torch

    x = np.concatenate([np.linspace(-30, 30, 601), [0.0, -0.5, 3.0]]).astype(np.float32)
    expected = getattr(torch.nn, name)()(torch.tensor(x)).numpy()
    np.testing.assert_allclose(ACTIVATIONS[name](x), expected, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("mask", [[0, 0, 1, 1, 1], [1, 1, 0, 1, 0]])
def test_the_last_token_is_that_of_the_mask_in_rows_with_gaps(library, mask):
    import torch
    from sentence_transformers.sentence_transformer import modules as kinds

    x = np.random.default_rng(0).normal(size=(1, 5, 4)).astype(np.float32)
    features = {"token_embeddings": torch.tensor(x), "attention_mask": torch.tensor([mask])}
    expected = kinds.Pooling(4, "lasttoken")(features)["sentence_embedding"]
    found = pooled(x, np.array([mask]), np.array([[0]]), "lasttoken")
    np.testing.assert_array_equal(found[:, 0], expected.numpy())


def test_poolings_of_packed_rows_are_those_of_their_texts_alone():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(1, 9, 4)).astype(np.float32)
    ids = np.array([[1, 1, 1, 2, 2, 2, 2, 0, 0]])
    packed = pooled(x, ids, np.array([[0, 3, 0]]), "+".join(ALL), np.array([[0, 2, 0]]))
    assert np.isfinite(packed).all()
    first, second = x[0, :3], x[0, 3:7]
    weights = np.array([3, 4])[:, None]
    expected = [
        [first[0], first.max(0), first.mean(0), first.sum(0) / np.sqrt(3)],
        [second[2], second[2:].max(0), second[2:].mean(0), second[2:].sum(0) / np.sqrt(2)],
    ]
    expected[0] += [(first * [[1], [2], [3]]).sum(0) / 6, first[2]]
    expected[1] += [(second[2:] * weights).sum(0) / 7, second[3]]
    for slot, vectors in enumerate(expected):
        np.testing.assert_allclose(packed[0, slot], np.concatenate(vectors), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("kinds", "files"),
    [
        (["SparseStaticEmbedding"], ["model.safetensors", "tokenizer.json"]),
        (["BoW", "Dense"], ["0_BoW/config.json"]),
        (["WordEmbeddings", "Pooling"], ["0_WordEmbeddings/pytorch_model.bin"]),
        (["Router", "Pooling"], ["router_config.json"]),
    ],
)
def test_models_without_a_transformer_are_refused_by_name(tmp_path, kinds, files):
    modules = [
        {"idx": i, "name": str(i), "path": "", "type": f"sentence_transformers.models.{kind}"}
        for i, kind in enumerate(kinds)
    ]
    (tmp_path / "modules.json").write_text(json.dumps(modules))
    for file in files:
        (tmp_path / file).parent.mkdir(exist_ok=True)
        (tmp_path / file).write_text("{}")
    with pytest.raises(ValueError, match=f"modules {', '.join(kinds)}, but .* Transformer"):
        open_source(tmp_path)


def test_other_files_of_weights_are_named_where_there_is_no_model(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "last.ckpt").write_text("")
    with pytest.raises(FileNotFoundError, match=r"last\.ckpt"):
        open_source(tmp_path)


REFUSED = {  # message -> (file, changes) or the modules in place of the second and later ones
    "WordEmbeddings, Pooling, Dense, but bertjax": ("modules", 0, "WordEmbeddings"),
    "Transformer, CNN, Pooling, Dense, but": ("insert", 1, "CNN"),
    "Transformer, Pooling, LSTM, Dense": ("insert", 2, "LSTM"),
    "StaticEmbedding": ("modules", 0, "StaticEmbedding"),
    "Router": ("modules", 0, "Router"),
    "Asym": ("modules", 0, "Asym"),
    "CLIPModel": ("modules", 0, "CLIPModel"),
    "Dropout": ("insert", 2, "Dropout"),
    "BoW": ("modules", 0, "BoW"),
    "SpladePooling": ("modules", 1, "SpladePooling"),
    "WeightedLayerPooling": ("insert", 1, "WeightedLayerPooling"),
    "other.library.Dense": ("insert", 2, "other.library.Dense"),
    "asks for the pooling attention": ("1_Pooling/config.json", {"pooling_mode": "attention"}),
    "activation_function='torch.nn.modules.activation.PReLU', but bertjax has only": (
        "2_Dense/config.json",
        {"activation_function": "torch.nn.modules.activation.PReLU"},
    ),
    "activation_function='os.system'": (
        "2_Dense/config.json",
        {"activation_function": "os.system"},
    ),
    "in_features=31, but its input has 32 numbers": ("2_Dense/config.json", {"in_features": 31}),
    "(24, 32)}, but its config.json asks for {'linear.weight': (9, 32), 'linear.bias': (9,)}": (
        "2_Dense/config.json",
        {"out_features": 9},
    ),
    "'residual.weight': (24, 32)}": (
        "2_Dense/config.json",
        {"use_residual": True},
    ),
    "module_input_name='token_embeddings'": (
        "2_Dense/config.json",
        {"module_input_name": "token_embeddings"},
    ),
    "2_Dense/config.json: out_features=0": ("2_Dense/config.json", {"out_features": 0}),
    "similarity_fn_name='maxsim' is not known. Known: cosine, dot, euclidean, manhattan": (
        MODEL,
        {"similarity_fn_name": "maxsim"},
    ),
    "default_prompt_name='question', but only the prompts document, query": (
        MODEL,
        {"default_prompt_name": "question"},
    ),
    "prompts=3: it must be a string": (MODEL, {"prompts": {"query": 3}}),
    "model_type='SparseEncoder'": (MODEL, {"model_type": "SparseEncoder"}),
    "truncate_dim=-1": (MODEL, {"truncate_dim": -1}),
    "modality_config": ("sentence_bert_config.json", {"modality_config": {"image": {}}}),
    "query_expansion": ("sentence_bert_config.json", {"query_expansion": {"length": 32}}),
}


@pytest.fixture(scope="module")
def dense(save):
    return save("mean", {"size": 24})


@pytest.mark.parametrize("message", REFUSED)
def test_what_is_not_followed_is_refused_by_its_name(dense, tmp_path, message):
    folder = shutil.copytree(dense, tmp_path / "m")
    first, *rest = REFUSED[message]
    if first in ("modules", "insert"):
        index, name = rest
        kind = name if "." in name else f"sentence_transformers.models.{name}"
        module = {"path": f"{index}_x", "type": kind}
        modules = json.loads((folder / "modules.json").read_text())
        modules[index : index + (first == "modules")] = [module]
        (folder / "modules.json").write_text(json.dumps(modules))
    else:
        edit(folder / first, **rest[0])
    with pytest.raises(ValueError, match=re.escape(message)) as error:
        files.read_sentence_modules(folder)
    assert "\n" not in str(error.value)


def test_missing_tensors_and_files_of_modules_are_named(dense, tmp_path):
    from safetensors.numpy import load_file, save_file

    folder = shutil.copytree(dense, tmp_path / "m")
    weights = folder / "2_Dense/model.safetensors"
    tensors = load_file(weights)
    save_file({"linear.weight": tensors["linear.weight"]}, weights)
    asked = r"2_Dense/model.safetensors has the tensors .*, but its .* 'linear.bias': \(24,\)\}"
    with pytest.raises(ValueError, match=asked):
        files.read_sentence_modules(folder)
    weights.unlink()
    with pytest.raises(FileNotFoundError, match="2_Dense has no model.safetensors or pytorch_mod"):
        files.read_sentence_modules(folder)
    bert = bertjax.load_pretrained(folder, "encoder")
    assert bert.embed(["a"], pooling="max").shape == (1, 32)


def test_a_prompt_that_does_not_exist_is_refused_with_the_nearest(save):
    bert = bertjax.load_pretrained(save("mean", prompts={"query": "q: ", "passage": "p: "}))
    with pytest.raises(ValueError, match=r"prompt='pasage'.*Did you mean 'passage'\? Known: doc"):
        bert.embed(["a"], prompt="pasage")
    with pytest.raises(ValueError, match="no prompt of this name.*Known: document, query"):
        bert.embed(["a"], pooling="mean", prompt="passage")


def test_weights_of_modules_that_change_are_saved(library, save, texts, tmp_path):
    folder = save("mean", {"size": 24}, "LayerNorm")
    bert = bertjax.load_pretrained(folder)
    bert.params["modules"]["0"]["kernel"] = -bert.params["modules"]["0"]["kernel"]
    bert.params = dict(bert.params)
    bert.save(tmp_path / "saved")
    expected = bert.embed(texts)
    assert not np.allclose(expected, theirs(library, folder, texts))
    np.testing.assert_allclose(theirs(library, tmp_path / "saved", texts), expected, atol=1e-5)
    kept, now = (x / "3_LayerNorm/model.safetensors" for x in (folder, tmp_path / "saved"))
    assert kept.read_bytes() == now.read_bytes()


@pytest.fixture(scope="module")
def trained(library, save, sentences, tmp_path_factory):
    """A model with modules that is trained further: (directory before, result of the training)."""
    from bertjax.config import OptimizerConfig
    from bertjax.train.experiments import finetune

    folder = save(
        ["cls", "mean"],
        {"size": 12, "use_residual": True},
        "LayerNorm",
        "Normalize",
        prompts={**PROMPTS, "document": ""},
        include_prompt=False,
        similarity_fn_name="dot",
        cased=True,
    )
    lengths = {"query_length": 9, "document_length": 40}
    edit(folder / "sentence_bert_config.json", do_lower_case=True, **lengths)
    workdir = tmp_path_factory.mktemp("run")
    rows = [{"anchor": s.upper(), "positive": s[::-1]} for s in sentences[:20]]
    (workdir / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    optimizer = OptimizerConfig(recipe="adamw", learning_rate=1e-3, schedule="hf", warmup_steps=0)
    return folder, finetune(
        finetune_config(
            task="embed",
            init=str(folder),
            train=str(workdir / "pairs.jsonl"),
            workdir=str(workdir / "run"),
            document_prompt="hij ",
            max_length=32,
            batch_size=8,
            num_epochs=2,
            dev_fraction=0.2,
            optimizer=optimizer,
        )
    )


@pytest.mark.slow
def test_modules_and_prompts_are_trained_and_saved(library, trained, texts):
    folder, result = trained
    before, after = bertjax.load_pretrained(folder), result.model
    old, new = (bert.params["modules"] for bert in (before, after))
    assert old.keys() == new.keys() == {"0", "0_residual", "1"}
    for name in old:
        for leaf in old[name]:
            assert np.abs(old[name][leaf] - new[name][leaf]).max() > 1e-5
    model = library.SentenceTransformer(str(result.directory), device="cpu")
    assert model.prompts == {"query": "abc de: ", "document": "hij ", "short": "fg "}
    assert model.similarity_fn_name == "dot" and model.max_seq_length == 32
    assert (model[0].query_length, model[0].document_length) == (9, 32)
    texts = [*texts[:4], texts[0].upper()]
    queries, documents = model.encode_query(texts), model.encode_document(texts)
    assert not np.allclose(queries, documents, atol=1e-2)
    np.testing.assert_allclose(after.embed(texts, prompt="query"), queries, atol=1e-5)
    np.testing.assert_allclose(after.embed(texts, prompt="document"), documents, atol=1e-5)
    pairs = after.predict([*zip(texts, texts, strict=True)])
    expected = (queries * documents).sum(1)
    np.testing.assert_allclose([x["similarity"] for x in pairs], expected, atol=1e-5)
    np.testing.assert_allclose(expected[0], expected[4], atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("lengths", [(4, 6), (None, 5), (30, None)])
def test_roles_have_the_lengths_of_sentence_transformers(library, save, texts, tmp_path, lengths):
    folder = save("mean", prompts=PROMPTS)
    names = ("query_length", "document_length")
    given = dict(zip(names, lengths, strict=True))
    edit(folder / "sentence_bert_config.json", max_seq_length=20, **given)
    model = library.SentenceTransformer(str(folder), device="cpu")
    bert = bertjax.load_pretrained(folder)
    for name, expected in (
        ("query", model.encode_query(texts)),
        ("document", model.encode_document(texts)),
        (None, model.encode(texts)),
    ):
        np.testing.assert_allclose(bert.embed(texts, prompt=name), expected, atol=1e-5)


def test_training_examples_are_cut_to_the_lengths_of_their_roles(tokenizer):
    from bertjax.tasks import Example
    from bertjax.tasks.embedding import ContrastiveTask

    task = ContrastiveTask(name="embed", query_length=4, document_length=7)
    words = "ab bc cd de ef fg gh hi ij"
    example = Example(id="0", where="row 0", text=words, pair=words)
    assert task.features(example, tokenizer, 32)[0].lengths == (4, 7)
    assert task.features(example, tokenizer, 5)[0].lengths == (4, 5)


def test_features_leave_equal_texts_equal_under_different_prompts(tokenizer):
    from bertjax.tasks import Example
    from bertjax.tasks.embedding import ContrastiveTask

    prompts = {"query_prompt": "abc: ", "document_prompt": "", "include_prompt": False}
    task = ContrastiveTask(name="embed", **prompts)
    example = Example(id="0", where="row 0", text="de fg", pair="de fg")
    feature = task.features(example, tokenizer, 32)[0]
    assert feature.labels is not None and feature.labels[0] == feature.labels[1]
    first, second = feature.lengths
    prompt = len(tokenizer.encode_prompt("abc: ")[0]) - 1
    assert first == second + prompt - 1 and feature.a_lengths == (prompt, second)
