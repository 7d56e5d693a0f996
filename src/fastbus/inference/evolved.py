"""Messages with learned labels: chains whose label distribution depends on the state they are in.

    alpha_k(z') = sum over (z, y) with next(z, y) = z' of alpha_{k-1}(z) u_k(y | z) e_k(y)
    posterior_k(y) ~ sum_z alpha_{k-1}(z) u_k(y | z) e_k(y) beta_k(next(z, y))

u is what `StateEvolution` returns, e the instance evidence. O(K Z Y) a chain; plain autograd, at most
8 N K Z Y + 8 N K (Z + Y) numbers kept for N chains.

Supervisions without a rule (partial, complementary, noisy, crowd, gold labels) have no bag to run over. Under a
softmax head their chain runs over the C categories of one instance and decides each: state 0 "undecided", 1 "decided",
u_c(1 | 0) = p_c / (p_c + .. + p_C), u_c(1 | 1) = 0, and the last category is taken if no other was. That is the
predicted distribution again, so a fresh module returns exact inference; a trained one learns the hazards.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fastbus.errors import InputError
from fastbus.inference.chain import Chain, look_ahead, start_message
from fastbus.inference.couple import Coupled
from fastbus.inference.ending import Ending, close
from fastbus.inference.evolution import StateEvolution
from fastbus.inference.lowrank import truncate
from fastbus.inference.per_chain import chain_of_problem, check_chains, solve_chains
from fastbus.inference.problem import Problem
from fastbus.inference.solution import Solution
from fastbus.numerics import NEG_INF, log_softmax, logaddexp, logsumexp, scatter_logsumexp


def solve_evolved(log_edges: Tensor, chain: Chain) -> tuple[Tensor, Tensor]:
    """Log posterior (N, K, Y), -inf at padding, and log-likelihood (N,) of chains with log u + log e (N, K, Z, Y)."""
    N, K, Z, Y = log_edges.shape
    real = torch.arange(K, device=chain.lengths.device) < chain.lengths[:, None]  # (N, K)
    # cut up at once: the gradient of every single position would be as large as all of them
    steps = log_edges.unbind(1)
    alpha = [start_message(log_edges, Z)]
    for k in range(K):
        edges = (alpha[-1][:, :, None] + steps[k]).reshape(N, -1)
        arrived = scatter_logsumexp(edges, chain.moves(k, N), Z + 1)[:, :Z]
        alpha.append(torch.where(real[:, k, None], arrived, alpha[-1]))
    beta, log_likelihood = close(alpha[-1], chain.ending)
    onward: list[Tensor] = []
    for k in reversed(range(K)):
        onward.append(steps[k] + look_ahead(beta, chain.moves(k, N), Y))
        beta = torch.where(real[:, k, None], logsumexp(onward[-1], -1), beta)
    # all positions at once: a GPU waits longer for a small kernel to start than for it to end
    through = torch.stack(alpha[:K], 1)[..., None] + torch.stack(onward[::-1], 1)
    log_posterior = log_softmax(logsumexp(through, 2), -1)
    return log_posterior.masked_fill(~real[..., None], NEG_INF), log_likelihood


def solve_learned(
    problem: Problem, coupling: str, rank: int | None, evolution: StateEvolution, features: Tensor
) -> Coupled:
    """Every bag with the module's label distributions."""
    check_chains(problem, coupling, "evolution=")
    over_categories = problem.view == "categorical" and not problem.rules
    if over_categories != (evolution.along == "categories"):
        wanted = "categories" if over_categories else "instances"
        raise InputError(
            f"an evolution along {evolution.along}; expected along={wanted!r} for "
            f"{' & '.join(problem.evidence.names)} with a {problem.head} head. Build it with build_evolution."
        )
    solve = _over_categories if over_categories else _over_instances
    solution = solve(problem, rank, evolution, features)
    B = len(problem.sizes)
    return Coupled(solution, ["evolution"] * B, torch.zeros(B, dtype=torch.bool, device=problem.sizes.device))


def _over_instances(problem: Problem, rank: int | None, evolution: StateEvolution, features: Tensor) -> Solution:
    chain = chain_of_problem(problem)
    if rank is not None:
        chain = truncate(chain, rank)
    Z, mask = chain.num_states, problem.layout.mask

    def chains(prior: Tensor, instance: Tensor | None) -> tuple[Tensor, Tensor]:
        B, K, G, Y = prior.shape
        edges = evolution.log_labels(prior.unsqueeze(3).expand(B, K, G, Z, Y), features, mask)
        if instance is not None:
            edges = edges + instance.unsqueeze(3)
        log_posterior, likelihood = solve_evolved(edges.transpose(1, 2).reshape(B * G, K, Z, Y), chain)
        return log_posterior.reshape(B, G, K, Y).transpose(1, 2), likelihood.reshape(B, G)

    return solve_chains(problem, chains)


def _over_categories(problem: Problem, rank: int | None, evolution: StateEvolution, features: Tensor) -> Solution:
    mask = problem.layout.mask
    B, K, C = problem.log_prior.shape

    def packed(x: Tensor) -> Tensor:
        """Real instances in a row; bags of one have no others, and looking for them would wait for the device."""
        return x[:, 0] if K == 1 else x[mask]

    base = category_labels(packed(problem.log_prior)).unsqueeze(1)  # (n, 1, C, 2, 2)
    n = len(base)
    alone = torch.ones(n, 1, dtype=torch.bool, device=mask.device)
    edges = evolution.log_labels(base, packed(features).unsqueeze(1), alone).squeeze(1)
    instance = problem.evidence.instance
    if instance is not None:
        taken = packed(instance.expand(B, K, C))
        edges = edges + torch.stack([torch.zeros_like(taken), taken], -1).unsqueeze(2)
    log_posterior, likelihood = solve_evolved(edges, category_chain(n, C, edges))
    converged = torch.ones_like(problem.sizes, dtype=torch.bool)
    if K == 1:
        return Solution(log_posterior[..., 1].unsqueeze(1), likelihood, converged)
    whole = problem.log_prior.new_full((B, K, C), NEG_INF).index_put((mask,), log_posterior[..., 1])
    total = problem.log_prior.new_zeros(B, K).index_put((mask,), likelihood).sum(1)
    return Solution(whole, total, converged)


def category_chain(n: int, C: int, like: Tensor) -> Chain:
    """Exactly one of C categories is taken: state 0 undecided, 1 decided, a second one forbidden."""
    table = torch.tensor([[0, 1], [1, 2]], device=like.device)[None, None]
    decided = like.new_tensor([NEG_INF, 0.0]).expand(n, 2)
    return Chain(table, torch.full((n,), C, device=like.device), Ending(decided))


def category_labels(log_prob: Tensor) -> Tensor:
    """u_c(y | z) in logs, (n, C, 2, 2), of the distribution (n, C): the chance of each category if none came before."""
    *before, last = log_prob.unbind(1)
    tails = [last]
    for category in reversed(before):
        tails.append(logaddexp(category, tails[-1]))
    tail = torch.stack(tails[::-1], 1)
    after = torch.cat([tail[:, 1:], torch.full_like(tail[:, :1], NEG_INF)], 1)
    # where nothing is left, no path arrives: any distribution will do
    spent = tail == NEG_INF
    norm = tail.masked_fill(spent, 0.0)
    skip, take = after - norm, log_prob - norm
    undecided = torch.stack([skip.masked_fill(spent, 0.0), take], -1)
    decided = torch.stack([torch.zeros_like(take), torch.full_like(take, NEG_INF)], -1)
    return torch.stack([undecided, decided], 2)
