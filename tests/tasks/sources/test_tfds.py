"""The real builders of TensorFlow Datasets, their downloads served from files made here."""

import importlib.util
import json
import subprocess
import sys
import zipfile

import pytest

from bertjax.tasks import make_task
from bertjax.tasks.question_answering import SquadOptions
from bertjax.tasks.registry import options_class
from bertjax.tasks.sources.glue import GLUE, read_glue

pytestmark = pytest.mark.filterwarnings("ignore")

COLA = "gj04\t1\t\tThe sailors rode.\ngj04\t0\t*\tRode the “the.\n"
RTE = "index\tsentence1\tsentence2\tlabel\n0\tA dog ran.\tA dog moved.\tentailment\n"
STSB = "index\tsentence1\tsentence2\tscore\n0\ta\tb\t3.75\n1\tc\td\t0\n"
MNLI = "index\tsentence1\tsentence2\tlabel1\tgold_label\n0\tHe left.\tHe went.\tx\tneutral\n"
CONLL = "-DOCSTART- -X- O O\n\nEU NNP B-NP B-ORG\nrejects VBZ B-VP O\n\nPeter NNP B-NP B-PER\n"


def unlabelled(table: str) -> str:
    return "\n".join(line.rpartition("\t")[0] for line in table.splitlines())


def squad_of(*questions) -> str:
    paragraph = {"context": "Ünder the bridge lay a cat.", "qas": list(questions)}
    return json.dumps({"version": "x", "data": [{"title": "t", "paragraphs": [paragraph]}]})


ANSWERED = {
    "id": "q1",
    "question": "What lay there?",
    "answers": [{"text": "a cat", "answer_start": 21}, {"text": "cat", "answer_start": 23}],
}
IMPOSSIBLE = {"id": "q2", "question": "Which dog?", "answers": [], "is_impossible": True}

ZIPS = {
    "CoLA.zip": {
        "CoLA/train.tsv": COLA,
        "CoLA/dev.tsv": COLA,
        "CoLA/test.tsv": "index\tsentence\n0\tBill left.\n",
    },
    "RTE.zip": {"RTE/train.tsv": RTE, "RTE/dev.tsv": RTE, "RTE/test.tsv": unlabelled(RTE)},
    "STS-B.zip": {
        "STS-B/train.tsv": STSB,
        "STS-B/dev.tsv": STSB,
        "STS-B/test.tsv": unlabelled(STSB),
    },
    "MNLI.zip": {
        "MNLI/train.tsv": MNLI,
        **{f"MNLI/dev_{kind}.tsv": MNLI for kind in ("matched", "mismatched")},
        **{f"MNLI/test_{kind}.tsv": unlabelled(MNLI) for kind in ("matched", "mismatched")},
    },
    "conll2003.zip": {"train.txt": CONLL, "valid.txt": CONLL, "test.txt": CONLL},
}
FILES = {
    "train-v1.1.json": squad_of(ANSWERED),
    "dev-v1.1.json": squad_of(ANSWERED),
    "train-v2.0.json": squad_of({**ANSWERED, "is_impossible": False}),
    "dev-v2.0.json": squad_of({**ANSWERED, "is_impossible": False}, IMPOSSIBLE),
}
TASKS = ("cola", "rte", "stsb", "mnli", "squad", "squad2")


def serve(url: str, folder):
    """Writes the file of an address, as if it had been downloaded."""
    name = url.rpartition("/")[2]
    path = folder / name
    if name in ZIPS:
        with zipfile.ZipFile(path, "w") as archive:
            for member, text in ZIPS[name].items():
                archive.writestr(member, text)
    else:
        path.write_text(FILES[name])
    return path


def source_of(task, folder):
    """The source of a task with TensorFlow Datasets in a folder."""
    return make_task(task, options_class(task)(tfds_data_dir=str(folder))).source


def prepare(tasks, folder):
    """Has real builders prepare data in a folder, with `serve` in place of the network."""
    import tensorflow_datasets as tfds
    from promise import Promise
    from tensorflow_datasets.core.download import checksums, download_manager, downloader

    def download(_, url, folder, verify=True):
        path = serve(url, folder)
        return Promise.resolve(downloader.DownloadResult(path, checksums.compute_url_info(path)))

    def accept(manager, url, url_info, path):
        # Files made here have not the official checksums.
        manager._recorded_url_infos[url] = url_info

    tfds.disable_progress_bar()
    manager = download_manager.DownloadManager
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(downloader._Downloader, "download", download)
        patch.setattr(manager, "_register_or_validate_checksums", accept)
        for task in tasks:
            source_of(task, folder)


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    """A data folder where the real builders have prepared every dataset."""
    pytest.importorskip("tensorflow", reason="the builders of TFDS need TensorFlow: bertjax[tf]")
    folder = tmp_path_factory.mktemp("tfds")
    prepare((*TASKS, "conll"), folder)
    return folder


READ = """
import dataclasses, json, sys

from importlib.machinery import PathFinder

class Hide(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        hidden = name.partition(".")[0] == "tensorflow"
        return None if hidden else super().find_spec(name, path, target)

sys.meta_path[sys.meta_path.index(PathFinder)] = Hide
from bertjax.tasks import make_task
from bertjax.tasks.registry import options_class
source = make_task(sys.argv[1], options_class(sys.argv[1])(tfds_data_dir=sys.argv[2])).source
found = {s: [dataclasses.asdict(e) for e in source.examples(s)] for s in source.splits}
print(json.dumps(found))
"""


def read(task, folder):
    """Examples by split, of a process that cannot import TensorFlow."""
    command = [sys.executable, "-c", READ, task, str(folder)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_classes_and_scores_of_glue(prepared):
    cola = read("cola", prepared)
    assert list(cola) == ["train", "dev", "test"]
    found = sorted((e["id"], e["text"], e["pair"], e["label"]) for e in cola["dev"])
    assert found == [
        ("0", "The sailors rode.", None, "acceptable"),
        ("1", "Rode the “the.", None, "unacceptable"),
    ]
    assert [(e["id"], e["text"], e["label"]) for e in cola["test"]] == [("0", "Bill left.", None)]
    assert cola["test"][0]["where"] == "tfds:glue/cola/2.0.0, test 0"
    (rte,) = read("rte", prepared)["train"]
    assert (rte["text"], rte["pair"]) == ("A dog ran.", "A dog moved.")
    assert rte["label"] == "entailment"
    stsb = read("stsb", prepared)
    assert sorted(e["label"] for e in stsb["dev"]) == [0.0, 3.75]
    assert [e["label"] for e in stsb["test"]] == [None, None]


@pytest.mark.parametrize(
    "task, archive",
    [("cola", "CoLA.zip"), ("rte", "RTE.zip"), ("stsb", "STS-B.zip"), ("mnli", "MNLI.zip")],
)
def test_official_files_hold_the_same_examples(prepared, tmp_path, task, archive):
    with zipfile.ZipFile(serve(archive, tmp_path)) as opened:
        opened.extractall(tmp_path)
    source = read_glue(GLUE[task], tmp_path)
    theirs = source_of(task, prepared)
    assert source.splits == theirs.splits
    for split in source.splits:
        ours = {e.id: (e.text, e.pair, e.label) for e in source.examples(split)}
        assert {e.id: (e.text, e.pair, e.label) for e in theirs.examples(split)} == ours


def test_splits_of_mnli(prepared):
    mnli = read("mnli", prepared)
    assert set(mnli) == {
        "train",
        *("dev_matched", "dev_mismatched", "test_matched", "test_mismatched"),
    }
    (example,) = mnli["dev_mismatched"]
    assert (example["text"], example["label"]) == ("He left.", "neutral")


def test_questions_and_answers_of_squad(prepared):
    squad = read("squad", prepared)
    assert list(squad) == ["train", "dev"]
    (example,) = squad["train"]
    assert (example["id"], example["text"]) == ("q1", "What lay there?")
    assert example["answers"] == [["a cat", 21], ["cat", 23]] and example["label"] is None
    for text, start in example["answers"]:
        assert example["pair"][start:].startswith(text)
    squad = read("squad2", prepared)
    answers = {e["id"]: (len(e["answers"]), e["label"]) for e in squad["dev"]}
    assert answers == {"q1": (2, None), "q2": (0, "impossible")}


def test_sentences_of_conll(prepared):
    conll = read("conll", prepared)
    assert list(conll) == ["train", "dev", "test"]
    assert sorted((e["words"], e["label"]) for e in conll["dev"]) == [
        (["EU", "rejects"], ["B-ORG", "O"]),
        (["Peter"], ["B-PER"]),
    ]


def test_squad_is_prepared_without_tensorflow(tmp_path):
    pytest.importorskip("importlib_resources")
    prepare(("squad",), tmp_path)
    (example,) = read("squad", tmp_path)["dev"]
    assert example["answers"] == [["a cat", 21], ["cat", 23]]


NOWHERE = {
    **ANSWERED,
    "id": "q3",
    "answers": [{"text": "a dog", "answer_start": 21}, {"text": "dogs", "answer_start": 2}],
}


@pytest.mark.parametrize("read_json", [True, False], ids=["json", "tfds"])
def test_train_questions_without_an_answer_in_the_passage_are_left_out_and_counted(
    tmp_path, monkeypatch, read_json
):
    pytest.importorskip("importlib_resources")
    for split in ("train", "dev"):
        monkeypatch.setitem(FILES, f"{split}-v1.1.json", squad_of(ANSWERED, NOWHERE))
        (tmp_path / f"{split}-v1.1.json").write_text(FILES[f"{split}-v1.1.json"])
    if read_json:
        source = make_task("squad", SquadOptions(data_dir=str(tmp_path))).source
    else:
        prepare(("squad",), tmp_path)
        source = source_of("squad", tmp_path)
    assert [e.id for e in source.examples("train")] == ["q1"]
    reason = "questions left out, because no answer occurs in the passage"
    assert source.rows["train"].counts == {reason: 1}
    # They still count when the model is scored.
    assert sorted(e.id for e in source.examples("dev")) == ["q1", "q3"]
    assert len(list(source.examples("train"))) == source.rows["train"].counts[reason] == 1


@pytest.mark.skipif(
    importlib.util.find_spec("tensorflow") is not None, reason="TensorFlow is installed here"
)
def test_without_tensorflow_the_remedies_are_named(tmp_path):
    with pytest.raises(ValueError, match=r"install bertjax\[tf\].*--tfds_data_dir.*--data_dir"):
        source_of("rte", tmp_path)


def test_a_failed_download_names_the_remedies(tmp_path, monkeypatch):
    pytest.importorskip("importlib_resources")
    from tensorflow_datasets.core.download import downloader

    def download(*_, **__):
        raise OSError("no route to host")

    monkeypatch.setattr(downloader._Downloader, "download", download)
    with pytest.raises(ValueError, match=r"squad/v1.1 cannot be downloaded \(no route.*--data_dir"):
        source_of("squad", tmp_path)
