"""The table of evidence: it goes on where it stopped, and says what failed and what is left."""

import json
import math
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks import acceptance
from benchmarks.acceptance import LINES, PAGE, Acceptance, accept
from bertjax.planning.hardware import GIB
from tests.browser import data_of, needs_chromium, used
from tests.lines import json_lines

ROOT = Path(__file__).parent.parent


def check(passed, **more):
    return {"reference": "x", "checks": [{"what": "y", "passed": passed, **more}]}


SPEED = {
    "tokens_per_second": 1000.0,
    "mfu": 0.4,
    "batch": [8, 32],
    "attention": "xla",
    "step_seconds": 0.256,
    "roofline_ratio": 0.5,
    "peak_memory_bytes": None,
    "compile_seconds": 1.0,
    "input_stall": None,
}


@pytest.fixture(autouse=True)
def _no_collections(monkeypatch):
    """In the process of the tests, which has many objects, a collection takes half a second."""
    monkeypatch.setattr(acceptance, "gc", SimpleNamespace(collect=lambda: None))


@pytest.fixture
def table(monkeypatch, tmp_path):
    """Gives the table other rows; returns a function that measures them, and the folder."""

    def measure(rows, minutes=9.0):
        monkeypatch.setattr(Acceptance, "rows", lambda self: rows)
        return {line["row"]: line for line in accept(tmp_path, "tiny", minutes)}

    return measure, tmp_path


def lines_of(folder):
    return json_lines(folder / LINES)


def fails():
    raise RuntimeError("the kernel <b>does not</b> lower")


def test_a_next_call_measures_what_is_left_and_then_what_failed(table, capsys):
    measure, folder = table
    called = []

    def row(name, result=None):
        return lambda: called.append(name) or (fails() if result is None else dict(result))

    def interrupted():
        called.append("killed")
        raise KeyboardInterrupt

    good = {"a": row("a", check(True)), "b": row("b"), "c": interrupted, "d": row("d", SPEED)}
    with pytest.raises(KeyboardInterrupt):
        measure(good)
    assert called == ["a", "b", "killed"]
    with (folder / LINES).open("a") as file:
        file.write('{"row": "a", "cut off')
    good |= {"b": row("b", check(False)), "c": row("c", SPEED)}
    found = measure(good)
    assert called[3:] == ["d", "b", "c"]
    assert [line["row"] for line in found.values()] == ["a", "b", "c", "d"]
    assert [line.get("failed") for line in found.values()] == [False, True, False, False]
    assert measure(good) == found and len(called) == 6
    shown = capsys.readouterr().out
    assert "b: RuntimeError: the kernel" in shown and "d: 1,000 tokens/s, MFU 40.0%" in shown
    # Each line says of what it is, and stands alone.
    raw = (folder / LINES).read_text().splitlines()
    lines = [json.loads(line) for line in raw if not line.endswith("cut off")]
    assert len(lines) == len(raw) - 1 == 11
    assert all({"device", "date", "versions", "code", "size"} <= line.keys() for line in lines)


@pytest.mark.parametrize("changed", ["code", "size", "device", "versions"])
def test_results_of_other_code_or_devices_are_not_reused(table, changed):
    measure, folder = table
    measure({"a": lambda: check(True)})
    lines = [line | {changed: "other"} for line in lines_of(folder)]
    (folder / LINES).write_text("".join(json.dumps(line) + "\n" for line in lines))
    found = measure({"a": lambda: check(False)})
    assert found["a"]["failed"]


def test_no_row_begins_after_the_time_and_what_is_left_is_named(table):
    measure, folder = table
    found = measure({"a": lambda: check(True), "b": lambda: check(True)}, minutes=1e-9)
    assert found == {"a": {"row": "a", "left": True}, "b": {"row": "b", "left": True}}
    assert not (folder / LINES).exists()
    assert [row["row"] for row in data_of((folder / PAGE).read_text())["rows"]] == ["a", "b"]


def test_a_device_that_is_lost_ends_the_call(table):
    measure, _ = table

    def lost():
        raise RuntimeError("INTERNAL: CUDA_ERROR_ILLEGAL_ADDRESS")

    found = measure({"a": lost, "b": lambda: check(True)})
    assert found["a"]["failed"] and "left" in found["b"]


ROWS = {
    "heads": lambda: check(True, error=1e-6, tolerance=1e-4),
    "<script>alert(1)</script>": lambda: check(False, error=math.nan, tolerance=1e-4),
    "kernels": lambda: check(None, reason="runs on TPUs"),
    "base, 32 tokens": lambda: dict(SPEED),
    "base, 32 tokens, no dropout": lambda: SPEED | {"tokens_per_second": 1100.0},
    "plan of base": lambda: {"of": "base, 32 tokens", "plan": "h", "bytes": 2e9, "bound": 0.1},
    "lost": fails,
    "PyTorch": lambda: {"skipped": "not installed"},
}


@needs_chromium
@pytest.mark.parametrize("width", [390, pytest.param(1280, marks=pytest.mark.slow)])
def test_the_page_says_what_was_found(table, width):
    measure, folder = table
    measure(ROWS)
    page = (folder / PAGE).read_text()
    assert "<script>alert" not in page
    script = """
      seen.said = text("said");
      seen.content = text("content");
      seen.wide = document.documentElement.scrollWidth;
      document.getElementById("theme").click();
    """
    seen = used(page, script, folder, width=width)
    assert seen["errors"] == [] and seen["requests"] == 0
    assert seen["wide"] <= max(width, 500)  # Chromium's windows have at least 500 pixels
    assert "1 check of 2 failed. base, 32 tokens: 1,000 tokens/s, MFU 40.0 %" in seen["said"]
    for shown in ("<script>alert(1)</script>", "1.10", "2.00 GB", "<b>does not</b>", "Ettin"):
        assert shown in seen["content"]


def test_the_order_is_numerics_then_speed_and_every_plan_follows_its_step():
    rows = list(Acceptance(False, {}, None).rows())  # type: ignore[arg-type]
    assert rows[0] == "heads" and rows.index("attention kernels") < 4
    assert rows.index("bert-base-uncased, 512 tokens") < rows.index("save and restore")
    for name in rows:
        if name.startswith("plan of "):
            assert rows.index(name) > rows.index(name.removeprefix("plan of "))
    assert "modernbert-base, 8,192 tokens" in rows
    # Eight simulated devices: meshes, and fewer devices with the same rows per device.
    assert {f"bert-base-uncased, 128 tokens, {x}" for x in ("fsdp", "4 of 8 devices")} <= {*rows}


@pytest.mark.parametrize(
    ("kind", "number", "gib", "name"),
    [
        ("NVIDIA H100 80GB HBM3", 1, 59.0, "h100:1"),
        ("NVIDIA A100-SXM4-40GB", 8, 29.6, "a100-40:8"),
        ("NVIDIA A100-SXM4-80GB", 1, 59.3, "a100:1"),
        ("TPU v5 lite", 4, 15.7, "v5e:2x2"),
        ("TPU v5", 4, 95.0, "v5p:2x2x1"),
        ("TPU v3", 8, 16.0, "v3:2x2"),
        ("TPU v5 lite", 1, 15.7, "TPU v5e"),
        ("cpu", 1, 0, "cpu"),
    ],
)
def test_devices_are_found_among_the_topologies_of_plan(kind, number, gib, name, monkeypatch):
    table = Acceptance(True, {}, None)  # type: ignore[arg-type]
    table._kind, table._devices = kind, [None] * number
    monkeypatch.setattr(table, "_memory", lambda key: gib * GIB)
    assert table._topology() == name


def test_rows_are_halved_until_they_fit(monkeypatch):
    table, tried = Acceptance(True, {}, None), []  # type: ignore[arg-type]

    def measure(config, index, **options):
        tried.append(config.phases[0].batch_size)
        if len(tried) < 3:
            raise RuntimeError("RESOURCE_EXHAUSTED: Out of memory")
        return dict(SPEED)

    monkeypatch.setattr(acceptance, "measure", measure)
    assert table.speed(acceptance.BASE, 32)["tokens_per_second"] == 1000
    assert tried == [64, 32, 16]
    monkeypatch.setattr(acceptance, "measure", lambda *args, **options: fails())
    with pytest.raises(RuntimeError, match="does not"):
        table.speed(acceptance.BASE, 32)


def test_an_error_is_relative_to_the_largest_value_of_its_output():
    expected = {"logits": np.array([100.0, 1.0]), "gradients": {"a": np.ones(2), "b": np.zeros(2)}}
    found = {"logits": np.array([101.0, 1.0]), "gradients": {"a": np.ones(2), "b": np.zeros(2)}}
    assert acceptance._error(found, expected) == pytest.approx(0.01)
    found["gradients"]["b"] = jnp.array([0.0, 0.1])
    assert acceptance._error(found, expected) == pytest.approx(0.1)
    found["gradients"]["b"] = np.array([0.0, math.nan])
    assert not acceptance._check("x", found, expected, 1.0)["passed"]


CHECKS = (
    *("heads", "attention kernels", "dropout bits", "packed rows", "the same steps twice"),
    *("a loss that is not finite", "save and restore"),
)
SOME = tuple(row for row in CHECKS if row != "the same steps twice")  # in processes of its own
ONLY_SOME = f"""
import sys
from benchmarks import acceptance
from benchmarks.acceptance import Acceptance

rows = Acceptance.rows
Acceptance.rows = lambda self: {{name: rows(self)[name] for name in {SOME}}}
sys.exit(acceptance.main(sys.argv[1:]))
"""


def accepted(output, *program):
    """Runs the command in a process with two simulated devices; returns the lines of its rows."""
    command = [sys.executable, *program, "--output", str(output)]
    variables = os.environ | {"JAX_NUM_CPU_DEVICES": "2", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, capture_output=True, text=True, env=variables)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = [line for line in lines_of(output) if "begun" not in line]
    assert not [line for line in lines if line["failed"]]
    assert all("2 x cpu" == line["device"] for line in lines)
    checks = [check for line in lines for check in line.get("checks", ())]
    assert len(checks) > 20 and all(check["passed"] for check in checks)
    return lines


@pytest.mark.slow
@pytest.mark.exhaustive
def test_checks_pass_on_a_cpu(tmp_path):
    lines = accepted(tmp_path / "acceptance", "-c", ONLY_SOME)
    assert {line["row"] for line in lines} == set(SOME)
    assert all(line["checks"] for line in lines)


@pytest.mark.slow
@pytest.mark.exhaustive
def test_the_whole_table_passes_on_a_cpu(tmp_path):
    output = tmp_path / "acceptance"
    for _ in range(2):  # the second call has nothing to do
        names = [line["row"] for line in accepted(output, acceptance.__file__)]
        assert len(names) == len(set(names)) == 19
    shown = data_of((output / PAGE).read_text())["rows"]
    assert [line["row"] for line in shown] == names and not any("left" in line for line in shown)
