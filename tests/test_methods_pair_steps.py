"""Whole steps of methods for pairs against numbers worked apart: the teacher's term, shares of kinds, corrections."""

import itertools
import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

import fastbus
from fastbus.inference.fixed import Step
from fastbus.methods import objective_of
from fastbus.methods.pair_rows import negative_loss, positive_loss
from fastbus.methods.pairwise_hard import comparison_parts, comparison_weights
from fastbus.methods.pairwise_soft import difference_parts, similarity_member_parts, similarity_parts
from fastbus.supervision.base import Supervision
from fastbus.training.image_run import ImageRun
from method_steps import inputs_of, random_logits, softmax, step_of
from pair_digits import PRIOR, pair_run
from test_image_run import QUICK, digits
from test_methods_pairwise import SCORES, SHARES, UNSURE, compared, confident_pairs, prior_of

POSITIVES = float((SHARES * UNSURE * positive_loss(SCORES)).sum())  # what each class costs when labels are known
NEGATIVES = float((SHARES * (1 - UNSURE) * negative_loss(SCORES)).sum())
RECIPE = QUICK.replace(weak=1.0, strong=3.0)


@pytest.mark.parametrize(("progress", "ramp"), [(0.0, math.exp(-5)), (0.2, math.exp(-1.25)), (0.5, 1.0)])
def test_the_teacher_adds_its_cross_entropy_to_pruned_pairs(progress: float, ramp: float) -> None:
    step = step_of([2, 2, 2])._replace(rows=torch.arange(8))  # the last two belong to no pair
    weak, strong, mine = (random_logits(8, 2, seed).float() for seed in range(3))
    inputs = inputs_of(weak, strong, step, progress)._replace(teacher=lambda x: x.flatten(1) + mine)
    loss = [
        float(pair_run("pair_comparison", method, prior=PRIOR).objective(inputs))
        for method in ("pc_teacher", "rank_pruning")
    ]
    taught, said = softmax(weak + mine), softmax(strong)
    agree = -np.mean([(taught[row] * np.log(said[row])).sum() for row in range(6)])
    assert loss[0] - loss[1] == pytest.approx(ramp * agree, rel=1e-4)


def small_run(rule: Supervision, method: str, weak: Tensor, prior: float) -> ImageRun:
    sizes, make = torch.full((len(weak),), 2), objective_of(method, prior=prior, bound=0)
    images = digits()[0][: 2 * len(weak)]
    return ImageRun(rule, images, sizes, weak, num_classes=2, recipe=RECIPE, flip=False, objective=make)


def pairs_of(seed: int, pairs: int) -> tuple[list[Tensor], list[np.ndarray]]:
    """Logits of both views, and the scores (pairs, 2) of each."""
    views = [random_logits(2 * pairs, 2, seed=2 * seed + view).float() for view in (0, 1)]
    return views, [(x[:, 1] - x[:, 0]).double().numpy().reshape(-1, 2) for x in views]


def step(pairs: int) -> Step:
    return step_of([2] * pairs)._replace(rows=torch.arange(2 * pairs))


def cost(f: float, label: int) -> float:
    return math.log1p(math.exp(-f if label else f))


def test_either_kind_of_pairs_has_the_share_that_the_prior_gives_it() -> None:
    """Shimada et al.: R = pi_S E_S[..] + pi_D E_D[..], however many pairs of either kind are at hand, in |2p - 1|."""
    similar, p = torch.tensor([1, 1, 0, 1, 1, 1, 1, 1]), 0.3
    views, scores = pairs_of(0, 8)
    found = float(small_run(fastbus.PairSimilarity(), "risk_sd", similar, p).objective(inputs_of(*views, step(8))))
    losses = []
    for view in scores:
        charged: dict[int, list[float]] = {0: [], 1: []}
        for pair, same in zip(view, similar.tolist(), strict=True):
            for f in pair:
                mine, other = cost(f, 1), cost(f, 0)
                charged[same].append(
                    ((p * mine - (1 - p) * other) if same else (p * other - (1 - p) * mine)) / (2 * p - 1)
                )
        share = p**2 + (1 - p) ** 2
        losses.append(share * np.mean(charged[1]) + (1 - share) * np.mean(charged[0]))
    assert found == pytest.approx(0.4 * (losses[0] + 3 * losses[1]) / 4, rel=1e-5)


@pytest.mark.parametrize("pairs", ["sorted", "labelled"])
def test_parts_that_are_corrected_are_what_one_class_costs(pairs: str) -> None:
    """Corrections say that a part is not negative, which is true of a class's risk, or of a share of it."""
    found = comparison_parts(compared(pairs, UNSURE), comparison_weights(prior_of(UNSURE), pairs))
    assert [float(part) for part in found] == pytest.approx([POSITIVES, NEGATIVES], abs=1e-10)


def test_parts_of_confidences_that_are_corrected_are_what_one_class_costs() -> None:
    drawn, one, two = confident_pairs()
    similar, prior = one * two + (1 - one) * (1 - two), prior_of(UNSURE)
    both = [float(part) for part in similarity_parts(drawn, similar, prior)]
    assert both == pytest.approx([POSITIVES, NEGATIVES], abs=1e-10)
    halves = [float(part) for part in similarity_member_parts(drawn, similar, prior)]
    assert halves == pytest.approx([POSITIVES / 2] * 2 + [NEGATIVES / 2] * 2, abs=1e-10)
    apart = [float(part) for part in difference_parts(drawn, two - one, prior)]
    assert apart == pytest.approx([POSITIVES / 2, NEGATIVES / 2] * 2, abs=1e-10)


def compared_parts(scores: np.ndarray, weak: list[float], p: float) -> list[list[float]]:
    """Sorted pairs: (1 + p)/2 l+(first) - (1 - p)/2 l+(second) for positives, and the like for negatives."""
    ordered = [(f, g) if said else (g, f) for (f, g), said in zip(scores, weak, strict=True)]
    plus = [(1 + p) / 2 * cost(f, 1) - (1 - p) / 2 * cost(g, 1) for f, g in ordered]
    return [plus, [(2 - p) / 2 * cost(g, 0) - p / 2 * cost(f, 0) for f, g in ordered]]


def similar_parts(scores: np.ndarray, weak: list[float], p: float) -> list[list[float]]:
    """Cao et al.: (s - (1 - p)) (l+ + l+) / (2 (2p - 1)), (p - s) (l- + l-) / (2 (2p - 1)); steps times |2p - 1|."""
    told = list(zip(scores, weak, strict=True))
    sign = math.copysign(0.5, 2 * p - 1)
    plus = [sign * (s - (1 - p)) * (cost(f, 1) + cost(g, 1)) for (f, g), s in told]
    return [plus, [sign * (p - s) * (cost(f, 0) + cost(g, 0)) for (f, g), s in told]]


def differing_parts(scores: np.ndarray, weak: list[float], p: float) -> list[list[float]]:
    """Wang et al.: (p - c) l+(x), (1 - p - c) l-(x'), (p + c) l+(x'), (1 - p + c) l-(x), each a half."""
    told = list(zip(scores, weak, strict=True))
    return [
        [(p - c) / 2 * cost(f, 1) for (f, _), c in told],
        [(1 - p - c) / 2 * cost(g, 0) for (_, g), c in told],
        [(p + c) / 2 * cost(g, 1) for (_, g), c in told],
        [(1 - p + c) / 2 * cost(f, 0) for (f, _), c in told],
    ]


CHANGES: dict[str, Callable[[float], float]] = {"unbiased": float, "relu": lambda x: max(0.0, x), "abs": abs}
FAMILIES = {
    "pc": (fastbus.PairComparison(), torch.tensor([1, 0, 1]), compared_parts),
    "sc": (fastbus.SimilarityConfidence(), torch.tensor([0.9, 0.2, 0.6]), similar_parts),
    "cd": (fastbus.ConfidenceDifference(), torch.tensor([0.8, -0.6, 0.7]), differing_parts),
}


@pytest.mark.parametrize(("family", "change"), list(itertools.product(FAMILIES, CHANGES)))
def test_each_part_of_a_step_is_corrected_by_itself(family: str, change: str) -> None:
    rule, weak, parts = FAMILIES[family]
    objective = small_run(rule, f"{family}_{change}", weak, 0.4).objective
    negative = 0
    for seed in range(8):
        views, scores = pairs_of(seed, 3)
        means = [[float(np.mean(part)) for part in parts(f, weak.tolist(), 0.4)] for f in scores]
        negative += sum(mean < 0 for view in means for mean in view)
        first, second = (sum(CHANGES[change](mean) for mean in view) for view in means)
        found = float(objective(inputs_of(*views, step(3))))
        assert found == pytest.approx((first + 3 * second) / 4, rel=1e-4, abs=1e-5)
    assert negative > 2  # there was something to correct
