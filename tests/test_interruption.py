"""Tests for `bertjax.interruption`: signals that raise, and signals that wait."""

import os
import signal

import pytest

from bertjax.interruption import Interrupted, signals_deferred, signals_raise


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_deferred_signal_is_handled_at_the_end(number):
    # A process in the background of a shell inherits that SIGINT is ignored.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    finished = False
    with signals_raise(), pytest.raises(KeyboardInterrupt):
        with signals_deferred():
            os.kill(os.getpid(), number)
            finished = True
    signal.signal(signal.SIGINT, before)
    assert finished


def test_a_second_signal_is_handled_at_once():
    handlers = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)]
    reached = False
    with signals_raise(), pytest.raises(Interrupted, match="stopped by SIGHUP$"):
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
