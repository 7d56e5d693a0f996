"""The table of random problems: every supervision, variant and head that inference promises to solve.

`CASES[name].make(rng, ...)` draws a batch of bags whose weak labels are possible. The bench and the
tests share this table, so what the one prints the other asserts.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fastbus.bench import weak_labels as by
from fastbus.bench.own_rules import first_equals_last, majority, parity
from fastbus.bench.scenes import MAX_LABELLINGS, Array, Scene, random_scene
from fastbus.supervision import SimilarDissimilarUnlabeled

Head = Literal["softmax", "sigmoid"]
Inputs = Literal["logits", "probs", "log_probs"]


class RandomProblem(NamedTuple):
    """The arguments of `infer`, and a labelling that satisfies the weak labels.

    Tensors; for a sum over differently grouped bags tuples of them, one a term.
    """

    supervision: Any
    logits: Any  # (B, K, C) with a mask (B, K), or flat (N, C) with bag_sizes (B,)
    weak: Any
    mask: Any
    bag_sizes: Any
    head: Head
    inputs: Inputs
    truth: Tensor | None  # as `Posterior.map` returns it; None where the weak label is no fact

    @property
    def arguments(self) -> dict[str, Any]:
        """Keywords that `infer` and `enumerate_posterior` share."""
        names = ("logits", "weak", "mask", "bag_sizes", "head", "inputs")
        return {name: getattr(self, name) for name in names}


@dataclass(frozen=True)
class Case:
    """How to draw problems of one kind. Ranges are (lowest, highest)."""

    name: str
    weaken: by.Weaken
    head: Head
    classes: tuple[int, int]
    sizes: tuple[int, int]
    binary: bool
    factual: bool  # whether the true labelling is sure to be possible

    @property
    def couplings(self) -> tuple[Literal["auto", "independent", "joint"], ...]:
        """What to ask `infer` for: all of these are exact and must agree."""
        return ("auto", "independent") if self.head == "sigmoid" else ("auto", "joint")

    def make(
        self,
        rng: np.random.Generator,
        *,
        scale: float = 1.0,
        dtype: torch.dtype = torch.float64,
        bags: int = 8,
        classes: tuple[int, int] | None = None,
        sizes: tuple[int, int] | None = None,
        most_labellings: float = MAX_LABELLINGS,
    ) -> RandomProblem:
        """One batch of bags with logits of that scale; other ranges may be asked for.

        Bags have no more labellings than the oracle can enumerate, unless `most_labellings` is infinite.
        """
        scene = random_scene(
            rng,
            head=self.head,
            binary=self.binary,
            classes=classes or self.classes,
            sizes=sizes or self.sizes,
            scale=scale,
            bags=bags,
            most_labellings=most_labellings,
        )
        supervision, weak = self.weaken(scene)
        inputs, predictions = _predictions(scene, scale)
        flat = scene.mask is None
        return RandomProblem(
            supervision=supervision,
            logits=torch.from_numpy(scene.placed(predictions, np.nan)).to(dtype),
            weak=weak,
            mask=None if scene.mask is None else torch.from_numpy(scene.mask),
            bag_sizes=torch.from_numpy(scene.sizes) if flat else None,
            head=self.head,
            inputs=inputs,
            truth=torch.from_numpy(scene.placed(scene.truth_as_map, -1)) if self.factual else None,
        )


def _predictions(scene: Scene, scale: float) -> tuple[Inputs, Array]:
    """Mostly logits; probabilities only where float32 cannot round them to certainty."""
    kinds: list[Inputs] = ["logits", "probs", "log_probs"]
    kind = kinds[int(scene.rng.choice(3, p=[0.7, 0.15, 0.15]))] if scale <= 1 else "logits"
    x = scene.logits
    if kind == "logits":
        return kind, x
    norm = np.logaddexp(0, x) if scene.head == "sigmoid" else np.logaddexp.reduce(x, axis=1, keepdims=True)
    log_prob = x - norm
    return kind, log_prob if kind == "log_probs" else np.exp(log_prob)


@dataclass(frozen=True)
class SumCase(Case):
    """Pairs beside unlabelled sets: every field of the problem is a tuple (pairs, sets)."""

    terms: tuple[Case, Case]
    constraint: Literal["jeffrey", "likelihood", "count", "mean"]

    def make(self, rng: np.random.Generator, **options: Any) -> RandomProblem:
        pairs, sets = (term.make(rng, **options) for term in self.terms)
        while sets.inputs != pairs.inputs:  # one option speaks for both
            sets = self.terms[1].make(rng, **options)
        supervision = SimilarDissimilarUnlabeled(
            sets.supervision.priors[0], noise=pairs.supervision.noise, constraint=self.constraint
        )
        return RandomProblem(
            supervision=supervision,
            logits=(pairs.logits, sets.logits),
            weak=(pairs.weak, sets.weak),
            mask=(pairs.mask, sets.mask),
            bag_sizes=(pairs.bag_sizes, sets.bag_sizes),
            head=self.head,
            inputs=pairs.inputs,
            truth=None,
        )


class _Form(NamedTuple):
    """A head and its classes; binary forms carry one weak label a bag instead of one a class."""

    title: str
    head: Head
    classes: tuple[int, int]
    binary: bool


SIGMOID = _Form("sigmoid, C=1", "sigmoid", (1, 1), True)
MULTI_LABEL = _Form("sigmoid, C=2..4", "sigmoid", (2, 4), False)
TWO_CLASSES = _Form("softmax, C=2", "softmax", (2, 2), True)
SOFTMAX = _Form("softmax, C=2..4", "softmax", (2, 4), False)
MANY_CLASSES = _Form("softmax, C=2..5", "softmax", (2, 5), False)
BINARY = (SIGMOID, TWO_CLASSES)
ONE_LABEL = (SIGMOID, MANY_CLASSES)
EVERY = (SIGMOID, MULTI_LABEL, TWO_CLASSES, SOFTMAX)

CASES: dict[str, Case] = {}


def _add(
    title: str,
    weaken: by.Weaken,
    forms: tuple[_Form, ...],
    sizes: tuple[int, int] = (1, 10),
    factual: bool = True,
) -> None:
    for form in forms:
        name = f"{title} [{form.title}]"
        CASES[name] = Case(name, weaken, form.head, form.classes, sizes, form.binary, factual)


PAIR, ONE = (2, 2), (1, 1)
_gold = partial(by.semi_supervised, share=0.3)

_add("multi_instance", by.multi_instance, EVERY)
_add("multi_instance, noise", partial(by.multi_instance, noisy=True), EVERY)
_add("label_proportion", by.exact_counts, EVERY)
_add("label_proportion, fraction", by.fractions, EVERY)
_add("label_proportion, interval", by.intervals, EVERY)
_add("label_proportion, fraction interval", by.fraction_intervals, EVERY)
_add("label_proportion, noise", by.noisy_counts, EVERY)
_add("label_proportion, soft jeffrey", by.soft_counts, EVERY, factual=False)
_add("label_proportion, soft virtual", partial(by.soft_counts, soft="virtual"), EVERY)

_add("pair_comparison, sorted", by.pair_comparison, BINARY, PAIR)
_add("pair_comparison, labelled", partial(by.pair_comparison, pairs="labelled"), BINARY, PAIR)
for _pairs in ("sorted", "labelled"):
    _noisy = partial(by.pair_comparison, pairs=_pairs, noisy=True)
    _add(f"pair_comparison, {_pairs}, noise", _noisy, BINARY, PAIR)
_add("pair_similarity", by.pair_similarity, ONE_LABEL, PAIR)
_add("pair_similarity, noise", partial(by.pair_similarity, noisy=True), ONE_LABEL, PAIR)
_add("similarity_confidence", by.similarity_confidence, ONE_LABEL, PAIR, factual=False)
_virtual = partial(by.similarity_confidence, soft="virtual")
_add("similarity_confidence, virtual", _virtual, ONE_LABEL, PAIR)
_add("confidence_difference", by.confidence_difference, BINARY, PAIR, factual=False)

_add("positive_confidence", by.positive_confidence, BINARY, ONE, factual=False)
for _sizes, _where in ((ONE, ""), ((1, 6), ", in bags")):
    _add(f"partial_label{_where}", by.partial_label, ONE_LABEL, _sizes)
    _add(f"complementary_label{_where}", by.complementary_label, ONE_LABEL, _sizes)
    _excluded = partial(by.complementary_label, sets=True)
    _add(f"complementary_label, sets{_where}", _excluded, ONE_LABEL, _sizes)
    _add(f"noisy_label{_where}", by.noisy_label, ONE_LABEL, _sizes)
    _add(f"noisy_label, rate{_where}", partial(by.noisy_label, by_rate=True), ONE_LABEL, _sizes)
    _add(f"crowd_label{_where}", by.crowd_label, ONE_LABEL, _sizes)
    _add(f"crowd_label, rate{_where}", partial(by.crowd_label, by_rate=True), ONE_LABEL, _sizes)
    _add(f"semi_supervised{_where}", by.semi_supervised, (*ONE_LABEL, MULTI_LABEL), _sizes)

for _constraint in ("jeffrey", "likelihood", "count", "mean"):
    _set = partial(by.positive_unlabeled, constraint=_constraint)
    _add(f"positive_unlabeled, {_constraint}", _set, BINARY, factual=_constraint == "likelihood")
    _set = partial(by.unlabeled_unlabeled, constraint=_constraint)
    _add(f"unlabeled_unlabeled, {_constraint}", _set, BINARY, factual=_constraint == "likelihood")
    _one_set = partial(by.unlabeled_unlabeled, constraint=_constraint, sets=1)
    for _form in BINARY:
        # Sets of two or more: as many sets as instances could also be a label for each instance.
        _pairs_case = Case("", partial(by.pair_similarity, noisy=True), *_form[1:3], PAIR, True, True)
        _sets_case = Case("", _one_set, *_form[1:3], (2, 10), True, True)
        _title = f"similar_dissimilar_unlabeled, {_constraint} [{_form.title}]"
        CASES[_title] = SumCase(
            *(_title, _one_set, *_form[1:3], (2, 10), True, False),
            terms=(_pairs_case, _sets_case),
            constraint=_constraint,
        )

_add("label_proportion & semi_supervised", by.all_of(by.exact_counts, _gold), EVERY)
_add("multi_instance & semi_supervised", by.all_of(by.multi_instance, _gold), EVERY)
_add(
    "label_proportion & partial_label",
    by.all_of(by.exact_counts, by.partial_label),
    (SIGMOID, TWO_CLASSES, SOFTMAX),
)
_add(
    "label_proportion, interval & noisy_label & semi_supervised",
    by.all_of(by.intervals, by.noisy_label, _gold),
    (SIGMOID, SOFTMAX),
)
_add(
    "label_proportion, soft jeffrey & semi_supervised",
    by.soft_counts_and_gold,
    (SIGMOID, TWO_CLASSES, SOFTMAX),
    factual=False,
)
_add("label_proportion & multi_instance", by.all_of(by.intervals, by.multi_instance), EVERY, (1, 6))
_add("label_proportion & own rule", by.all_of(by.exact_counts, by.at_least), EVERY, (1, 6))
_add("pair_similarity & semi_supervised", by.all_of(by.pair_similarity, _gold), ONE_LABEL, PAIR)
_add(
    "pair_similarity & noisy_label",
    by.all_of(by.pair_similarity, by.noisy_label),
    ONE_LABEL,
    PAIR,
)
_add(
    "pair_similarity & label_proportion",
    by.all_of(by.pair_similarity, by.noisy_counts),
    (SIGMOID, TWO_CLASSES, SOFTMAX),
    PAIR,
)
_add(
    "confidence_difference & noisy_label",
    by.all_of(by.confidence_difference, partial(by.noisy_label, by_rate=True)),
    BINARY,
    PAIR,
    factual=False,
)
_add("noisy_label & partial_label", by.all_of(by.noisy_label, by.partial_label), ONE_LABEL, (1, 6))
_add(
    "positive_unlabeled, likelihood & semi_supervised",
    by.all_of(partial(by.positive_unlabeled, constraint="likelihood"), _gold),
    BINARY,
)

_add("own rule: at least m", by.at_least, EVERY)
_add("own rule: sum modulo 3", by.sum_modulo, ONE_LABEL)
_add("own rule: sum modulo 3, noise", partial(by.sum_modulo, slip=0.2), ONE_LABEL)
_add("own rule: last positive", by.last_positive, (SIGMOID, MULTI_LABEL, TWO_CLASSES, SOFTMAX))
_add("from_function: majority", partial(by.from_function, rule=majority), EVERY, (5, 5))
_add("from_function: parity", partial(by.from_function, rule=parity), EVERY, (4, 4))
_ends = partial(by.from_function, rule=first_equals_last, categorical=True)
_add("from_function: first equals last", _ends, (SIGMOID, SOFTMAX), (4, 4))
