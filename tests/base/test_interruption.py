"""Tests for `bertjax.base.signals`: signals that raise, and signals that wait."""

import gc
import os
import signal
import time
import weakref
from types import SimpleNamespace

import pytest

from bertjax.base.signals import Interrupted, StopSignal, signals_deferred, signals_raise
from bertjax.devices.activity import Clock
from bertjax.devices.host_watch import HostWatch


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
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_whose_exception_python_drops_is_not_lost(call, number):
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


def test_a_signal_whose_exception_other_code_catches_is_raised_at_the_end():
    finished = False
    with pytest.raises(Interrupted, match="stopped by SIGTERM$"), signals_raise():
        try:
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(5)
        except BaseException:
            finished = True
    assert finished


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
def test_a_signal_that_was_ignored_before_remains_ignored(number):
    before = signal.signal(number, signal.SIG_IGN)  # as by nohup, or in the background of a script
    try:
        with (
            signals_raise("SIGINT"),
            StopSignal(SimpleNamespace(saved_step=0), HostWatch(Clock())) as stop,
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
