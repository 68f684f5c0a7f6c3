"""Links in directories of strangers: nothing outside is read or written through them."""

import os

import pytest

from bertjax import finetune, load_pretrained, pretrain, report
from bertjax.base import addresses
from bertjax.base.files import refuse_links_outside, write_bytes, writing
from bertjax.base.lock import Lock
from bertjax.base.outputs import replacing_folder
from bertjax.base.run_file import write_run
from bertjax.config import Phase, PretrainConfig
from bertjax.inference.output_files import PartialLines, PartialVectors, continued
from bertjax.tasks import finetune_config

# What a run, a report or a prediction would read or write.
NAMES = [
    *("run.json", ".run.json", "run.lock", "run.lock.heartbeat", "metrics.jsonl"),
    *("goodput.jsonl", ".goodput.json", "report.html", "scores.json", "rollbacks.json", "hosts"),
    *(
        "events.out.tfevents.1.x",
        "run.json.tmp",
        "report.html.tmp",
        "model.bertjax.writing",
        "model.lock",
    ),
    *("checkpoints", "damaged", "replaced", "rolled_back", "model", "predictions", "tokenizer"),
    *("checkpoints/5", "checkpoints/5/state", "tokenizer/vocab.txt.tmp", "model/config.json"),
    *("processes.jsonl", "trackers", "push", "calibration.json", "bad_rows.jsonl"),
    "predictions/dev.summary.json",
]


@pytest.fixture
def outside(tmp_path):
    folder = tmp_path / "private"
    folder.mkdir()
    (folder / "token").write_text("hf_secret")
    yield folder
    assert [path.name for path in folder.iterdir()] == ["token"]
    assert (folder / "token").read_text() == "hf_secret"


def link(workdir, name, target):
    path = workdir / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    path.symlink_to(os.path.relpath(target, path.parent))


def use(kind, workdir, tmp_path):
    if kind == "pretrain":
        phases = (Phase(num_steps=1, batch_size=1, max_length=8),)
        pretrain.run(PretrainConfig(data=str(tmp_path), workdir=str(workdir), phases=phases))
    elif kind == "finetune":
        finetune.run(finetune_config(task="classify", train="a.csv", workdir=str(workdir)))
    elif kind == "predict":
        load_pretrained(workdir)
    elif kind == "report":
        report.run(report.ReportConfig(runs=(str(workdir),), output=str(tmp_path / "a.html")))
    else:
        report.run(
            report.ReportConfig(runs=(str(workdir.parent),), output=str(tmp_path / "a.html"))
        )


@pytest.mark.parametrize("kind", ["pretrain", "finetune", "predict", "report", "reports"])
@pytest.mark.parametrize("where", ["token", "", "new"])
def test_a_workdir_with_links_that_leave_it_is_refused(kind, where, outside, tmp_path):
    for name in NAMES if where == "token" else NAMES[::6]:
        workdir = tmp_path / f"run-{name.replace('/', '-')}" / "run"
        workdir.mkdir(parents=True)
        write_run(workdir, {"model": {}}, "0")
        (workdir / "metrics.jsonl").write_text('{"step": 1, "train/loss": 1.0}\n')
        link(workdir, name, outside / where)
        before = sorted(path.name for path in workdir.rglob("*"))
        with pytest.raises(ValueError, match="which is outside of") as error:
            use(kind, workdir, tmp_path)
        assert str(workdir / name) in str(error.value) and "hf_secret" not in str(error.value)
        assert "\n" not in str(error.value)
        assert sorted(path.name for path in workdir.rglob("*")) == before


def test_links_within_a_directory_and_to_it_are_followed(tmp_path, outside, monkeypatch):
    workdir = tmp_path / "disk" / "run"
    link(workdir, "checkpoints", workdir / "elsewhere")
    (workdir / "elsewhere").mkdir()
    link(tmp_path, "run", workdir)
    link(workdir, "latest", workdir / "checkpoints" / ".." / "checkpoints")
    link(workdir, "loop", workdir / "loop")
    refuse_links_outside(tmp_path / "run")
    link(workdir, "a", workdir / "checkpoints")
    link(workdir, "elsewhere/b", workdir / ".." / ".." / "private")
    with pytest.raises(ValueError, match="elsewhere/b is a link to"):
        refuse_links_outside(tmp_path / "run")
    monkeypatch.setenv("BERTJAX_FOLLOW_LINKS", "1")
    refuse_links_outside(tmp_path / "run")


def test_pipes_are_refused_before_they_are_waited_for(tmp_path):
    os.mkfifo(tmp_path / "config.json")
    with pytest.raises(ValueError, match="config.json is a pipe"):
        refuse_links_outside(tmp_path)


@pytest.mark.parametrize("where", ["token", "new"])
def test_files_are_not_written_through_links_that_wait_for_them(where, outside, tmp_path):
    for name in ("a.json", "a.json.tmp"):
        link(tmp_path / "out", name, outside / where)
    write_bytes(tmp_path / "out" / "a.json", b"{}")
    assert (tmp_path / "out" / "a.json").read_bytes() == b"{}"
    assert not (tmp_path / "out" / "a.json").is_symlink()
    link(tmp_path / "out", "b.tmp", outside / where)
    with writing(tmp_path / "out" / "b") as temporary, temporary.open("w") as file:
        file.write("text")
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["a.json", "b"]


def test_a_folder_is_not_written_through_a_link_that_waits_for_it(outside, tmp_path):
    link(tmp_path, "model.bertjax.writing", outside)
    (outside / "token").touch()
    with replacing_folder(tmp_path / "model") as folder:
        (folder / "config.json").write_text("{}")
    assert [path.name for path in (tmp_path / "model").iterdir()] == ["config.json"]


@pytest.mark.parametrize("where", ["token", "new"])
@pytest.mark.parametrize("kind", [PartialLines, lambda path: PartialVectors(path, 4)])
def test_output_is_not_continued_through_links(kind, where, outside, tmp_path):
    (tmp_path / "out").mkdir()
    output = tmp_path / "out" / "a"
    names = []
    with pytest.raises(OSError), continued(output, {}, kind):
        names += [path.name for path in output.parent.glob("*.partial")]
        raise OSError
    link(output.parent, names[0], outside / where)
    with continued(output, {}, kind):
        pass
    assert not output.is_symlink()


@pytest.mark.parametrize("where", ["token", "new"])
def test_a_lock_is_not_taken_through_a_link(where, outside, tmp_path):
    link(tmp_path, "a.lock", outside / where)
    with pytest.raises(OSError):
        Lock(tmp_path / "a.lock", place="a", what="run", remedy="wait").take()


def test_names_in_a_bucket_cannot_leave_their_folder(monkeypatch):
    class System:
        def invalidate_cache(self): ...

        def find(self, root, detail):
            return {f"{root}/../../evil": {"size": 1}}

    monkeypatch.setattr(addresses, "file_system", lambda address: (System(), "bucket/a"))
    with pytest.raises(ValueError, match="leads out of gs://bucket/a"):
        addresses.listed("gs://bucket/a")


def test_a_workdir_whose_name_is_not_utf_8_is_refused_before_the_first_step(tmp_path, monkeypatch):
    folder = tmp_path / os.fsdecode(b"caf\xe9")
    folder.mkdir()
    monkeypatch.chdir(folder)
    for kind in ("pretrain", "finetune"):
        with pytest.raises(ValueError, match="is not UTF-8.*rename it"):
            use(kind, "run", tmp_path)
    assert list(folder.iterdir()) == []
