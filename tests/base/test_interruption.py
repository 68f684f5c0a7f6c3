"""Tests for `bertjax.base.signals`: signals that raise, and signals that wait."""

import gc
import importlib
import os
import signal
import subprocess
import sys
import time
import weakref
from types import SimpleNamespace

import pytest

from bertjax.base import signals
from bertjax.base.signals import (
    STOPPED,
    Interrupted,
    StopSignal,
    signals_deferred,
    signals_raise,
)
from bertjax.devices.activity import Clock
from bertjax.devices.host_watch import HostWatch
from tests.cases import others_weekly


def by_collector(callback):
    """Calls `callback` as a callback of the garbage collector, whose exceptions Python drops."""
    gc.callbacks.append(callback)
    gc.collect(0)
    gc.callbacks.remove(callback)


def by_reference(callback):
    """Calls `callback` as the callback of a weak reference, whose exceptions Python drops."""

    class Target:
        pass

    target = Target()
    reference = weakref.ref(target, callback)
    del target
    assert reference() is None


@pytest.mark.parametrize("call", [by_collector, by_reference])
@pytest.mark.parametrize(
    "number", others_weekly((signal.SIGTERM, signal.SIGINT, signal.SIGHUP), signal.SIGTERM)
)
def test_a_signal_whose_exception_python_drops_is_not_lost(call, number, monkeypatch, capsys):
    monkeypatch.setattr(signals, "AGAIN_SECONDS", 0.02)
    for _ in range(10):
        sent = []

        def send(*_, sent=sent):
            if not sent:
                sent.append(number)
                os.kill(os.getpid(), number)
                time.sleep(0.001)  # the handler raises here

        with pytest.raises(KeyboardInterrupt), signals_raise():
            call(send)
            assert sent
            time.sleep(5)
    assert "Traceback" not in capsys.readouterr().err


@pytest.mark.slow
def test_a_signal_is_not_sent_again_after_the_context_that_raises_it():
    script = """
import os, signal, time
from bertjax.base.signals import Interrupted, signals_raise

send = signal.pthread_kill

def send_late(thread, number):  # as if another thread had its turn before
    time.sleep(0.5)
    send(thread, number)

signal.pthread_kill = send_late
try:
    with signals_raise():
        try:
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(1)
        except Interrupted:
            pass
        time.sleep(0.3)
except Interrupted:
    time.sleep(1)
    print("ended in order")
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "ended in order\n"), done.stderr


def test_a_signal_whose_exception_other_code_catches_is_raised_at_the_end():
    finished = False
    with pytest.raises(Interrupted, match="stopped by SIGTERM$"), signals_raise():
        try:
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(5)
        except BaseException:
            finished = True
    assert finished


def test_a_signal_whose_exception_other_code_drops_is_sent_again(monkeypatch):
    monkeypatch.setattr(signals, "AGAIN_SECONDS", 0.05)
    dropped = 0
    with pytest.raises(Interrupted), signals_raise():
        for _ in range(500):
            try:
                if not dropped:
                    os.kill(os.getpid(), signal.SIGTERM)
                time.sleep(0.01)
            except KeyboardInterrupt:
                dropped += 1
                if dropped == 3:
                    raise
    assert dropped == 3


def test_a_signal_is_not_sent_again_while_its_exception_closes_files(monkeypatch):
    monkeypatch.setattr(signals, "AGAIN_SECONDS", 0.02)
    closed = []
    with pytest.raises(Interrupted), signals_raise():
        try:
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(5)
        finally:
            try:
                raise FileNotFoundError
            except FileNotFoundError:
                time.sleep(0.1)
                closed.append("file")
    assert closed == ["file"]


def test_a_signal_waits_for_the_end_of_an_import(tmp_path, monkeypatch):
    code = "import os, time\nos.kill(os.getpid(), 15)\ntime.sleep(0.3)\nis_whole = True"
    (tmp_path / "slow_module.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(Interrupted, match="stopped by SIGTERM$"), signals_raise():
        importlib.import_module("slow_module")
        time.sleep(5)
    assert sys.modules.pop("slow_module").is_whole


WAITING = """
import hashlib, os, signal, sys, threading
from bertjax.base import signals
signals.END_SECONDS = 0.3
signal.signal(signal.SIGINT, signal.default_int_handler)
def run():
    threading.Timer(0.05, os.kill, (os.getpid(), int(sys.argv[1]))).start()
    try:
        hashlib.pbkdf2_hmac("sha256", b"", b"", 10**9)  # Python handles no signal meanwhile
    finally:
        print("not reached")
signals.leave(signals.run_reporting_errors(run))
"""


@pytest.mark.parametrize("number, status", [(signal.SIGTERM, STOPPED), (signal.SIGINT, 130)])
def test_a_signal_ends_a_command_that_waits_in_other_code(number, status):
    command = [sys.executable, "-c", WAITING, str(int(number))]
    done = subprocess.run(command, capture_output=True, text=True, timeout=20)
    assert (done.returncode, done.stdout) == (status, "")
    assert done.stderr.startswith(f"stopped by {signals.signal_name(number)}; run the same")


@pytest.mark.slow
def test_what_an_interrupt_holds_is_not_destroyed_before_the_end(monkeypatch):
    monkeypatch.setattr(sys, "last_value", None, raising=False)
    destroyed = []

    class HalfMade:
        def __del__(self):
            destroyed.append("XLA would crash")

    def run():
        half_made = HalfMade()
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(5)
        return half_made

    assert signals.run_reporting_errors(run) == STOPPED
    gc.collect()
    assert not destroyed


def test_an_error_after_a_signal_is_the_stop():
    with pytest.raises(Interrupted, match="stopped by SIGHUP$"), signals_raise():
        try:
            os.kill(os.getpid(), signal.SIGHUP)
            time.sleep(5)
        except KeyboardInterrupt:
            raise ImportError("a module in C was not initialised") from None


# Sends signals when a command imports a module.
SITE = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in the background
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # ignored under nohup
class Finder:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name == "bertjax.base.command_line":
            assert not {"jax", "numpy", "tokenizers"} & {*sys.modules}
            for number in os.environ["SIGNALS"].split():
                os.kill(os.getpid(), int(number))
sys.meta_path.insert(0, Finder)
"""
SCRIPT = "import sys; from bertjax.__main__ import command; sys.exit(command())"


@pytest.mark.parametrize(
    "words, numbers, status",
    [
        ("-m bertjax.pretrain", [signal.SIGTERM], STOPPED),
        ("-m bertjax.finetune", [signal.SIGINT], STOPPED),
        ("-m bertjax pretrain", [signal.SIGHUP], STOPPED),
        ("-Wignore -mbertjax.convert", [signal.SIGINT], 128 + signal.SIGINT),
        ("bin/bertjax convert", [signal.SIGTERM], STOPPED),
        ("bin/bertjax predict", [signal.SIGINT], 128 + signal.SIGINT),
        ("bin/bertjax predict", [signal.SIGINT, signal.SIGINT], STOPPED),
        # These are other programs, which bertjax leaves alone.
        ("-m other", [signal.SIGTERM], -signal.SIGTERM),
        ("other.py bertjax", [signal.SIGHUP], -signal.SIGHUP),
    ],
)
def test_a_signal_while_a_command_imports_its_modules_is_a_stop(tmp_path, words, numbers, status):
    (tmp_path / "sitecustomize.py").write_text(SITE)
    (tmp_path / "other.py").write_text("import bertjax.pretrain")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "bertjax").write_text(SCRIPT)
    here = os.pathsep.join([str(tmp_path), *filter(None, sys.path)])
    environment = os.environ | {
        "PYTHONPATH": here,
        "SIGNALS": " ".join(map(str, map(int, numbers))),
    }
    done = subprocess.run(
        [sys.executable, *words.split()],
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.returncode == status, done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
def test_a_signal_that_was_ignored_before_remains_ignored(number):
    before = signal.signal(number, signal.SIG_IGN)  # as by nohup, or in the background of a script
    try:
        with (
            signals_raise(trains=True),
            StopSignal(SimpleNamespace(saved_step=0), HostWatch(Clock()), Clock()) as stop,
            signals_deferred(),
        ):
            os.kill(os.getpid(), number)
            assert signal.getsignal(number) is signal.SIG_IGN
        assert not stop.received
    finally:
        signal.signal(number, before)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_deferred_signal_is_handled_at_the_end(number):
    finished = False
    with pytest.raises(KeyboardInterrupt), signals_raise():
        with signals_deferred():
            os.kill(os.getpid(), number)
            finished = True
    assert finished


def test_a_second_signal_is_handled_at_once():
    handlers = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)]
    reached = False
    with pytest.raises(Interrupted, match="stopped by SIGHUP$"), signals_raise():
        with signals_deferred():
            os.kill(os.getpid(), signal.SIGTERM)
            os.kill(os.getpid(), signal.SIGHUP)
            reached = True
    assert not reached
    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)] == handlers


def test_an_error_is_not_replaced_by_a_signal():
    with signals_raise(), pytest.raises(OSError, match="disk"), signals_deferred():
        os.kill(os.getpid(), signal.SIGTERM)
        raise OSError("disk")
