"""Worker processes that convert chunks of documents to shards, with few chunks in memory."""

import contextlib
import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool

from bertjax.data.preparation.chunks import Chunk, ChunkPreparer, ChunkSettings
from bertjax.data.storage import read_locally
from bertjax.tokenization import TOKENIZER_FILES, load_tokenizer


def available_cores() -> int:
    """Returns the number of cores that this process may use."""
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity else os.cpu_count() or 1


class Workers:
    """Converts chunks to shards: in this process if `processes` is 1, else in `processes` workers.

    At most `processes + 1` submitted chunks are unfinished at any time, so the memory for chunks
    does not grow with the size of the input.

    Args:
        settings: the settings of the preparation.
        processes: the number of worker processes.
    """

    def __init__(self, settings: ChunkSettings, processes: int):
        self._pending: set[Future] = set()
        self._most_pending = processes + 1
        self._pool = None
        if processes > 1:
            # Workers are not forked, because threads of jax or of the caller may hold locks.
            self._pool = ProcessPoolExecutor(
                processes,
                mp_context=multiprocessing.get_context("spawn"),
                initializer=_start_worker,
                initargs=(settings,),
            )
        else:
            self._preparer = _preparer_of(settings)

    def submit(self, chunk: Chunk) -> None:
        """Submits `chunk` to a worker process; blocks while `processes + 1` chunks are unfinished.

        If `processes` is 1, this process converts `chunk` to shards before `submit` returns. An
        error of an earlier chunk is raised here.

        Raises:
            OSError: a worker process died, for example because the memory did not suffice.
        """
        if self._pool is None:
            with _one_tokenizer_thread():
                self._preparer.prepare(chunk)
            return
        with self._explaining_lost_workers():
            while len(self._pending) >= self._most_pending:
                self._collect()
            with _ctrl_c_blocked():  # submitting starts the workers
                self._pending.add(self._pool.submit(_prepare_in_worker, chunk))

    def finish(self) -> None:
        """Waits until the shards of all submitted chunks are written.

        Raises:
            OSError: a worker process died, for example because the memory did not suffice.
        """
        with self._explaining_lost_workers():
            while self._pending:
                self._collect()

    def _collect(self) -> None:
        done, self._pending = wait(self._pending, return_when=FIRST_COMPLETED)
        for future in done:
            future.result()

    @contextlib.contextmanager
    def _explaining_lost_workers(self) -> Iterator[None]:
        try:
            yield
        except BrokenProcessPool as error:
            raise OSError(
                "A worker process died. The worker may have run out of memory, or the calling "
                "script lacks `if __name__ == '__main__':`. Run the same command again to "
                "continue, with a smaller --num_processes if memory is short."
            ) from error

    def __enter__(self) -> "Workers":
        return self

    def __exit__(self, *_: object) -> None:
        if self._pool is not None:
            # Running chunks are finished and kept.
            self._pool.shutdown(wait=True, cancel_futures=True)


@contextlib.contextmanager
def _ctrl_c_blocked() -> Iterator[None]:
    """Blocks SIGINT in this thread and in all processes that are started in the `with` block.

    A new process inherits the signal mask of this thread, so Ctrl-C does not interrupt a worker.
    """
    if not hasattr(signal, "pthread_sigmask"):  # Windows
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


_preparer: ChunkPreparer | None = None


def _start_worker(settings: ChunkSettings) -> None:
    global _preparer
    # Ctrl-C reaches all processes of a terminal, but workers are to finish their chunk.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    threading.Thread(target=_end_with_parent, daemon=True).start()
    _preparer = _preparer_of(settings)


def _preparer_of(settings: ChunkSettings) -> ChunkPreparer:
    with read_locally(settings.output, TOKENIZER_FILES) as directory:
        return ChunkPreparer(settings, load_tokenizer(directory))


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _prepare_in_worker(chunk: Chunk) -> None:
    assert _preparer is not None
    _preparer.prepare(chunk)


@contextlib.contextmanager
def _one_tokenizer_thread() -> Iterator[None]:
    name = "TOKENIZERS_PARALLELISM"
    before = os.environ.get(name)
    os.environ[name] = "false"
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before
