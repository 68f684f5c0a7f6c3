"""Directories, workdirs, cards and tables of strangers do no harm."""

import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.hub_server import running
from tests.programs.strangers import CASES, SECRET, Harness, _Watch, table

REPOSITORY = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def harness(tmp_path_factory):
    with running() as hub:
        yield Harness(tmp_path_factory.mktemp("strangers"), hub)


@pytest.mark.slow
def test_the_report_of_a_run_of_a_stranger_does_no_harm(harness):
    assert harness("escapes", "files of a run").problems == []


@pytest.mark.slow
@pytest.mark.exhaustive
def test_no_stranger_does_harm(harness):
    outcomes = {(kind, name): harness(kind, name) for kind in CASES for name in CASES[kind]}
    print(f"\n{table(outcomes)}")
    assert len(outcomes) >= 60
    wrong = {key: one.problems for key, one in outcomes.items() if one.problems}
    assert not wrong
    links = [one for (kind, _), one in outcomes.items() if kind.startswith("links in")]
    assert all(one.status == 1 for one in links)


def test_the_watch_sees_each_access_of_another_process(tmp_path):
    (tmp_path / "token").write_text(SECRET)
    watch = _Watch(tmp_path)
    for program, reads, writes in (
        ("pass", False, False),
        ("os.stat(f)", False, False),
        ("open(f).read()", True, False),
        ("os.listdir(os.path.dirname(f))", True, False),
        ("open(f, 'a').write('x')", True, True),
        ("os.utime(f)", False, True),
        ("open(f + '1', 'w')", True, True),
        ("os.remove(f)", False, True),
    ):
        code = f"import os; f = {str(tmp_path / 'token')!r}; {program}"
        subprocess.run([sys.executable, "-c", code], check=True)
        time.sleep(0.01)
        seen = tuple(map(bool, watch.counts()))
        assert seen == (reads, writes), program
    watch.close()


def test_the_page_on_security_names_tests_that_exist():
    named = set(re.findall(r"`(test_\w+)`", (REPOSITORY / "SECURITY.md").read_text()))
    tests = "".join(path.read_text() for path in (REPOSITORY / "tests").rglob("test_*.py"))
    assert len(named) > 15
    assert {name for name in named if f"def {name}(" not in tests} == set()
