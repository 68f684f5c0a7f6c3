"""Rollbacks: which batches they leave out, and how many there may be."""

import pytest

from bertjax.config import Phase
from bertjax.train.bad_steps import MAX_ROLLBACKS, NotFinite, Rollbacks

PHASES = (
    Phase(num_steps=100, max_length=16, batch_size=8),
    Phase(num_steps=100, max_length=32, batch_size=8),
)


@pytest.fixture
def roll_back(tmp_path):
    """Rolls the run in `tmp_path` back as a new process would; returns whether it did."""

    def function(first_bad, last_bad, checkpoints=()):
        for step in checkpoints:
            (tmp_path / "checkpoints" / str(step)).mkdir(parents=True, exist_ok=True)
        run = Rollbacks(tmp_path)
        bad = NotFinite("bad", first_bad, last_bad)
        return run.roll_back(tmp_path / "checkpoints", PHASES, bad, 10)

    return function


def test_rollbacks_to_one_checkpoint_leave_more_and_more_out_until_there_were_too_many(
    roll_back, tmp_path
):
    for count in range(MAX_ROLLBACKS):
        assert roll_back(50, 52, checkpoints=[20, 40])
        # Steps 41 to 52 train on 12 batches, all of which are left out from now on.
        assert Rollbacks(tmp_path).left_out(0, 40) == 12 * (count + 1)
    assert not roll_back(50, 52)


def test_a_rollback_to_an_earlier_phase_leaves_out_what_was_left_out_before(
    roll_back, tmp_path, capsys
):
    assert roll_back(95, 96, checkpoints=[40, 80])
    assert Rollbacks(tmp_path).left_out(0, 80) == 16  # batches 80 to 95 of the first phase
    assert roll_back(103, 104, checkpoints=[80])
    assert "continues from step 80, and leaves out 4 batches" in capsys.readouterr().out
    assert roll_back(86, 87, checkpoints=[40])
    assert "continues from step 40, and leaves out 63 batches" in capsys.readouterr().out
    after = Rollbacks(tmp_path)
    # Step 87 trained on batch 86 + 16; batches 0 to 3 of the second phase are bad as well.
    assert after.left_out(0, 40) == 87 + 16 - 40
    assert after.left_out(1, 100) == 4
    assert after.left_out(0, 39) == 0
