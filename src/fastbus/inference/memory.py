"""How much is solved at once: batches beyond the limit are solved in turns, with the same results."""

from __future__ import annotations

from collections.abc import Iterator

# numbers of messages kept at once
LIMIT = 2**25


def turns(count: int, each: int) -> Iterator[slice]:
    """Slices of `count` chains that keep `each` numbers each within the limit."""
    size = max(1, LIMIT // max(each, 1))
    return (slice(start, start + size) for start in range(0, count, size))
