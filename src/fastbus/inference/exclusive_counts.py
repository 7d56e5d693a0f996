"""How often each of several exclusive classes occurs in a bag, judged together: counts that fill the bag.

The counts n of K independent instances with probabilities p_k(c) are Poisson multinomial,

    P_k(n) = sum_c p_k(c) P_{k-1}(n - e_c),    P_0(0) = 1,

over the lattice of the C(K + C - 1, C - 1) count vectors of sum at most K in the classes but the last, which takes
the rest. Lattices beyond `MOVES`, of two classes beyond `MOVES_OF_TWO`, are not walked; the expected counts are
rounded instead, which of two classes is within one of the mode.
"""

from __future__ import annotations

import math
from functools import lru_cache
from itertools import combinations, pairwise

import torch
from torch import Tensor

from fastbus.inference.memory import turns

MOVES = 200_000  # instances times states times classes that are walked for a bag, about a millisecond or two
MOVES_OF_TWO = 8_100_000  # bags of up to 2,000
TIE = 1e-9  # relative difference below which two probabilities are the same


def exclusive_counts(probs: Tensor) -> Tensor:
    """Counts (b, C) that sum to K, of bags of one size with probabilities (b, K, C).

    The mode where the lattice is small, else rounded means; of equally probable counts, those that put more on the
    earlier classes.
    """
    b, K, C = probs.shape
    if K * math.comb(K + C - 1, C - 1) * C > (MOVES if C > 2 else MOVES_OF_TWO):
        return rounded_counts(probs)
    lattice, before = _lattice(K, C)
    pieces = [_mode(probs[rows].double(), lattice, before) for rows in turns(b, len(lattice) * C)]
    return torch.cat(pieces) if pieces else torch.zeros(0, C, dtype=torch.long)


def rounded_counts(probs: Tensor) -> Tensor:
    """Expected counts, rounded down; the instances left go to the largest remainders, then to earlier classes."""
    K = probs.shape[1]
    expected = probs.double().sum(1)
    expected = expected * (K / expected.sum(-1, keepdim=True))
    counts = expected.floor()
    left = K - counts.sum(-1, keepdim=True)
    remainder = ((expected - counts) / TIE).round()
    order = remainder.argsort(dim=-1, descending=True, stable=True)
    rank = order.argsort(-1)
    return (counts + (rank < left)).long()


def _mode(probs: Tensor, lattice: Tensor, before: Tensor) -> Tensor:
    b, K, _ = probs.shape
    mass = torch.zeros(b, len(lattice) + 1, dtype=probs.dtype)  # the last column stands for no state
    mass[:, 0] = 1
    for position in range(K):
        mass[:, :-1] = (mass[:, before] * probs[:, position, None, :]).sum(-1)
    mass = mass[:, :-1]
    ties = mass >= mass.max(-1, keepdim=True).values * (1 - TIE)
    # lattices are sorted, so that of tied counts the last puts most on the earlier classes
    last = len(lattice) - 1 - ties.flip(-1).long().argmax(-1)
    return lattice[last]


@lru_cache(maxsize=32)
def _lattice(K: int, C: int) -> tuple[Tensor, Tensor]:
    """Sorted counts (S, C) of sum K, and where each came from (S, C): the state with one of that class less, or S."""
    # stars and bars: C - 1 bars among K stars, counts between them; both in lexicographic order
    bars = combinations(range(K + C - 1), C - 1)
    vectors = [tuple(at - left - 1 for left, at in pairwise((-1, *places))) for places in bars]
    place = {vector: at for at, vector in enumerate(vectors)}
    before = []
    for at, vector in enumerate(vectors):
        less = [(*vector[:c], vector[c] - 1, *vector[c + 1 :]) for c in range(C - 1)]
        before.append([*(place.get(other, len(vectors)) for other in less), at])
    first = torch.tensor(vectors, dtype=torch.long).reshape(len(vectors), C - 1)
    return torch.cat([first, K - first.sum(1, keepdim=True)], 1), torch.tensor(before)
