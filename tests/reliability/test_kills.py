"""Killed commands leave what uninterrupted ones leave; `kills.py` and `moments.py` are long."""

import pytest

from tests.programs import moments
from tests.programs.kills import harness


@pytest.mark.slow
@pytest.mark.exhaustive
def test_killed_commands_leave_the_same_bytes(tmp_path):
    names = ["train_tokenizer", "prepare", "pretrain"]
    results = harness(tmp_path, kills=4, seed=0, names=names)
    assert list(results) == names
    assert not any(result.different for result in results.values()), results
    assert all(result.kills for result in results.values()), results


@pytest.mark.slow
@pytest.mark.exhaustive
def test_a_command_that_is_killed_within_a_rename_leaves_the_same_bytes(tmp_path):
    pytest.importorskip("moto")
    (line,) = moments.harness(tmp_path, kills=6, seed=0, names=["prepare"])
    assert line["kills"] >= 6 and line["events"] > 3 and not line["different"], line
