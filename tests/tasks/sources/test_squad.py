"""Reading SQuAD's JSON: whole, in part, mended, and refused with the question's name."""

import json

import pytest

from bertjax.tasks.dataset import Dataset
from bertjax.tasks.question_answering import NOWHERE
from bertjax.tasks.sources.squad import nearest, read_questions, read_squad

CONTEXT = "The cat sat on the mat. The cat slept."


def document(*questions, context=CONTEXT):
    return {"version": "v2.0", "data": [{"paragraphs": [{"context": context, "qas": questions}]}]}


def question(name="q1", text="Who sat?", *answers, **more):
    found = [{"text": answer, "answer_start": start} for answer, start in answers]
    return {"id": name, "question": text, "answers": found, **more}


@pytest.fixture
def source(tmp_path):
    """Writes a document as the file of a split, and opens it."""

    def write(*questions, split="train", **more):
        file = tmp_path / "f.json"
        file.write_text(json.dumps(document(*questions, **more)), encoding="utf-8")
        return read_questions({split: file})

    return write


def test_questions_become_examples_in_their_order(source):
    made: Dataset = source(
        question("1", "Who?", ("The cat", 0), ("cat", 4)),
        question("2", "Why?", is_impossible=True, plausible_answers=[{"text": "mat"}]),
        split="dev",
    )
    first, second = made.examples("dev")
    assert (first.id, first.text, first.pair, first.label) == ("1", "Who?", CONTEXT, None)
    assert first.answers == (("The cat", 0), ("cat", 4))
    assert (second.label, second.answers) == ("impossible", ())
    assert first.where.endswith("f.json, article 1, paragraph 1, question 1")


def test_questions_without_answers_are_unlabelled(source):
    (example,) = source({"id": 7, "question": "Who?"}, split="test").examples("test")
    assert (example.id, example.label, example.answers) == ("7", None, ())


def test_an_answer_that_stands_elsewhere_is_moved_to_the_nearest_place(source):
    made = source(question("1", "Who?", ("cat", 26)), question("2", "Who?", ("cat", 6)))
    starts = [example.answers[0][1] for example in made.examples("train")]
    assert starts == [28, 4]
    counts = made.rows["train"].counts
    assert counts == {"answers moved to their nearest occurrence in the passage": 2}
    list(made.examples("train"))
    assert sum(counts.values()) == 2
    assert [*counts.first.values()] == [next(made.examples("train")).where]


@pytest.mark.parametrize("start", range(-3, 45))
def test_nearest_is_the_nearest_of_all_occurrences(start):
    places = [i for i in range(len(CONTEXT)) if CONTEXT[i : i + 2] == "at"]
    found = nearest("at", CONTEXT, start)
    assert found in places
    assert abs(found - start) == min(abs(place - start) for place in places)


def test_an_answer_of_no_place_is_left_out_of_training_alone(source):
    questions = (question("1", "Who?", ("dog", 4)), question("2", "Who?", ("  ", 3)))
    train, dev = source(*questions), source(*questions, split="dev")
    assert list(train.examples("train")) == []
    assert train.rows["train"].counts == {
        "questions left out, because no answer occurs in the passage": 2
    }
    assert [e.answers[0] for e in dev.examples("dev")] == [("dog", NOWHERE), ("  ", NOWHERE)]


def test_one_answer_in_its_place_is_enough_for_training(source):
    (example,) = source(question("1", "Who?", ("dog", 4), ("cat", 4))).examples("train")
    assert example.answers == (("dog", NOWHERE), ("cat", 4))


@pytest.mark.parametrize(
    ("damaged", "message"),
    [
        ({"question": "Who?", "answers": []}, 'a question has no "id"'),
        ("Who?", 'a question has no "id"'),
        ({"id": "x1"}, "question x1: 'question' should be a text, but is missing"),
        (
            {"id": "x1", "question": "?", "answers": "cat"},
            "x1: 'answers' should be a list",
        ),
        ({"id": "x1", "question": "?", "answers": ["cat"]}, "x1: 'text' should be a text"),
        (
            {"id": "x1", "question": "?", "answers": [{"text": "cat", "answer_start": "4"}]},
            "question x1: answer_start is '4'",
        ),
        (
            {"id": "x1", "question": "?", "answer": "cat"},
            """x1 has no "answers": write "answers": """,
        ),
        ({"id": "x1", "question": "\ud83d?"}, "question x1: 'question' holds a lone surrogate"),
    ],
)
def test_a_damaged_question_is_named(source, damaged, message):
    with pytest.raises(ValueError, match=message):
        list(source(damaged).examples("train"))


def test_files_of_another_form_are_refused(tmp_path):
    file = tmp_path / "f.json"
    for content in (
        "[]",
        '{"data": [1]}',
        '{"data": [{"paragraphs": [{"qas": []}]}]}',
        "{",
        "\xff",
    ):
        file.write_text(content, encoding="latin-1")
        with pytest.raises(ValueError, match=r"f\.json"):
            list(read_questions({"train": file}).examples("train"))
    with pytest.raises(ValueError, match="no split 'test'. There are: train"):
        list(read_questions({"train": file}).examples("test"))
    with pytest.raises(FileNotFoundError, match=r"other\.json .dev split. does not exist"):
        read_questions({"dev": tmp_path / "other.json"})


def test_a_byte_order_mark_is_no_part_of_the_document(tmp_path):
    file = tmp_path / "f.json"
    file.write_text(json.dumps(document(question())), encoding="utf-8-sig")
    assert len(list(read_questions({"train": file}).examples("train"))) == 1


def test_official_files_are_found_by_version_and_parts_if_there_is_one(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"Neither train-v1\.1\.json nor dev-v1\.1\.json"):
        read_squad(tmp_path, "1.1")
    (tmp_path / "squad").mkdir()
    for name in ("dev-v1.1.json", "train-v1.1.part44.json", "dev-v2.0.json"):
        (tmp_path / "squad" / name).write_text(json.dumps(document()))
    for folder in (tmp_path, tmp_path / "squad"):
        found = read_squad(folder, "1.1")
        assert found.splits == ("train", "dev")
        assert found.files["train"].name == "train-v1.1.part44.json"
        assert read_squad(folder, "2.0").splits == ("dev",)
    (tmp_path / "squad" / "train-v1.1.b.json").write_text("")
    with pytest.raises(ValueError, match=r"2 files for the train split: train-v1\.1\.b\.json") as e:
        read_squad(tmp_path, "1.1")
    # --train is refused for --task=squad; to name the file as SQuAD does helps.
    assert "--train" not in str(e.value) and "to train-v1.1.json" in str(e.value)
    (tmp_path / "squad" / "train-v1.1.json").write_text("")
    assert read_squad(tmp_path, "1.1").files["train"].name == "train-v1.1.json"


@pytest.mark.real
@pytest.mark.slow
def test_the_official_files_are_read_whole(shared):
    old = read_squad(shared / "squad", "1.1")
    new = read_squad(shared / "squad", "2.0")
    assert sum(1 for _ in old.examples("train")) == 11_877
    assert sum(1 for _ in old.examples("dev")) == 10_570
    labels = [example.label for example in new.examples("dev")]
    assert (len(labels), labels.count("impossible")) == (11_873, 5_945)
    assert not old.change_notes() and not new.change_notes()


@pytest.fixture
def table(tmp_path):
    """Writes lines of CSV as the file of a split, and opens it."""

    def write(split, *lines):
        file = tmp_path / f"{split}.csv"
        file.write_text("\n".join(lines), encoding="utf-8")
        return read_questions({split: file})

    return write


@pytest.mark.parametrize("start", ["23", "1.5", "x", "-7"])
def test_a_place_without_an_answer_is_no_question_without_an_answer(table, start):
    source = table("train", "question,context,answer,answer_start", f"Who?,{CONTEXT},,{start}")
    with pytest.raises(ValueError, match=f"row 2: answer_start is '{start}', but there is no"):
        list(source.examples("train"))


@pytest.mark.parametrize("start", ["", "-1", "0", "nan", "-1.0"])
def test_usual_places_of_no_answer_are_questions_without_an_answer(table, start):
    source = table("train", "question,context,answer,answer_start", f"Who?,{CONTEXT},,{start}")
    assert [example.label for example in source.examples("train")] == ["impossible"]


@pytest.mark.parametrize("column", ["label", "Answer", "solution", "answers_"])
def test_questions_that_evaluate_need_an_answer(table, column):
    source = table("dev", f"question,context,{column}", f"Who?,{CONTEXT},The cat")
    with pytest.raises(ValueError, match="row 2, question 0 has no .*answers"):
        list(source.examples("dev"))


def test_answers_to_evaluate_that_are_in_no_passage_are_counted(source):
    made = source(question("1", "Who?", ("dog", 0), ("cow", 0)), question("2"), split="dev")
    assert len(list(made.examples("dev"))) == 2
    (note,) = made.change_notes()
    assert note.startswith("dev: questions that cannot be answered right, because no answer occurs")
    assert "1 (the first: " in note
    assert "question 1)" in note


@pytest.mark.parametrize("answers", ["", "nan", 0, "Anna"])
@pytest.mark.parametrize("split", ["train", "dev"])
def test_answers_that_are_no_list_are_not_taken_for_none(tmp_path, answers, split):
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps({"question": "Who?", "context": CONTEXT, "answers": answers}))
    with pytest.raises(ValueError, match="row 1, question 0: 'answers' should be a list"):
        list(read_questions({split: path}).examples(split))
