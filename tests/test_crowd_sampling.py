"""Sampling of crowds against the stated model, integrated by plain Monte Carlo over every labelling."""

import itertools

import numpy as np
import pytest
import torch
from scipy.special import betaln, gammaln

import fastbus
from fastbus.crowd_sampling import SPREAD
from fastbus.errors import InputError

ANSWERS = np.array([[0, 0, 0, 1], [1, 1, 0, -1], [0, 1, 0, 0], [1, 1, 1, 1], [-1, 0, 1, 1], [0, 0, 1, 1]])


def integrated(answers: np.ndarray, kinds: int, draws: int) -> np.ndarray:
    """P(class | answers) of two classes: pseudo-answers and kinds from their prior, weighed by the evidence."""
    rng = np.random.default_rng(5)
    pseudo = np.exp(rng.normal(0, SPREAD, (4 * kinds * draws, 2, 2)))
    pseudo = pseudo[(pseudo[:, 0, 0] >= pseudo[:, 0, 1]) & (pseudo[:, 1, 1] >= pseudo[:, 1, 0])]
    pseudo = pseudo[: len(pseudo) // kinds * kinds].reshape(-1, kinds, 2, 2)
    size = rng.dirichlet(np.ones(kinds), len(pseudo))
    total, weights = np.zeros((len(answers), 2)), 0.0
    for labelling in map(np.array, itertools.product((0, 1), repeat=len(answers))):
        weight = np.exp(betaln(1 + (labelling == 0).sum(), 1 + (labelling == 1).sum())) * np.ones(len(pseudo))
        for said in answers.T:
            counts = np.array([[((labelling == y) & (said == w)).sum() for w in (0, 1)] for y in (0, 1)])
            row = pseudo.sum(-1)
            evidence = (gammaln(pseudo + counts) - gammaln(pseudo)).sum((-1, -2))
            evidence += (gammaln(row) - gammaln(row + counts.sum(-1))).sum(-1)
            weight *= (size * np.exp(evidence)).sum(-1)
        weights += weight.sum()
        total[np.arange(len(answers)), labelling] += weight.sum()
    return total / weights


@pytest.mark.parametrize("kinds", [1, 2])
def test_samples_average_over_the_stated_model(kinds: int) -> None:
    exact = integrated(ANSWERS, kinds, 4000)
    found = fastbus.aggregate_crowd(ANSWERS, samples=3000, kinds=kinds)
    np.testing.assert_allclose(found.posterior.numpy(), exact, atol=0.03)
    quick = fastbus.aggregate_crowd(ANSWERS).posterior.numpy()
    assert np.abs(found.posterior.numpy() - exact).mean() < 0.2 * np.abs(quick - exact).mean()


def test_everything_returned_is_a_distribution() -> None:
    found = fastbus.aggregate_crowd(ANSWERS, num_classes=3, samples=51, random_state=3)
    torch.testing.assert_close(found.posterior.sum(-1), torch.ones(6).double())
    torch.testing.assert_close(found.transitions.sum(-1), torch.ones(4, 3).double())
    torch.testing.assert_close(found.prior.sum(), torch.tensor(1.0).double())
    assert bool((found.pseudo_answers > 0).all())
    again = fastbus.aggregate_crowd(ANSWERS, num_classes=3, samples=51, random_state=3)
    assert torch.equal(found.posterior, again.posterior)
    other = fastbus.aggregate_crowd(ANSWERS, num_classes=3, samples=51, random_state=4)
    assert not torch.equal(found.posterior, other.posterior)


def test_a_class_known_to_be_absent_is_never_found() -> None:
    found = fastbus.aggregate_crowd(ANSWERS, num_classes=3, prior=[0.5, 0.5, 0.0], samples=50)
    assert float(found.posterior[:, 2].max()) == 0.0
    torch.testing.assert_close(found.prior, torch.tensor([0.5, 0.5, 0.0]).double())


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"samples": -1}, "samples=-1; expected a whole number from 0 on"),
        ({"samples": 2.5}, "samples=2.5"),
        ({"samples": 10, "kinds": 0}, "kinds=0; expected a whole number from 1 on"),
        ({"samples": 10, "strength": 3.0}, r"strength=3.0 with samples=10; expected one of them"),
    ],
)
def test_refused(options: dict[str, object], text: str) -> None:
    with pytest.raises(InputError, match=text):
        fastbus.aggregate_crowd(ANSWERS, **options)  # type: ignore[arg-type]
