"""The models of a run that are pushed to the Hugging Face Hub while it goes on."""

import shutil
import threading
from pathlib import Path

from bertjax.base.workdir_files import PENDING
from bertjax.cloud.hub import push_folder


class HubPushes:
    """The models to be pushed to `repository`, OWNER/NAME on the Hub: a folder `step-N` of each.

    Models that an earlier process of the run could not push are pushed, too.
    """

    def __init__(self, workdir: Path, repository: str):
        self._folder, self._repository = workdir / PENDING, repository
        self._thread: threading.Thread | None = None

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

    def _push_all(self) -> None:
        # Others are folders that are still being written, or were when a process was killed.
        names = (path.name[5:] for path in self._folder.glob("step-*"))
        for folder in map(self.folder_of, sorted(int(name) for name in names if name.isdigit())):
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
