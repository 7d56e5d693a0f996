"""The name that was perhaps meant, for complaints about unknown ones. Without torch: the command line asks, too."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def nearest(name: str, names: Iterable[str]) -> str | None:
    """The name most like `name`, whatever the case of their letters; None where none is much like it."""
    by_small = {known.lower(): known for known in names}
    close = difflib.get_close_matches(name.lower(), by_small, n=1, cutoff=0.65)
    return by_small[close[0]] if close else None


def did_you_mean(name: object, names: Iterable[str]) -> str:
    """` (did you mean 'softmax'?)` after the names there are; nothing where none is much like it."""
    close = nearest(name, names) if isinstance(name, str) else None
    return "" if close is None else f" (did you mean {close!r}?)"
