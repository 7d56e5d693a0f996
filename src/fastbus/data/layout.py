"""What a caller may say about the tables, and which parts of a supervision look for which columns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fastbus.supervision.base import Supervision, resolve
from fastbus.supervision.combine import Combination

LABEL, TASK = "label", "task"


@dataclass(frozen=True)
class Layout:
    """What a caller may say about the tables."""

    supervision: Supervision | None = None
    classes: tuple[Any, ...] | None = None
    features: tuple[str, ...] | None = None
    ignore: tuple[str, ...] = ()
    images: Path | None = None
    image_size: tuple[int, int] | None = None
    streaming: bool = False

    @property
    def parts(self) -> list[tuple[Supervision, tuple[str, ...]]]:
        """Each part of the supervision with the prefixes its columns may have."""
        if self.supervision is None:
            return []
        if not isinstance(self.supervision, Combination):
            return [(self.supervision, (f"{self.supervision.title}.", ""))]
        seen: dict[str, int] = {}
        parts: list[tuple[Supervision, tuple[str, ...]]] = []
        for part in self.supervision.parts:
            seen[part.title] = number = seen.get(part.title, 0) + 1
            parts.append((part, (f"{part.title}{'' if number == 1 else f'_{number}'}.",)))
        return parts


def make_layout(
    supervision: Supervision | str | None,
    classes: Sequence[Any] | None,
    features: Sequence[str] | None,
    ignore: Sequence[str],
    **options: Any,
) -> Layout:
    """The options of a call, checked."""
    return Layout(
        None if supervision is None else resolve(supervision),
        None if classes is None else tuple(classes),
        None if features is None else tuple(features),
        tuple(ignore),
        **options,
    )
