"""Exact chains of coupled problems from any rules: one component a class and rule, states pruned.

Bags whose weak labels are missing for the same classes share a product; missing classes need no
component.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from fastbus.inference.chain import Chain
from fastbus.inference.ending import Ending, SoftEnding
from fastbus.inference.problem import Problem, rule_table
from fastbus.inference.product import Component, Product, multiply
from fastbus.supervision.evidence import Rule


class _Reader(NamedTuple):
    """One component: chain `column` of rule `rule`, and how it reads the class index."""

    rule: Rule
    column: int
    component: Component


def product_chains(problem: Problem) -> Iterator[tuple[Tensor, Chain | None]]:
    """Groups of bags with their chain, or None where the product passes the budget."""
    informed = torch.cat([rule.informed for rule in problem.rules], 1)  # (B, all chains)
    patterns, which = torch.unique(informed, dim=0, return_inverse=True)
    K, C = problem.layout.max_size, problem.num_classes
    tables = [rule_table(rule, K, C) for rule in problem.rules]
    for index, pattern in enumerate(patterns):
        bags = torch.nonzero(which == index).flatten()
        readers = _readers(problem.rules, tables, pattern.tolist(), C)
        longest = int(problem.sizes[bags].max())
        product = multiply([reader.component for reader in readers], longest, problem.budget)
        if product is None:
            yield bags, None
        else:
            ending = _ending(readers, product, bags)
            table = product.table.unsqueeze(0).to(bags.device)
            yield bags, Chain(table, problem.sizes[bags], ending)


def _readers(rules: tuple[Rule, ...], tables: list[Tensor], pattern: list[bool], C: int) -> list[_Reader]:
    readers, at = [], 0
    classes = torch.arange(C)
    for rule, table in zip(rules, tables, strict=True):
        for column in range(rule.observed.shape[1]):
            if pattern[at]:
                mine = rule.positive_class if rule.positive_class is not None else column
                reads = (classes == mine).long() if rule.per_class else classes
                readers.append(_Reader(rule, column, Component(table, reads)))
            at += 1
    if not readers:
        idle = Component(torch.zeros(1, 1, C, dtype=torch.long), classes)
        readers.append(_Reader(rules[0], 0, idle))
    return readers


def _ending(readers: list[_Reader], product: Product, bags: Tensor) -> Ending:
    states = product.states.to(bags.device)
    log_evidence = torch.zeros((), device=bags.device)
    soft = None
    for position, (rule, column, _) in enumerate(readers):
        state = states[:, position]
        log_evidence = log_evidence + rule.log_evidence[bags, column][:, state]
        if rule.soft is not None and bool(rule.soft.active[bags, column].any()):
            target = rule.soft.target[bags, column]
            value = rule.soft.value
            if value is None:
                value = torch.arange(rule.log_evidence.shape[-1], device=bags.device)
            active = rule.soft.active[bags, column]
            soft = SoftEnding(rule.soft.kind, target, active, state[None], value.to(target.dtype))
    return Ending(log_evidence, soft)
