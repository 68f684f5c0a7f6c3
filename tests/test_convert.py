"""Conversions keep every bit, find the head themselves, and are verified by PyTorch."""

import json
import shutil
import struct
import sys

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import bertjax
from bertjax import convert
from bertjax.base.checksums import CHECKSUMS
from bertjax.model import HEADS, BertConfig
from bertjax.tokenization import Tokenizer, load_tokenizer
from bertjax.weights import load_model
from bertjax.weights.families import FAMILIES, architecture, config_to_hf, heads_of, with_pad_token
from bertjax.weights.newer_families import NEWER_FAMILIES
from tests.cases import WEEKLY, others_weekly

BERT_HEADS = heads_of(BertConfig())


def run(*argv) -> int:
    return convert.main([str(a) for a in argv])


# Without modules.json, the files of late interaction are those of an encoder.
OF_CONFIG = [head for head in BERT_HEADS if head != "late_interaction"]


@pytest.mark.parametrize(
    "head", others_weekly(OF_CONFIG, "pretraining", "token_classification", "sparse")
)
def test_a_model_comes_back_bit_for_bit(head, tmp_path, tiny_config, tokenizer, written):
    source = written(tmp_path / "a", tiny_config, head, tokenizer)
    assert run(source, tmp_path / "b") == 0
    for name in ("model.safetensors", "config.json", "tokenizer.json"):
        assert (source / name).read_bytes() == (tmp_path / "b" / name).read_bytes()


OF_OTHERS = ("modernbert", "xlm-roberta", "camembert", "data2vec-text", "ernie")
# The layers of other heads have the same names in all families.
OWN_NAMES = (("bert", "pretraining"), ("electra", "multiple_choice"), ("electra", "rtd"))


@pytest.mark.parity
@pytest.mark.parametrize(
    ("family", "head"),
    [
        # The layers of ModernBERT's heads have the same names in all heads, and some families the
        # names of another.
        pytest.param(
            *(name, head),
            marks=[]
            if (name, head) in OWN_NAMES
            or (head == "masked_lm" and name not in NEWER_FAMILIES)
            or (
                head == "sequence_classification"
                and name not in ("bert", *OF_OTHERS, *NEWER_FAMILIES)
            )
            else WEEKLY,
        )
        for name in FAMILIES
        for head in HEADS
        if head not in FAMILIES[name].absent
    ],
)
def test_what_transformers_saves_comes_back_to_it_bit_for_bit(
    family, head, tmp_path, tiny_family, tokenizer
):
    transformers = pytest.importorskip("transformers", reason="the extra `parity` is not installed")
    config = tiny_family(family)
    their_class = getattr(transformers, architecture(config, head))
    # There: the start and the end; in order or swapped.
    labels = 2 if head in ("question_answering", "pretraining") else 3
    described = transformers.AutoConfig.for_model(
        family, **{k: v for k, v in config_to_hf(config).items() if k != "model_type"}
    )
    described.num_labels = labels
    theirs = their_class(described)
    theirs.save_pretrained(tmp_path / "a")
    tokenizer.save(tmp_path / "a")
    assert run(tmp_path / "a", tmp_path / "b") == 0
    again, info = their_class.from_pretrained(tmp_path / "b", output_loading_info=True)
    assert not any(info.values()), info
    expected, found = theirs.state_dict(), again.state_dict()
    assert sorted(found) == sorted(expected)
    for name, value in expected.items():
        assert found[name].numpy().tobytes() == value.numpy().tobytes(), name


def test_shards_with_an_index_are_one_model(tmp_path, tiny_config, tokenizer, written):
    source = written(tmp_path / "a", tiny_config, "pretraining", tokenizer)
    whole = (source / "model.safetensors").read_bytes()
    tensors = load_file(source / "model.safetensors")
    names = sorted(tensors)
    parts = {"1.safetensors": names[::2], "2.safetensors": names[1::2]}
    for file, of_file in parts.items():
        save_file({name: tensors[name] for name in of_file}, source / file)
    (source / "model.safetensors").unlink()
    index = {name: file for file, of_file in parts.items() for name in of_file}
    (source / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))
    assert run(source, tmp_path / "b") == 0
    assert (tmp_path / "b" / "model.safetensors").read_bytes() == whole
    (source / "2.safetensors").unlink()
    with pytest.raises(FileNotFoundError, match="2.safetensors"):
        load_model(source)


@pytest.mark.parity
@pytest.mark.parametrize("zipped", [True, False], ids=["zip", "legacy"])
def test_bin_files_become_safetensors_bit_for_bit(
    zipped, tmp_path, tiny_config, tokenizer, written
):
    torch = pytest.importorskip("torch", reason="the extra `parity` is not installed")
    source = written(tmp_path / "a", tiny_config, "pretraining", tokenizer)
    whole = (source / "model.safetensors").read_bytes()
    tensors = load_file(source / "model.safetensors")
    state = {
        name.replace("LayerNorm.weight", "LayerNorm.gamma").replace(
            "LayerNorm.bias", "LayerNorm.beta"
        ): torch.tensor(value)
        for name, value in tensors.items()
    }
    torch.save(state, source / "pytorch_model.bin", _use_new_zipfile_serialization=zipped)
    (source / "model.safetensors").unlink()
    assert run(source, tmp_path / "b") == 0
    assert (tmp_path / "b" / "model.safetensors").read_bytes() == whole


# With a pooler, without one, and with inputs of another shape.
@pytest.mark.parity
@pytest.mark.parametrize(
    "head", others_weekly(("pretraining", "masked_lm", "multiple_choice"), "pretraining")
)
def test_verify_prints_small_differences(head, tmp_path, tiny_config, tokenizer, capsys, written):
    pytest.importorskip("transformers", reason="the extra `parity` is not installed")
    source = written(tmp_path / "a", tiny_config, head, tokenizer)
    assert run(source, tmp_path / "b", "--verify") == 0
    out = capsys.readouterr().out
    differences = [float(line.split()[-1]) for line in out.splitlines() if "difference" in line]
    assert len(differences) >= 2 and max(differences) < 1e-5
    assert "hidden_states: largest" in out
    assert ("pooler_output: largest" in out) == HEADS[head](tiny_config).needs_pooler


VERIFIED = (
    "albert",
    "deberta-v2",
    "electra",
    "esm",
    "esmc",
    "eurobert",
    "modernbert",
    "roberta",
)


@pytest.mark.parity
@pytest.mark.parametrize(
    "family",
    [
        pytest.param(x, marks=pytest.mark.slow if x in VERIFIED else WEEKLY)
        for x in FAMILIES
        if x == "modernbert" or x not in ("bert", *OF_OTHERS)
    ],
)
def test_verify_knows_other_families(family, tmp_path, tiny_family, tokenizer, capsys, written):
    pytest.importorskip("transformers", reason="the extra `parity` is not installed")
    config = tiny_family(family)
    if family != "mpnet":  # whose padding has the id 1
        config = with_pad_token(config, tokenizer.pad_token_id)
    source = written(tmp_path / "a", config, "masked_lm", tokenizer)
    assert run(source, tmp_path / "b", "--verify") == 0
    out = capsys.readouterr().out
    differences = [float(line.split()[-1]) for line in out.splitlines() if "difference" in line]
    assert len(differences) >= 2 and max(differences) < 1e-5


@pytest.mark.parity
@pytest.mark.slow
def test_verify_compares_no_pairs_with_a_tokenizer_that_has_none(tmp_path, tiny_family, capsys):
    transformers = pytest.importorskip("transformers", reason="the extra `parity` is not installed")
    fields = config_to_hf(tiny_family("esmc"))
    fields.pop("model_type")
    config = transformers.EsmcConfig(**fields)
    transformers.EsmcForMaskedLM(config).save_pretrained(tmp_path / "a")
    transformers.EsmcTokenizer().save_pretrained(tmp_path / "a")
    assert run(tmp_path / "a", tmp_path / "b", "--verify") == 0
    assert "logits: largest difference" in capsys.readouterr().out


@pytest.mark.parity
def test_verify_fails_where_pytorch_differs(
    tmp_path, tiny_config, tokenizer, monkeypatch, capsys, written
):
    pytest.importorskip("transformers", reason="the extra `parity` is not installed")
    source = written(tmp_path / "a", tiny_config, "pretraining", tokenizer)
    monkeypatch.setattr(convert, "TOLERANCE", 1e-12)
    assert run(source, tmp_path / "b", "--verify") == 1
    assert "differ from PyTorch's by" in capsys.readouterr().err


@pytest.mark.parity
@pytest.mark.parametrize("changes", [{}, {"model_input_names": ["input_ids", "attention_mask"]}])
def test_verify_compares_token_types_through_both_tokenizers(
    tmp_path, tiny_config, tokenizer, monkeypatch, capsys, written, changes
):
    pytest.importorskip("transformers", reason="the extra `parity` is not installed")
    source = written(tmp_path / "a", tiny_config, "pretraining", tokenizer)
    said = json.loads((source / "tokenizer_config.json").read_text())
    del said["model_input_names"]
    said |= {"tokenizer_class": "PreTrainedTokenizerFast"} | changes
    (source / "tokenizer_config.json").write_text(json.dumps(said))
    assert run(source, tmp_path / "b", "--verify") == 0
    # As if the names of the inputs did not decide.
    monkeypatch.setattr(Tokenizer, "second_type", 1)
    assert run(source, tmp_path / "c", "--verify") == 1
    assert "other token types than bertjax" in capsys.readouterr().err
    monkeypatch.undo()
    loading = sys.modules["bertjax.tokenization.tokenizer_files"]
    monkeypatch.setattr(loading, "_has_types", lambda *_: True)
    if not changes:  # the copy names the token types, but its source does not have them
        assert run(source, tmp_path / "d", "--verify") == 1
        assert f"{source} gives" in capsys.readouterr().err


def truncated(source):
    file = source / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])


def claims_too_much(source):
    file = source / "model.safetensors"
    file.write_bytes(struct.pack("<Q", 10**12) + file.read_bytes()[8:])


def tensor_claims_too_much(source):
    content = (source / "model.safetensors").read_bytes()
    (length,) = struct.unpack("<Q", content[:8])
    header = json.loads(content[8 : 8 + length])
    header[min(header.keys() - {"__metadata__"})]["data_offsets"][1] += 10**12
    encoded = json.dumps(header).encode()
    whole = struct.pack("<Q", len(encoded)) + encoded + content[8 + length :]
    (source / "model.safetensors").write_bytes(whole)


def change_bias(source, bias):
    tensors = load_file(source / "model.safetensors")
    save_file(tensors | {"bert.pooler.dense.bias": bias}, source / "model.safetensors")


def not_a_number(source):
    change_bias(source, np.full(32, np.nan, np.float32))


def wrong_shape(source):
    change_bias(source, np.zeros(31, np.float32))


def quantised(source):
    change_bias(source, np.zeros(32, np.int8))


def change_config(source, **changes):
    config = json.loads((source / "config.json").read_text())
    (source / "config.json").write_text(json.dumps(config | changes))


def wrong_family(source):
    change_config(source, model_type="gpt2")


def smaller_than_its_vocabulary(source):
    change_config(source, vocab_size=50)


def larger_than_its_embedding(source):
    change_config(source, vocab_size=200)


def words_for_numbers(source):
    change_config(source, hidden_size="32")


def labels_without_ids(source):
    change_config(source, id2label=["no", "yes"])


def no_config(source):
    (source / "config.json").unlink()


def broken_config(source):
    (source / "config.json").write_text("{")


def config_of_another_kind(source):
    (source / "config.json").write_text("[]")


def index_without_files(source):
    (source / "model.safetensors").rename(source / "1.safetensors")
    (source / "model.safetensors.index.json").write_text('{"weight_map": [1]}')


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (truncated, "not a whole safetensors file"),
        (claims_too_much, "not a whole safetensors file"),
        (tensor_claims_too_much, "not a whole safetensors file"),
        (not_a_number, "32 values that are not finite"),
        (wrong_shape, "has shape (31,), but the model has (32,)"),
        (quantised, "is of type int8"),
        (wrong_family, "'gpt2' is not supported"),
        (smaller_than_its_vocabulary, "tokens, but the model has vocab_size=50"),
        (larger_than_its_embedding, "has shape (120, 32), but the model has (200, 32)"),
        (words_for_numbers, "hidden_size='32': it must be an integer"),
        (labels_without_ids, "id2label=['no', 'yes']"),
        (no_config, "No model at"),
        (broken_config, "config.json cannot be read"),
        (config_of_another_kind, "it holds a list, not an object"),
        (index_without_files, "has no weight_map"),
    ],
    ids=lambda x: getattr(x, "__name__", ""),
)
def test_damaged_sources_are_explained_and_write_nothing(
    damage, message, tmp_path, tiny_config, tokenizer, capsys, written
):
    source = written(tmp_path / "a", tiny_config, "pretraining", tokenizer)
    damage(source)
    assert run(source, tmp_path / "b") == 1
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1
    assert not (tmp_path / "b").exists()


@pytest.mark.parametrize(
    "name",
    ["config.json", "model.safetensors", "task.json", "tokenizer_config.json", "README.md"]
    + ["config_sentence_transformers.json", "1_Pooling", "1_Pooling/config.json", "a/b/c.json"],
)
def test_a_link_that_leaves_the_directory_of_a_model_is_refused(name, one_layer, tmp_path, capsys):
    source = shutil.copytree(one_layer, tmp_path / "model")
    (tmp_path / "private").write_text('{"token": "secret"}')
    link = source / name
    link.parent.mkdir(parents=True, exist_ok=True)
    link.unlink(missing_ok=True)
    link.symlink_to(tmp_path / "private")
    assert run(source, tmp_path / "new") == 1
    assert f"{link} is a link to {tmp_path / 'private'}" in capsys.readouterr().err
    assert not (tmp_path / "new").exists()
    for read in (load_tokenizer, bertjax.load_pretrained):
        with pytest.raises(ValueError, match=f"{link} is a link to .*outside of"):
            read(source)


def test_links_within_a_model_and_within_the_cache_of_the_hub_are_followed(one_layer, tmp_path):
    inside = shutil.copytree(one_layer, tmp_path / "a")
    (inside / "model.safetensors").rename(inside / "weights")
    (inside / "model.safetensors").symlink_to("weights")
    (inside / "loop").symlink_to("loop")
    blobs = shutil.copytree(one_layer, tmp_path / "hub" / "models--me--model" / "blobs")
    cached = tmp_path / "hub" / "models--me--model" / "snapshots" / "a1b2"
    cached.mkdir(parents=True)
    for blob in blobs.iterdir():
        (cached / blob.name).symlink_to(f"../../blobs/{blob.name}")
    (tmp_path / "linked").symlink_to(cached)
    for number, source in enumerate((inside, cached, tmp_path / "linked")):
        assert run(source, tmp_path / f"new{number}") == 0
    # The folder of the repository may itself be a link to another disk.
    (tmp_path / "hub" / "models--me--model").rename(tmp_path / "disk")
    (tmp_path / "hub" / "models--me--model").symlink_to(tmp_path / "disk")
    assert run(cached, tmp_path / "new") == 0


def test_a_full_disk_leaves_the_old_directory_whole(
    tmp_path, tiny_config, tokenizer, monkeypatch, capsys, written
):
    old = tmp_path / "b"
    assert run(written(tmp_path / "a", tiny_config, "pretraining", tokenizer, seed=7), old) == 0
    shutil.rmtree(tmp_path / "a")
    source = written(tmp_path / "a", tiny_config, "pretraining", tokenizer)
    before = (old / "model.safetensors").read_bytes()

    def full(*args, **kwargs):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    assert run(source, old) == 1
    assert "its old content is unchanged" in capsys.readouterr().err
    assert (old / "model.safetensors").read_bytes() == before
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a", "b"]


def test_a_file_of_weights_is_read_and_a_missing_tokenizer_is_said(encoder, tmp_path, capsys):
    source = shutil.copytree(encoder, tmp_path / "source")
    (source / "checksums.json").unlink(missing_ok=True)
    weights = load_file(source / "model.safetensors")
    (source / "model.safetensors").rename(source / "other.safetensors")
    for name in ("tokenizer.json", "tokenizer_config.json", "vocab.txt", "special_tokens_map.json"):
        (source / name).unlink(missing_ok=True)
    convert.run(
        convert.ConvertConfig(src=str(source / "other.safetensors"), dst=str(tmp_path / "new"))
    )
    assert "has no tokenizer: config and weights are written alone" in capsys.readouterr().out
    found = load_file(tmp_path / "new" / "model.safetensors")
    assert all((found[name] == weights[name]).all() for name in weights)
    assert not (tmp_path / "new" / "tokenizer.json").exists()
    with pytest.raises(FileNotFoundError, match="no tokenizer, which --to tf1 needs"):
        convert.run(
            convert.ConvertConfig(
                src=str(source / "other.safetensors"), dst=str(tmp_path / "t"), to="tf1"
            )
        )
    (source / "config.json").unlink()
    with pytest.raises(FileNotFoundError, match="no config.json, which describes"):
        convert.run(
            convert.ConvertConfig(src=str(source / "other.safetensors"), dst=str(tmp_path / "u"))
        )


def test_files_of_which_a_copy_has_nothing_are_named(
    tmp_path, one_layer_config, tokenizer, written, capsys
):
    folder = written(tmp_path / "m", one_layer_config, "encoder", tokenizer)
    (folder / CHECKSUMS).unlink(missing_ok=True)
    for name in ("train.py", "generation_config.json", "special_tokens_map.json", "README.md"):
        (folder / name).write_text("{}")
    for name in ("1_Pooling/config.json", "onnx/model.onnx", "2_Dense/model.safetensors"):
        (folder / name).parent.mkdir()
        (folder / name).write_text("{}")
    names = ("Transformer", "1_Pooling", "2_Dense")
    modules = [{"type": f"sentence_transformers.{x.split('_')[-1]}", "path": x} for x in names]
    modules[0]["path"] = ""
    (folder / "modules.json").write_text(json.dumps(modules))
    convert.main([str(folder), str(tmp_path / "copy")])
    said = capsys.readouterr().out
    named = [line.split(" is left out")[0] for line in said.splitlines() if "left out" in line]
    assert named == ["generation_config.json", "onnx", "train.py"]
    assert (tmp_path / "copy" / "2_Dense" / "model.safetensors").read_text() == "{}"
