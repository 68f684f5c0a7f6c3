"""Killed commands leave what uninterrupted ones leave; the long version is `kills.py`."""

import pytest

from tests.reliability.kills import harness


@pytest.mark.slow
def test_killed_commands_leave_the_same_bytes(tmp_path):
    names = ["train_tokenizer", "prepare", "pretrain"]
    results = harness(tmp_path, kills=4, seed=0, names=names)
    assert list(results) == names
    assert not any(result.different for result in results.values()), results
    assert all(result.kills for result in results.values()), results
