"""One tree of errors; impossible evidence is told by bag, or dropped on request and nothing else."""

import re
import warnings
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

import fastbus
from fastbus import errors
from malformed import FORM, NAN, scores

ALL = (
    errors.InputError,
    errors.WeakLabelError,
    errors.ImpossibleError,
    errors.SupervisionError,
    errors.CouplingError,
)


@pytest.mark.parametrize("error", ALL, ids=lambda error: error.__name__)
def test_all_errors_are_fastbus_errors_and_value_errors(error: type[Exception]) -> None:
    assert issubclass(error, errors.FastbusError)
    assert issubclass(error, ValueError)
    assert getattr(fastbus, error.__name__) is error


def test_only_impossible_evidence_is_a_weak_label_error_of_its_own() -> None:
    assert issubclass(errors.ImpossibleError, errors.WeakLabelError)
    siblings = [error for error in ALL if error is not errors.ImpossibleError]
    for error in siblings:
        assert not any(issubclass(error, other) for other in siblings if other is not error)
    assert issubclass(errors.ImpossibleEvidenceWarning, UserWarning)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (
            "softmx",
            "head='softmx'; expected one of 'softmax', 'sigmoid' (did you mean 'softmax'?). Pass one of these names.",
        ),
        (
            "SIGMOID",
            "head='SIGMOID'; expected one of 'softmax', 'sigmoid' (did you mean 'sigmoid'?). Pass one of these names.",
        ),
        ("tree", "head='tree'; expected one of 'softmax', 'sigmoid'. Pass one of these names."),
        (3, "head=3; expected one of 'softmax', 'sigmoid'. Pass one of these names."),
    ],
)
def test_a_name_that_was_perhaps_meant_is_named(value: object, message: str) -> None:
    with pytest.raises(errors.InputError, match=f"^{re.escape(message)}$"):
        errors.choice(value, ("softmax", "sigmoid"), "head", errors.InputError)


# -- impossible evidence -------------------------------------------------------------------------


@dataclass(frozen=True)
class Impossible:
    """Well-formed evidence that no labelling of some bags satisfies."""

    name: str
    supervision: fastbus.Supervision
    shape: tuple[int, ...]
    weak: object
    bags: tuple[int, ...]
    text: str = ""
    head: str = "softmax"
    coupling: str = "auto"
    ruled_out: tuple[tuple[int, ...], ...] = ()  # places of the logits that are -inf

    def predictions(self) -> Tensor:
        logits = scores(*self.shape)
        for place in self.ruled_out:
            logits[place] = -torch.inf
        return logits

    def infer(self, keep: list[int] | None = None, **options: str) -> fastbus.Posterior:
        """The posterior, of all bags or of some of them alone."""
        logits, weak = self.predictions(), self.weak
        parts = weak if isinstance(weak, tuple) else (weak,)
        tensors = tuple(torch.as_tensor(part) for part in parts)
        if keep is not None:
            logits, tensors = logits[keep], tuple(part[keep] for part in tensors)
        weak = tensors if isinstance(weak, tuple) else tensors[0]
        return fastbus.infer(self.supervision, logits, weak, head=self.head, coupling=self.coupling, **options)


class Nothing(fastbus.Supervision):
    """A rule that explains the weak label 0 and no other."""

    def num_states(self, bag_size: int) -> int:
        return 1

    def step(self, state: Tensor, label: Tensor) -> Tensor:
        return state

    def evidence(self, state: Tensor, weak: Tensor) -> Tensor:
        return (state == 0) & (weak == 0)


MI, LP, SEMI = fastbus.MultiInstance(), fastbus.LabelProportion(), fastbus.SemiSupervised()
INTERVAL, SOFT = fastbus.LabelProportion("interval"), fastbus.LabelProportion("soft")
VIRTUAL = fastbus.LabelProportion("soft", soft="virtual")
ONE, ANY, UNKNOWN = [1, 1, 1], [[0, 3]] * 3, [-1, -1, -1]
SOME, GONE, OVER = [0.5, 0.5, 0, 0, 0], [NAN] * 5, [0.5, 0, 0, 0, 0.5]
YES, NO = [1], [0]
BAGS, PAIRS, ROWS = (4, 3, 3), (4, 2, 2), (4, 1, 3)
LOST = "no labelling of a bag satisfies its weak label"
RULED_OUT = "predictions of probability 0 rule out all that do"

CASES = [
    Impossible("counts-beyond", LP, BAGS, [ONE, [4, 0, 0], ONE, [0, 0, 7]], (1, 3), "count 4 of"),
    Impossible("counts-short", LP, BAGS, [ONE, ONE, [1, 1, 0], ONE], (2,), "sum to 2 in a bag of 3"),
    Impossible("counts-over", LP, BAGS, [ONE, [2, 1, 1], [2, 2, -1], [3, 3, 3]], (1, 2, 3), "to 4"),
    Impossible("counts-independent", LP, BAGS, [ONE, [1, 1, 0], ONE, ONE], (1,), "sum to 2",
               coupling="independent"),
    Impossible("counts-tilted", LP, BAGS, [ONE, [1, 1, 0], ONE, [2, 2, 0]], (1, 3), "sum to 2",
               coupling="tilted"),
    Impossible("counts-sigmoid", LP, BAGS, [ONE, ONE, [0, 4, 3], ONE], (2,), "count 4 of class 1",
               head="sigmoid"),
    Impossible("counts-binary", LP, (4, 3, 2), [1, 4, 0, 5], (1, 3), "a count of 0 to 3"),
    Impossible("interval-empty", INTERVAL, BAGS, [ANY, [[2, 1], *ANY[1:]], ANY, ANY], (1,), "2 to 1"),
    Impossible("interval-beyond", INTERVAL, BAGS, [ANY, ANY, [[4, 6]] * 3, [[4, -1]] * 3], (2, 3),
               "the interval 4 to 6 of class 0 holds no count of a bag of 3"),
    Impossible("interval-share", fastbus.LabelProportion("interval", unit="fraction"), BAGS,
               [[[0.0, 1.0]] * 3, [[0.4, 0.6]] * 3, [[0.0, 1.0]] * 3, [[0.0, 1.0]] * 3], (1,),
               "holds no count"),
    Impossible("interval-sum", INTERVAL, BAGS, [ANY, [[2, 3]] * 3, ANY, [[0, 0]] * 3], (1, 3), LOST),
    Impossible("soft-beyond", SOFT, (4, 3, 2), [SOME, OVER, GONE, OVER], (1, 3), "beyond the bag"),
    Impossible("virtual-beyond", VIRTUAL, BAGS, [[SOME, GONE, GONE]] * 2 + [[OVER, GONE, GONE]] * 2,
               (2, 3), "zeros beyond the bag size"),
    Impossible("no-class", MI, BAGS, [ONE, [0, 0, 0], ONE, [0, 0, 0]], (1, 3), "any positive class"),
    Impossible("too-many-classes", MI, (4, 2, 3), [[1, 0, 1], ONE, ONE, [1, 1, -1]], (1, 2),
               "more positive classes than instances"),
    Impossible("no-class-loop", MI, BAGS, [ONE, ONE, ONE, [0, 0, 0]], (3,), "any positive class",
               coupling="loop"),
    Impossible("no-candidate", fastbus.PartialLabel(), ROWS, [ONE, [0, 0, 0], [1, 0, 0], UNKNOWN], (1,),
               "an empty candidate set"),
    Impossible("no-candidate-in-bag", fastbus.PartialLabel(), (4, 2, 3),
               [[ONE, ONE], [ONE, [0, 0, 0]], [[0, 0, 0], ONE], [ONE, ONE]], (1, 2), "candidate"),
    Impossible("all-excluded", fastbus.ComplementaryLabel(), ROWS, [[1, 0, 0], ONE, ONE, ONE],
               (1, 2, 3), "every class is excluded"),
    Impossible("gold-against-counts", LP & SEMI, BAGS,
               ([[2, 1, 0]] * 4, [[0, 0, 1], [2, -1, -1], UNKNOWN, [1, 1, 0]]), (1, 3),
               "label_proportion & semi_supervised: the weak labels of a bag contradict each other"),
    Impossible("gold-against-candidates", fastbus.PartialLabel() & SEMI, ROWS,
               ([[1, 1, 0]] * 4, [0, 2, 1, 2]), (1, 3), "contradict each other"),
    Impossible("part-alone", LP & SEMI, BAGS, ([ONE, ONE, [4, 0, 0], ONE], [UNKNOWN] * 4), (2,),
               "label_proportion: count 4 of class 0"),
    Impossible("own-rule", Nothing(), (4, 3, 2), [0, 1, 0, 1], (1, 3), f"Nothing: {LOST}"),
    Impossible("crowd-disagrees", fastbus.CrowdLabel(torch.eye(3).expand(2, 3, 3)), ROWS,
               [[0, 0], [0, 1], [-1, 2], [-1, -1]], (1,), LOST),
    Impossible("bag-label-certain", MI, (4, 3, 2), [1, 1, 1, 1], (1, 2), RULED_OUT,
               ruled_out=((1, slice(None), 1), (2, slice(None), 1))),
    Impossible("bag-label-certain-sigmoid", MI, (4, 3, 1), [YES, YES, NO, YES], (1, 3), RULED_OUT,
               head="sigmoid", ruled_out=((1,), (2,), (3,))),
    Impossible("counts-certain", LP, BAGS, [[2, 1, 0]] * 4, (1,), RULED_OUT,
               ruled_out=((1, 0, slice(0, 2)), (2, 0, 0))),
    Impossible("gold-certain", SEMI, ROWS, [0, 1, 2, 0], (1,), RULED_OUT, ruled_out=((1, 0, 1),)),
    Impossible("noisy-certain", fastbus.NoisyLabel(torch.eye(3)), ROWS, [0, 1, 2, 0], (3,), RULED_OUT,
               ruled_out=((3, 0, 0), (2, 0, 1))),
    Impossible("comparison-certain", fastbus.PairComparison(pairs="labelled"), PAIRS, [0, 0, 1, 0],
               (1,), RULED_OUT, ruled_out=((1, 0, 0), (2, 0, 0))),
    Impossible("similarity-certain", fastbus.PairSimilarity(), PAIRS, [1, 1, 0, 0], (1,), RULED_OUT,
               ruled_out=((1, 0, 0), (1, 1, 1))),
    Impossible("confidence-certain", fastbus.SimilarityConfidence(), PAIRS, [0.3, 0.5, 0.0, 1.0], (1,),
               RULED_OUT, ruled_out=((1, 0, 0), (1, 1, 1), (2, 0, 0), (2, 1, 1))),
    Impossible("difference-certain", fastbus.ConfidenceDifference(), PAIRS, [0.3, 1.0, 0.0, -0.5],
               (1,), RULED_OUT, ruled_out=((1, 0, 0),)),
    Impossible("positive-certain", fastbus.PositiveConfidence(), (4, 1, 2), [0.3, 0.5, 1.0, NAN],
               (1, 2), RULED_OUT, ruled_out=((1, 0, 1), (2, 0, 1), (3, 0, 1))),
    Impossible("labelled-positive-certain", fastbus.PositiveUnlabeled(0.4), (4, 3, 2),
               [[1, -1, -1]] * 4, (2,), RULED_OUT, ruled_out=((2, 0, 1),)),
    Impossible("set-count-certain", fastbus.UnlabeledUnlabeled([0.1, 0.9], constraint="count"),
               (4, 3, 2), [0, 1, 1, 0], (1,), RULED_OUT, ruled_out=((1, slice(None), 1),)),
]  # fmt: skip

every_case = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)


@every_case
def test_impossible_evidence_is_an_error_that_names_the_bag(case: Impossible) -> None:
    with pytest.raises(errors.ImpossibleError) as caught:
        case.infer()
    message = str(caught.value)
    assert type(caught.value) is errors.ImpossibleError
    assert FORM.fullmatch(message), message
    assert case.text in message
    more = len(case.bags) - 1
    place = f"; bag {case.bags[0]}" + (f" (and {more} more)" if more else "") + ". "
    assert place in message
    assert 'on_impossible="ignore"' in message


@every_case
def test_ignoring_drops_the_evidence_of_those_bags_only(case: Impossible) -> None:
    with pytest.warns(errors.ImpossibleEvidenceWarning, match=f"bag {case.bags[0]}\\b") as told:
        post = case.infer(on_impossible="ignore")
    assert len(told) == 1
    assert told[0].filename == __file__
    bad = list(case.bags)
    assert torch.nonzero(post.ignored).flatten().tolist() == bad

    logits = case.predictions()[bad]
    prior = logits.sigmoid() if case.head == "sigmoid" else logits.softmax(-1)
    torch.testing.assert_close(post.labels[bad], prior, rtol=0, atol=1e-12)
    assert post.log_likelihood[bad].abs().max() < 1e-12
    assert not post.informed[bad].any()

    good = [bag for bag in range(case.shape[0]) if bag not in bad]
    alone = case.infer(keep=good)
    torch.testing.assert_close(post.labels[good], alone.labels, rtol=0, atol=1e-12)
    torch.testing.assert_close(post.log_likelihood[good], alone.log_likelihood, rtol=0, atol=1e-12)
    assert torch.equal(post.informed[good], alone.informed)
    assert [post.coupling[bag] for bag in good] == alone.coupling


def test_ignoring_does_not_excuse_malformed_weak_labels() -> None:
    with pytest.raises(errors.WeakLabelError, match=re.escape("; bag 1. ")) as caught:
        fastbus.infer("label_proportion", scores(2, 3, 3), [[4, 0, 0], [-2, 0, 0]], on_impossible="ignore")
    assert type(caught.value) is errors.WeakLabelError


def test_nothing_is_said_where_nothing_was_dropped() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        post = fastbus.infer(LP, scores(2, 3, 3), [ONE, ONE], on_impossible="ignore")
    assert not post.ignored.any()
