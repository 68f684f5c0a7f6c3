"""`bertjax.search`: rankings of BEIR's files and of other files, their scores, and refusals."""

import json
import re

import numpy as np
import pytest

from bertjax import load_pretrained, search
from bertjax.inference import retrieval
from bertjax.search import SearchConfig
from tests.inference.test_retrieval import collection, write_rows
from tests.lines import json_lines


@pytest.fixture(scope="module")
def beir(tmp_path_factory):
    return collection(tmp_path_factory.mktemp("beir"))


@pytest.fixture
def found(encoder, tmp_path, capsys):
    """flags -> (the ranking that the command writes as a run of TREC, the scores that it prints)"""

    def ranked(*flags):
        output = tmp_path / "run.trec"
        output.unlink(missing_ok=True)
        words = ["--model", str(encoder), *map(str, flags), "--output", str(output)]
        assert search.main(words) == 0
        lines = [line.split() for line in output.read_text().splitlines()]
        printed = [x for x in capsys.readouterr().out.splitlines() if x.startswith("{")]
        return lines, [json.loads(line) for line in printed]

    return ranked


def assert_close(lines, others):
    """Last bits of scores depend on the texts that are embedded together."""
    for line, other in zip(lines, others, strict=True):
        assert (line[0], line[3]) == (other[0], other[3])
        assert float(line[4]) == pytest.approx(float(other[4]), abs=1e-6)


def files_of(beir):
    return ["--corpus", beir / "corpus.jsonl", "--queries", beir / "queries.jsonl"]


def test_a_ranking_is_that_of_sorting_all_cosines(found, beir, encoder):
    """By scores, then by ids, in descending order; without the passage that is the query."""
    lines, (scores,) = found("--retrieval_dir", beir)
    bert = load_pretrained(encoder, "encoder")
    ids, texts = [], []
    for line in (beir / "corpus.jsonl").read_text().splitlines():
        row = json.loads(line)
        ids.append(row["_id"])
        texts.append(f"{row['title']} {row['text']}".strip())
    passages = bert.embed(texts, normalize=True)
    queries = {}
    for line in (beir / "queries.jsonl").read_text().splitlines():
        row = json.loads(line)
        queries[row["_id"]] = bert.embed([row["text"]], normalize=True)[0]
    assert len(lines) == 11 * 100
    for start in range(0, len(lines), 100):
        of_query = lines[start : start + 100]
        cosines = dict(zip(ids, passages @ queries[of_query[0][0]], strict=True))
        ranks = [int(rank) for *_, rank, _, _ in of_query]
        written = [float(score) for *_, score, _ in of_query]
        assert ranks == [*range(1, 101)] and written == sorted(written, reverse=True)
        exact = [cosines[passage] for _, _, passage, *_ in of_query]
        np.testing.assert_allclose(written, exact, atol=2e-6)
        np.testing.assert_allclose(written, np.sort([*cosines.values()])[:-101:-1], atol=2e-6)
        pairs = [(-float(score), passage) for _, _, passage, _, score, _ in of_query]
        for (score, passage), (other, after) in zip(pairs, pairs[1:], strict=False):
            assert score < other or passage > after
    judged = retrieval.beir_collection(beir, "test")
    ranking = {query: [] for query in judged.queries}
    for query, _, passage, *_ in lines:
        ranking[query].append(passage)
    assert scores == judged.score(ranking) and 0 < scores["mrr_at_10"] <= 1


def test_files_given_one_by_one_are_the_folder(found, beir):
    expected = found("--retrieval_dir", beir)
    assert found(*files_of(beir), "--qrels", beir / "qrels" / "test.tsv") == expected


def test_without_judgements_all_queries_are_searched_and_nothing_is_scored(found, beir):
    judged, _ = found("--retrieval_dir", beir)
    lines, scores = found(*files_of(beir))
    queries = {query for query, *_ in lines}
    assert scores == [] and queries == {f"q{i}" for i in range(12)}
    assert_close([line for line in lines if line[0] != "q11"], judged)


def test_json_lines_say_what_the_trec_run_says(found, beir, encoder, tmp_path):
    lines, _ = found("--retrieval_dir", beir, "--top_k", 7)
    output = tmp_path / "run.jsonl"
    flags = ["--model", str(encoder), "--retrieval_dir", str(beir), "--top_k", "7"]
    assert search.main([*flags, "--output", str(output)]) == 0
    written = json_lines(output)
    rows = json_lines(beir / "queries.jsonl")
    texts = {row["_id"]: row["text"] for row in rows}
    as_trec = []
    for query in written:
        assert query["query"] == texts[query["id"]]
        for rank, passage in enumerate(query["ranking"], start=1):
            score = f"{passage['score']:.9g}"
            as_trec.append([query["id"], "Q0", passage["id"], str(rank), score, "bertjax"])
    assert as_trec == lines


def test_scores_stand_beside_their_intervals_over_queries_on_the_terminal(
    encoder, beir, tmp_path, capsys
):
    flags = ["--retrieval_dir", str(beir), "--output", str(tmp_path / "run.trec")]
    assert search.main(["--model", str(encoder), *flags]) == 0
    printed = capsys.readouterr()
    scores = json.loads(printed.out.splitlines()[-1])
    found = re.findall(r"(\S+) % \(95 % interval (\S+) to (\S+)\)", printed.err)
    assert found
    shown = [f"{100 * score:.2f}" for score in scores.values()]
    for score, low, high in found:
        assert score in shown and float(low) <= float(score) <= float(high)


@pytest.mark.parametrize("top_k", [1, 7, 120])
def test_the_first_top_k_passages_are_written_and_the_scores_stay(found, beir, top_k):
    whole, scores = found("--retrieval_dir", beir, "--top_k", 130)
    lines, same = found("--retrieval_dir", beir, "--top_k", top_k)
    assert same == scores
    assert lines == [line for line in whole if int(line[3]) <= top_k]


def test_texts_without_ids_are_numbered_from_0_and_no_number_is_a_query(found, tmp_path, capsys):
    texts = ["ab bc cde", "hij ia jab", "def ef fgh", "gh hij"]
    (tmp_path / "corpus.txt").write_text("\n".join(texts) + "\n")
    (tmp_path / "queries.txt").write_text(f"{texts[2]}\n{texts[1]}\n")
    (tmp_path / "qrels.txt").write_text("0 0 2 1\n1 0 1 1\n")
    flags = ["--corpus", tmp_path / "corpus.txt", "--queries", tmp_path / "queries.txt"]
    lines, scores = found(*flags, "--qrels", tmp_path / "qrels.txt", "--top_k", 4)
    best = [passage for _, _, passage, rank, *_ in lines if rank == "1"]
    assert best == ["2", "1"] and len(lines) == 8
    assert scores == [dict.fromkeys(retrieval.METRICS, 1.0)]
    assert "left out" not in capsys.readouterr().err


def test_tables_and_folders_of_tables_are_read_as_their_json_lines(found, beir, tmp_path):
    expected = found(*files_of(beir))
    rows = json_lines(beir / "corpus.jsonl")
    folder = tmp_path / "corpus"
    folder.mkdir()
    write_rows(folder / "a.jsonl", rows[:50])
    lines = [f"{row['_id']},{row['title']},{row['text']}\n" for row in rows[50:]]
    (folder / "b.csv").write_text("docid,title,text\n" + "".join(lines))
    assert found("--corpus", folder, "--queries", beir / "queries.jsonl") == expected


REFUSED = {
    "no collection": ({}, "--retrieval_dir, or --corpus and --queries"),
    "no queries": ({"corpus": "c", "output": "a.trec"}, "--corpus and --queries"),
    "two collections": ({"retrieval_dir": "d", "queries": "q"}, "--retrieval_dir d"),
    "judgements of a folder": ({"retrieval_dir": "d", "qrels": "q"}, "--retrieval_dir d"),
    "a split of files": (
        {"corpus": "c", "queries": "q", "split": "dev", "output": "a.trec"},
        "--split dev",
    ),
    "nothing to do": ({"corpus": "c", "queries": "q"}, "give --output"),
    "another format": ({"retrieval_dir": "d", "output": "a.csv"}, "--output a.csv"),
    "no passages": ({"retrieval_dir": "d", "top_k": 0}, "top_k=0"),
    "an unknown pooling": ({"retrieval_dir": "d", "pooling": "sum"}, "pooling='sum'"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_makes_no_sense_together_is_refused(case):
    flags, message = REFUSED[case]
    with pytest.raises(ValueError, match=message):
        SearchConfig(model="m", **flags)


def test_another_split_of_a_folder_is_found_by_its_name(found, beir, tmp_path):
    expected, _ = found("--retrieval_dir", beir)
    (beir / "qrels" / "train.tsv").write_text("query-id\tcorpus-id\tscore\nq3\td5\t1\n")
    lines, _ = found("--retrieval_dir", beir, "--split", "train")
    (beir / "qrels" / "train.tsv").unlink()
    assert_close(lines, [line for line in expected if line[0] == "q3"])


def test_a_split_that_is_not_there_is_no_other_one(beir, encoder, capsys):
    flags = ["--model", str(encoder), "--retrieval_dir", str(beir), "--split", "dev"]
    assert search.main(flags) == 1
    error = capsys.readouterr().err
    assert "qrels needs one file dev.tsv, but holds ['test.tsv']" in error


def test_the_files_of_a_collection_are_never_replaced(beir, encoder, capsys):
    flags = ["--model", str(encoder), *map(str, files_of(beir)), "--output"]
    before = (beir / "corpus.jsonl").read_bytes()
    assert search.main([*flags, str(beir / "corpus.jsonl")]) == 1
    assert "would replace the input --corpus" in capsys.readouterr().err
    assert (beir / "corpus.jsonl").read_bytes() == before
