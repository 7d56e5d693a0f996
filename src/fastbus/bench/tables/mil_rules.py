"""A rule of our own for bags: positive where at least a given share of the instances is.

share -> 0 is the usual rule, one positive instance is enough; 0.5 is a vote. How many instances of a positive bag
carry its label is a matter of the data: of a picture with an elephant many segments show it.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fastbus.errors import SupervisionError
from fastbus.numerics import safe_log
from fastbus.supervision.base import Supervision
from fastbus.supervision.evidence import Evidence, Rule
from fastbus.supervision.reading import WeakReader


class AtLeastShare(Supervision):
    """w = 1 if max(1, share * K) or more of K instances are positive; the state is their number."""

    fold = "count"

    def __init__(self, share: float) -> None:
        if not 0 <= share <= 1:
            raise SupervisionError(f"share={share!r}; expected a number in [0, 1]. Pass the least share of positives.")
        self.share = share

    def num_states(self, bag_size: int) -> int:
        return bag_size + 1

    def step(self, state: Tensor, label: Tensor) -> Tensor:
        return state + label

    def evidence(self, state: Tensor, weak: Tensor) -> Tensor:
        return self._given(state, weak, torch.full_like(weak, state.shape[0] - 1))

    def read(self, weak: object, reader: WeakReader) -> Evidence:
        values, positive_class = reader.per_class(weak)
        values, observed = reader.integers(values, 1, "bag labels")
        states = torch.arange(reader.K + 1, device=reader.device)
        # the threshold is that of every bag's own size, not of the longest bag of the batch
        sizes = reader.layout.sizes[:, None, None].expand(*values.shape, 1)
        given = self._given(states, values[..., None], sizes)
        log_evidence = safe_log(given.to(reader.dtype)).masked_fill(~observed[..., None], 0.0)
        return Evidence(rules=(Rule(self, log_evidence, observed, positive_class),), names=(self.title,))

    def _given(self, state: Tensor, weak: Tensor, bag_size: Tensor) -> Tensor:
        # rounded first: 0.3 * 10 is a little more than 3
        least = (self.share * bag_size.double() - 1e-9).ceil().clamp(min=1)
        return (state >= least) == weak.to(torch.bool)
