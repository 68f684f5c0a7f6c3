"""Converts chunks of documents to shards: worker processes of this machine, or Apache Beam.

Beam (extra `beam`) runs on Dataflow, Spark, Flink or locally. An element of its pipeline is the
index i of one of n parts of the data: a worker reads the whole input and prepares the chunks i,
i + n, i + 2n, ..., as `--shard i/n` does. No text goes through Beam, so memory does not grow with
the corpus, and the examples do not depend on the runner.
"""

import contextlib
import multiprocessing
import os
import shlex
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from typing import Any

from bertjax.base.addresses import read_locally
from bertjax.base.signals import signals_deferred
from bertjax.data.preparation.chunks import Chunk, ChunkPreparer, ChunkSettings
from bertjax.tokenization import TOKENIZER_FILES, load_tokenizer


def available_cores() -> int:
    """Returns the number of cores that this process may use."""
    affinity = getattr(os, "sched_getaffinity", None)
    if affinity:
        return len(affinity(0))
    return os.cpu_count() or 1


class Workers:
    """Converts chunks to shards: in this process if `processes` is 1, else in `processes` workers.

    At most `processes + 1` submitted chunks are unfinished at any time, so the memory for chunks
    does not grow with the size of the input. `excluded` are as for `ChunkPreparer`.
    """

    def __init__(
        self, settings: ChunkSettings, processes: int, excluded: frozenset[str] = frozenset()
    ):
        self._pending: set[Future] = set()
        self._most_pending = processes + 1
        self._pool = None
        if processes > 1 and multiprocessing.current_process().daemon:
            print("note: one process prepares, because a daemonic process may start no others")
        elif processes > 1:
            try:
                # Workers are not forked, because threads of jax or of the caller may hold locks.
                with signals_deferred():
                    self._pool = ProcessPoolExecutor(
                        processes,
                        mp_context=multiprocessing.get_context("spawn"),
                        initializer=_start_worker,
                        initargs=(settings, excluded),
                    )
            except KeyboardInterrupt:
                self._pool = None  # which deletes its semaphores
                raise
            except OSError as error:
                print(f"warning: one process prepares, since /dev/shm cannot be used: {error}")
        if self._pool is None:
            self._preparer = _preparer_of(settings, excluded)

    def submit(self, chunk: Chunk) -> None:
        """Submits `chunk` to a worker, or prepares it here; blocks while too many are unfinished.

        Raises the error of an earlier chunk. If a worker process died, the block ends with OSError.
        """
        if self._pool is None:
            with _one_tokenizer_thread():
                self._preparer.prepare(chunk)
            return
        self._collect(self._most_pending - 1)
        with _ctrl_c_blocked(), signals_deferred():  # submitting starts the workers
            self._pending.add(self._pool.submit(_prepare_in_worker, chunk))

    def finish(self) -> None:
        """Waits until the shards of all submitted chunks are written; errors as `submit`."""
        self._collect(0)

    def _collect(self, most: int) -> None:
        while len(self._pending) > most:
            done, self._pending = wait(self._pending, return_when=FIRST_COMPLETED)
            for future in done:
                future.result()

    def __enter__(self) -> "Workers":
        return self

    def __exit__(self, kind: Any, error: BaseException | None, traceback: Any) -> None:
        if self._pool is not None:
            with signals_deferred():
                self._pool.shutdown(wait=True, cancel_futures=True)
        if isinstance(error, BrokenProcessPool):
            raise OSError(
                "A worker process died. The worker may have run out of memory, or the calling "
                "script lacks `if __name__ == '__main__':`. Run the same command again to "
                "continue, with a smaller --num_processes if memory is short."
            ) from error


@contextlib.contextmanager
def _ctrl_c_blocked() -> Iterator[None]:
    """Blocks SIGINT in this thread and in the processes that it starts, which inherit the mask."""
    if not hasattr(signal, "pthread_sigmask"):  # Windows
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


_preparer: ChunkPreparer | None = None


def _start_worker(settings: ChunkSettings, excluded: frozenset[str]) -> None:
    global _preparer
    # Ctrl-C reaches all processes of a terminal, but workers are to finish their chunk.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    threading.Thread(target=_end_with_parent, daemon=True).start()
    _preparer = _preparer_of(settings, excluded)


def _preparer_of(settings: ChunkSettings, excluded: frozenset[str]) -> ChunkPreparer:
    with read_locally(settings.output, TOKENIZER_FILES) as directory:
        return ChunkPreparer(settings, load_tokenizer(directory), excluded)


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


def run_parts(prepare_part: Callable[[int], Any], parts: int, *, runner: str, options: str) -> None:
    """Calls `prepare_part(i)` for each i in range(parts) on a Beam runner, and waits for all calls.

    The workers call it, so the input and the output must have the same paths on all machines.
    `runner` is "direct" for this machine, or the name of a Beam runner; `options` are the pipeline
    options of Beam in one string, such as "--project=P --region=R".

    Raises ImportError without Beam, ValueError if Beam has no such runner or rejects the options,
    or OSError if the preparation of a part failed.
    """
    try:
        import apache_beam as beam  # pyright: ignore[reportMissingImports]
        from apache_beam.options import pipeline_options  # pyright: ignore[reportMissingImports]
        from apache_beam.runners import runner as runners  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise ImportError("--runner needs Apache Beam: pip install 'bertjax[beam]'.") from error
    name = "DirectRunner" if runner == "direct" else runner
    try:
        runners.create_runner(name)
    except (ImportError, ValueError, AttributeError) as error:
        raise ValueError(
            f"--runner {runner}: Beam has no such runner ({error}). Use direct, DataflowRunner, "
            "SparkRunner, FlinkRunner, or another runner of your version of Beam."
        ) from error
    try:
        known = pipeline_options.PipelineOptions([f"--runner={name}", *shlex.split(options)])
        known.get_all_options()  # parses the options
    except SystemExit as error:
        raise ValueError(
            f"--runner_options {options!r}: Beam rejects them, see Beam's usage message above."
        ) from error
    try:
        with beam.Pipeline(options=known) as pipeline:
            elements = pipeline | "Parts" >> beam.Create(range(parts))
            # Without a reshuffle, the runner could give all parts to one worker.
            spread = elements | "Spread" >> beam.Reshuffle()
            _ = spread | "Prepare" >> beam.Map(prepare_part)
    except Exception as error:  # Beam wraps the exception of a worker
        gist = str(error).strip().splitlines()
        raise OSError(
            f"A part failed on {name}: {gist[0] if gist else type(error).__name__}. Run the same "
            "command again; finished work is kept."
        ) from error
