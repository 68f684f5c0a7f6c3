"""The queue: nothing is lost, the bound holds, and batches are of one computation and length."""

import threading
import time

import numpy as np
import pytest

from bertjax.inference.serving.batching import (
    SHORT,
    BatchQueue,
    Full,
    Input,
    Job,
    bucket,
    compute_batch,
    room_of,
    work,
)


def double(values):
    return [2 * value for value in values]


def job_of(*lengths, compute=double, done=lambda: None):
    return Job([Input(compute, length, length) for length in lengths], done)


def lengths_of(batch):
    return [entry.input.tokens for entry in batch]


def test_every_input_of_many_threads_gets_its_own_result():
    queue = BatchQueue(10**6, 256)
    batches = []
    worker = threading.Thread(target=work, args=(queue, lambda *counts: batches.append(counts)))
    worker.start()
    rng = np.random.default_rng(0)
    jobs = []

    def ask(lengths):
        finished = threading.Event()
        job = job_of(*lengths, done=finished.set)
        jobs.append(job)
        queue.put(job)
        assert finished.wait(30)

    threads = []
    for count in rng.integers(1, 40, 100):
        lengths = rng.integers(1, 300, count).tolist()
        threads.append(threading.Thread(target=ask, args=(lengths,)))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    queue.close()
    worker.join(10)
    assert not worker.is_alive() and not len(queue)
    for job in jobs:
        assert job.error is None and job.waited is not None
        assert job.results == [2 * item.tokens for item in job.inputs]
    assert sum(inputs for inputs, _ in batches) == sum(len(job.inputs) for job in jobs)
    assert max(inputs for inputs, _ in batches) > 1


def test_batches_have_one_computation_similar_lengths_and_at_most_so_many_tokens():
    def triple(values):
        return [3 * value for value in values]

    queue = BatchQueue(1000, 512)
    queue.put(job_of(100, 20, 400, 90, 128))
    queue.put(job_of(100, compute=triple))
    queue.put(job_of(*[100] * 9))
    batches = []
    while len(queue):
        batches.append(queue.take())
    assert sorted(sum(map(lengths_of, batches), [])) == sorted([100, 20, 400, 90, 128] + [100] * 10)
    for batch in batches:
        assert len({entry.input.compute for entry in batch}) == 1
        sizes = [room_of(tokens) for tokens in lengths_of(batch)]
        assert sum(sizes) <= 512 or len(batch) == 1
    assert lengths_of(batches[0]) == [100] * 4  # a large request lets others go between
    assert bucket(1) == bucket(SHORT) == SHORT and bucket(SHORT + 1) == 64 == room_of(33)


def test_an_input_longer_than_a_batch_is_computed_alone():
    queue = BatchQueue(10, 64)
    queue.put(job_of(1000, 10))
    assert lengths_of(queue.take()) == [1000]
    assert lengths_of(queue.take()) == [10]


def test_no_input_waits_for_ever_behind_others():
    """A text of a rare length is computed although others come all the time."""
    queue = BatchQueue(1000, 64)
    queue.put(job_of(500))
    for number in range(8):
        queue.put(job_of(10, 10, 10))
        if 500 in lengths_of(queue.take()):
            assert number == 0  # nothing was there before it
            return
    pytest.fail("the long text still waits")


def test_a_request_of_many_texts_does_not_go_before_all_others():
    queue = BatchQueue(1000, 64)
    large = job_of(*[60] * 100)
    queue.put(large)
    for _ in range(5):
        queue.take()
    small = job_of(60)
    queue.put(small)
    taken = 0
    while small.in_queue:
        queue.take()
        taken += 1
    assert taken <= 2 and large.in_queue > 90


def test_the_bound_counts_inputs_and_takes_all_of_a_job_or_none():
    queue = BatchQueue(5, 64)
    queue.put(job_of(1, 2, 3))
    with pytest.raises(Full, match="3 of 5"):
        queue.put(job_of(1, 2, 3))
    queue.put(job_of(4, 5))
    assert len(queue) == 5
    assert len(queue.take()) == 5 and len(queue) == 0
    queue.close()
    with pytest.raises(Full):
        queue.put(job_of(1))
    assert queue.take() is None


def test_cancelled_jobs_leave_the_queue_at_once_and_are_not_computed():
    queue = BatchQueue(4, 64)
    gone = job_of(1, 2, 3, done=lambda: pytest.fail("the client has gone"))
    queue.put(gone)
    queue.cancel(gone)
    assert len(queue) == 0
    stays = job_of(4, 5, 6)
    queue.put(stays)
    assert [entry.job for entry in queue.take()] == [stays] * 3
    assert len(queue) == 0


def test_a_job_that_fails_fails_alone():
    def picky(values):
        if 13 in values:
            raise ValueError("13 brings bad luck")
        return double(values)

    queue = BatchQueue(10, 640)
    ended = []
    jobs = []
    for lengths in ((1, 2), (3, 13, 4), (5,)):
        job = job_of(*lengths, compute=picky)
        job.done = lambda job=job: ended.append(job)
        jobs.append(job)
        queue.put(job)
    compute_batch(queue.take())
    assert {*map(id, ended)} == {*map(id, jobs)} and len(ended) == 3
    assert jobs[0].results == [2, 4] and jobs[2].results == [10]
    assert jobs[0].error is None and str(jobs[1].error) == "13 brings bad luck"


def test_a_computation_that_loses_a_result_fails_its_job_and_not_the_thread():
    job = job_of(1, 2, compute=lambda values: values[1:])
    queue = BatchQueue(10, 64)
    queue.put(job)
    queue.close()
    work(queue, print)
    assert isinstance(job.error, ValueError)


def test_the_queue_forgets_computations_that_are_over():
    """Otherwise it would keep a model after a reload."""
    queue = BatchQueue(10, 64)
    for _ in range(3):
        queue.put(job_of(1, compute=lambda values: values))
        queue.take()
    queue.put(job_of(1))
    queue.take()
    threading.Thread(target=lambda: (time.sleep(0.1), queue.close())).start()
    assert queue.take() is None
    assert not queue._lanes
