"""A fit that ends where it began says so; one that learnt anything is left in peace."""

import warnings
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.datasets import load_digits, load_wine

import fastbus
from fastbus.cli import main
from fastbus.errors import NothingLearntWarning
from fastbus.learner_check import constant_of, warn_of_chance
from fastbus.training.bag_set import BagSet

ROWS, LABELS = load_wine(return_X_y=True)
BAGS = np.random.default_rng(0).permutation(len(ROWS)) // 4  # 45 bags
COUNTS = np.zeros((BAGS.max() + 1, 3), dtype=int)
np.add.at(COUNTS, (BAGS, LABELS), 1)
OPTIONS = {"head": "softmax", "coupling": "auto", "on_impossible": "error"}


def test_similar_pairs_that_stay_at_their_symmetric_start_are_told() -> None:
    data = load_digits()
    small = (data.target < 5).astype(int)
    pairs = np.random.default_rng(0).permutation(len(small))[:600].reshape(300, 2)
    same = (small[pairs[:, 0]] == small[pairs[:, 1]]).astype(int)
    bags = np.repeat(np.arange(300), 2)

    def accuracy(clf: fastbus.WeakClassifier, rows: np.ndarray) -> float:
        share = float((clf.predict(rows) == small).mean())  # which class is which, similarity does not say
        return max(share, 1 - share)

    images = (data.images * 15.9).astype(np.uint8)[:, None]
    stuck = fastbus.WeakClassifier("pair_similarity", n_classes=2, epochs=4, random_state=0)
    with pytest.warns(NothingLearntWarning, match=r"pair_similarity: after 4 epochs .*Train longer") as told:
        stuck.fit(images[pairs.ravel()], same, bags=bags)
    assert told[0].filename == __file__  # the caller's line
    assert accuracy(stuck, images) < 0.6
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        learnt = fastbus.WeakClassifier("pair_similarity", n_classes=2, random_state=0)
        learnt.fit(data.data[pairs.ravel()], same, bags=bags)
    assert accuracy(learnt, data.data) > 0.9


def bag_set(weak: np.ndarray, weights: np.ndarray | None = None) -> BagSet:
    sizes = np.bincount(BAGS)
    order = np.argsort(BAGS, kind="stable")
    given = None if weights is None else torch.from_numpy(weights)
    return BagSet(
        fastbus.LabelProportion(), torch.from_numpy(order), torch.from_numpy(sizes), torch.from_numpy(weak), given
    )


def certain(rows: torch.Tensor) -> torch.Tensor:
    """Logits of the true classes, 9 of 10."""
    return torch.nn.functional.one_hot(torch.from_numpy(LABELS)[rows], 3) * np.log(18.0)


def test_only_bags_that_say_something_and_count_are_asked() -> None:
    def told(data: BagSet) -> bool:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            warn_of_chance(data, certain, OPTIONS, 3)
        return bool(caught)

    turned = COUNTS[:, [1, 2, 0]]  # these predictions deny them
    assert not told(bag_set(COUNTS))
    assert told(bag_set(turned))
    few = np.where(np.arange(len(COUNTS)) < 29, 1.0, 0.0)
    assert not told(bag_set(turned, few))
    missing = np.where(few[:, None] > 0, turned, -1)
    assert not told(bag_set(missing))
    mixed = np.where(np.arange(len(COUNTS))[:, None] < 15, turned, COUNTS)
    assert not told(bag_set(mixed, np.where(np.arange(len(COUNTS)) < 15, 0.0, 1.0)))


def test_the_constant_is_the_mean_prediction() -> None:
    logits = torch.randn(50, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) * 5
    for head, squash in (("softmax", lambda x: x.softmax(-1)), ("sigmoid", torch.sigmoid)):
        found = squash(constant_of(logits, {"head": head}))
        assert torch.allclose(found, squash(logits).mean(0).expand_as(logits), atol=1e-12)


def test_the_command_line_says_it_in_a_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    order = np.argsort(BAGS, kind="stable")
    table = pd.DataFrame(ROWS[order], columns=[f"x{i}" for i in range(ROWS.shape[1])])
    table.insert(0, "bag", BAGS[order])
    table.to_csv(tmp_path / "instances.csv", index=False)
    weak = pd.DataFrame(COUNTS, columns=["weak_a", "weak_b", "weak_c"])
    weak.insert(0, "bag", np.arange(len(COUNTS)))
    weak.to_csv(tmp_path / "bags.csv", index=False)
    words = ["fit", "--supervision", "label_proportion", "--instances", str(tmp_path / "instances.csv"), "--bags"]
    words += [str(tmp_path / "bags.csv"), "--out", str(tmp_path / "run"), "--epochs", "1", "--learning-rate", "1e-9"]
    with warnings.catch_warnings():
        warnings.simplefilter("default", NothingLearntWarning)
        assert main([*words, "--quiet"]) == 0
    lines = [line for line in capsys.readouterr().err.splitlines() if "warning" in line]
    assert len(lines) == 1
    assert lines[0].startswith("fastbus: warning: label_proportion: after 1 epochs")
    assert "--epochs," in lines[0] and "--learning-rate," in lines[0] and ".py" not in lines[0]
