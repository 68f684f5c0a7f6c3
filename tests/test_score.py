"""python -m bertjax.score on small files of every form, and on the real ones."""

import json
import re

import pytest

from bertjax import score
from bertjax.tasks.sources.glue import GLUE, format_glue_predictions, read_glue_file

HEADERS = {"cola": None, "stsb": "index\tsentence1\tsentence2\tscore"}
SQUAD = {
    "data": [
        {
            "paragraphs": [
                {
                    "context": "The cat sat on the mat.",
                    "qas": [
                        {"id": "1", "question": "Who?", "answers": [{"text": "The cat"}]},
                        {"id": "2", "question": "Where?", "answers": [{"text": "on the mat"}]},
                    ],
                }
            ]
        }
    ]
}
IMPOSSIBLE = {"id": "3", "question": "Why?", "answers": [], "is_impossible": True}


@pytest.fixture
def run(tmp_path, capsys):
    """Writes the files, scores them, and returns what was printed; or the error."""

    def score_files(task, gold, predictions, *flags):
        files = []
        for name, content in (("gold", gold), ("predictions", predictions)):
            text = content if isinstance(content, str) else json.dumps(content)
            (tmp_path / name).write_text(text, encoding="utf-8")
            files.append(f"--{name}={tmp_path / name}")
        status = score.main([f"--task={task}", *files, *flags])
        printed = capsys.readouterr()
        score_files.told = printed.err
        return json.loads(printed.out) if status == 0 else printed.err

    return score_files


def with_impossible():
    document = json.loads(json.dumps(SQUAD))
    document["data"][0]["paragraphs"][0]["qas"].append(IMPOSSIBLE)
    return document


def test_squad_prints_what_the_official_script_prints(run):
    assert run("squad", SQUAD, {"1": "cat", "2": "the mat"}) == pytest.approx(
        {"exact_match": 50.0, "f1": 50 + 100 / 3}
    )
    assert run("squad", SQUAD, {"1": "cat"}) == {"exact_match": 50.0, "f1": 50.0}


def test_squad2_prints_what_the_official_script_prints(run, tmp_path):
    answers = {"1": "cat", "2": "", "3": "mat"}
    values = run("squad2", with_impossible(), answers)
    third = pytest.approx(100 / 3)
    assert values["exact"] == values["f1"] == third
    assert (values["total"], values["HasAns_total"], values["NoAns_total"]) == (3, 2, 1)
    assert isinstance(values["total"], int)
    assert (values["HasAns_exact"], values["NoAns_exact"]) == (50.0, 0.0)
    (tmp_path / "odds").write_text(json.dumps({"1": -3.0, "2": 0.5, "3": 2}))
    values = run("squad2", with_impossible(), answers, f"--na_probs={tmp_path / 'odds'}")
    assert values["exact"] == pytest.approx(200 / 3)
    assert values["best_exact"] == pytest.approx(200 / 3)
    assert values["best_exact_thresh"] == -3.0
    flags = [f"--na_probs={tmp_path / 'odds'}", "--na_prob_thresh=3"]
    assert run("squad2", with_impossible(), answers, *flags)["exact"] == third


@pytest.mark.parametrize(
    ("task", "document", "predictions", "message"),
    [
        ("squad", SQUAD, {"x": "cat"}, "None of the 2 questions"),
        ("squad", SQUAD, {"1": 5}, "question 1 is 5, but all values must be texts"),
        ("squad", SQUAD, ["cat"], "holds a list, not an object"),
        ("squad", SQUAD, "cat", "is not JSON"),
        ("squad", with_impossible(), {"1": "cat"}, "Question '3' has no answer"),
        ("squad2", with_impossible(), {"1": "cat"}, "2 of 3 questions have no prediction"),
    ],
)
def test_answers_that_do_not_fit_are_refused(run, task, document, predictions, message):
    assert message in run(task, document, predictions)


def test_a_question_twice_is_refused(run):
    document = json.loads(json.dumps(SQUAD))
    document["data"] *= 2
    assert "an earlier question has the same id" in run("squad", document, {"1": "cat"})


def test_glue_tasks_print_their_own_metrics(run):
    cola = "".join(f"x\t{label}\t\tA sentence.\n" for label in (1, 0, 1, 1))
    assert run("cola", cola, "index\tprediction\n0\t1\n1\t0\n2\t1\n3\t1\n") == {"matthews": 100.0}
    # Rows in another order, classes by their names.
    shuffled = "1\tunacceptable\n0\tacceptable\n3\tunacceptable\n2\tacceptable\n"
    assert run("cola", cola, shuffled)["matthews"] == pytest.approx(100 / 3**0.5)
    stsb = "index\tsentence1\tsentence2\tscore\n" + "".join(
        f"{i}\ta\tb\t{value}\n" for i, value in enumerate((0.0, 2.5, 5.0))
    )
    values = run("stsb", stsb, "0\t1\n1\t2\n2\t4.9\n")
    assert values["spearman"] == pytest.approx(100.0)
    assert values["pearson_spearman"] == pytest.approx((values["pearson"] + 100) / 2)
    mnli = "index\tsentence1\tsentence2\tgold_label\n0\ta\tb\tneutral\n1\ta\tb\tentailment\n"
    assert run("mnli", mnli, "0\tneutral\n1\tneutral\n") == {"accuracy": 50.0}
    qqp = "id\tquestion1\tquestion2\tis_duplicate\n" + "".join(
        f"{i}\ta\tb\t{label}\n" for i, label in ((9, 1), (5, 1), (7, 0))
    )
    values = run("qqp", qqp, "index\tprediction\n9\t1\n5\t0\n7\t0\n")
    assert values == pytest.approx({"accuracy": 200 / 3, "f1": 200 / 3, "accuracy_f1": 200 / 3})


def test_scores_have_intervals_over_the_examples(run):
    texts = "".join(f"{i}\ta\tb\t{label}\n" for i, label in enumerate("0100110111" * 10))
    answers = "".join(f"{i}\t{label}\n" for i, label in enumerate("0100110110" * 10))
    values = run("qqp", f"id\tquestion1\tquestion2\tis_duplicate\n{texts}", answers)
    found = re.findall(r"([\d.]+) % \(95 % interval ([\d.]+) to ([\d.]+)\)", run.told)
    assert [float(value) for value, _, _ in found] == pytest.approx([*values.values()], abs=0.01)
    for value, low, high in found:
        assert 80 < float(low) < float(value) < float(high) < 98
    run("conll", CONLL * 20, CONLL.replace("B-LOC", "B-PER") * 20)
    assert "F1 40.00 % (95 % interval" in run.told
    run("squad2", with_impossible(), {"1": "cat", "2": "", "3": "mat"})
    assert "exact match 33.33 % (95 % interval" in run.told and "total" not in run.told


def test_rows_without_gold_label_may_have_predictions(run):
    mnli = "index\tsentence1\tsentence2\tgold_label\n0\ta\tb\tneutral\n1\ta\tb\t-\n"
    assert run("mnli", mnli, "0\tneutral\n1\tneutral\n") == {"accuracy": 100.0}


@pytest.mark.parametrize(
    ("predictions", "message"),
    [
        ("0\t1\n", "but 1 rows have no prediction (such as index 1). Use"),
        ("0\t1\n1\t1\n2\t1\n", "but 1 predictions have no row (such as index 2). Use"),
        ("0\t1\n0\t1\n", "index 0 has a prediction already"),
        ("0\t1\n1\tmaybe\n", "label 'maybe' of sst2 is not one of 0, 1"),
        ("0 1\n1 1\n", "must have an index and a prediction"),
    ],
)
def test_predictions_of_other_rows_are_refused(run, predictions, message):
    assert message in run("sst2", "sentence\tlabel\ngood\t1\nbad\t0\n", predictions)


def test_a_gold_file_without_labels_is_refused(run):
    assert "has no column 'label'" in run("sst2", "index\tsentence\n0\tgood\n", "0\t1\n")


CONLL = "-DOCSTART- -X- O\n\nEU NNP B-ORG\nsaid VBD O\n\nNew NNP B-LOC\nYork NNP I-LOC\n"


def test_conll_takes_columns_with_the_predicted_tag_last(run):
    tags = "EU B-ORG\nsaid O\n\nNew B-LOC\nYork O\n"
    expected = {"precision": 50.0, "recall": 50.0, "f1": 50.0, "accuracy": 75.0}
    assert run("conll", CONLL, tags) == expected
    # As conlleval reads them: gold and prediction in the last two columns; IOB1.
    both = "EU NNP I-ORG I-ORG\nsaid VBD O O\n\nNew NNP I-LOC I-LOC\nYork NNP I-LOC O\n"
    assert run("conll", CONLL, both) == expected
    assert set(run("conll", CONLL, CONLL).values()) == {100.0}


@pytest.mark.parametrize(
    ("predictions", "message"),
    [
        ("EU O\nsaid O\n", "ends after 1 sentences"),
        ("EU O\nsays O\n\nNew O\nYork O\n", "has 'says', but that at"),
        ("EU O\nsaid O\nNew O\nYork O\n", "has 'New', but that at"),
        ("EU\nsaid\n\nNew\nYork\n", "has words, but no tags"),
    ],
)
def test_tags_of_other_sentences_are_refused(run, predictions, message):
    assert message in run("conll", CONLL, predictions)


def test_what_cannot_be_scored_is_refused(run, tmp_path, capsys):
    file = tmp_path / "f"
    file.write_text(CONLL)
    assert score.main(["--task=conll", f"--gold={file}", f"--predictions={file}"]) == 1
    assert "are the same file" in capsys.readouterr().err
    assert score.main(["--task=conll", f"--gold={file}", "--predictions=none.txt"]) == 1
    assert "none.txt does not exist" in capsys.readouterr().err


def test_flags_that_make_no_sense_are_refused(run, capsys):
    for task, flags, message in [
        ("squad3", [], "Unknown task 'squad3'. Did you mean 'squad"),
        ("classify", [], "classify has no official format of predictions: bertjax.predict"),
        ("squad", ["--na_probs=x"], "--na_probs goes with --task=squad2"),
        ("squad2", ["--na_prob_thresh=0.5"], "no effect without --na_probs"),
    ]:
        with pytest.raises(SystemExit):
            run(task, SQUAD, {}, *flags)
        assert message in " ".join(capsys.readouterr().err.replace("│", " ").split())


@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.real
def test_gold_labels_are_worth_100_on_the_real_dev_sets(run, shared, tmp_path, capsys):
    for version, task in (("1.1", "squad"), ("2.0", "squad2")):
        gold = shared / "squad" / f"dev-v{version}.json"
        document = json.loads(gold.read_text(encoding="utf-8"))
        questions = [q for a in document["data"] for p in a["paragraphs"] for q in p["qas"]]
        answers = {q["id"]: q["answers"][0]["text"] if q["answers"] else "" for q in questions}
        values = run(task, gold.read_text(encoding="utf-8"), answers)
        assert values["f1"] == pytest.approx(100.0, abs=1e-9)
        assert values.get("exact", values.get("exact_match")) == 100.0
    for task in ("cola", "sst2", "stsb", "rte"):
        spec = GLUE[task]
        gold = shared / "glue" / spec.folder / "dev.tsv"
        examples = read_glue_file(spec, gold, "dev")
        predictions = format_glue_predictions(spec, {e.id: e.label for e in examples})
        values = run(task, gold.read_text(encoding="utf-8"), predictions)
        assert list(values.values()) == pytest.approx([100.0] * len(values))
    text = (shared / "conll2003" / "test.txt").read_text(encoding="utf-8")
    assert set(run("conll", text, text).values()) == {100.0}


SENTENCES = (
    ("B-A", "I-A", "O", "B-B", "B-A", "O"),
    ("O", "B-A", "B-A", "I-A", "O", "B-B"),
)
# Predictions of inconsistent taggers, the F1 of entities that conlleval and seqeval compute,
# and how many of 12 tags are right as they stand. Converted to IOB2 first, more would be right.
ANSWERS = {
    "I without B": (
        ("I-A", "I-A", "O", "I-B", "B-A", "O"),
        ("O", "B-A", "I-A", "I-A", "O", "B-B"),
        8 / 11,
        9,
    ),
    "another type": (
        ("B-A", "I-B", "O", "B-B", "I-A", "O"),
        ("O", "B-A", "B-A", "I-A", "O", "I-B"),
        10 / 13,
        9,
    ),
    "as the gold": (*SENTENCES, 1, 12),
    "nothing": (("O",) * 6, ("O",) * 6, 0, 4),
}


def columns(sentences):
    return "\n".join("".join(f"w{i} {tag}\n" for i, tag in enumerate(tags)) for tags in sentences)


@pytest.mark.parametrize("kind", ANSWERS)
def test_the_accuracy_of_conll_is_of_the_tags_as_they_stand(run, kind):
    *answers, f1, right = ANSWERS[kind]
    values = run("conll", columns(SENTENCES), columns(answers))
    assert values["accuracy"] == pytest.approx(100 * right / 12)
    assert values["f1"] == pytest.approx(100 * f1)


SCHEMES = {
    "IOB1": ("I-A I-A O I-B I-A O", "O I-A B-A I-A O I-B"),
    "IOBES": ("B-A E-A O S-B S-A O", "O S-A B-A E-A O S-B"),
    "BILOU": ("B-A L-A O U-B U-A O", "O U-A B-A L-A O U-B"),
    "BMES": ("B-A E-A O S-B S-A O", "O S-A B-A E-A O S-B"),
    "suffixes": ("A-B A-I O B-B A-B O", "O A-B A-B A-I O B-B"),
    "underscores": ("B_A I_A O B_B B_A O", "O B_A B_A I_A O B_B"),
}


@pytest.mark.parametrize("scheme", SCHEMES)
def test_entities_of_every_scheme_are_scored_and_accuracies_within_one(run, scheme):
    perfect = {"precision": 100.0, "recall": 100.0, "f1": 100.0, "accuracy": 100.0}
    written = [tags.split() for tags in SCHEMES[scheme]]
    assert run("conll", columns(written), columns(written)) == perfect
    # The schemes of the two files differ, so that tags can only be compared after a conversion.
    assert run("conll", columns(SENTENCES), columns(written)) == perfect
    if scheme == "IOB1":
        return
    wrong = [[*written[0][:-1], written[0][0]], written[1]]
    values = run("conll", columns(written), columns(wrong))
    assert values["accuracy"] == pytest.approx(100 * 11 / 12)
    assert values["recall"] == 100.0 and values["precision"] == pytest.approx(600 / 7)


def test_types_without_marks_are_scored_as_entities_and_said(tmp_path, capsys):
    for name, tags in (("gold", "A A O B"), ("predictions", "A A O O")):
        (tmp_path / name).write_text(columns([tags.split()]))
    flags = [f"--gold={tmp_path / 'gold'}", f"--predictions={tmp_path / 'predictions'}"]
    assert score.main(["--task=conll", *flags]) == 0
    assert json.loads(capsys.readouterr().out)["f1"] == 0.0  # single letters are parts of speech
    for name, tags in (("gold", "PER PER O LOC"), ("predictions", "PER PER O O")):
        (tmp_path / name).write_text(columns([tags.split()]))
    assert score.main(["--task=conll", *flags]) == 0
    printed = capsys.readouterr()
    assert json.loads(printed.out) == pytest.approx(
        {"precision": 100.0, "recall": 50.0, "f1": 200 / 3, "accuracy": 75.0}
    )
    assert "the tags are in the scheme IO" in printed.err
