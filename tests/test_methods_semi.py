"""Few gold labels: what Pseudo-Label, VAT, Mean Teacher, MixMatch and FixMatch minimise, and that they learn."""

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from digit_runs import method_run, unseen_accuracy
from fastbus.errors import InputError
from fastbus.inference.fixed import Step
from fastbus.methods import incomplete_semi, objective_of
from fastbus.methods.adversarial import unit, unmoved_statistics, virtual_adversarial_loss
from fastbus.methods.rows import linear_ramp
from fastbus.training.image_run import ImageRun
from fastbus.training.step_objective import RunningMean, StepInputs
from method_steps import softmax
from test_image_run import QUICK, digits, weak_digits

ROWS, KNOWN = 64, QUICK.labelled_rows


def linear(seed: int) -> tuple[np.ndarray, nn.Module]:
    """A matrix, and the network that multiplies flat images by it."""
    matrix = np.random.default_rng(seed).normal(size=(64, 10)) * 0.5
    layer = nn.Linear(64, 10, bias=False)
    layer.weight = nn.Parameter(torch.from_numpy(matrix.T).float(), requires_grad=False)
    return matrix, nn.Sequential(nn.Flatten(), layer)


def a_step(run: ImageRun, network: nn.Module, teacher: nn.Module, progress: float) -> StepInputs:
    """One step of the run's first rows, the strong views being the mirrored images."""
    assert run.labelled is not None
    known = torch.from_numpy(run.labelled)
    rows = torch.cat([known.nonzero()[:KNOWN, 0], (~known).nonzero()[: ROWS - KNOWN, 0]])
    weak = digits()[0][rows] / 255.0
    every, one = torch.arange(ROWS), torch.ones(ROWS, dtype=torch.long)
    share = torch.tensor(progress, dtype=torch.float64)
    source = torch.Generator().manual_seed(0)
    step, real = Step(rows, rows, every, one), torch.ones(ROWS, dtype=torch.bool)
    return StepInputs(
        step, real, weak, weak.flip(3), network, teacher, nn.Identity(), nn.Identity(), nn.Identity(), source, share
    )


def parts(inputs: StepInputs, matrix: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Predictions of both views."""
    weak, strong = (softmax(x.flatten(1).double().numpy() @ matrix) for x in (inputs.weak, inputs.strong))
    return weak, strong


def entropy(p: np.ndarray, gold: Tensor) -> float:
    return float(-np.log(p[np.arange(len(gold)), gold.numpy()]).mean())


def sure_part(weak: np.ndarray, learner: np.ndarray) -> float:
    label = weak.argmax(1)
    return float((-np.log(learner[np.arange(len(label)), label]) * (weak.max(1) >= 0.95)).mean())


@pytest.mark.parametrize("size", [1e-24, 1.0, 1e24])
def test_directions_have_length_one_whatever_their_size(size: float) -> None:
    x = size * torch.randn(3, 2, 4, 4, generator=torch.Generator().manual_seed(0))
    assert torch.allclose(unit(x).flatten(1).norm(dim=1), torch.ones(3))
    assert not bool(unit(torch.zeros(2, 5)).any())


def test_fixmatch_and_pseudo_label_by_hand() -> None:
    matrix, network = linear(0)
    run = method_run("semi_supervised", "fixmatch")
    inputs = a_step(run, network, network, 0.3)
    weak, strong = parts(inputs, matrix)
    gold = run.weak[inputs.step.rows[:KNOWN]]
    sure = (weak[KNOWN:].max(1) >= 0.95).mean()
    assert 0 < sure < 1  # both sides of the threshold are met
    expected = entropy(weak[:KNOWN], gold) + sure_part(weak[KNOWN:], strong[KNOWN:])
    assert float(run.objective(inputs)) == pytest.approx(expected, rel=1e-4)
    guesses = (sure_part(weak[KNOWN:], weak[KNOWN:]) + sure_part(weak[KNOWN:], strong[KNOWN:])) / 2
    known = (entropy(weak[:KNOWN], gold) + entropy(strong[:KNOWN], gold)) / 2
    objective = method_run("semi_supervised", "pseudo_label").objective
    assert float(objective(inputs)) == pytest.approx(known + 0.75 * guesses, rel=1e-4)  # 0.3 of 0.4 up its ramp


def test_mean_teacher_by_hand() -> None:
    (matrix, network), (other, teacher) = linear(0), linear(1)
    run = method_run("semi_supervised", "mean_teacher")
    inputs = a_step(run, network, teacher, 1.0)
    (weak, strong), (taught, _) = parts(inputs, matrix), parts(inputs, other)
    gold = run.weak[inputs.step.rows[:KNOWN]]
    known = (entropy(weak[:KNOWN], gold) + entropy(strong[:KNOWN], gold)) / 2
    assert float(run.objective(inputs)) == pytest.approx(known + 50 * ((strong - taught) ** 2).mean(), rel=1e-4)


def test_mixmatch_without_mixing_by_hand() -> None:
    matrix, network = linear(0)
    run = method_run("semi_supervised", "mixmatch")
    run.objective.shares.quantiles.fill_(1.0)  # every row is all its own
    inputs = a_step(run, network, network, 1.0)
    weak, strong = parts(inputs, matrix)
    gold = run.weak[inputs.step.rows[:KNOWN]]
    guess = ((weak[KNOWN:] + strong[KNOWN:]) / 2) ** 2
    guess /= guess.sum(1, keepdims=True)
    apart = np.concatenate([weak[KNOWN:] - guess, strong[KNOWN:] - guess]) ** 2
    expected = entropy(weak[:KNOWN], gold) + 75 * apart.mean()
    assert float(run.objective(inputs)) == pytest.approx(expected, rel=1e-4)


def test_mixmatch_mixes_images_and_targets_alike_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    matrix, network = linear(0)
    run = method_run("semi_supervised", "mixmatch")
    run.objective.shares.quantiles.fill_(0.3)  # of which a row's own part is the larger one, .7
    unlabelled = ROWS - KNOWN
    partner = torch.arange(ROWS + unlabelled).roll(23)  # labelled rows with unlabelled ones and the other way round
    monkeypatch.setattr(incomplete_semi, "shuffled", lambda count, generator, device: partner)
    inputs = a_step(run, network, network, 0.4)
    weak, strong = parts(inputs, matrix)
    gold = np.eye(10)[run.weak[inputs.step.rows[:KNOWN]].numpy()]
    guess = ((weak[KNOWN:] + strong[KNOWN:]) / 2) ** 2
    guess /= guess.sum(1, keepdims=True)
    images = torch.cat([inputs.weak, inputs.strong[KNOWN:]]).flatten(1).double().numpy()
    targets = np.concatenate([gold, guess, guess])
    images, targets = (0.7 * x + 0.3 * x[partner.numpy()] for x in (images, targets))
    found = softmax(images @ matrix)
    known = -(targets[:KNOWN] * np.log(found[:KNOWN])).sum(1).mean()
    expected = known + 0.4 * 75 * ((found[KNOWN:] - targets[KNOWN:]) ** 2).mean()
    assert float(run.objective(inputs)) == pytest.approx(expected, rel=1e-4)


def test_the_worst_direction_of_a_linear_network_is_the_difference_of_its_weights() -> None:
    weights = np.array([[1.0, -0.5], [0.2, 0.7], [-0.4, 0.1]])
    x = np.array([[0.3, -0.2, 0.5]])
    across = (weights[:, 0] - weights[:, 1]) / np.linalg.norm(weights[:, 0] - weights[:, 1])
    p = softmax(x @ weights)
    either = [float((p * np.log(p / softmax((x + sign * 2 * across) @ weights))).sum()) for sign in (1, -1)]
    images, matrix = torch.from_numpy(x)[:, :, None, None], torch.from_numpy(weights)
    found = float(
        virtual_adversarial_loss(
            lambda z: z.flatten(1).to(matrix.dtype) @ matrix,
            images,
            images.flatten(1) @ matrix,
            torch.Generator().manual_seed(0),
            radius=2.0,
            probe=1e-3,
        )
    )
    assert min(abs(found - value) for value in either) < 1e-6


def test_vat_starts_with_entropy_alone() -> None:
    matrix, network = linear(0)
    run = method_run("semi_supervised", "vat")
    run.objective.start_epoch(run)
    inputs = a_step(run, network, network, 0.0)
    weak, strong = parts(inputs, matrix)
    gold = run.weak[inputs.step.rows[:KNOWN]]
    known = (entropy(weak[:KNOWN], gold) + entropy(strong[:KNOWN], gold)) / 2
    unsure = float(-(weak[KNOWN:] * np.log(weak[KNOWN:])).sum(1).mean())
    alone = float(run.objective(inputs))
    assert alone == pytest.approx(known + 0.06 * unsure, rel=1e-4)
    assert float(run.objective(a_step(run, network, network, 1.0))) > alone


def test_changed_images_leave_the_running_statistics_alone() -> None:
    layer = nn.BatchNorm2d(1)
    x = torch.from_numpy(np.arange(16.0, dtype=np.float32)).reshape(4, 1, 2, 2)
    with unmoved_statistics(nn.Sequential(layer)):
        layer(x)
    assert float(layer.running_mean) == 0 and float(layer.running_var) == 1
    layer(x)
    assert float(layer.running_mean) == pytest.approx(0.75)


def test_ramps() -> None:
    values = [float(linear_ramp(torch.tensor(t, dtype=torch.float64), 0.1, 0.5)) for t in (0.0, 0.1, 0.3, 0.5, 1.0)]
    assert values == pytest.approx([0.0, 0.0, 0.5, 1.0, 1.0])


# epochs, learning rate, floor: some ten points below what seed 0 reaches; chance is .1
SMOKE = {
    "pseudo_label": (6, 0.1, 0.8),
    "vat": (12, 0.1, 0.7),
    "mean_teacher": (6, 0.1, 0.75),
    "mixmatch": (12, 0.03, 0.75),
    "fixmatch": (6, 0.1, 0.8),
}


@pytest.mark.parametrize("method", SMOKE)
def test_it_learns_unseen_digits(method: str) -> None:
    epochs, rate, floor = SMOKE[method]
    run = method_run("semi_supervised", method, QUICK.replace(epochs=epochs, learning_rate=rate))
    assert unseen_accuracy(run, "semi_supervised") > floor


def test_some_labels_and_some_rows_for_them_are_needed() -> None:
    rule, images, sizes, weak, truth, _ = weak_digits("semi_supervised")
    gold = torch.from_numpy(truth[:1400]).long()
    with pytest.raises(InputError, match="fixmatch: every instance has a label; expected some with and some without"):
        ImageRun(rule, images, sizes, gold, num_classes=10, recipe=QUICK, objective=objective_of("fixmatch"))
    none = QUICK.replace(labelled_rows=0)
    with pytest.raises(InputError, match="labelled_rows=0"):
        ImageRun(rule, images, sizes, weak, num_classes=10, recipe=none, objective=objective_of("vat"))


def test_running_means_weigh_the_first_steps_as_much_as_later_ones() -> None:
    mean = RunningMean(2, 0.9, torch.device("cpu"))
    rows = torch.tensor([[1.0, 4.0], [2.0, 0.0], [6.0, 1.0]])
    assert mean(rows[0]).tolist() == pytest.approx([1, 4])
    assert mean(rows[1]).tolist() == pytest.approx([(0.9 * 1 + 2) / 1.9, 0.9 * 4 / 1.9])
    weights = torch.tensor([0.81, 0.9, 1.0])
    assert mean(rows[2]).tolist() == pytest.approx(((weights @ rows) / weights.sum()).tolist())
    assert set(mean.state("sure")) == {"sure", "sure.weight"}
    assert RunningMean(2, 0.0, torch.device("cpu"))(rows[1]).tolist() == [2.0, 0.0]
