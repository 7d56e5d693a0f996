"""A batch to solve: predictions and evidence, seen as chains.

Three views of the same engine:
    binary       (B, K, G, 2)  G independent binary labels an instance: sigmoid heads, and binary
                               rules under a softmax head
    categorical  (B, K, C)     one label an instance, rules that read class indices
    coupled      (B, K, C)     one label an instance, rules that read one class at a time
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import torch
from torch import Tensor

from fastbus.bag_layout import BagLayout
from fastbus.inference.chain import Chain
from fastbus.inference.ending import Ending, SoftEnding
from fastbus.inference.product import Component, Product, multiply
from fastbus.supervision.automaton import transition_table
from fastbus.supervision.evidence import Evidence, Rule

View = Literal["binary", "categorical", "coupled"]


@dataclass(frozen=True)
class Problem:
    """Predictions (log probabilities) and all evidence of a batch."""

    layout: BagLayout
    head: str
    num_classes: int
    log_prior: Tensor  # (B, K, C), sigmoid heads (B, K, C, 2)
    evidence: Evidence
    budget: int

    @cached_property
    def view(self) -> View:
        if self.head == "sigmoid":
            return "binary"
        per_class = [rule for rule in self.evidence.rules if rule.per_class]
        if any(rule.positive_class is None for rule in per_class):
            return "coupled"
        return "binary" if per_class else "categorical"

    @property
    def rules(self) -> tuple[Rule, ...]:
        return self.evidence.rules

    @property
    def sizes(self) -> Tensor:
        return self.layout.sizes

    @cached_property
    def log_potential(self) -> Tensor:
        """Predictions times instance evidence, in the shape of the view."""
        potential, instance = self.log_prior, self.evidence.instance
        if self.head == "sigmoid":
            if instance is None:
                return potential
            return potential + (instance if instance.dim() == 4 else instance.unsqueeze(2))
        if instance is not None:
            potential = potential + instance
        return potential.unsqueeze(2) if self.view == "binary" else potential

    @cached_property
    def informed(self) -> Tensor:
        """(B, K, C): the terms of the loss that carry evidence."""
        mask = self.layout.mask[..., None]
        informed = torch.zeros_like(mask)
        observed = self.evidence.instance_observed
        if observed is not None:
            informed = informed | (observed if observed.dim() == 3 else observed[..., None])
        for rule in self.rules:
            said = rule.informed
            if self.view != "binary":
                said = said.any(1, keepdim=True)
            informed = informed | said[:, None, :]
        return (informed & mask).expand(*mask.shape[:2], self.num_classes)


def rule_table(rule: Rule, bag_size: int, num_labels: int) -> Tensor:
    """The rule's table of next states, (L, Z, Y)."""
    Y = 2 if rule.per_class else num_labels
    return transition_table(rule.supervision, bag_size, rule.log_evidence.shape[-1], Y)


def chain_of_rules(
    rules: tuple[Rule, ...], lengths: Tensor, bag_size: int, num_labels: int, budget: int
) -> Chain | None:
    """Rules that all read the same label, as one chain a (bag, chain) pair; None beyond the budget.

    Chains are numbered bag by bag: N = B * G, with `lengths` (N,).
    """
    device = lengths.device
    if not rules:
        table = torch.zeros(1, 1, 1, num_labels, dtype=torch.long, device=device)
        nothing = torch.zeros(lengths.shape[0], 1, dtype=torch.float64, device=device)
        return Chain(table, lengths, Ending(nothing))
    tables = [rule_table(rule, bag_size, num_labels) for rule in rules]
    if len(rules) == 1:
        return Chain(tables[0].unsqueeze(0).to(device), lengths, rule_ending(rules[0]))
    same = torch.arange(num_labels)
    product = multiply([Component(table, same) for table in tables], bag_size, budget)
    if product is None:
        return None
    ending = _product_ending(rules, product, device)
    return Chain(product.table.unsqueeze(0).to(device), lengths, ending)


def rule_ending(rule: Rule) -> Ending:
    """The ending of one rule's chains, (B * G, Z)."""
    log_evidence = rule.log_evidence.flatten(0, 1)
    Z = log_evidence.shape[-1]
    return Ending(log_evidence, _soft_ending(rule, torch.arange(Z, device=log_evidence.device)))


def _product_ending(rules: tuple[Rule, ...], product: Product, device: torch.device) -> Ending:
    states = product.states.to(device)
    total = torch.zeros((), device=device)
    soft = None
    for column, rule in enumerate(rules):
        total = total + rule.log_evidence.flatten(0, 1)[:, states[:, column]]
        if rule.soft is not None:
            soft = _soft_ending(rule, states[:, column])
    return Ending(total, soft)


def _soft_ending(rule: Rule, group: Tensor) -> SoftEnding | None:
    soft = rule.soft
    if soft is None or not bool(soft.active.any()):
        return None
    target = soft.target.flatten(0, 1)
    value = soft.value
    if value is None:
        value = torch.arange(rule.log_evidence.shape[-1], device=group.device)
    return SoftEnding(soft.kind, target, soft.active.flatten(), group[None], value.to(target.dtype))
