"""Official tasks are read from the Parquet files of the Hugging Face hub without TensorFlow."""

import os
import subprocess
import sys

import pyarrow
import pyarrow.parquet
import pytest

from bertjax.tasks import make_task
from bertjax.tasks.registry import options_class
from bertjax.tasks.sources import official
from bertjax.tasks.sources.glue import GlueOptions

ANSWER = {"id": "q1", "context": "A cat.", "question": "What?"}
FILES = {
    "nyu-mll/glue": {
        "cola/train-00000-of-00002": [{"sentence": "She ran.", "label": 1, "idx": 0}],
        "cola/train-00001-of-00002": [{"sentence": "Ran she the.", "label": 0, "idx": 1}],
        "cola/test-00000-of-00001": [{"sentence": "Bill left.", "label": -1, "idx": 0}],
        "mnli/validation_matched-00000-of-00001": [
            {"premise": "a", "hypothesis": "b", "label": 2, "idx": 7}
        ],
        "stsb/train-00000-of-00001": [
            {"sentence1": "a", "sentence2": "b", "label": 3.75, "idx": 0}
        ],
    },
    "rajpurkar/squad": {
        "plain_text/train-00000-of-00001": [
            {**ANSWER, "answers": {"text": ["cat"], "answer_start": [2]}}
        ],
    },
    "rajpurkar/squad_v2": {
        "squad_v2/validation-00000-of-00001": [
            {**ANSWER, "answers": {"text": ["cat"], "answer_start": [2]}},
            {**ANSWER, "id": "q2", "answers": {"text": [], "answer_start": []}},
        ],
    },
    "eriktks/conll2003": {
        "conll2003/train/0000": [{"tokens": ["EU", "rejects"], "ner_tags": [3, 0]}],
    },
    "allenai/swag": {
        "regular/validation-00000-of-00001": [
            {
                "sent1": "He sits.",
                "sent2": "He",
                "label": 1,
                **{f"ending{i}": f"e{i}" for i in "0123"},
            }
        ],
    },
}


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    def download(repository, *, repo_type, revision, allow_patterns, tqdm_class):
        assert repo_type == "dataset" and len(allow_patterns) == 2
        assert revision == ("refs/convert/parquet" if "conll" in repository else "main")
        for name, rows in FILES[repository].items():
            path = tmp_path / repository / f"{name}.parquet"
            path.parent.mkdir(parents=True, exist_ok=True)
            pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
        return str(tmp_path / repository)

    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    monkeypatch.setattr("bertjax.tasks.sources.official.is_prepared", lambda *_: False)
    return tmp_path


def examples(task, split):
    return list(make_task(task, options_class(task)()).source.examples(split))


def test_examples_of_glue():
    assert make_task("cola", GlueOptions()).source.splits == ("train", "test")
    assert [(x.id, x.text, x.label) for x in examples("cola", "train")] == [
        ("0", "She ran.", "acceptable"),
        ("1", "Ran she the.", "unacceptable"),
    ]
    (test,) = examples("cola", "test")
    assert test.label is None and test.where == "nyu-mll/glue/cola, test 0"
    (mnli,) = examples("mnli", "dev_matched")
    assert (mnli.id, mnli.text, mnli.pair, mnli.label) == ("7", "a", "b", "contradiction")
    (stsb,) = examples("stsb", "train")
    assert (stsb.text, stsb.pair, stsb.label) == ("a", "b", 3.75)


def test_questions_sentences_and_choices():
    (squad,) = examples("squad", "train")
    assert squad.answers == (("cat", 2),) and squad.label is None
    answered, impossible = examples("squad2", "dev")
    assert (answered.label, impossible.label) == (None, "impossible")
    (conll,) = examples("conll", "train")
    assert (conll.words, conll.label) == (("EU", "rejects"), ("B-ORG", "O"))
    (swag,) = examples("swag", "dev")
    assert (swag.text, swag.choices[1], swag.label) == ("He sits.", "He e1", 1)


def test_tfds_is_not_imported_for_a_task_that_it_has_not_prepared(folder):
    code = (
        "import sys, huggingface_hub\n"
        f"huggingface_hub.snapshot_download = lambda *_, **__: {str(folder / 'nyu-mll/glue')!r}\n"
        "from bertjax.tasks import make_task\n"
        "from bertjax.tasks.sources.glue import GlueOptions\n"
        "print(len(list(make_task('cola', GlueOptions()).source.examples('train'))))\n"
        "print('tensorflow_datasets' in sys.modules)\n"
    )
    examples("cola", "train")  # writes the files
    environment = {**os.environ, "TFDS_DATA_DIR": str(folder / "none")}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True
    )
    assert done.stdout.split() == ["2", "False"], done.stderr


def test_every_official_task_has_a_place_on_the_hub():
    for name in "cola sst2 mrpc stsb qqp mnli qnli rte wnli ax".split():
        assert f"glue/{name}" in official.HUB
    assert {"squad/v1.1", "squad/v2.0", "swag", "conll2003"} < official.HUB.keys()


def test_a_failed_download_names_the_remedies(monkeypatch):
    def fail(*_, **__):
        raise OSError("no route")

    monkeypatch.setattr("huggingface_hub.snapshot_download", fail)
    message = "'nyu-mll/glue' is not .* gave no dataset of that name, .*--data_dir"
    with pytest.raises(FileNotFoundError, match=message):
        make_task("rte", GlueOptions())


def test_a_damaged_file_is_named(folder, monkeypatch):
    damaged = folder / "rte" / "train-00000-of-00001.parquet"
    damaged.parent.mkdir()
    damaged.write_bytes(b"PAR1 and no more")
    monkeypatch.setattr("huggingface_hub.snapshot_download", lambda *_, **__: str(folder))
    with pytest.raises(ValueError, match="train-00000-of-00001.parquet is not a complete Parquet"):
        make_task("rte", GlueOptions())
