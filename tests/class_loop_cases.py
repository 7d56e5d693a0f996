"""Class loops by plain enumeration: every labelling of every class of a bag, weighed as the definition says."""

from collections.abc import Callable
from itertools import combinations
from typing import Any, NamedTuple

import numpy as np
import torch

import fastbus
from tensors import draws

Said = Callable[[int, int], float]  # P(weak label of class c | W_c = v)


class Truth(NamedTuple):
    """Moments of one bag under the loop, with and without its weak labels."""

    labels: np.ndarray  # (K, C) P(y = 1 | x, w)
    log_likelihood: float
    prior_labels: np.ndarray  # (K, C) the loop's own prior
    pairs: np.ndarray  # (C, C, V, V) P(W_i = v, W_j = u | x, w)
    prior_pairs: np.ndarray


def enumerate_bag(probs: np.ndarray, rule: Callable[[np.ndarray], int], said: Said, log_factor: np.ndarray) -> Truth:
    """Sum over all 2**(K C) labellings of a bag with predictions (K, C)."""
    K, C = probs.shape
    V = log_factor.shape[-1]
    bits = (np.arange(2 ** (K * C))[:, None] >> np.arange(K * C)) & 1
    every = bits.reshape(-1, K, C)
    nodes = np.array([[rule(labels[:, c]) for c in range(C)] for labels in every])
    weight = np.where(every == 1, probs, 1 - probs).prod((1, 2))
    for i, j in combinations(range(C), 2):
        weight = weight * np.exp(log_factor[i, j, nodes[:, i], nodes[:, j]])
    evidence = np.array([np.prod([said(c, v) for c, v in enumerate(row)]) for row in nodes])
    prior = weight / weight.sum()
    joint = prior * evidence
    after = joint / joint.sum()
    hit = nodes[..., None] == np.arange(V)

    def pairs(share: np.ndarray) -> np.ndarray:
        return np.einsum("m,miv,mju->ijvu", share, hit, hit)

    return Truth(
        np.einsum("m,mkc->kc", after, every),
        float(np.log(joint.sum())),
        np.einsum("m,mkc->kc", prior, every),
        pairs(after),
        pairs(prior),
    )


def reported(weak: Any, channel: np.ndarray | None = None) -> Said:
    """A weak label seen through a channel (V, V), exactly without one, not at all if it is -1."""

    def said(c: int, value: int) -> float:
        if int(weak[c]) == -1:
            return 1.0
        return float(value == int(weak[c])) if channel is None else float(channel[value, int(weak[c])])

    return said


def random_factor(C: int, V: int = 2, scale: float = 1.0, seed: int = 0, edges: Any = None) -> torch.Tensor:
    """Log factors (C, C, V, V) of some pairs, of all without `edges`."""
    drawn = scale * draws(C, C, V, V, seed=seed)
    if edges is None:
        return drawn
    kept = torch.zeros(C, C, 1, 1, dtype=torch.float64)
    for i, j in edges:
        kept[min(i, j), max(i, j)] = 1
    return drawn * kept


def infer(logits, weak, loop, rule="multi_instance", **options):
    """`infer` under a sigmoid head, multi-instance unless told otherwise."""
    return fastbus.infer(rule, logits, torch.as_tensor(weak), head="sigmoid", class_loop=loop, **options)


class AtLeastTwo(fastbus.Supervision):
    """A rule of one's own: are there two positives?"""

    def num_states(self, bag_size: int) -> int:
        return 3

    def step(self, state: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
        return (state + label).clamp(max=2)

    def evidence(self, state: torch.Tensor, weak: torch.Tensor) -> torch.Tensor:
        return (state == 2) == weak.bool()
