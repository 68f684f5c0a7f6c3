"""Changes the state of a run between its steps, or stops the run there."""

import os
import signal

import pytest

from bertjax.base.signals import Interrupted
from bertjax.train.run import Saver
from bertjax.train.step import Program


def after_each_step(patch, function):
    """Calls `function(step)` after each step of a run, its evaluation and its checkpoint."""
    original = Saver.after

    def after(self, state, segment):
        original(self, state, segment)
        function(self.run.step)

    patch.setattr(Saver, "after", after)


def run_until(last, run, patch):
    """Calls `run`, a training run, which gets a SIGTERM after the step `last`."""

    def stop(step):
        if step == last:
            os.kill(os.getpid(), signal.SIGTERM)

    with patch.context() as until_here:
        after_each_step(until_here, stop)
        with pytest.raises(Interrupted):
            run()


def with_states(patch, change):
    """Makes each train step start from `change(number of the step, state)`."""
    original = Program.seeded_step

    def seeded_step(self, phase):
        step = original(self, phase)
        return lambda state, batch: step(change(int(state.step) + 1, state), batch)

    patch.setattr(Program, "seeded_step", seeded_step)
