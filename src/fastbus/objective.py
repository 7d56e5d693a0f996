"""The objective: a posterior-weighted risk, its smoothing term, and the loss module that joins them.

    L = sum_k sum_j q_kj loss(f(x_k), j)  +  smoothing * sum q log q  -  likelihood * log P(w | x)

Everything is averaged over the terms that carry evidence: instances under a softmax head,
(instance, class) pairs under a sigmoid head. With smoothing = 1 and cross-entropy the first two
terms are KL(q || p).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import logsigmoid

from fastbus.bag_layout import layout_of
from fastbus.errors import InputError, choice
from fastbus.inference.class_coupling import ClassCoupling
from fastbus.inference.evolution import StateEvolution
from fastbus.inference.infer import Coupling, Head, infer
from fastbus.inference.plugs import check_modules
from fastbus.inference.posterior import Posterior
from fastbus.inference.predictions import as_predictions, settled
from fastbus.loss_weights import sum_per_bag, weights_of_bags, weights_of_classes, weights_of_instances
from fastbus.prediction_queue import PredictionQueue, usual_size
from fastbus.supervision.base import Supervision, resolve
from fastbus.supervision.incomplete import SimilarDissimilarUnlabeled

BaseLoss = Callable[[Tensor, Tensor], Tensor]


def unbiased_risk(
    logits: Tensor,
    q: Tensor,
    head: Head = "softmax",
    loss: BaseLoss | None = None,
    class_weights: Tensor | None = None,
) -> Tensor:
    """Posterior-weighted loss: one term an instance (...,) for softmax, an entry (..., C) for sigmoid.

    loss: None for cross-entropy, or a function (scores, target) without reduction. Softmax heads call
        it with scores (N, C) and class indices (N,), sigmoid heads with scores and 0/1 targets of one
        shape.
    """
    choice(head, ("softmax", "sigmoid"), "head", InputError)
    if logits.shape != q.shape:
        raise InputError(
            f"posterior of shape {tuple(q.shape)}; expected {tuple(logits.shape)}, as the logits have. "
            "Pass post.labels of the same batch."
        )
    if class_weights is not None and class_weights.shape != logits.shape[-1:]:
        raise InputError(
            f"class_weights of shape {tuple(class_weights.shape)}; expected ({logits.shape[-1]},). "
            "Give one weight for each class."
        )
    scores = logits if logits.dtype == torch.float64 else logits.float()
    q = q.to(scores.dtype)
    if head == "softmax":
        weighted = q if class_weights is None else q * class_weights.to(q)
        return (_weigh(weighted, _loss_of_each_class(scores, loss))).sum(-1)
    if loss is None:
        positive, negative = -logsigmoid(scores), -logsigmoid(-scores)
    else:
        positive = _unreduced(loss(scores, torch.ones_like(q)), scores.shape)
        negative = _unreduced(loss(scores, torch.zeros_like(q)), scores.shape)
    risk = _weigh(q, positive) + _weigh(1 - q, negative)
    return risk if class_weights is None else risk * class_weights.to(risk)


def _weigh(q: Tensor, value: Tensor) -> Tensor:
    """q * value, 0 where q = 0 even if the value is infinite."""
    return q * value.masked_fill((q.detach() == 0) & value.detach().isinf(), 0.0)


def _loss_of_each_class(scores: Tensor, loss: BaseLoss | None) -> Tensor:
    """loss(f(x), j) for every class j, (..., C)."""
    if loss is None:
        return -torch.log_softmax(settled(scores), -1)
    C = scores.shape[-1]
    rows = scores.reshape(-1, C)
    values = []
    for label in range(C):
        value = loss(rows, torch.full((rows.shape[0],), label, device=rows.device))
        values.append(_unreduced(value, rows.shape[:1]))
    return torch.stack(values, -1).reshape(scores.shape)


def _unreduced(value: Tensor, expected: torch.Size) -> Tensor:
    """The values of a base loss; one that averages them would broadcast without a word."""
    if value.shape != expected:
        raise InputError(
            f"the base loss returned shape {tuple(value.shape)}; expected {tuple(expected)}, one value "
            'for each term. Pass it with reduction="none".'
        )
    return value


def smoothing(q: Tensor, head: Head = "softmax") -> Tensor:
    """Negative entropy of the posterior: sum_j q log q (...,), or of each entry (..., C) for sigmoid."""
    choice(head, ("softmax", "sigmoid"), "head", InputError)
    if head == "softmax":
        return _q_log_q(q).sum(-1)
    return _q_log_q(q) + _q_log_q(1 - q)


def _q_log_q(q: Tensor) -> Tensor:
    """q log q with value and gradient 0 at q = 0."""
    inside = q > 0
    return torch.where(inside, q * q.masked_fill(~inside, 1.0).log(), torch.zeros_like(q))


class LossSums(NamedTuple):
    """Sums of a batch's loss, and what a mean divides them by."""

    per_bag: Tensor  # (B,)
    terms: Tensor  # () weight of all terms that carry evidence

    def mean(self) -> Tensor:
        """The sum over the weight; over 1 where nothing has weight, since rounding is not 0 exactly."""
        return self.per_bag.sum() / self.terms.masked_fill(self.terms == 0, 1.0)


class WeakLoss(nn.Module):
    """A drop-in loss for weak labels: `WeakLoss("label_proportion")(logits, weak, mask)`.

    supervision: a Supervision or its registry name.
    mode: "em" detaches the posterior (the gradient is that of an EM step); "joint" differentiates through it.
    smoothing: weight of sum q log q; likelihood: weight of -log P(w | x). None: 0 in em mode, 1 in joint.
    loss: any base loss, see `unbiased_risk`. class_weights: (C,).
    reduction: "mean" over the terms with evidence, "sum", or "none" for one sum a bag (of a sum
        supervision: the bags of its first term, then those of the next).
    queue: for sets of known prior (positive_unlabeled, unlabeled_unlabeled): how many detached predictions
        of earlier batches join each set, so that its count speaks about more instances than a batch
        holds. None picks 1,024 for these, without an evolution, and 0 for others; they change the loss from call
        to call, and rest in eval mode. 0 keeps none, e.g. inside function transforms; fewer suit the constraints
        "jeffrey" and "likelihood", whose time grows with the square of the set.
    class_loop: a ClassLoop or ClassTransition between the classes of a sigmoid head, optimised with the network if
        it is to be learned.
    rank, evolution: low-rank or learned messages, see `infer`. A StateEvolution is a submodule that learns through the
        posterior and the likelihood, from the `features` given with the logits.
    """

    class_weights: Tensor | None

    def __init__(
        self,
        supervision: Supervision | str,
        head: Head = "softmax",
        coupling: Coupling = "auto",
        mode: Literal["em", "joint"] = "em",
        smoothing: float | None = None,
        likelihood: float | None = None,
        loss: BaseLoss | None = None,
        class_weights: object = None,
        reduction: Literal["mean", "sum", "none"] = "mean",
        on_impossible: Literal["error", "ignore"] = "error",
        budget: int = 4096,
        queue: int | None = None,
        validate: bool = True,
        class_loop: ClassCoupling | None = None,
        rank: int | None = None,
        evolution: StateEvolution | None = None,
    ) -> None:
        super().__init__()
        choice(mode, ("em", "joint"), "mode", InputError)
        choice(reduction, ("mean", "sum", "none"), "reduction", InputError)
        choice(head, ("softmax", "sigmoid"), "head", InputError)
        check_modules(evolution, class_loop)
        self.supervision = resolve(supervision)
        self.head: Head = head
        self.coupling: Coupling = coupling
        self.mode = mode
        default = 1.0 if mode == "joint" else 0.0
        self.smoothing = default if smoothing is None else float(smoothing)
        self.likelihood = default if likelihood is None else float(likelihood)
        if not 0 <= self.likelihood < math.inf:
            raise InputError(f"likelihood={likelihood!r}; expected a weight from 0. Pass e.g. 1, or 0 for none.")
        self.loss = loss
        self.reduction = reduction
        self.on_impossible: Literal["error", "ignore"] = on_impossible
        self.budget = budget
        self.validate = validate
        if class_weights is not None:
            class_weights = weights_of_classes(class_weights).detach().clone()  # loading a state writes to buffers
        self.register_buffer("class_weights", class_weights)
        if queue is None:  # an evolution reads features, which predictions of earlier batches lack
            queue = usual_size(self.supervision) if evolution is None else 0
        self.queue = PredictionQueue(self.supervision, queue, head) if queue else None
        self.class_loop = class_loop
        to_learn = class_loop is not None and any(p.requires_grad for p in class_loop.parameters())
        if to_learn and mode == "em" and not self.likelihood:
            raise InputError(
                "a class loop to be learned, in em mode without a likelihood, gets no gradient; expected "
                'likelihood=1 or mode="joint". Pass one of them, or make the loop with learn=False.'
            )
        self.rank = rank
        self.evolution = evolution
        if evolution is not None:
            self._check_evolution()

    def forward(
        self,
        logits: Any,
        weak: Any,
        mask: Any = None,
        *,
        bag_sizes: Any = None,
        bag_weights: Any = None,
        sample_weights: Any = None,
        posterior: Posterior | None = None,
        features: Any = None,
    ) -> Tensor:
        """The loss of a batch: logits (B, K, C) with mask (B, K), or flat (N, C) with bag_sizes (B,).

        bag_weights (B,) and sample_weights (one an instance) weigh terms; the mean is a weighted
        one. A sum supervision takes tuples, one entry a term, and adds the losses of its terms.
        posterior: one inferred before, from another view or a teacher, instead of that of these logits.
        features: what an evolution reads, one row for each instance.
        """
        if isinstance(self.supervision, SimilarDissimilarUnlabeled):
            options = {"bag_sizes": bag_sizes, "bag_weights": bag_weights, "sample_weights": sample_weights}
            options["posterior"] = posterior
            return self._sum_of_terms(self.supervision, logits, weak, mask, options)
        sums = self.sums(
            logits,
            weak,
            mask,
            bag_sizes=bag_sizes,
            bag_weights=bag_weights,
            sample_weights=sample_weights,
            posterior=posterior,
            features=features,
        )
        if self.reduction == "none":
            return sums.per_bag
        if self.reduction == "sum":
            return sums.per_bag.sum()
        return sums.mean()

    def sums(
        self,
        logits: Any,
        weak: Any,
        mask: Any = None,
        *,
        bag_sizes: Any = None,
        bag_weights: Any = None,
        sample_weights: Any = None,
        posterior: Posterior | None = None,
        features: Any = None,
    ) -> LossSums:
        """The same loss before it is averaged, for means over several batches or processes."""
        scores = as_predictions(logits, self.head, "logits")
        layout = layout_of(tuple(scores.shape), mask, bag_sizes, scores.device)
        post = posterior or self.posterior(scores, weak, mask, bag_sizes=bag_sizes, features=features)
        q = post.labels if self.mode == "joint" else post.labels.detach()
        real = layout.restore(layout.mask, False)[..., None]
        calm = scores.masked_fill(~real, 0.0)
        risk = unbiased_risk(calm, q, self.head, self.loss, self.class_weights)
        if self.smoothing:
            risk = risk + self.smoothing * smoothing(q, self.head).to(risk.dtype)
        informed = post.informed if self.head == "sigmoid" else post.informed[..., 0]
        bags = weights_of_bags(layout, bag_weights)
        weight = weights_of_instances(layout, bags, sample_weights).to(risk.dtype)
        weight = torch.where(informed, weight if weight.dim() == risk.dim() else weight[..., None], 0)
        total = sum_per_bag(risk.masked_fill(~informed, 0.0) * weight, layout)
        if self.likelihood:
            total = total - self.likelihood * bags.to(total.dtype) * post.log_likelihood.to(total.dtype)
        if post.bag_weight is not None:
            # a factor of the loss, unlike the caller's weights: the mean still counts every term once
            total = total * post.bag_weight.to(total.dtype)
        return LossSums(total, weight.sum())

    def posterior(
        self, logits: Tensor, weak: object, mask: object = None, *, bag_sizes: object = None, features: Any = None
    ) -> Posterior:
        """The posterior that the loss uses, with the queue's predictions taken in."""
        options: dict[str, Any] = {
            "head": self.head,
            "coupling": self.coupling,
            "on_impossible": self.on_impossible,
            "budget": self.budget,
            "validate": self.validate,
            "class_loop": self.class_loop,
            "rank": self.rank,
        }
        if self.evolution is not None:
            options |= {"evolution": self.evolution, "features": features}
        differentiate = torch.is_grad_enabled() and (self.mode == "joint" or self.likelihood != 0)
        with torch.set_grad_enabled(differentiate):
            if self.queue is None:
                return infer(self.supervision, logits, weak, mask, bag_sizes=bag_sizes, **options)
            return self.queue.infer(logits, weak, mask, bag_sizes, self.training, options)

    def _check_evolution(self) -> None:
        if self.mode == "em" and not self.likelihood:
            raise InputError(
                'evolution= with mode="em" and likelihood=0, where nothing reaches its parameters; expected a gradient '
                'for them. Pass mode="joint".'
            )
        if self.queue is not None or isinstance(self.supervision, SimilarDissimilarUnlabeled):
            got = "queue=" if self.queue is not None else self.supervision.title
            raise InputError(
                f"evolution= with {got}; expected instances that all have features and one grouping of them. "
                "Leave one of the two out."
            )

    def extra_repr(self) -> str:
        return f"{self.supervision!r}, head={self.head!r}, mode={self.mode!r}, reduction={self.reduction!r}"

    def _sum_of_terms(
        self,
        supervision: SimilarDissimilarUnlabeled,
        logits: Any,
        weak: Any,
        mask: Any,
        options: dict[str, Any],
    ) -> Tensor:
        missing = (None,) * len(supervision.terms)
        batches = zip(*(supervision.entries(x) for x in (logits, weak, missing if mask is None else mask)), strict=True)
        given = {name: supervision.entries(x) for name, x in options.items() if x is not None}
        losses: list[Tensor] = []
        for index, (term, batch) in enumerate(zip(supervision.terms, batches, strict=True)):
            part = WeakLoss(
                term,
                head=self.head,
                coupling=self.coupling,
                mode=self.mode,
                smoothing=self.smoothing,
                likelihood=self.likelihood,
                loss=self.loss,
                class_weights=self.class_weights,
                reduction=self.reduction,
                on_impossible=self.on_impossible,
                budget=self.budget,
                queue=0,
                validate=self.validate,
                class_loop=self.class_loop,
                rank=self.rank,
            )
            losses.append(part(*batch, **{name: entries[index] for name, entries in given.items()}))
        return torch.cat(losses) if self.reduction == "none" else torch.stack(losses).sum()
