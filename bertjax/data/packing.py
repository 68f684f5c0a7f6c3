"""Puts sequences side by side in rows."""

from collections.abc import Sequence


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
    rows: list[list[int]] = []
    room: list[tuple[int, int]] = []  # tokens and sequences that still fit
    for item in sorted(range(len(sizes)), key=lambda i: (-sizes[i], i)):
        size, count = sizes[item], counts[item]
        if size > row_length or count > max_sequences:
            raise ValueError(
                f"An item of {size} tokens in {count} sequences does not fit a row of {row_length} "
                f"tokens and {max_sequences} sequences: give longer rows."
            )
        fitting = [
            (tokens - size, row)
            for row, (tokens, slots) in enumerate(room)
            if tokens >= size and slots >= count
        ]
        if fitting:
            row = min(fitting)[1]
            rows[row].append(item)
            room[row] = (room[row][0] - size, room[row][1] - count)
        else:
            rows.append([item])
            room.append((row_length - size, max_sequences - count))
    return rows
