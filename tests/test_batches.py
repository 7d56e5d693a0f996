"""Batches hold whole bags of similar size, waste little, and are the same for every number of processes."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

from fastbus.bags import Bags
from fastbus.data.batches import BagBatches, deal, epoch_batches, padded_share
from fastbus.errors import InputError
from fastbus.objective import WeakLoss

SHARED = Path(__file__).resolve().parents[2] / "shared" / "data"
# from 2 to 10,000 instances, most of them small: the digits a bag would hold if it were one digit's scans
WIDE = np.concatenate([np.full(200, 2), np.bincount(load_digits().target), np.geomspace(3, 10_000, 150).astype(int)])


def test_every_bag_comes_once_and_no_batch_is_too_large() -> None:
    batches = epoch_batches(WIDE, max_instances=4096, max_bags=32, seed=3)
    assert sorted(np.concatenate(batches).tolist()) == list(range(len(WIDE)))
    for batch in batches:
        assert len(batch) <= 32
        assert len(batch) == 1 or len(batch) * WIDE[batch].max() <= 4096
    giants = [batch for batch in batches if WIDE[batch].max() > 4096]
    assert len(giants) == (WIDE > 4096).sum() and all(len(batch) == 1 for batch in giants)


def test_padding_is_low_with_buckets_and_high_without() -> None:
    options = {"max_instances": 20_000, "max_bags": 32, "seed": 0}
    batches = epoch_batches(WIDE, **options)
    plain = padded_share(WIDE, epoch_batches(WIDE, spread=math.inf, **options))
    assert padded_share(WIDE, batches) < 1.2
    assert plain > 2
    assert all(padded_share(WIDE, [batch]) <= 1.5 for batch in batches)
    assert padded_share(WIDE, epoch_batches(WIDE, spread=1.0, **options)) == 1


@pytest.mark.skipif(not SHARED.exists(), reason="the folder shared/data with the real bag data is absent")
@pytest.mark.parametrize("name", ["mil_musk1", "mil_elephant", "mil_fox"])
def test_padding_of_real_bags(name: str) -> None:
    with np.load(SHARED / f"{name}.npz", allow_pickle=False) as file:
        sizes = Bags.from_ids(file["x"], file["bag"]).sizes
    shares = [
        padded_share(sizes, epoch_batches(sizes, max_instances=512, max_bags=16, seed=0, epoch=epoch))
        for epoch in range(5)
    ]
    assert max(shares) < 1.3


def test_an_epoch_is_a_pure_function_of_seed_and_epoch() -> None:
    def drawn(seed: int, epoch: int) -> list[list[int]]:
        state = np.random.get_state()[1].copy()  # noqa: NPY002 - the global generator must not be touched
        batches = epoch_batches(WIDE, max_instances=4096, max_bags=32, seed=seed, epoch=epoch)
        assert np.array_equal(np.random.get_state()[1], state)  # noqa: NPY002
        return [batch.tolist() for batch in batches]

    assert drawn(1, 2) == drawn(1, 2)
    assert drawn(1, 2) != drawn(1, 3) != drawn(2, 3)
    # equal sizes mix: the companions of a bag change from epoch to epoch
    first, second = ({frozenset(batch) for batch in drawn(1, epoch) if len(batch) > 8} for epoch in (0, 1))
    assert len(first) > 5 and len(first & second) < len(first) / 2


def test_without_shuffling_bags_of_one_size_keep_their_order() -> None:
    batches = epoch_batches([3] * 10, max_instances=12, max_bags=64, shuffle=False)
    assert [batch.tolist() for batch in batches] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]


@pytest.mark.parametrize("world", [1, 2, 3, 8])
def test_ranks_share_every_batch_and_have_the_same_number(world: int) -> None:
    ranks = [BagBatches(WIDE, max_instances=4096, max_bags=12, seed=5, rank=rank, world=world) for rank in range(world)]
    assert len({len(rank) for rank in ranks}) == 1
    whole = ranks[0].global_batches(0)
    for batch, *shares in zip(whole, *ranks, strict=True):
        counted = np.concatenate([share.bags[share.weights == 1] for share in shares])
        assert sorted(counted.tolist()) == sorted(batch.tolist())
        repeated = [share for share in shares if (share.weights == 0).any()]
        assert all(len(share.bags) == 1 and share.bags[0] in batch for share in repeated)
        assert len(repeated) == max(0, world - len(batch))


def test_ranks_get_about_as_many_instances() -> None:
    sizes = np.array([100, 1, 1, 50, 49, 2, 30, 68])
    loads = [int(sizes[deal(np.arange(8), sizes, rank, 2).bags].sum()) for rank in range(2)]
    assert abs(loads[0] - loads[1]) <= 5


@pytest.mark.parametrize("world", [2, 5])
def test_shares_add_up_to_the_gradient_of_one_process(world: int) -> None:
    digits = load_digits()
    sizes = np.array([2, 40, 7, 3])  # fewer bags than ranks where there are five
    bags = Bags.from_ids(torch.from_numpy(digits.data[: sizes.sum()] / 16), np.repeat(np.arange(4), sizes))
    labels = torch.from_numpy(digits.target[: sizes.sum()])
    counts = torch.stack([torch.bincount(part, minlength=10) for part in labels.split(sizes.tolist())])
    loss = WeakLoss("label_proportion", coupling="independent")

    def gradient(share_rank: int, share_world: int) -> tuple[torch.Tensor, torch.Tensor]:
        (whole,) = epoch_batches(sizes, max_instances=1000, max_bags=8, spread=math.inf)
        share = deal(whole, sizes, share_rank, share_world)
        weight = torch.full((64, 10), 0.01, dtype=torch.float64).tril().requires_grad_()
        some = bags.subset(share.bags)
        sums = loss.sums(
            some.instances @ weight,
            counts[share.bags],
            bag_sizes=torch.from_numpy(some.sizes),
            bag_weights=torch.from_numpy(share.weights),
        )
        (slope,) = torch.autograd.grad(sums.per_bag.sum(), weight)
        return slope, sums.terms

    alone, terms = gradient(0, 1)
    parts = [gradient(rank, world) for rank in range(world)]
    together = sum(slope for slope, _ in parts) / sum(count for _, count in parts)
    assert torch.allclose(together, alone / terms, rtol=1e-9, atol=1e-12)


def test_a_state_resumes_in_the_middle_of_an_epoch() -> None:
    straight = BagBatches(WIDE, seed=9)
    expected = [batch.bags.tolist() for _ in range(3) for batch in straight]
    assert straight.epoch == 3
    for stop in (0, 1, len(expected) // 2, len(expected) - 1):
        first, drawn = BagBatches(WIDE, seed=9), []
        while len(drawn) < stop:
            for batch in first:
                drawn.append(batch.bags.tolist())
                if len(drawn) == stop:
                    break
        state = json.loads(json.dumps(first.state_dict()))
        second = BagBatches(WIDE, seed=9)
        second.load_state_dict(state)
        second.set_epoch(second.epoch)  # as a trainer does before each epoch
        while second.epoch < 3:
            drawn += [batch.bags.tolist() for batch in second]
        assert drawn == expected


def test_a_state_of_other_data_or_options_is_refused() -> None:
    state = BagBatches(WIDE, seed=9).state_dict()
    for other in (
        BagBatches(WIDE[1:], seed=9),
        BagBatches(WIDE, seed=8),
        BagBatches(WIDE, seed=9, max_bags=2),
    ):
        with pytest.raises(InputError, match="same data and options"):
            other.load_state_dict(state)
    BagBatches(WIDE, seed=9, rank=1, world=2).load_state_dict(state)


@pytest.mark.parametrize(
    "options",
    [
        {"max_instances": 0},
        {"max_bags": 0},
        {"seed": -1},
        {"world": 0},
        {"rank": 1},
        {"spread": 0.5},
        {"max_bags": 2.5},
    ],
)
def test_options_that_make_no_sense_are_refused(options: dict[str, object]) -> None:
    with pytest.raises(InputError, match=next(iter(options))):
        BagBatches([1, 2], **options)  # type: ignore[arg-type]
    for sizes in ([], [0, 2], [[1]]):
        with pytest.raises(InputError, match="sizes of shape"):
            BagBatches(sizes)


def test_a_million_bags_are_dealt_out_quickly() -> None:
    rng = np.random.default_rng(0)
    sizes = rng.integers(2, 40, 1_000_000)
    batches = epoch_batches(sizes, max_instances=4096, max_bags=512)
    assert sum(map(len, batches)) == 1_000_000
