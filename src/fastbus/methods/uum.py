"""UUM: the loss of every possible label, weighed by its posterior given predictions and weak label.

Counts are enumerated, all K! orders of a bag's labels; "is there one" and similar pairs have closed forms; several
classes that are there or not are left to `infer`, which is exact as far as its joint budget reaches. Posteriors are
computed in float64 and returned in the precision of the logits.
"""

from __future__ import annotations

from itertools import permutations
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fastbus.errors import InputError, where
from fastbus.inference.fixed import FixedPosterior, Step
from fastbus.inference.fixed_build import read_all
from fastbus.methods.bag_rows import Block, back_to_rows, block_of, counts_of, seen_classes
from fastbus.methods.counting import class_odds, log_some
from fastbus.methods.general import OwnPosteriorRisk, whole_posterior
from fastbus.methods.registry import Method, MethodOptions, register
from fastbus.training.step_objective import StepObjective

if TYPE_CHECKING:
    from fastbus.training.image_run import ImageRun

LARGEST_BAG = 6  # 720 orders; the next size has 5,040


def orders_of(longest: int) -> tuple[Tensor, Tensor]:
    """For every size 0..longest: all orders of its places (longest + 1, P, longest), and how many there are.

    Places beyond a size stay where they are; rows beyond a size's number of orders repeat the last one.
    """
    tables, numbers = [], []
    most = len(list(permutations(range(longest))))
    for size in range(longest + 1):
        rows = [(*order, *range(size, longest)) for order in permutations(range(size))]
        numbers.append(len(rows))
        tables.append(rows + rows[-1:] * (most - len(rows)))
    return torch.tensor(tables), torch.tensor(numbers)


class EnumeratedCounts:
    """Posterior of labels given the counts of a bag, by summing over every order of its labels."""

    capturable = True

    def __init__(self, counts: Tensor, sizes: Tensor, device: torch.device, name: str = "uum") -> None:
        """counts (B, C) of all bags, which add up to their sizes (B,)."""
        self.longest = int(sizes.max())
        if self.longest > LARGEST_BAG:
            raise InputError(
                f"{name}: a bag of {self.longest} instances; expected at most {LARGEST_BAG}, since it enumerates all "
                f"orders of a bag's labels ({where(sizes > LARGEST_BAG)}). Split the bags, pass exact=True to have "
                "larger ones from infer, exact as far as its joint budget reaches and approximate beyond, or choose "
                "count_loss or gbm."
            )
        classes = torch.arange(counts.shape[1]).expand(len(counts), -1)
        held = [torch.repeat_interleave(*pair) for pair in zip(classes, counts, strict=True)]
        self.held = torch.nn.utils.rnn.pad_sequence(held, batch_first=True).to(device)  # (B, K) labels of a bag
        orders, numbers = orders_of(self.longest)
        self.orders, self.numbers = orders.to(device), numbers.to(device)

    def __call__(self, logits: Tensor, step: Step) -> Tensor:
        block = block_of(step, self.longest, len(logits))
        log_p = torch.log_softmax(logits.double(), 1)[block.rows]  # (B, K, C)
        held = self.held[step.bags]
        fits = log_p.gather(2, held[:, None].expand(-1, self.longest, -1))  # (B, place, label of the bag)
        fits = torch.where(block.inside[:, :, None], fits, 0.0)
        order = self.orders[step.sizes]  # (B, P, K)
        chosen = fits[:, None].expand(-1, order.shape[1], -1, -1).gather(3, order[..., None]).squeeze(3)
        total = chosen.sum(2)  # (B, P)
        real = torch.arange(order.shape[1], device=total.device) < self.numbers[step.sizes][:, None]
        share = torch.softmax(total.masked_fill(~real, float("-inf")), 1)
        takes = held[:, None].expand(-1, order.shape[1], -1).gather(2, order)  # (B, P, K) label of each place
        q = log_p.new_zeros(log_p.shape).scatter_add(
            2, takes.transpose(1, 2), share[:, None].expand(-1, self.longest, -1)
        )
        return back_to_rows(q, block, len(logits)).to(logits.dtype)


class SeenClosedForm:
    """Posterior given which classes occur: p / P(there is one) where seen, 0 where not; one class at a time."""

    capturable = True

    def __init__(self, seen: Tensor, sizes: Tensor) -> None:
        self.seen, self.longest = seen, int(sizes.max())

    def __call__(self, logits: Tensor, step: Step) -> Tensor:
        block = block_of(step, self.longest, len(logits))
        q = self.chains(logits[block.rows], block, self.seen[step.bags])
        if q.shape[-1] == 1:
            q = torch.cat([1 - q, q], -1)
        q = q / q.sum(-1, keepdim=True).clamp(min=1e-300)
        return back_to_rows(q, block, len(logits)).to(logits.dtype)

    @staticmethod
    def chains(logits: Tensor, block: Block, seen: Tensor) -> Tensor:
        """(B, K, G) of every class against the rest, before classes are normalised."""
        log_yes, log_no = class_odds(logits, seen.shape[1])
        none = (log_no * block.inside[..., None]).sum(1)
        some = log_some(log_yes, none, block.inside, block.held[:, None].expand_as(none))
        return torch.exp(log_yes - some[:, None]) * (seen[:, None] > 0)


def similar_posterior(p: Tensor, similar: Tensor) -> Tensor:
    """Posteriors (B, 2, C) of pairs with predictions (B, 2, C), of one class or not (B,), in O(C).

    similar: 1 or 0; -1 or NaN where nothing is said, so that the prediction stays.
    """
    other = p.flip(1)
    said = similar[:, None, None]
    joint = torch.where(said > 0, p * other, p * (1 - other))
    return torch.where(said >= 0, joint / joint.sum(2, keepdim=True).clamp(min=1e-300), p)


class SimilarPairs:
    """Posterior of pairs that are of one class or not, or of which that is not said."""

    capturable = True

    def __init__(self, similar: Tensor) -> None:
        self.similar = similar

    def __call__(self, logits: Tensor, step: Step) -> Tensor:
        block = block_of(step, 2, len(logits))
        p = torch.softmax(logits.double(), 1)[block.rows]
        return back_to_rows(similar_posterior(p, self.similar[step.bags]), block, len(logits)).to(logits.dtype)


def make_uum(run: ImageRun, options: MethodOptions) -> StepObjective:
    posterior: FixedPosterior
    name, sizes = run.supervision.name, run.sizes
    if options.extra.get("exact", False):
        posterior = whole_posterior(run)
    elif name == "pair_similarity":
        read_all(run.supervision, run.weak, sizes, run.num_classes)  # complains if need be
        posterior = SimilarPairs(run.weak.to(run.device))
    elif name == "multi_instance":
        seen = seen_classes(run.weak, run.num_classes, name)
        # one class at a time is the posterior only where there is one class to be seen
        posterior = SeenClosedForm(seen.to(run.device), sizes) if seen.shape[1] == 1 else whole_posterior(run)
    else:
        posterior = EnumeratedCounts(counts_of(run), sizes, run.device)
    return OwnPosteriorRisk(posterior, run.recipe)


register(
    Method(
        name="uum",
        title="UUM",
        settings=("multi_instance", "label_proportion", "pair_similarity"),
        reference="Wei, Feng, Han, Liu, Niu, Zhu, Shen, A universal unbiased method for classification from aggregate "
        "observations, ICML 2023",
        differs=f"Counts are enumerated in bags of up to {LARGEST_BAG}; exact=True has posteriors of larger ones from "
        "infer, no longer the authors' algorithm but its result: exact as far as the joint budget of a bag reaches, "
        "infer's approximation beyond. All instances of a multi-instance bag train; where bags tell of several "
        "classes, which the authors do not treat, infer gives what their formula would enumerate, as far as the same "
        "budget reaches. Its gradient is that of gbm.",
        make=make_uum,
        extra=("exact",),
    )
)
