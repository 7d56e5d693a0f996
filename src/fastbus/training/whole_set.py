"""Inference over a whole set, in parts that fit into memory, with complaints that name the caller's bags.

Flat logits (N, C) with sizes (B,). Sets of known prior are cut into draws of at most 1,024 instances, spread
evenly over the rows, since their statement holds for any draw.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fastbus.errors import InputError, WeakLabelError
from fastbus.inference.infer import infer
from fastbus.supervision.base import Supervision
from fastbus.supervision.incomplete import UnlabeledUnlabeled
from fastbus.training.bag_set import BagSet

MAX_BAGS, MAX_PADDED, MAX_DRAW, MAX_FORWARD = 512, 16_384, 1024, 4096


class SetPosterior(NamedTuple):
    """Posterior of the labels (N, C); log P(w | x) of each bag or draw, whether it is exact, how it was found."""

    labels: Tensor
    log_likelihood: Tensor
    exact_bags: Tensor
    coupling: tuple[str, ...]


class _Part(NamedTuple):
    rows: Tensor
    sizes: Tensor
    weak: Any
    bags: NDArray[Any] | None  # ids of the bags, where there are given ones


def infer_set(data: BagSet, logits: Tensor, ids: NDArray[Any] | None = None, **options: Any) -> SetPosterior:
    """Infer all bags of a set from its logits."""
    labels = torch.zeros_like(logits)
    values, exact, coupling = [], [], []
    for part in _draws(data) if data.is_set else _groups(data, ids):
        try:
            post = infer(data.supervision, logits[part.rows], part.weak, bag_sizes=part.sizes, **options)
        except WeakLabelError as problem:
            raise type(problem)(_named(str(problem), part.bags)) from None
        labels[part.rows] = post.labels
        values.append(post.log_likelihood)
        exact.append(post.exact_bags)
        coupling += post.coupling
    return SetPosterior(labels, torch.cat(values), torch.cat(exact), tuple(coupling))


def _groups(data: BagSet, ids: NDArray[Any] | None) -> Iterator[_Part]:
    """Bags in their order, as many at a time as stay small when padded."""
    names = np.arange(len(data)) if ids is None else ids
    sizes = data.sizes.tolist()
    start, longest = 0, 0
    for bag in range(len(sizes) + 1):
        if bag < len(sizes):
            longest = max(longest, sizes[bag])
            count = bag + 1 - start
            if bag == start or (count <= MAX_BAGS and count * longest <= MAX_PADDED):
                continue
        chosen = torch.arange(start, bag)
        batch = data.batch(chosen)
        yield _Part(data.rows(chosen), batch.sizes, batch.weak, names[start:bag])
        start, longest = bag, sizes[bag] if bag < len(sizes) else 0


def _draws(data: BagSet) -> Iterator[_Part]:
    weak = data.parts_of(data.weak)
    index = torch.zeros(len(data.instances), dtype=torch.long)
    for part, values in zip(data.parts, weak, strict=True):
        if isinstance(part, UnlabeledUnlabeled):
            index = values.long()
    for number in index.unique().tolist():
        rows = torch.nonzero(index == number).flatten()
        count = -(-len(rows) // MAX_DRAW)
        for first in range(count):
            chosen = rows[first::count]
            picked = tuple(
                torch.tensor([number]) if isinstance(part, UnlabeledUnlabeled) else values[chosen]
                for part, values in zip(data.parts, weak, strict=True)
            )
            yield _Part(chosen, torch.tensor([len(chosen)]), picked if len(picked) > 1 else picked[0], None)


def _named(message: str, bags: NDArray[Any] | None) -> str:
    """The same complaint with the caller's bag id instead of a position."""
    if bags is None:
        return message

    def rename(match: re.Match[str]) -> str:
        position = int(match[1])
        return f"; bag {bags[position].item()!r}" if position < len(bags) else match[0]

    return re.sub(r"; bag (\d+)", rename, message)


def supervised_by(data: BagSet, supervision: Supervision) -> BagSet:
    """The same set under another supervision of the same weak labels."""
    return BagSet(supervision, data.instances, data.sizes, data.weak, data.bag_weights, data.sample_weights)


def split_bags(data: BagSet, share: float, seed: int) -> tuple[BagSet, BagSet | None]:
    """Bags to train on, and bags to watch."""
    if share == 0:
        return data, None
    order = torch.randperm(len(data), generator=torch.Generator().manual_seed(seed))
    cut = max(1, round(share * len(data)))
    if cut >= len(data):
        raise InputError(f"held_out={share} of {len(data)} bags leaves none to train on; expected a smaller share.")
    return data.subset(order[cut:].sort().values), data.subset(order[:cut].sort().values)


@torch.no_grad()
def forward_rows(
    network: nn.Module,
    rows: Tensor,
    prepare: Callable[[Tensor], Tensor] | None = None,
    device: torch.device | None = None,
) -> Tensor:
    """Logits (N, C) on the CPU of all rows, prepared, in evaluation mode and in parts."""
    network.eval()
    if device is not None:
        network.to(device)
    found = []
    for part in rows.split(MAX_FORWARD):
        ready = part if prepare is None else prepare(part)
        found.append(network(ready if device is None else ready.to(device)).cpu())
    network.cpu()
    return torch.cat(found)
