"""Bad steps: skipped updates, and rollbacks that leave out the batches that led to them.

A step is bad if its loss or gradient is not finite or a spike; its update is then skipped. After
too many in a row, a run may return to an earlier checkpoint, and go on without the batches that
followed it, as PaLM was trained (Chowdhery et al. 2022, section 5.1).
"""

import dataclasses
import itertools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from bertjax.base.checksums import steps_in
from bertjax.base.files import read_json, write_json
from bertjax.base.workdir_files import ROLLBACKS, ROLLED_BACK
from bertjax.config import Phase, TrainingConfig
from bertjax.devices import activity, hosts
from bertjax.record.events import STEPS_AHEAD, Began, Reader, Skipped, StepDone
from bertjax.train.checkpoint import move_checkpoint


class NotFinite(ValueError):
    """Raised if too many updates in a row were skipped, or arrays to be saved are not finite.

    Attributes:
        first_step: the first of the steps whose updates were skipped; 0 if an array is not finite.
        last_step: the last of these steps; None if an array is not finite.
    """

    on_all_hosts = True  # all hosts see the same numbers

    def __init__(self, message: str, first_step: int = 0, last_step: int | None = None):
        super().__init__(message)
        self.first_step = first_step
        self.last_step = last_step


class BadSteps(Reader):
    """Emits `Skipped` for each skipped update, and raises NotFinite after too many in a row.

    An update is skipped if its loss or gradient is not finite, or a spike.

    The metrics of a step are read up to `STEPS_AHEAD` steps later, when the device has computed it,
    so that the device never waits for the host; before log lines, evaluations and checkpoints, all
    of them are read.

    Args:
        emit: takes the events.
        rows_of_batch: a function (phase, batch) -> (first row, last row), for messages.
        config: its `max_bad_steps` is the number of consecutive skipped updates that end the run;
            0: none do. Its `log_every` is the number of steps between two log lines.
        progress: the JSON values in the checkpoint that the run resumes from.

    Raises:
        NotFinite: in `read`, `max_bad_steps` consecutive updates were skipped.
    """

    on_all_hosts = True

    def __init__(
        self,
        emit: Callable[[Any], None],
        rows_of_batch: Callable[[int, int], tuple[int, int]],
        config: TrainingConfig,
        progress: Mapping[str, Any],
    ):
        self._emit = emit
        self._rows_of_batch = rows_of_batch
        self._config = config
        self._in_a_row: int = progress.get("skipped_in_a_row", 0)
        self._unread: list[StepDone] = []

    def read(self, event: Any) -> None:
        match event:
            case StepDone():
                # Only numbers are kept, since the state must not stay in memory.
                names = ("skipped", "loss", "grad_norm")
                numbers = {name: event.metrics[name] for name in names}
                self._unread.append(dataclasses.replace(event, metrics=numbers, state=None))
                if event.step % self._config.log_every:
                    self._check(STEPS_AHEAD)
                else:
                    self._check()
            case Began(activity.EVALUATING | activity.SAVING):
                self._check()

    def remembered(self) -> dict[str, Any]:
        return {"skipped_in_a_row": self._in_a_row}

    def _check(self, ahead: int = 0) -> None:
        """Waits for all steps so far but the last `ahead`, and checks whether they were skipped."""
        while len(self._unread) > ahead:
            done = self._unread.pop(0)
            if done.metrics["skipped"]:
                self._report(done)
            else:
                self._in_a_row = 0

    def _report(self, done: StepDone) -> None:
        self._in_a_row += 1
        step = done.step
        phase = done.phase
        loss = float(done.metrics["loss"])
        grad_norm = float(done.metrics["grad_norm"])
        first, last = self._rows_of_batch(phase, done.batch)
        facts = {
            "skipped/in_a_row": self._in_a_row,
            "skipped/loss": loss,
            "skipped/grad_norm": grad_norm,
            "skipped/phase": phase,
            "skipped/first_row": first,
            "skipped/last_row": last,
        }
        self._emit(Skipped(step, facts))
        if 0 < self._config.max_bad_steps <= self._in_a_row:
            begin = step - self._in_a_row + 1
            raise NotFinite(
                f"The last {self._in_a_row} updates, steps {begin} to {step}, were skipped. Step "
                f"{step} had loss {loss:.4g}, gradient norm {grad_norm:.4g}, and used rows {first} "
                f"to {last} of phase {phase}. Skipped updates do not change the model, so all "
                "checkpoints are usable. Run the same command again if the machine may have been "
                "at fault. Otherwise, give --rollback_steps 100 to leave out the rows of skipped "
                "updates, start a new run with a lower --optimizer.learning_rate, or raise "
                "--max_bad_steps.",
                begin,
                step,
            )


def check_finite(params: Any, what: str) -> None:
    """Checks that all floating-point numbers in a tree of arrays are finite, on all hosts.

    `what` is the subject of the message, such as "The model of step 40".

    Raises:
        NotFinite: an array contains infinity or NaN; the message names the first such array.
    """
    paths = jax.tree_util.tree_leaves_with_path(params)
    finite = jax.device_get(_are_finite([leaf for _, leaf in paths]))
    bad = [
        jax.tree_util.keystr(path)
        for (path, _), is_fine in zip(paths, finite, strict=True)
        if not is_fine
    ]
    if bad:
        raise NotFinite(
            f"{what} is not written: {len(bad)} of {len(paths)} arrays hold infinite numbers or "
            f"NaN, the first one is {bad[0]}. Earlier checkpoints are complete; run the same "
            "command again to resume from the newest one."
        )


@jax.jit
def _are_finite(arrays: list[jax.Array]) -> list[jax.Array]:
    return [jnp.isfinite(x).all() for x in arrays]


# If a run has been rolled back this often, its problem is not caused by a few batches.
MAX_ROLLBACKS = 20


class Rollbacks:
    """The rollbacks of a run, which are stored in `rollbacks.json` in the workdir.

    A rollback returns the run to an earlier checkpoint and leaves out the batches from there to the
    last bad step.

    Attributes:
        count: the number of rollbacks so far.
        records: a dictionary for each rollback and each phase of which it left out batches; a
            rollback replaces earlier ones to the same or a later step. Keys: to_step,
            the step of the checkpoint (0: the start); from_step, the last bad step; phase, the
            index of the phase; batches, how many of its batches are left out when training goes on
            from to_step.
    """

    def __init__(self, workdir: Path):
        self._file = workdir / ROLLBACKS
        content: dict[str, Any] = {"count": 0, "rollbacks": []}
        if self._file.is_file():
            content = read_json(self._file, "restore it from a copy, or choose another --workdir")
        self.count: int = content["count"]
        self.records: list[dict[str, int]] = content["rollbacks"]

    def left_out(self, phase: int, step: int) -> int:
        """Returns how many batches of a phase rollbacks to `step` or earlier steps left out."""
        return sum(
            r["batches"] for r in self.records if r["phase"] == phase and r["to_step"] <= step
        )

    def targets(self, phase: int) -> list[int]:
        """Returns the steps that rollbacks returned to and left out batches of `phase` after."""
        return [record["to_step"] for record in self.records if record["phase"] == phase]

    def roll_back(
        self, checkpoints: Path, phases: Sequence[Phase], bad: NotFinite, steps: int
    ) -> bool:
        """Rolls the run back to the last checkpoint at least `steps` steps before the bad ones.

        Newer checkpoints are moved to the folder `rolled_back` in the workdir. Every host must call
        this method; only the first host changes files.

        Returns:
            False, and nothing is changed, after `MAX_ROLLBACKS` rollbacks, if `steps` is 0, or if
            no step was bad, but an array is not finite.
        """
        if not steps or bad.last_step is None:
            return False
        hosts.say(f"warning: {bad}")
        if self.count >= MAX_ROLLBACKS:
            return False
        before = [step for step in steps_in(checkpoints) if step <= bad.first_step - steps]
        target = max(before, default=0)
        left_out = self._leave_out(phases, bad.last_step, target)
        self.count += 1

        def write() -> None:
            write_json(self._file, {"count": self.count, "rollbacks": self.records})
            for step in steps_in(checkpoints):
                if step > target:
                    move_checkpoint(checkpoints, step, ROLLED_BACK)

        hosts.on_first(write)
        hosts.say(
            f"rollback: the run continues from step {target}, and leaves out {left_out} batches, "
            f"up to and including the batch of step {bad.last_step}"
        )
        return True

    def _leave_out(self, phases: Sequence[Phase], last_bad: int, target: int) -> int:
        """Adds a rollback to `records`; returns how many batches of the bad step's phase it leaves
        out.

        It replaces earlier rollbacks to `target` or later steps, and leaves out what they left out.
        """
        starts = [0, *itertools.accumulate(phase.num_steps for phase in phases)]

        def next_batch(phase: int, step: int) -> int:
            return max(step - starts[phase], 0) + self.left_out(phase, step)

        bad_phase = max(phase for phase in range(len(phases)) if starts[phase] < last_bad)
        replaced = [r for r in self.records if r["to_step"] >= target]
        first = {r["phase"]: next_batch(r["phase"], r["to_step"]) for r in replaced}
        first[bad_phase] = next_batch(bad_phase, last_bad)
        self.records = [r for r in self.records if r["to_step"] < target]
        batches = {phase: first[phase] - next_batch(phase, target) for phase in sorted(first)}
        for phase, count in batches.items():
            record = {"to_step": target, "from_step": last_bad, "phase": phase, "batches": count}
            self.records.append(record)
        return batches[bad_phase]
