"""Malformed predictions, layouts and options of a call: refused, with the first bag and a cure."""

from collections.abc import Callable
from functools import partial

import numpy as np
import pandas as pd
import pytest
import torch

import fastbus
from fastbus.errors import CouplingError, InputError, SupervisionError, WeakLabelError
from malformed import INF, NAN, Malformed, assert_refused, malformed, scores, table, weakly

ONE_KNOWN = torch.tensor([[1, -1, -1]] * 4)  # positives of 4 bags of 3 instances
COUNTS = torch.ones(4, 3, dtype=torch.long)  # of 4 bags of 3 instances, one of each of 3 classes
RAGGED = torch.tensor([[True, True, True], [True, True, False], [True, True, True], [True] * 3])


def changed(base: torch.Tensor, *entries: tuple[tuple[int, ...], float]) -> torch.Tensor:
    """A copy with other values at some places."""
    base = base.clone()
    for place, value in entries:
        base[place] = value
    return base


def call(name: str, predictions: object, *texts: str, **options: object) -> Malformed:
    weak = options.pop("weak", COUNTS)
    error = options.pop("error", InputError)
    assert isinstance(error, type)
    return malformed(
        name,
        error,
        lambda: fastbus.infer("label_proportion", predictions, weak, **options),
        *texts,
    )


SHAPES = [
    call("logits-1d", scores(3), "predictions of shape (3,)", "(B, K, C)"),
    call("logits-4d", scores(4, 3, 3, 1), "predictions of shape (4, 3, 3, 1)"),
    call("logits-scalar", scores(), "predictions of shape ()"),
    call("no-bags", scores(0, 3, 3), "0 bags of 3 instances"),
    call("no-instances", scores(4, 0, 3), "4 bags of 0 instances"),
    call("no-classes", scores(4, 3, 0), "0 classes with a softmax head"),
    call("no-classes-sigmoid", scores(4, 3, 0), "0 classes with a sigmoid", head="sigmoid"),
    call("softmax-one-class", scores(4, 3, 1), "1 classes", 'Use head="sigmoid"', "label rows of others", "classes="),
    call("flat-without-sizes", scores(12, 3), "without bag_sizes", "bag_sizes=[1] * N"),
    call("flat-one-class", scores(12, 1), "1 classes", bag_sizes=[3] * 4),
]

TYPES = [
    call("logits-int", torch.zeros(4, 3, 3, dtype=torch.long), "dtype torch.int64", ".float()"),
    call("logits-bool", torch.zeros(4, 3, 3, dtype=torch.bool), "dtype torch.bool"),
    call("logits-complex", scores(4, 3, 3) + 0j, "dtype torch.complex128"),
    call("logits-string", "logits", "predictions of type str"),
    call("logits-text-frame", pd.DataFrame({"a": ["x"] * 4}), "type DataFrame cannot be read as numbers"),
    call("logits-integer-frame", pd.DataFrame({"a": [1] * 4, "b": [2] * 4}), "dtype torch.int64"),
    call(
        "weak-text-frame",
        scores(4, 3, 3),
        "weak label of type DataFrame",
        weak=pd.DataFrame({"a": ["x"] * 4}),
        error=WeakLabelError,
    ),
    call("logits-series-list", [pd.Series([1.0, 2.0], index=["a", "b"])] * 4, "predictions of type list"),
    call("logits-none", None, "predictions of type NoneType"),
    call("logits-strings", np.full((4, 3, 3), "a"), "predictions of type ndarray"),
    call("logits-objects", np.full((4, 3, 3), None), "predictions of type ndarray"),
    call("logits-ragged", [[[0.0] * 3], [[0.0] * 3] * 2], "predictions of type list"),
    call("logits-list-of-bags", [scores(3, 3), scores(2, 3)], "type list", "Stack the bags"),
]

MASKS = [
    call("mask-float", scores(4, 3, 3), "mask of dtype torch.float32", mask=torch.ones(4, 3)),
    call("mask-int", scores(4, 3, 3), "mask.bool()", mask=torch.ones(4, 3, dtype=torch.int8)),
    call("mask-string", scores(4, 3, 3), "mask of type str", mask="all"),
    call("mask-ragged", scores(4, 3, 3), "mask of type list", mask=[[True], [True, False]]),
    call("mask-transposed", scores(4, 3, 3), "shape (3, 4); expected (4, 3)", mask=RAGGED.T),
    call("mask-1d", scores(4, 3, 3), "mask of shape (4,)", mask=RAGGED[:, 0]),
    call("mask-3d", scores(4, 3, 3), "mask of shape (4, 3, 1)", mask=RAGGED[..., None]),
    call(
        "mask-empty-bag",
        scores(4, 3, 3),
        "without instances",
        "; bag 2. Drop empty bags",
        mask=changed(RAGGED, ((2,), 0)),
    ),
    call(
        "mask-empty-bags",
        scores(4, 3, 3),
        "; bag 1 (and 2 more). Drop empty bags",
        mask=changed(torch.zeros(4, 3, dtype=torch.bool), ((0,), 1)),
    ),
    call("mask-and-sizes", scores(4, 3, 3), "both mask and", mask=RAGGED, bag_sizes=[3] * 4),
    call("mask-with-flat", scores(12, 3), "without bag_sizes", mask=RAGGED),
]


def sizes(name: str, bag_sizes: object, *texts: str) -> Malformed:
    return call(f"sizes-{name}", scores(12, 3), *texts, bag_sizes=bag_sizes)


SIZES = [
    call("sizes-with-padded", scores(4, 3, 3), "expected flat (N, C)", bag_sizes=[3] * 4),
    sizes("zero", [4, 0, 4, 4], "sizes of at least 1; bag 1. Drop empty bags"),
    sizes("zeros", [6, 0, 6, 0], "; bag 1 (and 1 more). "),
    sizes("negative", [12, 4, -4], "; bag 2. "),
    sizes("too-few", [3, 3, 3], "sum to 9; expected 12"),
    sizes("too-many", [3] * 5, "sum to 15; expected 12"),
    sizes("bool", torch.ones(12, dtype=torch.bool), "dtype torch.bool", ".long()"),
    sizes("float", [3.0] * 4, "dtype torch.float32; expected integers"),
    sizes("complex", [3 + 0j] * 4, "dtype torch.complex"),
    sizes("2d", [[3, 3], [3, 3]], "shape (2, 2)"),
    sizes("scalar", 12, "shape ()"),
    sizes("none-at-all", torch.zeros(0, dtype=torch.long), "shape (0,)"),
    sizes("string", "3333", "bag_sizes of type str"),
    sizes("ragged", [[3], [3, 6]], "bag_sizes of type list"),
]

EVEN = torch.full((4, 3, 3), 1 / 3)
VALUES = [
    call("nan", changed(scores(4, 3, 3), ((2, 1, 0), NAN)), "NaN in the logits", "; bag 2. Look"),
    call(
        "nan-bags",
        changed(scores(4, 3, 3), ((1,), NAN), ((2, 0, 0), NAN), ((3, 2, 2), NAN)),
        "; bag 1 (and 2 more). ",
    ),
    call("nan-flat", changed(scores(12, 3), ((7, 1), NAN)), "; bag 2. ", bag_sizes=[3] * 4),
    call("nan-sigmoid", changed(scores(4, 3, 3), ((1, 0, 0), NAN)), "; bag 1. ", head="sigmoid"),
    call("nan-probs", changed(EVEN, ((3, 0, 0), NAN)), "NaN in the probs", inputs="probs"),
    call("two-certain", changed(scores(4, 3, 3), ((1, 0), INF)), "several +inf", "; bag 1. "),
    call(
        "two-certain-bags",
        changed(scores(4, 3, 3), ((1, 0), INF), ((3, 2, 0), INF), ((3, 2, 1), INF)),
        "; bag 1 (and 1 more). Replace the infinities",
    ),
    call("all-ruled-out", changed(scores(4, 3, 3), ((2, 1), -INF)), "nothing but -inf", "bag 2"),
    call("probs-negative", changed(EVEN, ((1, 0, 0), -0.25)), "-0.25", "; bag 1. ", inputs="probs"),
    call(
        "probs-above-one",
        changed(EVEN, ((1, 0, 0), 1.5), ((2, 0, 0), 2.0)),
        "value 1.5; expected values in [0, 1]; bag 1 (and 1 more). ",
        inputs="probs",
    ),
    call("probs-rows", changed(EVEN, ((1, 0, 0), 0.0)), "sum to 0.6667", "; bag 1.", inputs="probs"),
    call("probs-all-zero", changed(EVEN, ((3, 0), 0.0)), "sum to 0;", "; bag 3.", inputs="probs"),
    call(
        "probs-sigmoid",
        changed(EVEN, ((1, 0, 0), 7.0)),
        "value 7;",
        'Pass inputs="logits"',
        inputs="probs",
        head="sigmoid",
    ),
    call(
        "log-probs-positive",
        changed(EVEN.log(), ((2, 1, 0), 0.5)),
        "[-inf, 0]; bag 2. ",
        inputs="log_probs",
    ),
    call(
        "log-probs-rows",
        changed(EVEN.log(), ((1,), -3.0), ((2,), -3.0)),
        "log_probs whose rows sum to 0.1494",
        "; bag 1 (and 1 more). Normalise them",
        inputs="log_probs",
    ),
]

OPTIONS = [
    call("head", scores(4, 3, 3), "head='tanh'; expected one of 'softmax', 'sigmoid'", head="tanh"),
    call("head-array", scores(4, 3, 3), "head=", head=np.array(["softmax", "sigmoid"])),
    call("inputs", scores(4, 3, 3), "inputs='scores'; expected one of 'logits'", inputs="scores"),
    call("coupling", scores(4, 3, 3), "coupling='none'; expected one of 'auto'", coupling="none"),
    call("on-impossible", scores(4, 3, 3), "on_impossible='skip'", on_impossible="skip"),
    call("on-impossible-none", scores(4, 3, 3), "on_impossible=None", on_impossible=None),
    call("budget-zero", scores(4, 3, 3), "budget=0", budget=0),
    call("budget-float", scores(4, 3, 3), "budget=10.0", budget=10.0),
    call("budget-bool", scores(4, 3, 3), "budget=True", budget=True),
    call("budget-none", scores(4, 3, 3), "budget=None", budget=None),
]


def named(name: str, supervision: object, *texts: str) -> Malformed:
    return weakly(name, supervision, (4, 3, 3), COUNTS, *texts, error=SupervisionError)


SUPERVISIONS = [
    named("unknown-name", "label_proportions", "'label_proportions'", "multi_instance"),
    named("no-name", None, "supervision None"),
    named("list-of-names", ["multi_instance"], "supervision ['multi_instance']"),
    named("class", fastbus.LabelProportion, "LabelProportion", "Call it: LabelProportion(...)."),
    weakly("prior-not-known", "positive_unlabeled", (4, 3, 2), ONE_KNOWN, "prior is not known", error=SupervisionError),
    named("name-needs-priors", "unlabeled_unlabeled", "fastbus.UnlabeledUnlabeled(...)"),
]

SEEN = torch.ones(4, 3, dtype=torch.long)
BETWEEN = torch.tensor([[[1, 1]] * 3, [[0, 2]] * 3, [[1, 1]] * 3, [[0, 3]] * 3])
LARGE = torch.tensor([[20, 0, 0], [6, 7, 7], [20, 0, 0], [7, 7, 6]])


coupled = partial(weakly, error=CouplingError)
COUPLINGS = [
    coupled(
        "tilted-sigmoid",
        "label_proportion",
        (4, 3, 3),
        COUNTS,
        "without classes to couple",
        coupling="tilted",
        head="sigmoid",
    ),
    coupled(
        "loop-sigmoid",
        "multi_instance",
        (4, 3, 3),
        SEEN,
        "without classes to couple",
        coupling="loop",
        head="sigmoid",
    ),
    coupled(
        "tilted-binary",
        "label_proportion",
        (4, 3, 2),
        SEEN[:, 0],
        "without classes to couple",
        coupling="tilted",
    ),
    coupled(
        "loop-pairs",
        "pair_similarity",
        (4, 2, 3),
        SEEN[:, 0],
        'Leave coupling="auto"',
        coupling="loop",
    ),
    coupled(
        "tilted-partial",
        "partial_label",
        (4, 1, 3),
        SEEN,
        'coupling="tilted" without',
        coupling="tilted",
    ),
    coupled(
        "tilted-multi-instance",
        "multi_instance",
        (4, 3, 3),
        SEEN,
        "with multi_instance",
        coupling="tilted",
    ),
    coupled(
        "loop-counts",
        "label_proportion",
        (4, 3, 3),
        COUNTS,
        "with label_proportion",
        coupling="loop",
    ),
    coupled(
        "tilted-intervals",
        fastbus.LabelProportion("interval"),
        (4, 3, 3),
        BETWEEN,
        "expected exact counts; bag 1 (and 1 more). ",
        coupling="tilted",
    ),
    coupled(
        "tilted-combination",
        fastbus.LabelProportion() & fastbus.SemiSupervised() & fastbus.MultiInstance(),
        (4, 3, 3),
        (COUNTS, torch.full((4, 3), -1), SEEN),
        "label_proportion & semi_supervised & multi_instance",
        coupling="tilted",
    ),
    coupled(
        "joint-beyond-budget",
        "label_proportion",
        (4, 20, 3),
        LARGE,
        "the joint states of bag 1 (and 1 more)",
        "at most 40. Raise budget=",
        coupling="joint",
        budget=40,
    ),
]


# nothing is known of bags 0 and 2, so that they need no states
FEW = LARGE.index_fill(0, torch.tensor([0, 2]), -1)
TIES = fastbus.LabelProportion("interval")
BOTH = fastbus.LabelProportion() & fastbus.MultiInstance()
SUM = fastbus.SimilarDissimilarUnlabeled(0.4)
PAIRS, SETS = scores(4, 2, 2), scores(2, 5, 2)


def asked(name: str, use: Callable[[fastbus.Posterior], object], *texts: str, **options: object) -> Malformed:
    """Something the posterior of bags of several sizes cannot answer; bags 1 and 3 pass the budget."""
    error = options.pop("error", CouplingError)
    supervision, weak = options.pop("supervision", "label_proportion"), options.pop("weak", LARGE)
    return malformed(
        name,
        error,
        lambda: use(fastbus.infer(supervision, scores(4, 20, 3), weak, budget=40, **options)),
        *texts,
    )


def summed(name: str, *texts: str, logits: object = (PAIRS, SETS), **options: object) -> Malformed:
    weak = ([1, 0, 1, 0], [0, 0])
    return malformed(name, InputError, lambda: fastbus.infer(SUM, logits, weak, **options), *texts)


QUESTIONS = [
    asked("sample-beyond-budget", lambda post: post.sample(2), "; bag 1 (and 1 more). Raise budget="),
    asked(
        "map-beyond-budget",
        lambda post: post.map(),
        "; bag 1 (and 1 more). Raise budget=",
        supervision=TIES,
        weak=torch.stack([(LARGE - 1).clamp(min=0), LARGE], -1),
    ),
    asked(
        "combination-beyond-budget",
        lambda post: post,
        "the joint states of bag 1 (and 1 more)",
        "at most 40. Raise budget=",
        supervision=BOTH,
        weak=(FEW, FEW.clamp(max=1)),
    ),
    asked("sample-none", lambda post: post.sample(0), "n=0", error=InputError),
    asked("sample-negative", lambda post: post.sample(-3), "n=-3", error=InputError),
    asked("sample-float", lambda post: post.sample(2.0), "n=2.0", error=InputError),
    summed("sum-logits-no-tuple", "no tuple for a sum of 2 terms", logits=PAIRS),
    summed("sum-logits-one", "1 entries for a sum of 2 terms", logits=(PAIRS,)),
    summed("sum-mask-no-tuple", "Group the instances", mask=torch.ones(4, 2, dtype=torch.bool)),
    summed("sum-sizes-three", "3 entries", bag_sizes=(None, None, None)),
    summed("sum-second-term", "NaN in the logits", "; bag 1. ", logits=(PAIRS, changed(SETS, ((1,), NAN)))),
]


@table(SHAPES + TYPES + MASKS + SIZES + VALUES + OPTIONS)
def test_malformed_predictions_are_refused(case: Malformed) -> None:
    assert_refused(case)


@table(SUPERVISIONS + COUPLINGS + QUESTIONS)
def test_names_couplings_and_questions_that_do_not_apply_are_refused(case: Malformed) -> None:
    assert_refused(case)


def test_padding_may_hold_anything() -> None:
    logits, gold = scores(4, 3, 3), torch.tensor([[0, -1, 2]] * 4)
    plain = fastbus.infer("semi_supervised", logits, gold, RAGGED)
    logits[~RAGGED], gold[~RAGGED] = NAN, 99
    post = fastbus.infer("semi_supervised", logits, gold, RAGGED)
    assert torch.equal(post.labels, plain.labels)
    assert torch.equal(post.log_likelihood, plain.log_likelihood)


def frozen(x: torch.Tensor) -> np.ndarray:
    array = x.numpy().copy()
    array.flags.writeable = False
    return array


READABLE = {
    "list": lambda x: x.tolist(),
    "array": lambda x: x.numpy(),
    "read-only-array": frozen,
    "reversed-array": lambda x: x.flip(0).numpy()[::-1],
    "sparse": lambda x: x.to_sparse(),
    "strided": lambda x: x.repeat_interleave(2, 0)[::2],
}
WHOLE = (torch.uint8, torch.int8, torch.int16, torch.uint16, torch.int32, torch.uint32, torch.float32)


@pytest.mark.parametrize("form", READABLE)
def test_arrays_are_read_in_every_form(form: str) -> None:
    logits, counts = scores(4, 3, 3), torch.tensor([[1, 1, 1], [2, 1, 0], [0, 0, 3], [3, 0, 0]])
    plain = fastbus.infer("label_proportion", logits, counts)
    post = fastbus.infer("label_proportion", READABLE[form](logits), READABLE[form](counts))
    torch.testing.assert_close(post.labels.double(), plain.labels, rtol=0, atol=1e-6)


@pytest.mark.parametrize("dtype", WHOLE, ids=str)
def test_whole_numbers_are_read_in_every_type(dtype: torch.dtype) -> None:
    logits, gold = scores(4, 3, 3), torch.tensor([[0, 1, 2]] * 4)
    plain = fastbus.infer("semi_supervised", logits, gold, RAGGED)
    post = fastbus.infer("semi_supervised", logits, gold.to(dtype), RAGGED)
    assert torch.equal(post.labels, plain.labels)
