"""`bertjax.predict`: its inputs, its flags and its errors."""

import csv
import dataclasses
import io
import json
from pathlib import Path

import pandas
import pytest

from bertjax import convert, embed, fill_mask, finetune, load_pretrained, predict, search
from bertjax.base.lock import Locked
from bertjax.convert import ConvertConfig
from bertjax.inference.output_files import PartialLines, continued
from bertjax.predict import PredictConfig
from bertjax.record.labels import scores_text
from bertjax.record.predictions import read_scores
from bertjax.tasks import finetune_config
from bertjax.tasks.classification import MultiLabelTask
from bertjax.weights import load_model
from tests.cases import others_weekly
from tests.lines import json_lines


@pytest.fixture(scope="module")
def run(tmp_path_factory, one_layer):
    """The workdir of a classifier of several labels, in CSV."""
    folder = tmp_path_factory.mktemp("multi")
    rows = "".join(f"abc de fg,{labels}\n" for labels in ("one|two", "two", "") * 6)
    (folder / "a.csv").write_text("text,label\n" + rows)
    finetune.run(
        finetune_config(
            task="classify",
            init=str(one_layer),
            train=str(folder / "a.csv"),
            dev=str(folder / "a.csv"),
            label_separator="|",
            workdir=str(folder / "run"),
            max_length=32,
            batch_size=8,
            max_steps=1,
            unroll=1,
        )
    )
    return folder / "run"


def test_several_labels_in_a_column_are_scored(run, tmp_path, capsys):
    file, output = str(run.parent / "a.csv"), str(tmp_path / "out.jsonl")
    predict.run(PredictConfig(model=str(run), input=file, output=output))  # task.json knows the |
    scores = read_scores(run / "scores.json")
    found = json.loads(capsys.readouterr().err.splitlines()[-1])
    assert {f"dev/{key}": value for key, value in found.items()} == pytest.approx(scores)
    predict.run(PredictConfig(model=str(run), input=file, output=output, label_separator=";"))
    assert "row 2: label 'one|two' does not occur" in capsys.readouterr().err


def test_rows_that_cannot_be_predicted_say_why_and_the_others_are_predicted(run, tmp_path, capsys):
    rows = ["text,label", "abc,two", ",two", "fg,unknown", "a,b,c", "de,one|two"]
    (tmp_path / "a.csv").write_text("\n".join(rows) + "\n")
    file, output = str(tmp_path / "a.csv"), tmp_path / "out.jsonl"
    predict.run(PredictConfig(model=str(run), input=file, output=str(output)))
    lines = json_lines(output)
    assert [line["id"] for line in lines] == ["0", "1", "2", "3", "4"]
    assert ["error" in line for line in lines] == [False, True, False, True, False]
    assert "does not occur in training" in lines[2]["problem"] and "labels" in lines[2]
    assert "row 3: the text in 'text' is empty" in lines[1]["error"]
    said = capsys.readouterr().err
    assert "Of the 5 rows, 2 could not be predicted and 1 were predicted, but could not" in said
    table = tmp_path / "out.csv"
    predict.run(PredictConfig(model=str(run), input=file, output=str(table)))
    with table.open(newline="") as opened:
        rows = list(csv.DictReader(opened))
    assert [row["text"] for row in rows] == ["abc", "", "fg", "", "de"]
    assert rows[0]["predicted_labels"] == "|".join(lines[0]["labels"])
    assert not list(tmp_path.glob("*.partial"))


def test_blank_lines_of_a_text_file_keep_their_places(run, tmp_path):
    (tmp_path / "a.txt").write_text("abc\n\nde fg\n")
    output = tmp_path / "out.jsonl"
    predict.run(PredictConfig(model=str(run), input=str(tmp_path / "a.txt"), output=str(output)))
    lines = json_lines(output)
    assert ["error" in line for line in lines] == [False, True, False]


@pytest.mark.parametrize(
    "content",
    [
        b"abc de\n\nfg\n",
        b'{"text": "abc de"}\n{"text": ""}\n{"text": "fg"}\n',
        b'[\n{"text": "abc de"}, {"text": ""}, {"text": "fg"}]',
    ],
)
def test_standard_input_is_read_as_a_file(run, tmp_path, monkeypatch, content):
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(content)))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    output = tmp_path / "out.jsonl"
    predict.run(PredictConfig(model=str(run), input="-", output=str(output)))
    lines = json_lines(output)
    assert ["labels" in line for line in lines] == [True, False, True]
    assert "stdin" in lines[1]["error"] and "row 2" in lines[1]["error"].replace("line 2", "row 2")
    assert [path.name for path in tmp_path.iterdir()] == ["out.jsonl"]


def test_files_are_read_as_those_of_training_and_guessed_only_otherwise(run, tmp_path, capsys):
    description = json.loads((run / "model" / "task.json").read_text())
    assert description["columns"]["text"] == "text" and description["label_separator"] == "|"
    # "premise" and "hypothesis" would be guessed as a pair, were "text" not what the model knows.
    (tmp_path / "b.csv").write_text("premise,hypothesis,text\nabc,de,fg\n")
    predict.run(PredictConfig(model=str(run), input=str(tmp_path / "b.csv")))
    of_file = capsys.readouterr()
    predict.run(PredictConfig(model=str(run), text="fg"))
    assert of_file.out == capsys.readouterr().out and not of_file.err
    # "stars" would be guessed as the labels, had the training not had them in "label".
    (tmp_path / "e.csv").write_text("text,stars\nfg,5\n")
    predict.run(PredictConfig(model=str(run), input=str(tmp_path / "e.csv")))
    of_file = capsys.readouterr()
    assert "problem" not in of_file.out and not of_file.err
    predict.run(PredictConfig(model=str(run), input=str(tmp_path / "e.csv"), label_column="stars"))
    assert "'5'" in capsys.readouterr().out
    (tmp_path / "c.csv").write_text("premise\nabc\n")
    predict.run(PredictConfig(model=str(run), input=str(tmp_path / "c.csv")))
    assert "text from column 'premise'" in capsys.readouterr().err
    (tmp_path / "d.csv").write_text("premise,hypothesis\nabc,de\n")
    with pytest.raises(ValueError, match=r"d\.csv \(premise and hypothesis\).*single texts"):
        predict.run(PredictConfig(model=str(run), input=str(tmp_path / "d.csv")))
    with pytest.raises(ValueError, match="--text.*single texts"):
        predict.run(PredictConfig(model=str(run), text="abc", pair="de"))


@pytest.fixture
def many(run, tmp_path, monkeypatch):
    """A config that predicts 60 examples, ten at a time."""
    monkeypatch.setattr("bertjax.inference.predictor.WINDOW", 10)
    rows = "".join(
        f"{'abc ' * (i % 7 + 1)}{i},{'one|two' if i % 3 else 'two'}\n" for i in range(60)
    )
    (tmp_path / "many.csv").write_text("text,label\n" + rows)
    output = str(tmp_path / "out.jsonl")
    return PredictConfig(model=str(run), input=str(tmp_path / "many.csv"), output=output)


def stop_at(patch, example: int, error: BaseException) -> None:
    """The encoding of an example raises an error, once."""
    original, seen = MultiLabelTask.features, 0

    def features(self, *args):
        nonlocal seen
        seen += 1
        if seen > example:
            raise error
        return original(self, *args)

    patch.setattr(MultiLabelTask, "features", features)


def computed(patch) -> list:
    """Collects the examples that are encoded."""
    original, seen = MultiLabelTask.features, []

    def features(self, example, *args):
        seen.append(example.id)
        return original(self, example, *args)

    patch.setattr(MultiLabelTask, "features", features)
    return seen


@pytest.mark.parametrize("error", [KeyboardInterrupt(), OSError(28, "No space left on device")])
def test_predictions_go_on_after_an_interruption_and_give_the_same_bytes(
    many, tmp_path, monkeypatch, capsys, error
):
    predict.run(many)
    output = Path(str(many.output))
    expected, scores = output.read_bytes(), capsys.readouterr().err.splitlines()[-1]
    output.write_text('{"id": "old"}')
    with monkeypatch.context() as patch:
        stop_at(patch, 37, error)
        with pytest.raises(type(error)):
            predict.run(many)
    assert output.read_text() == '{"id": "old"}' and len(list(tmp_path.glob("*.partial"))) == 1
    assert not list(tmp_path.glob("*.lock"))
    (partial,) = tmp_path.glob("*.partial")
    with partial.open("ab") as file:  # as a kill or a crash leaves it
        file.write(b'{"id": "30", "lab')
    with monkeypatch.context() as patch:
        seen = computed(patch)
        predict.run(many)
    captured = capsys.readouterr()
    assert len(seen) == 30 and "after 30 lines" in captured.out
    assert output.read_bytes() == expected and captured.err.splitlines()[-1] == scores
    assert not list(tmp_path.glob("*.partial"))


@pytest.mark.parametrize("change", ["input", "flags", "damage"])
def test_what_cannot_be_continued_is_computed_anew(many, tmp_path, monkeypatch, change):
    with monkeypatch.context() as patch:
        stop_at(patch, 37, KeyboardInterrupt())
        with pytest.raises(KeyboardInterrupt):
            predict.run(many)
    (partial,) = tmp_path.glob("*.partial")
    if change == "input":
        Path(str(many.input)).write_text("text,label\nabc,one\n")
    elif change == "flags":
        many = dataclasses.replace(many, max_length=16)
    else:
        content = bytearray(partial.read_bytes())
        content[content.index(b"\n") + 1] = 0
        partial.write_bytes(content)
    seen = computed(monkeypatch)
    predict.run(many)
    assert len(seen) == (1 if change == "input" else 60)
    assert not list(tmp_path.glob("*.partial"))


def test_a_damaged_input_leaves_no_partial_file_and_two_commands_are_kept_apart(many, tmp_path):
    with Path(str(many.input)).open("a") as file:
        file.write('"a quote that is not closed\n')
    with pytest.raises(ValueError, match="row 62 is not a row of CSV"):
        predict.run(many)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["many.csv"]
    with continued(str(many.output), {}, PartialLines):
        with pytest.raises(Locked, match=r"out\.jsonl is being written by another command"):
            predict.run(many)


def test_the_input_is_never_replaced_and_the_folder_of_the_output_is_made(run, tmp_path):
    (tmp_path / "a.jsonl").write_text('{"text": "abc"}\n')
    source = str(tmp_path / "a.jsonl")
    config = PredictConfig(model=str(run), input=source)
    for output in (source, str(tmp_path / "b" / ".." / "a.jsonl")):
        with pytest.raises(ValueError, match="would replace the input"):
            predict.run(dataclasses.replace(config, output=output))
    with pytest.raises(ValueError, match="among the input files"):
        predict.run(
            PredictConfig(model=str(run), input=str(tmp_path), output=f"{tmp_path}/c.jsonl")
        )
    assert Path(source).read_text() == '{"text": "abc"}\n'
    output = tmp_path / "new" / "folder" / "a.jsonl"
    predict.run(dataclasses.replace(config, output=str(output)))
    assert output.is_file()


def test_truncated_texts_are_counted(run, tmp_path, capsys):
    (tmp_path / "a.txt").write_text(f"abc\n{'abc ' * 12}\n{'de ' * 17}\n")
    predict.run(PredictConfig(model=str(run), input=str(tmp_path / "a.txt")))
    err = capsys.readouterr().err
    assert "2 texts have max_length=32 tokens or more" in err and "a.txt, row 2. " in err
    predict.run(PredictConfig(model=str(run), input=str(tmp_path / "a.txt"), max_length=64))
    assert "truncated" not in capsys.readouterr().err


OWNERS = {
    "text": {"pair": "b"},
    "task": {"data_dir": "d", "tfds_data_dir": "d", "submission": "a.zip"},
    "input": {
        "text_column": "b",
        "pair_column": "b",
        "label_column": "b",
        "id_column": "b",
        "choice_columns": ("b", "c"),
        "label_separator": "|",
        "spreadsheet_safe": True,
    },
}


@pytest.mark.parametrize("kind", ["input", "text", "task"])
def test_flags_of_another_kind_of_input_are_refused(kind):
    for owner, flags in OWNERS.items():
        for flag, value in flags.items():
            config = {"model": "m", kind: "a", flag: value}
            if owner == kind:
                PredictConfig(**config)
                continue
            with pytest.raises(ValueError, match=f"--{flag} belongs to --{owner}: .*--{kind}"):
                PredictConfig(**config)


@pytest.mark.parametrize("given", [{}, {"text": "a", "input": "b"}, {"text": "a", "task": "ax"}])
def test_there_is_exactly_one_kind_of_input(given):
    with pytest.raises(ValueError, match="one of --input, --text and --task"):
        PredictConfig(model="m", **given)


def test_an_output_of_another_format_is_refused():
    for name in ("answers.xlsx", "answers"):
        with pytest.raises(ValueError, match=f"--output {name}"):
            PredictConfig(model="m", text="a", output=name)
    PredictConfig(model="m", task="ax", output="a_folder")


@pytest.mark.parametrize(
    ("words", "command"),
    [
        (["--embed", "x.txt"], "bertjax.embed: python -m bertjax.embed --input x.txt ..."),
        (["--pooling=cls"], "bertjax.embed: python -m bertjax.embed --pooling cls ..."),
        (["--normalize"], "bertjax.embed: python -m bertjax.embed --normalize ..."),
        (
            ["--fill-mask", "a [MASK]"],
            "bertjax.fill_mask: python -m bertjax.fill_mask 'a [MASK]' ...",
        ),
        (
            ["--retrieval_dir", "beir"],
            "bertjax.search: python -m bertjax.search --retrieval_dir beir ...",
        ),
    ],
)
def test_flags_of_other_commands_are_named_with_their_command(words, command, capsys):
    with pytest.raises(SystemExit, match="2"):
        predict.parse(["--model", "m", *words])
    name = words[0].partition("=")[0].replace("-", "_").replace("__", "--")
    assert capsys.readouterr().err == f"error: {name} belongs to {command}\n"


def test_each_flag_of_another_command_is_one_there():
    configs = {
        "embed": embed.EmbedConfig,
        "fill_mask": fill_mask.FillMaskConfig,
        "search": search.SearchConfig,
    }
    ours = {field.name for field in dataclasses.fields(PredictConfig)}
    for flag, there in predict.ELSEWHERE.items():
        command, _, name = there.partition(" --")
        names = {field.name for field in dataclasses.fields(configs[command])}
        assert (name or "text") in names and flag not in ours


def test_the_folder_of_a_fine_tuning_stands_for_its_model(run):
    loaded = load_model(run, None)
    assert loaded.labels == ["one", "two"] and loaded.source.where == run / "model"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"text": "abc", "max_length": 65}, "reads 5 to 64 tokens"),
        ({"text": "abc", "max_length": 2}, "reads 5 to 64 tokens"),
        ({"task": "classify"}, "--input"),
        ({"task": "rte", "data_dir": "nowhere"}, "nowhere"),
    ],
)
def test_what_does_not_fit_is_refused(run, given, message):
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        predict.run(PredictConfig(model=str(run), **given))


def test_rows_without_a_label_are_counted(run, tmp_path, capsys):
    labels = [{"label": ["one"]}, {}, {}, {"label": ["two"]}]
    rows = [json.dumps({"text": "abc"} | label) for label in labels]
    (tmp_path / "a.jsonl").write_text("\n".join(rows) + "\n")
    predict.run(PredictConfig(model=str(run), input=str(tmp_path / "a.jsonl")))
    assert "2 of the 4 rows have no label" in capsys.readouterr().err


@pytest.mark.parametrize("suffix", ["csv", "tsv", "parquet"])
def test_a_table_without_rows_is_said_and_gives_a_table_without_rows(run, tmp_path, capsys, suffix):
    (tmp_path / "a.csv").write_text("text,label\n")
    output = tmp_path / f"out.{suffix}"
    predict.run(PredictConfig(model=str(run), input=str(tmp_path / "a.csv"), output=str(output)))
    assert "a.csv has no rows" in capsys.readouterr().err
    read = {"parquet": pandas.read_parquet}.get(suffix, pandas.read_csv)
    assert list(read(output).columns) == ["id"] and len(read(output)) == 0


def test_a_converted_and_a_saved_model_predict_as_the_run_does(run, tmp_path):
    """With its maximum length, its columns and its separator of labels."""
    convert.run(ConvertConfig(src=str(run), dst=str(tmp_path / "converted")))
    load_pretrained(run).save(tmp_path / "saved")
    (tmp_path / "a.csv").write_text("text,label\n" + "abc de fg " * 30 + ",one|two\n")
    file = str(tmp_path / "a.csv")
    outputs = []
    for model in (run, tmp_path / "converted", tmp_path / "saved"):
        output = tmp_path / "out.jsonl"
        predict.run(PredictConfig(model=str(model), input=file, output=str(output)))
        outputs.append(output.read_text())
        output.unlink()
    assert outputs[0] == outputs[1] == outputs[2]
    # Another head has no such settings.
    load_pretrained(run, "encoder").save(tmp_path / "encoder")
    assert not (tmp_path / "encoder" / "task.json").exists()


def test_a_table_on_standard_input_is_warned_about(run, monkeypatch, capsys):
    for content, warned in ((b'id,"Text A"\r\n1,abc\r\n', True), (b"one text, two\nabc\n", False)):
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(content)))
        predict.run(PredictConfig(model=str(run), input="-"))
        assert ("seems to be a table" in capsys.readouterr().err) == warned


def test_an_input_of_which_no_row_can_be_predicted_is_an_error(run, tmp_path):
    (tmp_path / "a.csv").write_text("text,label\na,b,c\n,one\n")
    output = tmp_path / "out.jsonl"
    with pytest.raises(ValueError, match=r"No row of .*a.csv could be predicted.*row 2 has 3"):
        predict.run(
            PredictConfig(model=str(run), input=str(tmp_path / "a.csv"), output=str(output))
        )
    assert len(output.read_text().splitlines()) == 2  # with the reasons


def test_scores_on_the_training_file_come_with_a_warning(run, tmp_path, capsys):
    """The warning counts the examples with a text of the training file, and says what to trust."""
    model = run / "model"
    output = str(tmp_path / "out.jsonl")

    def warning(text: str) -> str:
        (tmp_path / "b.csv").write_text(text)
        predict.run(PredictConfig(model=str(model), input=str(tmp_path / "b.csv"), output=output))
        lines = capsys.readouterr().err.splitlines()
        return "\n".join(line for line in lines if line.startswith("warning: "))

    assert not warning("text,label\nabc de,one\nde fg,two\n")
    found = warning("text,label\nabc de,one\nabc de fg,two\n")
    assert found.startswith(f"warning: 1 of the 2 examples are in {run.parent / 'a.csv'}, ")
    scores = json.loads((run / "scores.json").read_text())
    assert f"micro F1 {100 * scores['dev/micro_f1']:.2f} %" in found
    predict.run(PredictConfig(model=str(model), input=str(run.parent / "a.csv"), output=output))
    assert "18 of the 18 examples" in capsys.readouterr().err
    assert not warning("text\nabc de fg\n")  # there is no label


@pytest.mark.slow
@pytest.mark.parametrize("folds", others_weekly((0, 3), 0))
def test_only_rows_that_a_model_was_trained_on_count_as_trained_on(
    one_layer, tmp_path, capsys, folds
):
    """Not those of patients in the test file, and those held out."""
    head = "patient,text,label\n"
    rows = [f"p{i % 20},abc de fg {i},{'ab'[i % 2]}\n" for i in range(60)]
    (tmp_path / "a.csv").write_text(head + "".join(rows))
    (tmp_path / "test.csv").write_text(head + "".join(rows[i] for i in range(60) if i % 20 < 4))
    finetune.run(
        finetune_config(
            task="classify",
            init=str(one_layer),
            train=str(tmp_path / "a.csv"),
            test=str(tmp_path / "test.csv"),
            group_column="patient",
            workdir=str(tmp_path / "run"),
            max_length=32,
            batch_size=8,
            max_steps=1,
            unroll=1,
            folds=folds,
        )
    )

    def warnings(run: Path, name: str) -> str:
        output = str(tmp_path / "out.jsonl")
        file = str(tmp_path / name)
        predict.run(PredictConfig(model=str(run / "model"), input=file, output=output))
        lines = capsys.readouterr().err.splitlines()
        return "\n".join(line for line in lines if line.startswith("warning: "))

    run = tmp_path / "run"
    runs = [run]
    if folds:
        runs.append(run / "fold2")
    for one in runs:
        dev = one / "predictions" / "dev.jsonl"
        held_out = len(json_lines(dev)) if dev.exists() else 0
        if folds and one != run:
            assert warnings(one, "test.csv").startswith("warning: ")
            assert f"{60 - held_out} of the 60 examples" in warnings(one, "a.csv")
        else:
            assert not warnings(one, "test.csv")
            assert f"{48 - held_out} of the 60 examples" in warnings(one, "a.csv")
        assert "cannot be told" not in warnings(one, "a.csv")
    with (tmp_path / "test.csv").open("a") as file:
        file.write("p19,abc,a\n")
    assert "60 of the 60 examples" in (found := warnings(run, "a.csv"))
    assert "cannot be told" in found


def test_scores_are_per_cent_for_people():
    found = scores_text({"accuracy": 0.9963054187192119, "mae": 0.25, "macro_f1": 1.0})
    assert found == "accuracy 99.63 %, MAE 0.250, macro F1 100.00 %"
