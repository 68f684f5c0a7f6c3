"""Dynamic batching: inputs of many requests wait in a bounded queue and are computed together.

A batch has inputs of one computation and of similar lengths. The input whose turn it is is in the
next batch, so that none waits for ever; a request of many inputs waits for those of others between
its own. Nothing here knows HTTP or a model.
"""

import dataclasses
import heapq
import threading
import time
from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple

# Inputs of up to so many tokens share rows, whatever their lengths.
SHORT = 32


class Full(Exception):
    """The queue has no room for the inputs of a request."""


class Input(NamedTuple):
    """What is computed for a request, such as the token ids of a text.

    `compute` is a function (values of inputs) -> their results, in order; inputs with an equal one
    can be in one batch. `tokens` is the length of the input.
    """

    compute: Callable[[list[Any]], Sequence[Any]]
    value: Any
    tokens: int


@dataclasses.dataclass(eq=False)
class Job:
    """The inputs of a request; in the end, the result of each, or an error.

    Attributes:
        done: called once, in the thread that computes, when all results are there, or the error is.
        waited: the seconds from `BatchQueue.put` to the first batch with an input of the job.
        computed: the seconds that these batches took.
    """

    inputs: Sequence[Input]
    done: Callable[[], None] = lambda: None
    results: list[Any] = dataclasses.field(init=False)
    error: Exception | None = None
    put_at: float = 0.0
    waited: float | None = None
    computed: float = 0.0

    def __post_init__(self):
        self.results = [None] * len(self.inputs)
        self._missing = len(self.inputs)
        self.in_queue = 0
        self.is_over = False

    def finish(self, place: int, result: Any) -> None:
        """Takes the result of an input."""
        self.results[place] = result
        self._missing -= 1
        if not self._missing and not self.is_over:
            self.is_over = True
            self.done()

    def fail(self, error: Exception) -> None:
        """Ends the job, whose other inputs are not computed any more."""
        if not self.is_over:
            self.is_over = True
            self.error = error
            self.done()


class Entry(NamedTuple):
    """An input in the queue, in the order of `turn`; `number` counts the entries, for ties.

    The turn of the input i of a job is the number of inputs that had been taken when it came, plus
    i: a job of a thousand inputs does not go before those that come after it.
    """

    turn: int
    number: int
    job: Job
    place: int

    @property
    def input(self) -> Input:
        """What is computed."""
        return self.job.inputs[self.place]


def bucket(tokens: int) -> int:
    """Returns the length of the rows for an input: a power of two, from `SHORT`."""
    return max(SHORT, 1 << max(tokens - 1, 0).bit_length())


def room_of(tokens: int) -> int:
    """Returns how much of a batch an input takes: short ones share rows, others have their own."""
    if tokens <= SHORT:
        return tokens
    return bucket(tokens)


class BatchQueue:
    """The inputs that wait, in lanes of one computation and one row length.

    Args:
        max_waiting: the maximum number of inputs that wait.
        max_tokens: the maximum number of tokens of a batch, with padding, unless it is one input.
    """

    def __init__(self, max_waiting: int, max_tokens: int):
        self._max_waiting = max_waiting
        self._max_tokens = max_tokens
        self._lanes: dict[tuple[Hashable, int], list[Entry]] = {}  # heaps
        self._changed = threading.Condition()
        self._waiting = 0
        self._put = self._taken = 0
        self._is_closed = False

    def __len__(self) -> int:
        """Returns the number of inputs that wait."""
        return self._waiting

    def put(self, job: Job) -> None:
        """Adds the inputs of a job, all or none; raises Full if there is no room for all."""
        count = len(job.inputs)
        with self._changed:
            if self._is_closed or self._waiting + count > self._max_waiting:
                raise Full(f"{self._waiting} of {self._max_waiting} texts wait")
            for place, item in enumerate(job.inputs):
                lane = self._lanes.setdefault((item.compute, bucket(item.tokens)), [])
                heapq.heappush(lane, Entry(self._taken + place, self._put, job, place))
                self._put += 1
            self._waiting += count
            job.in_queue = count
            job.put_at = time.monotonic()
            self._changed.notify()

    def cancel(self, job: Job) -> None:
        """Gives up a job: its inputs leave the queue, and `done` is not called any more."""
        with self._changed:
            job.is_over = True
            self._waiting -= job.in_queue
            job.in_queue = 0

    def close(self) -> None:
        """Takes no more jobs; `take` returns those that wait, and then None."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()

    def take(self) -> list[Entry] | None:
        """Waits for inputs and returns the next batch, or None if the queue is closed and empty."""
        with self._changed:
            while True:
                lane = self._next_lane()
                if lane is not None:
                    return self._batch(*lane)
                if self._is_closed:
                    return None
                self._changed.wait()

    def _next_lane(self) -> tuple[Any, int] | None:
        """Returns the lane with the input whose turn it is; forgets lanes without inputs."""
        heads = {}
        for lane in list(self._lanes):
            entries = self._lanes[lane]
            while entries and entries[0].job.is_over:
                heapq.heappop(entries)
            if entries:
                heads[lane] = entries[0]
            else:
                del self._lanes[lane]
        return min(heads, key=heads.__getitem__, default=None)

    def _batch(self, compute: Any, length: int) -> list[Entry]:
        """Fills a batch from a lane and then from lanes of shorter inputs."""
        batch: list[Entry] = []
        room = self._max_tokens
        while length >= SHORT:
            entries = self._lanes.get((compute, length), [])
            while entries:
                needed = room_of(entries[0].input.tokens)
                if needed > room and batch:
                    break
                entry = heapq.heappop(entries)
                if entry.job.is_over:
                    continue
                room -= needed
                batch.append(entry)
                entry.job.in_queue -= 1
            length //= 2
        self._taken += len(batch)
        self._waiting -= len(batch)
        return batch


def work(queue: BatchQueue, observe: Callable[[int, int], None]) -> None:
    """Computes batch after batch, until the queue is closed and empty.

    `observe` is called with the number of inputs of each, and of their tokens.
    """
    while (batch := queue.take()) is not None:
        start = time.monotonic()
        for entry in batch:
            if entry.job.waited is None:
                entry.job.waited = start - entry.job.put_at
        compute_batch(batch)
        observe(len(batch), sum(entry.input.tokens for entry in batch))
        # A reference would keep the results until the next batch, and a model after its reload.
        del batch


def compute_batch(batch: Sequence[Entry]) -> None:
    """Computes a batch and gives each job its results.

    If that fails, the inputs of each job are computed alone, so that no request fails because of
    another one.
    """
    jobs = {entry.job for entry in batch}
    start = time.monotonic()
    try:
        results = batch[0].input.compute([entry.input.value for entry in batch])
        finished = list(zip(batch, results, strict=True))
    except Exception as error:
        if len(jobs) == 1:
            batch[0].job.fail(error)
            return
        for job in jobs:
            compute_batch([entry for entry in batch if entry.job is job])
        return
    for job in jobs:
        job.computed += time.monotonic() - start
    for entry, result in finished:
        entry.job.finish(entry.place, result)
