"""The express way through `infer` equals the ordinary path: numbers, bits, derivatives, and what an answer can do."""

import copy
import pickle
import time
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck

import fastbus
from express_batches import assert_same, draw, every_kind, every_layout, kernels, ordinary, quick
from fastbus.inference.express_posterior import QuickPosterior
from fastbus.oracle import enumerate_posterior

# -- the same numbers --------------------------------------------------------------------------


@every_kind
@every_layout
@pytest.mark.parametrize("missing", [0.0, 0.5])
@pytest.mark.parametrize("classes", [2, 3, 11])
def test_equals_the_ordinary_path(kind: str, head: str, layout: str, missing: float, classes: int) -> None:
    for seed in range(3):
        batch = draw(kind, head, layout, classes=classes, missing=missing, seed=seed)
        got, expected = quick(*batch.given, **batch.options), ordinary(*batch.given, **batch.options)
        assert_same(got, expected)
        assert torch.equal(got.map(), expected.map())
        single = batch.logits.float()
        assert_same(quick(*batch.at(single), **batch.options), ordinary(*batch.at(single), **batch.options), 2e-7)


@every_kind
@pytest.mark.parametrize("missing", [0.0, 0.5])
def test_equals_enumeration(kind: str, head: str, missing: float) -> None:
    batch = draw(kind, head, "masked", sizes=(4, 1, 3, 2), classes=2, missing=missing, seed=7)
    got = quick(*batch.given, **batch.options)
    calm = batch.logits.nan_to_num(0.0)
    truth = enumerate_posterior(
        fastbus.LabelProportion() if kind == "label_proportion" else fastbus.MultiInstance(),
        calm.numpy(),
        batch.weak.numpy(),
        batch.options["mask"].numpy(),
        head=head,
    )
    np.testing.assert_allclose(got.labels.numpy(), truth.labels, atol=1e-13)
    np.testing.assert_allclose(got.log_likelihood.numpy(), truth.log_likelihood, atol=1e-13)


@every_kind
@pytest.mark.parametrize("scale", [50.0, 500.0, 5e7])
def test_extreme_logits(kind: str, head: str, scale: float) -> None:
    """The largest are no kernel's business, and still come out."""
    batch = draw(kind, head, "masked", sizes=(6, 1, 9, 2), classes=4, scale=scale, seed=3)
    assert_same(fastbus.infer(*batch.given, **batch.options), ordinary(*batch.given, **batch.options), 1e-11)


@pytest.mark.parametrize("count", [0, 1, 25, 45, 49, 50])
def test_large_bags_of_improbable_counts(count: int) -> None:
    logits = torch.randn(2, 50, 9, generator=torch.Generator().manual_seed(1), dtype=torch.float64) - 2.2
    weak = torch.full((2, 9), count)
    got = quick("label_proportion", logits, weak, head="sigmoid")
    assert_same(got, ordinary("label_proportion", logits, weak, head="sigmoid"))
    torch.testing.assert_close(got.labels.sum(1), weak.double(), rtol=0, atol=1e-12)
    if count in (0, 50):
        assert bool((got.labels == float(count == 50)).all()), "labels that are forced are certain"


def test_counts_of_mixed_size_in_one_block() -> None:
    logits = torch.randn(1, 30, 31, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    weak = torch.arange(31)[None]
    assert_same(
        quick("label_proportion", logits, weak, head="sigmoid"),
        ordinary("label_proportion", logits, weak, head="sigmoid"),
    )


# -- the same bits -----------------------------------------------------------------------------


@every_kind
def test_bags_do_not_depend_on_each_other(kind: str, head: str) -> None:
    batch = draw(kind, head, "masked", classes=5, seed=4)
    whole = quick(*batch.given, **batch.options)
    again = quick(*batch.given, **batch.options)
    assert torch.equal(whole.labels, again.labels) and torch.equal(whole.log_likelihood, again.log_likelihood)
    for bag, size in enumerate((5, 3, 1, 4)):
        alone = quick(kind, batch.logits[bag : bag + 1, :size], batch.weak[bag : bag + 1], head=head)
        assert torch.equal(alone.labels[0], whole.labels[bag, :size])
        assert torch.equal(alone.log_likelihood[0], whole.log_likelihood[bag])
        assert not bool(whole.labels[bag, size:].any())


@every_kind
def test_array_types_and_views(kind: str, head: str) -> None:
    batch = draw(kind, head, classes=4, seed=5)
    expected = quick(*batch.given, **batch.options)
    turned = batch.logits.transpose(0, 1).contiguous().transpose(0, 1)
    spread = torch.stack([batch.weak, batch.weak], -1)[..., 0]
    for logits, weak in (
        (turned, spread),
        (batch.logits.numpy(), batch.weak.numpy()),
        (torch.nn.Parameter(batch.logits), batch.weak.to(torch.int8)),
        (batch.logits, batch.weak.to(torch.uint8)),
        (np.asfortranarray(batch.logits.numpy()), batch.weak.int().numpy()),
    ):
        got = quick(kind, logits, weak, head=head)
        assert torch.equal(got.labels, expected.labels) and torch.equal(got.log_likelihood, expected.log_likelihood)


def test_binary_weak_labels() -> None:
    logits = torch.randn(3, 4, 1, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    for kind, weak in (("label_proportion", [1, 4, -1]), ("multi_instance", [True, False, True])):
        given = torch.tensor(weak)
        got = quick(kind, logits, given, head="sigmoid")
        assert_same(got, ordinary(kind, logits, given, head="sigmoid"))
        assert torch.equal(got.labels, quick(kind, logits, given[:, None], head="sigmoid").labels)


# -- derivatives -------------------------------------------------------------------------------


@every_kind
@every_layout
def test_derivatives(kind: str, head: str, layout: str) -> None:
    batch = draw(kind, head, layout, sizes=(3, 1), classes=2, missing=0.2, seed=6)
    calm = batch.logits.nan_to_num(0.3)

    def likelihood(x: Tensor) -> Tensor:
        return quick(*batch.at(x), **batch.options).log_likelihood

    def both(x: Tensor) -> tuple[Tensor, Tensor]:
        post = quick(*batch.at(x), **batch.options)
        return post.labels, post.log_likelihood

    x = calm.clone().requires_grad_()
    assert gradcheck(both, x, atol=1e-7)
    assert gradgradcheck(likelihood, x, atol=1e-6)
    assert gradgradcheck(both, x, atol=1e-6)


@every_kind
@every_layout
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_gradients_equal_those_of_the_ordinary_path(kind: str, head: str, layout: str, dtype: torch.dtype) -> None:
    batch = draw(kind, head, layout, classes=4, missing=0.2, seed=8)

    def gradient(infer: Callable[..., fastbus.Posterior], through_labels: bool) -> Tensor:
        x = batch.logits.to(dtype).requires_grad_()
        post = infer(*batch.at(x), **batch.options)
        assert post.labels.dtype == post.log_likelihood.dtype == dtype
        value = (post.log_likelihood * torch.arange(1, 5)).sum()
        (slope,) = torch.autograd.grad(value + (post.labels**2).sum() if through_labels else value, x)
        assert slope.dtype == dtype
        return slope

    rounding = 1e-12 if dtype == torch.float64 else 2e-6
    for through_labels in (False, True):
        got, expected = gradient(quick, through_labels), gradient(ordinary, through_labels)
        torch.testing.assert_close(got, expected, rtol=rounding, atol=rounding)
        assert bool(got.isfinite().all()), "NaN of the padding reached the gradient"


@every_kind
def test_without_gradients(kind: str, head: str) -> None:
    batch = draw(kind, head, seed=9)
    x = batch.logits.clone().requires_grad_()
    traced = quick(*batch.at(x), **batch.options)
    assert traced.labels.requires_grad and traced.log_likelihood.requires_grad
    for mode in (torch.no_grad, torch.inference_mode):
        with mode():
            post = quick(*batch.at(x), **batch.options)
        assert not post.labels.requires_grad and not post.log_likelihood.requires_grad
        assert torch.equal(post.labels, traced.labels) and torch.equal(post.log_likelihood, traced.log_likelihood)


@every_kind
def test_training_step(kind: str, head: str) -> None:
    batch = draw(kind, head, "masked", classes=4, missing=0.2, seed=10)
    results = []
    for on in (True, False):
        loss = fastbus.WeakLoss(kind, head=head)  # type: ignore[arg-type]
        x = batch.logits.float().requires_grad_()
        with kernels(on):
            value = loss(x, batch.weak, batch.options["mask"])
            assert isinstance(loss.posterior(x, batch.weak, batch.options["mask"]), QuickPosterior) == on
        results.append((value, *torch.autograd.grad(value, x)))
    for got, expected in zip(*results, strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-6, atol=1e-6)


# -- what else an answer can do ----------------------------------------------------------------


@every_kind
@every_layout
def test_samples_and_labellings_satisfy_the_weak_label(kind: str, head: str, layout: str) -> None:
    batch = draw(kind, head, layout, seed=11)
    post = quick(*batch.given, **batch.options)
    expected = ordinary(*batch.given, **batch.options)
    draws = post.sample(3, torch.Generator().manual_seed(0))
    assert torch.equal(draws, expected.sample(3, torch.Generator().manual_seed(0)))
    sizes = [5] * 4 if layout == "full" else [5, 3, 1, 4]
    for labelling in (post.map(), *draws):
        bags = (
            labelling.split(sizes)
            if layout == "flat"
            else [bag[:size] for bag, size in zip(labelling, sizes, strict=True)]
        )
        for bag, said in zip(bags, batch.weak, strict=True):
            counts = torch.nn.functional.one_hot(bag, 3).sum(0) if head == "softmax" else bag.sum(0)
            assert torch.equal(counts if kind == "label_proportion" else counts.clamp(max=1), said)


@every_kind
def test_the_callers_tensors_are_left_alone(kind: str, head: str) -> None:
    """In both directions: what the caller writes later does not reach the answer."""
    batch = draw(kind, head, "masked", seed=12)
    mask = batch.options["mask"]
    before = [x.clone() for x in (batch.logits, batch.weak, mask)]
    post = quick(*batch.given, **batch.options)
    expected = ordinary(*batch.given, **batch.options).map()
    for now, then in zip((batch.logits, batch.weak, mask), before, strict=True):
        assert torch.equal(now.nan_to_num(7.0), then.nan_to_num(7.0))
    batch.logits.neg_()
    batch.weak.zero_()
    mask.fill_(True)
    assert torch.equal(post.map(), expected)


def test_answers_do_not_share_memory() -> None:
    batch = draw("label_proportion", "sigmoid")
    first, second = quick(*batch.given, **batch.options), quick(*batch.given, **batch.options)
    for name in ("labels", "log_likelihood", "exact_bags", "converged", "ignored", "informed"):
        kept = getattr(second, name).clone()
        getattr(first, name).zero_()
        assert torch.equal(getattr(second, name), kept), name
        assert torch.equal(getattr(quick(*batch.given, **batch.options), name), kept), name


@pytest.mark.parametrize("layout", ["masked", "flat"])
def test_answers_can_be_copied(layout: str) -> None:
    batch = draw("label_proportion", "softmax", layout, seed=13)
    post = quick(*batch.given, **batch.options)
    expected = post.map()
    for other in (copy.deepcopy(post), pickle.loads(pickle.dumps(post)), replace(post, coupling=["x"] * 4)):
        assert torch.equal(other.map(), expected) and torch.equal(other.informed, post.informed)
    assert "log_likelihood" in repr(post)


# -- cost --------------------------------------------------------------------------------------


@every_kind
def test_several_times_faster(kind: str, head: str) -> None:
    """A hundred times as a rule; ten leaves room for a machine that has other things to do."""
    batch = draw(kind, head, sizes=(8,) * 8, classes=10, seed=14)

    def shortest(call: Callable[[], object]) -> float:
        def once() -> float:
            start = time.perf_counter()
            call()
            return time.perf_counter() - start

        call()
        return min(once() for _ in range(7))

    slow = shortest(lambda: ordinary(*batch.given, **batch.options))
    assert slow > 10 * shortest(lambda: quick(*batch.given, **batch.options))
