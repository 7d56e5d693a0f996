"""Function transforms, compilation, grad modes, precisions, devices and array types."""

import shutil
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.func import functional_call, grad, jacrev, stack_module_state, vmap

import fastbus
from catalogue import CASES, Batch, Case, infer, prior_of, random_batch
from fastbus import WeakLoss
from fastbus.oracle import enumerate_posterior

TRANSFORMED = [
    "label_proportion-sigmoid2",
    "label_proportion-softmax3",
    "multi_instance-sigmoid2",
    "multi_instance-softmax3",
    "pair_similarity-softmax3",
    "partial_label-larger-bags",
]
transformed = pytest.mark.parametrize("name", TRANSFORMED)
every_case = pytest.mark.parametrize("name", CASES)


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def ensemble(batch: Batch, members: int = 3) -> Tensor:
    """Logits (members, B, K, C)."""
    generator = torch.Generator().manual_seed(members)
    return torch.randn(members, *batch.logits.shape, generator=generator, dtype=torch.float64)


def log_likelihood(case: Case, batch: Batch) -> Callable[[Tensor], Tensor]:
    """As a function of the logits alone; checks of values cannot be traced."""
    return lambda logits: infer(case, batch, logits, validate=False).log_likelihood


def expected_gradient(case: Case, batch: Batch, logits: Tensor) -> Tensor:
    """Posterior minus prior, the posterior from enumeration."""
    truth = enumerate_posterior(
        case.supervision, logits.numpy(), batch.weak.numpy(), batch.mask.numpy(), head=case.head
    )
    return (torch.from_numpy(truth.labels) - prior_of(case, logits)) * batch.mask[..., None]


# -- torch.func --------------------------------------------------------------------------------


@transformed
def test_vmap_over_an_ensemble(name: str) -> None:
    case = CASES[name]
    batch = random_batch(case, seed=1)
    logits = ensemble(batch)

    def both(member: Tensor) -> tuple[Tensor, Tensor]:
        post = infer(case, batch, member, validate=False)
        return post.labels, post.log_likelihood

    labels, likelihood = vmap(both)(logits)
    for member, got, value in zip(logits, labels, likelihood, strict=True):
        post = infer(case, batch, member)
        torch.testing.assert_close(got, post.labels, rtol=0, atol=1e-12)
        torch.testing.assert_close(value, post.log_likelihood, rtol=0, atol=1e-12)


@transformed
def test_grad_and_its_vmap(name: str) -> None:
    case = CASES[name]
    batch = random_batch(case, seed=2)
    logits = ensemble(batch)
    of_sum = grad(lambda member: log_likelihood(case, batch)(member).sum())
    together = vmap(of_sum)(logits)
    for member, got in zip(logits, together, strict=True):
        expected = expected_gradient(case, batch, member)
        torch.testing.assert_close(of_sum(member), expected, rtol=0, atol=1e-12)
        torch.testing.assert_close(got, expected, rtol=0, atol=1e-12)


@transformed
def test_jacobian(name: str) -> None:
    """Bags do not mix: row b of the Jacobian is the gradient of bag b and zero elsewhere."""
    case = CASES[name]
    batch = random_batch(case, seed=3)
    expected = expected_gradient(case, batch, batch.logits)
    jacobian = jacrev(log_likelihood(case, batch))(batch.logits)
    for bag, row in enumerate(jacobian):
        torch.testing.assert_close(row[bag], expected[bag], rtol=0, atol=1e-12)
        assert not bool(row[torch.arange(len(row)) != bag].any())


@transformed
def test_hessian(name: str) -> None:
    """The second derivative, by differences of the first."""
    case = CASES[name]
    batch = random_batch(case, seed=4, bags=2)

    def total(logits: Tensor) -> Tensor:
        return log_likelihood(case, batch)(logits).sum()

    # reverse over reverse: the posterior has no forward mode
    got = jacrev(grad(total))(batch.logits).reshape(batch.logits.numel(), -1)
    step = 1e-5
    for entry in range(batch.logits.numel()):
        change = torch.zeros_like(batch.logits).flatten()
        change[entry] = step
        change = change.reshape_as(batch.logits)
        difference = grad(total)(batch.logits + change) - grad(total)(batch.logits - change)
        torch.testing.assert_close(got[:, entry], difference.flatten() / (2 * step), rtol=0, atol=1e-8)


def test_training_an_ensemble_of_models() -> None:
    """vmap of grad over stacked parameters gives each model the gradient it gets alone."""
    case = CASES["label_proportion-softmax3"]
    batch = random_batch(case, seed=5)
    features = torch.randn(*batch.mask.shape, 4, generator=torch.Generator().manual_seed(5))
    models = [torch.nn.Linear(4, 3) for _ in range(3)]
    loss = WeakLoss(case.supervision, likelihood=1.0, validate=False)
    parameters, buffers = stack_module_state(models)

    def objective(parameters: dict[str, Tensor], buffers: dict[str, Tensor]) -> Tensor:
        logits = functional_call(models[0], (parameters, buffers), (features,))
        return loss(logits, batch.weak, batch.mask)

    gradients = vmap(grad(objective))(parameters, buffers)
    for index, model in enumerate(models):
        loss(model(features), batch.weak, batch.mask).backward()
        for key, parameter in model.named_parameters():
            torch.testing.assert_close(gradients[key][index], parameter.grad, rtol=1e-5, atol=1e-6)


# -- torch.compile -----------------------------------------------------------------------------


@pytest.fixture
def fresh_compiler() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def compare_compiled(name: str, backend: str) -> None:
    case = CASES[name]
    batch = random_batch(case, seed=6, bags=3)
    other = random_batch(case, seed=7, bags=3)
    loss = WeakLoss(case.supervision, head=case.head, likelihood=0.5)

    def objective(logits: Tensor, weak: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        post = fastbus.infer(case.supervision, logits, weak, batch.mask, head=case.head)
        return loss(logits, weak, batch.mask), post.labels, post.log_likelihood

    compiled = torch.compile(objective, backend=backend)
    # the second batch has the shapes of the first and other contents, as in a training loop
    for given in (batch, other):
        results = []
        for function in (objective, compiled):
            logits = given.logits.float().requires_grad_()
            value, labels, likelihood = function(logits, given.weak)
            (gradient,) = torch.autograd.grad(value, logits)
            results.append((value, labels, likelihood, gradient))
        for eager, got in zip(*results, strict=True):
            assert bool(got.isfinite().all())
            torch.testing.assert_close(got, eager, rtol=1e-6, atol=1e-6)


# torch's own tracer uses deprecated parts of torch, and looks at .grad of tensors that are no leaves
quiet_tracer = pytest.mark.filterwarnings(
    "ignore::DeprecationWarning", "ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning"
)


@pytest.mark.parametrize("name", ["label_proportion-softmax3", "multi_instance-sigmoid1"])
@quiet_tracer
def test_compiled(name: str, fresh_compiler: None) -> None:
    compare_compiled(name, "aot_eager")


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="inductor needs a C++ compiler")
@quiet_tracer
def test_compiled_to_machine_code(fresh_compiler: None) -> None:
    compare_compiled("label_proportion-sigmoid2", "inductor")


# -- grad modes and precisions -----------------------------------------------------------------


@every_case
def test_grad_modes(name: str) -> None:
    case = CASES[name]
    batch = random_batch(case, seed=8)
    logits = batch.logits.clone().requires_grad_()
    plain = infer(case, batch, logits)
    assert plain.labels.requires_grad and plain.log_likelihood.requires_grad
    for mode in (torch.no_grad, torch.inference_mode):
        with mode():
            post = infer(case, batch, logits)
            value = WeakLoss(case.supervision, head=case.head, mode="joint")(logits, batch.weak, batch.mask)
            assert torch.equal(post.map(), plain.map())
            assert post.sample(2).shape[0] == 2
        assert not post.labels.requires_grad and not post.log_likelihood.requires_grad
        assert not value.requires_grad and bool(value.isfinite())
        assert torch.equal(post.labels, plain.labels)
        assert torch.equal(post.log_likelihood, plain.log_likelihood)


def test_predictions_made_in_inference_mode() -> None:
    case = CASES["label_proportion-softmax3"]
    batch = random_batch(case, seed=9)
    with torch.inference_mode():
        logits = batch.logits * 1.0
    assert logits.is_inference()
    assert torch.equal(infer(case, batch, logits).labels, infer(case, batch).labels)


def lowered(weak: Any) -> Any:
    """Weak labels as they come beside half precision: float32."""
    if isinstance(weak, tuple):
        return tuple(lowered(part) for part in weak)
    return weak.float() if weak.is_floating_point() else weak


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@every_case
def test_precisions(name: str, dtype: torch.dtype) -> None:
    """Logits of any precision are taken at their value; answers have float32 or float64."""
    case = CASES[name]
    batch = random_batch(case, seed=10)
    logits = batch.logits.to(dtype).requires_grad_()
    weak = lowered(batch.weak) if dtype.itemsize < 4 else batch.weak
    post = infer(case, Batch(logits, weak, batch.mask))
    exact = infer(case, Batch(logits.detach().double(), weak, batch.mask))
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    assert post.labels.dtype == post.log_likelihood.dtype == wide
    torch.testing.assert_close(post.labels, exact.labels.to(wide), rtol=0, atol=1e-7)
    torch.testing.assert_close(post.log_likelihood, exact.log_likelihood.to(wide), rtol=1e-6, atol=1e-7)
    (gradient,) = torch.autograd.grad(post.log_likelihood.sum(), logits)
    assert gradient.dtype == dtype
    if post.exact:
        expected = (exact.labels - prior_of(case, logits.detach().double())) * batch.mask[..., None]
        rounding = torch.finfo(dtype).eps
        torch.testing.assert_close(gradient.double(), expected, rtol=2 * rounding, atol=2 * rounding)


# -- devices and arrays ------------------------------------------------------------------------


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here: torch.cuda.is_available() is False")
@every_case
def test_gpu_equals_cpu(name: str) -> None:
    case = CASES[name]
    batch = random_batch(case, seed=11)

    def there(weak: Any) -> Any:
        return tuple(map(there, weak)) if isinstance(weak, tuple) else weak.cuda()

    results = []
    for given in (batch, Batch(batch.logits.cuda(), there(batch.weak), batch.mask.cuda())):
        logits = given.logits.clone().requires_grad_()
        post = infer(case, given, logits)
        (gradient,) = torch.autograd.grad(post.log_likelihood.sum() + (post.labels**2).sum(), logits)
        assert post.labels.device == logits.device == post.map().device == post.sample(2).device
        results.append((post.labels, post.log_likelihood, gradient, post.map()))
    for here, remote in zip(*results, strict=True):
        torch.testing.assert_close(remote.cpu(), here, rtol=1e-10, atol=1e-10)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here: torch.cuda.is_available() is False")
def test_what_stayed_on_the_cpu_is_moved() -> None:
    loss = fastbus.WeakLoss(fastbus.PositiveUnlabeled(0.3), head="sigmoid", queue=4, class_weights=[1.0])
    assert loss(torch.zeros(1, 3, 1).cuda(), [[1, -1, -1]], bag_weights=[2.0]).is_cuda
    fastbus.CrowdLabel.estimate(torch.zeros(4, 2).cuda(), torch.zeros(4, 3, dtype=torch.long))
    fastbus.ClassLoop.from_labels(torch.tensor([[0, 1], [1, 1]]).cuda(), noise=(0.1, 0.2))
    fastbus.aggregate_crowd([[0, 1, 1]], prior=torch.tensor([0.5, 0.5]).cuda())


def as_arrays(weak: Any) -> Any:
    return tuple(map(as_arrays, weak)) if isinstance(weak, tuple) else weak.numpy()


def as_lists(weak: Any) -> Any:
    return tuple(map(as_lists, weak)) if isinstance(weak, tuple) else weak.tolist()


@every_case
def test_arrays_and_lists(name: str) -> None:
    case = CASES[name]
    batch = random_batch(case, seed=12)
    expected = infer(case, batch)
    arrays = Batch(batch.logits.numpy(), as_arrays(batch.weak), batch.mask.numpy())
    post = infer(case, arrays)
    assert torch.equal(post.labels, expected.labels)
    assert torch.equal(post.log_likelihood, expected.log_likelihood)
    # numbers in lists become float32
    lists = Batch(batch.logits.tolist(), as_lists(batch.weak), batch.mask.tolist())
    torch.testing.assert_close(infer(case, lists).labels.double(), expected.labels, rtol=0, atol=1e-6)


def test_arrays_that_torch_dislikes() -> None:
    """Read-only arrays, negative strides and views are read without a warning, and left as they are."""
    case = CASES["label_proportion-softmax3"]
    batch = random_batch(case, seed=13)
    expected = infer(case, batch).labels
    logits = batch.logits.numpy().copy()
    logits.flags.writeable = False
    turned = np.ascontiguousarray(logits[::-1])[::-1]
    for array in (logits, turned, np.asfortranarray(logits)):
        assert torch.equal(infer(case, batch, array).labels, expected)
    assert not logits.flags.writeable


def test_flat_lists_with_sizes() -> None:
    logits = [[0.0], [1.0], [-1.0], [0.5]]
    post = fastbus.infer("label_proportion", logits, [1, 1], bag_sizes=[3, 1], head="sigmoid")
    assert post.labels.shape == (4, 1)
    assert post.labels[:3].sum().item() == pytest.approx(1) and post.labels[3].item() == pytest.approx(1)
