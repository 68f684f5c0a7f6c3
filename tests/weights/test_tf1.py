"""TF1 checkpoints: Google's names and shapes, and every bit of the values, in both directions."""

import importlib.util
import json
import os
import shutil
import subprocess
import sys

import numpy as np
import pytest
from flax.traverse_util import flatten_dict

from bertjax import convert
from bertjax.base.files import read_json
from bertjax.model import BertConfig
from bertjax.tokenization import load_tokenizer
from bertjax.weights import names, tf1
from bertjax.weights.tf1 import (
    NAMES,
    find_tf1,
    from_pytorch,
    from_tf1,
    is_parameter,
    open_tf1,
    save_tf1,
)

needs_tensorflow = pytest.mark.skipif(
    importlib.util.find_spec("tensorflow") is None,
    reason="TensorFlow is not installed: pip install 'bertjax[tf]'",
)

# One layer, width H, intermediate F, vocabulary V, P positions: what google-research/bert creates.
V, H, F, P = 11, 4, 6, 8
ENCODER = {
    "bert/embeddings/word_embeddings": [V, H],
    "bert/embeddings/position_embeddings": [P, H],
    "bert/embeddings/token_type_embeddings": [2, H],
    "bert/embeddings/LayerNorm/gamma": [H],
    "bert/embeddings/LayerNorm/beta": [H],
    "bert/encoder/layer_0/attention/self/query/kernel": [H, H],
    "bert/encoder/layer_0/attention/self/query/bias": [H],
    "bert/encoder/layer_0/attention/self/key/kernel": [H, H],
    "bert/encoder/layer_0/attention/self/key/bias": [H],
    "bert/encoder/layer_0/attention/self/value/kernel": [H, H],
    "bert/encoder/layer_0/attention/self/value/bias": [H],
    "bert/encoder/layer_0/attention/output/dense/kernel": [H, H],
    "bert/encoder/layer_0/attention/output/dense/bias": [H],
    "bert/encoder/layer_0/attention/output/LayerNorm/gamma": [H],
    "bert/encoder/layer_0/attention/output/LayerNorm/beta": [H],
    "bert/encoder/layer_0/intermediate/dense/kernel": [H, F],
    "bert/encoder/layer_0/intermediate/dense/bias": [F],
    "bert/encoder/layer_0/output/dense/kernel": [F, H],
    "bert/encoder/layer_0/output/dense/bias": [H],
    "bert/encoder/layer_0/output/LayerNorm/gamma": [H],
    "bert/encoder/layer_0/output/LayerNorm/beta": [H],
    "bert/pooler/dense/kernel": [H, H],
    "bert/pooler/dense/bias": [H],
}
HEADS = {
    "pretraining": {
        "cls/predictions/transform/dense/kernel": [H, H],
        "cls/predictions/transform/dense/bias": [H],
        "cls/predictions/transform/LayerNorm/gamma": [H],
        "cls/predictions/transform/LayerNorm/beta": [H],
        "cls/predictions/output_bias": [V],
        "cls/seq_relationship/output_weights": [2, H],
        "cls/seq_relationship/output_bias": [2],
    },
    "classifier": {"output_weights": [3, H], "output_bias": [3]},
    "squad": {"cls/squad/output_weights": [2, H], "cls/squad/output_bias": [2]},
}
LAYER = "bert.encoder.layer.0"
PYTORCH = {
    "bert.embeddings.word_embeddings.weight": (V, H),
    "bert.embeddings.position_embeddings.weight": (P, H),
    "bert.embeddings.token_type_embeddings.weight": (2, H),
    "bert.embeddings.LayerNorm.weight": (H,),
    "bert.embeddings.LayerNorm.bias": (H,),
    **{f"{LAYER}.attention.self.{n}.weight": (H, H) for n in ("query", "key", "value")},
    **{f"{LAYER}.attention.self.{n}.bias": (H,) for n in ("query", "key", "value")},
    f"{LAYER}.attention.output.dense.weight": (H, H),
    f"{LAYER}.attention.output.dense.bias": (H,),
    f"{LAYER}.attention.output.LayerNorm.weight": (H,),
    f"{LAYER}.attention.output.LayerNorm.bias": (H,),
    f"{LAYER}.intermediate.dense.weight": (F, H),
    f"{LAYER}.intermediate.dense.bias": (F,),
    f"{LAYER}.output.dense.weight": (H, F),
    f"{LAYER}.output.dense.bias": (H,),
    f"{LAYER}.output.LayerNorm.weight": (H,),
    f"{LAYER}.output.LayerNorm.bias": (H,),
    "bert.pooler.dense.weight": (H, H),
    "bert.pooler.dense.bias": (H,),
}
PYTORCH_HEADS = {
    "pretraining": {
        "cls.predictions.transform.dense.weight": (H, H),
        "cls.predictions.transform.dense.bias": (H,),
        "cls.predictions.transform.LayerNorm.weight": (H,),
        "cls.predictions.transform.LayerNorm.bias": (H,),
        "cls.predictions.bias": (V,),
        "cls.seq_relationship.weight": (2, H),
        "cls.seq_relationship.bias": (2,),
    },
    "classifier": {"classifier.weight": (3, H), "classifier.bias": (3,)},
    "squad": {"qa_outputs.weight": (2, H), "qa_outputs.bias": (2,)},
}
CONFIG = BertConfig(
    vocab_size=V,
    hidden_size=H,
    num_hidden_layers=1,
    num_attention_heads=2,
    intermediate_size=F,
    max_position_embeddings=P,
)
VOCAB = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "Cat", "##s", "\u2028", "."]


def random_tensors(head: str) -> dict[str, np.ndarray]:
    """Any bits: numbers of every size, and a zero with a sign."""
    rng = np.random.default_rng(0)
    shapes = PYTORCH | PYTORCH_HEADS[head]
    tensors = {
        name: (rng.normal(size=shape) * 10.0 ** rng.integers(-40, 30, shape)).astype(np.float32)
        for name, shape in shapes.items()
    }
    tensors["bert.pooler.dense.bias"][0] = -0.0
    return tensors


def assert_same_bits(found, expected):
    assert sorted(found) == sorted(expected)
    for name, value in expected.items():
        assert found[name].dtype == np.float32 and found[name].shape == value.shape
        assert found[name].tobytes() == value.tobytes(), name


def save(directory, tensors, config=CONFIG, **kwargs):
    save_tf1(directory, tensors.items(), config.to_dict(), VOCAB, **kwargs)


@pytest.fixture
def tf():
    """TensorFlow, for a test that `needs_tensorflow`."""
    return tf1._tensorflow()


def write_as_google(tf, prefix, variables):
    """A checkpoint as TF1's Saver leaves it, with `.meta` and a `checkpoint` file beside it."""
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        for name, value in variables.items():
            tf.compat.v1.get_variable(name, initializer=value)
        session.run(tf.compat.v1.global_variables_initializer())
        tf.compat.v1.train.Saver().save(session, str(prefix))


def google_variables(head: str) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(1)
    shapes = ENCODER | HEADS[head]
    return {name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}


def google_directory(tf, folder, head: str) -> dict[str, np.ndarray]:
    """Writes what google-research/bert publishes; returns the variables."""
    folder.mkdir()
    write_as_google(tf, folder / "bert_model.ckpt", variables := google_variables(head))
    (folder / "bert_config.json").write_text(json.dumps(CONFIG.to_dict()))
    (folder / "vocab.txt").write_text("\n".join(VOCAB), encoding="utf-8")
    return variables


def variables_in(tf, folder) -> dict[str, np.ndarray]:
    reader = tf.train.load_checkpoint(str(folder / "bert_model.ckpt"))
    return {name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map()}


def run(*argv) -> int:
    return convert.main([str(a) for a in argv])


def test_every_pytorch_name_of_a_pretraining_model_has_its_own_tf1_name(tiny, tiny_config):
    theirs = [n for n, _ in names.to_hf(flatten_dict(tiny[1], sep="/"), tiny_config)]
    tf1 = [from_pytorch(name) for name in theirs]
    assert len(set(tf1)) == len(theirs) == 5 + 2 * 16 + 2 + 7
    assert [from_tf1(name) for name in tf1 if name] == theirs


def test_the_table_is_one_to_one_and_holds_google_s_graph_and_nothing_else():
    assert len(set(NAMES.values())) == len(NAMES)
    google = set(ENCODER).union(*HEADS.values())
    assert {name.format(layer=0) for name in NAMES} == google
    assert {name.format(layer=0) for name in NAMES.values()} == set(PYTORCH).union(
        *PYTORCH_HEADS.values()
    )


@pytest.mark.parametrize(
    "name",
    [
        "cls.predictions.decoder.weight",
        "bert.encoder.layer.00.output.dense.bias",
        "bert.encoder.layer.0.output.dense.gamma",
        "xbert.pooler.dense.bias",
        "bert.embeddings.position_ids",
    ],
)
def test_what_is_not_in_google_s_graph_has_no_tf1_name(name):
    assert from_pytorch(name) is None
    assert from_tf1(name.replace(".", "/")) is None


def test_the_state_of_training_is_told_from_parameters():
    state = "global_step beta1_power beta2_power loss_scale output_bias/Adam_1".split()
    state += [f"bert/pooler/dense/kernel/{slot}" for slot in ("adam_m", "adam_v", "Adam")]
    assert not any(map(is_parameter, state))
    assert all(map(is_parameter, [*ENCODER, "output_bias", "my_head/kernel", "global_steps"]))


@needs_tensorflow
@pytest.mark.parametrize("head", HEADS)
def test_pytorch_tensors_come_back_bit_for_bit(tmp_path, head):
    tensors = random_tensors(head)
    save(tmp_path / "model", tensors)
    assert_same_bits(open_tf1(tmp_path / "model"), tensors)


@needs_tensorflow
@pytest.mark.parametrize("head", HEADS)
def test_google_s_variables_come_back_bit_for_bit(tmp_path, tf, head):
    variables = google_variables(head)
    write_as_google(tf, tmp_path / "bert_model.ckpt", variables)
    opened = open_tf1(tmp_path / "bert_model.ckpt")
    assert {name: value.shape for name, value in opened.items()} == PYTORCH | PYTORCH_HEADS[head]
    save(tmp_path / "again", dict(opened))
    assert_same_bits(variables_in(tf, tmp_path / "again"), variables)


@needs_tensorflow
@pytest.mark.parametrize("head", HEADS)
def test_the_command_brings_google_s_variables_back_bit_for_bit(tmp_path, tf, head, capsys):
    variables = google_directory(tf, tmp_path / "google", head)
    assert run(tmp_path / "google", tmp_path / "again", "--to", "tf1") == 0
    assert_same_bits(variables_in(tf, tmp_path / "again"), variables)
    assert run(tmp_path / "google" / "bert_model.ckpt", tmp_path / "hf") == 0
    assert ("bert/pooler is left out" in capsys.readouterr().out) == (head == "squad")
    assert run(tmp_path / "hf", tmp_path / "back", "--to", "tf1") == 0
    if head == "squad":  # BertForQuestionAnswering has no pooler, Google's graph has it unused
        variables = {k: v for k, v in variables.items() if "pooler" not in k}
    assert_same_bits(variables_in(tf, tmp_path / "back"), variables)


@needs_tensorflow
@pytest.mark.parametrize("head", ["pretraining", "sequence_classification", "question_answering"])
def test_hugging_face_weights_come_back_from_tf1_bit_for_bit(
    head, tmp_path, tiny_config, tokenizer, written
):
    source = written(tmp_path / "a", tiny_config, head, tokenizer)
    assert run(source, tmp_path / "b", "--to", "tf1") == 0
    assert run(tmp_path / "b", tmp_path / "c") == 0
    for name in ("model.safetensors", "vocab.txt"):
        assert (tmp_path / "c" / name).read_bytes() == (source / name).read_bytes()


@needs_tensorflow
@pytest.mark.parametrize("head", ["token_classification", "multiple_choice"])
def test_heads_that_google_lacks_are_refused(
    head, tmp_path, tiny_config, tokenizer, written, capsys
):
    source = written(tmp_path / "a", tiny_config, head, tokenizer)
    assert run(source, tmp_path / "b", "--to", "tf1") == 1
    assert f"has the head {head}" in capsys.readouterr().err
    assert not (tmp_path / "b").exists()


@needs_tensorflow
@pytest.mark.parametrize("head", HEADS)
def test_google_s_graph_takes_what_is_written(tmp_path, tf, head):
    save(tmp_path, tensors := random_tensors(head))
    prefix, expected = str(tmp_path / "bert_model.ckpt"), ENCODER | HEADS[head]
    assert dict(tf.train.list_variables(prefix)) == expected
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        variables = {n: tf.compat.v1.get_variable(n, shape) for n, shape in expected.items()}
        tf.compat.v1.train.init_from_checkpoint(prefix, {name: name for name in expected})
        session.run(tf.compat.v1.global_variables_initializer())
        kernel = session.run(variables["bert/encoder/layer_0/intermediate/dense/kernel"])
    np.testing.assert_array_equal(kernel, tensors[f"{LAYER}.intermediate.dense.weight"].T)


@needs_tensorflow
def test_the_directory_holds_google_s_files(tmp_path):
    save(tmp_path / "model", random_tensors("pretraining"))
    assert sorted(file.name for file in (tmp_path / "model").iterdir()) == [
        "bert_config.json",
        "bert_model.ckpt.data-00000-of-00001",
        "bert_model.ckpt.index",
        "checksums.json",
        "vocab.txt",
    ]
    config = json.loads((tmp_path / "model" / "bert_config.json").read_text())
    assert set(config) == set(
        "attention_probs_dropout_prob hidden_act hidden_dropout_prob hidden_size initializer_range "
        "intermediate_size max_position_embeddings num_attention_heads num_hidden_layers "
        "type_vocab_size vocab_size".split()
    )
    assert BertConfig.from_dict(read_json(tmp_path / "model" / "bert_config.json")) == CONFIG
    assert (tmp_path / "model" / "vocab.txt").read_bytes().decode().split("\n") == [*VOCAB, ""]
    assert not load_tokenizer(tmp_path / "model").do_lower_case


@needs_tensorflow
def test_the_state_of_training_is_left_out_and_strangers_keep_their_names(tmp_path, tf):
    variables = google_variables("classifier")
    extra = {f"{name}/{slot}": v for name, v in variables.items() for slot in ("adam_m", "adam_v")}
    extra |= {"global_step": np.int64(7), "beta1_power": np.float32(0.9)}
    strangers = {"my_head/kernel": np.ones((2, 3), np.float32), "seen": np.int32(3)}
    write_as_google(tf, tmp_path / "model.ckpt-7", variables | extra | strangers)
    opened = open_tf1(tmp_path)
    assert set(opened) == set(PYTORCH) | set(PYTORCH_HEADS["classifier"]) | set(strangers)
    np.testing.assert_array_equal(opened["my_head/kernel"], strangers["my_head/kernel"])
    assert "bert.pooler.dense.bias/adam_m" not in opened and "seen" in opened


@needs_tensorflow
def test_a_checkpoint_is_found_by_prefix_by_file_and_by_directory(tmp_path, tf):
    variables = google_variables("squad")
    for step in (1, 2):
        write_as_google(tf, tmp_path / f"model.ckpt-{step}", variables)
    latest = tmp_path / "model.ckpt-2"
    for place in (tmp_path, latest, f"{latest}.index", f"{latest}.meta"):
        assert find_tf1(place) == latest
    text = (tmp_path / "checkpoint").read_text()
    (tmp_path / "checkpoint").write_text(text.replace('"model', '"/elsewhere/model'))
    assert find_tf1(tmp_path) == latest
    (tmp_path / "checkpoint").write_text('model_checkpoint_path: "model.ckpt-3"\n')
    with pytest.raises(FileNotFoundError, match="names model.ckpt-3, but .*model.ckpt-2"):
        find_tf1(tmp_path)
    (tmp_path / "checkpoint").unlink()
    with pytest.raises(ValueError, match="holds 2 checkpoints.*give the prefix"):
        find_tf1(tmp_path)


def test_a_place_without_a_whole_checkpoint_is_an_error(tmp_path):
    with pytest.raises(FileNotFoundError, match="No TF1 checkpoint in"):
        find_tf1(tmp_path)
    with pytest.raises(FileNotFoundError, match=r"expected bert_model.ckpt.index"):
        find_tf1(tmp_path / "bert_model.ckpt")
    (tmp_path / "a.ckpt.index").touch()
    (tmp_path / "a.ckpt.data-00001-of-00002").touch()
    with pytest.raises(FileNotFoundError, match=r"needs 2 files a.ckpt.data-\*"):
        find_tf1(tmp_path)


@needs_tensorflow
def test_damaged_files_and_tf2_checkpoints_are_refused(tmp_path, tf):
    save(tmp_path / "model", random_tensors("squad"))
    data = tmp_path / "model" / "bert_model.ckpt.data-00000-of-00001"
    data.write_bytes(data.read_bytes()[:-100])
    with pytest.raises(ValueError, match="bert_model.ckpt cannot be read"):
        dict(open_tf1(tmp_path / "model"))
    (tmp_path / "model" / "bert_model.ckpt.index").write_bytes(b"nothing")
    with pytest.raises(ValueError, match="bert_model.ckpt cannot be read"):
        open_tf1(tmp_path / "model")
    tf.train.Checkpoint(x=tf.Variable(1.0)).write(str(tmp_path / "keras.ckpt"))
    with pytest.raises(ValueError, match="keras.ckpt is a TF2 checkpoint"):
        open_tf1(tmp_path / "keras.ckpt")


@needs_tensorflow
def test_every_tensor_that_tf1_cannot_hold_is_named_and_the_old_directory_stays(tmp_path):
    save(tmp_path / "model", old := random_tensors("squad"))
    tensors = random_tensors("pretraining")
    del tensors[f"{LAYER}.output.dense.bias"]
    tensors["cls.predictions.decoder.weight"] = np.zeros((V, H), np.float32)
    tensors["my.head"] = tensors["bert.encoder.layer.1.output.dense.bias"] = np.zeros(H, np.float32)
    with pytest.raises(ValueError) as error:
        save(tmp_path / "model", tensors)
    for part in (
        "Without a TF1 name: ['cls.predictions.decoder.weight', 'my.head']",
        "Missing: ['bert/encoder/layer_0/output/dense/bias']",
        "Of layers that the config lacks: ['bert/encoder/layer_1/output/dense/bias']",
    ):
        assert part in str(error.value)
    assert [file.name for file in tmp_path.iterdir()] == ["model"]
    assert_same_bits(open_tf1(tmp_path / "model"), old)


@needs_tensorflow
@pytest.mark.parametrize("free", [0, 10**9], ids=["known before", "seen by TensorFlow"])
def test_a_full_disk_leaves_the_old_directory_whole(tmp_path, tf, monkeypatch, free):
    save(tmp_path / "model", tensors := random_tensors("squad"))

    def full(*args, **kwargs):
        raise tf.errors.ResourceExhaustedError(None, None, "No space left on device")

    usage = shutil.disk_usage(tmp_path)._replace(free=free)
    monkeypatch.setattr("shutil.disk_usage", lambda path: usage)
    monkeypatch.setattr(tf.compat.v1.Session, "run", full)
    found = r"0 bytes are free" if not free else "ResourceExhaustedError"
    with pytest.raises(OSError, match=f"{found}.*its old content is unchanged"):
        save(tmp_path / "model", random_tensors("classifier"))
    assert [file.name for file in tmp_path.iterdir()] == ["model"]
    assert_same_bits(open_tf1(tmp_path / "model"), tensors)


@needs_tensorflow
def test_a_directory_is_replaced_whole_even_by_itself(tmp_path):
    save(tmp_path / "model", tensors := random_tensors("squad"))
    save(tmp_path / "model", open_tf1(tmp_path / "model"), name="again.ckpt")
    assert not list((tmp_path / "model").glob("bert_model.ckpt*"))
    assert [file.name for file in tmp_path.iterdir()] == ["model"]
    assert find_tf1(tmp_path / "model").name == "again.ckpt"
    assert_same_bits(open_tf1(tmp_path / "model"), tensors)


@needs_tensorflow
@pytest.mark.parametrize(
    "change, message",
    [
        ({"layer_norm_eps": 1e-5}, r"layer_norm_eps=1e-05 \(only 1e-12\)"),
        ({"hidden_act": "gelu_new"}, "hidden_act='gelu_new'"),
        ({"model_type": "roberta"}, "model_type='roberta'"),
        ({"vocab_size": 9}, "10 tokens, and vocab_size=9"),
    ],
)
def test_a_model_that_google_s_code_could_not_compute_is_refused(tmp_path, change, message):
    config = CONFIG.to_dict() | change
    with pytest.raises(ValueError, match=message):
        save_tf1(tmp_path / "model", random_tensors("squad").items(), config, VOCAB)
    with pytest.raises(ValueError, match=r"lacks the fields \['hidden_size'\]"):
        save_tf1(tmp_path, [], {k: v for k, v in config.items() if k != "hidden_size"}, VOCAB)


def test_without_tensorflow_the_error_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorflow", None)
    for file in ("a.index", "a.data-00000-of-00001"):
        (tmp_path / file).touch()
    for act in (lambda: open_tf1(tmp_path), lambda: save_tf1(tmp_path, [], {}, [])):
        with pytest.raises(ImportError, match=r"pip install 'bertjax\[tf\]'"):
            act()


@needs_tensorflow
def test_tensorflow_comes_without_banners_and_leaves_the_environment(tmp_path):
    save(tmp_path / "model", random_tensors("squad"))
    code = (
        "import os, sys\n"
        "from bertjax.weights.tf1 import open_tf1, save_tf1\n"
        "assert 'tensorflow' not in sys.modules\n"
        "before = {k: v for k, v in os.environ.items() if k.startswith('TF_')}\n"
        "import json, pathlib; place = pathlib.Path(sys.argv[1])\n"
        "config = json.loads((place / 'bert_config.json').read_text())\n"
        "save_tf1(place, open_tf1(place).items(), config, [])\n"
        "assert before == {k: v for k, v in os.environ.items() if k.startswith('TF_')}"
    )
    command = [sys.executable, "-W", "error", "-c", code, str(tmp_path / "model")]
    environ = {k: v for k, v in os.environ.items() if not k.startswith("TF_")}
    done = subprocess.run(command, capture_output=True, text=True, env=environ)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
