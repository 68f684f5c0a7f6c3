"""Outputs never replace inputs, nor what bertjax did not write; folders are replaced whole."""

import dataclasses
import os
import re
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest

from bertjax.__main__ import COMMANDS
from bertjax.base import outputs
from bertjax.base.checksums import write_checksums
from bertjax.base.lock import Lock, Locked
from bertjax.base.outputs import (
    MODELS,
    TEXTS,
    WRITTEN,
    check_paths,
    check_replaceable,
    keep_apart,
    replacing_folder,
)
from bertjax.base.run_file import write_run
from bertjax.completion import declared
from bertjax.tasks import finetune_config

# Fields of texts that name neither files nor folders, beside all names of columns.
NO_PATHS = set(
    "text pair task label_separator split prompt query_prompt document_prompt targets "
    "select_by push_to_hub track track_project coordinator_address model_type shard runner "
    "runner_options text_field encoding topology compare price_per_hour name shell "
    "keep_labels label head host onnx_file".split()
)


def texts_of(config: Any, names: Collection[str] | None = None) -> Iterator[str]:
    """The names of the fields of a config, and of the configs in it, whose values are texts.

    Of the fields of the config itself, those in `names` alone; None: all.
    """
    config = config if isinstance(config, type) else type(config)
    for name, kind in get_type_hints(config).items():
        parts = {kind, *get_args(kind), *(p for part in get_args(kind) for p in get_args(part))}
        if name not in {field.name for field in dataclasses.fields(config)}:
            continue
        if names is not None and name not in names:
            continue
        if str in parts:
            yield name
        for part in parts:
            if dataclasses.is_dataclass(part):
                yield from texts_of(part)


def flags_of(command: str) -> set[str]:
    return {name for box in declared(command) for name in texts_of(box.config, box.names)}


def test_every_flag_of_a_text_is_an_input_or_an_output_or_no_path():
    """A new flag that names a file belongs to a list in base/outputs.py, any other to NO_PATHS."""
    known = {*TEXTS, *MODELS, *WRITTEN, *NO_PATHS}
    flags = {name for command in COMMANDS for name in flags_of(command)}
    new = {name for name in flags - known if not name.endswith(("_column", "_columns"))}
    assert new == set()
    assert len(known) == len([*TEXTS, *MODELS, *WRITTEN, *NO_PATHS])


def spellings(path: Path, link: Path) -> Iterator[str]:
    yield str(path)
    yield f"{path.parent}/other/../{path.name}"
    yield os.path.relpath(path)
    link.symlink_to(path)
    yield str(link)
    if path.is_file():
        hard = link.with_name(f"{link.name}-hard")
        os.link(path, hard)
        yield str(hard)


@pytest.mark.parametrize("command", sorted(COMMANDS))
def test_no_output_of_a_command_is_an_input_nor_holds_one(command, tmp_path):
    """All pairs of flags that name inputs and outputs, of all commands, in all spellings."""
    (tmp_path / "other").mkdir()
    model, table = tmp_path / "model", tmp_path / "table.jsonl"
    (model / "inside").mkdir(parents=True)
    (model / "inside" / "weights.bin").write_text("x")
    table.write_text('{"id": 1}\n')
    read = sorted(flags_of(command) & {*TEXTS, *MODELS} - {"config"})
    for number, output in enumerate(sorted(flags_of(command) & {*WRITTEN})):
        for flag in read:
            for place in (model, table):
                for way, name in enumerate(
                    spellings(place, tmp_path / f"{number}-{flag}-{place.name}")
                ):
                    config = dataclasses.make_dataclass("Config", [output, flag])
                    with pytest.raises(ValueError, match="would replace the input"):
                        check_paths(config(name, str(place)))
                    with pytest.raises(ValueError, match="would replace the input"):
                        check_paths(config(str(place), (name,)))
                    if place == model and way < 4:
                        inside = config(name, f"{place}/inside/weights.bin")
                        with pytest.raises(ValueError, match="choose another"):
                            check_paths(inside)
            config = dataclasses.make_dataclass("Config", [output, flag])
            check_paths(config(str(tmp_path / "new"), str(model)))
            check_paths(config(str(tmp_path / "other"), str(model)))
            if flag in TEXTS:
                with pytest.raises(ValueError, match="lie among the input files"):
                    check_paths(config(str(model / "new"), str(model)))
            else:  # such as the report of a run, in its workdir
                check_paths(config(str(model / "new"), str(model)))
                (model / "report.html").write_text("<!DOCTYPE html> bertjax")
                check_paths(config(str(model / "report.html"), str(model)))


def test_every_command_checks_its_paths_before_it_reads(tmp_path, monkeypatch):
    """The check is the first thing that each command does with its config."""

    class Checked(Exception):
        pass

    def check(*configs):
        raise Checked

    from bertjax import (
        benchmark,
        convert,
        embed,
        export,
        fill_mask,
        finetune,
        mine,
        plan,
        predict,
        prepare,
        pretrain,
        quickstart,
        report,
        search,
        train_tokenizer,
        visualize,
    )
    from bertjax.config import PretrainConfig, load_config_file
    from bertjax.train import run as train_run

    # after the imports, which would otherwise keep the patched function
    monkeypatch.setattr(train_run, "check_paths", check)
    monkeypatch.setattr(outputs, "check_paths", check)
    place, tiny = str(tmp_path / "x"), load_config_file("bert_tiny", PretrainConfig)
    runs = {
        "prepare": lambda: prepare(input=place, tokenizer=place, output=place),
        "train_tokenizer": lambda: train_tokenizer(input=place, output=place),
        "pretrain": lambda: pretrain.run(dataclasses.replace(tiny, data=place, workdir=place)),
        "finetune": lambda: finetune.run(finetune_config(task="cola", workdir=place)),
        "predict": lambda: predict.run(predict.PredictConfig(model=place, input=place)),
        "embed": lambda: embed.run(embed.EmbedConfig(model=place, input=place, output="a.npy")),
        "fill_mask": lambda: fill_mask.run(
            fill_mask.FillMaskConfig(model=place, text=("a",), html="a.html")
        ),
        "search": lambda: search.run(search.SearchConfig(model=place, retrieval_dir=place)),
        "export": lambda: export.run(export.ExportConfig(src=place, output=place)),
        "convert": lambda: convert.run(convert.ConvertConfig(src=place, dst=place)),
        "mine": lambda: mine.run(mine.MineConfig(model=place, queries=place, output=place)),
        "plan": lambda: plan.run(tiny, plan.PlanFlags(topology="h200:1")),
        "benchmark": lambda: benchmark.run(tiny, benchmark.BenchmarkFlags()),
        "visualize": lambda: visualize.run(visualize.VisualizeConfig(text="a", output="a.html")),
        "report": lambda: report.run(report.ReportConfig(runs=(place,))),
        "quickstart": lambda: quickstart.run(quickstart.QuickstartConfig(output=place)),
    }
    writing = {name for name in COMMANDS if flags_of(name) & {*WRITTEN}}
    assert writing == runs.keys()
    for run in runs.values():
        with pytest.raises(Checked):
            run()
    assert not Path(place).exists()


def test_globs_weights_and_checkpoint_prefixes_are_inputs(tmp_path):
    for name in ("a.txt", "b.txt", "bert_model.ckpt.index"):
        (tmp_path / name).write_text("x")
    for value in (f"{tmp_path}/*.txt", f"{tmp_path}/b.txt=0.3,pydocs=0.7", f"{tmp_path}/b.txt=2"):
        with pytest.raises(ValueError, match="would replace the input --input"):
            keep_apart("--output", tmp_path / "b.txt", "--input", value)
        with pytest.raises(ValueError, match="would replace the input --input"):
            keep_apart("--output", tmp_path, "--input", value)
        keep_apart("--output", tmp_path / "new", "--input", value)
    with pytest.raises(ValueError, match="would replace the input SRC"):
        keep_apart("DST", tmp_path, "SRC", f"{tmp_path}/bert_model.ckpt")
    for output in ("gs://b/data", "gs://b", "gs://b/data/"):
        with pytest.raises(ValueError, match="would replace the input --data"):
            keep_apart("--workdir", output, "--data", "gs://b/data/")
    keep_apart("--workdir", "gs://b/data2", "--data", "gs://b/data")


def test_the_folder_to_which_the_links_of_an_input_lead_is_no_output(tmp_path):
    (tmp_path / "store").mkdir()
    (tmp_path / "store" / "model.safetensors").write_text("x")
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "model.safetensors").symlink_to("../store/model.safetensors")
    with pytest.raises(ValueError, match="would replace the input SRC"):
        keep_apart("DST", tmp_path / "store", "SRC", str(tmp_path / "model"))


def test_a_link_in_the_output_is_not_removed_as_an_input(tmp_path):
    (tmp_path / "a.csv").write_text("x")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "train.csv").symlink_to("../a.csv")
    with pytest.raises(ValueError, match="would replace the input --train"):
        keep_apart("--workdir", tmp_path / "run", "--train", f"{tmp_path}/run/train.csv")


RUN = ("run.json", ".run.json", "metrics.jsonl", "scores.json", "model", "model/config.json")
USERS = {
    "corpus.jsonl": '{"_id": "1", "text": "years of work"}\n',
    "table.csv": "id,text,label\n1,a,b\n",
    "table.tsv": "text\tlabel\na\tb\n",
    "squad.json": '{"version": "1.1", "data": [{"id": "1"}]}',
    "notes.html": "<!DOCTYPE html>\n<html><body>my notes</body></html>",
    "README.md": "# A model\n",
    "config.json": '{"model_type": "bert"}',
    "vocab.txt": "[PAD]\n",
    "vectors.npy": "not an array",
    "photo.png": "\x89PNG\r\n",
}
OURS = {
    "a.jsonl": '{"id": "0", "label": "yes"}\n',
    "negatives.jsonl": '{"query": "a", "positive": "b", "negatives": []}\n',
    "vectors.jsonl": "[0.25, -1e-05]\n",
    "a.json": '[\n{"id": "0", "label": "yes"}\n]\n',
    "a.csv": "text,predicted_label,probability_no\na,yes,0.1\n",
    "a.tsv": "text\tpredicted_label\na\tyes\n",
    "run.trec": "q1 Q0 d1 1 0.5 bertjax\n",
    "plan.json": '[\n  {\n    "topology": "h200:1"\n  }\n]\n',
    "benchmark.json": '{\n  "device": "cpu",\n  "tokens_per_second": 1.0\n}\n',
    "report.html": '<!DOCTYPE html>\n<meta name="generator" content="bertjax">',
    "empty.csv": "",
}


def test_a_file_is_replaced_only_if_bertjax_wrote_it_as_an_output(tmp_path):
    for name, content in USERS.items():
        (tmp_path / name).write_text(content, encoding="latin-1")
        with pytest.raises(ValueError, match=f"{name} would replace .* bertjax did not write"):
            check_replaceable("--output", tmp_path / name)
    for name, content in OURS.items():
        (tmp_path / name).write_text(content)
        check_replaceable("--output", tmp_path / name)
    check_replaceable("--output", tmp_path / "new.csv")
    check_replaceable("--output", os.devnull)


def test_what_a_run_has_is_no_output_but_the_report_and_other_names_are(tmp_path):
    (tmp_path / "run").mkdir()
    write_run(tmp_path / "run", {"task": "classify"}, "0")
    for name in (*RUN, "predictions/dev.jsonl", "checkpoints", "tokenizer", "model/generator"):
        for _ in range(2):  # first, some of these do not exist
            with pytest.raises(ValueError, match="would replace a file of a model or of a run"):
                check_replaceable("--output", tmp_path / "run" / name)
            (tmp_path / "run" / name).parent.mkdir(exist_ok=True)
            if "." in name and not (tmp_path / "run" / name).exists():
                (tmp_path / "run" / name).write_text('{"id": 1}')
    for name in ("report.html", "seed1", "answers.jsonl", "plots/report.html"):
        check_replaceable("--output", tmp_path / "run" / name)
    # a run.json of another program makes no run
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / "run.json").write_text('{"name": "mine"}')
    check_replaceable("--output", tmp_path / "project" / "model")


@pytest.fixture
def model(tmp_path):
    replace(tmp_path / "model", "old")
    return tmp_path / "model"


def replace(directory, text="new", **options):
    with replacing_folder(directory, **options) as beside:
        (beside / "config.json").write_text(text)
        (beside / "README.md").write_text("a card")
        (beside / "1_Pooling").mkdir()
        (beside / "1_Pooling" / "config.json").write_text(text)
        write_checksums(beside)


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_new_directory_an_empty_one_and_a_model_are_written(model):
    (model.parent / "empty").mkdir()
    for name in ("model", "empty", "new", "deep/er"):
        replace(model.parent / name)
        assert (model.parent / name / "config.json").read_text() == "new"
    assert names_in(model.parent) == ["deep", "empty", "model", "new"]


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), ValueError("bad")])
def test_an_error_leaves_what_was_there(model, error):
    with (
        pytest.raises(type(error), match=str(error.args[-1])),
        replacing_folder(model) as beside,
    ):
        (beside / "config.json").write_text("half")
        raise error
    assert (model / "config.json").read_text() == "old"
    assert names_in(model.parent) == ["model"]


def test_what_a_killed_process_left_is_put_in_order(model):
    scratch = model.with_name("model.bertjax.writing")
    (scratch / "new").mkdir(parents=True)
    model.rename(scratch / "old")  # killed between the two renames
    with pytest.raises(ValueError, match="bad"), replacing_folder(model):
        raise ValueError("bad")
    assert (model / "config.json").read_text() == "old"
    assert names_in(model.parent) == ["model"]


def test_a_folder_is_not_replaced_by_two_processes_at_once(model):
    with replacing_folder(model) as beside:
        (beside / "config.json").write_text("new")
        with pytest.raises(Locked, match="is being written by another process"):
            replacing_folder(model).__enter__()
    assert (model / "config.json").read_text() == "new"
    assert names_in(model.parent) == ["model"]


@pytest.mark.parametrize(
    "name",
    ["data.csv", ".git/HEAD", "1_Pooling/notes.txt", "README.md", "config.json", "model.bin"],
)
def test_a_folder_with_files_of_its_user_is_not_replaced(model, name):
    (model / name).parent.mkdir(exist_ok=True)
    (model / name).write_text("years of work")
    before = {path: path.read_bytes() for path in model.rglob("*") if path.is_file()}
    top = re.escape(name.partition("/")[0])
    with pytest.raises(ValueError, match=f"bertjax did not write or .* changed since: {top}. Name"):
        replace(model)
    assert before == {path: path.read_bytes() for path in model.rglob("*") if path.is_file()}
    assert names_in(model.parent) == ["model"]


def test_a_model_of_another_program_and_a_link_in_a_folder_are_not_replaced(model):
    for folder in ("other", "linked"):
        (model.parent / folder).mkdir()
    for name in ("config.json", "checksums.json"):
        (model.parent / "other" / name).write_text('{"config.json": [1, 2]}')
    (model.parent / "linked" / "data").symlink_to(model)
    for folder in ("other", "linked"):
        with pytest.raises(ValueError, match="is not replaced, because it has files that bertjax"):
            replace(model.parent / folder)
    with pytest.raises(ValueError, match="is a file, so it is not replaced: name a new dir"):
        replace(model / "config.json")
    assert (model / "config.json").read_text() == "old"


def test_in_the_workdir_of_a_run_an_earlier_model_with_files_of_the_user_is_kept(model, capsys):
    write_run(model.parent, {"task": "classify"}, "0")
    for number in (1, 2):
        (model / "notes.txt").write_text(f"note {number}")
        replace(model)
        assert "had files that bertjax did not write" in capsys.readouterr().out
        assert (model.parent / f"model.old-{number}" / "notes.txt").read_text() == f"note {number}"
        assert names_in(model) == ["1_Pooling", "README.md", "checksums.json", "config.json"]
    replace(model)
    assert not (model.parent / "model.old-3").exists()


def test_files_that_come_while_a_folder_is_written_are_kept(model):
    with replacing_folder(model) as beside:
        (beside / "config.json").write_text("new")
        (model / "late.txt").write_text("late")
    assert (model.parent / "model.old-1" / "late.txt").read_text() == "late"
    assert (model / "config.json").read_text() == "new"


def test_a_linked_directory_is_replaced_where_it_lies(model):
    link = model.with_name("link")
    link.symlink_to(model)
    replace(link)
    assert link.is_symlink() and (model / "config.json").read_text() == "new"


def test_a_lock_file_of_another_program_is_not_taken(tmp_path):
    (tmp_path / "poetry.lock").write_text("# This file is generated by Poetry\n")
    with pytest.raises(ValueError, match="poetry.lock, by which .* is a file of another program"):
        replace(tmp_path / "poetry")
    assert (tmp_path / "poetry.lock").read_text().startswith("# This file")
    lock = Lock(tmp_path / "a.lock", place="a", what="process", remedy="wait")
    for _ in range(2):  # the second time, after a kill
        lock.take()
        (tmp_path / "copy").write_bytes((tmp_path / "a.lock").read_bytes())
        lock.release()
        (tmp_path / "copy").rename(tmp_path / "a.lock")
