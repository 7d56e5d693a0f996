"""Malformed weak labels of every kind: refused, with the first bag, the number of others, a cure."""

from collections.abc import Iterator

import numpy as np
import torch

import fastbus
from fastbus.errors import InputError, SupervisionError
from malformed import INF, NAN, Malformed, assert_refused, table, weakly

# name: supervision, shape of the predictions, shape and type of its weak labels
CATALOGUE = {
    "multi_instance": (fastbus.MultiInstance(), (4, 3, 3), (4, 3), torch.long),
    "label_proportion": (fastbus.LabelProportion(), (4, 3, 3), (4, 3), torch.long),
    "interval": (fastbus.LabelProportion("interval"), (4, 3, 3), (4, 3, 2), torch.long),
    "soft": (fastbus.LabelProportion("soft"), (4, 3, 3), (4, 3, 4), torch.float64),
    "pair_comparison": (fastbus.PairComparison(), (4, 2, 2), (4,), torch.long),
    "pair_similarity": (fastbus.PairSimilarity(), (4, 2, 3), (4,), torch.long),
    "similarity_confidence": (fastbus.SimilarityConfidence(), (4, 2, 3), (4,), torch.float64),
    "confidence_difference": (fastbus.ConfidenceDifference(), (4, 2, 2), (4,), torch.float64),
    "positive_confidence": (fastbus.PositiveConfidence(), (4, 1, 2), (4,), torch.float64),
    "partial_label": (fastbus.PartialLabel(), (4, 1, 3), (4, 3), torch.long),
    "complementary_label": (fastbus.ComplementaryLabel(), (4, 1, 3), (4,), torch.long),
    "noisy_label": (fastbus.NoisyLabel(rate=0.1), (4, 1, 3), (4,), torch.long),
    "crowd_label": (fastbus.CrowdLabel(torch.eye(3)[None]), (4, 1, 3), (4, 1), torch.long),
    "positive_unlabeled": (fastbus.PositiveUnlabeled(0.3), (4, 3, 2), (4, 3), torch.long),
    "unlabeled_unlabeled": (fastbus.UnlabeledUnlabeled([0.3, 0.6]), (4, 3, 2), (4,), torch.long),
    "semi_supervised": (fastbus.SemiSupervised(), (4, 1, 3), (4,), torch.long),
}
BINARY = ("pair_comparison", "confidence_difference", "positive_confidence")
BINARY += ("positive_unlabeled", "unlabeled_unlabeled")
SINGLE = ("pair_similarity", "similarity_confidence", "partial_label", "complementary_label")
SINGLE += ("noisy_label", "crowd_label")
CONFIDENCES = ("soft", "similarity_confidence", "confidence_difference", "positive_confidence")


def shapes() -> Iterator[Malformed]:
    """A scalar, a bag short, a bag too many, an axis too many, for every kind."""
    for name, (supervision, predictions, shape, dtype) in CATALOGUE.items():
        wrong = {
            "scalar": (),
            "bag-short": (shape[0] - 1, *shape[1:]),
            "bag-over": (shape[0] + 1, *shape[1:]),
            "axis-over": (*shape, 5),
        }
        for what, bad in wrong.items():
            weak = torch.ones(bad, dtype=dtype)
            texts = (f"{supervision.name}: ", f"weak label of shape {bad}")
            yield weakly(f"{name}-{what}", supervision, predictions, weak, *texts)


def kinds() -> Iterator[Malformed]:
    """Things that are no array of real numbers, for every kind."""
    for name, (supervision, predictions, shape, dtype) in CATALOGUE.items():
        right = torch.ones(shape, dtype=dtype)
        wrong = {
            "tuple": ((right, right), "weak label is a tuple"),
            "none": (None, "weak label is None"),
            "complex": (right + 0j, "dtype torch.complex"),
            "strings": (np.full(shape, "yes"), "weak label of type ndarray"),
            "objects": (np.full(shape, None), "weak label of type ndarray"),
        }
        for what, (weak, text) in wrong.items():
            texts = (f"{supervision.name}: ", text)
            yield weakly(f"{name}-{what}", supervision, predictions, weak, *texts)


def heads() -> Iterator[Malformed]:
    """Heads that a kind cannot be read under."""
    for name, (supervision, predictions, shape, dtype) in CATALOGUE.items():
        weak = torch.ones(shape, dtype=dtype)
        three = (*predictions[:-1], 3)
        if name in BINARY:
            text = "a binary weak label with a softmax head of 3 classes"
            yield weakly(f"{name}-three-classes", supervision, three, weak, text)
        if name in SINGLE:
            text = "single-label evidence with a sigmoid head of 3 classes"
            yield weakly(f"{name}-sigmoid", supervision, three, weak, text, head="sigmoid")
        if name in CONFIDENCES:
            text = "of dtype torch.int64; expected floats"
            yield weakly(f"{name}-integers", supervision, predictions, weak.long(), text)


@table([*shapes(), *kinds(), *heads()])
def test_every_kind_refuses_other_shapes_types_and_heads(case: Malformed) -> None:
    assert_refused(case)


# -- counts and bag labels -----------------------------------------------------------------------

INTERVAL = fastbus.LabelProportion("interval")
SHARES = fastbus.LabelProportion(unit="fraction")
SOFT = fastbus.LabelProportion("soft")
ONE = [1, 1, 1]
SURE = [[0.0, 1.0, 0.0, 0.0]] * 3
GONE = [[NAN] * 4] * 3


def counts(name: str, supervision: object, weak: object, *texts: str, **options: object) -> Malformed:
    return weakly(name, supervision, (4, 3, 3), weak, *texts, **options)


AGGREGATE = [
    counts("bag-label-2", "multi_instance", [ONE, [1, 2, 0], ONE, ONE], "weak label 2;", "; bag 1."),
    counts("bag-label-minus-2", "multi_instance", [ONE, ONE, ONE, [-2, 1, 1]], "; bag 3."),
    counts("bag-label-half", "multi_instance", [ONE, ONE, [0.5, 1, 1], ONE], "0.5;", "; bag 2."),
    counts("bag-label-inf", "multi_instance", [ONE, [INF, 1, 1], ONE, ONE], "inf;", "; bag 1."),
    counts(
        "float-minus-1",
        "multi_instance",
        [ONE, [-1.0, 1, 1], ONE, [1.0, -1, 1]],
        "-1 in float bag labels",
        "; bag 1 (and 1 more). Use NaN",
    ),
    weakly("three-classes-1d", "multi_instance", (4, 3, 3), [1] * 4, "a binary weak label"),
    weakly("sigmoid-1d", "label_proportion", (4, 3, 2), [1] * 4, "binary", head="sigmoid"),
    counts(
        "count-negative",
        "label_proportion",
        [ONE, [-2, 2, 1], ONE, [1, 1, -3]],
        "weak label -2; expected counts as whole numbers from 0, -1 where missing",
        "; bag 1 (and 1 more). ",
    ),
    counts("count-half", "label_proportion", [ONE, ONE, [1.5, 0, 1], ONE], "1.5;", "; bag 2."),
    counts(
        "count-fraction",
        "label_proportion",
        [ONE, [1 / 3] * 3, ONE, ONE],
        "0.33333",
        "; bag 1. Correct",
        'LabelProportion(unit="fraction") for fractions of the bag.',
    ),
    counts("count-not-fraction", "label_proportion", [ONE, [1.5] * 3, ONE, ONE], "or mark it missing."),
    counts("interval-fraction", INTERVAL, [[[0, 0.5]] * 3] * 4, "0.5; expected interval", 'unit="fraction"'),
    counts("count-float-minus-1", "label_proportion", [ONE] * 3 + [[-1.0, 2, 1]], "NaN", "; bag 3."),
    counts(
        "fraction-no-count",
        SHARES,
        [[1 / 3] * 3, [0.5, 0.25, 0.25], [0.4, 0.3, 0.3], [0.5, 0.5, 0]],
        "fraction 0.5 of class 0 in a bag of 3 is 1.5 instances",
        "; bag 1 (and 2 more). Round the fractions",
    ),
    counts("fraction-above-1", SHARES, [[1 / 3] * 3] * 3 + [[4 / 3, 0, 0]], "[0, 1]", "; bag 3."),
    counts("fraction-negative", SHARES, [[1 / 3] * 3, [-1 / 3, 1, 1 / 3]] * 2, "bag 1 (and 1 more)"),
    counts("fraction-integers", SHARES, [ONE] * 4, "fractions of dtype torch.int64", ".float()"),
    counts("interval-of-3", INTERVAL, torch.ones(4, 3, 3), "intervals with 3 numbers each"),
    counts("interval-of-1", INTERVAL, torch.ones(4, 3, 1), "intervals with 1 numbers each"),
    counts("interval-bound-half", INTERVAL, [[[0, 2.5]] * 3] * 4, "weak label 2.5", "bag 0 (and 3"),
    counts("interval-bound-negative", INTERVAL, [[[0, 3]] * 3] * 3 + [[[-2, 3]] * 3], "-2;", "; bag 3."),
    counts(
        "interval-share-above-1",
        fastbus.LabelProportion("interval", unit="fraction"),
        [[[0.0, 1.0]] * 3] * 2 + [[[0.5, 1.1]] * 3] * 2,
        "weak label 1.1; expected interval bounds in [0, 1]",
        "; bag 2 (and 1 more). ",
    ),
    counts("soft-too-short", SOFT, torch.ones(4, 3, 3) / 3, "over 3 values; expected at least 4"),
    counts(
        "soft-sum",
        SOFT,
        [GONE, [[0.5, 0.2, 0, 0]] * 3, [[0.5, 0.2, 0, 0]] * 3, GONE],
        "soft counts that sum to 0.7",
        "; bag 1 (and 1 more). Divide",
    ),
    counts("soft-negative", SOFT, [SURE, SURE, [[1.5, -0.5, 0, 0]] * 3, SURE], "-0.5", "; bag 2."),
    counts("soft-infinite", SOFT, [SURE, [[INF, 0, 0, 0]] * 3, SURE, SURE], "inf", "; bag 1."),
    counts(
        "soft-half-missing",
        SOFT,
        [SURE, [[NAN, 1.0, 0, 0]] * 3, SURE, [[0.0, NAN, 1, 0]] * 3],
        "some entries missing",
        "; bag 1 (and 1 more). Mark all entries",
    ),
    counts(
        "soft-several-classes",
        SOFT,
        [GONE, SURE, [*GONE[:2], SURE[0]], SURE],
        "; bag 1 (and 1 more). Read them as virtual evidence",
        error=SupervisionError,
    ),
]

# -- pairs and confidences -----------------------------------------------------------------------


def pairs(name: str, supervision: object, weak: object, *texts: str, shape: tuple[int, ...] = (4, 2, 2)) -> Malformed:
    return weakly(name, supervision, shape, weak, *texts)


IN_THREES = "a bag of 3 instances; expected pairs of exactly 2; bag 0 (and 3 more). Regroup"
PAIRWISE = [
    pairs("comparison-2", "pair_comparison", [1, 2, 0, 2], "weak label 2", "bag 1 (and 1 more)"),
    pairs("comparison-half", "pair_comparison", [1, 0, 0.5, 1], "weak label 0.5", "; bag 2."),
    pairs("comparison-float-minus-1", "pair_comparison", [1.0, -1, 1, 1], "Use NaN", "; bag 1."),
    pairs("comparison-of-three", "pair_comparison", [1] * 4, IN_THREES, shape=(4, 3, 2)),
    pairs("similarity-2", "pair_similarity", [1, 0, 1, 2], "weak label 2", "; bag 3."),
    pairs("similarity-minus-2", "pair_similarity", [1, -2, -2, -2], "; bag 1 (and 2 more)."),
    pairs("similarity-of-three", "pair_similarity", [1] * 4, IN_THREES, shape=(4, 3, 2)),
    pairs(
        "confidence-1.5",
        "similarity_confidence",
        [0.5, 1.5, -0.5, 1.0],
        "weak label 1.5; expected similarity confidences in [0, 1]",
        "; bag 1 (and 1 more). ",
    ),
    pairs("confidence-of-three", "similarity_confidence", [0.5] * 4, IN_THREES, shape=(4, 3, 2)),
    pairs(
        "difference-minus-1.2",
        "confidence_difference",
        [-1.0, 1.0, -1.2, 0.0],
        "weak label -1.2; expected confidence differences in [-1, 1]",
        "; bag 2. ",
    ),
    pairs("difference-inf", "confidence_difference", [0.0, INF, -INF, 0.0], "bag 1 (and 1 more)"),
    pairs("difference-of-three", "confidence_difference", [0.5] * 4, IN_THREES, shape=(4, 3, 2)),
    weakly(
        "pairs-of-several-sizes",
        "pair_similarity",
        (8, 2),
        [1] * 4,
        "a bag of 1 instances",
        "; bag 1 (and 1 more). ",
        bag_sizes=[2, 1, 3, 2],
    ),
    pairs(
        "positive-0",
        "positive_confidence",
        [1.0, 0.0, 0.5, 0.0],
        "(0, 1]",
        "bag 1 (and 1 more)",
        shape=(4, 1, 2),
    ),
    pairs("positive-1.1", "positive_confidence", [1.0, 0.9, 0.5, 1.1], "1.1", "; bag 3. ", shape=(4, 1, 2)),
    pairs("positive-of-two", "positive_confidence", [0.5] * 4, "single instances of exactly 1"),
]

# -- single instances ----------------------------------------------------------------------------


def classes(
    name: str,
    supervision: object,
    weak: object,
    *texts: str,
    shape: tuple[int, ...] = (4, 1, 3),
    **options: object,
) -> Malformed:
    return weakly(name, supervision, shape, weak, *texts, **options)


NOISY = fastbus.NoisyLabel(rate=0.2)
CROWD = fastbus.CrowdLabel(torch.eye(3).expand(2, 3, 3))
UNKNOWN = "expected classes as whole numbers 0 to 2, -1 where missing"
INSTANCE = [
    classes("candidates-2", "partial_label", [ONE, [0, 2, 0], ONE, ONE], "label 2;", "; bag 1."),
    classes("candidates-of-2-classes", "partial_label", [[1, 1]] * 4, "shape (4, 2)"),
    classes("candidates-float-minus-1", "partial_label", [[1.0] * 3, [-1.0] * 3] * 2, "NaN", "bag 1 ("),
    classes(
        "candidates-half-missing",
        "partial_label",
        [ONE, [1, -1, 0], [-1, -1, -1], [0, -1, 1]],
        "some entries missing",
        "; bag 1 (and 1 more). Fill the row",
    ),
    classes("candidates-per-bag", "partial_label", [ONE] * 4, "expected (4, 2, 3)", shape=(4, 2, 3)),
    classes("excluded-3", "complementary_label", [0, 3, 1, 4], UNKNOWN, "; bag 1 (and 1 more)."),
    classes("excluded-minus-2", "complementary_label", [0, 0, -2, 1], "label -2", "; bag 2."),
    classes("excluded-row-2", "complementary_label", [[0, 0, 1]] * 3 + [[0, 0, 2]], "; bag 3."),
    classes("excluded-half-missing", "complementary_label", [[0, 0, 1], [0, -1, 1]] * 2, "bag 1 (and"),
    classes("noisy-3", NOISY, [0, 3, 3, 3], "weak label 3", UNKNOWN, "; bag 1 (and 2 more)."),
    classes("noisy-minus-2", NOISY, [0, 1, 2, -2], "weak label -2", "; bag 3."),
    classes("noisy-half", NOISY, [0.0, 1, 1.5, NAN], "weak label 1.5", "NaN where missing; bag 2."),
    classes("noisy-minus-1.0", NOISY, [0.0, -1, 1, 1], "-1 in float classes", "; bag 1."),
    classes("noisy-uint8", NOISY, np.array([0, 1, 255, 2], np.uint8), "weak label 255", "; bag 2."),
    classes("crowd-3", CROWD, [[0, 1], [0, 3], [3, -1], [-1, -1]], "label 3", "bag 1 (and 1 more)"),
    classes("crowd-minus-2", CROWD, [[0, 1]] * 3 + [[-2, 1]], "weak label -2", "; bag 3."),
    classes("crowd-of-3", CROWD, [[0, 1, 2]] * 4, "so 3 annotators; expected 2", "-1 for no answer"),
    classes("crowd-1d", fastbus.CrowdLabel(rate=0.1), [0] * 4, "answers_from_table"),
    classes("gold-3", "semi_supervised", [0, -1, 3, 3], "label 3", UNKNOWN, "bag 2 (and 1 more)"),
    classes("gold-minus-2", "semi_supervised", [0, -2, 1, 2], "weak label -2", "; bag 1."),
    classes(
        "gold-sigmoid-2",
        "semi_supervised",
        [0, 1, 2, 1],
        "0 to 1",
        "; bag 2.",
        shape=(4, 1, 1),
        head="sigmoid",
    ),
    classes("gold-multi-label-index", "semi_supervised", [0, 1, 2, 1], "expected (4, 1, 3)", head="sigmoid"),
    classes(
        "gold-multi-label-2",
        "semi_supervised",
        [ONE, [0, 2, 1], ONE, ONE],
        "0 to 1, ",
        "; bag 1.",
        head="sigmoid",
    ),
    classes("gold-per-bag", "semi_supervised", [0] * 4, "expected (4, 3)", shape=(4, 3, 3)),
    classes("gold-in-bags", "semi_supervised", [ONE, [0, 1, 5], ONE, ONE], "label 5", "; bag 1.", shape=(4, 3, 3)),
    classes(
        "gold-flat",
        "semi_supervised",
        [0, 1, 2, 0, 7, 0, 0, 9],
        "label 7",
        "; bag 1 (and 1 more)",
        shape=(8, 3),
        bag_sizes=[3, 2, 3],
    ),
    classes("gold-flat-per-bag", "semi_supervised", [0, 1, 2], "expected (8,)", shape=(8, 3), bag_sizes=[3, 2, 3]),
]

# -- sets and combinations -----------------------------------------------------------------------

PU, UU = fastbus.PositiveUnlabeled(0.3), fastbus.UnlabeledUnlabeled([0.2, 0.7])
BOTH = fastbus.LabelProportion() & fastbus.SemiSupervised()
SUM = fastbus.SimilarDissimilarUnlabeled(0.4)
GOLD = torch.full((4, 3), -1)


def sets(name: str, supervision: object, weak: object, *texts: str, **options: object) -> Malformed:
    return weakly(name, supervision, (4, 3, 2), weak, *texts, **options)


SETS = [
    sets("labelled-0", PU, [ONE, [1, 0, -1], ONE, [0, 0, 1]], "weak label 0", "bag 1 (and 1 more)",
         "use semi_supervised"),
    sets("labelled-2", PU, [ONE, ONE, [1, 2, -1], ONE], "weak label 2", "; bag 2."),
    sets("labelled-float-minus-1", PU, [[1, NAN, NAN]] * 3 + [[1, -1.0, NAN]], "-1 in float labels",
         "; bag 3."),
    sets("labelled-bool", PU, torch.tensor([[True] * 3, [False] * 3] * 2), "False", "bag 1 (and 1"),
    sets("labelled-per-bag", PU, [1] * 4, "expected (4, 3)"),
    sets("set-2", UU, [0, 2, 1, 3], "set indices as whole numbers 0 to 1", "bag 1 (and 1 more)"),
    sets("set-minus-2", UU, [0, 1, 1, -2], "weak label -2", "; bag 3."),
    counts("no-tuple", BOTH, [ONE, ONE, ONE], "expected a tuple of 2, one entry"),
    counts("a-tensor", BOTH, torch.ones(4, 3), "label_proportion & semi_supervised: weak label Tensor"),
    counts("one-entry", BOTH, ([ONE] * 4,), "weak label 1; expected a tuple of 2"),
    counts("three-entries", BOTH, ([ONE] * 4, GOLD, GOLD), "weak label 3; expected a tuple of 2"),
    counts("nested-tuple", BOTH, (([ONE] * 4,), GOLD), "label_proportion: weak label is a tuple"),
    counts("part-shape", BOTH, ([ONE] * 4, GOLD[:3]), "semi_supervised: ", "shape (3, 3)"),
    counts("part-value", BOTH, ([ONE] * 4, GOLD + 6), "semi_supervised: ", "label 5", "bag 0 (and 3"),
    sets("sum-weak-no-tuple", SUM, [1] * 4, "a tuple with an entry for each of pair_similarity",
         error=InputError),
]  # fmt: skip


@table(AGGREGATE + PAIRWISE + INSTANCE + SETS)
def test_malformed_values_are_refused_by_bag(case: Malformed) -> None:
    assert_refused(case)
