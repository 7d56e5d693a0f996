"""weaken: simulate weak labels of any kind from true labels, with the rates that the supervision states.

The result is what `fastbus.infer` takes beside flat predictions with bag_sizes: (B, ...) for statements
about bags, (N, ...) for statements about instances, a tuple for combinations. The truth always satisfies
a weak label that is a fact; noisy ones are drawn from the very channel that inference assumes.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from fastbus.data import weaken_bags, weaken_instances
from fastbus.data.weaken_facts import reconcile
from fastbus.data.weaken_inputs import Array, read_bags, read_labels, read_rng
from fastbus.data.weaken_truth import Truth
from fastbus.errors import InputError
from fastbus.supervision.aggregate import LabelProportion, MultiInstance
from fastbus.supervision.base import Supervision, resolve
from fastbus.supervision.combine import Combination
from fastbus.supervision.imperfect import ComplementaryLabel, CrowdLabel, NoisyLabel, PartialLabel
from fastbus.supervision.incomplete import (
    PositiveConfidence,
    PositiveUnlabeled,
    SemiSupervised,
    SimilarDissimilarUnlabeled,
    UnlabeledUnlabeled,
)
from fastbus.supervision.pairwise import (
    ConfidenceDifference,
    PairComparison,
    PairSimilarity,
    SimilarityConfidence,
)

MAKERS: dict[type[Supervision], Callable[..., Array]] = {
    MultiInstance: weaken_bags.multi_instance,
    LabelProportion: weaken_bags.label_proportion,
    PairComparison: weaken_bags.pair_comparison,
    PairSimilarity: weaken_bags.pair_similarity,
    SimilarityConfidence: weaken_bags.similarity_confidence,
    ConfidenceDifference: weaken_bags.confidence_difference,
    PositiveConfidence: weaken_instances.positive_confidence,
    PartialLabel: weaken_instances.partial_label,
    ComplementaryLabel: weaken_instances.complementary_label,
    NoisyLabel: weaken_instances.noisy_label,
    CrowdLabel: weaken_instances.crowd_label,
    SemiSupervised: weaken_instances.semi_supervised,
    PositiveUnlabeled: weaken_instances.positive_unlabeled,
    UnlabeledUnlabeled: weaken_instances.unlabeled_unlabeled,
    Supervision: weaken_bags.own_rule,
}


def weaken(
    supervision: Supervision | str,
    labels: Any,
    bags: Any = None,
    rng: np.random.Generator | int | None = None,
    *,
    missing: float = 0.0,
    num_classes: int | None = None,
    padded: bool = False,
    parts: Sequence[Mapping[str, Any]] | None = None,
    **options: Any,
) -> Any:
    """Weak labels of true labels, as the supervision takes them (NumPy).

    labels: (N,) class indices, or (N, C) 0/1 where instances may have several classes. Two classes are
        binary: bag labels are (B,), which a sigmoid head with C=1 and a softmax head with C=2 both take.
    bags: N bag ids, a `Bags`, or the sizes (B,) of bags that follow each other; None: each instance alone.
        Row b of the result is bag b where the ids are exactly the integers 0..B-1, else the b-th bag in
        the order in which the ids first appear. Instance-level results stay in the order of the rows.
        Where a fit asks for weak labels keyed by such ids: dict(zip(dict.fromkeys(ids), weak)).
    rng: a NumPy generator or a seed, needed by all kinds that leave something to chance.
    missing: the share of entries left out (-1 in integers, NaN in floats), each on its own.
    num_classes: C, where the labels do not show the last classes.
    padded: instance-level results as (B, K, ...), for padded predictions.
    options: what the kind leaves open, by the supervision's maker: ratio (partial), rate or transition
        (noisy, where the supervision has none), annotators, answers (crowd), excluded (complementary),
        labelled (semi-supervised, positive-unlabelled), sets (unlabelled-unlabelled), width, open_ends,
        spread (counts), probabilities, clip (confidences), weak_labels (own rules).
    parts: for a combination, a mapping of options for each part (`missing` among them). Other options go
        to every part that takes them.

    similar_dissimilar_unlabeled takes tuples (pairs, sets) of labels and bags, and returns a tuple.
    """
    rule = resolve(supervision)
    generator = read_rng(rng, rule.title)
    common: dict[str, Any] = {"missing": missing, "num_classes": num_classes, "padded": padded}
    if isinstance(rule, SimilarDissimilarUnlabeled):
        _check_options(rule.title, options, set())
        given = (None,) * len(rule.terms) if bags is None else bags
        entries = zip(rule.terms, rule.entries(labels), rule.entries(given), strict=True)
        return tuple(weaken(term, y, group, generator, **common) for term, y, group in entries)
    if isinstance(rule, Combination):
        return _combined(rule, labels, bags, generator, common, parts, options)
    if parts is not None:
        raise InputError(f"{rule.title}: parts=; expected it for combinations only. Pass plain options.")
    maker = _maker(rule)
    _check_options(rule.title, options, _options_of(maker))
    truth = _truth(rule, labels, bags, generator, missing, num_classes, padded)
    return maker(truth, rule, **options)


def _truth(
    rule: Supervision,
    labels: Any,
    bags: Any,
    rng: np.random.Generator | None,
    missing: float,
    num_classes: int | None,
    padded: bool,
) -> Truth:
    values, C = read_labels(labels, num_classes, rule.title)
    group, sizes = read_bags(bags, len(values), rule.title)
    truth = Truth(rule.title, values, C, group, sizes, bags is None, rng, missing, padded)
    truth.share(missing, "missing")
    return truth


def _combined(
    rule: Combination,
    labels: Any,
    bags: Any,
    rng: np.random.Generator | None,
    common: dict[str, Any],
    parts: Sequence[Mapping[str, Any]] | None,
    options: dict[str, Any],
) -> tuple[Any, ...]:
    """One weak label a part, independent given the truth; beliefs heed the facts told beside them."""
    own = [{}] * len(rule.parts) if parts is None else list(parts)
    if len(own) != len(rule.parts):
        raise InputError(
            f"{rule.title}: parts of length {len(own)}; expected {len(rule.parts)} mappings of options. "
            "Give an empty one to a part without any."
        )
    taken = [_options_of(_maker(part)) for part in rule.parts]
    _check_options(rule.title, options, set().union(*taken))
    weak = []
    for part, names, extra in zip(rule.parts, taken, own, strict=True):
        shared = {name: value for name, value in options.items() if name in names}
        weak.append(weaken(part, labels, bags, rng, **{**common, **shared, **extra}))
    return reconcile(_truth(rule, labels, bags, rng, **common), rule.parts, weak)


def _maker(rule: Supervision) -> Callable[..., Array]:
    """The maker of the kind; a subclass with a step or evidence of its own is a rule of its own."""
    kind = next(kind for kind in type(rule).__mro__ if kind in MAKERS)
    same = all(getattr(type(rule), name) is getattr(kind, name) for name in ("step", "evidence"))
    return MAKERS[kind if same else Supervision]


def _options_of(maker: Callable[..., Array]) -> set[str]:
    parameters = inspect.signature(maker).parameters.values()
    return {parameter.name for parameter in parameters if parameter.kind is parameter.KEYWORD_ONLY}


def _check_options(title: str, options: Mapping[str, Any], known: set[str]) -> None:
    for name in options:
        if name not in known:
            names = ", ".join(sorted(known)) or "none besides missing, num_classes and padded"
            raise InputError(f"{title}: option {name!r}; expected {names}. Check the spelling.")
