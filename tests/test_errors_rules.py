"""Wrong options, rules and crowd tables: refused when they are made, or when they are first used."""

from collections.abc import Callable

import torch
from torch import Tensor

import fastbus
from fastbus.errors import FastbusError, InputError, SupervisionError, WeakLabelError
from malformed import NAN, Malformed, assert_refused, malformed, scores, table, weakly

from_function = fastbus.Supervision.from_function


def option(name: str, make: Callable[[], object], *texts: str) -> Malformed:
    return malformed(name, SupervisionError, make, *texts)


CHOICES = [
    option("kind", lambda: fastbus.LabelProportion("mean"), "kind='mean'", "'interval'"),
    option("kind-list", lambda: fastbus.LabelProportion(["exact"]), "kind=['exact']"),
    option("unit", lambda: fastbus.LabelProportion(unit="percent"), "unit='percent'", "'fraction'"),
    option("soft", lambda: fastbus.LabelProportion(soft="pearl"), "soft='pearl'", "'virtual'"),
    option("soft-fraction", lambda: fastbus.LabelProportion("soft", unit="fraction"), "counts"),
    option("tolerance-1", lambda: fastbus.LabelProportion(tolerance=1), "tolerance=1; expected"),
    option("tolerance-negative", lambda: fastbus.LabelProportion(tolerance=-0.1), "[0, 0.5)"),
    option("tolerance-nan", lambda: fastbus.LabelProportion(tolerance=NAN), "tolerance=nan"),
    option("tolerance-text", lambda: fastbus.LabelProportion(tolerance="1%"), "tolerance='1%'"),
    option("pairs", lambda: fastbus.PairComparison(pairs="ordered"), "pairs='ordered'", "'sorted'"),
    option("similarity-soft", lambda: fastbus.SimilarityConfidence(soft="hard"), "soft='hard'"),
    option("weighting", lambda: fastbus.PositiveConfidence(weighting="1/r"), "weighting='1/r'"),
    option("pu-constraint", lambda: fastbus.PositiveUnlabeled(0.3, constraint="kl"), "'jeffrey'"),
    option("uu-constraint", lambda: fastbus.UnlabeledUnlabeled([0.3], constraint=""), "'mean'"),
    option(
        "sdu-constraint",
        lambda: fastbus.SimilarDissimilarUnlabeled(0.3, constraint="kl"),
        "constraint='kl'",
    ),
]

PRIORS = [
    option("prior-0", lambda: fastbus.PositiveUnlabeled(0.0), "prior 0.0", "in (0, 1)"),
    option("prior-1", lambda: fastbus.PositiveUnlabeled(1), "prior 1;"),
    option("prior-percent", lambda: fastbus.PositiveUnlabeled(30), "prior 30;"),
    option("prior-nan", lambda: fastbus.PositiveUnlabeled(NAN), "prior nan;"),
    option("prior-text", lambda: fastbus.PositiveUnlabeled("0.3"), "prior '0.3';"),
    option("prior-none", lambda: fastbus.SimilarDissimilarUnlabeled(None), "prior None;"),
    option("prior-bool", lambda: fastbus.PositiveUnlabeled(True), "prior True;"),
    option("priors-empty", lambda: fastbus.UnlabeledUnlabeled([]), "priors=[]", "(0.2, 0.7)"),
    option("priors-number", lambda: fastbus.UnlabeledUnlabeled(0.3), "priors=0.3"),
    option("priors-text", lambda: fastbus.UnlabeledUnlabeled("ab"), "priors='ab'"),
    option("priors-one-bad", lambda: fastbus.UnlabeledUnlabeled([0.2, 1.2]), "prior 1.2;"),
    option("sdu-prior", lambda: fastbus.SimilarDissimilarUnlabeled(-0.1), "prior -0.1;"),
]


def flips(name: str, noise: object, *texts: str) -> list[Malformed]:
    kinds = {
        "multi_instance": lambda: fastbus.MultiInstance(noise=noise),
        "pair_comparison": lambda: fastbus.PairComparison(noise=noise),
        "pair_similarity": lambda: fastbus.PairSimilarity(noise=noise),
    }
    return [option(f"{kind}-noise-{name}", make, kind, *texts) for kind, make in kinds.items()]


def errs(name: str, noise: object, *texts: str, kind: str = "exact") -> Malformed:
    return option(f"count-noise-{name}", lambda: fastbus.LabelProportion(kind, noise=noise), *texts)


NOISE = [
    *flips("one-rate", 0.1, "noise=0.1; expected (false_positive, false_negative)"),
    *flips("three-rates", (0.1, 0.1, 0.1), "Give both rates"),
    *flips("text", "ab", "noise='ab'"),
    *flips("texts", ("a", "b"), "expected rates in [0, 1)"),
    *flips("percent", (5, 10), "noise=(5, 10); expected rates in [0, 1)", "not percentages"),
    *flips("negative", (-0.1, 0.1), "expected rates in [0, 1)"),
    *flips("certain", (0.1, 1.0), "expected rates in [0, 1)"),
    *flips("nan", (0.1, NAN), "expected rates in [0, 1)"),
    errs("pair", (0.1, 0.1), "expected {error: probability}", "{-1: .1, 0: .8, 1: .1}"),
    errs("empty", {}, "noise={}"),
    errs("sum", {-1: 0.2, 0: 0.9}, "sum to 1.1; expected 1"),
    errs("negative", {-1: -0.2, 0: 1.2}, "probabilities in [0, 1]"),
    errs("fractional-error", {0.5: 1.0}, "whole numbers as errors"),
    errs("text-error", {"one": 1.0}, "whole numbers as errors"),
    errs("text-probability", {0: "all"}, "probabilities in [0, 1]"),
    errs("interval", {0: 1.0}, 'noise with kind="interval"', kind="interval"),
    errs("soft", {0: 1.0}, 'noise with kind="soft"', kind="soft"),
]

EYE = torch.eye(3)


def noisy(name: str, make: Callable[[], object], *texts: str) -> Malformed:
    """Refused at the latest when labels of three classes are read."""
    weak = torch.zeros(4, 1, dtype=torch.long)
    return option(name, lambda: fastbus.infer(make(), scores(4, 1, 3), weak), *texts)


MATRICES = [
    noisy("noisy-nothing", fastbus.NoisyLabel, "neither transition nor rate", "estimate"),
    noisy("noisy-both", lambda: fastbus.NoisyLabel(EYE, rate=0.1), "both a matrix and rate=0.1"),
    noisy("noisy-vector", lambda: fastbus.NoisyLabel(torch.ones(3)), "shape (3,); expected (C, C)"),
    noisy("noisy-not-square", lambda: fastbus.NoisyLabel(EYE[:2]), "shape (2, 3)"),
    noisy("noisy-stack", lambda: fastbus.NoisyLabel(EYE[None]), "shape (1, 3, 3)"),
    noisy("noisy-empty", lambda: fastbus.NoisyLabel(torch.zeros(0, 0)), "shape (0, 0)"),
    noisy("noisy-rows", lambda: fastbus.NoisyLabel(EYE * 0.9), "sum to 1", "Divide each row"),
    noisy("noisy-columns", lambda: fastbus.NoisyLabel([[0.9, 0.2], [0.1, 0.8]]), "sum to 1"),
    noisy("noisy-negative", lambda: fastbus.NoisyLabel([[1.5, -0.5], [0, 1]]), "non-negative"),
    noisy("noisy-nan", lambda: fastbus.NoisyLabel(EYE * NAN), "no distributions"),
    noisy("noisy-complex", lambda: fastbus.NoisyLabel(EYE + 0j), "dtype torch.complex64"),
    noisy("noisy-text", lambda: fastbus.NoisyLabel("symmetric"), "transition of type str"),
    noisy("noisy-ragged", lambda: fastbus.NoisyLabel([[1.0], [0.5, 0.5]]), "type list"),
    noisy("noisy-4-classes", lambda: fastbus.NoisyLabel(torch.eye(4)), "of 4 classes; expected 3"),
    noisy("noisy-rate-1", lambda: fastbus.NoisyLabel(rate=1.0), "rate=1.0", "[0, 1)"),
    noisy("noisy-rate-negative", lambda: fastbus.NoisyLabel(rate=-0.1), "rate=-0.1"),
    noisy("noisy-rate-percent", lambda: fastbus.NoisyLabel(rate=30), "not a percentage"),
    noisy("noisy-rate-text", lambda: fastbus.NoisyLabel(rate="30%"), "rate='30%'"),
    noisy("crowd-nothing", fastbus.CrowdLabel, "neither transitions nor rate", "estimate"),
    noisy("crowd-both", lambda: fastbus.CrowdLabel(EYE[None], rate=0.1), "both a matrix and rate"),
    noisy("crowd-one-matrix", lambda: fastbus.CrowdLabel(EYE), "shape (3, 3); expected (A, C, C)"),
    noisy("crowd-nobody", lambda: fastbus.CrowdLabel(torch.zeros(0, 3, 3)), "shape (0, 3, 3)"),
    noisy("crowd-rows", lambda: fastbus.CrowdLabel(EYE[None] / 2), "sum to 1"),
    noisy("crowd-2-classes", lambda: fastbus.CrowdLabel(torch.eye(2)[None]), "of 2 classes"),
    noisy("crowd-rate", lambda: fastbus.CrowdLabel(rate=1.5), "crowd_label: rate=1.5"),
]

SOFT = fastbus.LabelProportion("soft")
COMBINATIONS = [
    option("two-soft-counts", lambda: SOFT & fastbus.LabelProportion("soft"), 'soft="virtual"'),
    option("soft-and-pu", lambda: SOFT & fastbus.PositiveUnlabeled(0.3, constraint="jeffrey"), "do not commute"),
    option(
        "two-means",
        lambda: fastbus.ConfidenceDifference() & fastbus.PositiveUnlabeled(0.3, constraint="mean"),
        "confidence_difference & positive_unlabeled: each sets a distribution",
        'constraint="likelihood"',
    ),
    option(
        "third-part",
        lambda: SOFT & fastbus.SemiSupervised() & fastbus.SimilarityConfidence(),
        "label_proportion & similarity_confidence: ",
    ),
    option(
        "a-sum",
        lambda: fastbus.SemiSupervised() & fastbus.SimilarDissimilarUnlabeled(0.3),
        "similar_dissimilar_unlabeled in a combination",
    ),
]


# -- rules of one's own --------------------------------------------------------------------------


class Parity(fastbus.Supervision):
    """Whether the number of positives is odd; tests break one method at a time."""

    def num_states(self, bag_size: int) -> int:
        return 2

    def step(self, state: Tensor, label: Tensor) -> Tensor:
        return (state + label) % 2

    def evidence(self, state: Tensor, weak: Tensor) -> Tensor:
        return state == weak


def own(name: str, *texts: str, base: type = Parity, **methods: object) -> Malformed:
    rule = type("Own", (base,), methods)
    weak = torch.ones(4, dtype=torch.long)
    return weakly(f"own-{name}", rule(), (4, 3, 2), weak, "Own", *texts, error=SupervisionError)


BARE = fastbus.Supervision
OWN = [
    own("without-num-states", "has no num_states", base=BARE),
    own(
        "without-evidence", "has no evidence", base=BARE, num_states=lambda self, K: 2,
        step=Parity.step,
    ),
    own(
        "without-step", "has no step", base=BARE, num_states=lambda self, K: 2,
        evidence=Parity.evidence,
    ),
    own("states-float", "num_states(3) returned 2.0", num_states=lambda self, K: 2.0),
    own("states-none", "returned None", num_states=lambda self, K: None),
    own("states-zero", "returned 0; expected an integer", num_states=lambda self, K: 0),
    own("states-bool", "returned True", num_states=lambda self, K: True),
    own("step-beyond", "step(state=1, label=1) is 2", "0 to 1", step=lambda self, z, y: z + y),
    own("step-negative", "step(state=0, label=1) is -1", step=lambda self, z, y: z - y),
    own("step-float", "torch.float32 of shape (2, 2)", step=lambda self, z, y: (z + y) / 2),
    own("step-shape", "torch.int64 of shape (2,)", step=lambda self, z, y: z[:, 0]),
    own("step-number", "step returned int", step=lambda self, z, y: 0),
    own(
        "step-beyond-at-position", "is 2; expected a state 0 to 1",
        step=lambda self, z, y, position: z * 0 + position,
    ),
    own("evidence-shape", "shape (2,); expected", "(4, 2)", evidence=lambda self, z, w: z == 1),
    own("evidence-bool", "evidence returned True", evidence=lambda self, z, w: True),
    own("evidence-none", "evidence returned None", evidence=lambda self, z, w: None),
    own("evidence-above-1", "outside [0, 1]", evidence=lambda self, z, w: (z == w) * 2.0),
    own("evidence-log", "its logarithm", evidence=lambda self, z, w: (z == w).double().log()),
    own("evidence-nan", "or NaN", evidence=lambda self, z, w: (z == w) * NAN),
    weakly("own-shape", Parity(), (4, 3, 2), torch.ones(3), "Parity: weak label of shape (3,)"),
    weakly("own-three-classes", Parity(), (4, 3, 3), torch.ones(4), "a binary weak label"),
    weakly("own-float-minus-1", Parity(), (4, 3, 2), [1.0, -1.0, 0, -1], "bag 1 (and 1 more)"),
]  # fmt: skip


def odd(labels: tuple[int, ...]) -> int:
    return sum(labels) % 2


def given(name: str, rule: object, shape: tuple[int, ...], weak: object, *texts: str, **more: object) -> Malformed:
    return weakly(f"function-{name}", rule, shape, weak, *texts, **more)


ODD, TOTAL = from_function(odd, 3), from_function(sum, 3, 3)
FUNCTIONS = [
    option("function-too-large", lambda: from_function(odd, 21), "2**21 labellings", "step"),
    option("function-many-labels", lambda: from_function(sum, 10, 10), "10**10 labellings"),
    option("function-unhashable", lambda: from_function(list, 2), "[0, 0] for (0, 0)", "a tuple"),
    option("function-no-bag", lambda: from_function(odd, 0), "bag_size=0"),
    option("function-one-label", lambda: from_function(odd, 3, 1), "num_labels=1"),
    option("function-float-size", lambda: from_function(odd, 3.0), "bag_size=3.0"),
    option("function-text-size", lambda: from_function(odd, "3"), "bag_size='3'"),
    option("function-no-function", lambda: from_function(1, 3), "rule 1; expected a function"),
    given("other-size", ODD, (4, 2, 2), [1] * 4, "a bag of 2", "exactly 3; bag 0 (and 3 more)."),
    given("other-sizes", ODD, (10, 2), [1] * 3, "of 4 inst", "; bag 1. ", bag_sizes=[3, 4, 3]),
    given("never-returned", ODD, (4, 3, 2), [1, 2, 0, 2], "of [0, 1]; bag 1 (and 1 more)."),
    given("never-by-class", ODD, (2, 3, 3), [[1, 1, 1], [1, 1, 2]], "weak label 2", "; bag 1."),
    given("half", TOTAL, (4, 3, 3), [0, 6, 2.5, 1], "weak label 2.5", "; bag 2."),
    given("scalar", ODD, (4, 3, 2), 1, "weak label of shape ()"),
    given("bag-over", ODD, (4, 3, 2), [7] * 5, "weak label of shape (5,)"),
    given("per-class", TOTAL, (4, 3, 3), torch.ones(4, 3), "shape (4, 3)", "expected (4,)"),
    given("fewer", TOTAL, (4, 3, 2), [1] * 4, "of 2 labels; expected 3", error=SupervisionError),
    given("more", TOTAL, (4, 3, 4), [1] * 4, "num_labels=4", error=SupervisionError),
    given("sigmoid", TOTAL, (4, 3, 3), [1] * 4, "single-label evidence", head="sigmoid"),
]


# -- crowd tables --------------------------------------------------------------------------------


def answers(name: str, *columns: object, text: str) -> Malformed:
    return malformed(f"table-{name}", WeakLabelError, lambda: fastbus.answers_from_table(*columns), text)


TABLES = [
    answers("lengths", [0, 1], [0], [0, 1], text="shapes [(2,), (1,), (2,)]"),
    answers("empty", *[torch.zeros(0, dtype=torch.long)] * 3, text="shapes [(0,), (0,), (0,)]"),
    answers("2d", [[0]], [[0]], [[0]], text="three columns of one length"),
    answers("negative", [0, 1], [0, 0], [1, -1], text="Leave missing answers out"),
    answers("twice", [0, 1, 1], [0, 2, 2], [1, 1, 0], text="two answers of worker 2 to task 1"),
    answers("names", [0, 1], ["ann", "bob"], [0, 1], text="crowd table: worker of type list"),
    answers("floats", [0, 1], [0, 1], [0.5, 1.0], text="'torch.float32'"),
]


def estimated(
    name: str, log_prob: Tensor, weak: Tensor, *texts: str, error: type[FastbusError] = WeakLabelError
) -> Malformed:
    return malformed(f"estimate-{name}", error, lambda: fastbus.NoisyLabel.estimate(log_prob, weak), *texts)


ESTIMATES = [
    estimated("class-3", scores(4, 3), torch.tensor([0, 3, 1, -2]), "answer 3", "row 1 (and 1 more)"),
    estimated("floats", scores(4, 3), torch.zeros(4), "dtype torch.float32", ".long()"),
    estimated("rows", scores(4, 3), torch.zeros(3, dtype=torch.long), "(N, C)", error=InputError),
]


@table(CHOICES + PRIORS + NOISE + MATRICES + COMBINATIONS)
def test_wrong_options_are_refused(case: Malformed) -> None:
    assert_refused(case)


@table(OWN + FUNCTIONS)
def test_wrong_rules_are_refused(case: Malformed) -> None:
    assert_refused(case)


@table(TABLES + ESTIMATES)
def test_malformed_answers_are_refused(case: Malformed) -> None:
    assert_refused(case)
