"""Predictions of earlier passes: targets go by the mean of an image's own, and a resumed run remembers them."""

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from torch import Tensor

import fastbus
from fastbus.inference.fixed import Step
from fastbus.inference.fixed_build import fixed_posterior
from fastbus.supervision.base import Supervision
from fastbus.training.image_run import ImageRun
from fastbus.training.recipes import Recipe
from fastbus.training.step_objective import AlignedConsistency, PosteriorRisk, Recall, StepInputs, SureLabels

CPU = torch.device("cpu")


def inputs_of(taught: Tensor, strong: Tensor, rows: Tensor, real: Tensor, weak: Tensor | None = None) -> StepInputs:
    """A step of whose views the network makes themselves and the teacher `taught`."""
    same, ones = (lambda x: x), torch.ones_like(rows)
    weak = torch.zeros_like(strong) if weak is None else weak
    return StepInputs(
        Step(rows, rows, rows, ones), real, weak, strong, same, lambda x: taught, same, same, same, torch.Generator(),
        torch.tensor(0.5),
    )  # fmt: skip


def test_a_mean_is_an_image_s_own_and_older_passes_count_less() -> None:
    recall = Recall(4, 2, 0.75, CPU)
    first, second = (
        torch.tensor([[0.9, 0.1], [0.2, 0.8], [0.4, 0.6]]),
        torch.tensor([[0.5, 0.5], [0.6, 0.4], [1.0, 0.0]]),
    )
    rows, real = torch.tensor([2, 0, 0]), torch.tensor([True, True, False])
    seen = recall(first, rows, real)
    assert torch.allclose(seen[:2], first[:2])  # nothing is known before
    later = recall(second, rows, real)
    assert torch.allclose(later[:2], (0.75 * first[:2] + second[:2]) / 1.75)
    third = recall(first, torch.tensor([0, 1, 3]), torch.ones(3, dtype=torch.bool))
    assert torch.allclose(third[0], (0.75**2 * first[1] + 0.75 * second[1] + first[0]) / (0.75**2 + 1.75))
    assert torch.allclose(third[1:], first[1:])  # images never seen before, and a row that was none


def test_rows_that_are_none_leave_no_trace() -> None:
    recall = Recall(2, 2, 0.5, CPU)
    unknown = recall(torch.tensor([[0.3, 0.7]]), torch.tensor([1]), torch.tensor([False]))
    assert unknown.tolist() == [[pytest.approx(0.3), pytest.approx(0.7)]]
    assert not any(bool(x.any()) for x in recall.state().values())


def test_posteriors_are_those_of_the_mean() -> None:
    """Two passes; the second's targets are the likeliest classes of mean prediction times evidence of the label."""
    generator = torch.Generator().manual_seed(0)
    before, now, strong = torch.randn(3, 6, 3, generator=generator)
    labels, rows, real = torch.arange(6) % 3, torch.arange(6), torch.ones(6, dtype=torch.bool)
    posterior = fixed_posterior(fastbus.NoisyLabel(rate=0.5), labels, torch.ones(6, dtype=torch.long), 3, CPU)
    recipe = Recipe(teacher=True, decided=True, recall=0.5, weak=0.0)
    objective = PosteriorRisk(posterior, recipe, recall=Recall(6, 3, 0.5, CPU))
    objective(inputs_of(before, strong, rows, real))
    loss = objective(inputs_of(now, strong, rows, real))
    evidence, sure = 0.25 + 0.25 * torch.eye(3)[labels], SureLabels(0.99, CPU)
    expected = torch.tensor(torch.nan)
    for p in (before.softmax(1), (0.5 * before.softmax(1) + now.softmax(1)) / 1.5):
        q = p * evidence
        label, weight = sure(q / q.sum(1, keepdim=True), real)
        expected = (weight * torch.nn.functional.cross_entropy(strong, label, reduction="none")).mean()
    assert float(loss) == pytest.approx(float(expected), rel=1e-5)


def test_unlabelled_images_agree_with_the_mean() -> None:
    generator = torch.Generator().manual_seed(1)
    before, now, strong = torch.randn(3, 4, 3, generator=generator)
    gold, labelled = torch.tensor([1, 0, 0, 0, 0]), torch.tensor([True, False, False, False, False])
    recipe = Recipe(rows=4, labelled_rows=1, teacher=True, recall=0.5)
    objective = AlignedConsistency(gold, labelled, 3, recipe, Recall(5, 3, 0.5, CPU))
    rows, real, sure = torch.tensor([0, 4, 2, 3]), torch.ones(4, dtype=torch.bool), SureLabels(0.0, CPU)
    expected = torch.tensor(torch.nan)
    for taught, p in (
        (before, before[1:].softmax(1)),
        (now, (0.5 * before[1:].softmax(1) + now[1:].softmax(1)) / 1.5),
    ):
        loss = objective(inputs_of(taught[1:], strong, rows, real, weak=strong))
        label, weight = sure(p, real[1:])
        agree = weight * torch.nn.functional.cross_entropy(strong[1:], label, reduction="none")
        expected = torch.nn.functional.cross_entropy(strong[:1], gold[:1]) + agree.mean()
        assert float(loss) == pytest.approx(float(expected), rel=1e-5)


@pytest.mark.parametrize("rule", [fastbus.SemiSupervised(), fastbus.NoisyLabel(rate=0.3)], ids=["semi", "noisy"])
def test_a_resumed_run_remembers(rule: Supervision) -> None:
    data = load_digits()
    images = torch.from_numpy((data.images[:300, None] * 15.9).astype(np.uint8))
    weak = torch.from_numpy(data.target[:300]).long()
    if isinstance(rule, fastbus.SemiSupervised):
        weak[60:] = -1
    recipe = Recipe(
        backbone="small_cnn", epochs=3, rows=64, labelled_rows=16, learning_rate=0.1, warmup=5, teacher=True,
        decided=True, align=0.9, recall=0.7,
    )  # fmt: skip

    def fresh() -> ImageRun:
        sizes = torch.ones(300, dtype=torch.long)
        return ImageRun(rule, images, sizes, weak, num_classes=10, recipe=recipe, flip=False)

    whole, part, later = fresh(), fresh(), fresh()
    while not whole.done:
        assert np.isfinite(whole.run_epoch()["loss"])
    part.run_epoch()
    kept = part.state_dict()
    assert bool(kept["tensors"]["objective.recall"].any())
    later.load_state_dict(kept)
    while not later.done:
        later.run_epoch()
    assert torch.equal(whole.logits(images[:50]), later.logits(images[:50]))
