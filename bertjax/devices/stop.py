"""Stop signals: SIGINT, SIGTERM or SIGHUP on a host makes all hosts save and stop together."""

import functools
import os
import signal
import threading
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from bertjax.base.signals import STOPPED, Interrupted, signal_name, stop_signals
from bertjax.devices.host_watch import HostWatch

# The number of calls of `StopSignal` after which the result of a call is read. By then the device
# has computed the result, so that no host waits for it.
READ_AFTER = 2
# The run looks at a signal within this time, unless it starts or compiles, and Python handles one.
GRACE_SECONDS = 2.0


class Saved(Protocol):
    """What knows the step of the newest complete checkpoint; 0: none, None: it changes now."""

    saved_step: int | None


class StopSignal:
    """A context in which a first signal is a request to stop, and a second signal ends the process.

    Every host must call the `StopSignal` equally often, at the same points of the program; each
    call tells the other hosts whether this host got a signal. All hosts therefore stop after the
    same step. A request to stop is never lost, because every call after the signal sends it again.

    `saved.saved_step` is the step of the newest complete checkpoint. If it is the last step, a
    signal ends the run within seconds: by itself, or by `Interrupted` after `GRACE_SECONDS`; during
    compilation, the process ends later. `watch` tells the other hosts if this process ends at once.

    `received` is whether this process got a signal, `agreed` whether all hosts have agreed to stop,
    and `step` the number of training steps that are done.
    """

    def __init__(self, saved: Saved, watch: HostWatch) -> None:
        self.received = self.agreed = False
        self._saved, self._host_watch, self.step = saved, watch, 0
        self._unread: list[jax.Array] = []
        self._over, self._is_overdue = threading.Event(), False

    @property
    def nothing_to_lose(self) -> bool:
        """Whether all finished training steps are saved in a checkpoint."""
        return self._saved.saved_step == self.step

    def __call__(self) -> bool:
        """Returns whether to stop now.

        With several hosts, the result becomes True on all hosts at the same call, a few calls after
        one of them got a signal.
        """
        if jax.process_count() == 1:
            self.agreed = self.received
            return self.agreed
        self._unread.append(_any_host(self.received))
        while len(self._unread) > READ_AFTER:
            self.agreed |= bool(self._unread.pop(0))
        return self.agreed

    def agree(self) -> bool:
        """Returns whether any host has got a signal; waits until every host has called `agree`."""
        self()
        while self._unread:
            self.agreed |= bool(self._unread.pop(0))
        return self.agreed

    def _receive(self, number: int, frame: Any) -> None:
        # A first signal sets a flag and raises nothing: Python would drop an exception that is
        # raised in a callback, and threads of XLA, Orbax and Grain would not survive others.
        del frame
        if self._is_overdue:  # `_watch` has sent the signal again
            self._is_overdue = False
            if self.nothing_to_lose:
                raise Interrupted(self._stopped_by(number))
            return
        name = signal_name(number)
        if self.received:
            raise Interrupted(f"stopped by a second signal ({name}) without saving a checkpoint")
        self.received = True
        what = "stopping" if self.nothing_to_lose else "saving a checkpoint, then stopping"
        # This does not call print, since the signal may have interrupted a call of print.
        os.write(2, f"{name}: {what}\n".encode())

    def _stopped_by(self, number: int) -> str:
        saved = "no training step was done yet, so there was nothing to save"
        if self.step:
            saved = f"everything up to step {self.step:,} is saved"
        return f"stopped by {signal_name(number)} ({saved})"

    def _watch(self, pipe: int) -> None:
        """Ends the run if a signal, read from `pipe`, arrives while `nothing_to_lose` is True.

        If the run goes on, the signal is sent again, to be raised as `Interrupted`; if the main
        thread does not handle that either, since it compiles, the process is ended.
        """
        while not self._over.is_set():
            number = os.read(pipe, 1)
            if not number or self._over.wait(GRACE_SECONDS):
                break
            if not self.nothing_to_lose or number[0] not in self._before:
                continue
            if jax.process_count() == 1 and not self._is_overdue:
                self._is_overdue = True
                # To the main thread, which wakes up if it sleeps.
                signal.pthread_kill(threading.main_thread().ident or 0, number[0])
            else:
                text = self._stopped_by(number[0])
                self._host_watch.announce(text)
                os.write(2, f"{text}; run the same command again to resume\n".encode())
                os._exit(STOPPED)
        os.close(pipe)

    def __enter__(self) -> "StopSignal":
        self._before: dict[int, Any] = {
            number: signal.signal(number, self._receive) for number in stop_signals()
        }
        if not self._before:
            return self
        reader, self._writer = os.pipe()
        os.set_blocking(self._writer, False)
        self._fd_before = signal.set_wakeup_fd(self._writer, warn_on_full_buffer=False)
        threading.Thread(target=self._watch, args=(reader,), daemon=True).start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._over.set()
        if not self._before:
            return
        signal.set_wakeup_fd(self._fd_before)
        os.close(self._writer)
        for number, handler in self._before.items():
            signal.signal(number, handler)


def _any_host(flag: bool) -> jax.Array:
    """Starts to compute whether `flag` is True on any host; returns the result as a jax scalar."""
    hosts, maximum = _maximum_over_hosts()
    flags = jax.make_array_from_process_local_data(hosts, np.array([flag]))
    return maximum(flags).addressable_data(0)


@functools.cache
def _maximum_over_hosts() -> tuple[NamedSharding, Any]:
    first = {device.process_index: device for device in reversed(jax.devices())}
    mesh = Mesh(np.array([first[process] for process in sorted(first)]), ("hosts",))
    return NamedSharding(mesh, P("hosts")), jax.jit(jnp.any, out_shardings=NamedSharding(mesh, P()))
