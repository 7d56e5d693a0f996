"""Combination a & b: several weak labels about the same bags, independent given the labels.

Instance evidence multiplies, states pair up. At most one part may set a distribution (Jeffrey's
rule or a mean), and it is applied last: two such statements do not commute.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from fastbus.errors import SupervisionError, WeakLabelError
from fastbus.supervision.base import Supervision
from fastbus.supervision.evidence import Evidence
from fastbus.supervision.reading import WeakReader


class Combination(Supervision):
    """All parts at once; the weak label is a tuple with one entry a part."""

    parts: tuple[Supervision, ...]

    def __init__(self, *parts: Supervision) -> None:
        flat: list[Supervision] = []
        for part in parts:
            flat.extend(part.parts if isinstance(part, Combination) else (part,))
        for part in flat:
            if hasattr(part, "terms"):
                raise SupervisionError(
                    f"{part.title} in a combination; expected parts that share their bags. It is a "
                    "sum over differently grouped bags: add its loss instead."
                )
        last = [part.title for part in flat if part.applies_last]
        if len(last) > 1:
            raise SupervisionError(
                f"{' & '.join(last)}: each sets a distribution; expected one such part at most, since "
                'two do not commute. Make one of them virtual evidence (soft="virtual", '
                'constraint="likelihood").'
            )
        self.parts = tuple(flat)
        self.binary = any(part.binary for part in flat)
        self.bag_size = next((part.bag_size for part in flat if part.bag_size is not None), None)

    @property
    def title(self) -> str:
        return " & ".join(part.title for part in self.parts)

    @property
    def applies_last(self) -> bool:
        return any(part.applies_last for part in self.parts)

    def weak_labels(self, bag_size: int) -> Sequence[Any] | None:
        return None

    def read(self, weak: object, reader: WeakReader) -> Evidence:
        if not isinstance(weak, (tuple, list)) or len(weak) != len(self.parts):
            got = f"{len(weak)}" if isinstance(weak, (tuple, list)) else type(weak).__name__
            raise WeakLabelError(
                f"{self.title}: weak label {got}; expected a tuple of {len(self.parts)}, one entry "
                f"for each of {', '.join(part.title for part in self.parts)}. Mark entries missing "
                "where a part says nothing."
            )
        evidence = Evidence()
        for part, entry in zip(self.parts, weak, strict=True):
            part_reader = replace(reader, name=part.title)
            evidence = evidence.merged(part.read(entry, part_reader))
            reader.impossible = reader.impossible | part_reader.impossible
        return evidence
