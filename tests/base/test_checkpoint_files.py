"""Damage in the files of a checkpoint is found before anything is computed from it."""

import json
import shutil

import jax.numpy as jnp
import pytest

from bertjax.base.checksums import CHECKSUMS, damage_of, damaged_steps, steps_in
from bertjax.base.workdir_files import REPLACED
from bertjax.train.checkpoint import (
    Checkpointer,
    move_checkpoint,
    move_damaged,
    undo_replacements,
)
from tests.cases import others_weekly

STATE = {"step": jnp.zeros((), jnp.int32), "w": jnp.arange(2000.0).reshape(40, 50)}


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A directory with the checkpoints of steps 1, 2 and 3."""
    directory = tmp_path_factory.mktemp("saved") / "checkpoints"
    checkpointer = Checkpointer(directory, keep=3)
    for step in (1, 2, 3):
        state = STATE | {"w": STATE["w"] + step}
        checkpointer.save(step, state, {"row": step}, {"eval/mlm_loss": 4.0 - step})
    checkpointer.close()
    return directory


@pytest.fixture
def checkpoints(saved, tmp_path):
    return shutil.copytree(saved, tmp_path / "run" / "checkpoints")


def flipped(content, bit):
    byte, within = divmod(bit, 8)
    changed = bytearray(content)
    changed[byte] ^= 1 << within
    return bytes(changed)


DAMAGES = {
    "truncated": lambda file: file.write_bytes(file.read_bytes()[:-2]),
    "emptied": lambda file: file.write_bytes(b""),
    "missing": lambda file: file.unlink(),
    "one bit flipped": lambda file: file.write_bytes(flipped(file.read_bytes(), 13)),
    "last bit flipped": lambda file: file.write_bytes(
        flipped(file.read_bytes(), 8 * file.stat().st_size - 9)
    ),
    "half copied": lambda file: file.write_bytes(
        file.read_bytes()[: file.stat().st_size // 2] + bytes(file.stat().st_size // 2)
    ),
}


@pytest.mark.parametrize(
    "damage",
    others_weekly(
        DAMAGES,
        *("truncated", "one bit flipped"),
        slow=("emptied", "missing", "last bit flipped", "half copied"),
    ),
)
def test_damage_in_any_file_with_values_is_found(checkpoints, tmp_path, damage):
    newest = checkpoints / "3"
    assert damage_of(newest) is None
    names = [*json.loads((newest / CHECKSUMS).read_text()), CHECKSUMS]
    assert {"progress/metadata", "metrics/metrics"} <= set(names) and len(names) > 8
    for name in names:
        if not (newest / name).stat().st_size:
            continue
        shutil.copytree(checkpoints, tmp_path / "copy")
        before = (newest / name).read_bytes()
        DAMAGES[damage](tmp_path / "copy" / "3" / name)
        is_same = (tmp_path / "copy" / "3" / name).exists() and (
            (tmp_path / "copy" / "3" / name).read_bytes() == before
        )
        if not is_same:
            assert set(damaged_steps(tmp_path / "copy")) == {3}, name
        shutil.rmtree(tmp_path / "copy")


def test_the_newest_whole_checkpoint_is_taken_and_damaged_ones_are_kept(checkpoints, capsys):
    (checkpoints / "3" / "progress" / "metadata").unlink()
    (checkpoints / "1" / "metrics" / "metrics").write_text("{")
    move_damaged(checkpoints)
    assert steps_in(checkpoints) == [2]
    assert sorted(x.name for x in (checkpoints.parent / "damaged").iterdir()) == ["1", "3"]
    said = capsys.readouterr().out
    assert "checkpoint of step 3 is damaged (progress/metadata is missing)" in said
    assert "resumes from step 2" in said
    checkpointer = Checkpointer(checkpoints)
    state, progress = checkpointer.restore(STATE)
    checkpointer.close()
    assert progress == {"row": 2} and (state["w"] == STATE["w"] + 2).all()


def test_if_all_are_damaged_nothing_is_moved(checkpoints):
    for step in (1, 2, 3):
        (checkpoints / str(step) / "state" / "manifest.ocdbt").write_bytes(b"")
    with pytest.raises(
        ValueError, match=r"All checkpoints in .* \(3\) are damaged; .* step 3, state/"
    ):
        move_damaged(checkpoints)
    assert steps_in(checkpoints) == [1, 2, 3]


def test_checkpoints_of_versions_without_checksums_are_read(checkpoints):
    for step in (1, 2, 3):
        (checkpoints / str(step) / CHECKSUMS).unlink()
    assert not damaged_steps(checkpoints)


def test_replaced_checkpoints_return_under_their_step(checkpoints):
    for _ in range(2):  # the second is named "3-2"
        move_checkpoint(checkpoints, 3, REPLACED)
        shutil.copytree(checkpoints / "2", checkpoints / "3")
    shutil.rmtree(checkpoints / "3")
    undo_replacements(checkpoints)
    assert steps_in(checkpoints) == [1, 2, 3]
    assert not (checkpoints.parent / REPLACED).exists()


def test_a_checkpoint_that_is_damaged_while_a_run_uses_it_is_refused(checkpoints):
    checkpointer = Checkpointer(checkpoints)
    (checkpoints / "3" / "state" / "manifest.ocdbt").write_bytes(b"damaged")
    with pytest.raises(ValueError, match="step 3 .* is damaged: state/manifest.ocdbt has 7 bytes"):
        checkpointer.restore(STATE)
    checkpointer.close()


def test_a_metric_that_is_not_finite_is_never_the_best(tmp_path):
    checkpointer = Checkpointer(tmp_path, keep=1)
    for step, loss in enumerate((3.0, 2.0, float("nan"), 2.5, float("-inf")), start=1):
        better = checkpointer.would_be_best({"eval/mlm_loss": loss})
        assert better == (step in (1, 2))
        checkpointer.save(step, STATE, {}, {"eval/mlm_loss": loss})
    assert checkpointer.best_step == 2
    checkpointer.close()
    assert steps_in(tmp_path) == [2, 5]
