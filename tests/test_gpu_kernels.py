"""The kernels of one launch: they must equal the ordinary path and the enumeration.

On a machine without a GPU: TRITON_INTERPRET=1 python -m pytest tests/test_gpu_kernels.py
"""

import importlib.util
import os

import pytest
import torch
from torch import Tensor

import fastbus
from fastbus.inference.chain import Chain
from fastbus.inference.chain import solve_chain as solve_plainly
from fastbus.inference.ending import Ending
from fastbus.oracle import enumerate_posterior
from fastbus.supervision.base import resolve

GPU = torch.cuda.is_available()
pytestmark = pytest.mark.skipif(
    not ((GPU or os.environ.get("TRITON_INTERPRET") == "1") and importlib.util.find_spec("triton")),
    reason="needs Triton and a GPU, or TRITON_INTERPRET=1",
)
DEVICE = "cuda" if GPU else "cpu"
RULES = {"counts": "label_proportion", "any": "multi_instance"}
INF = float("inf")


def solve(kind: str, logits: Tensor, weak: Tensor, sizes: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
    """Padded bags (B, K, C), or flat ones with sizes (B,), by the kernel; everything back on the CPU."""
    from fastbus.inference.kernels import gpu_any, gpu_counts

    solver = gpu_counts.solve_counts if kind == "counts" else gpu_any.solve_any
    if sizes is None:
        B, K, C = logits.shape
        rows, starts, lengths = logits.reshape(B * K, C), torch.arange(B) * K, torch.full((B,), K)
    else:
        rows, starts, lengths = logits, sizes.cumsum(0) - sizes, sizes
    arguments = [x.to(DEVICE) for x in (rows, starts, lengths, weak)]
    found = solver(*arguments, longest=int(lengths.max()), padded=sizes is None)
    posterior, likelihood, status = (x.cpu() for x in found)
    return posterior.reshape(logits.shape), likelihood, status


def drawn(kind: str, B: int, K: int, C: int, scale: float, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(B, K, C, generator=generator, dtype=torch.float64) * scale
    weak = torch.randint(-1, K + 1, (B, C), generator=generator)
    return logits, weak if kind == "counts" else weak.clamp(max=1)


@pytest.mark.parametrize("kind", RULES)
@pytest.mark.parametrize(("B", "K", "C", "scale"), [(2, 1, 1, 1.0), (3, 6, 3, 1.0), (2, 9, 2, 40.0)])
def test_equal_the_enumeration(kind: str, B: int, K: int, C: int, scale: float) -> None:
    logits, weak = drawn(kind, B, K, C, scale)
    posterior, likelihood, status = solve(kind, logits, weak)
    expected = enumerate_posterior(resolve(RULES[kind]), logits, weak, head="sigmoid")
    assert not status.any()
    torch.testing.assert_close(posterior, torch.from_numpy(expected.labels), rtol=0, atol=1e-12)
    torch.testing.assert_close(likelihood, torch.from_numpy(expected.log_likelihood), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("kind", RULES)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize(
    ("B", "K", "C", "scale"), [(2, 20, 11, 2.0), (1, 33, 9, 1.0), (1, 100, 2, 1.0), (1, 600, 1, 3.0)]
)
def test_equal_infer(kind: str, dtype: torch.dtype, B: int, K: int, C: int, scale: float) -> None:
    logits, weak = drawn(kind, B, K, C, scale)
    posterior, likelihood, status = solve(kind, logits.to(dtype), weak)
    expected = fastbus.infer(RULES[kind], logits.to(dtype).double(), weak, head="sigmoid")
    tolerance = 1e-12 if dtype == torch.float64 else 1e-7
    assert not status.any() and posterior.dtype == dtype
    assert (posterior.double() - expected.labels).abs().max() < tolerance
    torch.testing.assert_close(likelihood, expected.log_likelihood, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("kind", RULES)
def test_flat_bags_of_all_sizes(kind: str) -> None:
    sizes = torch.tensor([3, 1, 20, 7, 2])
    logits, weak = drawn(kind, 1, int(sizes.sum()), 5, 2.0)
    weak = torch.minimum(weak.expand(5, -1), sizes[:, None]).contiguous()
    posterior, likelihood, status = solve(kind, logits[0], weak, sizes)
    expected = fastbus.infer(RULES[kind], logits[0], weak, bag_sizes=sizes, head="sigmoid")
    assert not status.any()
    torch.testing.assert_close(posterior, expected.labels, rtol=0, atol=1e-12)
    torch.testing.assert_close(likelihood, expected.log_likelihood, rtol=1e-12, atol=1e-12)


def test_rows_after_a_short_bag_are_zero() -> None:
    from fastbus.inference.kernels.gpu_any import solve_any
    from fastbus.inference.kernels.gpu_counts import solve_counts

    logits = torch.ones(8, 1, dtype=torch.float64, device=DEVICE)
    starts, sizes = torch.tensor([0, 4], device=DEVICE), torch.tensor([2, 3], device=DEVICE)
    for solver in (solve_counts, solve_any):
        weak = torch.ones(2, 1, dtype=torch.long, device=DEVICE)
        posterior = solver(logits, starts, sizes, weak, longest=4, padded=True)[0].flatten().cpu()
        assert (posterior > 0).tolist() == [True, True, False, False, True, True, True, False]
        assert torch.equal(posterior[[2, 3, 7]], torch.zeros(3, dtype=torch.float64))


@pytest.mark.parametrize("wanted", range(9))
def test_counts_at_logits_of_five_hundred(wanted: int) -> None:
    logits = torch.tensor([500.0, -500, 300, -300, 0, 500, -500, 1], dtype=torch.float64).reshape(1, 8, 1)
    weak = torch.tensor([[wanted]])
    posterior, likelihood, status = solve("counts", logits, weak)
    expected = enumerate_posterior(resolve("label_proportion"), logits, weak, head="sigmoid")
    assert not status.any()
    assert (posterior - torch.from_numpy(expected.labels)).abs().max() < 1e-12
    torch.testing.assert_close(likelihood, torch.from_numpy(expected.log_likelihood), rtol=1e-12, atol=1e-12)


def test_ninety_of_a_hundred_at_one_in_ten() -> None:
    logits = torch.full((1, 100, 1), 0.1, dtype=torch.float64).logit()
    posterior, likelihood, status = solve("counts", logits, torch.tensor([[90]]))
    n = torch.tensor(90.0, dtype=torch.float64)
    binomial = torch.distributions.Binomial(100, torch.tensor(0.1, dtype=torch.float64))
    assert not status.any()
    torch.testing.assert_close(posterior, torch.full_like(posterior, 0.9), rtol=0, atol=1e-13)
    torch.testing.assert_close(likelihood, binomial.log_prob(n).reshape(1), rtol=1e-12, atol=0)


@pytest.mark.parametrize("wanted", [1, 2, 3])
def test_certain_instances(wanted: int) -> None:
    logits = torch.tensor([INF, -2.0, 0.3, -INF], dtype=torch.float64).reshape(1, 4, 1)
    weak = torch.tensor([[wanted]])
    posterior, likelihood, status = solve("counts", logits, weak)
    expected = enumerate_posterior(resolve("label_proportion"), logits, weak, head="sigmoid")
    assert not status.any()
    torch.testing.assert_close(posterior, torch.from_numpy(expected.labels), rtol=0, atol=1e-14)
    torch.testing.assert_close(likelihood, torch.from_numpy(expected.log_likelihood), rtol=1e-13, atol=0)


def test_one_positive_among_the_impossible() -> None:
    logits = torch.full((1, 4, 1), -690.0, dtype=torch.float64)
    logits[0, 0] = -689.0
    posterior, likelihood, status = solve("any", logits, torch.ones(1, 1, dtype=torch.long))
    odds = (logits - logits.max()).exp()
    assert not status.any()
    torch.testing.assert_close(posterior, odds / odds.sum(), rtol=1e-12, atol=0)
    torch.testing.assert_close(likelihood, logits.logsumexp((1, 2)), rtol=1e-12, atol=0)


@pytest.mark.parametrize("low", [-715.0, -742.0, -800.0, -1e5])
def test_positives_too_rare_for_numbers(low: float) -> None:
    logits = torch.tensor([low, low - 0.4, low - 0.9], dtype=torch.float64).reshape(1, 3, 1)
    posterior, likelihood, status = solve("any", logits, torch.ones(1, 1, dtype=torch.long))
    assert not status.any()
    torch.testing.assert_close(posterior, logits.softmax(1), rtol=1e-13, atol=0)
    torch.testing.assert_close(likelihood, logits.logsumexp((1, 2)), rtol=1e-14, atol=0)


@pytest.mark.parametrize("count", [2**32 + 1, 2**32 - 1, -(2**32), 2**40])
def test_counts_beyond_all_bags_are_not_cut_down(count: int) -> None:
    logits = torch.tensor([0.3, -0.2, 1.0], dtype=torch.float64).reshape(1, 3, 1)
    assert solve("counts", logits, torch.tensor([[count]]))[2].item() != 0


@pytest.mark.parametrize("count", [0, 1, 3])
def test_logits_beyond_all_shifts_have_a_status(count: int) -> None:
    logits = torch.tensor([1e305, -1e305, 0.0], dtype=torch.float64).reshape(1, 3, 1)
    assert solve("counts", logits, torch.tensor([[count]]))[2].item() != 0


@pytest.mark.parametrize(("K", "count"), [(64, 37), (512, 300)])
def test_errors_of_equal_logits_do_not_add_up(K: int, count: int) -> None:
    logits = torch.full((1, K, 1), 0.371)
    _, likelihood, status = solve("counts", logits, torch.tensor([[count]]))
    p = torch.sigmoid(logits[0, 0, 0].double())
    expected = torch.distributions.Binomial(K, p).log_prob(torch.tensor(float(count), dtype=torch.float64))
    assert not status.any() and abs(float(likelihood) / float(expected) - 1) < 1e-7


def test_lattices_of_many_bags_go_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    from fastbus.inference.fixed import Lattice, Step
    from fastbus.inference.kernels import lattice

    logits = torch.randn(12, 3, generator=torch.Generator().manual_seed(0)).to(DEVICE)
    weak, sizes = torch.tensor([[2, 1, 0], [1, 1, 1], [0, 3, 0], [0, 1, 2]]).to(DEVICE), torch.full((4,), 3)
    step = Step(torch.arange(12), torch.arange(4), torch.arange(4) * 3, sizes)
    step = Step(*(x.to(DEVICE) for x in step))
    whole = Lattice(weak, sizes, seen=False)
    expected = whole(logits, step)
    monkeypatch.setattr(lattice, "MOST_MESSAGES", 2 * (2 * 4 * whole.points))
    parts = Lattice(weak, sizes, seen=False)
    assert parts.at_once == 2 and whole.at_once > 4
    torch.testing.assert_close(parts(logits, step), expected, rtol=0, atol=0)
    torch.testing.assert_close(expected.sum(1).cpu(), torch.ones(12))


@pytest.mark.parametrize(("K", "C", "classes"), [(600, 10, 3), (130, 100, 3)])
def test_bags_that_no_program_holds_are_left_to_others(K: int, C: int, classes: int) -> None:
    from fastbus.inference.fixed_build import lattice_fits

    weak = torch.zeros(1, C, dtype=torch.long)
    weak[:, :classes] = 1
    assert not lattice_fits(weak, torch.tensor([K]), seen=True)
    assert lattice_fits(weak, torch.tensor([8]), seen=True)


@pytest.mark.parametrize("kind", RULES)
@pytest.mark.parametrize(
    ("values", "weak"),
    [([float("nan"), 0.0], 1), ([0.0, 0.0], 3), ([0.0, 0.0], -2), ([-INF, -INF], 1), ([INF, 0.0], 0)],
)
def test_what_is_unusual_has_a_status(kind: str, values: list[float], weak: int) -> None:
    logits = torch.tensor(values, dtype=torch.float64).reshape(1, 2, 1)
    both = torch.cat([logits, torch.zeros(1, 2, 1, dtype=torch.float64)])
    _, _, status = solve(kind, both, torch.tensor([[weak], [1]]))
    assert (status != 0).tolist() == [True, False]


def test_rows_that_are_not_there_have_a_status() -> None:
    from fastbus.inference.kernels.gpu_counts import solve_counts

    logits, weak = torch.zeros(4, 1, device=DEVICE), torch.ones(2, 1, dtype=torch.long, device=DEVICE)
    starts, sizes = torch.tensor([0, 3], device=DEVICE), torch.tensor([2, 2], device=DEVICE)
    status = solve_counts(logits, starts, sizes, weak, longest=2)[2]
    assert (status != 0).tolist() == [False, True]


@pytest.mark.parametrize(("N", "K", "Y", "Z", "M", "L"), [(5, 4, 2, 3, 1, 1), (6, 5, 3, 8, 1, 5), (3, 4, 2, 17, 3, 1)])
def test_chains_equal_the_plain_ones(N: int, K: int, Y: int, Z: int, M: int, L: int) -> None:
    from fastbus.inference.kernels.gpu_chain import solve_chain

    generator = torch.Generator().manual_seed(Z)
    potential = torch.randn(N, K, Y, generator=generator, dtype=torch.float64)
    table = torch.randint(0, Z + 1, (M, L, Z, Y), generator=generator)
    table[..., 0] = 0  # so that something is always possible
    lengths = torch.randint(1, K + 1, (N,), generator=generator)
    evidence = torch.randn(N, Z, generator=generator, dtype=torch.float64)
    expected, likelihood = solve_plainly(potential, Chain(table, lengths, Ending(evidence)))
    found = [x.cpu() for x in solve_chain(*(x.to(DEVICE) for x in (potential, table, lengths, evidence)))]
    real = torch.arange(K) < lengths[:, None]
    assert not found[2].any()
    assert (found[0][~real] == -INF).all()
    torch.testing.assert_close(found[0].exp()[real], expected.exp()[real], rtol=0, atol=1e-13)
    torch.testing.assert_close(found[1], likelihood, rtol=1e-13, atol=1e-13)


def test_chains_too_improbable_for_linear_space_have_a_status() -> None:
    from fastbus.inference.kernels.gpu_chain import solve_chain

    potential = torch.tensor([0.0, -600.0], dtype=torch.float64).expand(3, 2, 2)
    table = torch.tensor([[0, 1], [1, 2], [2, 3]]).reshape(1, 1, 3, 2)  # counts up to 2
    evidence = torch.eye(3, dtype=torch.float64).log()
    arguments = (potential, table, torch.full((3,), 2), evidence)
    likelihood, status = (x.cpu() for x in solve_chain(*(x.to(DEVICE) for x in arguments))[1:])
    assert (status != 0).tolist() == [False, True, True]
    assert likelihood[0] == 0


@pytest.mark.skipif(not GPU, reason="needs a GPU")
def test_own_rules_take_the_kernel_and_equal_the_cpu() -> None:
    rule = fastbus.Supervision.from_function(lambda labels: sum(labels) % 2, 6)
    logits = torch.randn(9, 6, 1, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    weak = torch.arange(9) % 2
    expected = fastbus.infer(rule, logits, weak, head="sigmoid")
    found = fastbus.infer(rule, logits.cuda(), weak.cuda(), head="sigmoid")
    torch.testing.assert_close(found.labels.cpu(), expected.labels, rtol=0, atol=1e-12)
    torch.testing.assert_close(found.log_likelihood.cpu(), expected.log_likelihood, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("kind", ["label_proportion", "multi_instance"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_lattices_equal_infer(kind: str, dtype: torch.dtype) -> None:
    from fastbus.inference.kernels.lattice import solve_lattice

    sizes = torch.tensor([4, 6, 1])
    labels = torch.tensor([0, 1, 1, 3, 2, 2, 2, 0, 1, 2, 3])
    bag = torch.arange(3).repeat_interleave(sizes)
    weak = torch.zeros(3, 4, dtype=torch.long).index_put_((bag, labels), torch.tensor(1), accumulate=True)
    seen = kind == "multi_instance"
    weak = (weak > 0).long() if seen else weak
    logits = torch.randn(11, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64).to(dtype) * 3
    expected = fastbus.infer(kind, logits.double(), weak, bag_sizes=sizes, coupling="joint")
    arguments = (x.to(DEVICE) for x in (logits, sizes.cumsum(0) - sizes, sizes, weak))
    posterior, likelihood, status = (x.cpu() for x in solve_lattice(*arguments, seen=seen, longest=6))
    tolerance = 1e-12 if dtype == torch.float64 else 1e-7
    assert not status.any() and posterior.dtype == dtype
    assert (posterior.double() - expected.labels).abs().max() < tolerance
    torch.testing.assert_close(likelihood, expected.log_likelihood, rtol=1e-12, atol=1e-12)


def test_lattices_that_are_unusual_have_a_status() -> None:
    from fastbus.inference.kernels.lattice import solve_lattice

    weak = torch.tensor([[1, 1, 0], [2, 1, 0], [-1, 1, 1], [1, 0, 0], [2, 0, 0]])
    logits = torch.zeros(10, 3, dtype=torch.float64)
    logits[9, 1] = float("nan")
    arguments = (x.to(DEVICE) for x in (logits, torch.arange(5) * 2, torch.full((5,), 2), weak))
    status = solve_lattice(*arguments, seen=False, longest=2)[2]
    assert (status != 0).tolist() == [False, True, True, True, True]
