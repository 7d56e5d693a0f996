"""Bags keep every row with its bag, whatever the order of the table, and never guess which label is whose."""

from pathlib import Path

import numpy as np
import pandas as pd
import polars as pl
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.datasets import load_digits, load_iris

import fastbus
from fastbus.bags import Bags
from fastbus.errors import InputError, WeakLabelError

SHARED = Path(__file__).resolve().parents[2] / "shared" / "data"
X = load_iris().data[:7]
IDS = ["bag_10", "bag_2", "bag_10", "bag_2", "bag_1", "bag_10", "bag_1"]


def test_bags_come_in_order_of_first_appearance_and_rows_in_theirs() -> None:
    bags = Bags.from_ids(X, IDS)
    assert bags.ids.tolist() == ["bag_10", "bag_2", "bag_1"]
    assert bags.sizes.tolist() == [3, 2, 2]
    assert bags.offsets.tolist() == [0, 3, 5, 7]
    assert bags.order.tolist() == [0, 2, 5, 1, 3, 4, 6]
    assert len(bags) == 3 and bags.num_instances == 7
    assert np.array_equal(bags[1], X[[1, 3]]) and np.array_equal(bags[-1], X[[4, 6]])
    assert [len(bag) for bag in bags] == [3, 2, 2]
    with pytest.raises(IndexError):
        bags[3]
    assert fastbus.Bags is Bags


def test_a_table_sorted_by_bag_is_not_copied() -> None:
    assert np.shares_memory(Bags.from_ids(X, [5, 5, 5, 2, 2, 9, 9]).instances, X)


def test_without_ids_every_instance_is_its_own_bag() -> None:
    bags = Bags.from_ids(X)
    assert bags.ids.tolist() == list(range(7)) and bags.sizes.tolist() == [1] * 7


@pytest.mark.parametrize(
    "ids",
    [
        np.array([4, 4, 1, 1, 1, 7, 7]),
        [4, 4, 1, 1, 1, 7, 7],
        torch.tensor([4, 4, 1, 1, 1, 7, 7]),
        pd.Series([4, 4, 1, 1, 1, 7, 7]),
        pl.Series([4, 4, 1, 1, 1, 7, 7]),
        np.array([4.0, 4, 1, 1, 1, 7, 7]),
    ],
    ids=["numpy", "list", "tensor", "pandas", "polars", "whole floats"],
)
def test_ids_may_come_in_any_container(ids: object) -> None:
    bags = Bags.from_ids(X, ids)
    assert bags.ids.tolist() == [4, 1, 7] and bags.ids.dtype == np.int64


@given(st.lists(st.integers(0, 6), min_size=1, max_size=40))
def test_restore_undoes_arrange_and_agrees_with_a_plain_loop(ids: list[int]) -> None:
    rows = np.arange(len(ids))
    bags = Bags.from_ids(rows, ids)
    seen = list(dict.fromkeys(ids))
    assert bags.ids.tolist() == seen
    for i, name in enumerate(seen):
        assert bags[i].tolist() == [row for row, other in enumerate(ids) if other == name]
    assert np.array_equal(bags.restore(bags.instances), rows)
    assert np.array_equal(bags.restore(bags.arrange(rows * 3)), rows * 3)


def test_tensors_stay_tensors() -> None:
    bags = Bags.from_ids(torch.from_numpy(X), IDS)
    assert isinstance(bags[0], torch.Tensor)
    assert torch.equal(bags.restore(bags.instances), torch.from_numpy(X))
    assert isinstance(bags.subset([2]).instances, torch.Tensor)


def test_a_subset_keeps_ids_and_places() -> None:
    bags = Bags.from_ids(X, IDS)
    some = bags.subset([2, 0])
    assert some.ids.tolist() == ["bag_1", "bag_10"] and some.order.tolist() == [4, 6, 0, 2, 5]
    assert np.array_equal(some.restore(some.instances), X[[0, 2, 4, 5, 6]])
    assert np.array_equal(bags.subset(np.array([True, False, False])).instances, bags[0])
    assert bags.subset([0, 0]).sizes.tolist() == [3, 3]
    for bad in ([], [3], [-4]):
        with pytest.raises(InputError, match="expected positions"):
            bags.subset(bad)


def test_lists_of_bags() -> None:
    images = load_digits().images
    bags = Bags.from_lists([images[:3], images[3:4], images[4:9]], ids=["a", "b", "c"])
    assert bags.instances.shape == (9, 8, 8) and bags.sizes.tolist() == [3, 1, 5]
    assert np.array_equal(bags[2], images[4:9])
    assert isinstance(Bags.from_lists([torch.zeros(2, 3), torch.ones(1, 3)]).instances, torch.Tensor)


COUNTS = {"bag_1": [1, 1], "bag_2": [0, 2], "bag_10": [3, 0]}
ALIGNED = [[3, 0], [0, 2], [1, 1]]


@pytest.mark.parametrize(
    "weak",
    [
        COUNTS,
        pd.DataFrame(COUNTS.values(), index=list(COUNTS), columns=["cat", "dog"]),
        pd.DataFrame({"cat": [3, 1, 0], "bag": ["bag_10", "bag_1", "bag_2"], "dog": [0, 1, 2]}),
        pl.DataFrame({"bag": ["bag_10", "bag_1", "bag_2"], "cat": [3, 1, 0], "dog": [0, 1, 2]}),
        {bag: torch.tensor(counts) for bag, counts in COUNTS.items()},
    ],
    ids=["mapping", "pandas index", "pandas column", "polars", "tensors"],
)
def test_weak_labels_find_their_bags_by_id(weak: object) -> None:
    bags = Bags.from_ids(X, IDS)
    assert np.asarray(bags.align(weak)).tolist() == ALIGNED


def test_one_value_a_bag_and_combinations() -> None:
    bags = Bags.from_ids(X, IDS)
    series = pd.Series([0.5, 0.25, np.nan], index=["bag_2", "bag_1", "bag_10"])
    first, second = bags.align((series, {"bag_10": 1, "bag_2": 0, "bag_1": -1}))
    assert np.array_equal(first, [np.nan, 0.5, 0.25], equal_nan=True)
    assert second.tolist() == [1, 0, -1]
    frame = pd.DataFrame({"weak": [1, 0, 1]}, index=["bag_10", "bag_2", "bag_1"])
    assert bags.align(frame).shape == (3,)


def test_plain_arrays_are_read_by_integer_id() -> None:
    bags = Bags.from_ids(X, [2, 2, 0, 0, 1, 1, 1])
    assert bags.align([10, 11, 12]).tolist() == [12, 10, 11]
    assert torch.equal(bags.align(torch.tensor([10, 11, 12])), torch.tensor([12, 10, 11]))
    with pytest.raises(WeakLabelError, match="2 weak labels for 3 bags"):
        bags.align([10, 11])


@pytest.mark.parametrize(
    ("ids", "weak", "message"),
    [
        (IDS, [1, 0, 1], "sorts before"),
        ([1, 1, 2, 2, 3, 3, 3], [1, 0, 1], "keyed by bag id"),
        (IDS, {"bag_1": 1, "bag_2": 0}, "bag 'bag_10'"),
        (IDS, {"bag_1": 1, "bag_2": 0, "bag_10": 1, "bag_3": 0}, "bag 'bag_3'"),
        (IDS, {1: 1, 2: 0, 10: 1}, "keyed by whole numbers; expected text"),
        (IDS, {}, "empty mapping"),
        (IDS, pd.Series([1, 0, 1, 1], index=["bag_1", "bag_2", "bag_10", "bag_1"]), "'bag_1' twice"),
        (IDS, pl.DataFrame({"name": ["bag_1"], "weak": [1]}), "expected a column 'bag'"),
        (IDS, {"bag_1": [1, 2], "bag_2": [1], "bag_10": [0, 1]}, "not rows of numbers"),
        (IDS, {"bag_1": "cat", "bag_2": "dog", "bag_10": "cat"}, "not rows of numbers"),
    ],
)
def test_weak_labels_that_do_not_fit_are_refused(ids: list[object], weak: object, message: str) -> None:
    with pytest.raises(WeakLabelError, match=message) as caught:
        Bags.from_ids(X, ids).align(weak)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("instances", "ids", "message"),
    [
        (X, [1, 2], "2 bag ids for 7 instances"),
        (X, [1, 2, "a", 1, 1, 1, 1], "row 2 beside 1"),
        (X, ["a", None, "a", "a", "a", "a", "a"], "row 1"),
        (X, [1, 2.5, 1, 1, 1, 1, 1], "row 1"),
        (X, [1, np.nan, 1, 1, 1, 1, 1], "row 1"),
        (X, ["a", "", "a", "a", "a", "a", "a"], "row 1"),
        (X, np.zeros((7, 2)), "shape"),
        (np.empty((0, 3)), [], "at least one row"),
        ([["a"], ["b"]], [0, 1], "not rows of numbers"),
    ],
)
def test_instances_and_ids_that_do_not_fit_are_refused(instances: object, ids: object, message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        Bags.from_ids(instances, ids)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("bags", "ids", "message"),
    [
        ([], None, "no bags"),
        ([X, X[:0]], None, "bag 1"),
        ([X, X[:, :2]], None, "bag 1 holds"),
        ([X, X], ["a"], "1 bag ids for 2 bags"),
        ([X, X], ["a", "a"], "twice"),
        (np.zeros(3), None, "one array"),
    ],
)
def test_lists_that_do_not_fit_are_refused(bags: object, ids: object, message: str) -> None:
    with pytest.raises(InputError, match=message):
        Bags.from_lists(bags, ids)  # type: ignore[arg-type]


@pytest.mark.skipif(not SHARED.exists(), reason="the folder shared/data with the real bag data is absent")
def test_real_bags_survive_a_shuffle() -> None:
    with np.load(SHARED / "mil_musk1.npz", allow_pickle=False) as file:
        x, bag, label = file["x"], file["bag"], file["bag_label"]
    plain = Bags.from_ids(x, bag)
    assert len(plain) == 92 and plain.num_instances == 476 and plain.sizes.min() == 2
    order = np.random.default_rng(0).permutation(len(x))
    mixed = Bags.from_ids(x[order], bag[order])
    assert np.array_equal(mixed.align(label), label[mixed.ids])
    assert np.array_equal(mixed.restore(mixed.instances), x[order])
    for i in range(5):
        same = plain[int(mixed.ids[i])]
        assert np.array_equal(np.sort(mixed[i], axis=0), np.sort(same, axis=0))


def test_labels_of_named_bags_are_keyed_as_the_docstring_says() -> None:
    ids = np.array(["bag_10", "bag_2", "bag_10", "bag_1", "bag_2", "bag_1"])
    weak = fastbus.weaken("label_proportion", [0, 1, 2, 2, 1, 0], ids)
    assert "dict(zip(dict.fromkeys(ids), weak))" in str(fastbus.weaken.__doc__)
    keyed = dict(zip(dict.fromkeys(ids), weak))  # noqa: B905
    assert {str(bag): counts.tolist() for bag, counts in keyed.items()} == {
        "bag_10": [1, 0, 1], "bag_2": [0, 2, 0], "bag_1": [1, 0, 1]
    }  # fmt: skip
    bags = Bags.from_ids(np.zeros((6, 1)), ids)
    assert np.array_equal(bags.align(keyed), weak)
    with pytest.raises(WeakLabelError, match=r"dict\(zip\(dict\.fromkeys\(ids\), weak\)\)"):
        bags.align(weak)
