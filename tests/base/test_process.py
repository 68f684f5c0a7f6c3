"""What a command settles for its process: streams, the width of texts, and its environment."""

import errno
import os
import subprocess
import sys

import pytest

from bertjax.base import process, signals
from bertjax.base.files import cache_folder

FULL = OSError(errno.ENOSPC, "No space left on device")


def shell(line, **env):
    """Runs a line of the shell in which PYTHON stands for this Python."""
    line = line.replace("PYTHON", sys.executable)
    return subprocess.run(
        line, shell=True, capture_output=True, text=True, timeout=120, env=os.environ | env
    )


class Full:
    """A standard stream whose disk is full."""

    def write(self, text):
        raise FULL

    def flush(self):
        raise FULL


@pytest.mark.parametrize("words", ["--version", "--help", "score --help"])
@pytest.mark.parametrize("where, reason", [(">&-", "Errno 9"), (">/dev/full", "Errno 28")])
def test_output_that_nobody_gets_is_an_error_in_one_line(words, where, reason):
    done = shell(f"PYTHON -m bertjax {words} {where}")
    assert done.returncode == 1 and done.stderr.count("\n") == 1, done.stderr
    assert done.stderr.startswith("error: Standard output could not be written") and (
        reason in done.stderr
    )


@pytest.mark.parametrize("where", ["2>&-", "2>/dev/full", "<&- >&- 2>&-"])
def test_errors_that_nobody_reads_change_no_status(where):
    assert shell(f"PYTHON -m bertjax score --nonsense {where}").returncode == 2


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_no_file_gets_the_number_of_a_closed_stream(closed, tmp_path):
    code = "from bertjax.base import process; process.settle(); import sys, subprocess;"
    code += f"file = open({str(tmp_path / 'file')!r}, 'w'); print('text'); "
    # A child has the three streams as well.
    code += "child = 'import os; [os.fstat(n) for n in range(3)]';"
    code += "subprocess.run([sys.executable, '-c', child], check=True);"
    code += "file.write(str(file.fileno()))"
    assert shell(f'PYTHON -c "{code}" {closed}').returncode == 0
    assert int((tmp_path / "file").read_text()) > 2


def test_a_log_that_is_lost_is_a_warning_after_the_work(monkeypatch, capsys):
    monkeypatch.setattr(sys, "stdout", process._Output(Full()))
    done = []
    assert signals.run_reporting_errors(lambda: done.append(print("step 1")), trains=True) == 0
    assert done and capsys.readouterr().err.startswith("warning: Standard output could not be")
    assert signals.run_reporting_errors(lambda: print("step 1")) == 1


def test_a_log_that_was_closed_on_purpose_is_no_warning(capsys, monkeypatch):
    number = os.open(os.devnull, os.O_RDONLY)  # as after >&-
    monkeypatch.setattr(sys, "stdout", process._Output(open(number, "w", closefd=False)))
    assert signals.run_reporting_errors(lambda: print("step 1"), trains=True) == 0
    assert isinstance(sys.stdout.lost, OSError)
    os.close(number)
    assert capsys.readouterr().err == ""


def test_a_command_that_prints_its_result_ends_at_once(monkeypatch):
    monkeypatch.setattr(sys, "stdout", process._Output(Full()))
    process.need_output()
    with pytest.raises(OSError, match="could not be written .*: make room, or send it"):
        print("result")


def test_a_reader_that_has_ended_is_not_a_full_disk():
    line = "PYTHON -m bertjax --help | true; echo ${PIPESTATUS[0]}"
    done = subprocess.run(
        ["bash", "-c", line.replace("PYTHON", sys.executable)], capture_output=True, text=True
    )
    assert done.stdout.strip() in ("0", "141") and "error" not in done.stderr


@pytest.mark.parametrize("name", process.IGNORED)
def test_variables_that_change_results_are_ignored_and_named(name, monkeypatch, capsys):
    monkeypatch.setenv(name, "value")
    monkeypatch.setattr(process, "_open_streams", lambda: None)
    process.settle()
    assert name not in os.environ
    assert capsys.readouterr().err.startswith(f"note: {name}=value in the environment is ignored")


def test_a_script_keeps_its_environment():
    line = "PYTHON -c 'import bertjax, os; print(os.environ[\"JAX_ENABLE_X64\"])'"
    assert shell(line, JAX_ENABLE_X64="1").stdout == "1\n"


@pytest.mark.parametrize("columns", ["1", "4", "-3"])
def test_help_ends_at_every_width(columns):
    done = shell("timeout 60 PYTHON -m bertjax score --help", COLUMNS=columns)
    assert done.returncode == 0 and "gold" in done.stdout


@pytest.mark.parametrize("term", ["dumb", ""])
def test_help_needs_no_terminal(term):
    done = shell("PYTHON -m bertjax score --help </dev/null", TERM=term)
    assert done.returncode == 0 and "\x1b" not in done.stdout


def nameless(monkeypatch):
    def home():
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr("pathlib.Path.home", home)


def test_a_user_without_a_home_folder_is_told_what_to_set(monkeypatch, tmp_path):
    nameless(monkeypatch)
    with pytest.raises(OSError, match="neither a name nor a home folder: set .* HOME, or XDG_CACH"):
        cache_folder()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder() == tmp_path / "bertjax"


def test_too_little_address_space_is_refused_before_threads_wait_for_it(monkeypatch):
    resource = pytest.importorskip("resource")
    for limit in (2_000_000_000, 1_000_000_000):
        monkeypatch.setattr(resource, "getrlimit", lambda _, limit=limit: (limit, limit))
        with pytest.raises(
            OSError, match=r"reserve [12],000,000,000 bytes .*ulimit -v.* needs 3,0"
        ):
            process.check_address_space()
    for limit in (resource.RLIM_INFINITY, 1 << 40):
        monkeypatch.setattr(resource, "getrlimit", lambda _, limit=limit: (limit, limit))
        process.check_address_space()


def test_a_system_that_starts_no_more_threads_is_an_error_in_one_line(capsys):
    def run():
        raise RuntimeError("can't start new thread")

    assert signals.run_reporting_errors(run) == 1
    assert "error: The system starts no more threads" in capsys.readouterr().err
