"""Exact chains for bags whose classes exclude each other: lattices of counts or sets, else products of rules.

Bags come in blocks of similar size, each solved at once and within the memory limit.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from fastbus.errors import SupervisionError, where
from fastbus.inference import memory
from fastbus.inference.chain import Chain
from fastbus.inference.joint import lattice_axes, lattice_chain
from fastbus.inference.problem import Problem
from fastbus.inference.product_blocks import product_chains
from fastbus.supervision.evidence import Rule


class Block(NamedTuple):
    """Some bags and the exact chain that solves them."""

    bags: Tensor
    chain: Chain


def joint_blocks(problem: Problem) -> tuple[list[Block], Tensor]:
    """Exact chains for all bags that fit the budget, and the bags (n,) that do not."""
    _check_one_soft_class(problem)
    rules = problem.rules
    if len(rules) == 1 and rules[0].fold in ("count", "any"):
        return _lattice_blocks(problem, rules[0])
    return _product_blocks(problem)


def _check_one_soft_class(problem: Problem) -> None:
    active = [rule.soft.active.sum(1) for rule in problem.rules if rule.soft is not None]
    if not active:
        return
    several = torch.stack(active).sum(0) > 1
    if bool(several.any()):
        raise SupervisionError(
            "distributions over the counts of several classes in one bag; expected one at most under "
            f"a softmax head, since they do not commute; {where(several)}. Read them as virtual "
            'evidence with soft="virtual"; coupling="independent" takes the classes one by one, without map.'
        )


def _lattice_blocks(problem: Problem, rule: Rule) -> tuple[list[Block], Tensor]:
    axes = lattice_axes(rule, problem.sizes)
    fits = axes.log_size <= math.log(problem.budget) + 1e-9
    points = axes.log_size.exp().round().long()
    order = torch.argsort(points, stable=True)
    order = order[fits[order]]
    each = problem.num_classes + problem.layout.max_size
    blocks = [
        Block(bags, lattice_chain(rule, axes, problem.sizes, bags))
        for bags in _by_size(order, points[order].tolist(), each)
    ]
    return blocks, torch.nonzero(~fits).flatten()


def _by_size(order: Tensor, points: list[int], each: int) -> Iterator[Tensor]:
    """Groups of bags with lattices of similar size, each within the memory limit."""
    start = 0
    for end in range(1, len(points) + 1):
        full = end == len(points) or (
            points[end] > 4 * points[start] + 16 or (end + 1 - start) * points[end] * each > memory.LIMIT
        )
        if full:
            yield order[start:end]
            start = end


def _product_blocks(problem: Problem) -> tuple[list[Block], Tensor]:
    blocks, left = [], []
    for bags, chain in product_chains(problem):
        if chain is None:
            left.append(bags)
        else:
            blocks.append(Block(bags, chain))
    nothing = torch.zeros(0, dtype=torch.long, device=problem.sizes.device)
    return blocks, torch.cat([nothing, *left])
