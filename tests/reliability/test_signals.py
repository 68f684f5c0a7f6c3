"""Stopped commands end as they should, and go on; the long version is `signals.py`."""

import pytest

from tests.programs.signals import harness


@pytest.mark.slow
@pytest.mark.exhaustive
def test_stopped_commands_end_with_their_status_and_go_on(tmp_path):
    names = ["train_tokenizer", "prepare", "pretrain"]
    lines = harness(tmp_path, 5, 0, names, tmp_path / "signals.jsonl")
    assert [line["command"] for line in lines] == [name for name in names for _ in range(5)]
    assert not [line for line in lines if line["wrong"]]
    assert all(line["equal"] for line in lines if line["compared"])
    # A line that is there is not made again.
    assert harness(tmp_path, 5, 0, names, tmp_path / "signals.jsonl") == lines
