"""Risks that are unbiased: UUM's and CEGE's equal the supervised risk over all weak data of a small distribution.

Where no centroid can be had without bias, CEGE says so.
"""

from collections.abc import Callable, Iterator
from itertools import product

import numpy as np
import pytest
import torch
from torch import Tensor

import fastbus
from fastbus.errors import InputError
from fastbus.inference.fixed import FixedPosterior, Step
from fastbus.methods import objective_of
from fastbus.methods.general import OwnPosteriorRisk
from fastbus.methods.uum import EnumeratedCounts, SeenClosedForm, SimilarPairs
from fastbus.supervision.base import Supervision
from fastbus.training.image_run import ImageRun
from method_steps import SPARE, inputs_of, random_logits, step_of
from test_image_run import QUICK, digits

CPU = torch.device("cpu")
Weak = tuple[int, ...]


class Knowing:
    """A posterior given the true probabilities of the classes, whatever the network says."""

    capturable = True

    def __init__(self, posterior: FixedPosterior, log_truth: Tensor) -> None:
        self.posterior, self.log_truth = posterior, log_truth

    def __call__(self, logits: Tensor, step: Step) -> Tensor:
        return self.posterior(self.log_truth, step)


def counts_of(labels: Weak) -> Weak:
    return tuple(labels.count(c) for c in range(3))


def any_positive(labels: Weak) -> Weak:
    return (int(1 in labels),)


def same(labels: Weak) -> Weak:
    return (int(len(set(labels)) == 1),)


# size of a bag, classes, what is said of its labels, posterior of a single bag about which that is said
AGGREGATES: dict[str, tuple[int, int, Callable[[Weak], Weak], Callable[[Weak], FixedPosterior]]] = {
    "label_proportion": (
        3, 3, counts_of, lambda weak: EnumeratedCounts(torch.tensor([weak]), torch.tensor([3]), CPU),
    ),
    "multi_instance": (3, 2, any_positive, lambda weak: SeenClosedForm(torch.tensor([weak]), torch.tensor([3]))),
    "pair_similarity": (2, 3, same, lambda weak: SimilarPairs(torch.tensor(weak))),
}  # fmt: skip


def weak_data(
    size: int, says: Callable[[Weak], Weak], marginal: np.ndarray, truth: np.ndarray
) -> Iterator[tuple[Weak, Weak, float]]:
    """Every bag of instances with every weak label, and how probable they are together."""
    for held in product(range(len(marginal)), repeat=size):
        chances: dict[Weak, float] = {}
        for labels in product(range(truth.shape[1]), repeat=size):
            chance = float(np.prod([marginal[x] * truth[x, y] for x, y in zip(held, labels, strict=True)]))
            chances[says(labels)] = chances.get(says(labels), 0.0) + chance
        yield from ((held, weak, chance) for weak, chance in chances.items())


@pytest.mark.parametrize("kind", AGGREGATES)
def test_the_risk_of_uum_is_the_supervised_one_over_all_weak_data(kind: str) -> None:
    size, classes, says, posterior = AGGREGATES[kind]
    marginal = np.array([0.3, 0.7])
    log_truth = random_logits(2, classes, 5, 1.0).log_softmax(1)
    networks = [random_logits(2, classes, seed) for seed in (0, 1)]  # of the two views
    found = 0.0
    for held, weak, chance in weak_data(size, says, marginal, log_truth.exp().numpy()):
        rows = [*held, *[0] * SPARE]
        objective = OwnPosteriorRisk(Knowing(posterior(weak), log_truth[rows]), QUICK)
        found += chance * float(objective(inputs_of(*(f[rows] for f in networks), step_of([size], empty=0))))
    losses = -sum(f.log_softmax(1) for f in networks) / 2  # (instances, classes)
    expected = (torch.from_numpy(marginal)[:, None] * log_truth.exp() * losses).sum()
    assert found == pytest.approx(float(expected), abs=1e-10)


# instances by their score, how many of each kind are positive and negative; patterns that data are made of
SCORES = torch.tensor([-1.4, 0.3, 2.0], dtype=torch.float64)
POSITIVES, NEGATIVES = [0, 1, 1, 2], [0, 0, 0, 1, 2, 2]
ALL = [(x, 1) for x in POSITIVES] + [(x, 0) for x in NEGATIVES]  # two in five are positive


def noisy_population(transition: list[list[float]], times: int) -> tuple[list[tuple[int, int]], Tensor]:
    """Instances (score, class) and what is said of them, in the very shares of the transition."""
    instances, said = [], []
    for x, y in ALL:
        positive = round(times * transition[y][1])
        instances += [(x, y)] * times
        said += [1] * positive + [0] * (times - positive)
    return instances, torch.tensor(said)


def centroid_case(kind: str) -> tuple[Supervision, list[tuple[int, int]], Tensor, int, list[int], dict[str, object]]:
    """Supervision, instances, weak labels, size of a bag, rows that are labelled, facts.

    Data that hold every combination as often as the distribution says, so that their risk is its own expectation.
    """
    uneven = [[0.9, 0.1], [0.4, 0.6]]
    if kind == "noisy":
        instances, said = noisy_population([[0.8, 0.2], [0.2, 0.8]], 5)
        return fastbus.NoisyLabel(rate=0.2), instances, said, 1, [], {}
    if kind == "unevenly noisy":
        instances, said = noisy_population(uneven, 10)
        return fastbus.NoisyLabel(uneven), instances, said, 1, [], {}
    if kind == "noisy, prior told":
        instances, said = noisy_population(uneven, 10)
        return fastbus.NoisyLabel(uneven), instances, said, 1, [], {"prior": 0.4}
    if kind == "semi":
        weak = torch.tensor([y for _, y in ALL] + [-1] * 20)
        return fastbus.SemiSupervised(), ALL * 3, weak, 1, list(range(10)), {}
    if kind == "positive":
        weak = torch.tensor([1] * 4 + [-1] * 20)
        return fastbus.PositiveUnlabeled(0.4), ALL[:4] + ALL * 2, weak, 1, list(range(4)), {}
    if kind == "two sets":  # 12 of 18 and 4 of 28 are positive
        instances = ALL + ALL[:4] * 2 + ALL[:4] + ALL[4:] * 4
        weak = torch.tensor([0] * 18 + [1] * 28)
        return fastbus.UnlabeledUnlabeled([12 / 18, 4 / 28]), instances, weak, 1, [], {}
    pairs = list(product(ALL, repeat=2))
    counts = torch.tensor([first[1] + second[1] for first, second in pairs])
    instances = [one for pair in pairs for one in pair]
    if kind == "proportions":
        return fastbus.LabelProportion(), instances, counts, 2, [], {}
    return fastbus.MultiInstance(), instances, (counts > 0).long(), 2, [], {"prior": 0.4}


CENTROIDS = (
    "noisy", "unevenly noisy", "noisy, prior told", "semi", "positive", "two sets", "proportions", "one at least",
)  # fmt: skip


@pytest.mark.parametrize("kind", CENTROIDS)
def test_the_risk_of_centroids_is_the_supervised_one_over_all_weak_data(kind: str) -> None:
    rule, instances, weak, size, labelled, facts = centroid_case(kind)
    N = len(instances)
    # the others: those without labels, or all instances where gold labels count beside them
    others = [row for row in range(N) if kind == "semi" or row not in labelled]
    rows = torch.tensor(labelled + others)
    recipe = QUICK.replace(backbone="linear", rows=len(rows), labelled_rows=max(1, len(labelled)))
    images, sizes = torch.zeros(N, 1, 4, 4, dtype=torch.uint8), torch.full((N // size,), size)
    make = objective_of("cege", bound=0, **facts)
    run = ImageRun(rule, images, sizes, weak, num_classes=2, recipe=recipe, flip=False, objective=make)
    f = SCORES[torch.tensor([x for x, _ in instances])]
    y = 2.0 * torch.tensor([y for _, y in instances]) - 1
    logits = torch.stack([torch.zeros_like(f), f], 1)[rows]
    step = step_of([1] * len(rows), empty=0)._replace(rows=rows)
    found = float(run.objective(inputs_of(logits, logits, step)))
    expected = ((1 - y * f) ** 2)[torch.tensor(others)].mean() / 4
    assert found == pytest.approx(float(expected), abs=1e-6)


def noisy_centroids(rule: Supervision, positive: float, **facts: object) -> ImageRun:
    """CEGE on 50 labels, a share of which say positive."""
    said = (torch.arange(50) < round(50 * positive)).long()
    images, one, make = digits()[0][:50], torch.ones(50, dtype=torch.long), objective_of("cege", **facts)
    return ImageRun(rule, images, one, said, num_classes=2, recipe=QUICK, objective=make)


def test_centroids_ask_for_what_they_need() -> None:
    with pytest.raises(InputError, match=r"cege needs the share of wrong labels; expected noise_rate="):
        noisy_centroids(fastbus.NoisyLabel(), 0.4)


def test_noise_that_centroids_cannot_be_had_from_is_refused() -> None:
    for positive in (0.5, 0.4):
        with pytest.raises(InputError, match=r"0\.5 of the negatives and 0\.5 of the positives.*labels tell nothing"):
            noisy_centroids(fastbus.NoisyLabel(rate=0.5), positive)
    for positive in (0.1, 1.0):
        with pytest.raises(InputError, match=rf"{positive:g} of the labels say positive; expected more than 0.2 and"):
            noisy_centroids(fastbus.NoisyLabel(rate=0.2), positive)
    assert noisy_centroids(fastbus.NoisyLabel(rate=0.2), 0.1, prior=0.05).objective.bound == 2
    uneven = fastbus.NoisyLabel([[0.9, 0.1], [0.4, 0.6]])
    with pytest.raises(InputError, match=r"cege: noise_rate=0.25 beside a transition.*Leave noise_rate out"):
        noisy_centroids(uneven, 0.4, noise_rate=0.25)
    even = fastbus.NoisyLabel([[0.75, 0.25], [0.25, 0.75]])
    assert noisy_centroids(even, 0.4, noise_rate=0.25).objective.bound == 2
