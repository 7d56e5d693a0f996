"""The fixed posterior that fits a supervision and its weak labels: a kernel where there is one, `infer` elsewhere."""

from __future__ import annotations

import torch
from torch import Tensor

from fastbus.bag_layout import layout_of
from fastbus.inference.fixed import (
    LABELLED,
    UNKNOWN,
    Coupling,
    FixedPosterior,
    General,
    Instances,
    KnownShare,
    Lattice,
    OneVsRest,
    Pairs,
)
from fastbus.numerics import message_dtype
from fastbus.supervision.aggregate import LabelProportion, MultiInstance
from fastbus.supervision.base import Supervision, takes_position
from fastbus.supervision.evidence import Evidence
from fastbus.supervision.incomplete import PositiveUnlabeled, UnlabeledUnlabeled
from fastbus.supervision.pairwise import ConfidenceDifference, SimilarityConfidence
from fastbus.supervision.reading import WeakReader

LATTICE_POINTS = 1 << 16  # a bag beyond is solved by a fallback of `infer`


def fixed_posterior(
    supervision: Supervision,
    weak: Tensor,
    sizes: Tensor,
    num_classes: int,
    device: torch.device,
    coupling: Coupling = "auto",
) -> FixedPosterior:
    """weak: of all bags (B, ...), or of all instances (N, ...) where labels belong to these; sizes (B,).

    coupling: "independent" reads bags class by class instead of exactly.
    """
    if isinstance(supervision, (PositiveUnlabeled, UnlabeledUnlabeled)):
        read_all(supervision, weak, torch.ones(int(sizes.sum()), dtype=torch.long), num_classes)  # complains if need be
        return _known_share(supervision, weak, device)
    evidence = read_all(supervision, weak, sizes, num_classes)
    if not evidence.rules and evidence.instance is not None and int(sizes.max()) == 1:
        return Instances(evidence.instance[:, 0].to(device))
    if num_classes == 2 and bool((sizes == 2).all()):
        pairs = _pairs(supervision, evidence, weak, device)
        if pairs is not None:
            return pairs
    if device.type == "cuda" and _plain_aggregate(supervision) and bool((weak >= 0).all()) and weak.dim() == 2:
        from fastbus.inference.kernels.gpu_bags import LONGEST

        seen = isinstance(supervision, MultiInstance)
        if coupling == "independent" and int(sizes.max()) <= LONGEST:
            return OneVsRest(weak.to(device), sizes, seen=seen)
        if coupling != "independent" and lattice_fits(weak, sizes, seen=seen):
            return Lattice(weak.to(device), sizes, seen=seen)
    return General(supervision, weak.to(device), coupling if _plain_aggregate(supervision) else "auto")


def lattice_fits(weak: Tensor, sizes: Tensor, *, seen: bool) -> bool:
    """Whether every bag's lattice is small enough, and held by a program of the kernel."""
    from fastbus.inference.kernels.lattice import bags_at_once, lattice_points

    points = int(lattice_points(weak, seen=seen).max())
    return points <= LATTICE_POINTS and bags_at_once(int(sizes.max()), points, weak.shape[1]) > 0


def read_all(supervision: Supervision, weak: Tensor, sizes: Tensor, num_classes: int) -> Evidence:
    """The evidence of a whole set under a softmax head, checked as `infer` checks it."""
    cpu = torch.device("cpu")
    layout = layout_of((int(sizes.sum()), num_classes), None, sizes, cpu)
    reader = WeakReader(layout, num_classes, "softmax", message_dtype(cpu), name=supervision.title)
    return supervision.read(weak, reader)


def _plain_aggregate(supervision: Supervision) -> bool:
    if type(supervision) is MultiInstance:
        return supervision.noise is None
    if type(supervision) is not LabelProportion or supervision.noise is not None:
        return False
    return supervision.kind == "exact" and supervision.unit == "count"


def _known_share(supervision: Supervision, weak: Tensor, device: torch.device) -> FixedPosterior:
    if isinstance(supervision, PositiveUnlabeled):
        sets = torch.where(weak == 1, LABELLED, 0)
        return KnownShare(sets.to(device), torch.tensor([supervision.known_prior], device=device))
    assert isinstance(supervision, UnlabeledUnlabeled)
    sets = torch.where(weak >= 0, weak, UNKNOWN).long()  # of NaN too
    return KnownShare(sets.to(device), torch.tensor([float(p) for p in supervision.priors], device=device))


def _pairs(supervision: Supervision, evidence: Evidence, weak: Tensor, device: torch.device) -> FixedPosterior | None:
    """Pairs of two classes: the evidence of their four labellings, or what is said about them softly."""
    if isinstance(supervision, SimilarityConfidence) and supervision.soft == "jeffrey":
        return Pairs(target=weak.to(device))
    if isinstance(supervision, ConfidenceDifference):
        return Pairs(difference=weak.to(device))
    if len(evidence.rules) != 1 or evidence.instance is not None or evidence.rules[0].soft is not None:
        return None
    rule = evidence.rules[0]
    if rule.log_evidence.shape[1] != 1 or takes_position(rule.supervision):
        return None
    first, second = torch.tensor([0, 0, 1, 1]), torch.tensor([0, 1, 0, 1])
    state = rule.supervision.step(rule.supervision.step(torch.zeros_like(first), first), second)
    return Pairs(weights=rule.log_evidence[:, 0, state].exp().to(device))
