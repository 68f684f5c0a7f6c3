"""Iterates in a thread, so that the next item is prepared while the current one is used."""

import queue
import threading
from collections.abc import Iterable, Iterator
from typing import Any, TypeVar

Item = TypeVar("Item")


def ahead(items: Iterable[Item]) -> Iterator[Item]:
    """Yields the items in order; at most one of them is made ahead, in another thread.

    The thread is a daemon: a process that ends does not wait for it. An exception of `items` is
    raised where its item would be.
    """
    made: queue.SimpleQueue[tuple[bool, Any]] = queue.SimpleQueue()
    taken = threading.Semaphore(0)
    unwanted = threading.Event()

    def make() -> None:
        try:
            for item in items:
                made.put((True, item))
                taken.acquire()
                if unwanted.is_set():
                    return
            made.put((False, None))
        except BaseException as error:
            made.put((False, error))

    threading.Thread(target=make, name="reads ahead", daemon=True).start()
    try:
        while True:
            is_item, value = made.get()
            if not is_item:
                if value is not None:
                    raise value
                return
            taken.release()
            yield value
    finally:
        unwanted.set()
        taken.release()
