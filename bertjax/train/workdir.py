"""The folder of a run: whose it is, and what lies where.

run.json         the config, and a hash of the data's metadata
tokenizer/       what the data was prepared with
checkpoints/     Orbax
metrics.jsonl, events.out.tfevents.*
model/           the Hugging Face directory
hosts/           marks of hosts that wait for each other
"""

import json
from pathlib import Path
from typing import Any

from bertjax.config import differences
from bertjax.data.chunks import write_whole

# What may differ between a run and its continuation: it changes no update. A teacher may have
# moved, for `teacher_weights` says who it is.
MAY_CHANGE = (
    "data workdir mesh distributed unroll remat log_every eval_every eval_rows save_every "
    "keep_checkpoints reader_threads peak_tflops submission tfds_data_dir teacher "
    "distillation.teacher"
).split()


class Workdir:
    """Paths in the folder of a run, and the claim to it."""

    def __init__(self, path: Path):
        self.path = path
        self.tokenizer = path / "tokenizer"
        self.checkpoints = path / "checkpoints"
        self.model = path / "model"
        self.metrics = path / "metrics.jsonl"
        self.meeting_place = path / "hosts"
        self._run = path / "run.json"

    @property
    def has_checkpoints(self) -> bool:
        """Whether there is a checkpoint that was written whole."""
        return any(entry.name.isdigit() for entry in self.checkpoints.glob("*"))

    def read(self) -> dict[str, Any]:
        """What the run was started with: its config and the hash of its data.

        Raises:
            ValueError: run.json is damaged.
        """
        try:
            return json.loads(self._run.read_text(encoding="utf-8"))
        except ValueError as error:
            raise ValueError(
                f"{self._run} cannot be read ({error}): restore it from a copy, or choose another "
                "--workdir."
            ) from error

    def last_evaluation(self) -> dict[str, Any] | None:
        """The newest line of held-out metrics, None before the first."""
        if not self.metrics.is_file():
            return None
        with self.metrics.open(encoding="utf-8") as lines:
            evaluations = [line for line in lines if '"eval/' in line and line.endswith("\n")]
        return json.loads(evaluations[-1]) if evaluations else None

    def check(self, config: dict[str, Any], data_fingerprint: str | None = None) -> None:
        """Compares the run that is here with a config, and with its data if they are known.

        Raises:
            ValueError: it is the run of another config or data.
        """
        saved = self.read()
        changed = differences(config, saved["config"], ignore=MAY_CHANGE)
        if data_fingerprint not in (None, saved["data_fingerprint"]):
            where = saved["config"].get("data") or saved["config"].get("train")
            changed.append("the data is not what stood in " + (where or "the task's files"))
        if changed:
            raise ValueError(
                f"{self.path} holds a run of another config: {'; '.join(changed)}. Choose another "
                "--workdir, or go on with the old config; --init starts a new run from its model."
            )

    def _holds_something(self) -> bool:
        return any(entry != self.meeting_place for entry in self.path.iterdir())

    def check_shared(self) -> None:
        """Makes sure that this host sees what the first one wrote.

        Raises:
            ValueError: it does not.
        """
        if not self._run.is_file():
            raise ValueError(
                f"{self.path} is empty here, but the first process has claimed it: --workdir must "
                "lie where all hosts see it, on a shared file system."
            )

    def claim(self, config: dict[str, Any], data_fingerprint: str) -> None:
        """Takes the folder for a config, or finds that its run is to go on.

        Without a checkpoint there is nothing to lose, so another config may take it over.

        Raises:
            ValueError: it holds the run of another config or data, or files that are not a run's.
        """
        if self.has_checkpoints and self._run.is_file():
            self.check(config, data_fingerprint)
        elif self.path.exists() and not self._run.is_file() and self._holds_something():
            raise ValueError(
                f"{self.path} is not empty and holds no run: choose another --workdir."
            )
        else:
            self.path.mkdir(parents=True, exist_ok=True)
            content = {"config": config, "data_fingerprint": data_fingerprint}
            write_whole(self._run, json.dumps(content, indent=2) + "\n")
