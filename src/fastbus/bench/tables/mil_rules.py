"""A rule of our own for bags: the larger the share of positive instances, the more probable a positive bag.

P(w = 1 | n of K are positive) = sigmoid((n / K - threshold) / softness). Softness 0 is its limit, a share that must be
reached: threshold 0 is then the usual rule, one positive instance is enough, and 0.5 is a vote. A soft rule comes near
to an average over the instances. How many instances of a positive bag carry its label is a matter of the data: of a
picture with an elephant many segments show it.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fastbus.errors import SupervisionError
from fastbus.numerics import safe_log
from fastbus.supervision.base import Supervision
from fastbus.supervision.evidence import Evidence, Rule
from fastbus.supervision.reading import WeakReader


class ShareOfPositives(Supervision):
    """Yes or no of a bag by the share of its positive instances; the state is their number.

    softness 0: yes if max(1, threshold * K) or more of K instances are positive.
    """

    fold = "count"

    def __init__(self, threshold: float, softness: float = 0.0) -> None:
        if not 0 <= threshold <= 1:
            raise SupervisionError(
                f"threshold={threshold!r}; expected a number in [0, 1]. Pass the share of positives that decides."
            )
        if not 0 <= softness < float("inf"):
            raise SupervisionError(
                f"softness={softness!r}; expected a number of at least 0. Pass 0 for a share that must be reached."
            )
        self.threshold = threshold
        self.softness = softness

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
        # the share is that of every bag's own size, not of the longest bag of the batch
        sizes = reader.layout.sizes[:, None, None].expand(*values.shape, 1)
        given = self._given(states, values[..., None], sizes)
        log_evidence = safe_log(given.to(reader.dtype)).masked_fill(~observed[..., None], 0.0)
        return Evidence(rules=(Rule(self, log_evidence, observed, positive_class),), names=(self.title,))

    def _given(self, state: Tensor, weak: Tensor, bag_size: Tensor) -> Tensor:
        """P(weak | state positives of bag_size)."""
        if self.softness == 0:
            # rounded first: 0.3 * 10 is a little more than 3
            least = (self.threshold * bag_size.double() - 1e-9).ceil().clamp(min=1)
            return (state >= least) == weak.to(torch.bool)
        # states beyond a short bag's size are never reached, but must hold probabilities all the same
        odds = (state.double() / bag_size.double() - self.threshold) / self.softness
        return torch.sigmoid(torch.where(weak.to(torch.bool), odds, -odds))
