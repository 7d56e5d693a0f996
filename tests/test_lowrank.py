"""Low-rank messages: all states are exact, fewer lose what enumeration says they lose, and it is reported."""

import itertools

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import fastbus
from catalogue import CASES, infer, prior_of, random_batch
from fastbus import ImpossibleError, InputError, LabelProportion, MultiInstance
from fastbus.errors import CouplingError
from fastbus.inference.chain import Chain, solve_chain
from fastbus.inference.ending import Ending
from fastbus.inference.lowrank import dense_factors, solve_dense, truncate
from fastbus.inference.partition import partition
from tensors import close, draws, leaf

MIXED = "multi_instance & positive_unlabeled-softmax2"  # rules of one class and of all classes under a softmax head
CHAINS = sorted(set(CASES) - {MIXED})
HARD = ["multi_instance-sigmoid2", "label_proportion-noise-sigmoid1", "pair_comparison-sorted-sigmoid1"]
HARD += ["at_least-sigmoid1", "last_positive-sigmoid1", "pair_similarity-softmax3"]


def whole(case, batch):
    """One chain a class with all states: exact, or the one-vs-rest chains of coupled classes."""
    try:
        return infer(case, batch, coupling="independent")
    except CouplingError:
        return infer(case, batch)


class Numbers(TorchDispatchMode):
    """Counts the numbers that operations put out."""

    def __init__(self):
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        out = function(*args, **(kwargs or {}))
        self.count += sum(x.numel() for x in tree_leaves(out) if isinstance(x, torch.Tensor))
        return out


def numbers(function, *arguments):
    with Numbers() as seen:
        function(*arguments)
    return seen.count


def counting_chain(N, K):
    """Counts 0..K with random evidence, and potentials (N, K, 2)."""
    states = torch.arange(K + 1)
    table = (states[:, None] + torch.arange(2)).clamp(max=K + 1)[None, None]
    u = torch.log_softmax(draws(N, K, 2), -1)
    return u, Chain(table, torch.full((N,), K), Ending(draws(N, K + 1, seed=1)))


@pytest.mark.parametrize("name", CHAINS)
def test_all_states_are_exact(name):
    case = CASES[name]
    batch = random_batch(case)
    got, expected = infer(case, batch, rank=64), whole(case, batch)
    close(got.labels, expected.labels)
    close(got.log_likelihood, expected.log_likelihood)
    assert got.exact == expected.exact
    assert got.likelihood == expected.likelihood


@pytest.mark.parametrize("name", HARD)
@pytest.mark.parametrize("rank", range(2, 7))
def test_a_cut_drops_exactly_the_labellings_that_pass_a_dropped_state(name, rank):
    case = CASES[name]
    batch = random_batch(case, bags=3)
    B, _, C = batch.logits.shape
    softmax = case.head == "softmax"
    for bag in range(B):
        size = int(batch.mask[bag].sum())
        chains = 1 if softmax else C
        expected = torch.zeros(size, C, dtype=torch.float64)
        total, possible = 0.0, True
        for chain in range(chains):
            mass, labels = enumerated(case, batch, bag, chain, size, rank)
            possible &= mass > 0
            if mass > 0:
                total += mass.log()
                expected[:, slice(None) if softmax else chain] = labels / mass
        given = batch.logits[bag : bag + 1, :size], batch.weak[bag : bag + 1]
        if not possible:
            with pytest.raises(ImpossibleError, match=f"rank={rank} drops every state"):
                fastbus.infer(case.supervision, *given, head=case.head, rank=rank)
            continue
        post = fastbus.infer(case.supervision, *given, head=case.head, rank=rank)
        close(post.labels[0], expected, 1e-11)
        close(post.log_likelihood[0], total, 1e-11)


def enumerated(case, batch, bag, chain, size, rank):
    """P(w, states below the rank), and with every label: (size, C), of positives for binary labels."""
    softmax = case.head == "softmax"
    Y = case.classes if softmax else 2
    rule = case.supervision
    Z = rule.num_states(size, Y) if softmax else rule.num_states(size)
    weak = batch.weak[bag] if batch.weak.dim() == 1 else batch.weak[bag, chain]
    evidence = rule.evidence(torch.arange(Z), weak[None]).double().reshape(-1)
    prior = prior_of(case, batch.logits[bag])[:size]
    mass = torch.zeros((), dtype=torch.float64)
    labels = torch.zeros(size, case.classes, dtype=torch.float64) if softmax else torch.zeros(size, dtype=torch.float64)
    for combination in itertools.product(range(Y), repeat=size):
        state, weight, kept = torch.tensor(0), torch.ones((), dtype=torch.float64), True
        for k, label in enumerate(combination):
            position = {"position": k} if "position" in rule.step.__code__.co_varnames else {}
            state = rule.step(state, torch.tensor(label), **position)
            kept &= int(state) < rank
            p = prior[k, label] if softmax else prior[k, chain]
            weight = weight * (p if softmax or label else 1 - p)
        if kept:
            weight = weight * evidence[state]
            mass = mass + weight
            for k, label in enumerate(combination):
                if softmax:
                    labels[k, label] += weight
                elif label:
                    labels[k] += weight
    return mass, labels


@pytest.mark.parametrize("rank", [1, 3, 6, 9])
def test_dense_and_sparse_factors_agree(rank):
    u, chain = counting_chain(3, 8)
    chain = chain._replace(lengths=torch.tensor([8, 5, 1]))
    cut = truncate(chain, rank)
    sparse = partition(u, cut.lengths, cut, solve_chain, solve_chain)
    dense = solve_dense(u, chain, rank)
    close(dense[0].exp(), sparse[0].exp())
    close(dense[1], sparse[1])


def test_the_factors_multiply_to_the_transition_matrix():
    """T[(y', z'), (y, z)] = p(y') 1[z' = step(z, y')], for every state, label and next pair."""
    Z, p = 3, torch.tensor([0.7, 0.3])
    table = (torch.arange(Z)[:, None] + torch.arange(2)).clamp(max=Z - 1)[None, None]  # "at least two"
    entries, forget = dense_factors(table, Z)
    U = (entries[0, 0] * p[:, None, None]).reshape(2 * Z, Z)
    T = U @ forget.reshape(Z, 2 * Z)
    for y2, z2, y, z in itertools.product(range(2), range(Z), range(2), range(Z)):
        expected = p[y2] if z2 == min(z + y2, Z - 1) else 0.0
        assert T[y2 * Z + z2, y * Z + z] == expected
    assert torch.linalg.matrix_rank(T) == Z


def test_counts_lose_nothing_at_one_more_than_the_largest():
    logits = draws(2, 9, 3)
    weak = torch.tensor([[1, 4, 0], [2, 2, 3]])
    rank = fastbus.lossless_rank(LabelProportion(), logits, weak, head="sigmoid")
    assert rank == 5
    cut = fastbus.infer(LabelProportion(), logits, weak, head="sigmoid", rank=rank)
    exact = fastbus.infer(LabelProportion(), logits, weak, head="sigmoid")
    assert cut.exact
    close(cut.labels, exact.labels)
    close(cut.log_likelihood, exact.log_likelihood)
    # one less, and the second class of the first bag has no state to end in
    with pytest.raises(ImpossibleError, match=r"rank=4 drops .* expected a rank of at least 5; bag 0\. Pass rank=5"):
        fastbus.infer(LabelProportion(), logits, weak, head="sigmoid", rank=4)


@pytest.mark.parametrize(
    ("supervision", "weak", "rank"),
    [
        (LabelProportion(noise={-1: 0.1, 0: 0.8, 1: 0.1}), [2], 4),
        (LabelProportion("interval"), [[1, 3]], 4),
        (MultiInstance(), [0], 1),
        (MultiInstance(), [1], 2),
        (MultiInstance(noise=(0.1, 0.2)), [0], 2),
        (fastbus.Supervision.from_function(lambda y: sum(y) % 2, 6), [1], 2),
    ],
)
def test_the_lossless_rank_follows_the_evidence(supervision, weak, rank):
    logits = draws(1, 6, 1)
    given = (supervision, logits, torch.tensor(weak))
    assert fastbus.lossless_rank(*given, head="sigmoid") == rank
    close(
        fastbus.infer(*given, head="sigmoid", rank=rank).labels,
        fastbus.infer(*given, head="sigmoid").labels,
    )


def test_errors_are_reported_and_shrink_with_the_rank():
    logits = draws(4, 10, 2)
    weak = torch.tensor([[2, 3], [1, 4], [3, 3], [2, 2]])
    noisy = LabelProportion(noise={-2: 0.1, -1: 0.2, 0: 0.4, 1: 0.2, 2: 0.1})
    reports = [fastbus.rank_error(noisy, logits, weak, rank, head="sigmoid") for rank in range(4, 12)]
    gaps = [report.likelihood_gap for report in reports]
    assert gaps == sorted(gaps, reverse=True)
    assert all(report.lossless_rank == 7 for report in reports)
    assert [report.exact for report in reports] == [report.rank >= 7 for report in reports]
    for report in reports:
        assert (report.largest < 1e-12) == report.exact
        assert report.mean <= report.largest
    assert reports[0].mean > reports[1].mean > reports[2].mean > 1e-4


def test_a_report_is_the_difference_of_two_answers():
    logits, weak = draws(2, 5, 3), torch.tensor([[2, 1, 2], [1, 3, 1]])
    exact = fastbus.infer(LabelProportion(), logits, weak)
    cut = fastbus.infer(LabelProportion(), logits, weak, rank=4)
    report = fastbus.rank_error(LabelProportion(), logits, weak, 4)
    assert report.largest == pytest.approx(float((cut.labels - exact.labels).abs().max()), abs=1e-12)
    # the rank itself loses nothing here: all of the error is that of one-vs-rest chains
    assert fastbus.rank_error(LabelProportion(), logits, weak, 4, coupling="independent").largest < 1e-12
    assert cut.coupling == ["independent"] * 2
    assert not cut.exact


def test_a_soft_statement_keeps_to_the_states_that_are_left():
    logits = draws(1, 4, 1)
    target = torch.tensor([[0.1, 0.4, 0.3, 0.2, 0.0]], dtype=torch.float64)
    inside = target.clone()
    inside[:, 3:] = 0
    soft = LabelProportion("soft")
    cut = fastbus.infer(soft, logits, target, head="sigmoid", rank=3)
    expected = fastbus.infer(soft, logits, inside / inside.sum(), head="sigmoid")
    close(cut.labels, expected.labels)
    close(cut.log_likelihood, expected.log_likelihood)
    assert not cut.exact
    assert cut.likelihood == "truncated"
    assert fastbus.lossless_rank(soft, logits, target, head="sigmoid") == 4


def test_the_gradient_is_that_of_the_cut_likelihood():
    noisy = LabelProportion(noise={-1: 0.2, 0: 0.6, 1: 0.2})
    weak = torch.tensor([2, 1])

    def answer(logits):
        post = fastbus.infer(noisy, logits, weak, head="sigmoid", rank=3)
        return post.log_likelihood, post.labels

    logits = leaf(draws(2, 4, 1))
    assert torch.autograd.gradcheck(answer, logits)
    likelihood, q = answer(logits)
    (gradient,) = torch.autograd.grad(likelihood.sum(), logits)
    close(gradient, (q - logits.sigmoid()).detach())


def test_a_loss_takes_a_rank():
    logits, weak = draws(2, 6, 2), torch.tensor([[1, 2], [3, 0]])
    got, expected = (
        fastbus.WeakLoss("label_proportion", head="sigmoid", rank=rank)(logits, weak) for rank in (4, None)
    )
    close(got, expected)


def test_cost_is_linear_in_labels_and_states_with_sparse_factors():
    def sparse(K, rank):
        u, chain = counting_chain(2, K)
        return numbers(lambda: solve_chain(u, truncate(chain, rank)))

    def dense(K, rank):
        u, chain = counting_chain(2, K)
        return numbers(lambda: solve_dense(u, chain, rank))

    assert sparse(128, 16) / sparse(64, 16) < 2.2
    assert sparse(64, 32) / sparse(64, 16) < 2.2
    assert dense(64, 32) / dense(64, 16) > 3


@pytest.mark.parametrize("rank", [0, -1, 2.0, True, "3"])
def test_a_rank_that_is_none_is_refused(rank):
    with pytest.raises(InputError, match="expected an integer from 1, or None"):
        fastbus.infer("multi_instance", draws(1, 2, 2), torch.tensor([[1, 1]]), rank=rank)


def test_joint_couplings_have_no_rank():
    with pytest.raises(CouplingError, match='rank=2 with coupling="joint"'):
        fastbus.infer("multi_instance", draws(1, 2, 2), torch.tensor([[1, 1]]), rank=2, coupling="joint")
    case = CASES[MIXED]
    with pytest.raises(CouplingError, match="expected rules that read one class at a time"):
        infer(case, random_batch(case), rank=2)


def test_contradictions_are_not_blamed_on_the_rank():
    logits = torch.tensor([[[float("-inf")], [float("-inf")]]], dtype=torch.float64)
    with pytest.raises(ImpossibleError, match="predictions of probability 0"):
        fastbus.infer("label_proportion", logits, torch.tensor([1]), head="sigmoid", rank=1)
