"""Incomplete supervision: some instances carry a label, the rest belong to a set of known make-up.

positive_unlabeled, unlabeled_unlabeled: the state counts the positives of a set, whose distribution
under n independent draws is Binomial(n, prior). semi_supervised: gold labels for a few.
positive_confidence: every instance was drawn as a positive and comes with P(y = 1).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from fastbus.errors import InputError, SupervisionError, choice
from fastbus.numerics import NEG_INF
from fastbus.supervision.aggregate import Counting
from fastbus.supervision.base import Supervision
from fastbus.supervision.evidence import Evidence, Rule, Soft, log_indicator
from fastbus.supervision.imperfect import InstanceEvidence
from fastbus.supervision.options import number
from fastbus.supervision.pairwise import PairSimilarity
from fastbus.supervision.prior import estimate_prior
from fastbus.supervision.reading import WeakReader

Constraint = Literal["jeffrey", "likelihood", "count", "mean"]
CONSTRAINTS = ("jeffrey", "likelihood", "count", "mean")


class SemiSupervised(InstanceEvidence):
    """A gold label, or nothing. Sigmoid heads with several classes take 0/1/-1 for each of them."""

    name = "semi_supervised"

    def read(self, weak: object, reader: WeakReader) -> Evidence:
        if reader.head == "sigmoid" and reader.num_classes > 1:
            return self._read_multi_label(weak, reader)
        values = reader.per_instance(weak)
        Y = reader.num_labels
        classes, given = reader.integers(values, Y - 1, "classes", reader.layout.mask)
        gold = log_indicator(one_hot(classes, Y).to(torch.bool), reader.dtype)
        return self.instance_evidence(gold, given, reader)

    def _read_multi_label(self, weak: object, reader: WeakReader) -> Evidence:
        values = reader.per_instance(weak, (reader.num_classes,))
        real = reader.layout.mask[..., None].expand_as(values)
        labels, given = reader.integers(values, 1, "labels", real)
        gold = log_indicator(one_hot(labels, 2).to(torch.bool), reader.dtype)
        gold = gold.masked_fill(~given[..., None], 0.0)
        return Evidence(instance=gold, instance_observed=given, names=(self.title,))


class PositiveConfidence(Counting):
    """P(y = 1) of a single instance, in (0, 1]; weighting="pconf" weighs its loss by 1 / r."""

    name = "positive_confidence"
    bag_size = 1
    binary = True

    def __init__(self, *, weighting: Literal["pconf"] | None = None) -> None:
        if weighting is not None:
            choice(weighting, ("pconf",), f"{self.name}: weighting", SupervisionError)
        self.weighting = weighting

    @property
    def applies_last(self) -> bool:
        return True

    def weak_labels(self, bag_size: int) -> Sequence[Any] | None:
        return None

    def read(self, weak: object, reader: WeakReader) -> Evidence:
        values = reader.per_bag(weak).unsqueeze(1)
        reader.bag_size(1, "single instances")
        confidence, active = reader.fractions(values, 0.0, 1.0, "positive confidences")
        reader.refuse_value(
            values,
            active & (confidence == 0),
            "confidences in (0, 1], NaN where missing",
            "An instance drawn as a positive cannot have confidence 0; correct it.",
        )
        soft = Soft("jeffrey", torch.stack([1 - confidence, confidence], -1), active)
        none = torch.zeros(reader.B, 1, 2, dtype=reader.dtype, device=reader.device)
        rule = Rule(self, none, torch.zeros_like(active), reader.binary_class(), soft)
        weight = None
        if self.weighting == "pconf":
            weight = (1 / confidence.masked_fill(~active, 1.0)).squeeze(1)
        return Evidence(rules=(rule,), bag_weight=weight, names=(self.title,))


class UnlabeledSet(Counting):
    """Base of kinds that know the share of positives of a set, not which instances they are."""

    level = "set"
    binary = True
    constraint: Constraint

    @property
    def applies_last(self) -> bool:
        return self.constraint in ("jeffrey", "mean")

    def weak_labels(self, bag_size: int) -> Sequence[Any] | None:
        return None

    def set_rule(self, prior: Tensor, drawn: Tensor, known: Tensor, active: Tensor, reader: WeakReader) -> Rule:
        """Count = `known` labelled positives + a Binomial(`drawn`, `prior`) of the others; all (B,)."""
        Z = reader.K + 1
        states = torch.arange(Z, device=reader.device, dtype=reader.dtype)
        others = states - known[:, None]
        log_pmf = _binomial_log_pmf(others, drawn[:, None].to(reader.dtype), prior[:, None])
        none = torch.zeros(reader.B, 1, Z, dtype=reader.dtype, device=reader.device)
        unsaid = torch.zeros_like(active)[:, None]
        positive = reader.binary_class()
        if self.constraint == "jeffrey":
            target = log_pmf.exp()
            target = target / target.sum(-1, keepdim=True)
            soft = Soft("jeffrey", target[:, None], active[:, None])
            return Rule(self, none, unsaid, positive, soft)
        if self.constraint == "mean":
            mean = drawn * prior + known
            soft = Soft("mean", mean[:, None], active[:, None], states)
            return Rule(self, none, unsaid, positive, soft)
        if self.constraint == "count":
            likely = (drawn * prior + 0.5).floor()
            log_pmf = log_indicator(others == likely[:, None], reader.dtype)
        log_pmf = log_pmf.masked_fill(~active[:, None], 0.0)
        return Rule(self, log_pmf[:, None], active[:, None], positive)


class PositiveUnlabeled(UnlabeledSet):
    """Some positives are known; the rest of the bag is an unlabelled draw.

    prior: share of positives in that draw. None where nobody knows it: `WeakClassifier` estimates it, as `estimate`
        does from scores; inference needs it.
    """

    name = "positive_unlabeled"

    def __init__(self, prior: float | None = None, *, constraint: Constraint = "count") -> None:
        choice(constraint, CONSTRAINTS, f"{self.name}: constraint", SupervisionError)
        self.prior = None if prior is None else _checked_prior(prior, self.name)
        self.constraint = constraint

    @classmethod
    def estimate(cls, log_prob: Tensor, weak: Tensor, fold: Tensor | None = None, **options: Any) -> PositiveUnlabeled:
        """With the prior estimated from predictions (N, 2) or scores (N,) that did not see the labels (N,), 1 or -1.

        fold: (N,) which classifier predicted an instance, where there were several. options: those of the class.
        """
        if log_prob.dim() not in (1, 2) or (log_prob.dim() == 2 and log_prob.shape[1] > 2):
            raise InputError(
                f"predictions {tuple(log_prob.shape)}; expected scores (N,) or two classes (N, 2). Group the classes "
                "into two."
            )
        pair = log_prob.dim() == 2 and log_prob.shape[1] == 2
        scores = log_prob[:, 1] - log_prob[:, 0] if pair else log_prob.flatten()
        return cls(estimate_prior(scores, weak == 1, fold), **options)

    @property
    def known_prior(self) -> float:
        """The prior, or a complaint where it is not known."""
        if self.prior is None:
            raise SupervisionError(
                f"{self.name}: prior is not known; expected the share of positives, in (0, 1). Pass prior=, or "
                "estimate it from out-of-fold predictions with the class method estimate."
            )
        return self.prior

    def read(self, weak: object, reader: WeakReader) -> Evidence:
        values = reader.per_instance(weak)
        mask = reader.layout.mask
        labelled = values == 1
        unlabelled = ~reader.present(values.masked_fill(~mask, 1), "labels")
        reader.refuse_value(
            values,
            mask & ~(labelled | unlabelled),
            "1 for a labelled positive, -1 for unlabelled (NaN in floats)",
            "There are no labelled negatives here; use semi_supervised for them.",
        )
        labelled = labelled & mask
        drawn = (mask & ~labelled).sum(1)
        positive = torch.tensor([False, True], device=reader.device)
        gold = log_indicator(positive | ~labelled[..., None], reader.dtype)
        prior = torch.full((reader.B,), self.known_prior, dtype=reader.dtype, device=reader.device)
        rule = self.set_rule(prior, drawn, labelled.sum(1), drawn > 0, reader)
        return Evidence(rules=(rule,), instance=gold, instance_observed=labelled, names=(self.title,))


class UnlabeledUnlabeled(UnlabeledSet):
    """Every bag is a draw from one of several unlabelled sets, each with a known prior."""

    name = "unlabeled_unlabeled"

    def __init__(self, priors: Sequence[float], *, constraint: Constraint = "count") -> None:
        choice(constraint, CONSTRAINTS, f"{self.name}: constraint", SupervisionError)
        if isinstance(priors, str) or not isinstance(priors, Sequence) or not priors:
            raise SupervisionError(
                f"{self.name}: priors={priors!r}; expected a sequence of shares of positives, one a "
                "set. Give e.g. priors=(0.2, 0.7)."
            )
        self.priors = tuple(_checked_prior(prior, self.name) for prior in priors)
        self.constraint = constraint

    def read(self, weak: object, reader: WeakReader) -> Evidence:
        values = reader.per_bag(weak)
        index, given = reader.integers(values, len(self.priors) - 1, "set indices")
        prior = torch.tensor(self.priors, dtype=reader.dtype, device=reader.device)[index]
        sizes = reader.layout.sizes
        rule = self.set_rule(prior, sizes, torch.zeros_like(sizes), given, reader)
        return Evidence(rules=(rule,), names=(self.title,))


class SimilarDissimilarUnlabeled(Supervision):
    """Similar and dissimilar pairs beside an unlabelled set: a sum over differently grouped bags.

    Predictions and weak labels come as tuples (pairs, sets), and so do the results.
    """

    name = "similar_dissimilar_unlabeled"

    def __init__(
        self,
        prior: float,
        *,
        noise: tuple[float, float] | None = None,
        constraint: Constraint = "count",
    ) -> None:
        self.prior = _checked_prior(prior, self.name)
        self.noise = noise
        self.constraint = constraint
        self._terms = (
            PairSimilarity(noise=noise),
            UnlabeledUnlabeled((self.prior,), constraint=constraint),
        )

    @property
    def terms(self) -> tuple[Supervision, ...]:
        """The supervisions whose losses are added, in the order of the tuples."""
        return self._terms

    def entries(self, given: object) -> tuple[Any, ...]:
        """Predictions, weak labels or masks as a tuple with one entry a term."""
        if not isinstance(given, (tuple, list)) or len(given) != len(self._terms):
            got = f"{len(given)} entries" if isinstance(given, (tuple, list)) else "no tuple"
            raise InputError(
                f"{self.name}: {got} for a sum of {len(self._terms)} terms; expected a tuple with an "
                f"entry for each of {', '.join(term.title for term in self._terms)}. Group the "
                "instances of each term into bags of its own."
            )
        return tuple(given)

    def weak_labels(self, bag_size: int) -> Sequence[Any] | None:
        return None


def _checked_prior(prior: object, name: str) -> float:
    share = number(prior)
    if not 0 < share < 1:
        raise SupervisionError(
            f"{name}: prior {prior!r}; expected the share of positives, in (0, 1). "
            "Estimate it, or give the known share."
        )
    return share


def _binomial_log_pmf(successes: Tensor, draws: Tensor, prior: Tensor) -> Tensor:
    """log Binomial(successes; draws, prior), -inf outside 0..draws."""
    inside = (successes >= 0) & (successes <= draws)
    s = successes.masked_fill(~inside, 0.0)
    log_choose = torch.lgamma(draws + 1) - torch.lgamma(s + 1) - torch.lgamma(draws - s + 1)
    value = log_choose + s * prior.log() + (draws - s) * torch.log1p(-prior)
    return value.masked_fill(~inside, NEG_INF)
