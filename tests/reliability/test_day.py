"""Three minutes of a run with a fault in each; `python -m tests.programs.day` takes longer."""

import json
import subprocess
import sys

import pytest

from tests.programs.day import FAULTS, planned


def test_a_plan_has_a_fault_in_each_minute_and_each_fault_equally_often():
    plan = planned(3 * len(FAULTS), 1, list(FAULTS))
    assert plan == planned(3 * len(FAULTS), 1, list(FAULTS)) != planned(42, 2, list(FAULTS))
    assert [int(second // 60) for second, _ in plan] == list(range(3 * len(FAULTS)))
    names = [name for _, name in plan]
    assert {name: names.count(name) for name in FAULTS} == dict.fromkeys(FAULTS, 3)


@pytest.mark.slow
@pytest.mark.exhaustive
def test_three_faults_in_three_minutes_leave_the_model_of_a_quiet_day(tmp_path):
    pytest.importorskip("gcp_storage_emulator")
    pytest.importorskip("gcsfs")
    command = [sys.executable, "-m", "tests.programs.day", "--minutes", "3", "--seed", "2"]
    for name in ("kill", "damaged checkpoint", "clock a day back"):
        command += ["--fault", name]
    done = subprocess.run(
        [*command, "--output", str(tmp_path / "day")], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    summary = json.loads((tmp_path / "day" / "summary.json").read_text())
    assert summary["faults"] == 3 and summary["starts"] >= 3
