"""What the objective equals, said with torch's own losses on real digits, and whom it teaches in joint mode."""

from typing import Any, Literal

import pytest
import torch
from torch import Tensor
from torch.distributions import Bernoulli, Categorical, kl_divergence
from torch.nn import functional as fn

import fastbus
from digit_bags import LABELS, ROWS
from evolution_modules import SMALL, randomised
from fastbus import ClassLoop, ClassTransition, NoisyLabel, WeakLoss, build_evolution

Head = Literal["softmax", "sigmoid"]
BAGS, SIZE = 12, 5


def bags_of(kind: str, head: Head) -> tuple[Tensor, Tensor]:
    """Logits (B, K, C) of a random linear map of digits, and the weak labels of their bags."""
    labels = LABELS[: BAGS * SIZE] % 4
    truth = fn.one_hot(labels, 4)
    if head == "sigmoid":  # several classes at once
        truth = torch.stack([labels == 0, labels < 2, labels % 2 == 1], -1).long()
    counts = truth.reshape(BAGS, SIZE, -1).sum(1)
    weak = counts if kind == "label_proportion" else counts.clamp(max=1)
    weight = torch.randn(64, truth.shape[-1], generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return (ROWS[: BAGS * SIZE].double() @ weight / 4).reshape(BAGS, SIZE, -1), weak


every = pytest.mark.parametrize(
    ("kind", "head"), [(k, h) for k in ("label_proportion", "multi_instance") for h in ("softmax", "sigmoid")]
)


@every
def test_smoothing_one_is_exactly_the_divergence(kind: str, head: Head) -> None:
    logits, weak = bags_of(kind, head)
    q = fastbus.infer(kind, logits, weak, head=head).labels
    if head == "sigmoid":
        expected = kl_divergence(Bernoulli(probs=q), Bernoulli(logits=logits)).sum()
    else:
        expected = kl_divergence(Categorical(probs=q), Categorical(logits=logits)).sum()
    loss = WeakLoss(kind, head=head, smoothing=1.0, reduction="sum")(logits, weak)
    assert float(expected) > 0.1
    torch.testing.assert_close(loss, expected, rtol=1e-12, atol=1e-12)


@every
def test_the_heads_own_loss_at_the_posterior_has_the_gradient_of_the_likelihood(kind: str, head: Head) -> None:
    logits, weak = bags_of(kind, head)
    x, y = logits.clone().requires_grad_(), logits.clone().requires_grad_()
    post = fastbus.infer(kind, y, weak, head=head)
    q = post.labels.detach()
    own = (
        fn.binary_cross_entropy_with_logits(x, q, reduction="sum")
        if head == "sigmoid"
        else fn.cross_entropy(x.flatten(0, 1), q.flatten(0, 1), reduction="sum")
    )
    own.backward()
    (-post.log_likelihood.sum()).backward()
    assert x.grad is not None and y.grad is not None and float(y.grad.abs().max()) > 0.01
    torch.testing.assert_close(x.grad, y.grad, rtol=0, atol=1e-12)


def test_an_approximate_posterior_has_another_gradient() -> None:
    """What the test above can see: the independent coupling breaks the identity under a softmax head."""
    logits, weak = bags_of("label_proportion", "softmax")
    x = logits.clone().requires_grad_()
    post = fastbus.infer("label_proportion", x, weak, coupling="independent")
    (-post.log_likelihood.sum()).backward()
    assert x.grad is not None
    own = torch.softmax(logits, -1) - post.labels.detach()
    assert float((x.grad - own).abs().max()) > 1e-2


# -- joint mode reaches whatever is plugged in ------------------------------------------------------


def gradients(module: torch.nn.Module) -> dict[str, float]:
    return {
        name: 0.0 if x.grad is None else float(x.grad.abs().max())
        for name, x in module.named_parameters()
        if x.requires_grad
    }


@pytest.mark.parametrize("head", ["softmax", "sigmoid"])
def test_joint_mode_reaches_every_parameter_of_an_evolution(head: Head) -> None:
    logits, weak = bags_of("label_proportion", head)
    features = ROWS[: BAGS * SIZE].reshape(BAGS, SIZE, 64).double()
    module = randomised(build_evolution("label_proportion", logits, weak, 64, head=head, **SMALL)).train()
    options: dict[str, Any] = {"head": head, "evolution": module}
    WeakLoss("label_proportion", mode="joint", **options)(logits, weak, features=features).backward()
    reached = gradients(module)
    # what is added to all keys alike does not change attention: such biases have no gradient at all
    silent = {name for name, value in reached.items() if value < 1e-12}
    assert silent <= {"key.bias"} and {"gate", "last.weight", "query.weight"} <= set(reached)
    # the risk and its smoothing alone teach it too: it is not the likelihood that does it
    module.zero_grad()
    loss = WeakLoss("label_proportion", mode="joint", likelihood=0.0, **options)
    loss(logits, weak, features=features).backward()
    assert gradients(module)["last.weight"] > 1e-6


@pytest.mark.parametrize(
    "module", [ClassLoop.ones(3), ClassTransition.near_identity(3, 0.1)], ids=["loop", "transition"]
)
def test_joint_mode_reaches_what_ties_classes(module: Any) -> None:
    logits, weak = bags_of("multi_instance", "sigmoid")
    weak[::2, 1] = -1
    WeakLoss("multi_instance", head="sigmoid", mode="joint", class_loop=module)(logits, weak).backward()
    assert all(value > 1e-6 for value in gradients(module).values())


def test_joint_mode_reaches_a_transition_that_em_mode_does_not() -> None:
    logits, _ = bags_of("label_proportion", "softmax")
    free = torch.eye(4, dtype=torch.float64).requires_grad_()
    told = LABELS[: BAGS * SIZE].reshape(BAGS, SIZE) % 4
    rule = NoisyLabel(free.softmax(-1))
    WeakLoss(rule, mode="joint")(logits, told).backward()
    assert free.grad is not None and float(free.grad.abs().max()) > 1e-3
    assert not WeakLoss(NoisyLabel(free.softmax(-1)))(logits, told).requires_grad
