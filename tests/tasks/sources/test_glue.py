import zipfile
from pathlib import Path

import pytest

from bertjax.tasks.dataset import Dataset
from bertjax.tasks.sources.glue import (
    GLUE,
    add_to_submission_zip,
    format_glue_predictions,
    read_glue,
    read_glue_predictions,
)

COLA = "gj04\t1\t\tThe sailors rode.\ngj04\t0\t*\tRode the the."
MNLI_TRAIN = "index\tpromptID\tgenre\tsentence1\tsentence2\tlabel1\tgold_label\n"
QQP = "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate\n"
MSR = "\ufeffQuality\t#1 ID\t#2 ID\t#1 String\t#2 String\r\n"


def source(folder: Path, task: str, files: dict[str, str]) -> Dataset:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name).write_bytes(text.encode())
    return read_glue(GLUE[task], folder)


def read(folder, task, files, split):
    return list(source(folder, task, files).examples(split))


def test_cola_has_no_header_in_train_but_has_one_in_test(tmp_path):
    files = {"train.tsv": COLA, "test.tsv": "index\tsentence\n0\tBill left.\n7\tWe did.\n"}
    cola = source(tmp_path / "CoLA", "cola", files)
    assert cola.splits == ("train", "test")
    train, test = list(cola.examples("train")), list(cola.examples("test"))
    assert [(e.id, e.text, e.label) for e in train] == [
        ("0", "The sailors rode.", "acceptable"),
        ("1", "Rode the the.", "unacceptable"),
    ]
    assert [(e.id, e.text, e.pair, e.label) for e in test] == [
        ("0", "Bill left.", None, None),
        ("7", "We did.", None, None),
    ]
    assert train[1].where.endswith("train.tsv, row 2")


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("bom", ["", "\ufeff"])
@pytest.mark.parametrize("tail", ["", "\n", "\n\n \n"])
def test_line_ends_marks_and_blank_lines_change_nothing(tmp_path, end, bom, tail):
    text = f'{bom}sentence\tlabel\n"quotes are \'plain\t1\nno " matter\u2028 where \t0{tail}'
    examples = read(tmp_path, "sst2", {"dev.tsv": text.replace("\n", end)}, "dev")
    assert [(e.text, e.label) for e in examples] == [
        ("\"quotes are 'plain", "positive"),
        ('no " matter\u2028 where ', "negative"),
    ]


def test_the_parent_folder_does_as_well(tmp_path):
    source(tmp_path / "CoLA", "cola", {"dev.tsv": COLA})
    source(
        tmp_path / "diagnostic", "ax", {"diagnostic.tsv": "index\tsentence1\tsentence2\n0\ta\tb"}
    )
    assert len(list(read_glue(GLUE["cola"], tmp_path).examples("dev"))) == 2
    (example,) = read_glue(GLUE["ax"], tmp_path).examples("test")
    assert (example.text, example.pair, example.label) == ("a", "b", None)
    with pytest.raises(FileNotFoundError, match="No file of rte .*is in"):
        read_glue(GLUE["rte"], tmp_path)


def test_mnli_rows_without_a_gold_label_are_left_out_and_counted(tmp_path):
    rows = "5\t1\tfiction\tHe left.\tHe went.\tneutral\tentailment\n6\t1\tf\ta\tb\tneutral\t-\n"
    mnli = source(tmp_path, "mnli", {"train.tsv": MNLI_TRAIN + rows, "dev_matched.tsv": MNLI_TRAIN})
    assert mnli.splits == ("train", "dev_matched")
    for _ in range(2):  # counted anew each time
        (example,) = mnli.examples("train")
    assert (example.id, example.text, example.pair) == ("5", "He left.", "He went.")
    assert example.label == "entailment"
    assert mnli.rows["train"].counts == {"rows without a gold label": 1}


def test_qqp_rows_with_missing_columns_are_left_out_and_counted(tmp_path):
    rows = '10\t1\t2\tWhy?\tWhat?\t1\n11\t3\t4\tBroken\n12\t5\t6\t"How?\tWho?\t0\n'
    qqp = source(tmp_path, "qqp", {"train.tsv": QQP + rows, "test.tsv": QQP + rows})
    examples = list(qqp.examples("train"))
    assert [(e.id, e.text, e.label) for e in examples] == [
        ("10", "Why?", "duplicate"),
        ("12", '"How?', "not_duplicate"),
    ]
    assert qqp.rows["train"].counts == {"rows with missing fields": 1}
    with pytest.raises(ValueError, match="test.tsv, row 3 has 4 fields instead of 6"):
        list(qqp.examples("test"))


def test_an_empty_question_of_qqp_costs_no_row(tmp_path):
    examples = read(tmp_path, "qqp", {"train.tsv": QQP + "10\t1\t2\tWhy?\t \t1\n"}, "train")
    assert [(e.text, e.pair) for e in examples] == [("Why?", "?")]


def test_mrpc_reads_microsofts_files_and_splits_them_as_glue_does(tmp_path):
    train = MSR + '1\t10\t20\tA.\tB.\r\n0\t11\t21\tC.\tD.\r\n1\t12\t22\t"E.\tF.\r\n'
    files = {"msr_paraphrase_train.txt": train, "msr_paraphrase_test.txt": train}
    mrpc = source(tmp_path, "mrpc", files)
    assert mrpc.splits == ("train", "test")
    assert [e.label for e in mrpc.examples("train")] == [
        "equivalent",
        "not_equivalent",
        "equivalent",
    ]
    mrpc = source(tmp_path, "mrpc", {"dev_ids.tsv": "11\t21\n"})
    assert mrpc.splits == ("train", "dev", "test")
    assert [e.text for e in mrpc.examples("train")] == ["A.", '"E.']
    assert [e.text for e in mrpc.examples("dev")] == ["C."]
    assert len(list(mrpc.examples("test"))) == 3
    glue = MSR.replace("Quality", "index") + "0\t10\t20\tA.\tB.\r\n"
    (example,) = read(tmp_path, "mrpc", {"test.tsv": glue}, "test")
    assert (example.id, example.pair, example.label) == ("0", "B.", None)


def test_stsb_labels_are_numbers(tmp_path):
    text = "index\tgenre\tsentence1\tsentence2\tscore\n3\tg\ta\tb\t3.800\n"
    (example,) = read(tmp_path, "stsb", {"dev.tsv": text}, "dev")
    assert example.label == 3.8 and example.id == "3"
    for bad in ("five", "nan"):
        with pytest.raises(
            ValueError, match=rf"dev.tsv, row 2: label '{bad}' of stsb is not a num"
        ):
            read(tmp_path, "stsb", {"dev.tsv": text.replace("3.800", bad)}, "dev")


@pytest.mark.parametrize(
    "text, message",
    [
        ("sentence\tlabel\nfine\t1\n\nbad\n", "row 4 has 1 fields instead of 2"),
        ("sentence\tlabel\nfine\t1\ta\n", "row 2 has 3 fields instead of 2"),
        ("sentence\tlabel\nfine\t2\n", "row 2: label '2' of sst2 is not one of 0, 1"),
        ("phrase\tlabel\nfine\t1\n", "row 1 should name the columns of sst2, with sentence"),
        ("", "is empty"),
    ],
)
def test_a_damaged_file_is_named_with_the_row(tmp_path, text, message):
    with pytest.raises(ValueError, match=rf"train.tsv.*{message}"):
        read(tmp_path, "sst2", {"train.tsv": text}, "train")


def test_bytes_that_are_not_utf8_are_named_with_the_row(tmp_path):
    (tmp_path / "dev.tsv").write_bytes(b"sentence\tlabel\nfine\t1\ncaf\xe9 au lait\t1\n")
    with pytest.raises(ValueError, match="dev.tsv, row 3 is not UTF-8: byte 0xe9 at character 4"):
        list(read_glue(GLUE["sst2"], tmp_path).examples("dev"))


def test_an_unknown_split_is_refused_with_the_nearest(tmp_path):
    mnli = source(tmp_path, "mnli", {"dev_matched.tsv": MNLI_TRAIN})
    with pytest.raises(ValueError, match="no split 'dev_match'.*Did you mean 'dev_matched'"):
        mnli.examples("dev_match")


def test_every_task_has_as_many_codes_as_classes_and_its_file_in_the_submission():
    names = [name for spec in GLUE.values() for name in spec.submission.values()]
    glue = {"cola", "sst2", "mrpc", "stsb", "qqp", "mnli", "qnli", "rte", "wnli", "ax"}
    assert glue <= GLUE.keys() and len(set(names)) == len(names) == 11
    for spec in GLUE.values():
        assert len(spec.codes) in (0, len(spec.labels))
        assert set(spec.submission) <= set(spec.files)


def write(path, spec, predictions):
    path.write_text(format_glue_predictions(spec, predictions))


def test_predictions_survive_a_round_trip(tmp_path):
    path = tmp_path / "RTE.tsv"
    write(path, GLUE["rte"], {"0": "not_entailment", "1": "entailment"})
    assert path.read_bytes() == b"index\tprediction\n0\tnot_entailment\n1\tentailment\n"
    assert read_glue_predictions(path, GLUE["rte"]) == {"0": "not_entailment", "1": "entailment"}
    write(path, GLUE["cola"], {"0": "acceptable", "1": "unacceptable"})
    assert path.read_text() == "index\tprediction\n0\t1\n1\t0\n"
    assert read_glue_predictions(path, GLUE["cola"]) == {"0": "acceptable", "1": "unacceptable"}
    write(path, GLUE["stsb"], {"0": 3.25, "1": 5.7, "2": -0.1})
    assert path.read_text() == "index\tprediction\n0\t3.2500\n1\t5.0000\n2\t0.0000\n"
    assert read_glue_predictions(path, GLUE["stsb"]) == {"0": 3.25, "1": 5.0, "2": 0.0}
    with pytest.raises(ValueError, match="'maybe' of example 4 is not a class of rte"):
        write(path, GLUE["rte"], {"4": "maybe"})


def test_damaged_predictions_are_named_with_the_row(tmp_path):
    path = tmp_path / "p.tsv"
    for text, message in (
        ("0\t1\n0\t1\n", "row 2: index 0 has a prediction already"),
        ("index\tprediction\n0\n", "row 2 has 1 fields"),
        ("index\tprediction\n0\t3\n", "row 2: label '3' of cola is not one of 0, 1"),
    ):
        path.write_text(text)
        with pytest.raises(ValueError, match=message):
            read_glue_predictions(path, GLUE["cola"])


def test_a_file_that_is_no_zip_is_no_submission(tmp_path):
    (tmp_path / "submission.zip").write_text("mine")
    with pytest.raises(ValueError, match="is not a zip file"):
        add_to_submission_zip(tmp_path / "submission.zip", {"RTE.tsv": "old"})
    assert (tmp_path / "submission.zip").read_text() == "mine"


def test_a_submission_grows_task_by_task(tmp_path):
    path = tmp_path / "submission.zip"
    add_to_submission_zip(path, {"RTE.tsv": "old"})
    add_to_submission_zip(path, {"CoLA.tsv": "cola"})
    add_to_submission_zip(path, {"RTE.tsv": "new"})
    with zipfile.ZipFile(path) as archive:
        assert {name: archive.read(name) for name in archive.namelist()} == {
            "CoLA.tsv": b"cola",
            "RTE.tsv": b"new",
        }
    assert [p.name for p in tmp_path.iterdir()] == ["submission.zip"]


@pytest.mark.real
@pytest.mark.parametrize(
    "task, split, count",
    [
        ("cola", "train", 8551),
        ("cola", "dev", 1043),
        ("cola", "test", 1063),
        ("sst2", "train", 67349),
        ("sst2", "dev", 872),
        ("sst2", "test", 1821),
        ("stsb", "train", 5749),
        ("stsb", "dev", 1500),
        ("stsb", "test", 1379),
        ("rte", "train", 2490),
        ("rte", "dev", 277),
        ("rte", "test", 3000),
        ("mnli", "train", 10471),
        ("mnli", "dev_matched", 9815),
    ],
)
def test_the_official_files_have_the_official_counts(shared, task, split, count):
    glue = read_glue(GLUE[task], shared / "glue")
    examples = list(glue.examples(split))
    assert len(examples) == count and not glue.change_notes()
    assert len({example.id for example in examples}) == count
    assert all(example.text.strip() for example in examples)
    assert all((example.label is None) == (split == "test") for example in examples)
