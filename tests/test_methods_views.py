"""Where a recipe weighs strong views little it does so for every method: none has to learn from them alone."""

import pytest
import torch

from digit_runs import method_run
from fastbus.inference.fixed import Step
from fastbus.methods.registry import methods_for
from fastbus.training.recipes import SMALL
from fastbus.training.step_objective import StepInputs
from test_image_run import QUICK

WEIGHED = [kind for kind in SMALL if kind != "complementary_label"]
CASES = [(name, kind) for kind in WEIGHED for name in methods_for(kind) if name != "cege"]  # which wants two classes


def slope(name: str, kind: str, strong_weight: float) -> float:
    """How much the loss of a first step depends on what the strong views show."""
    facts = {"noise_rate": 0.2} if name == "forward" else {}
    run = method_run(kind, name, QUICK.replace(epochs=2, strong=strong_weight), **facts)
    run.objective.start_epoch(run)
    packed = run._pack(0)
    rows, bags, starts, sizes, real = (torch.from_numpy(x[0]) for x in (*packed[:1], *packed[2:], packed.real))
    x, generator = run.training.images[rows], torch.Generator().manual_seed(0)
    weak, strong = run.views.weak(x, generator), run.views.strong(x, generator).requires_grad_()
    network = run.network
    inputs = StepInputs(
        Step(rows, bags, starts, sizes), real, weak, strong, network, torch.no_grad()(network), network.features,
        torch.no_grad()(network.features), network.classify, generator, torch.tensor(0.5),
    )  # fmt: skip
    (found,) = torch.autograd.grad(run.objective(inputs), strong)
    return float(found.norm())


@pytest.mark.parametrize(("name", "kind"), CASES)
def test_the_loss_depends_on_strong_views_as_much_as_the_recipe_says(name: str, kind: str) -> None:
    usual, little = (slope(name, kind, weight) for weight in (1.0, 0.1))
    assert 0.03 * usual < little < 0.35 * usual
