"""Posteriors of fixed shape: weak labels read once, then tensor operations that never wait for the device.

Each class takes the flat logits (M, C) of a step and where its bags lie, and returns targets (M, C); rows outside
of bags get anything. They equal `infer` on the same bags (a test says so).
"""

from __future__ import annotations

from typing import Literal, NamedTuple, Protocol

import torch
from torch import Tensor

from fastbus.numerics import log_complement
from fastbus.supervision.base import Supervision

Coupling = Literal["auto", "independent"]


class Step(NamedTuple):
    """One batch on the device: rows (M,) of the set, and its bags (B,)."""

    rows: Tensor
    bags: Tensor
    starts: Tensor
    sizes: Tensor


class FixedPosterior(Protocol):
    capturable: bool  # whether a CUDA graph may hold it

    def __call__(self, logits: Tensor, step: Step) -> Tensor: ...


class Lattice:
    """Exact counts (B, C), or classes seen (B, C) 0/1, of bags under a softmax head."""

    capturable = True

    def __init__(self, weak: Tensor, sizes: Tensor, *, seen: bool) -> None:
        from fastbus.inference.kernels.lattice import bags_at_once, by_count, lattice_points

        self.weak, self.seen = weak, seen
        self.held, self.names = by_count(weak)
        self.longest = int(sizes.max())
        self.points = int(lattice_points(weak, seen=seen).max())
        self.at_once = bags_at_once(self.longest, self.points, weak.shape[1])
        assert self.at_once, "bags that no program holds are for General"

    def __call__(self, logits: Tensor, step: Step) -> Tensor:
        from fastbus.inference.kernels.lattice import solve_lattice

        order = self.held[step.bags], self.names[step.bags]
        parts = zip(
            *(x.split(self.at_once) for x in (step.starts, step.sizes, *order)),
            strict=True,
        )
        posterior: Tensor | None = None
        for starts, sizes, held, names in parts:  # bags own different rows, all others are zero
            part, *_ = solve_lattice(
                logits,
                starts,
                sizes,
                held,
                seen=self.seen,
                longest=self.longest,
                points=self.points,
                order=(held, names),
            )
            posterior = part if posterior is None else posterior + part
        assert posterior is not None
        return posterior


class OneVsRest:
    """The same weak labels read class by class, as if classes did not exclude each other, then renormalised.

    What the paper and its peers compute; not exact, kept to be compared with.
    """

    capturable = True

    def __init__(self, weak: Tensor, sizes: Tensor, *, seen: bool) -> None:
        self.weak, self.seen = weak, seen
        self.longest = int(sizes.max())

    def __call__(self, logits: Tensor, step: Step) -> Tensor:
        from fastbus.inference.kernels import gpu_any, gpu_counts

        log_prob = torch.log_softmax(logits.double(), 1)
        log_odds = log_prob - log_complement(log_prob)
        solve = gpu_any.solve_any if self.seen else gpu_counts.solve_counts
        q, *_ = solve(log_odds, step.starts, step.sizes, self.weak[step.bags], longest=self.longest)
        return (q / q.sum(1, keepdim=True).clamp(min=torch.finfo(q.dtype).tiny)).float()


class Instances:
    """Evidence about single instances: log P(w | y), (N, C)."""

    capturable = True

    def __init__(self, log_evidence: Tensor) -> None:
        self.log_evidence = log_evidence

    def __call__(self, logits: Tensor, step: Step) -> Tensor:
        return torch.softmax(logits.double() + self.log_evidence[step.rows], 1).float()


class Pairs:
    """Two instances of two classes: weights of the four labellings (0,0), (0,1), (1,0), (1,1).

    weights (B, 4): P(w | labelling). `target` (B,) sets the probability that both agree instead (Jeffrey's rule),
    `difference` (B,) the mean of second minus first, by the nearest distribution that has it; NaN where missing.
    """

    capturable = True

    def __init__(
        self, weights: Tensor | None = None, target: Tensor | None = None, difference: Tensor | None = None
    ) -> None:
        self.weights, self.target, self.difference = weights, target, difference

    def __call__(self, logits: Tensor, step: Step) -> Tensor:
        B = len(logits) // 2  # a row may be left over
        bags = step.bags[:B]
        p = torch.softmax(logits[: 2 * B].double(), 1).reshape(B, 2, 2)  # (B, first or second, class)
        joint = (p[:, 0, :, None] * p[:, 1, None, :]).flatten(1)  # (B, 4)
        tiny, zero = torch.finfo(torch.float64).tiny, torch.zeros_like(joint[:, 0])
        if self.target is not None:
            same = self.target[bags].double()[:, None]
            agree = torch.stack([joint[:, 0], zero, zero, joint[:, 3]], 1)
            differ = joint - agree
            told = same * agree / agree.sum(1, keepdim=True).clamp(min=tiny)
            told = told + (1 - same) * differ / differ.sum(1, keepdim=True).clamp(min=tiny)
            joint = torch.where(same.isnan(), joint, told)
        elif self.difference is not None:
            d = self.difference[bags].double()
            up, down = joint[:, 1], joint[:, 2]
            even = joint[:, 0] + joint[:, 3]
            # the positive root of (1 - d) up t^2 - d even t - (1 + d) down = 0, without cancellation
            root = torch.sqrt((d * even) ** 2 + 4 * (1 - d * d) * up * down)
            rise = (d * even + root) / (2 * (1 - d) * up).clamp(min=tiny)
            fall = 2 * (1 + d) * down / (root - d * even).clamp(min=tiny)
            t = torch.where(d.isnan(), 1.0, torch.where(d > 0, rise, fall))
            joint = joint * torch.stack([torch.ones_like(t), t, 1 / t.clamp(min=tiny), torch.ones_like(t)], 1)
        else:
            assert self.weights is not None
            joint = joint * self.weights[bags]
        joint = joint / joint.sum(1, keepdim=True).clamp(min=tiny)
        first, second = joint[:, 2] + joint[:, 3], joint[:, 1] + joint[:, 3]
        positive = torch.nn.functional.pad(torch.stack([first, second], 1).reshape(-1), (0, len(logits) - 2 * B))
        return torch.stack([1 - positive, positive], 1).float()


class KnownShare:
    """Positives (N,) among instances whose mean is known: the nearest distribution with `prior` (N,) as its mean.

    Instances of one set share a prior; rows of a step are solved set by set, `sets` (N,) says which, LABELLED for
    known positives and UNKNOWN for those that belong to no set. The shift of all log odds is found by damped Newton
    steps, a fixed number of them.
    """

    capturable = True

    def __init__(self, sets: Tensor, priors: Tensor) -> None:
        self.sets, self.priors = sets, priors

    def __call__(self, logits: Tensor, step: Step) -> Tensor:
        x = (logits[:, 1] - logits[:, 0]).double()
        member = self.sets[step.rows][:, None] == torch.arange(len(self.priors), device=x.device)  # (M, S)
        weight = member.double()
        wanted = self.priors.double() * weight.sum(0)
        theta = torch.zeros_like(wanted)
        for _ in range(NEWTON_STEPS):
            p = torch.sigmoid(x[:, None] + theta) * weight
            slope = (p * (1 - p)).sum(0).clamp(min=1e-12)
            theta = theta - ((p.sum(0) - wanted) / slope).clamp(-2.0, 2.0)
        positive = torch.sigmoid(x + (weight * theta).sum(1))
        positive = torch.where(self.sets[step.rows] == LABELLED, 1.0, positive)
        return torch.stack([1 - positive, positive], 1).float()


NEWTON_STEPS = 24
LABELLED, UNKNOWN = -1, -2


class General:
    """Any supervision, through `infer` itself: waits for the device, so that it cannot be captured."""

    capturable = False

    def __init__(self, supervision: Supervision, weak: Tensor, coupling: Coupling = "auto") -> None:
        self.supervision, self.weak, self.coupling = supervision, weak, coupling

    def __call__(self, logits: Tensor, step: Step) -> Tensor:
        from fastbus.inference.infer import infer

        filled = step.sizes > 0
        sizes, bags = step.sizes[filled], step.bags[filled]
        rows = int(sizes.sum())
        weak = self.weak[step.rows[:rows]] if self.supervision.level == "instance" else self.weak[bags]
        found = infer(self.supervision, logits[:rows], weak, bag_sizes=sizes, coupling=self.coupling, validate=False)
        return torch.cat([found.labels.float(), logits.new_zeros(len(logits) - rows, logits.shape[1])])
