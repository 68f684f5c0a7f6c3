"""Which changes of a config allow a run to be resumed, and what the refusal of others says."""

import dataclasses
import json
import shutil

import pytest

from bertjax.base.files import write_json
from bertjax.base.lock import Locked
from bertjax.base.run_file import checked_run_id
from bertjax.base.workdir_files import BAD_ROWS
from bertjax.config import OptimizerConfig, Phase, PretrainConfig, defaults_of, differences
from bertjax.train.optimizer import difference_before
from bertjax.train.run import put_in_order
from bertjax.train.workdir import Workdir
from tests.base.test_lock import without_flock

PHASES = (
    Phase(num_steps=10, max_length=16, batch_size=8),
    Phase(
        num_steps=10,
        max_length=32,
        batch_size=4,
        learning_rate_curve="restart",
        learning_rate=1e-3,
        warmup_steps=2,
    ),
)
CONFIG = PretrainConfig(phases=PHASES, optimizer=OptimizerConfig(warmup_steps=2))


def workdir_of(tmp_path, config, step=12):
    """A workdir with a checkpoint of `step`."""
    workdir = Workdir(tmp_path / "run")
    workdir.claim(dataclasses.asdict(config), "data")
    workdir.release()
    (workdir.checkpoints / str(step)).mkdir(parents=True)
    return workdir


def resume(workdir, config, **checks):
    workdir.claim(dataclasses.asdict(config), "data", **checks)
    workdir.release()


def test_what_no_update_depends_on_may_change(tmp_path):
    workdir = workdir_of(tmp_path, CONFIG)
    phase = dataclasses.replace(PHASES[0], accumulation_steps=2)
    changes = {"data": "elsewhere", "unroll": 2, "remat": "full", "eval_rows": 7}
    resume(workdir, dataclasses.replace(CONFIG, phases=(phase, PHASES[1]), **changes))
    with pytest.raises(ValueError, match=r"another config: optimizer.b1: 0.9 -> 0.8; seed: 0 -> 1"):
        optimizer = dataclasses.replace(CONFIG.optimizer, b1=0.8)
        resume(workdir, dataclasses.replace(CONFIG, seed=1, optimizer=optimizer))


def test_only_a_run_of_another_config_is_deleted_to_be_overwritten(tmp_path, capsys):
    workdir = workdir_of(tmp_path, CONFIG, step=3)
    for name in ("model", "predictions"):
        (workdir.path / name).mkdir()
    resume(workdir, dataclasses.replace(CONFIG, overwrite=True), overwrite=True)
    assert workdir.newest_step == 3 and workdir.model.is_dir()
    (workdir.path / "notes.txt").write_text("mine")
    (workdir.path / BAD_ROWS).write_text("{}")
    other = dataclasses.replace(CONFIG, seed=1)
    with pytest.raises(ValueError, match="delete that run with --overwrite"):
        resume(workdir, other)
    resume(workdir, other, overwrite=True)
    assert "was deleted (--overwrite)" in capsys.readouterr().out
    assert not workdir.newest_step and not workdir.model.exists()
    assert not (workdir.path / BAD_ROWS).exists()
    assert (workdir.path / "notes.txt").read_text() == "mine"
    resume(workdir, other)


def test_a_field_that_is_newer_than_the_run_has_its_default(tmp_path):
    workdir = workdir_of(tmp_path, CONFIG)
    file = workdir.path / "run.json"
    content = json.loads(file.read_text())
    del content["config"]["max_ngram"], content["config"]["model"]["qa_dropout"]
    del content["config"]["phases"][1]["max_predictions"]
    file.write_text(json.dumps(content))
    resume(workdir, CONFIG, defaults=defaults_of(CONFIG))
    file.write_text(json.dumps(content))
    with pytest.raises(ValueError, match="max_ngram: 1 -> 3"):
        resume(workdir, dataclasses.replace(CONFIG, max_ngram=3), defaults=defaults_of(CONFIG))


def test_defaults_do_not_hide_a_missing_phase():
    one = dataclasses.asdict(dataclasses.replace(CONFIG, phases=PHASES[:1]))
    changed = differences(dataclasses.asdict(CONFIG), one, defaults=defaults_of(CONFIG))
    assert "phases.1.num_steps: None -> 10" in changed


def test_files_of_a_fine_tuning_may_move_since_their_content_is_compared(tmp_path):
    workdir = Workdir(tmp_path / "run")
    workdir.claim({"task": "classify", "train": "a/train.csv", "dev": "a/dev.csv"}, "hash")
    workdir.release()
    (workdir.checkpoints / "1").mkdir(parents=True)
    moved = {"task": "classify", "train": "b/train.csv", "dev": "b/dev.csv"}
    workdir.check(moved, "hash")
    with pytest.raises(ValueError, match="the data differs from the data of a/train.csv"):
        workdir.check(moved, "another")


@pytest.mark.parametrize(
    ("steps", "done", "allowed"), [((10, 30), 10, True), ((10, 30), 11, True), ((20, 10), 5, False)]
)
def test_steps_can_be_added_where_the_steps_that_are_done_stay_what_they_were(steps, done, allowed):
    # The second phase has a curve of its own: before its first steps with a decayed rate, the
    # curve may still become longer.
    config = OptimizerConfig(warmup_steps=2, schedule="hf")
    after = tuple(
        dataclasses.replace(phase, num_steps=n) for phase, n in zip(PHASES, steps, strict=True)
    )
    reason = difference_before(config, PHASES, after, done)
    assert (reason is None) == allowed
    if not allowed:
        assert "the learning rate of the finished step 3 would change from" in reason
        assert "learning_rate_curve='restart'" in reason


def test_a_phase_can_be_added_at_the_end_and_rows_that_are_done_cannot_change():
    config = OptimizerConfig(warmup_steps=2)
    more = (*PHASES, dataclasses.replace(PHASES[1], num_steps=50))
    assert difference_before(config, PHASES, more, 20) is None
    other = (dataclasses.replace(PHASES[0], batch_size=16), PHASES[1])
    assert "rows of the 15 finished steps" in str(difference_before(config, PHASES, other, 15))


@pytest.mark.parametrize("content", [b"", b"{}", b"\0" * 300, b'{"config": 3}', b"\xff"])
def test_a_damaged_run_json_is_replaced_by_its_spare_copy_and_kept(tmp_path, capsys, content):
    workdir = workdir_of(tmp_path, CONFIG)
    file = workdir.path / "run.json"
    whole, before = file.read_bytes(), workdir.read()
    file.write_bytes(content)
    assert workdir.read() == before
    with pytest.raises(ValueError, match="another config: seed: 0 -> 1"):  # the copy is compared
        resume(workdir, dataclasses.replace(CONFIG, seed=1))
    assert file.read_bytes() == content
    resume(workdir, CONFIG)
    assert file.read_bytes() == whole
    assert (workdir.path / "run.json.damaged-1").read_bytes() == content
    out = capsys.readouterr().out
    assert out.count("\n") == 1 and str(file) in out and "its spare copy is used" in out


def test_a_changed_letter_in_run_json_is_damage_and_not_another_config(tmp_path, capsys):
    workdir = workdir_of(tmp_path, CONFIG)
    file = workdir.path / "run.json"
    whole = file.read_text()
    for before, after in (
        ("learning_rate_curve", "learnilg_rate_curve"),
        ('"seed": 0', '"seed": 1'),
    ):
        assert before in whole
        file.write_text(whole.replace(before, after))
        resume(workdir, CONFIG)
        assert "does not match its checksum" in capsys.readouterr().out
        assert file.read_text() == whole


def test_a_run_json_without_a_checksum_is_not_taken_for_damaged(tmp_path, capsys):
    workdir = workdir_of(tmp_path, CONFIG)
    for name in ("run.json", ".run.json"):
        content = json.loads((workdir.path / name).read_text())
        del content["checksum"]
        (workdir.path / name).write_text(json.dumps(content))
    resume(workdir, CONFIG)
    assert "run.json" not in capsys.readouterr().out


def test_without_a_spare_copy_the_run_resumes_and_says_what_was_not_compared(tmp_path, capsys):
    workdir = workdir_of(tmp_path, CONFIG)
    (workdir.checkpoints / "12" / "progress").mkdir()
    (workdir.path / ".run.json").unlink()
    (workdir.path / "run.json").write_text("{}")
    with pytest.raises(ValueError, match=r"run\.json cannot be read, because it has no config"):
        workdir.read()
    resume(workdir, CONFIG)
    assert "could not be compared" in capsys.readouterr().out
    assert workdir.read()["data_fingerprint"] == "data"


def test_a_missing_run_json_is_restored_from_its_spare_copy(tmp_path):
    workdir = workdir_of(tmp_path, CONFIG)
    (workdir.path / "run.json").unlink()
    with pytest.raises(ValueError, match="another config: seed: 0 -> 1"):
        resume(workdir, dataclasses.replace(CONFIG, seed=1))
    resume(workdir, CONFIG)
    assert (workdir.path / "run.json").is_file()


def test_a_claim_that_fails_leaves_no_lock_file(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    for has_flock in (True, False):
        with monkeypatch.context() as patch:
            if not has_flock:
                without_flock(patch)
            patch.setattr("bertjax.base.run_file.write_json", full)
            workdir = Workdir(tmp_path / "run")
            with pytest.raises(OSError, match="No space"):
                workdir.claim({}, "data")
            workdir.release()
        assert not list((tmp_path / "run").iterdir())


def test_damage_in_the_log_does_not_hide_the_last_evaluation(tmp_path):
    workdir = Workdir(tmp_path)
    assert workdir.last_evaluation() is None
    good = json.dumps({"step": 3, "eval/loss": 1.5}).encode()
    workdir.metrics.write_bytes(
        good + b'\n{"step": 4, "train/loss": 1.0}\n\xff"eval/"\n' + b"\0" * 99
    )
    assert workdir.last_evaluation() == {"step": 3, "eval/loss": 1.5}


def test_two_runs_in_one_workdir_are_refused_without_file_locks_too(tmp_path, monkeypatch):
    without_flock(monkeypatch)
    first, second = Workdir(tmp_path / "run"), Workdir(tmp_path / "run")
    monkeypatch.setattr("bertjax.base.lock.HEARTBEAT_SECONDS", 0.02)
    monkeypatch.setattr("bertjax.base.lock.POLL_SECONDS", 0.05)
    first.claim(dataclasses.asdict(CONFIG), "data")
    with pytest.raises(ValueError, match=r"another run \(process \d+ on .*another --workdir"):
        second.claim(dataclasses.asdict(CONFIG), "data")
    first.release()
    second.claim(dataclasses.asdict(CONFIG), "data")
    second.release()
    assert sorted(p.name for p in (tmp_path / "run").iterdir()) == [".run.json", "run.json"]


def test_checkpoints_of_a_running_run_and_of_other_folders_are_not_moved(tmp_path):
    old = tmp_path / "run" / "replaced" / "5"
    old.mkdir(parents=True)
    put_in_order(Workdir(tmp_path / "run"))
    assert old.is_dir()  # the folder holds no run
    running = Workdir(tmp_path / "run")
    write_json(tmp_path / "run" / "run.json", {"config": {}, "data_fingerprint": ""})
    running.claim({}, "")
    with pytest.raises(Locked, match="is being written by another run"):
        put_in_order(Workdir(tmp_path / "run"))
    assert old.is_dir()
    running.release()
    (old / "progress").mkdir()
    (old / "progress" / "metadata").write_text("{}")
    put_in_order(Workdir(tmp_path / "run"))
    assert (tmp_path / "run" / "checkpoints" / "5").is_dir() and not old.exists()


def test_a_run_without_a_readable_run_json_resumes_with_a_warning(tmp_path, capsys):
    workdir = workdir_of(tmp_path, CONFIG)
    (workdir.path / "run.json").unlink()
    (workdir.path / ".run.json").write_text("{")
    resume(workdir, CONFIG)
    assert "run.json is missing; the run resumes with the config" in capsys.readouterr().out
    resume(workdir, CONFIG)
    assert not capsys.readouterr().out


def test_a_run_whose_checkpoints_are_all_damaged_is_overwritten_only_on_request(tmp_path, capsys):
    step = tmp_path / "run" / "checkpoints" / "5" / "state"
    step.mkdir(parents=True)
    (step / "manifest.ocdbt").write_text("")
    write_json(tmp_path / "run" / "run.json", {"config": {}, "data_fingerprint": ""})
    with pytest.raises(ValueError, match="All checkpoints in .* are damaged; .*give --overwrite"):
        put_in_order(Workdir(tmp_path / "run"))
    assert step.is_dir()
    put_in_order(Workdir(tmp_path / "run"), overwrite=True)
    assert not step.exists() and "the earlier run was deleted" in capsys.readouterr().out


@pytest.mark.parametrize("content", ['{"name": "mine"}', "not JSON", '{"config": "a.yaml"}', "[]"])
@pytest.mark.parametrize("overwrite", [False, True])
def test_a_workdir_whose_run_json_another_program_wrote_stays_as_it_is(
    tmp_path, content, overwrite
):
    folder = tmp_path / "run"
    for name in ("run.json", "checkpoints/100/weights.pt", "model/data.csv", "scores.json"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(content)
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    for use in (
        lambda: put_in_order(Workdir(folder), overwrite=overwrite),
        lambda: resume(Workdir(folder), CONFIG, overwrite=overwrite),
    ):
        with pytest.raises(ValueError, match=r"run\.json was not written by bertjax"):
            use()
    assert before == {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize(
    "name", ["model/notes.txt", "checkpoints/notes.txt", "damaged/mine/a", "rolled_back/x.csv"]
)
def test_overwrite_deletes_no_file_that_bertjax_did_not_write(tmp_path, name):
    workdir = workdir_of(tmp_path, CONFIG)
    (workdir.path / name).parent.mkdir(parents=True, exist_ok=True)
    (workdir.path / name).write_text("mine")
    top = "/".join(name.split("/")[:2])
    with pytest.raises(ValueError, match=f"bertjax did not write or .*: {top}. Move them"):
        resume(workdir, dataclasses.replace(CONFIG, seed=1), overwrite=True)
    assert (workdir.path / name).read_text() == "mine" and workdir.newest_step == 12
    resume(workdir, CONFIG)  # the run itself goes on
    (workdir.path / name).unlink()
    if name == "damaged/mine/a":
        (workdir.path / "damaged" / "mine").rmdir()
    resume(workdir, dataclasses.replace(CONFIG, seed=1), overwrite=True)
    assert not workdir.newest_step


def name_checkpoint(workdir, step, name):
    folder = workdir.checkpoints / str(step) / "progress"
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "metadata", {"row": 5} | ({} if name is None else {"run_id": name}))


def test_checkpoints_of_another_run_are_named_and_those_of_the_run_and_old_ones_are_not(tmp_path):
    workdir = workdir_of(tmp_path, CONFIG)
    own = workdir.read()["run_id"]
    assert len(own) == 32
    for step, name in ((1, None), (12, own), (14, own)):
        name_checkpoint(workdir, step, name)
    resume(workdir, CONFIG)
    assert workdir.read()["run_id"] == own
    for step, name in (
        (13, "b" * 32),
        (15, "c" * 32),
    ):  # the first would be the best one
        name_checkpoint(workdir, step, name)
    with pytest.raises(ValueError, match=r"steps 13, 15 in .* are of another run .*: move them to"):
        resume(workdir, CONFIG)
    with pytest.raises(ValueError, match=r"steps 13, 15 in .* are of another run"):
        checked_run_id(workdir.checkpoints, own)
    assert workdir.newest_step == 15 and workdir.read()["run_id"] == own
    resume(workdir, CONFIG, overwrite=True)
    assert not workdir.newest_step and workdir.read()["run_id"] not in (own, "b" * 32, "c" * 32)


def test_a_copied_workdir_goes_on_and_a_run_of_an_older_version_gets_a_name(tmp_path):
    workdir = workdir_of(tmp_path, CONFIG)
    own = workdir.read()["run_id"]
    name_checkpoint(workdir, 12, own)
    shutil.copytree(workdir.path, tmp_path / "copy")
    resume(Workdir(tmp_path / "copy"), CONFIG)
    assert Workdir(tmp_path / "copy").read()["run_id"] == own
    content = {"config": dataclasses.asdict(CONFIG), "data_fingerprint": "data"}
    for name in ("run.json", ".run.json"):  # as older versions write it, also over a newer one
        write_json(workdir.path / name, content)
    resume(workdir, CONFIG)
    assert workdir.read()["run_id"] == own  # of its checkpoint
    name_checkpoint(workdir, 12, None)
    for name in ("run.json", ".run.json"):
        write_json(workdir.path / name, content)
    resume(workdir, CONFIG)
    assert workdir.read()["run_id"] not in ("", own)


def test_another_run_in_a_workdir_without_checkpoints_has_another_name(tmp_path):
    workdir = Workdir(tmp_path / "run")
    names = []
    for seed in (0, 0, 1):
        resume(workdir, dataclasses.replace(CONFIG, seed=seed))
        names.append(workdir.read()["run_id"])
    assert names[0] == names[1] != names[2]


ENVIRONMENT = {"environment": {"XLA_FLAGS": "--a"}, "machine": "1 CPU and 2 cores"}


@pytest.mark.parametrize(
    "change, message",
    [
        ({"environment": {}}, "environment.XLA_FLAGS: '--a' -> None"),
        ({"environment": {"XLA_FLAGS": "--b"}}, "environment.XLA_FLAGS: '--a' -> '--b'"),
        (
            {"environment": {"XLA_FLAGS": "--a", "jax_default_matmul_precision": "bfloat16"}},
            "environment.jax_default_matmul_precision: None -> 'bfloat16'",
        ),
    ],
)
def test_a_run_does_not_go_on_under_settings_that_change_bits(change, message, tmp_path):
    workdir, config = workdir_of(tmp_path, CONFIG), dataclasses.asdict(CONFIG)
    workdir.claim(config | {"environment": {}}, "data")  # as a run.json of an older version
    workdir.claim(config, "data")
    workdir.check(config | {"environment": {}}, "data")
    (tmp_path / "other").mkdir()
    other = workdir_of(tmp_path / "other", CONFIG)
    other.delete_run()
    other.claim(config | ENVIRONMENT, "data")
    (other.checkpoints / "12").mkdir(parents=True)
    with pytest.raises(ValueError) as refused:
        other.claim(config | ENVIRONMENT | change, "data")
    assert message in str(refused.value)


def test_a_run_that_goes_on_with_other_cores_says_so(tmp_path, capsys):
    config = dataclasses.asdict(CONFIG) | ENVIRONMENT
    workdir = Workdir(tmp_path / "run")
    workdir.claim(config, "data")
    (workdir.checkpoints / "12").mkdir(parents=True)
    workdir.claim(config, "data")
    assert capsys.readouterr().out == ""
    for machine in ("1 CPU and 1 cores", "8 x CPU and 2 cores", "1 TPU v4"):
        workdir.claim(config | {"machine": machine}, "data")
        assert f"note: the run goes on with {machine}, after" in capsys.readouterr().out
