"""Best-fit packing of sequences into rows.

Rows of several sequences, which attend only to themselves, are due to Krell et al. 2021; best fit
is a heuristic for bin packing (Johnson 1974).
"""

from collections.abc import Iterator, Sequence
from heapq import heapify, heappop, heappush


def pack(
    sizes: Sequence[int],
    row_length: int,
    max_sequences: int,
    sequences: Sequence[int] | None = None,
) -> list[list[int]]:
    """Packs items, each of one or more sequences, into rows by best-fit-decreasing.

    Each item, longest first, is put into the fullest row that has room for it, or into a new row.
    `sizes` are the items' numbers of tokens, and `sequences` their numbers of sequences (None: 1
    each); a row has `row_length` tokens and at most `max_sequences` sequences.

    Returns the indices of the items in each row. Raises ValueError if an item fits into no row.
    """
    counts = [1] * len(sizes) if sequences is None else sequences
    fewest = min(counts, default=1)
    rows: list[list[int]] = []
    slots: list[int] = []  # number of sequences that still fit into each row
    open_rows = _OpenRows(row_length)
    for item in sorted(range(len(sizes)), key=lambda i: (-sizes[i], i)):
        size = sizes[item]
        count = counts[item]
        if size > row_length or count > max_sequences:
            raise ValueError(
                f"An item of {size} tokens in {count} sequences does not fit into a row of "
                f"{row_length} tokens and {max_sequences} sequences: use longer rows."
            )
        row, room = open_rows.take(size, lambda row, count=count: slots[row] >= count)
        if row is None:
            row = len(rows)
            room = row_length
            rows.append([])
            slots.append(max_sequences)
        rows[row].append(item)
        slots[row] -= count
        if slots[row] >= fewest:
            open_rows.add(row, room - size)
    return rows


class _OpenRows:
    """The rows that can take another sequence, indexed by the number of tokens that still fit."""

    def __init__(self, row_length: int):
        self._by_room: list[list[int]] = [[] for _ in range(row_length + 1)]  # heaps
        self._rooms = 0  # bit n: there is a row with room for n tokens

    def add(self, row: int, room: int) -> None:
        heappush(self._by_room[room], row)
        self._rooms |= 1 << room

    def take(self, size: int, accepts) -> tuple[int | None, int]:
        """Removes the fullest row that fits and `accepts`; returns (row, its room) or (None, 0)."""
        for room in self._rooms_from(size):
            held = self._by_room[room]
            # If all items have the same number of sequences, every open row accepts them.
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
        rooms = self._rooms >> size
        room = size
        while rooms:
            skipped = (rooms & -rooms).bit_length() - 1
            yield room + skipped
            rooms >>= skipped + 1
            room += skipped + 1
