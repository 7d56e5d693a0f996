"""The answer of inference: what is known about every label once the weak labels are taken in."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor

from fastbus.bag_layout import BagLayout
from fastbus.errors import CouplingError, InputError, name_bags
from fastbus.inference.assign import assign_counts, assign_seen
from fastbus.inference.blocks import Block, joint_blocks
from fastbus.inference.chain import Chain
from fastbus.inference.decode import draw, most_probable
from fastbus.inference.memory import turns
from fastbus.inference.problem import Problem, chain_of_rules
from fastbus.inference.tilt import exact_counts
from fastbus.numerics import NEG_INF

# what the likelihood of each coupling is, where it is not exact
LIKELIHOODS = {
    "loop": "bethe",
    "tilted": "composite",
    "independent": "composite",
    "joint": "exact",
    "lowrank": "truncated",
    "evolution": "learned",
    "class_loop": "bethe",
    "class_transition": "composite",
}


@dataclass(frozen=True)
class Posterior:
    """P(labels | predictions, weak labels) of a batch of bags.

    labels: P(y_kc = 1 | x, w) in the shape of the predictions, zeros where masked.
    log_likelihood: log P(w | x) of each bag (B,), summed over its classes.
    coupling: how each bag was solved. exact_bags: whether its numbers are exact.
    converged: False where an iterative coupling stopped early. ignored: bags whose evidence was
        dropped.
    informed: the entries of `labels` that carry evidence.
    loop_deltas: with a class loop, the largest change of a message in each sweep, (sweeps, B).
    """

    labels: Tensor
    log_likelihood: Tensor
    exact_bags: Tensor
    converged: Tensor
    ignored: Tensor
    informed: Tensor
    coupling: list[str]
    bag_weight: Tensor | None = None
    loop_deltas: Tensor | None = None
    _source: Problem | Callable[[], Problem] = field(repr=False, kw_only=True)  # or how to read it again
    _asked: BagLayout | None = field(default=None, repr=False, kw_only=True)  # if the problem holds more

    @cached_property
    def _problem(self) -> Problem:
        """What was solved. The fast paths never state it, so it is read when it is asked for."""
        return self._source if isinstance(self._source, Problem) else self._source()

    @property
    def exact(self) -> bool:
        """Whether every bag was solved exactly."""
        return bool(self.exact_bags.all())

    @property
    def likelihood(self) -> str:
        """What `log_likelihood` is, "mixed" if bags differ: exact, composite, bethe, truncated or learned."""
        kinds = set(likelihood_kinds(self.exact_bags, self.coupling))
        return kinds.pop() if len(kinds) == 1 else "mixed"

    def map(self) -> Tensor:
        """A most probable labelling that satisfies the weak labels; -1 where masked.

        Class indices (B, K) for softmax heads, 0/1 (B, K, C) for sigmoid heads; flat like the
        input.
        """
        left = self._blocks[1]
        pieces = self._decoded(most_probable)
        if len(left):
            pieces.append((left, self._assigned(left)))
        return self._restore(self._gather(pieces))

    def sample(self, n: int, generator: torch.Generator | None = None) -> Tensor:
        """n exact samples of the labelling, with a leading axis n; the global RNG is left alone."""
        if isinstance(n, bool) or not isinstance(n, int) or n < 1:
            raise InputError(f"n={n!r}; expected an integer from 1. Give a number of samples.")
        left = self._blocks[1]
        if len(left):
            raise CouplingError(
                f"samples of bags beyond the budget of {self._problem.budget} states; expected bags "
                f"that the joint lattice solves; {name_bags(left, self._problem.layout.num_bags)}. "
                "Raise budget= in infer."
            )
        if generator is None:
            generator = torch.Generator()
            generator.seed()
        source = generator
        return self._restore(
            self._gather(self._decoded(lambda u, chain: draw(u, chain, n, source).movedim(0, -1)))
        ).movedim(-1, 0)

    def _decoded(self, decode: Callable[[Tensor, Chain], Tensor]) -> list[tuple[Tensor, Tensor]]:
        """Labellings (N, K, ...) of every block, within the memory limit."""
        pieces = []
        for bags, u, chain in self._blocks[0]:
            each = chain.num_states * (u.shape[1] + u.shape[2])
            parts = [decode(u[rows], chain.rows(rows)) for rows in turns(len(u), each)]
            pieces.append((bags, torch.cat(parts)))
        return pieces

    @cached_property
    def _blocks(self) -> tuple[list[tuple[Tensor, Tensor, Chain]], Tensor]:
        """Exact chains with their potentials, and the bags that have none."""
        tied = {"class_loop", "class_transition"} & set(self.coupling)
        if tied:
            raise CouplingError(
                f"whole labellings under a {tied.pop()}; expected classes that are independent of each other. Read the "
                "marginals in post.labels, or call infer without class_loop."
            )
        problem = self._problem
        u = problem.log_potential.detach()
        everything = torch.arange(len(problem.sizes), device=u.device)
        if problem.view == "coupled":
            blocks, left = joint_blocks(problem)
            return [(bags, u[bags], chain) for bags, chain in map(_pair, blocks)], left
        groups = u.shape[2] if problem.view == "binary" else 1
        if problem.view == "binary":
            u = u.transpose(1, 2).flatten(0, 1)
        lengths = problem.sizes.repeat_interleave(groups)
        chain = chain_of_rules(problem.rules, lengths, u.shape[1], u.shape[2], problem.budget)
        assert chain is not None, "inference has solved this chain already"
        return [(everything, u, chain)], everything[:0]

    def _gather(self, pieces: list[tuple[Tensor, Tensor]]) -> Tensor:
        """Labellings (N, K, ...) of groups of chains to compact (B, K, ...), or (B, K, C, ...)."""
        problem = self._problem
        K = problem.layout.max_size
        rest = pieces[0][1].shape[2:]
        if problem.view == "binary" and problem.head == "sigmoid":
            ((_, labels),) = pieces
            return labels.reshape(-1, problem.num_classes, K, *rest).transpose(1, 2)
        out = torch.full((problem.layout.num_bags, K, *rest), -1, device=problem.sizes.device)
        for bags, labels in pieces:
            out[bags] = labels
        return out

    def _restore(self, labels: Tensor) -> Tensor:
        layout = self._asked or self._problem.layout
        return layout.restore(labels[:, : layout.max_size], -1)

    def _assigned(self, bags: Tensor) -> Tensor:
        """Most probable labellings of bags (n,) whose lattice passes the budget."""
        problem = self._problem
        rules = problem.rules
        fold = rules[0].fold if len(rules) == 1 else ""
        support = rules[0].support()[bags]
        informed = rules[0].informed[bags]
        counts, exact = exact_counts(support, informed, problem.sizes[bags])
        certain = (support > NEG_INF).sum(-1) == 1
        solvable = exact if fold == "count" else (certain | ~informed).all(1)
        if fold not in ("count", "any"):
            solvable = torch.zeros_like(solvable)
        if not bool(solvable.all()):
            raise CouplingError(
                "the most probable labelling of a bag beyond the budget is known for exact counts and "
                f"hard multi-instance labels only; expected at most {problem.budget} joint states; "
                f"{name_bags(bags[~solvable], problem.layout.num_bags)}. Raise budget= in infer."
            )
        out = torch.full((len(bags), problem.layout.max_size), -1)
        for row, bag in enumerate(bags.tolist()):
            size = int(problem.sizes[bag])
            u = problem.log_potential[bag, :size].detach().cpu().double().numpy()
            if fold == "count":
                labels = assign_counts(u, counts[row].cpu().numpy())
            else:
                must = (informed[row] & (support[row, :, 0] == NEG_INF)).cpu().numpy()
                banned = (informed[row] & (support[row, :, 1] == NEG_INF)).cpu().numpy()
                labels = assign_seen(u, must, banned)
            out[row, :size] = torch.from_numpy(labels)
        return out.to(bags.device)


def likelihood_kinds(exact_bags: Tensor, coupling: Sequence[str]) -> list[str]:
    """What the log-likelihood of each bag is: exact, composite, bethe, truncated or learned."""
    return [
        "exact" if exact else LIKELIHOODS[route] for exact, route in zip(exact_bags.tolist(), coupling, strict=True)
    ]


def _pair(block: Block) -> tuple[Tensor, Chain]:
    return block.bags, block.chain
