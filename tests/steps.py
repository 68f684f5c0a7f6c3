"""Changes the state of a run between its steps, or stops the run there."""

import os
import signal

import jax
import jax.numpy as jnp
import pytest

from bertjax.base.signals import Interrupted
from bertjax.devices import sharding
from bertjax.train.program import Program
from bertjax.train.run import Saver
from bertjax.train.step import DropoutKey, Steps


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


def gradients_of(loss_fn, objective, params, batch, mesh, microbatches):
    """Loss, sums and gradients of a batch, computed as a train step computes them."""
    steps = Steps(loss_fn, objective.weights, None, None, mesh, accumulation_steps=microbatches)
    within = sharding.within(mesh, jax.jit(steps._gradients))
    placed = jax.device_put(batch, sharding.batch_sharding(mesh))
    dropout = DropoutKey(jax.random.key(0), jnp.arange(len(batch["input_ids"])))
    return jax.device_get(within((params, {}, None), placed, objective.weights(batch), dropout))
