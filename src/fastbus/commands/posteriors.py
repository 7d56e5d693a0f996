"""Inference over a chunk of weak data: groups of bags that stay small when padded, complaints that name bags."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fastbus.data.dataset import WeakData
from fastbus.errors import FastbusError, ImpossibleEvidenceWarning
from fastbus.inference.infer import infer
from fastbus.inference.posterior import Posterior
from fastbus.supervision.base import Supervision

SET_ROWS = 1024  # a draw of a set of known prior, where the table names no bags
MAX_PADDED = 65_536  # instances of a group of bags, padded to the longest


class ChunkPosterior(NamedTuple):
    """Of the rows P(y | x, w) (n, C); of each bag log P(w | x), whether that is exact, whether it was ignored."""

    labels: NDArray[Any]
    log_likelihood: NDArray[Any]
    exact: NDArray[np.bool_]
    ignored: NDArray[np.bool_]


def infer_chunk(
    supervision: Supervision, chunk: WeakData, draw: bool, source: str, asked: dict[str, Any]
) -> ChunkPosterior:
    """Infer the bags of a chunk, whose instances are predictions; `draw`: all of its rows are one bag."""
    logits = torch.from_numpy(np.asarray(chunk.bags.instances, dtype=np.float64))
    labels, found = np.empty(tuple(logits.shape)), []
    for rows, sizes, weak, ids in _groups(chunk, draw):
        try:
            with warnings.catch_warnings(), torch.no_grad():
                warnings.simplefilter("ignore", ImpossibleEvidenceWarning)
                post = infer(supervision, logits[rows], weak, bag_sizes=sizes, **asked)
        except FastbusError as problem:
            raise type(problem)(f"{source}: {_named(str(problem), ids)}") from None
        labels[rows] = post.labels.numpy()
        found.append((post.log_likelihood.numpy(), post.exact_bags.numpy(), post.ignored.numpy()))
    return ChunkPosterior(labels, *(np.concatenate(entries) for entries in zip(*found, strict=True)))


def infer_bag(
    supervision: Supervision, predictions: Tensor, bag: WeakData, source: str, asked: dict[str, Any]
) -> Posterior:
    """The posterior of one bag, or of the rows of a draw, with predictions (K, C)."""
    K = len(predictions)
    weak = _picked(bag, slice(0, len(bag)), slice(0, K))
    try:
        with torch.no_grad():
            return infer(supervision, predictions, weak, bag_sizes=torch.tensor([K]), **asked)
    except FastbusError as problem:
        raise type(problem)(f"{source}: {_named(str(problem), bag.bags.ids)}") from None


def _groups(chunk: WeakData, draw: bool) -> Iterator[tuple[slice, Any, Any, NDArray[Any] | None]]:
    """Rows, sizes, weak labels and ids of bags, as many at a time as stay small when padded."""
    sizes, offsets = chunk.bags.sizes, chunk.bags.offsets
    if draw:
        whole = slice(0, len(sizes))
        yield whole, torch.tensor([len(sizes)]), _picked(chunk, whole, whole), None
        return
    start = 0
    while start < len(sizes):
        stop, longest = start, 0
        while stop < len(sizes):
            longest = max(longest, int(sizes[stop]))
            if stop > start and longest * (stop + 1 - start) > MAX_PADDED:
                break
            stop += 1
        bags, rows = slice(start, stop), slice(int(offsets[start]), int(offsets[stop]))
        yield rows, torch.from_numpy(sizes[bags]), _picked(chunk, bags, rows), chunk.bags.ids[bags]
        start = stop


def _picked(chunk: WeakData, bags: slice, rows: slice) -> Any:
    def part(weak: Any) -> Any:
        return torch.from_numpy(np.ascontiguousarray(weak[bags] if len(weak) == len(chunk) else weak[rows]))

    return tuple(map(part, chunk.weak)) if isinstance(chunk.weak, tuple) else part(chunk.weak)


def _named(message: str, ids: NDArray[Any] | None) -> str:
    """The same complaint with the id of the bag instead of its position."""
    if ids is None:
        return message

    def rename(match: re.Match[str]) -> str:
        position = int(match[1])
        return f"; bag {ids[position].item()!r}" if position < len(ids) else match[0]

    return re.sub(r"; bag (\d+)", rename, message)
