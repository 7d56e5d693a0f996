"""aggregate_crowd against enumeration, against cases worked by hand, and what it refuses."""

import itertools
import math
from pathlib import Path

import numpy as np
import pytest
import torch

import fastbus
from fastbus.errors import InputError, WeakLabelError

SHARED = Path(__file__).resolve().parents[2] / "shared" / "data"


def log_beta(values: np.ndarray) -> float:
    return sum(math.lgamma(value) for value in values) - math.lgamma(float(values.sum()))


def enumerated(answers: np.ndarray, pseudo: np.ndarray) -> np.ndarray:
    """P(class | all answers) with confusions and prior integrated out, by summing over every labelling."""
    (N, A), C = answers.shape, len(pseudo)
    total, weights = np.zeros((N, C)), 0.0
    for labelling in itertools.product(range(C), repeat=N):
        log_weight = log_beta(np.bincount(labelling, minlength=C) + 1.0)
        for annotator in range(A):
            counts = np.zeros((C, C))
            for task, y in enumerate(labelling):
                if answers[task, annotator] >= 0:
                    counts[y, answers[task, annotator]] += 1
            log_weight += sum(log_beta(counts[y] + pseudo[y]) - log_beta(pseudo[y]) for y in range(C))
        weight = math.exp(log_weight)
        weights += weight
        total[np.arange(N), labelling] += weight
    return total / weights


def test_near_the_enumerated_posterior() -> None:
    """Three careful annotators and one who guesses; two classes, nine tasks, all 512 labellings."""
    rng = np.random.default_rng(3)
    truth = np.array([0, 1, 0, 1, 1, 0, 1, 0, 0])
    answers = np.stack([np.where(rng.random(9) < wrong, 1 - truth, truth) for wrong in (0.1, 0.2, 0.2, 0.5)], 1)
    answers[[1, 4], [0, 2]] = -1
    found = fastbus.aggregate_crowd(answers, strength=8.0)
    exact = enumerated(answers, found.pseudo_answers.numpy())
    majority = np.stack([(answers == y).sum(1) for y in (0, 1)], 1) / (answers >= 0).sum(1, keepdims=True)
    off = np.abs(found.posterior.numpy() - exact)
    assert off.mean() < 0.03 and off.max() < 0.1
    assert off.mean() < 0.3 * np.abs(majority - exact).mean()


def test_a_fixed_point_of_the_stated_equation() -> None:
    """Each answer is weighed by what the other tasks say about its annotator: spelt out in plain loops."""
    rng = np.random.default_rng(0)
    answers = rng.integers(-1, 3, (12, 4))
    answers[:, 0] = np.arange(12) % 3
    found = fastbus.aggregate_crowd(answers, num_classes=3, tolerance=1e-12, rounds=20_000)
    assert found.converged
    posterior, pseudo = found.posterior.numpy(), found.pseudo_answers.numpy()
    for task in range(12):
        others = np.delete(np.arange(12), task)
        score = posterior[others].sum(0) + 1
        for annotator in np.nonzero(answers[task] >= 0)[0]:
            for y in range(3):
                said = answers[others, annotator]
                seen = (
                    posterior[others[said == answers[task, annotator]], y].sum() + pseudo[y, answers[task, annotator]]
                )
                score[y] *= seen / (posterior[others[said >= 0], y].sum() + pseudo[y].sum())
        np.testing.assert_allclose(posterior[task], score / score.sum(), atol=1e-8)


def test_worked_by_hand() -> None:
    """One task, a known prior: the strength fixes every confusion, so Bayes' rule is all there is.

    From the votes (2/3, 1/3) the pooled rows are (2/3 + 2/3 + 1.5, ...): see the numbers below.
    """
    answers = torch.tensor([[0, 0, 1]])
    found = fastbus.aggregate_crowd(answers, prior=[0.5, 0.5], strength=10.0, rounds=1)
    # expected counts: class 0 meets 4/3 zeros and 2/3 ones, class 1 meets 2/3 zeros and 1/3 ones
    rows = np.array([[4 / 3 + 1.5, 2 / 3 + 0.5], [2 / 3 + 0.5, 1 / 3 + 1.5]])
    rows = rows / rows.sum(1, keepdims=True)
    odds = (rows[0, 0] ** 2 * rows[0, 1]) / (rows[1, 0] ** 2 * rows[1, 1])
    assert float(found.posterior[0, 0]) == pytest.approx(odds / (1 + odds), abs=1e-12)
    assert not found.converged and found.rounds == 1


def test_tables_and_arrays_agree_and_silent_tasks_follow_the_prior() -> None:
    answers = np.array([[0, 0, 1, -1], [1, 1, 1, 1], [-1, -1, -1, -1], [2, 2, 0, 2], [0, 0, 0, -1]])
    task, worker = np.nonzero(answers >= 0)
    array = fastbus.aggregate_crowd(answers)
    table = fastbus.aggregate_crowd((task, worker, answers[task, worker]))
    torch.testing.assert_close(array.posterior, table.posterior)
    assert array.labels[[0, 1, 3, 4]].tolist() == [0, 1, 2, 0]
    others = array.posterior[[0, 1, 3, 4]].sum(0) + 1
    torch.testing.assert_close(array.posterior[2], others / others.sum(), atol=1e-4, rtol=0)
    torch.testing.assert_close(array.transitions.sum(-1), torch.ones(4, 3).double())
    fastbus.CrowdLabel(array.transitions)  # fits where confusions are asked for


@pytest.mark.skipif(not SHARED.exists(), reason="the folder shared/data with the real crowds is absent")
def test_better_than_the_majority_on_real_faces() -> None:
    with np.load(SHARED / "crowd_face.npz", allow_pickle=False) as arrays:
        table = tuple(arrays[name].astype(np.int64) for name in ("task", "worker", "label"))
        truth = arrays["truth"]
    answers = fastbus.answers_from_table(*table)
    votes = torch.stack([(answers == y).sum(1) for y in range(4)], 1)
    found = fastbus.aggregate_crowd(table).labels.numpy()
    assert (found == truth).mean() > (votes.argmax(1).numpy() == truth).mean() + 0.01


def test_too_little_overlap_is_said() -> None:
    with pytest.warns(UserWarning, match="fewer than 3 annotators overlap"):
        fastbus.aggregate_crowd([[0, 1, -1], [1, -1, 1]])


@pytest.mark.parametrize(
    ("answers", "options", "error", "text"),
    [
        ([[0.0, 1.0]], {}, WeakLabelError, "expected integers"),
        ([0, 1], {}, WeakLabelError, r"shape \(2,\); expected \(N, A\)"),
        ([[0, 1, 5]], {"num_classes": 3}, WeakLabelError, "answer 5; expected class indices 0 to 2"),
        ([[0, -2, 1]], {}, WeakLabelError, "answer -2"),
        ([[0, 0, 0]], {}, InputError, "1 classes; expected 2 or more"),
        (([0], [0]), {}, WeakLabelError, "2 columns"),
        ([[0, 1, 1]], {"strength": 0.0}, InputError, "strength=0.0"),
        ([[0, 1, 1]], {"prior": [0.5, 0.6]}, InputError, "sum to 1"),
        ([[0, 1, 1]], {"prior": [float("nan"), 0.5]}, InputError, "sum to 1"),
    ],
)
def test_refused(answers: object, options: dict[str, object], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        fastbus.aggregate_crowd(answers, **options)
