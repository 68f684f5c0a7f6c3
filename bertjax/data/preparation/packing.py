"""Puts sequences side by side in rows."""

from collections.abc import Iterator, Sequence
from heapq import heapify, heappop, heappush


def pack(
    sizes: Sequence[int],
    row_length: int,
    max_sequences: int,
    sequences: Sequence[int] | None = None,
) -> list[list[int]]:
    """Rows of items by best fit: the longest first, each where it leaves the least room.

    Args:
        sizes: tokens of each item.
        row_length: tokens of a row.
        max_sequences: sequences of a row at most.
        sequences: how many sequences each item is; None: one.

    Returns:
        The items of each row, by index. The same sizes give the same rows.

    Raises:
        ValueError: an item is longer than a row.
    """
    counts = [1] * len(sizes) if sequences is None else sequences
    fewest = min(counts, default=1)
    rows: list[list[int]] = []
    slots: list[int] = []  # sequences that each row still takes
    open_rows = _OpenRows(row_length)
    for item in sorted(range(len(sizes)), key=lambda i: (-sizes[i], i)):
        size, count = sizes[item], counts[item]
        if size > row_length or count > max_sequences:
            raise ValueError(
                f"An item of {size} tokens in {count} sequences does not fit a row of {row_length} "
                f"tokens and {max_sequences} sequences: give longer rows."
            )
        row, room = open_rows.take(size, lambda row, count=count: slots[row] >= count)
        if row is None:
            row, room = len(rows), row_length
            rows.append([])
            slots.append(max_sequences)
        rows[row].append(item)
        slots[row] -= count
        if slots[row] >= fewest:
            open_rows.add(row, room - size)
    return rows


class _OpenRows:
    """Rows by the tokens that still fit; the fullest that has room is found without a search."""

    def __init__(self, row_length: int):
        self._by_room: list[list[int]] = [[] for _ in range(row_length + 1)]  # heaps
        self._rooms = 0  # bit n: there is a row with room for n tokens

    def add(self, row: int, room: int) -> None:
        heappush(self._by_room[room], row)
        self._rooms |= 1 << room

    def take(self, size: int, accepts) -> tuple[int | None, int]:
        """Removes the row that `accepts`, and leaves the least room behind `size` tokens.

        The first of equals; None if there is none. Also returns its room.
        """
        for room in self._rooms_from(size):
            held = self._by_room[room]
            # Items of as many sequences each stop here: what is open accepts them.
            if accepts(held[0]):
                row = heappop(held)
            else:
                row = min(filter(accepts, held), default=None)
                if row is None:
                    continue
                held.remove(row)
                heapify(held)
            if not held:
                self._rooms ^= 1 << room
            return row, room
        return None, 0

    def _rooms_from(self, size: int) -> Iterator[int]:
        rooms, room = self._rooms >> size, size
        while rooms:
            skipped = (rooms & -rooms).bit_length() - 1
            yield room + skipped
            rooms >>= skipped + 1
            room += skipped + 1
