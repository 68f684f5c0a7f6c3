"""Pushes of a run to the Hugging Face Hub: models of its steps (--push_every), and its last one."""

import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bertjax.base.workdir_files import MODEL, PENDING
from bertjax.cloud.hub import push_folder
from bertjax.devices import hosts
from bertjax.devices.activity import SAVING, Clock
from bertjax.record.events import Exported, Reader, StepDone


class HubPushes(Reader):
    """Pushes models to a repository: that of step N to the branch step-N, the last one to main.

    Models that an earlier process of the run could not push are pushed, too.

    Args:
        workdir: the local folder of the run.
        repository: OWNER/NAME on the Hub.
        every: the number of steps between two models; 0: only the last model is pushed.
        write_model: a function (state, step, folder) that writes a model; all hosts call it.
        clock: counts the time of writing and waiting.
    """

    on_all_hosts = True

    def __init__(
        self,
        workdir: Path,
        repository: str,
        every: int,
        write_model: Callable[[Any, int, Path], None],
        clock: Clock,
    ):
        self._folder = workdir / PENDING
        self._model = workdir / MODEL
        self._repository = repository
        self._every = every
        self._write_model = write_model
        self._clock = clock
        self._thread: threading.Thread | None = None

    def read(self, event: Any) -> None:
        match event:
            case StepDone(step=step, state=state) if self._every and step % self._every == 0:
                with self._clock.doing(SAVING):
                    self._write_model(state, step, self.folder_of(step))
                    hosts.on_first(self.start)
            case Exported():
                with self._clock.doing(SAVING):
                    hosts.on_first_patiently(self._finish_with_model)

    def folder_of(self, step: int) -> Path:
        """Returns the folder to which the model of a step is to be written before `start`."""
        return self._folder / f"step-{step}"

    def start(self) -> None:
        """Starts to push all pending models in a thread, unless it does so already."""
        if self._thread is None or not self._thread.is_alive():
            self._thread = threading.Thread(target=self._push_all, daemon=True)
            self._thread.start()

    def finish(self) -> None:
        """Waits for pushes in progress, and tries those that have failed once more.

        Models that cannot be pushed now are named in a warning, and remain in the workdir.
        """
        if self._thread is not None:
            self._thread.join()
        self._push_all()

    def _finish_with_model(self) -> None:
        self.finish()
        push_folder(self._model, self._repository)

    def _push_all(self) -> None:
        steps = []
        for path in self._folder.glob("step-*"):
            # Others are still being written, or were when a process was killed.
            if (name := path.name.removeprefix("step-")).isdigit():
                steps.append(int(name))
        for folder in map(self.folder_of, sorted(steps)):
            try:
                push_folder(folder, self._repository, branch=folder.name)
            except OSError as error:
                print(
                    f"warning: {folder.name} is not pushed ({error}). It is kept in {folder} and "
                    "tried again later.",
                    flush=True,
                )
                return
            shutil.rmtree(folder)
