"""What must not matter: order, padding, masks, neighbours, layout, head, inputs, memory, global state."""

import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import fastbus
from catalogue import CASES, Batch, Case, infer, prior_of, random_batch
from fastbus import LabelProportion, MultiInstance, PositiveUnlabeled
from fastbus.supervision.combine import Combination
from fastbus.supervision.imperfect import InstanceEvidence

TOLERANCE = 1e-6
GARBAGE = (float("nan"), float("inf"), -float("inf"), 1e30)
ORDERED = ("comparison", "confidence_difference", "last_positive")
every_case = pytest.mark.parametrize("name", CASES)


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


# -- batches, moved about ----------------------------------------------------------------------


def each_part(case: Case, weak: Any, change: Callable[[Any, Tensor], Tensor]) -> Any:
    """Change every weak label, those of a combination part by part."""
    if isinstance(case.supervision, Combination):
        return tuple(change(part, x) for part, x in zip(case.supervision.parts, weak, strict=True))
    return change(case.supervision, weak)


def of_instances(supervision: object) -> bool:
    """Whether the weak labels (B, K, ...) speak about single instances."""
    return isinstance(supervision, (InstanceEvidence, PositiveUnlabeled))


def taken(x: Tensor, index: Tensor, *garbage: float) -> Tensor:
    """x (B, K, ...) at `index` (B, L); where that is -1, column l holds garbage l, l + n, ..."""
    out = x[torch.arange(len(x))[:, None], index.clamp(min=0)]
    for column in range(index.shape[1]):
        out[:, column][index[:, column] < 0] = garbage[column % len(garbage)]
    return out


def moved(case: Case, batch: Batch, index: Tensor) -> Batch:
    """The instances at other places of their bags: index (B, L), -1 for padding full of garbage."""

    def change(part: object, weak: Tensor) -> Tensor:
        if not of_instances(part):
            return weak
        return taken(weak, index, *(GARBAGE if weak.is_floating_point() else (99, -7)))

    weak = each_part(case, batch.weak, change)
    return Batch(taken(batch.logits, index, *GARBAGE), weak, index >= 0)


def some_bags(case: Case, batch: Batch, bags: Tensor) -> Batch:
    return Batch(batch.logits[bags], each_part(case, batch.weak, lambda _, weak: weak[bags]), batch.mask[bags])


def in_place(batch: Batch) -> Tensor:
    return torch.arange(batch.mask.shape[1]).expand_as(batch.mask).masked_fill(~batch.mask, -1)


Answer = tuple[Tensor, Tensor, Tensor]


def answer(case: Case, batch: Batch, **options: Any) -> Answer:
    """Posterior, log-likelihood and a gradient through both, from float32 logits."""
    logits = batch.logits.float().requires_grad_()
    post = infer(case, batch, logits, **options)
    assert post.labels.dtype == post.log_likelihood.dtype == torch.float32
    (gradient,) = torch.autograd.grad(post.log_likelihood.sum() + (post.labels**2).sum(), logits)
    return post.labels.detach(), post.log_likelihood.detach(), gradient


def assert_same(got: Answer, expected: Answer) -> None:
    for value, other in zip(got, expected, strict=True):
        torch.testing.assert_close(value, other, rtol=TOLERANCE, atol=TOLERANCE)


def taken_answer(given: Answer, index: Tensor) -> Answer:
    labels, log_likelihood, gradient = given
    return taken(labels, index, 0.0), log_likelihood, taken(gradient, index, 0.0)


# -- within a bag ------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [name for name in CASES if not any(part in name for part in ORDERED)])
def test_order_of_instances(name: str) -> None:
    case = CASES[name]
    batch = random_batch(case, seed=1, bags=6)
    index = in_place(batch)
    for bag, size in enumerate(batch.mask.sum(1).tolist()):
        index[bag, :size] = torch.arange(size).flip(0)
    assert_same(answer(case, moved(case, batch, index)), taken_answer(answer(case, batch), index))


@every_case
def test_padding(name: str) -> None:
    case = CASES[name]
    batch = random_batch(case, seed=2)
    index = torch.cat([in_place(batch), torch.full((len(batch.mask), 4), -1)], 1)
    got = answer(case, moved(case, batch, index))
    assert_same(got, taken_answer(answer(case, batch), index))
    assert not bool(got[0][index < 0].any()) and not bool(got[2][index < 0].any())


@every_case
def test_masks_of_any_pattern(name: str) -> None:
    case = CASES[name]
    batch = random_batch(case, seed=3, bags=5)
    rng = np.random.default_rng(3)
    L = case.K + 3
    index = torch.full((5, L), -1)
    for bag, size in enumerate(batch.mask.sum(1).tolist()):
        index[bag, np.sort(rng.choice(L, size, replace=False))] = torch.arange(size)
    scattered = moved(case, batch, index)
    assert_same(answer(case, scattered), taken_answer(answer(case, batch), index))
    compact, spread = infer(case, batch).map(), infer(case, scattered).map()
    assert torch.equal(spread, taken(compact, index, -1))


@every_case
def test_flat_equals_padded(name: str) -> None:
    case = CASES[name]
    batch = random_batch(case, seed=4, bags=5)

    def flatten(part: object, weak: Tensor) -> Tensor:
        return weak[batch.mask] if of_instances(part) else weak

    logits = batch.logits.float()
    weak = each_part(case, batch.weak, flatten)
    post = fastbus.infer(case.supervision, logits[batch.mask], weak, bag_sizes=batch.mask.sum(1), head=case.head)
    padded = infer(case, batch, logits)
    torch.testing.assert_close(post.labels, padded.labels[batch.mask], rtol=0, atol=TOLERANCE)
    torch.testing.assert_close(post.log_likelihood, padded.log_likelihood, rtol=TOLERANCE, atol=TOLERANCE)
    assert torch.equal(post.map(), padded.map()[batch.mask])
    assert torch.equal(post.informed, padded.informed[batch.mask])


# -- between bags ------------------------------------------------------------------------------


@every_case
def test_neighbours(name: str) -> None:
    """A bag alone, in halves of the batch, among shuffled copies: always the same numbers."""
    case = CASES[name]
    batch = random_batch(case, seed=5, bags=6)
    whole = answer(case, batch)
    shuffled = torch.tensor([4, 0, 0, 5, 2, 1, 3, 4])
    for bags in (*torch.arange(6).split(1), *torch.arange(6).split(3), shuffled):
        alone = answer(case, some_bags(case, batch, bags))
        assert_same(alone, (whole[0][bags], whole[1][bags], whole[2][bags]))


@pytest.mark.parametrize("coupling", ["independent", "tilted", "loop"])
def test_neighbours_of_approximations(coupling: str) -> None:
    name = "multi_instance-softmax3" if coupling == "loop" else "label_proportion-softmax3"
    case = CASES[name]
    batch = random_batch(case, seed=6, bags=6)
    whole = answer(case, batch, coupling=coupling)
    for bags in (*torch.arange(6).split(1), *torch.arange(6).split(3)):
        alone = answer(case, some_bags(case, batch, bags), coupling=coupling)
        assert_same(alone, (whole[0][bags], whole[1][bags], whole[2][bags]))


@every_case
def test_memory_limit(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    case = CASES[name]
    batch = random_batch(case, seed=7, bags=7)
    monkeypatch.setenv("FASTBUS_KERNELS", "0")  # kernels take no turns
    whole = answer(case, batch)
    monkeypatch.setattr("fastbus.inference.memory.LIMIT", 40)
    assert_same(answer(case, batch), whole)


@pytest.mark.parametrize("name", ["label_proportion-sigmoid2", "multi_instance-softmax3", "pair_similarity-softmax3"])
def test_memory_limit_of_labellings(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    case = CASES[name]
    batch = random_batch(case, seed=7, bags=7)
    whole = infer(case, batch)
    best = whole.map()
    monkeypatch.setattr("fastbus.inference.memory.LIMIT", 40)
    parts = infer(case, batch)
    assert torch.equal(parts.map(), best)
    assert parts.sample(5, torch.Generator().manual_seed(0)).shape == (5, *best.shape)


def test_memory_limit_of_tilted_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    case = CASES["label_proportion-softmax3"]
    batch = random_batch(case, seed=8, bags=7)
    whole = answer(case, batch, coupling="tilted")
    monkeypatch.setattr("fastbus.inference.memory.LIMIT", 1)
    assert_same(answer(case, batch, coupling="tilted"), whole)


# -- one problem, several ways to say it -------------------------------------------------------


@pytest.mark.parametrize("name", [name for name in CASES if name.endswith("-sigmoid1")])
def test_one_sigmoid_equals_two_softmax_classes(name: str) -> None:
    case = CASES[name]
    batch = random_batch(case, seed=9, bags=6)
    generator = torch.Generator().manual_seed(9)
    shift = torch.randn(*batch.mask.shape, 1, generator=generator, dtype=torch.float64)

    def binary(part: Any, weak: Tensor) -> Tensor:
        """Weak labels of one class without the axis of classes: they speak about class 1."""
        one_class = part.labels == "per_class" and not of_instances(part) and weak.dim() > 1
        return weak[:, 0] if one_class else weak

    weak = each_part(case, batch.weak, binary)
    logits = torch.cat([shift, batch.logits + shift], -1).float()
    sigmoid = infer(case, batch, (logits[..., 1:].double() - logits[..., :1].double()).float())
    softmax = fastbus.infer(case.supervision, logits, weak, batch.mask, head="softmax")
    torch.testing.assert_close(softmax.labels[..., 1:], sigmoid.labels, rtol=0, atol=TOLERANCE)
    torch.testing.assert_close(softmax.log_likelihood, sigmoid.log_likelihood, rtol=TOLERANCE, atol=TOLERANCE)


@every_case
def test_inputs(name: str) -> None:
    """Probabilities and their logarithms say the same as logits; float64, as float32 rounds 1 - p."""
    case = CASES[name]
    batch = random_batch(case, seed=10)
    expected = infer(case, batch)
    prior = prior_of(case, batch.logits)
    for inputs, given in (("probs", prior), ("log_probs", prior.log())):
        post = infer(case, batch, given, inputs=inputs)
        torch.testing.assert_close(post.labels, expected.labels, rtol=0, atol=1e-12)
        torch.testing.assert_close(post.log_likelihood, expected.log_likelihood, rtol=0, atol=1e-12)


# -- sums and missing labels -------------------------------------------------------------------


@pytest.mark.parametrize("K", [1, 2, 17, 100, 300])
@pytest.mark.parametrize("scale", [0.1, 3.0, 30.0])
def test_counts_are_met_by_sigmoids(K: int, scale: float) -> None:
    rng = np.random.default_rng(K)
    sizes = torch.from_numpy(rng.integers(1, K + 1, 6))
    sizes[0] = K
    mask = torch.arange(K) < sizes[:, None]
    logits = torch.from_numpy(scale * rng.standard_normal((6, K, 3))).float()
    weak = torch.from_numpy(rng.integers(0, sizes.numpy()[:, None] + 1, (6, 3)))
    post = fastbus.infer(LabelProportion(), logits, weak, mask, head="sigmoid")
    off = (post.labels.double().sum(1) - weak).abs().max()
    assert float(off) <= TOLERANCE * max(1, K)


@pytest.mark.parametrize("K", [1, 2, 6, 12, 20])
@pytest.mark.parametrize("scale", [0.1, 3.0, 30.0])
def test_counts_are_met_by_joint_softmax(K: int, scale: float) -> None:
    rng = np.random.default_rng(K)
    sizes = torch.from_numpy(rng.integers(1, K + 1, 6))
    sizes[0] = K
    mask = torch.arange(K) < sizes[:, None]
    logits = torch.from_numpy(scale * rng.standard_normal((6, K, 4))).float()
    truth = torch.nn.functional.one_hot(torch.from_numpy(rng.integers(0, 4, (6, K))), 4)
    weak = (truth * mask[..., None]).sum(1)
    post = fastbus.infer(LabelProportion(), logits, weak, mask, coupling="joint")
    assert post.exact
    off = (post.labels.double().sum(1) - weak).abs().max()
    assert float(off) <= TOLERANCE * max(1, K)
    rows = post.labels.double().sum(-1)[mask]
    torch.testing.assert_close(rows, torch.ones_like(rows), rtol=0, atol=TOLERANCE)


def blank(weak: Any) -> Any:
    """The same weak labels, all of them missing."""
    if isinstance(weak, tuple):
        return tuple(blank(part) for part in weak)
    return torch.full_like(weak, float("nan") if weak.is_floating_point() else -1)


# -1 is no missing label to positive_unlabeled: it says that the instance is unlabelled
@pytest.mark.parametrize("name", [name for name in CASES if "positive_unlabeled" not in name])
def test_missing_labels_leave_the_prior(name: str) -> None:
    case = CASES[name]
    batch = random_batch(case, seed=11)
    logits = batch.logits.float()
    post = infer(case, Batch(logits, blank(batch.weak), batch.mask))
    prior = prior_of(case, logits) * batch.mask[..., None]
    torch.testing.assert_close(post.labels, prior, rtol=0, atol=TOLERANCE)
    assert float(post.log_likelihood.abs().max()) <= TOLERANCE
    assert not bool(post.informed.any()) and not bool(post.ignored.any())


@every_case
def test_a_missing_bag_does_not_touch_the_others(name: str) -> None:
    case = CASES[name]
    batch = random_batch(case, seed=12)
    expected = answer(case, batch)

    def drop_first(_: object, weak: Tensor) -> Tensor:
        return torch.cat([blank(weak[:1]), weak[1:]])

    got = answer(case, Batch(batch.logits, each_part(case, batch.weak, drop_first), batch.mask))
    rest = slice(1, None)
    assert_same((got[0][rest], got[1][rest], got[2][rest]), tuple(part[rest] for part in expected))


@pytest.mark.parametrize("missing", range(4))
def test_the_last_count_follows_from_the_others(missing: int) -> None:
    rng = np.random.default_rng(13)
    truth = torch.from_numpy(rng.integers(0, 4, (5, 6)))
    weak = torch.nn.functional.one_hot(truth, 4).sum(1)
    case = Case(LabelProportion(), "softmax", 4, 6)
    logits = torch.from_numpy(2 * rng.standard_normal((5, 6, 4)))
    batch = Batch(logits, weak, torch.ones(5, 6, dtype=torch.bool))
    expected = answer(case, batch)
    partly = weak.clone()
    partly[:, missing] = -1
    assert_same(answer(case, Batch(logits, partly, batch.mask)), expected)
    fractions = torch.where(partly == -1, float("nan"), weak / 6)
    shares = Case(LabelProportion(unit="fraction"), "softmax", 4, 6)
    assert_same(answer(shares, Batch(logits, fractions, batch.mask)), expected)


# -- the caller's things -----------------------------------------------------------------------


def leaves(batch: Batch) -> list[Tensor]:
    weak = batch.weak if isinstance(batch.weak, tuple) else (batch.weak,)
    return [batch.logits, batch.mask, *weak]


@every_case
def test_nothing_of_the_caller_is_touched(name: str) -> None:
    case = CASES[name]
    batch = random_batch(case, seed=14)
    index = torch.cat([torch.full((len(batch.mask), 1), -1), in_place(batch)], 1)
    batch = moved(case, batch, index)
    copies = [(x.clone(), x._version, x.requires_grad) for x in leaves(batch)]
    states = torch.get_rng_state(), np.random.get_state(), random.getstate()  # noqa: NPY002
    post = infer(case, batch)
    post.map()
    post.sample(3)
    fastbus.WeakLoss(case.supervision, head=case.head)(batch.logits, batch.weak, batch.mask)
    assert torch.equal(torch.get_rng_state(), states[0])
    for now, before in zip(np.random.get_state(), states[1], strict=True):  # noqa: NPY002
        assert np.array_equal(now, before)
    assert random.getstate() == states[2]
    assert torch.get_default_dtype() == torch.float32
    for x, (copy, version, requires_grad) in zip(leaves(batch), copies, strict=True):
        torch.testing.assert_close(x, copy, rtol=0, atol=0, equal_nan=True)
        assert x._version == version and x.requires_grad == requires_grad


@pytest.fixture
def double_by_default() -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(before)


@every_case
def test_default_dtype_does_not_matter(name: str, double_by_default: None) -> None:
    case = CASES[name]
    batch = random_batch(case, seed=15)
    got = answer(case, batch)
    assert torch.get_default_dtype() == torch.float64
    torch.set_default_dtype(torch.float32)
    expected = answer(case, batch)
    for value, other in zip(got, expected, strict=True):
        assert torch.equal(value, other)


@pytest.mark.parametrize("supervision", [LabelProportion(), MultiInstance()])
@pytest.mark.parametrize("head", ["sigmoid", "softmax"])
def test_samples_come_from_their_generator_alone(supervision: fastbus.Supervision, head: str) -> None:
    case = Case(supervision, head, 3, 5)
    batch = random_batch(case, seed=16)
    post = infer(case, batch)
    before = torch.get_rng_state()
    first = post.sample(20, torch.Generator().manual_seed(1))
    torch.manual_seed(5)  # another global state must not show in the samples
    again = post.sample(20, torch.Generator().manual_seed(1))
    other = post.sample(20, torch.Generator().manual_seed(2))
    torch.set_rng_state(before)
    fresh, fresher = post.sample(20), post.sample(20)
    assert torch.equal(first, again) and not torch.equal(first, other)
    assert not torch.equal(fresh, fresher)
    assert torch.equal(torch.get_rng_state(), before)
    assert bool((first[:, ~batch.mask] == -1).all()) and bool((first[:, batch.mask] >= 0).all())
