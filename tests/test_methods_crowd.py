"""Crowds: votes, Dawid and Skene's EM against enumeration, the crowd layer by hand, and that they learn."""

import numpy as np
import pytest
import torch

import fastbus
from digit_runs import ANNOTATOR_ERRORS, method_digits, method_run, unseen_accuracy
from fastbus.errors import WeakLabelError
from fastbus.methods import imperfect_crowd as crowd
from fastbus.methods import objective_of
from fastbus.oracle import enumerate_posterior
from fastbus.training.image_run import ImageRun
from method_steps import inputs_of, random_logits, single_rows
from tensors import close
from test_image_run import QUICK


def test_votes_that_tie_are_shared() -> None:
    answers = torch.tensor([[0, 0, 2], [1, 2, -1], [-1, -1, -1]])
    expected = torch.tensor([[1.0, 0.0, 0.0], [0.0, 0.5, 0.5], [0.0, 0.0, 0.0]])
    close(crowd.majority_targets(answers, 3), expected.double())


def test_the_posterior_of_em_equals_enumeration_and_the_likelihood_climbs() -> None:
    _, _, _, answers, _, _ = method_digits("crowd_label")
    found = crowd.dawid_skene(answers, 10)
    some = 40
    logits = found.prior.log().expand(some, 1, 10).numpy()
    rule = fastbus.CrowdLabel(found.transitions)
    oracle = enumerate_posterior(rule, logits, answers[:some, None].numpy())
    close(found.posterior[:some], torch.as_tensor(np.asarray(oracle.labels, dtype=float))[:, 0], 1e-10)
    path = np.array(found.log_likelihood)
    assert len(path) > 3 and bool((np.diff(path) > -1e-6 * abs(path[-1])).all())


@pytest.mark.parametrize("rounds", [1, 2, 5])
def test_rounds_of_em_equal_plain_loops(rounds: int) -> None:
    """Dawid and Skene 1979: confusions and shares (2.3, 2.4) from the beliefs, beliefs (2.5) from them."""
    answers = [[0, 0, 2], [0, 1, -1], [1, 1, 0], [2, 2, 2], [0, -1, 0], [0, 0, 0], [-1, 2, 1], [1, 0, 0]]
    found = crowd.dawid_skene(torch.tensor(answers), 3, rounds=rounds, tolerance=0.0)
    belief = np.array([[row.count(c) for c in range(3)] for row in answers], dtype=float)
    belief /= belief.sum(1, keepdims=True)
    for _ in range(rounds):
        said = np.full((3, 3, 3), 0.01)  # a hundredth of an answer of each kind
        share = np.full(3, 0.01)
        for task, row in enumerate(answers):
            for c in range(3):
                share[c] += belief[task, c]
                for annotator, answer in enumerate(row):
                    if answer >= 0:
                        said[annotator, c, answer] += belief[task, c]
        said /= said.sum(2, keepdims=True)
        share /= share.sum()
        for task, row in enumerate(answers):
            for c in range(3):
                right = [said[annotator, c, answer] for annotator, answer in enumerate(row) if answer >= 0]
                belief[task, c] = share[c] * np.prod(right)
        belief /= belief.sum(1, keepdims=True)
    assert len(found.log_likelihood) == rounds and np.ptp(share) > 0.1  # classes are not alike
    for mine, expected in ((found.transitions, said), (found.prior, share), (found.posterior, belief)):
        close(mine, torch.from_numpy(expected), 1e-9)


def test_em_knows_good_annotators_and_beats_the_vote() -> None:
    _, _, _, answers, truth, _ = method_digits("crowd_label")
    found = crowd.dawid_skene(answers, 10)
    errors = 1 - found.transitions.diagonal(dim1=1, dim2=2).mean(1)
    assert np.abs(errors.numpy() - np.array(ANNOTATOR_ERRORS)).max() < 0.1
    gold = torch.from_numpy(truth[:1400])
    votes = crowd.majority_targets(answers, 10).gather(1, gold[:, None]).mean()
    assert float((found.posterior.argmax(1) == gold).double().mean()) > float(votes) + 0.05


def test_the_crowd_layer_by_hand() -> None:
    p = np.array([0.7, 0.3])
    layer = np.array([[[1.0, 0.0], [0.0, 1.0]], [[0.0, 2.0], [1.0, 0.0]], [[5.0, 0.0], [0.0, 5.0]]])
    first, second = np.exp(layer[0] @ p), np.exp(layer[1] @ p)
    expected = -(np.log(first[0] / first.sum()) + np.log(second[1] / second.sum())) / 2
    logits = torch.tensor(p[None]).log()
    loss = crowd.crowd_layer_loss(logits, torch.tensor([[0, 1, -1]]), torch.tensor(layer))
    assert float(loss) == pytest.approx(expected, abs=1e-10)  # the third did not answer


def test_a_matrix_learns_from_its_own_annotator_alike_however_many_there_are() -> None:
    """The slope of the mean over that annotator's answers, whoever else answers, and how often."""
    answers = torch.tensor([[0, -1], [1, -1], [-1, 2], [2, 1], [0, -1]])
    logits = random_logits(5, 3).float()

    def slopes(answers: torch.Tensor) -> torch.Tensor:
        objective = crowd.CrowdLayer(answers, 3, QUICK)
        inputs = inputs_of(logits, logits, single_rows(torch.arange(5)))
        (found,) = torch.autograd.grad(objective(inputs), objective.learned["layer"])
        return found

    alone = slopes(answers[:, :1])[0]
    for others in (answers[:, 1:], answers[:, 1:].repeat(1, 7)):
        close(slopes(torch.cat([answers[:, :1], others], 1))[0], alone, 1e-6)


SMOKE = {"majority_vote": (6, 0.1, 0.85), "dawid_skene": (6, 0.1, 0.85), "crowd_layer": (12, 0.2, 0.7)}


@pytest.mark.parametrize("method", SMOKE)
def test_it_learns_unseen_digits(method: str) -> None:
    epochs, rate, floor = SMOKE[method]
    run = method_run("crowd_label", method, QUICK.replace(epochs=epochs, learning_rate=rate))
    assert unseen_accuracy(run, "crowd_label") > floor
    if method == "crowd_layer":  # better annotators have stronger diagonals
        strength = run.objective.learned["layer"].detach().diagonal(dim1=1, dim2=2).mean(1)
        assert float(strength[0]) > float(strength[2:].max())


def test_answers_must_have_a_column_an_annotator() -> None:
    rule, images, sizes, answers, _, _ = method_digits("crowd_label")
    make = objective_of("crowd_layer")
    with pytest.raises(WeakLabelError, match="one column an annotator"):
        ImageRun(rule, images, sizes, answers[:, 0], num_classes=10, recipe=QUICK, objective=make)
