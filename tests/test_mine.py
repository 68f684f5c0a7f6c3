"""`bertjax mine`: hard negatives as sentence-transformers mines them, resumable."""

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest

import bertjax
from bertjax import mine
from bertjax.inference import embedder, output_files, retrieval
from bertjax.mine import MineConfig, folded, passage_forms, run
from tests.hub_server import unique
from tests.inference.test_retrieval import with_modules
from tests.lines import json_lines

WORDS = "ab bc cde def ef fgh gh hij ia jab ca dab".split()


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Queries of which some have several positives, and a corpus with repeated texts."""
    folder, rng = tmp_path_factory.mktemp("mine"), np.random.default_rng(0)

    def texts(count, words):
        return [" ".join(rng.choice(WORDS, words)) for _ in range(count)]

    queries, corpus = texts(12, 3), texts(60, 5)
    corpus[:12] = [f"{query} {text}" for query, text in zip(queries, texts(12, 1), strict=True)]
    rows = [{"query": q, "positive": p} for q, p in zip(queries, corpus[:12], strict=True)]
    rows += [{"query": q, "positive": p} for q, p in zip(queries[:4], texts(4, 5), strict=True)]
    with (folder / "pairs.jsonl").open("w") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)
    with (folder / "corpus.jsonl").open("w") as file:
        file.writelines(json.dumps({"_id": str(i), "text": x}) + "\n" for i, x in enumerate(corpus))
        file.write(json.dumps({"_id": "again", "text": corpus[20]}) + "\n")
    return folder


@pytest.fixture
def config(files, one_layer, tmp_path):
    return MineConfig(
        model=str(one_layer),
        queries=str(files / "pairs.jsonl"),
        corpus=str(files / "corpus.jsonl"),
        output=str(tmp_path / "mined.jsonl"),
    )


def mined(config, **changes):
    run(dataclasses.replace(config, **changes))
    with open(config.output) as file:
        return [json.loads(line) for line in file]


@pytest.mark.slow
@pytest.mark.parity
@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        ({}, {}),
        ({"rank_min": 2, "num_negatives": 5}, {"range_min": 2, "num_negatives": 5}),
        ({"rank_max": 20, "margin": 0.005}, {"range_max": 20, "absolute_margin": 0.005}),
        ({"ratio": 0.99, "rank_min": 1}, {"relative_margin": 0.01, "range_min": 1}),
        ({"max_score": 0.97, "ratio": 1.1}, {"max_score": 0.97, "relative_margin": -0.1}),
        ({"corpus": None}, {"corpus": None}),
    ],
)
def test_negatives_are_those_of_sentence_transformers(config, files, ours, theirs):
    torch = pytest.importorskip("torch")
    datasets = pytest.importorskip("datasets")
    mine_hard_negatives = pytest.importorskip("sentence_transformers.util").mine_hard_negatives

    bert = bertjax.load_pretrained(config.model, "encoder")

    class Model:
        device = "cpu"

        def encode_query(self, texts, **_):
            vectors = bert.embed(texts, normalize=True)
            return vectors

        encode_document = encode_query

        def similarity(self, a, b):
            return torch.as_tensor(a) @ torch.as_tensor(b).T

        def similarity_pairwise(self, a, b):
            return (torch.as_tensor(a) * torch.as_tensor(b)).sum(-1)

    rows = json_lines(files / "pairs.jsonl")
    corpus = [json.loads(x)["text"] for x in (files / "corpus.jsonl").read_text().splitlines()]
    settings = {"corpus": corpus, "output_format": "n-tuple", "output_scores": True} | theirs
    expected = mine_hard_negatives(
        datasets.Dataset.from_list(rows), Model(), verbose=False, **settings
    )
    found = mined(config, **ours)
    names = [name for name in expected.column_names if name.startswith("negative_")]
    assert len(found) == len(expected) > 0
    for line, row in zip(found, expected, strict=True):
        assert (line["query"], line["positive"]) == (row["query"], row["positive"])
        assert line["negatives"] == [row[name] for name in names]
        np.testing.assert_allclose(line["scores"], row["scores"], atol=1e-5)


def test_random_negatives_are_drawn_by_the_seed_from_the_ranks(config):
    settings = {"rank_min": 1, "rank_max": 9, "num_negatives": 3}
    ranked = mined(config, **settings | {"num_negatives": 8})
    drawn = mined(config, **settings, sampling="random", seed=1)
    assert drawn == mined(config, **settings, sampling="random", seed=1)
    assert drawn != mined(config, **settings, sampling="random", seed=2)
    for line, every in zip(drawn, ranked, strict=True):
        places = [every["negatives"].index(text) for text in line["negatives"]]
        assert places == sorted(set(places)) and len(places) == 3
    assert len({tuple(x["negatives"]) for x in drawn}) > 5


def test_no_positive_and_not_the_query_itself_is_a_negative(config, tmp_path):
    rows = [{"query": f"a {w}", "positive": f"b {w}"} for w in WORDS]
    rows += [{"query": "a ab", "positive": "c ab"}, {"query": "b ab", "positive": "a ab"}]
    (tmp_path / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = mined(config, queries=str(tmp_path / "pairs.jsonl"), corpus=None, num_negatives=10)
    assert len(found) == len(rows)
    for line in found:
        positives = {row["positive"] for row in rows if row["query"] == line["query"]}
        assert not {*line["negatives"]} & {line["query"], *positives}
        assert len({*line["negatives"]}) == 10


def write_rows(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


@pytest.mark.parametrize(
    ("positive", "passage"),
    [
        ("Ab is in bc.", {"title": "Rhine", "text": "Ab is in bc."}),
        ("Ab is in bc.", {"text": "AB  is\tin\u00a0bc. "}),
        ("Caf\u00e9 \ufb01 \u00df", {"text": "CAFE\u0301 FI SS"}),  # NFD, a ligature, a sharp s
        ("Abc 12", {"text": "\uff21\uff42\uff43 \uff11\uff12"}),  # of full width
        ("Ab\u200bc de", {"text": "abc\u00ad de\ufeff"}),  # without a width
        ('It\'s "ab" - cd', {"text": "It\u2019s \u201cab\u201d \u2013 cd"}),
        ("Rhine: ab bc", {"title": "Rhine", "text": "ab bc"}),
        ("Rhine\nab bc", {"title": "RHINE", "text": "ab bc"}),
        ("ab bc", {"title": "Rhine", "text": "Rhine. Ab bc"}),
        ("Rhine ab bc", {"title": "", "text": "rhine ab bc"}),
    ],
)
def test_a_passage_that_is_a_positive_in_another_form_is_no_negative(positive, passage):
    assert not {hash(folded(positive))}.isdisjoint(
        passage_forms(passage.get("title", ""), passage["text"])
    )


def test_other_texts_have_other_forms():
    texts = ["ab bc", "ab bd", "Ab: bc de", "a + b", "a - b", "2.5", "25", "caf\u00e9", "cafe"]
    forms = [{*passage_forms(title, text)} for text in texts for title in ("", "x")]
    for i, (first, second) in enumerate(zip(forms[::2], forms[1::2], strict=True)):
        others = [form for j, form in enumerate(forms) if j // 2 != i]
        assert first & second and all((first | second).isdisjoint(form) for form in others)


def test_no_form_of_a_positive_or_of_the_query_is_mined_and_texts_are_written_as_given(
    config, tmp_path
):
    pairs = [
        {"query": "ab cd", "positive": "Cd def."},
        {"query": "AB  cd", "positive": "gh hij"},  # the same query, with another positive
        {"query": "ia jab", "positive": "CD  def."},  # the same positive
    ]
    corpus = [
        {"title": "Title", "text": "CD DEF."},
        {"title": "", "text": "GH hij"},
        {"title": "Title", "text": "Ab cd"},  # the query
        {"title": "", "text": "fgh fgh"},
        {"title": "", "text": "Fgh  FGH"},  # a copy
        {"title": "", "text": " "},
        {"title": "", "text": "ca dab"},
    ]
    found = mined(
        config,
        queries=write_rows(tmp_path / "pairs.jsonl", pairs),
        corpus=write_rows(tmp_path / "corpus.jsonl", corpus),
        num_negatives=2,
    )
    assert [{k: line[k] for k in ("query", "positive")} for line in found] == pairs
    for line in found[:2]:
        assert sorted(line["negatives"]) == ["ca dab", "fgh fgh"]
    every = mined(
        config,
        queries=str(tmp_path / "pairs.jsonl"),
        corpus=str(tmp_path / "corpus.jsonl"),
        num_negatives=4,
    )
    (line,) = every  # of the third query, whose negatives are the other texts
    assert sorted(line["negatives"]) == ["Title Ab cd", "ca dab", "fgh fgh", "gh hij"]


def test_a_rerankers_scores_filter_and_order(config, monkeypatch, capsys):
    """The stand-in prefers texts with words of the query."""

    def score(query, text):
        return float(len({*query.split()} & {*text.split()})) - 1

    class Reranker:
        identity = ("stand-in",)

        def rerank(self, query, texts):
            rows = [{"index": i, "score": score(query, text)} for i, text in enumerate(texts)]
            return sorted(rows, key=lambda row: -row["score"])

    from bertjax.inference import pretrained

    load = pretrained.load_pretrained
    monkeypatch.setattr(
        pretrained, "load_pretrained", lambda x, *head: Reranker() if x == "r" else load(x, *head)
    )
    with monkeypatch.context() as patch:
        patch.setattr(Reranker, "rerank", lambda self, *_: [{"index": 0, "score": np.nan}])
        with pytest.raises(ValueError, match=r"^r scores '.*' with nan"):
            mined(config, reranker="r")
    found = mined(config, reranker="r", margin=1.0, rank_max=40)
    assert 0 < len(found) < 16
    assert f"{16 - len(found)} pairs have too few" in capsys.readouterr().out
    for line in found:
        texts = [line["positive"], *line["negatives"]]
        assert line["scores"] == [score(line["query"], text) for text in texts]
        first, *others = line["scores"]
        assert others == sorted(others, reverse=True) and max(others) <= first - 1


@pytest.mark.parametrize("fails", ["embedding", "mining"])
def test_an_interrupted_command_continues_to_the_same_bytes(config, monkeypatch, fails, tmp_path):
    monkeypatch.setattr(retrieval, "QUERIES", 2)
    monkeypatch.setattr(retrieval, "PASSAGES", 16)
    monkeypatch.setattr(embedder, "WINDOW", 10)
    mined(config)
    whole = (tmp_path / "mined.jsonl").read_bytes()
    (tmp_path / "mined.jsonl").unlink()
    kind, name = output_files.PartialLines, "write"
    if fails == "embedding":
        kind, name = output_files.PartialFolder, "finished"
    write, count = getattr(kind, name), 0

    def stops(self, *args):
        nonlocal count
        count += 1
        if count == 5:
            raise KeyboardInterrupt
        return write(self, *args)

    with monkeypatch.context() as patch:
        patch.setattr(kind, name, stops)
        with pytest.raises(KeyboardInterrupt):
            mined(config)
    kept = sorted(path.name for path in tmp_path.iterdir())
    assert len(kept) == (1 if fails == "embedding" else 2), kept
    encoded = []
    call = embedder.Embedder.__call__

    def counted(self, texts):
        encoded.append(len(texts))
        return call(self, texts)

    monkeypatch.setattr(embedder.Embedder, "__call__", counted)
    mined(config)
    assert (tmp_path / "mined.jsonl").read_bytes() == whole
    assert [path.name for path in tmp_path.iterdir()] == ["mined.jsonl"]
    assert max(encoded) == (10 if fails == "embedding" else 2)


def test_prompts_of_the_directory_are_put_before_queries_and_passages(config, tmp_path):
    prompts = {"query": "ab bc ", "document": "hij "}
    model = with_modules(config.model, tmp_path / "model", prompts)
    plain = bertjax.load_pretrained(config.model, "encoder")
    (line, *_) = mined(config, model=str(model))
    x = plain.embed([prompts["query"] + line["query"]], pooling="mean", normalize=True)
    texts = [prompts["document"] + text for text in (line["positive"], *line["negatives"])]
    y = plain.embed(texts, pooling="mean", normalize=True)
    np.testing.assert_allclose(line["scores"], y @ x[0], atol=1e-5)


def test_a_dataset_of_the_hub_and_a_folder_give_the_negatives_of_their_files(
    config, hub, tmp_path, monkeypatch
):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    expected = mined(config)
    name, folder = unique(), tmp_path / "corpus"
    lines = Path(config.corpus).read_bytes().splitlines(keepends=True)
    halves = (b"".join(lines[:30]), b"".join(lines[30:]))
    shards = {f"data/train-0000{i}-of-00002.jsonl": half for i, half in enumerate(halves)}
    hub.dataset(name, shards)
    folder.mkdir()
    for path, content in shards.items():
        (folder / Path(path).name).write_bytes(content)
    for corpus in (f"hf:{name}", str(folder)):
        Path(config.output).unlink()
        assert mined(config, corpus=corpus) == expected


def test_pairs_with_scores_and_rows_without_a_positive_are_refused(config, tmp_path):
    path = tmp_path / "pairs.jsonl"
    path.write_text('{"query": "a", "positive": "b", "score": 1.0}\n' * 3)
    with pytest.raises(ValueError, match=r"pairs.jsonl has pairs with scores, in column 'score'"):
        mined(config, queries=str(path))
    assert len(mined(config, queries=str(path), ignore_columns=("score",))) == 1
    path.write_text('{"query": "a", "positive": "b"}\n{"query": "c", "positive": ""}\n')
    with pytest.raises(ValueError, match=r"pairs.jsonl, row 2"):
        mined(config, queries=str(path))
    with pytest.raises(ValueError, match=r"num_negatives=0: it must be at least 1"):
        mined(config, num_negatives=0)


@pytest.mark.parametrize(
    ("column", "values", "message"),
    [
        ("split", ["train", "test"], "'split' .* which rows to use"),
        ("is_duplicate", [1, 0], "pairs with scores, in column 'is_duplicate'"),
        ("entailment", ["neutral", "entailment"], "'entailment' .* which texts belong together"),
        ("other", ["ab bc cde ef", "ef fgh gh ab"], "'other' .*--negative_columns"),
    ],
)
def test_columns_of_queries_that_could_change_the_pairs_stop_the_command(
    config, tmp_path, column, values, message
):
    rows = json_lines(config.queries)
    rows = [row | {column: values[i % 2]} for i, row in enumerate(rows)]
    path = tmp_path / "pairs.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(ValueError, match=message):
        mined(config, queries=str(path))
    expected = mined(config)
    Path(config.output).unlink()
    assert mined(config, queries=str(path), ignore_columns=(column,)) == expected


def test_texts_that_may_be_missing_are_named(config, tmp_path, capsys):
    pairs, corpus = tmp_path / "pairs.jsonl", tmp_path / "corpus.jsonl"
    line = json.dumps({"query": "nan", "positive": "ab bc"})
    pairs.write_text(f"{Path(config.queries).read_text()}{line}\n")
    lines = [json.dumps({"text": text, "heading": "ab"}) for text in ("N/A", "\u200b", "")]
    corpus.write_text(Path(config.corpus).read_text() + "\n".join(lines) + "\n")
    mined(config, queries=str(pairs), corpus=str(corpus))
    printed = capsys.readouterr()
    count = len(pairs.read_text().splitlines())
    assert f"warning: {pairs}: rows with a text such as 'nan'" in printed.out
    assert f"row {count})" in printed.out
    assert "corpus.jsonl: rows whose text is empty, or NaN, None and the like: 3" in printed.err


def test_the_command_has_its_flags():
    flags = "--model m --queries q --output o --num_negatives 2 --ratio .9 --sampling random"
    config = mine.parse(flags.split())
    assert (config.model, config.output, config.ratio, config.corpus) == ("m", "o", 0.9, None)


def test_pairs_that_may_not_belong_together_are_not_mined(tmp_path, config):
    rows = [
        {
            "query": f"the query {i}",
            "positive": f"a passage {i}",
            "nli_label": ("yes", "not")[i % 2],
        }
        for i in range(6)
    ]
    (tmp_path / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    queries = str(tmp_path / "pairs.jsonl")
    with pytest.raises(ValueError, match="'nli_label' .* which texts belong together"):
        mined(config, queries=queries, corpus=None)
    assert mined(config, queries=queries, corpus=None, ignore_columns=("nli_label",))
