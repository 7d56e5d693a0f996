"""The peers' loops, written anew and corrected: they return the posterior that `infer` returns, at their own pace.

GLWS: bag by bag and class by class, messages as matrix products over states. Count Loss over several classes: bag by
bag and class by class, a recursion over counts number by number. Count Loss as published: the recursion over all
chains at once. The originals hold errors (a wrong label column, P(S <= w) for P(S = w)); these do not.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from fastbus.bench.speed.cells import Inputs

LOG_ZERO = float("-inf")
BELOW = -1e30  # -inf would make gradients NaN


class Peer(NamedTuple):
    """solve(logits (B, K, C), weak (B, C), sizes, seen) -> posterior (B, K, C)."""

    solve: Callable[[Tensor, Tensor, list[int], bool], Tensor]
    steps: Callable[[Inputs], int]  # of its innermost Python loop, from which a run's seconds are foreseen


def message_matrices(logits: Tensor, weak: Tensor, sizes: list[int], seen: bool) -> Tensor:
    """GLWS: forward and backward messages through one matrix of states an instance."""
    posterior = torch.zeros_like(logits)
    for b, size in enumerate(sizes):
        for c in range(logits.shape[2]):
            x = logits[b, :size, c]
            w = int(weak[b, c])
            yes, no = logsigmoid(x), logsigmoid(-x)
            stay, move = _matrices(w, seen, logits)
            ahead = [torch.full((len(stay),), LOG_ZERO).to(x)]
            ahead[0][0] = 0.0
            for k in range(size):
                both = torch.logaddexp(stay + no[k], move + yes[k])
                ahead.append(torch.logsumexp(ahead[-1][:, None] + both, 0))
            back = torch.full((len(stay),), LOG_ZERO).to(x)
            back[w] = 0.0
            for k in reversed(range(size)):
                chosen = torch.logsumexp(ahead[k][:, None] + move + yes[k] + back[None], (0, 1))
                posterior[b, k, c] = torch.exp(chosen - ahead[size][w])
                both = torch.logaddexp(stay + no[k], move + yes[k])
                back = torch.logsumexp(both + back[None], 1)
    return posterior


def _matrices(w: int, seen: bool, like: Tensor) -> tuple[Tensor, Tensor]:
    """(Z, Z) logs of 0 and 1: a negative keeps the state, a positive moves it. Counts above w are dropped."""
    Z = 2 if seen else w + 1
    stay = torch.eye(Z).log().to(like)
    move = torch.diag(torch.ones(Z - 1), 1)
    if seen:
        move[1, 1] = 1.0
    return stay, move.log().to(like)


def count_numbers(logits: Tensor, weak: Tensor, sizes: list[int], seen: bool) -> Tensor:
    """Count Loss over several classes: K(K + 1)/2 sums of two logs a chain, each a call."""
    posterior = torch.zeros_like(logits)
    for b, size in enumerate(sizes):
        for c in range(logits.shape[2]):
            x = logits[b, :size, c].detach().clone().requires_grad_(True)
            yes, no = logsigmoid(x), logsigmoid(-x)
            table = [no[0], yes[0]]
            for k in range(1, size):
                inner = [torch.logaddexp(table[s] + no[k], table[s - 1] + yes[k]) for s in range(1, k + 1)]
                table = [table[0] + no[k], *inner, table[k] + yes[k]]
            positive = torch.stack(table[1:])
            told = bool(weak[b, c] > 0)
            likelihood = (torch.logsumexp(positive, 0) if told else table[0]) if seen else table[int(weak[b, c])]
            (gradient,) = torch.autograd.grad(likelihood, x)
            posterior[b, :size, c] = torch.sigmoid(x.detach()) + gradient
    return posterior


def count_vectors(logits: Tensor, weak: Tensor, sizes: list[int], seen: bool) -> Tensor:
    """Count Loss as published: the table of all chains grows by one count an instance; any positive in closed form."""
    x = logits.detach().clone().requires_grad_(True)
    yes, no = logsigmoid(x), logsigmoid(-x)
    if min(sizes) < max(sizes):
        real = torch.arange(x.shape[1], device=x.device) < torch.tensor(sizes, device=x.device)[:, None]
        yes, no = torch.where(real[..., None], yes, BELOW), torch.where(real[..., None], no, 0.0)
    if seen:
        none = no.sum(1)
        # log(1 - exp(none)) where none is near 0 loses its digits without expm1
        likelihood = torch.where(weak > 0, torch.log(-torch.expm1(none)), none)
    else:
        table = torch.stack([no[:, 0], yes[:, 0]], -1)
        edge = torch.full_like(table[..., :1], BELOW)
        for k in range(1, x.shape[1]):
            stay = torch.cat([table + no[:, k, :, None], edge], -1)
            move = torch.cat([edge, table + yes[:, k, :, None]], -1)
            table = torch.logsumexp(torch.stack([stay, move]), 0)
        likelihood = table.gather(-1, weak[..., None])[..., 0]
    (gradient,) = torch.autograd.grad(likelihood.sum(), x)
    posterior = torch.sigmoid(x.detach()) + gradient
    return posterior if min(sizes) == max(sizes) else torch.where(real[..., None], posterior, 0.0)


def _chains(inputs: Inputs) -> int:
    return int(inputs.sizes.sum()) * inputs.cell.C


def _numbers(inputs: Inputs) -> int:
    return int((inputs.sizes * (inputs.sizes + 1) // 2).sum()) * inputs.cell.C


PEERS = {
    "Count Loss, vectors": Peer(count_vectors, lambda inputs: 0),
    "GLWS loops": Peer(message_matrices, _chains),
    "Count Loss loops": Peer(count_numbers, _numbers),
}
