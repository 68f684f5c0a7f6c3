"""Text embeddings: order, independence of the other texts of a batch, and files."""

import json
import shutil

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest

import bertjax
from bertjax import convert, embed
from bertjax.inference.embedder import Embedder, embed_file
from bertjax.inference.retrieval import embedders
from bertjax.tokenization import load_tokenizer
from bertjax.weights import load_model
from tests.cases import WEEKLY
from tests.lines import json_lines


@pytest.fixture(scope="module")
def folder(tmp_path_factory, one_layer_config, tokenizer, written):
    folder = tmp_path_factory.mktemp("model") / "m"
    return written(folder, one_layer_config, "pretraining", tokenizer, checksums=True)


@pytest.fixture(scope="module")
def loaded(folder):
    return load_model(folder, "encoder")


@pytest.fixture(scope="module")
def texts(sentences):
    return [*sentences[:150], "", "x", " ".join(sentences)]


@pytest.mark.parametrize(
    "pooling",
    [
        "mean",
        pytest.param("max+lasttoken", marks=pytest.mark.slow),
        pytest.param("cls", marks=WEEKLY),
    ],
)
def test_a_text_gets_the_vector_that_it_gets_alone(loaded, texts, pooling):
    embedder = Embedder(loaded, pooling)
    together = embedder(texts)
    size = 32 * len(pooling.split("+"))
    assert together.shape == (len(texts), size) and np.isfinite(together).all()
    for i in (0, 17, 150, 151, 152):
        np.testing.assert_allclose(embedder([texts[i]])[0], together[i], atol=1e-5)


def test_poolings_are_what_their_names_say(loaded, texts):
    import bertjax.inference.pretrained

    bert = bertjax.inference.pretrained.Pretrained(loaded)
    outputs = bert(texts[:3], output_hidden_states=True)
    _, mask, _ = bert.encode(texts[:3])
    weights = mask[:, :, None] / mask.sum(1)[:, None, None]
    found = Embedder(loaded, "mean", (-1, 0))(texts[:3])
    for part, layer in ((found[:, :32], -1), (found[:, 32:], 0)):
        expected = (outputs["hidden_states"][layer] * weights).sum(1)
        np.testing.assert_allclose(part, expected, atol=1e-5)
    np.testing.assert_allclose(
        Embedder(loaded, "cls")(texts[:3]), outputs["last_hidden_state"][:, 0], atol=1e-5
    )


def test_files_are_embedded_in_order_over_several_windows(loaded, texts, tmp_path, monkeypatch):
    monkeypatch.setattr("bertjax.inference.embedder.WINDOW", 40)
    source = tmp_path / "texts.txt"
    source.write_bytes(b"\xef\xbb\xbf" + "\r\n".join(texts).encode())
    embedder = Embedder(loaded)
    expected = embedder(texts)
    for name in ("a.npy", "a.jsonl"):
        assert embed_file(embedder, source, tmp_path / name) == len(texts)
    np.testing.assert_allclose(np.load(tmp_path / "a.npy"), expected, atol=1e-5)
    lines = json_lines(tmp_path / "a.jsonl")
    np.testing.assert_allclose(lines, expected, atol=1e-5)


@pytest.mark.parametrize("ending", [".npy", ".jsonl"])
def test_windows_are_bounded_in_characters_and_lines_in_length(
    ending, loaded, tmp_path, monkeypatch
):
    monkeypatch.setattr("bertjax.inference.embedder.WINDOW_CHARACTERS", 300)
    monkeypatch.setattr("bertjax.inference.embedder.LINE_CHARACTERS", 200)
    (tmp_path / "t.txt").write_text("a b " * 80 + "\n" + "c " * 100 + "\n\n" + "d " * 60)
    seen = []

    class Watched(Embedder):
        def __call__(self, texts):
            seen.append([len(text) for text in texts])
            return super().__call__(texts)

    output = tmp_path / f"v{ending}"
    assert embed_file(Watched(loaded), tmp_path / "t.txt", output) == 4
    assert seen == [[200, 200], [0, 120]]
    text = output.read_text() if ending == ".jsonl" else ""
    lines = np.load(output) if not text else [json.loads(x) for x in text.splitlines()]
    assert np.isfinite(lines).all() and np.shape(lines) == (4, 32)


def test_an_empty_file_gives_an_empty_array(loaded, tmp_path):
    for suffix in ("jsonl", "parquet"):
        (tmp_path / "t.txt").touch()
        assert embed_file(Embedder(loaded), tmp_path / "t.txt", tmp_path / f"v.{suffix}") == 0
    (tmp_path / "t.txt").touch()
    assert embed_file(Embedder(loaded), tmp_path / "t.txt", tmp_path / "v.npy") == 0
    assert np.load(tmp_path / "v.npy").shape == (0, 32)


def test_what_cannot_be_read_or_written_is_explained_and_the_old_file_stays(
    loaded, tmp_path, monkeypatch
):
    source, output = tmp_path / "t.txt", tmp_path / "v.npy"
    output.write_text("old")
    with pytest.raises(FileNotFoundError, match="t.txt does not exist: --input takes one file"):
        embed_file(Embedder(loaded), source, output)
    source.write_bytes(b"caf\xe9\n")
    with pytest.raises(ValueError, match="t.txt is not UTF-8"):
        embed_file(Embedder(loaded), source, output)
    source.write_text("a")

    def full(*args, **kwargs):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("bertjax.inference.output_files.PartialVectors.write", full)
    with pytest.raises(OSError, match="Writing .*v.npy failed .*No space left"):
        embed_file(Embedder(loaded), source, output)
    assert output.read_text() == "old"
    names = sorted(p.name for p in tmp_path.iterdir())
    assert names == ["t.txt", "v.npy", next(n for n in names if n.endswith(".partial"))]


@pytest.mark.parametrize("ending", [".npy", ".jsonl"])
def test_embeddings_go_on_after_an_interruption_and_give_the_same_bytes(
    ending, loaded, texts, tmp_path, monkeypatch
):
    monkeypatch.setattr("bertjax.inference.embedder.WINDOW", 20)
    (tmp_path / "t.txt").write_text("\n".join(texts))
    whole, output = tmp_path / f"whole{ending}", tmp_path / f"v{ending}"
    embed_file(Embedder(loaded), tmp_path / "t.txt", whole)
    seen = []

    class Interrupted(Embedder):
        def __call__(self, texts):
            seen.append(len(texts))
            if len(seen) == 5:
                raise KeyboardInterrupt
            return super().__call__(texts)

    with pytest.raises(KeyboardInterrupt):
        embed_file(Interrupted(loaded), tmp_path / "t.txt", output)
    (partial,) = tmp_path.glob("*.partial")
    with partial.open("ab") as file:  # a part of the next window
        file.write(b"[1.0]\n" + b"x" * 77)
    assert embed_file(Interrupted(loaded), tmp_path / "t.txt", output) == len(texts) == 153
    assert seen == [20] * 5 + [20, 20, 20, 13]
    assert output.read_bytes() == whole.read_bytes() and not list(tmp_path.glob("*.partial"))


def test_layers_that_the_model_lacks_are_refused(loaded):
    with pytest.raises(ValueError, match=r"layers=\[2\]: choose from the hidden states -2 to 1"):
        Embedder(loaded, layers=(2,))


ROWS = [("a", "What a day"), ("b", ""), ("c", "Nothing here")]


@pytest.mark.parametrize("suffix", ["csv", "jsonl", "parquet"])
def test_the_texts_of_a_table_are_embedded_without_its_header(loaded, tmp_path, suffix, capsys):
    path = tmp_path / f"t.{suffix}"
    rows = [{"key": key, "review": text} for key, text in ROWS]
    if suffix == "csv":
        path.write_text("key,review\n" + "".join(f"{k},{t}\n" for k, t in ROWS))
    elif suffix == "jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    else:
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    embedder = Embedder(loaded)
    assert embed_file(embedder, path, tmp_path / "v.npy") == 3
    assert "texts from column 'review'" in capsys.readouterr().out
    expected = embedder([text for _, text in ROWS])
    np.testing.assert_array_equal(np.load(tmp_path / "v.npy"), expected)
    embed_file(embedder, path, tmp_path / "keys.npy", "key")
    np.testing.assert_array_equal(np.load(tmp_path / "keys.npy"), embedder(["a", "b", "c"]))
    with pytest.raises(ValueError, match="has no column 'keys'.*Did you mean 'key'"):
        embed_file(embedder, path, tmp_path / "v.npy", "keys")


def test_a_parquet_output_has_the_texts_beside_their_vectors(loaded, texts, tmp_path, monkeypatch):
    monkeypatch.setattr("bertjax.inference.embedder.WINDOW", 40)
    (tmp_path / "t.txt").write_text("\n".join(texts))
    embed_file(Embedder(loaded), tmp_path / "t.txt", tmp_path / "v.npy")
    embed_file(Embedder(loaded), tmp_path / "t.txt", tmp_path / "v.parquet")
    table = pyarrow.parquet.read_table(tmp_path / "v.parquet")
    assert table["text"].to_pylist() == texts
    vectors = np.array(table["embedding"].to_pylist(), np.float32)
    np.testing.assert_array_equal(vectors, np.load(tmp_path / "v.npy"))
    assert not list(tmp_path.glob("*.partial"))


def test_a_normalised_vector_has_length_1(loaded, texts):
    plain, normalised = (Embedder(loaded, normalize=on)(texts[:9]) for on in (False, True))
    lengths = np.linalg.norm(plain, axis=1, keepdims=True)
    np.testing.assert_allclose(normalised, plain / lengths, atol=1e-6)


MODULES = [{"type": f"sentence_transformers.models.{n}"} for n in ("Transformer", "Pooling")]
NORMALIZE = {"type": "sentence_transformers.models.Normalize"}


def with_modules(folder, target, modules, pooling, length=None):
    shutil.copytree(folder, target)
    (target / "checksums.json").unlink(missing_ok=True)
    (target / "modules.json").write_text(json.dumps(modules))
    (target / "1_Pooling").mkdir()
    (target / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    (target / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": length}))
    return target


def test_the_files_of_sentence_transformers_are_followed_and_kept(folder, texts, tmp_path):
    pooling = {"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}
    modules = [*MODULES, NORMALIZE]
    model = with_modules(folder, tmp_path / "m", modules, pooling, length=6)
    bert = bertjax.load_pretrained(model, None)
    expected = Embedder(bert.loaded, "cls", normalize=True, max_length=6)(texts)
    np.testing.assert_array_equal(bert.embed(texts), expected)
    assert not np.allclose(bert.embed(texts, pooling="cls", normalize=True), expected)
    bert.save(tmp_path / "saved")
    convert.main([str(model), str(tmp_path / "converted")])
    for copy in ("saved", "converted"):
        again = bertjax.load_pretrained(tmp_path / copy)
        np.testing.assert_array_equal(again.embed(texts), expected)


@pytest.mark.parametrize(
    ("modules", "pooling", "message"),
    [
        ([*MODULES, {"type": "x.Dense"}], {"pooling_mode_mean_tokens": True}, "Pooling, x.Dense"),
        (MODULES, {"pooling_mode_attention": True}, "pooling_mode_attention=True"),
        (MODULES, {"pooling_mode": "first"}, "asks for the pooling first"),
        (MODULES, {}, "asks for the pooling none"),
        (MODULES, [], "holds a list, not an object"),
    ],
)
def test_other_modules_are_refused_unless_a_pooling_is_given(
    folder, tmp_path, modules, pooling, message
):
    model = with_modules(folder, tmp_path / "m", modules, pooling)
    bert = bertjax.load_pretrained(model, None)
    with pytest.raises(ValueError, match=message):
        bert.embed(["a"])
    assert bert.embed(["a"], pooling="mean").shape == (1, 32)


def test_prompts_and_lower_casing_change_the_texts(folder, tmp_path):
    model = with_modules(folder, tmp_path / "m", MODULES, {"pooling_mode": "mean"})
    (model / "sentence_bert_config.json").write_text('{"do_lower_case": true}')
    prompts = {"query": "Abc: ", "document": "Hij: "}
    content = {"prompts": prompts, "default_prompt_name": "document"}
    (model / "config_sentence_transformers.json").write_text(json.dumps(content))
    load_tokenizer(folder, do_lower_case=False).save(model)
    bert = bertjax.load_pretrained(model, None)
    texts = ["abc de", "abc: abc de", "hij: abc de"]
    bare, query, document = bert.embed(texts, pooling="mean")
    for prompt, expected in ((None, document), ("query", query), ("", bare), ("ABC: ", query)):
        np.testing.assert_allclose(bert.embed(["Abc DE"], prompt=prompt)[0], expected, atol=1e-6)
    bert.save(tmp_path / "saved")
    again = bertjax.load_pretrained(tmp_path / "saved")
    np.testing.assert_array_equal(again.embed(["Abc DE"]), bert.embed(["Abc DE"]))
    with pytest.raises(ValueError, match=r"prompt='qery': .*Did you mean 'query'\? Known: docu"):
        bert.embed(["a"], prompt="qery")
    content["default_prompt_name"] = "question"
    (model / "config_sentence_transformers.json").write_text(json.dumps(content))
    with pytest.raises(ValueError, match="default_prompt_name='question'.*--pooling"):
        bertjax.load_pretrained(model, "encoder").embed(["a"])


def with_lengths(folder, target, **lengths):
    model = with_modules(folder, target, MODULES, {"pooling_mode": "mean"})
    settings = {"max_seq_length": 20, **lengths}
    (model / "sentence_bert_config.json").write_text(json.dumps(settings))
    prompts = {"prompts": {"query": "abc: ", "document": "hij: "}}
    (model / "config_sentence_transformers.json").write_text(json.dumps(prompts))
    return model


@pytest.mark.parametrize(
    ("lengths", "query", "document"),
    [
        ({"query_length": 4, "document_length": 9}, 4, 9),
        ({"query_length": 6}, 6, 20),
        ({"document_length": 30, "query_length": None}, 20, 30),  # longer than max_seq_length
        ({"query_length": 4000}, 64, 20),  # longer than the positions of the model
    ],
)
def test_queries_and_documents_are_cut_to_their_own_lengths(
    folder, texts, tmp_path, lengths, query, document
):
    model = with_lengths(folder, tmp_path / "m", **lengths)
    bert = bertjax.load_pretrained(model)
    texts = texts[-5:]
    for prompt, length in (("query", query), ("document", document), ("abc: ", 20), (None, 20)):
        expected = Embedder(bert.loaded, prompt=prompt, max_length=length)(texts)
        np.testing.assert_array_equal(bert.embed(texts, prompt=prompt), expected)
    roles = embedders(bert.loaded)
    assert [roles[role].max_length for role in roles] == [query, document]
    given = embedders(bert.loaded, max_length=5), embedders(bert.loaded, pooling="mean")
    assert [{e.max_length for e in x.values()} for x in given] == [{5}, {64}]
    # Pairs get what `encode` of sentence-transformers does with them: no role, and no prompt.
    whole = bertjax.load_pretrained(model, "sentence_embedding")
    (pair,) = whole.predict([(texts[-1], texts[0])])
    x, y = bert.embed([texts[-1], texts[0]], normalize=True)
    assert pair["similarity"] == pytest.approx(float(x @ y), abs=1e-6)
    bert.save(tmp_path / "saved")
    convert.main([str(model), str(tmp_path / "converted")])
    for copy in ("saved", "converted"):
        kept = json.loads((tmp_path / copy / "sentence_bert_config.json").read_text())
        assert kept == {"max_seq_length": 20, **lengths}


@pytest.mark.parametrize("value", [0, -3, "long", 2.5, True])
def test_a_length_that_is_no_number_of_tokens_is_refused(folder, tmp_path, value):
    model = with_lengths(folder, tmp_path / "m", query_length=value)
    with pytest.raises(ValueError, match="sentence_bert_config.json: query_length=.*Correct it"):
        bertjax.load_pretrained(model).embed(["a"])


def test_the_command_takes_prompts_by_name_or_text(folder, tmp_path, capsys):
    model = with_modules(folder, tmp_path / "m", MODULES, {"pooling_mode": "mean"})
    content = {"prompts": {"query": "abc: "}}
    (model / "config_sentence_transformers.json").write_text(json.dumps(content))
    (tmp_path / "t.txt").write_text("de fg\n")
    flags = ["--model", str(model), "--input", str(tmp_path / "t.txt")]
    vectors = []
    for number, prompt in enumerate((["--prompt", "query"], ["--prompt", "abc: "], [])):
        output = tmp_path / f"{number}.npy"
        assert embed.main([*flags, "--output", str(output), *prompt]) == 0
        vectors.append(np.load(output))
    np.testing.assert_array_equal(vectors[0], vectors[1])
    assert not np.allclose(vectors[0], vectors[2])
    capsys.readouterr()
    assert embed.main([*flags, "--output", str(output), "--prompt", "querry"]) == 1
    error = capsys.readouterr().err
    assert "Did you mean 'query'?" in error and error.count("\n") == 1


@pytest.mark.parametrize("default", [None, "plain"])
def test_what_changes_no_text_is_not_refused(folder, tmp_path, default):
    model = with_modules(folder, tmp_path / "m", MODULES, {"pooling_mode": "mean"})
    # The tokenizer lower-cases texts as well.
    (model / "sentence_bert_config.json").write_text('{"do_lower_case": true}')
    prompts = {"prompts": {"plain": "", "query": "query: "}, "default_prompt_name": default}
    (model / "config_sentence_transformers.json").write_text(json.dumps(prompts))
    assert bertjax.load_pretrained(model, None).embed(["Text"]).shape == (1, 32)


@pytest.fixture(scope="module")
def sentence_model(folder, tmp_path_factory):
    """A function that has sentence-transformers save a model of `folder` with other modules."""
    library = pytest.importorskip("sentence_transformers")
    from sentence_transformers.sentence_transformer import modules as models

    def save(*names):
        target = tmp_path_factory.mktemp("sentence") / "m"
        modules = [models.Transformer(str(folder)), models.Pooling(32)]
        for name in names:
            modules.append(models.Dense(32, 8) if name == "Dense" else getattr(models, name)())
        library.SentenceTransformer(modules=modules, device="cpu").save(str(target))
        return target

    return save


def theirs(folder, texts):
    import sentence_transformers

    return sentence_transformers.SentenceTransformer(str(folder), device="cpu").encode(texts)


def edit(file, **changes):
    content = json.loads(file.read_text()) if file.is_file() else {}
    file.parent.mkdir(exist_ok=True)
    file.write_text(json.dumps(content | changes))


def in_another_folder(folder):
    (folder / "1_Pooling").rename(folder / "pool")
    modules = json.loads((folder / "modules.json").read_text())
    modules[1]["path"] = "pool"
    (folder / "modules.json").write_text(json.dumps(modules))


def in_0_transformer(folder):
    modules = json.loads((folder / "modules.json").read_text())
    files = [file for file in folder.iterdir() if file.is_file()]
    (folder / "0_Transformer").mkdir()
    for file in files:
        if file.name not in ("modules.json", "config_sentence_transformers.json", "README.md"):
            file.rename(folder / "0_Transformer" / file.name)
    modules[0]["path"] = "0_Transformer"
    (folder / "modules.json").write_text(json.dumps(modules))


OF_MODULES = {
    "as saved": lambda folder: None,
    "cls": lambda folder: edit(folder / "1_Pooling/config.json", pooling_mode="cls"),
    "a list": lambda folder: edit(folder / "1_Pooling/config.json", pooling_mode=["cls"]),
    "both names": lambda folder: edit(
        folder / "1_Pooling/config.json", pooling_mode="cls", pooling_mode_mean_tokens=True
    ),
    "old name of cls": lambda folder: (folder / "1_Pooling/config.json").write_text(
        '{"word_embedding_dimension": 32, "pooling_mode_cls_token": 1}'
    ),
    "no mode": lambda folder: (folder / "1_Pooling/config.json").write_text(
        '{"word_embedding_dimension": 32, "pooling_mode_cls_token": false}'
    ),
    "another folder": in_another_folder,
    "0_Transformer": in_0_transformer,
    "old name of settings": lambda folder: (folder / "sentence_bert_config.json").rename(
        folder / "sentence_roberta_config.json"
    ),
    "a length": lambda folder: edit(folder / "sentence_bert_config.json", max_seq_length=5),
    "length of the tokenizer": lambda folder: edit(
        folder / "tokenizer_config.json", model_max_length=6
    ),
    "a prompt that is not the default": lambda folder: edit(
        folder / "config_sentence_transformers.json", prompts={"query": "query: "}
    ),
    "an empty default": lambda folder: edit(
        folder / "config_sentence_transformers.json", default_prompt_name="query"
    ),
    "unknown fields that sentence-transformers drops": lambda folder: [
        edit(folder / "2_Normalize/config.json", dtype="bfloat16"),
        edit(folder / "config_sentence_transformers.json", a_setting_of_tomorrow=1),
    ],
    "twice": lambda folder: edit(folder / "2_Normalize/config.json", module_output_name=None),
    "normalised elsewhere": lambda folder: edit(
        folder / "2_Normalize/config.json", module_output_name="other"
    ),
    "nothing normalised": lambda folder: edit(
        folder / "2_Normalize/config.json", module_input_name="other"
    ),
    "tokens normalised": lambda folder: edit(
        folder / "2_Normalize/config.json",
        module_input_name="token_embeddings",
        module_output_name=None,
    ),
}


# Each says where the modules or their settings are in another way.
QUICK = ("both names", "0_Transformer", "a length", "twice", "tokens normalised")


@pytest.mark.parametrize(
    "case", [pytest.param(x, marks=() if x in QUICK else pytest.mark.slow) for x in OF_MODULES]
)
def test_modules_give_the_vectors_of_sentence_transformers_in_copies_too(
    sentence_model, texts, tmp_path, case
):
    folder = sentence_model("Normalize", *["Normalize"] * (case == "twice"))
    OF_MODULES[case](folder)
    expected = theirs(folder, texts[:9])
    bert = bertjax.load_pretrained(folder)
    np.testing.assert_allclose(bert.embed(texts[:9]), expected, atol=1e-5)
    bert.save(tmp_path / "saved")
    convert.main([str(folder), str(tmp_path / "converted")])
    for copy in ("saved", "converted"):
        np.testing.assert_allclose(theirs(tmp_path / copy, texts[:9]), expected, atol=1e-5)
        again = bertjax.load_pretrained(tmp_path / copy)
        np.testing.assert_allclose(again.embed(texts[:9]), expected, atol=1e-5)


REFUSED_SETTINGS = {
    "1_Pooling/config.json": {"pooling_mode": ["mean", "first"]},
    "2_Normalize/config.json": {"module_input_name": "token_embeddings"},
    "sentence_bert_config.json": {"module_output_name": "x"},
    "./sentence_bert_config.json": {
        "modality_config": {"text": {"method": "forward", "method_output_name": "pooler_output"}}
    },
    "././sentence_bert_config.json": {"processing_kwargs": {"text": {"max_length": 4}}},
    "./././sentence_bert_config.json": {"model_args": {"torch_dtype": "float16"}},
    "config_sentence_transformers.json": {"similarity_fn_name": "maxsim"},
    "./config_sentence_transformers.json": {"model_type": "SparseEncoder"},
    "././config_sentence_transformers.json": {
        "prompts": {"query": "query: "},
        "default_prompt_name": "question",
    },
}


@pytest.mark.parametrize("file", REFUSED_SETTINGS)
def test_settings_that_are_not_followed_are_refused_by_name_and_copied(
    sentence_model, tmp_path, file
):
    folder = sentence_model("Normalize")
    load_tokenizer(folder, do_lower_case=False).save(folder)
    edit(folder / file, **REFUSED_SETTINGS[file])
    bert = bertjax.load_pretrained(folder)
    name = next(reversed(REFUSED_SETTINGS[file]))
    part = "pooling mean, first" if name == "pooling_mode" else name
    with pytest.raises(ValueError, match=f"{part}.*--pooling"):
        bert.embed(["Text"])
    assert bert.embed(["Text"], pooling="mean").shape == (1, 32)
    bert.save(tmp_path / "saved")
    assert (tmp_path / "saved" / file).read_bytes() == (folder / file).read_bytes()


def test_predictions_are_the_similarities_of_the_files(sentence_model):
    sentence_transformers = pytest.importorskip("sentence_transformers")
    folder = sentence_model()
    model = sentence_transformers.SentenceTransformer(str(folder), device="cpu")
    vectors = model.encode(["a b", "c"])
    for similarity in (None, "cosine", "dot", "euclidean", "manhattan"):
        edit(folder / "config_sentence_transformers.json", similarity_fn_name=similarity)
        model.similarity_fn_name = similarity or "cosine"
        (found,) = bertjax.load_pretrained(folder).predict([("a b", "c")])
        expected = float(model.similarity(*vectors))
        assert found["similarity"] == pytest.approx(expected, abs=1e-5), similarity


def test_a_copy_has_modules_that_bertjax_lacks(sentence_model, texts, tmp_path):
    folder = sentence_model("Dense", "Dropout", "Normalize")
    bert = bertjax.load_pretrained(folder)
    with pytest.raises(ValueError, match="Pooling, Dense, Dropout, Normalize, but bertjax has on"):
        bert.embed(["a"])
    expected = theirs(folder, texts[:9])
    shutil.rmtree(folder)  # what is saved is what was loaded
    bert.save(tmp_path / "saved")
    np.testing.assert_allclose(theirs(tmp_path / "saved", texts[:9]), expected, atol=1e-5)


def test_the_transformer_of_a_folder_of_modules_says_where_they_are(sentence_model, texts, capsys):
    folder = sentence_model("Normalize")
    in_0_transformer(folder)
    identity = bertjax.load_pretrained(folder).identity
    bert = bertjax.load_pretrained(folder / "0_Transformer")
    assert bert.identity == identity  # by which files of vectors are continued
    assert f"note: give {folder} to follow its modules.json" in capsys.readouterr().out
    expected = theirs(folder / "0_Transformer", texts[:9])
    np.testing.assert_allclose(bert.embed(texts[:9]), expected, atol=1e-5)


@pytest.mark.parametrize("path", ["../m", "/tmp", "a/../../b", "x" * 99])
def test_folders_of_modules_outside_are_refused(folder, tmp_path, path):
    modules = [MODULES[0], MODULES[1] | {"path": path}]
    model = with_modules(folder, tmp_path / "m", modules, {"pooling_mode": "mean"})
    bert = bertjax.load_pretrained(model)
    for use in (lambda: bert.embed(["a"]), lambda: bert.save(tmp_path / "s")):
        with pytest.raises(ValueError, match="names the folder"):
            use()


def test_truncated_texts_are_counted_and_two_columns_of_texts_refused(loaded, tmp_path, capsys):
    text = "abc de fg " * 30
    (tmp_path / "t.txt").write_text(f"abc\n{text}\n{text}\n")
    embed_file(Embedder(loaded, max_length=16), tmp_path / "t.txt", tmp_path / "v.npy")
    assert "2 texts have 16 tokens or more" in capsys.readouterr().out
    rows = "".join(f"the first {i} text,the second {i} text\n" for i in range(9))
    (tmp_path / "a.csv").write_text("body,subject\n" + rows)
    with pytest.raises(ValueError, match="both hold texts: name one with --text_column"):
        embed_file(Embedder(loaded), tmp_path / "a.csv", tmp_path / "v.npy")
