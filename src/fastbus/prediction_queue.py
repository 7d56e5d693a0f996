"""A queue of detached predictions, so that a set's count speaks about more instances than one batch holds.

On a small set a known prior says little about single instances, and the count's constraint prefers
the uninformative prediction; its bias shrinks with the size of the set.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from fastbus.bag_layout import BagLayout, layout_of
from fastbus.errors import SupervisionError
from fastbus.inference.infer import infer
from fastbus.inference.posterior import Posterior
from fastbus.numerics import message_dtype
from fastbus.supervision.base import Supervision
from fastbus.supervision.incomplete import PositiveUnlabeled, UnlabeledUnlabeled
from fastbus.supervision.reading import WeakReader

# a prior says enough about its instances from here on; counts that large are solved in linear time
USUAL_SIZE = 1024
KEPT = ("log_odds", "filled")


def usual_size(supervision: Supervision) -> int:
    """Predictions to keep where nothing else is asked for."""
    return USUAL_SIZE if isinstance(supervision, (PositiveUnlabeled, UnlabeledUnlabeled)) else 0


class PredictionQueue(nn.Module):
    """The last `size` log-odds of unlabelled instances, of each set.

    They are moved, saved and loaded like buffers, but are none: torch sends the buffers of the first process to all
    others before each step of distributed training, and every process has predictions of its own.
    """

    log_odds: Tensor  # (sets, size), newest first
    filled: Tensor  # (sets,)

    def __init__(self, supervision: Supervision, size: int, head: str) -> None:
        super().__init__()
        if not isinstance(supervision, (PositiveUnlabeled, UnlabeledUnlabeled)):
            raise SupervisionError(
                f"queue={size} with {supervision.title}; expected positive_unlabeled or "
                "unlabeled_unlabeled. Other kinds need no queue: leave queue=0."
            )
        if size < 1:
            raise SupervisionError(f"queue={size}; expected a number of predictions of at least 0.")
        self.supervision = supervision
        self.head = head
        sets = len(supervision.priors) if isinstance(supervision, UnlabeledUnlabeled) else 1
        self.log_odds = torch.zeros(sets, size)
        self.filled = torch.zeros(sets, dtype=torch.long)

    def infer(
        self,
        logits: Tensor,
        weak: object,
        mask: object,
        bag_sizes: object,
        remember: bool,
        options: dict[str, Any],
    ) -> Posterior:
        """`infer` with the queued predictions joined to every bag; returned for the batch alone."""
        self.to(logits.device)  # losses are seldom moved by hand
        layout = layout_of(tuple(logits.shape), mask, bag_sizes, logits.device)
        reader = WeakReader(
            layout,
            int(logits.shape[-1]),
            self.head,
            message_dtype(logits.device),
            validate=bool(options.get("validate", True)),
            name=self.supervision.title,
        )
        joined, index, unlabelled = self._join(weak, reader)
        scores = torch.cat([layout.compact(logits), self._scores(index, logits)], 1)
        age = torch.arange(self.size, device=logits.device)
        real = torch.cat([layout.mask, age < self.filled[index][:, None]], 1)
        post = infer(self.supervision, scores, joined, real, **options)
        if remember:
            self._remember(layout.compact(logits.detach()), unlabelled, index)
        return _batch_alone(post, layout)

    def _join(self, weak: object, reader: WeakReader) -> tuple[Tensor, Tensor, Tensor]:
        """Weak labels of the joined bags, the set of each bag (B,), and instances to remember (B, K)."""
        mask = reader.layout.mask
        if isinstance(self.supervision, UnlabeledUnlabeled):
            values = reader.per_bag(weak)
            index, given = reader.integers(values, len(self.log_odds) - 1, "set indices")
            return values, index, mask & given[:, None]
        values = reader.per_instance(weak)
        if values.dtype == torch.bool:
            values = values.long()
        blank = float("nan") if values.is_floating_point() else -1
        queued = values.new_full((reader.B, self.size), blank)
        first = torch.zeros_like(reader.layout.sizes)
        return torch.cat([values, queued], 1), first, mask & (values != 1)

    @property
    def size(self) -> int:
        return int(self.log_odds.shape[1])

    def _scores(self, index: Tensor, like: Tensor) -> Tensor:
        odds = self.log_odds[index].to(like.dtype)[..., None]
        return odds if self.head == "sigmoid" else torch.cat([torch.zeros_like(odds), odds], -1)

    @torch.no_grad()
    def _remember(self, scores: Tensor, unlabelled: Tensor, index: Tensor) -> None:
        odds = scores[..., -1] - (scores[..., 0] if self.head == "softmax" else 0)
        for set_index in index.unique().tolist():
            mine = unlabelled & (index == set_index)[:, None]
            fresh = odds[mine].to(self.log_odds.dtype)[: self.size]
            kept = self.log_odds[set_index][: self.size - len(fresh)]
            self.log_odds[set_index] = torch.cat([fresh, kept])
            self.filled[set_index] = min(self.size, int(self.filled[set_index]) + len(fresh))

    # -- like a buffer -------------------------------------------------------------------------

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> PredictionQueue:
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        self.log_odds, self.filled = fn(self.log_odds), fn(self.filled)
        return self

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        for name in KEPT:
            destination[prefix + name] = getattr(self, name)

    def _load_from_state_dict(
        self,
        state_dict: Any,
        prefix: str,
        local_metadata: Any,
        strict: bool,
        missing_keys: list[str],
        unexpected_keys: list[str],
        error_msgs: list[str],
    ) -> None:
        others = {name: value for name, value in state_dict.items() if name not in [prefix + kept for kept in KEPT]}
        super()._load_from_state_dict(others, prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs)
        for name in KEPT:
            mine, given = getattr(self, name), state_dict.get(prefix + name)
            if given is None:
                missing_keys += [prefix + name] if strict else []
            elif given.shape != mine.shape:
                error_msgs.append(
                    f"{prefix}{name} of shape {tuple(given.shape)}; expected {tuple(mine.shape)}. Load it with the "
                    "queue= it was saved with."
                )
            else:
                mine.copy_(given)


def _batch_alone(post: Posterior, layout: BagLayout) -> Posterior:
    """Cut the queue's rows off, and return to the caller's layout."""
    K = layout.max_size
    return replace(
        post,
        labels=layout.restore(post.labels[:, :K], 0.0),
        informed=layout.restore(post.informed[:, :K], False),
        _asked=layout,
    )
