"""What each row of the demonstration is told: the images drawn, the weak labels, and what they cannot say.

Every kind of the catalogue has one function here. It draws images of the training part (`fastbus.data.draws`),
weakens their true labels (`fastbus.weaken`), and leaves the settings of the classifier alone; all rows share the
network and the epochs of `demo_run`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastbus.data.draws import (
    Grouping,
    binary_labels,
    draw_bags,
    draw_pairs,
    draw_positive_unlabeled,
    draw_similar_dissimilar_unlabeled,
    draw_unlabeled_sets,
)
from fastbus.data.weaken import weaken
from fastbus.supervision import (
    ComplementaryLabel,
    ConfidenceDifference,
    CrowdLabel,
    LabelProportion,
    MultiInstance,
    NoisyLabel,
    PairComparison,
    PairSimilarity,
    PartialLabel,
    PositiveConfidence,
    PositiveUnlabeled,
    SemiSupervised,
    SimilarDissimilarUnlabeled,
    SimilarityConfidence,
    Supervision,
    UnlabeledUnlabeled,
)

Array = NDArray[Any]
POSITIVES = (5, 6, 7, 8, 9)  # the positive class of binary kinds; 0 to 4 are the negative one
SCORER_IMAGES = 400
SCORER_C = 10  # by the scorer's own images: log-loss in five folds .085, where C = 1 gives .140 and C = 100 .083
NAMES_LOST = "names classes only up to a permutation: accuracy after the best matching"
OWN_SCORER = f"confidences of a logistic regression on {SCORER_IMAGES} other images"


@dataclass(frozen=True)
class Digits:
    """scikit-learn's digits: images to train on, and single images to test on."""

    images: Array  # (N, 64)
    labels: Array  # (N,) 0 to 9
    test_images: Array
    test_labels: Array

    @property
    def high(self) -> Array:
        """Whether a training image shows 5 to 9, (N,)."""
        return binary_labels(self.labels, POSITIVES)


@dataclass(frozen=True)
class Task:
    """One row: images with their weak labels. The true labels are for the ceiling and for matching alone."""

    supervision: Supervision
    rows: Array  # (M,) training images, bag after bag
    truth: Array  # (M,) their classes
    weak: Any
    told: str  # how many weak labels, and of what
    bags: Array | None = None  # (M,) the bag of each row
    binary: bool = False
    matched: bool = False  # whether classes are matched to names after training
    note: str = ""
    more: tuple[Array, Array] | None = None  # rows and classes of the ceiling, where the task's lack a class
    options: dict[str, Any] = field(default_factory=dict)  # of WeakClassifier, where not its defaults

    @property
    def num_classes(self) -> int:
        return 2 if self.binary else 10


Maker = Callable[[Digits, np.random.Generator], Task]


def _single(digits: Digits, supervision: Supervision, weak: Array, told: str, note: str = "") -> Task:
    """Every training image on its own, ten classes."""
    rows = np.arange(len(digits.labels))
    return Task(supervision, rows, digits.labels, weak, told, note=note, options={"n_classes": 10})


def _drawn(supervision: Supervision, labels: Array, drawn: Grouping, weak: Any, told: str, **more: Any) -> Task:
    """Images drawn into bags, ten classes or two."""
    options = {} if more.get("binary") else {"n_classes": 10}
    return Task(supervision, drawn.rows, labels[drawn.rows], weak, told, bags=drawn.bags, options=options, **more)


# -- bags ------------------------------------------------------------------------------------------


def label_proportion(digits: Digits, rng: np.random.Generator) -> Task:
    rule, drawn = LabelProportion(), _bags(digits, 125, 10, rng)
    weak = weaken(rule, digits.labels[drawn.rows], drawn.sizes, num_classes=10)
    return _drawn(rule, digits.labels, drawn, weak, f"class counts of {_sizes(drawn)}")


def multi_instance(digits: Digits, rng: np.random.Generator) -> Task:
    rule, drawn = MultiInstance(), _bags(digits, 250, 5, rng)
    weak = weaken(rule, digits.labels[drawn.rows], drawn.sizes, num_classes=10)
    return _drawn(rule, digits.labels, drawn, weak, f"which classes occur in {_sizes(drawn)}")


def proportion_and_gold(digits: Digits, rng: np.random.Generator) -> Task:
    rule, drawn = LabelProportion() & SemiSupervised(), _bags(digits, 60, 10, rng)
    parts: tuple[dict[str, int], ...] = ({}, {"labelled": 50})
    weak = weaken(rule, digits.labels[drawn.rows], drawn.sizes, rng, num_classes=10, parts=parts)
    return _drawn(rule, digits.labels, drawn, weak, f"class counts of {_sizes(drawn)}, 50 gold labels")


def _bags(digits: Digits, number: int, size: int, rng: np.random.Generator) -> Grouping:
    return draw_bags(len(digits.labels), number, size, size / 5, rng)


def _sizes(drawn: Grouping) -> str:
    return f"{len(drawn.sizes)} bags of {drawn.sizes.min()} to {drawn.sizes.max()}"


# -- single images -----------------------------------------------------------------------------------


def partial_label(digits: Digits, rng: np.random.Generator) -> Task:
    rule = PartialLabel()
    weak = weaken(rule, digits.labels, rng=rng, num_classes=10, ratio=0.3)
    return _single(digits, rule, weak, f"{len(weak)} candidate sets, each wrong class in with .3")


def complementary_label(digits: Digits, rng: np.random.Generator) -> Task:
    rule = ComplementaryLabel()
    weak = weaken(rule, digits.labels, rng=rng, num_classes=10)
    # figures: means of seeds 0 to 2 by `python -m fastbus.bench.demo_limits`
    note = "a wrong class tells .15 of the 3.3 bits of a label, 1,347 of them as much as 62 labels, which give 82%; "
    note += "three wrong classes an image give 94%"
    return _single(digits, rule, weak, f"{len(weak)} images, one wrong class each", note)


def noisy_label(digits: Digits, rng: np.random.Generator) -> Task:
    rule = NoisyLabel(rate=0.3)
    weak = weaken(rule, digits.labels, rng=rng, num_classes=10)
    return _single(digits, rule, weak, f"{len(weak)} labels, 30% wrong")


def crowd_label(digits: Digits, rng: np.random.Generator) -> Task:
    weak = weaken(CrowdLabel(rate=0.4), digits.labels, rng=rng, num_classes=10, annotators=8, answers=3)
    told = f"{len(weak)} images, 3 answers each of 8 annotators, 40% wrong"
    return _single(digits, CrowdLabel(), weak, told, "confusion matrices unknown, estimated out of fold")


def semi_supervised(digits: Digits, rng: np.random.Generator) -> Task:
    rule = SemiSupervised()
    weak = weaken(rule, digits.labels, rng=rng, num_classes=10, labelled=250)
    return _single(digits, rule, weak, f"250 gold labels, {len(weak) - 250} images without")


# -- pairs -----------------------------------------------------------------------------------------


def pair_comparison(digits: Digits, rng: np.random.Generator) -> Task:
    high = digits.high
    drawn = draw_pairs(high, len(high) // 2, rng, kind="comparison", prior=0.5)
    told = f"{len(drawn.sizes)} pairs, the larger first, ties at random"
    return _drawn(PairComparison(), high, drawn, drawn.weak, told, binary=True)


def pair_similarity(digits: Digits, rng: np.random.Generator) -> Task:
    high = digits.high
    drawn = draw_pairs(high, len(high) // 2, rng, kind="similarity", prior=0.5)
    told = f"{len(drawn.sizes)} pairs, same class or not"
    return _drawn(PairSimilarity(), high, drawn, drawn.weak, told, binary=True, matched=True, note=NAMES_LOST)


def similarity_confidence(digits: Digits, rng: np.random.Generator) -> Task:
    rule, high, (rows, scores) = SimilarityConfidence(), digits.high, scored(digits, rng)
    drawn = _pairs(len(rows), rng)
    weak = weaken(rule, high[rows][drawn.rows], drawn.sizes, probabilities=scores[drawn.rows])
    note = f"{OWN_SCORER}; {NAMES_LOST}"
    told = f"{len(drawn.sizes)} pairs, P(same class)"
    return _drawn(rule, high, _among(rows, drawn), weak, told, binary=True, matched=True, note=note)


def confidence_difference(digits: Digits, rng: np.random.Generator) -> Task:
    rule, high, (rows, scores) = ConfidenceDifference(), digits.high, scored(digits, rng)
    drawn = _pairs(len(rows), rng)
    weak = weaken(rule, high[rows][drawn.rows], drawn.sizes, probabilities=scores[drawn.rows])
    told = f"{len(drawn.sizes)} pairs, difference of P(5 to 9)"
    return _drawn(rule, high, _among(rows, drawn), weak, told, binary=True, note=OWN_SCORER)


def positive_confidence(digits: Digits, rng: np.random.Generator) -> Task:
    rule, high, (rows, scores) = PositiveConfidence(weighting="pconf"), digits.high, scored(digits, rng)
    all_of_them = (rows, high[rows])
    chosen = high[rows] == 1
    rows, scores = rows[chosen], scores[chosen]
    weak = weaken(rule, high[rows], num_classes=2, probabilities=scores)
    # figures as above
    note = f"{OWN_SCORER}; the scorer itself reaches 97%, and so does the network once it is told the confidences of "
    note += "negatives too, as the ceiling is: the gap is what positives alone cannot say"
    told = f"P(5 to 9) of {len(rows)} positives, no negatives"
    return Task(rule, rows, high[rows], weak, told, binary=True, note=note, more=all_of_them)


def _pairs(number: int, rng: np.random.Generator) -> Grouping:
    rows = rng.permutation(number)[: number // 2 * 2]
    return Grouping(rows, np.full(number // 2, 2), None, False)


def _among(rows: Array, drawn: Grouping) -> Grouping:
    return drawn._replace(rows=rows[drawn.rows])


def scored(digits: Digits, rng: np.random.Generator) -> tuple[Array, Array]:
    """The images that are left, and P(5 to 9) of each under a scorer that saw the others only."""
    from sklearn.linear_model import LogisticRegression

    order = rng.permutation(len(digits.labels))
    seen, left = order[:SCORER_IMAGES], order[SCORER_IMAGES:]
    scorer = LogisticRegression(C=SCORER_C, max_iter=1000).fit(digits.images[seen] / 16, digits.labels[seen])
    return left, scorer.predict_proba(digits.images[left] / 16)[:, list(POSITIVES)].sum(1)


# -- sets of known prior -----------------------------------------------------------------------------


def positive_unlabeled(digits: Digits, rng: np.random.Generator) -> Task:
    high, prior = digits.high, 0.4
    drawn = draw_positive_unlabeled(high, 150, 1000, prior, rng)
    told = "150 positives, 1,000 unlabelled images, 40% of them positive"
    return _as_set(PositiveUnlabeled(prior), high, drawn, drawn.weak, told)


def unlabeled_unlabeled(digits: Digits, rng: np.random.Generator) -> Task:
    high, priors = digits.high, (0.2, 0.8)
    drawn = draw_unlabeled_sets(high, priors, (600, 600), rng)
    told = "2 sets of 600 images, 20% and 80% of them positive"
    return _as_set(UnlabeledUnlabeled(priors), high, drawn, drawn.bags, told)


def _as_set(rule: Supervision, labels: Array, drawn: Grouping, weak: Any, told: str) -> Task:
    """Single rows, since any draw of a set has its share of positives.

    A step constrains the count of its draw and of the predictions that the classifier keeps of earlier ones.
    """
    return Task(rule, drawn.rows, labels[drawn.rows], weak, told, binary=True)


def similar_dissimilar_unlabeled(digits: Digits, rng: np.random.Generator) -> Task:
    high, prior = digits.high, 0.3
    pairs, left = draw_similar_dissimilar_unlabeled(high, 350, 400, prior, rng)
    rows = np.concatenate([pairs.rows, left.rows])
    rule, weak = SimilarDissimilarUnlabeled(prior), (pairs.weak, left.weak)
    told = "350 pairs, same class or not, 400 unlabelled images, 30% of both positive"
    return Task(rule, rows, high[rows], weak, told, binary=True)


KINDS: dict[str, Maker] = {
    "label_proportion": label_proportion,
    "multi_instance": multi_instance,
    "partial_label": partial_label,
    "complementary_label": complementary_label,
    "noisy_label": noisy_label,
    "crowd_label": crowd_label,
    "semi_supervised": semi_supervised,
    "positive_unlabeled": positive_unlabeled,
    "unlabeled_unlabeled": unlabeled_unlabeled,
    "pair_comparison": pair_comparison,
    "pair_similarity": pair_similarity,
    "similarity_confidence": similarity_confidence,
    "confidence_difference": confidence_difference,
    "positive_confidence": positive_confidence,
    "similar_dissimilar_unlabeled": similar_dissimilar_unlabeled,
    "label_proportion & semi_supervised": proportion_and_gold,
}
"""The rows in the order in which they are shown."""
