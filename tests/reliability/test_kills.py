"""Killed commands leave what uninterrupted ones leave; the long version is `kills.py`."""

import pytest

from tests.reliability.kills import harness


@pytest.mark.slow
def test_killed_commands_leave_the_same_bytes(tmp_path):
    results = harness(tmp_path, kills=12, seed=0)
    assert len(results) == 6 and all(result.equal for result in results.values()), results
    assert sum(result.kills for result in results.values()) >= 6
