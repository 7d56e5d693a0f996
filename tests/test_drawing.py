"""Drawings: beliefs of states and moves against enumeration, and pictures that hold what they should."""

import itertools
import struct
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
import torch

import fastbus
from fastbus.errors import InputError
from fastbus.report.beliefs import Beliefs, bag_beliefs, rule_beliefs
from fastbus.report.drawing import LAYERS, draw_beliefs, draw_chain

pytest.importorskip("matplotlib")


def majority(labels: tuple[int, ...]) -> str:
    return "yes" if 2 * sum(labels) > len(labels) else "no"


MAJORITY = fastbus.Supervision.from_function(majority, 5)
CASES = [
    ("counts", fastbus.LabelProportion(), 5, 2, 2),
    ("noisy counts", fastbus.LabelProportion(noise={0: 0.8, 1: 0.2}), 4, 2, 2),
    ("multi-instance", fastbus.MultiInstance(), 4, 2, 1),
    ("noisy multi-instance", fastbus.MultiInstance(noise=(0.1, 0.2)), 4, 2, 0),
    ("similar", fastbus.PairSimilarity(), 2, 4, 1),
    ("comparison", fastbus.PairComparison(), 2, 2, 1),
    ("majority", MAJORITY, 5, 2, 1),
]


def enumerated(
    beliefs: Beliefs, log_prior: torch.Tensor, rule: fastbus.Supervision, weak: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Masses of states and moves over all labellings, walking the rule's own `step`."""
    K, Z, Y = beliefs.moves.shape
    states, moves = torch.zeros(K + 1, Z, dtype=torch.float64), torch.zeros(K, Z, Y, dtype=torch.float64)
    ends = torch.tensor([fold(rule, labels)[-1] for labels in itertools.product(range(Y), repeat=K)])
    evidence = rule.evidence(torch.arange(Z), torch.tensor([[weak]]))[0].double()
    for labels, end in zip(itertools.product(range(Y), repeat=K), ends.tolist(), strict=True):
        mass = evidence[end] * torch.stack([log_prior[k, y] for k, y in enumerate(labels)]).sum().exp()
        path = fold(rule, labels)
        for k, label in enumerate(labels):
            states[k, path[k]] += mass
            moves[k, path[k], label] += mass
        states[K, end] += mass
    return states / states[K].sum(), moves / states[K].sum()


def fold(rule: fastbus.Supervision, labels: tuple[int, ...]) -> list[int]:
    path = [0]
    for position, label in enumerate(labels):
        options = {"position": position} if rule is MAJORITY else {}
        path.append(int(rule.step(torch.tensor(path[-1]), torch.tensor(label), **options)))
    return path


def posterior_of(
    rule: fastbus.Supervision, size: int, labels: int, weak: int
) -> tuple[fastbus.Posterior, torch.Tensor]:
    generator = torch.Generator().manual_seed(size)
    if rule.labels == "categorical":
        logits = torch.randn(2, size, labels, generator=generator, dtype=torch.float64)
        prior = logits.log_softmax(-1)
    else:
        logits = torch.randn(2, size, 1, generator=generator, dtype=torch.float64)
        prior = torch.cat([-logits, logits], -1).div(2).log_softmax(-1)
    head = "softmax" if rule.labels == "categorical" else "sigmoid"
    return fastbus.infer(rule, logits, torch.tensor([weak, weak]), head=head), prior


@pytest.mark.parametrize(("_", "rule", "size", "labels", "weak"), CASES, ids=[case[0] for case in CASES])
def test_beliefs_equal_enumeration(_: str, rule: fastbus.Supervision, size: int, labels: int, weak: int) -> None:
    posterior, prior = posterior_of(rule, size, labels, weak)
    beliefs = bag_beliefs(posterior, bag=1)
    states, moves = enumerated(beliefs, prior[1], rule, weak)
    torch.testing.assert_close(beliefs.states, states, atol=1e-12, rtol=0)
    torch.testing.assert_close(beliefs.moves, moves, atol=1e-12, rtol=0)
    mine = beliefs.moves.sum(1)
    assert torch.allclose(
        mine[:, -1] if labels == 2 else mine,
        posterior.labels[1].reshape(mine[:, -1].shape if labels == 2 else mine.shape),
    )


def test_beliefs_of_exclusive_classes_give_the_posterior() -> None:
    logits = torch.randn(2, 5, 3, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    posterior = fastbus.infer("label_proportion", logits, torch.tensor([[2, 2, 1], [5, 0, 0]]))
    for bag in range(2):
        beliefs = bag_beliefs(posterior, bag)
        torch.testing.assert_close(beliefs.moves.sum(1), posterior.labels[bag])
        torch.testing.assert_close(beliefs.states.sum(1), torch.ones(6, dtype=torch.float64))


def test_beliefs_leave_padding_out() -> None:
    logits = torch.randn(7, 1, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    posterior = fastbus.infer("multi_instance", logits, torch.tensor([1, 1]), bag_sizes=[4, 3], head="sigmoid")
    beliefs = bag_beliefs(posterior, 1)
    assert beliefs.moves.shape[0] == 3
    torch.testing.assert_close(beliefs.moves.sum(1)[:, 1], posterior.labels[4:, 0])


def test_soft_labels_set_the_last_state() -> None:
    posterior = fastbus.infer("similarity_confidence", torch.randn(1, 2, 3, dtype=torch.float64), torch.tensor([0.3]))
    assert bag_beliefs(posterior).states[-1].tolist()[1:3] == pytest.approx([0.7, 0.3])


def test_a_rule_reaches_what_its_labellings_reach() -> None:
    beliefs = rule_beliefs(fastbus.LabelProportion(), 3, 2)
    assert (beliefs.states > 0).sum(1).tolist() == [1, 2, 3, 4]
    assert rule_beliefs(fastbus.PairSimilarity(), 2, 4).states[1].nonzero().flatten().tolist() == [3, 4, 5, 6]


@pytest.mark.parametrize(("_", "rule", "size", "labels", "weak"), CASES, ids=[case[0] for case in CASES])
def test_every_rule_can_be_drawn(
    _: str, rule: fastbus.Supervision, size: int, labels: int, weak: int, tmp_path: Path
) -> None:
    posterior, _prior = posterior_of(rule, size, labels, weak)
    drawings = draw_chain(rule, size, labels), draw_chain(rule, size, labels, weak), draw_beliefs(posterior, 0)
    for number, drawing in enumerate(drawings):
        root = ElementTree.fromstring(drawing.write(tmp_path / f"{number}.svg").read_text())
        assert root.tag.endswith("svg")
    data = drawings[2].write(tmp_path / "beliefs.png").read_bytes()
    width, height = struct.unpack(">II", data[16:24])
    assert data.startswith(b"\x89PNG") and width > 300 and height > 200


def test_endings_name_the_weak_labels() -> None:
    assert "w = yes" in draw_chain(MAJORITY, 5).svg() and "w = no" in draw_chain(MAJORITY, 5).svg()
    assert "w = 1 (0.8)" in draw_chain(fastbus.MultiInstance(noise=(0.1, 0.2)), 3).svg()
    told = draw_chain("label_proportion", 3, weak=2).svg()
    assert told.count("allowed") == 1 and told.count("ruled out") == 3


def test_large_chains_are_cut_with_a_note() -> None:
    assert draw_chain("label_proportion", LAYERS).note == ""
    note = draw_chain("label_proportion", 30).note
    assert "labels 5 to 26 of 30" in note and "states are left out" in note
    logits = torch.zeros(1, 200, 1)
    drawing = draw_beliefs(fastbus.infer("label_proportion", logits, torch.tensor([90]), head="sigmoid"))
    assert "of 200" in drawing.note and len(drawing.svg()) < 400_000


def test_a_weak_label_of_a_long_bag_is_among_the_states_drawn() -> None:
    for count in (0, 9, 20, 30):
        svg = draw_chain("label_proportion", 30, weak=count).svg()
        assert svg.count(">allowed<") == 1 and svg.count(">ruled out<") == 11, count


def test_weak_labels_that_are_distributions_show_their_shares() -> None:
    assert ">0.3<" in draw_chain("similarity_confidence", 2, 3, weak=0.3).svg()
    interval = draw_chain(fastbus.LabelProportion("interval"), 4, weak=[1, 2]).svg()
    assert interval.count(">allowed<") == 2 and interval.count(">ruled out<") == 3


def test_predictions_are_shown_without_the_weak_labels_of_instances() -> None:
    logits = torch.randn(1, 3, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    sets = torch.tensor([[[1, 1, 0, 0], [0, 1, 1, 1], [1, 0, 0, 0]]])
    beliefs = bag_beliefs(fastbus.infer("partial_label", logits, sets))
    torch.testing.assert_close(beliefs.prior, logits[0].softmax(-1))
    several = torch.randn(2, 3, 2, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    posterior = fastbus.infer("multi_instance", several, torch.ones(2, 2, dtype=torch.long), head="sigmoid")
    torch.testing.assert_close(bag_beliefs(posterior, 1, 1).prior[:, 1], several[1, :, 1].sigmoid())


def test_lattice_states_tell_the_counts() -> None:
    logits = torch.zeros(1, 3, 3, dtype=torch.float64)
    drawing = draw_beliefs(
        fastbus.infer("label_proportion", logits, torch.tensor([[1, 1, 1]])), classes=["a", "b", "c"]
    )
    assert drawing.states == (1, 3, 3, 1)
    svg = drawing.svg()
    assert all(f">{name}<" in svg for name in ("000", "100", "010", "001", "110", "101", "011", "111", "0 a", "2 c"))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: draw_chain(fastbus.LabelProportion() & fastbus.SemiSupervised(), 3), "no chain of its own"),
        (lambda: draw_chain("partial_label", 3, weak=1), "each instance has its own"),
        (lambda: draw_chain("label_proportion", 10**5), "moves; expected at most"),
        (lambda: draw_chain("pair_similarity", 3), "expected 2"),
        (lambda: draw_chain("label_proportion", 0), "at least 1"),
        (lambda: draw_chain("label_proportion", 2).write("chain.pdf"), ".svg or .png"),
        (lambda: draw_beliefs(posterior_of(fastbus.LabelProportion(), 3, 2, 1)[0], 5), "0 to 1"),
        (lambda: draw_beliefs(posterior_of(fastbus.LabelProportion(), 3, 2, 1)[0], 0, 4), "0 to 0"),
    ],
)
def test_what_cannot_be_drawn_is_refused(call: object, message: str) -> None:
    with pytest.raises(InputError, match=message):
        call()  # type: ignore[operator]
