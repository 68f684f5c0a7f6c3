"""Rollback: resumes a run from an earlier checkpoint without the batches that led to bad steps.

A step is bad if its loss or gradient is not finite or a spike; its update is then skipped.
PaLM was trained with rollbacks (Chowdhery et al. 2022, section 5.1): after a spike of the loss,
training was restarted from a checkpoint about 100 steps earlier, and the batches around the spike
were skipped.
"""

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bertjax.base.checksums import newest_whole_step, set_aside, steps_in
from bertjax.base.files import read_json, write_json
from bertjax.config import Phase
from bertjax.devices import hosts

# If a run has been rolled back this often, its problem is not caused by a few batches.
MAX_ROLLBACKS = 20


class RolledBack(Exception):
    """Raised after a return of the run to an earlier step, from which a new `Run` must resume."""


class Rollbacks:
    """The rollbacks of a run, which are stored in `rollbacks.json` in the workdir.

    After too many consecutive bad steps (whose updates were skipped), a rollback returns the run to
    an earlier checkpoint and leaves out the batches from there to the last bad step.

    Attributes:
        count: the number of rollbacks so far.
        records: one dictionary for each rollback and each phase of which the rollback left out
            batches. A rollback replaces the dictionaries of all earlier rollbacks to the same or a
            later step. The keys of each dictionary are:
            to_step: the step of the checkpoint that the run returned to (0: the start).
            from_step: the last of the consecutive bad steps.
            phase: the index of the phase whose batches are left out.
            batches: the number of batches of phase `phase` that are left out when training
                continues from `to_step`.
    """

    def __init__(self, workdir: Path):
        self._file = workdir / "rollbacks.json"
        content: dict[str, Any] = {"count": 0, "rollbacks": []}
        if self._file.is_file():
            content = read_json(self._file, "restore it from a copy, or choose another --workdir")
        self.count: int = content["count"]
        self.records: list[dict[str, int]] = content["rollbacks"]

    def left_out(self, phase: int, step: int) -> int:
        """Returns how many batches of a phase the rollbacks to `step` or earlier steps left out.

        `phase` is the index of the phase.
        """
        return sum(
            r["batches"] for r in self.records if r["phase"] == phase and r["to_step"] <= step
        )

    def roll_back(
        self, checkpoints: Path, phases: Sequence[Phase], first_bad: int, last_bad: int, steps: int
    ) -> int | None:
        """Rolls the run back to the last checkpoint at least `steps` steps before `first_bad`.

        Newer checkpoints are moved to the folder `rolled_back` in the workdir. Every host must call
        this method; only the first host changes files.

        Args:
            checkpoints: the folder of the checkpoints.
            phases: the phases of the run.
            first_bad: the first of the consecutive steps whose updates were skipped.
            last_bad: the last of these steps.
            steps: the minimum number of steps between the checkpoint and `first_bad`.

        Returns:
            The step of the checkpoint that the run returns to, where 0 is the start of the run;
            None, and nothing is changed, if the run has already been rolled back `MAX_ROLLBACKS`
            times.
        """
        if self.count >= MAX_ROLLBACKS:
            return None
        target = max((s for s in steps_in(checkpoints) if s <= first_bad - steps), default=0)
        left_out = self._leave_out(phases, last_bad, target)
        self.count += 1

        def write() -> None:
            write_json(self._file, {"count": self.count, "rollbacks": self.records})
            for step in steps_in(checkpoints):
                if step > target:
                    set_aside(checkpoints, step, "rolled_back")

        hosts.on_first(write)
        newest = newest_whole_step(checkpoints)
        hosts.say(
            f"rollback: the run continues from step {newest or 0}, and leaves out "
            f"{left_out} batches, up to and including the batch of step {last_bad}"
        )
        return target

    def _leave_out(self, phases: Sequence[Phase], last_bad: int, target: int) -> int:
        """Adds to `records` the dictionaries of a rollback from step `last_bad` to step `target`.

        They replace the dictionaries of earlier rollbacks to `target` or later steps. In the phase
        of `last_bad`, all batches after step `target` up to the batch of `last_bad` are left out;
        in each other phase with a replaced dictionary, all batches after `target` up to the last
        batch that the replaced dictionary left out.

        Returns:
            The number of batches that are left out of the phase of `last_bad`.
        """
        starts = [0, *itertools.accumulate(phase.num_steps for phase in phases)]

        def next_batch(phase: int, step: int) -> int:
            return max(step - starts[phase], 0) + self.left_out(phase, step)

        bad_phase = max(phase for phase in range(len(phases)) if starts[phase] < last_bad)
        replaced = [r for r in self.records if r["to_step"] >= target]
        first = {r["phase"]: next_batch(r["phase"], r["to_step"]) for r in replaced}
        first[bad_phase] = next_batch(bad_phase, last_bad)
        self.records = [r for r in self.records if r["to_step"] < target]
        added = [
            {
                "to_step": target,
                "from_step": last_bad,
                "phase": phase,
                "batches": batch - next_batch(phase, target),
            }
            for phase, batch in sorted(first.items())
        ]
        self.records += added
        return next(record["batches"] for record in added if record["phase"] == bad_phase)
