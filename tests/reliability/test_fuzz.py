"""Mutated, damaged and hostile files are read, or refused by one line that names them."""

import os

import pytest

from tests.programs import fuzz
from tests.programs.readers import READERS

# Readers that build a model take a tenth of a second per input.
FAST = [name for name, reader in READERS.items() if reader.weight > 3]
SEED, INPUTS = int(os.environ.get("BERTJAX_FUZZ_SEED", "0")), 6


@pytest.fixture(scope="module")
def reports(tmp_path_factory):
    reports = []
    for name in FAST:
        folder = tmp_path_factory.mktemp("fuzz") / "reader"
        folder.mkdir()
        fuzzer = fuzz.Fuzzer(READERS[name], folder)
        for index in range(INPUTS):
            fuzzer.run(SEED, index)
        reports.append(fuzzer.report)
    return reports


def test_every_reader_reads_or_refuses_in_one_line(reports):
    wrong = [example for report in reports for example in report.examples.values()]
    assert not wrong, f"{fuzz.table(reports)}\n" + "\n".join(wrong)
    for report in reports:
        assert report.accepted + report.refused == report.inputs == INPUTS
    assert sum(report.refused for report in reports) > len(reports)
    assert sum(report.accepted for report in reports) > len(reports)


def test_the_fuzzer_sees_what_is_wrong(tmp_path):
    """The counts of the table are not zero by mistake."""

    def read(path):
        content = path.read_bytes()
        if len(content) < 50:
            raise KeyError("traceback")
        if content[:1] != b"{":
            raise ValueError("no file is named here")
        if content[-1:] == b"\n":
            raise ValueError(f"{path} {'x' * 400}")
        (tmp_path.parent / "outside").write_bytes(b"")
        os.system("true")

    whole = [b"{" + b" " * 100, b"{" + b" " * 100 + b"\n", b"x" * 100, b""]
    reader = fuzz.Reader(name="bad", file="a", seeds=lambda: whole, read=read)
    fuzzer = fuzz.Fuzzer(reader, tmp_path)
    for index in range(4):
        fuzzer.run(0, index)
    problems = fuzzer.report.problems
    assert {k: problems[k] for k in ("traceback", "nameless", "long")} == {
        "traceback": 1,
        "nameless": 1,
        "long": 1,
    }
    assert problems["forbidden"] == 2


def test_inputs_depend_on_the_seed_only():
    reader = READERS["nested"]
    seeds = reader.seeds()
    made = [[fuzz.make_input(reader, seeds, 1, i) for i in range(30)] for _ in range(2)]
    assert made[0] == made[1]
    assert made[0] != [fuzz.make_input(reader, seeds, 2, i) for i in range(30)]


@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.parametrize("name", READERS)
def test_many_inputs_of_every_reader_within_a_gigabyte_and_20_seconds(name):
    share = fuzz.shares(int(os.environ.get("BERTJAX_FUZZ_INPUTS", "20000")), list(READERS))
    report = fuzz.fuzz(name, share[name], SEED)
    assert not report.problems.total(), list(report.examples.values())
    assert report.inputs == report.accepted + report.refused
