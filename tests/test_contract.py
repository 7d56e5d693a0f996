"""check_supervision: passes for every rule that keeps its promises, names the first one broken.

Beside it, what is learned from answers instead of stated: the confusions of noisy labels and of crowds.
"""

import warnings
from collections.abc import Iterator
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import dirichlet_multinomial
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import StratifiedKFold, cross_val_predict
from torch import Tensor

import fastbus
from catalogue import CASES
from fastbus import CrowdLabel, NoisyLabel, PositiveConfidence, Supervision, SupervisionError
from fastbus.bench.own_rules import LastPositive, SumModulo, parity
from fastbus.supervision.base import REGISTRY
from fastbus.supervision.combine import Combination
from fastbus.supervision.confusion import shrunk_rows
from fastbus.testing import check_supervision


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


# -- rules that pass ---------------------------------------------------------------------------


class AtLeast(fastbus.Supervision):  # a new weak label in nine lines, as the documents show it
    def __init__(self, m):
        self.m = m

    def num_states(self, bag_size):
        return self.m + 1

    def step(self, state, label):
        return (state + label).clamp(max=self.m)

    def evidence(self, state, weak):
        return (state == self.m) == weak


# check_supervision finds the heads by itself, so that one row of each supervision is enough
SUPERVISIONS = {name: case.supervision for name, case in CASES.items() if name.endswith(("sigmoid1", "softmax3"))}
SUPERVISIONS["positive_confidence-pconf"] = PositiveConfidence(weighting="pconf")
SUPERVISIONS["label_proportion-tolerance"] = fastbus.LabelProportion(unit="fraction", tolerance=0.1)


def test_the_table_holds_every_kind() -> None:
    """A kind that joins the registry must join the table; sums take other arguments than check does."""
    parts = [
        part
        for supervision in SUPERVISIONS.values()
        for part in (supervision.parts if isinstance(supervision, Combination) else (supervision,))
    ]
    assert {part.name for part in parts if part.name} == set(REGISTRY) - {"similar_dissimilar_unlabeled"}


@pytest.mark.parametrize("name", SUPERVISIONS)
def test_the_catalogue_keeps_the_contract(name: str) -> None:
    known = CASES[name].weak_labels if name in CASES else None
    check_supervision(SUPERVISIONS[name], bag_sizes=(1, 2, 3), weak_labels=known)


@pytest.mark.parametrize("m", [1, 2, 3])
def test_nine_lines_keep_the_contract(m: int) -> None:
    fastbus.testing.check_supervision(AtLeast(m))


def test_probabilities_in_single_precision_keep_the_contract() -> None:
    class Unsure(AtLeast):
        def evidence(self, state: Tensor, weak: Tensor) -> Tensor:
            return torch.where((state == self.m) == weak, 0.9, 0.1)

    check_supervision(Unsure(2))


@pytest.mark.parametrize("seed", range(3))
def test_other_bags_and_labels(seed: int) -> None:
    check_supervision(AtLeast(2), bag_sizes=(2, 5), num_labels=2, seed=seed)
    check_supervision(SumModulo(3, slip=0.2), num_labels=4, weak_labels=(0, 1, 2), seed=seed)
    check_supervision(LastPositive(), bag_sizes=(3,), weak_labels=(0, 1, 2, 3), seed=seed)
    check_supervision(Supervision.from_function(parity, 4), seed=seed)


# -- rules that do not -------------------------------------------------------------------------


class Overflow(AtLeast):
    def step(self, state: Tensor, label: Tensor) -> Tensor:
        return state + label


class Underflow(AtLeast):
    def step(self, state: Tensor, label: Tensor) -> Tensor:
        return state - label


class FloatStates(AtLeast):
    def step(self, state: Tensor, label: Tensor) -> Tensor:
        return (state + 1.0 * label).clamp(max=self.m)


class NotATensor(AtLeast):
    def step(self, state: Tensor, label: Tensor) -> Any:
        return 0


class InPlace(AtLeast):
    def step(self, state: Tensor, label: Tensor) -> Tensor:
        state += label
        return state.clamp_(max=self.m)


class Stateful(AtLeast):
    calls = 0

    def step(self, state: Tensor, label: Tensor) -> Tensor:
        self.calls += 1
        return (state + label + self.calls % 2).clamp(max=self.m)


class NotElementwise(AtLeast):
    def step(self, state: Tensor, label: Tensor) -> Tensor:
        return (state + label.max()).clamp(max=self.m)


class SumsToMore(AtLeast):
    def evidence(self, state: Tensor, weak: Tensor) -> Tensor:
        return (state == self.m) | (weak == 0)


class SumsToLess(AtLeast):
    def evidence(self, state: Tensor, weak: Tensor) -> Tensor:
        return 0.5 * ((state == self.m) == weak).double()


class Scores(AtLeast):
    def evidence(self, state: Tensor, weak: Tensor) -> Tensor:
        return torch.where((state == self.m) == weak, 2.0, -1.0)


class NotANumber(AtLeast):
    def evidence(self, state: Tensor, weak: Tensor) -> Tensor:
        return torch.where((state == self.m) == weak, 1.0, float("nan"))


class WrongShape(AtLeast):
    def evidence(self, state: Tensor, weak: Tensor) -> Tensor:
        return (state == self.m)[:, None] == weak


class LooksAtTheBatch(AtLeast):
    """Right for a single weak label; in a batch every bag gets the evidence of the first one."""

    def evidence(self, state: Tensor, weak: Tensor) -> Tensor:
        return ((state == self.m) == weak[:1]).expand(len(weak), -1)


class Remembers(AtLeast):
    asked = 0

    def evidence(self, state: Tensor, weak: Tensor) -> Tensor:
        self.asked += 1
        needed = self.m if self.asked % 2 else 1
        return (state >= needed) == weak


class NamesItCategorical(AtLeast):
    """Counts positives of one class, and says it reads class indices."""

    labels = "categorical"

    def step(self, state: Tensor, label: Tensor) -> Tensor:
        return torch.tensor([[0, 1], [1, 1]])[state.clamp(max=1), label]

    def num_states(self, bag_size: int) -> int:
        return 2


class FoldIsNoCount(AtLeast):
    """Promises that its state is the count of positives, which it caps."""

    fold = "count"


class FoldIsNotAny(Supervision):
    """Promises that its state is "there is one", and keeps "all are"."""

    fold = "any"

    def num_states(self, bag_size: int) -> int:
        return 3

    def step(self, state: Tensor, label: Tensor) -> Tensor:
        return torch.where(state == 2, 2, torch.where(label == 1, 1, 2))

    def evidence(self, state: Tensor, weak: Tensor) -> Tensor:
        return (state == 1) == weak


class NoStates(AtLeast):
    def num_states(self, bag_size: int) -> int:
        return 0


class HalfAState(AtLeast):
    def num_states(self, bag_size: int) -> float:
        return 1.5


class Unfinished(Supervision):
    def num_states(self, bag_size: int) -> int:
        return 2


class MissingAsALabel(AtLeast):
    def weak_labels(self, bag_size: int) -> tuple[int, ...]:
        return (-1, 1)

    def evidence(self, state: Tensor, weak: Tensor) -> Tensor:
        return (state == self.m) == (weak == 1)


BROKEN: dict[str, tuple[Any, str]] = {
    "step-above": (Overflow(2), r"step\(state=2, label=1\) is 3 in a bag of 3, outside 0 to 2"),
    "step-below": (Underflow(2), r"step\(state=0, label=1\) is -1 .* outside 0 to 2"),
    "step-float": (FloatStates(2), "step does not return an integer tensor"),
    "step-number": (NotATensor(2), "step does not return an integer tensor"),
    "step-in-place": (InPlace(2), "step changes its input in place"),
    "step-stateful": (Stateful(2), "step gives two answers to one question"),
    "step-not-elementwise": (NotElementwise(2), "step on whole tensors differs from step on single"),
    "evidence-over-one": (SumsToMore(2), r"evidence of all weak labels at state 2 sums to 2 .*not to 1"),
    "evidence-under-one": (SumsToLess(2), r"at state \d sums to 0.5 .*not to 1"),
    "evidence-scores": (Scores(2), r"evidence of weak label 0 leaves \[0, 1\]"),
    "evidence-nan": (NotANumber(2), r"evidence of weak label 0 leaves \[0, 1\]"),
    "evidence-shape": (WrongShape(2), r"evidence .* does not have shape \(1, 3\)"),
    "evidence-of-neighbours": (LooksAtTheBatch(2), "evidence of several weak labels differs from"),
    "evidence-stateful": (Remembers(2), "evidence gives two answers to one question"),
    "labels-categorical": (NamesItCategorical(2), "step fails for labels 0 to 2 .*categorical"),
    "fold-count": (FoldIsNoCount(2), 'fold = "count"'),
    "fold-any": (FoldIsNotAny(), 'fold = "any"'),
    "no-states": (NoStates(2), r"num_states\(1\) returned 0"),
    "half-a-state": (HalfAState(2), r"num_states\(1\) returned 1.5"),
    "no-step": (Unfinished(), "has no step"),
    "missing-as-a-label": (MissingAsALabel(2), "weak label -1 would be read as a missing one"),
    "a-class": (AtLeast, "is no Supervision"),
    "a-name": ("multi_instance", "is no Supervision"),
    "a-function": (parity, "is no Supervision"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_broken_rules_are_told_apart(name: str) -> None:
    rule, message = BROKEN[name]
    with pytest.raises(SupervisionError, match=message):
        check_supervision(rule)


def test_unknown_weak_labels_are_asked_for() -> None:
    class Open(AtLeast):
        def weak_labels(self, bag_size: int) -> None:
            return None

    with pytest.raises(SupervisionError, match="Pass weak_labels="):
        check_supervision(Open(2))
    check_supervision(Open(2), weak_labels=(0, 1))


# -- confusions from answers -------------------------------------------------------------------


@cache
def digits() -> tuple[np.ndarray, np.ndarray]:
    features, truth = load_digits(return_X_y=True)
    return features / 16, truth


def answered(truth: np.ndarray, confusion: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Draw an answer from row y of the confusion for every true class y."""
    wrong = rng.random((len(truth), 1)) > confusion[truth].cumsum(1)
    return wrong.sum(1).clip(max=len(confusion) - 1)


def out_of_fold(labels: np.ndarray) -> Tensor:
    """Log probabilities (N, C) of models that were trained on the other instances' labels."""
    folds = StratifiedKFold(5, shuffle=True, random_state=0)
    model = LogisticRegression(C=0.1, max_iter=300)
    features, _ = digits()
    return torch.from_numpy(cross_val_predict(model, features, labels, cv=folds, method="predict_log_proba"))


def symmetric(rate: float, C: int = 10) -> np.ndarray:
    return np.where(np.eye(C, dtype=bool), 1 - rate, rate / (C - 1))


def biased(rate: float, rng: np.random.Generator, C: int = 10) -> np.ndarray:
    """Wrong in a few favourite ways."""
    return (1 - rate) * np.eye(C) + rate * rng.dirichlet(np.full(C, 0.5), C)


@pytest.mark.parametrize("rate", [0.0, 0.3, 0.6])
@pytest.mark.parametrize("seed", [0, 1])
def test_rate_of_noisy_labels(rate: float, seed: int) -> None:
    """From models that learned the noisy labels themselves, which foretell the noise as well."""
    _, truth = digits()
    weak = answered(truth, symmetric(rate), np.random.default_rng(seed))
    matrix = NoisyLabel.estimate(out_of_fold(weak), torch.from_numpy(weak)).transition
    assert 1 - float(matrix.diagonal().mean()) == pytest.approx(rate, abs=0.05)
    off = np.abs(matrix.numpy() - symmetric(rate))
    # about 90 labels of a class are counted, so that an entry alone would have a deviation of up to .05
    assert off.mean() < 0.01 and off.max() < 0.1


def test_noisy_labels_may_be_missing_and_classes_unseen() -> None:
    """Without a label there is no count, and a row without counts is like the others."""
    log_prob = torch.log_softmax(10 * torch.eye(3, dtype=torch.float64)[[0, 0, 1, 1]], -1)
    matrix = NoisyLabel.estimate(log_prob, torch.tensor([0, -1, 2, -1]), share=1.0).transition
    right = (1 + 4 / 3) / (2 + 2)  # of two labels, beside a pseudo-label on the diagonal and one that is spread
    assert float(matrix[2, 2]) == pytest.approx(right)
    assert float(matrix[2, 0]) == pytest.approx((1 - right) / 2) == float(matrix[2, 1])
    assert matrix[0, 0] > matrix[2, 2] and matrix[1, 2] > matrix[1, 0]
    torch.testing.assert_close(matrix.sum(1), torch.ones(3, dtype=torch.float64))


def test_rows_of_a_confusion_share_what_they_have_in_common() -> None:
    """Of two strengths the one is taken under which, by scipy's distributions, the counts are more probable."""
    rng = np.random.default_rng(0)
    even, favourite = symmetric(0.4, 6), 0.6 * np.eye(6) + 0.4 * np.roll(np.eye(6), 1, 1)
    for truth, alike in ((even, True), (favourite, False)):
        counts = np.stack([rng.multinomial(60, row) for row in truth]).astype(float)
        wrong = counts[~np.eye(6, dtype=bool)].reshape(6, 5)
        weak, strong = (
            sum(dirichlet_multinomial.logpmf(row, np.full(5, a / 5), int(row.sum())) for row in wrong) for a in (1, 1e5)
        )
        assert (strong > weak) == alike
        matrix = shrunk_rows(torch.from_numpy(counts)).numpy()
        plain = counts / counts.sum(1, keepdims=True)
        assert np.abs(matrix - truth).mean() < np.abs(plain - truth).mean()
        assert np.abs(matrix - truth).max() < 0.05


@pytest.mark.parametrize("seed", [0, 1])
def test_confusions_of_a_crowd(seed: int) -> None:
    """Five annotators of whom the last is wrong more often than not; a third of the answers missing."""
    _, truth = digits()
    rng = np.random.default_rng(seed)
    confusions = np.stack([biased(rate, rng) for rate in (0.1, 0.2, 0.3, 0.4, 0.6)])
    answers = np.stack([answered(truth, confusion, rng) for confusion in confusions], 1)
    answers[rng.random(answers.shape) < 1 / 3] = -1
    votes = np.array([np.bincount(row[row >= 0], minlength=10).argmax() for row in answers])
    crowd = CrowdLabel.estimate(out_of_fold(votes), torch.from_numpy(answers))
    off = np.abs(crowd.transitions.numpy() - confusions)
    # about 120 answers to a class: an entry has a deviation of up to .05, and there are 500 of them
    assert off.mean() < 0.02 and off.max() < 0.16
    # the order of the annotators by reliability comes out right, and the estimate pays
    diagonal = crowd.transitions.diagonal(dim1=1, dim2=2).mean(-1)
    assert diagonal.argsort(descending=True).tolist() == [0, 1, 2, 3, 4]
    flat = torch.zeros(len(truth), 1, 10, dtype=torch.float64)
    said = torch.from_numpy(answers)
    found = fastbus.infer(crowd, flat, said).labels[:, 0].argmax(-1).numpy()
    assert (found == truth).mean() > (votes == truth).mean() + 0.05


def test_three_annotators_must_overlap() -> None:
    rng = np.random.default_rng(0)
    truth = rng.integers(0, 3, 60)
    log_prob = torch.from_numpy(np.log(np.full((60, 3), 1 / 3)))
    answers = torch.from_numpy(np.stack([answered(truth, symmetric(0.2, 3), rng) for _ in range(4)], 1))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        CrowdLabel.estimate(log_prob, answers)
        CrowdLabel.estimate(log_prob, answers[:, :3])
    with pytest.warns(UserWarning, match="fewer than 3 annotators overlap"):
        CrowdLabel.estimate(log_prob, answers[:, :2])
    # four annotators, but never three at one instance
    apart = answers.clone()
    apart[:30, 2:] = -1
    apart[30:, :2] = -1
    with pytest.warns(UserWarning, match="fewer than 3 annotators overlap"):
        CrowdLabel.estimate(log_prob, apart)


def test_answers_from_a_table() -> None:
    task, worker, label = [0, 2, 0, 3, 2], [1, 0, 0, 2, 1], [4, 0, 1, 2, 3]
    expected = torch.tensor([[1, 4, -1], [-1, -1, -1], [0, 3, -1], [-1, -1, 2]])
    assert torch.equal(fastbus.answers_from_table(task, worker, label), expected)
    columns = [np.array(column) for column in (task, worker, label)]
    assert torch.equal(fastbus.answers_from_table(*columns), expected)
    post = fastbus.infer(CrowdLabel(rate=0.2), torch.zeros(4, 1, 5), expected)
    torch.testing.assert_close(post.labels[1, 0], torch.full((5,), 0.2))  # nobody answered
    # two disagree: .8 * .05 for each of their classes, .05 * .05 for the others
    weights = torch.tensor([0.0025, 0.04, 0.0025, 0.0025, 0.04])
    torch.testing.assert_close(post.labels[0, 0], weights / weights.sum())
