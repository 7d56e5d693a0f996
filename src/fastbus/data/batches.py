"""Batches of whole bags: of similar size, within a budget, the same on every machine that knows the seed.

The batches of an epoch are a pure function of (sizes, options, seed, epoch); they do not depend on how many
processes share the work. Each batch is dealt out among the ranks, so all have the same number of steps. A
rank for which no bag is left repeats the smallest bag of the batch with weight 0. With weighted sums divided
by the weight of the whole batch (`WeakLoss.sums`, summed over ranks), the gradient is that of one process.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fastbus.errors import InputError

Indices = NDArray[np.int64]


class Batch(NamedTuple):
    """Bags of one step on one rank."""

    bags: Indices  # (n,) positions of the bags
    weights: NDArray[np.float32]  # (n,) 1, or 0 for a bag that another rank counts


def epoch_batches(
    sizes: Any,
    *,
    max_instances: int,
    max_bags: int,
    seed: int = 0,
    epoch: int = 0,
    shuffle: bool = True,
    spread: float = 1.5,
) -> list[Indices]:
    """All bags (B,) of an epoch in batches, before they are dealt out.

    max_instances: bags times the longest of them, at most; a larger bag is a batch of its own.
    spread: no batch is padded to more than this factor of its real instances. Bags whose sizes differ by less
        lie in one bucket and are mixed at random; a batch may reach into the next bucket. math.inf: no
        buckets.
    """
    lengths = np.asarray(sizes, dtype=np.int64)
    rng = np.random.Generator(np.random.Philox(np.random.SeedSequence([seed, epoch])))
    order = rng.permutation(len(lengths)) if shuffle else np.arange(len(lengths))
    order = order[np.argsort(_buckets(lengths, spread)[order], kind="stable")]
    batches: list[Indices] = []
    start, longest, real = 0, 0, 0
    for stop, size in enumerate(lengths[order].tolist()):
        padded = (stop - start + 1) * max(longest, size)
        full = stop - start == max_bags or padded > max_instances
        if stop > start and (full or padded > spread * (real + size)):
            batches.append(order[start:stop])
            start, longest, real = stop, 0, 0
        longest, real = max(longest, size), real + size
    batches.append(order[start:])
    if shuffle:
        return [batches[i] for i in rng.permutation(len(batches))]
    return batches


def _buckets(sizes: Indices, spread: float) -> Indices:
    if spread == 1:
        return sizes
    return np.floor(np.log(sizes) / math.log(spread) + 1e-9).astype(np.int64)


def deal(batch: Indices, sizes: Indices, rank: int, world: int) -> Batch:
    """The share of one rank: large bags first, each to the rank with the fewest instances so far."""
    if world == 1:
        return Batch(batch, np.ones(len(batch), dtype=np.float32))
    loads = np.zeros(world, dtype=np.int64)
    owner = np.empty(len(batch), dtype=np.int64)
    for place in np.argsort(-sizes[batch], kind="stable"):
        owner[place] = int(np.argmin(loads))
        loads[owner[place]] += sizes[batch[place]]
    mine = batch[owner == rank]
    if len(mine):
        return Batch(mine, np.ones(len(mine), dtype=np.float32))
    smallest = batch[[int(np.argmin(sizes[batch]))]]
    return Batch(smallest, np.zeros(1, dtype=np.float32))


def padded_share(sizes: Any, batches: Sequence[Indices]) -> float:
    """Padded instances of all batches over real ones: 1 where nothing is wasted."""
    lengths = np.asarray(sizes)
    padded = sum(len(batch) * int(lengths[batch].max()) for batch in batches)
    return padded / sum(int(lengths[batch].sum()) for batch in batches)


class BagBatches:
    """Iterates over the batches of one epoch after the other, from where its state says.

    A full pass moves on to the next epoch. `state_dict` after a batch was drawn points to the batch that
    follows it; loaders that draw ahead of the training step use `seek`.
    """

    def __init__(
        self,
        sizes: Any,
        *,
        max_instances: int = 4096,
        max_bags: int = 64,
        seed: int = 0,
        rank: int = 0,
        world: int = 1,
        shuffle: bool = True,
        spread: float = 1.5,
    ) -> None:
        self.sizes = np.array(sizes, dtype=np.int64)
        if self.sizes.ndim != 1 or len(self.sizes) == 0 or self.sizes.min() < 1:
            raise InputError(f"sizes of shape {self.sizes.shape}; expected (B,) numbers from 1. Leave empty bags out.")
        for name, value, low in (
            ("max_instances", max_instances, 1),
            ("max_bags", max_bags, 1),
            ("seed", seed, 0),
            ("world", world, 1),
        ):
            if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < low:
                raise InputError(f"{name}={value!r}; expected a whole number from {low}. Pass another one.")
        if not 0 <= rank < world:
            raise InputError(f"rank={rank!r} of world={world}; expected 0 to {world - 1}. Pass another one.")
        if not spread >= 1:
            raise InputError(f"spread={spread!r}; expected a factor from 1. Pass e.g. 1.5.")
        self.max_instances, self.max_bags = int(max_instances), int(max_bags)
        self.seed, self.rank, self.world = int(seed), int(rank), int(world)
        self.shuffle, self.spread = shuffle, float(spread)
        self.epoch, self.position = 0, 0
        self._drawn: tuple[tuple[int, int], list[Indices]] | None = None

    def global_batches(self, epoch: int) -> list[Indices]:
        """The batches of an epoch over all ranks; the last epoch asked for is kept."""
        if self._drawn is None or self._drawn[0] != (self.seed, epoch):
            batches = epoch_batches(
                self.sizes,
                max_instances=self.max_instances,
                max_bags=self.max_bags,
                seed=self.seed,
                epoch=epoch,
                shuffle=self.shuffle,
                spread=self.spread,
            )
            self._drawn = ((self.seed, epoch), batches)
        return self._drawn[1]

    def batch(self, epoch: int, position: int) -> Batch:
        """One batch of this rank, by its place."""
        return deal(self.global_batches(epoch)[position], self.sizes, self.rank, self.world)

    def __len__(self) -> int:
        """Batches of the current epoch, the same on every rank; epochs may differ by a few."""
        return len(self.global_batches(self.epoch))

    def __iter__(self) -> Iterator[Batch]:
        epoch = self.epoch
        while self.epoch == epoch:
            at = self.position
            if at + 1 >= len(self):
                self.seek(epoch + 1)
            else:
                self.position = at + 1
            yield self.batch(epoch, at)

    def set_epoch(self, epoch: int) -> None:
        """Begin an epoch; its place is kept where this is the current one."""
        if epoch != self.epoch:
            self.seek(epoch)

    def seek(self, epoch: int, position: int = 0) -> None:
        """Go on with that batch of that epoch."""
        self.epoch, self.position = int(epoch), int(position)

    def state_dict(self) -> dict[str, Any]:
        """Where it stands, and what the batches depend on, as plain numbers."""
        return {"epoch": self.epoch, "position": self.position, **self._options()}

    def _options(self) -> dict[str, Any]:
        return {
            "seed": self.seed,
            "max_instances": self.max_instances,
            "max_bags": self.max_bags,
            "shuffle": self.shuffle,
            "spread": self.spread,
            "sizes": zlib.crc32(self.sizes.astype("<i8").tobytes()),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a state; the number of ranks may be another one, bags and options may not."""
        for name, value in self._options().items():
            if state.get(name) != value:
                raise InputError(
                    f"a state of batches with {name}={state.get(name)!r}; expected {value!r}, as here. "
                    "Resume with the same data and options."
                )
        self.seek(int(state["epoch"]), int(state["position"]))
