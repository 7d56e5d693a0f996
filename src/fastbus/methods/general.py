"""Count Loss and the likelihood of aggregate observations: how probable are the weak labels under the predictions?

count_loss: counts of one class at a time, as independent events. gbm: the whole bag, classes excluding each other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fastbus.inference.fixed import FixedPosterior
from fastbus.inference.fixed_build import fixed_posterior
from fastbus.methods.bag_rows import block_of, counts_of, seen_classes
from fastbus.methods.counting import binomial_divergence, class_odds, log_any, log_count
from fastbus.methods.registry import Method, MethodOptions, register
from fastbus.methods.rows import blend, labelled_part, score, soft_cross_entropy, view_logits
from fastbus.training.recipes import Recipe
from fastbus.training.step_objective import StepInputs, StepObjective, doubtful

if TYPE_CHECKING:
    from fastbus.training.image_run import ImageRun


def chain_nll(logits: Tensor, inside: Tensor, weak: Tensor, *, seen: bool) -> Tensor:
    """-log P(w_c | x), (B, G), of each class against the rest; logits (B, K, C), weak (B, G) counts or 0/1."""
    log_yes, log_no = class_odds(logits, weak.shape[1])
    return -log_any(log_yes, log_no, inside, weak) if seen else -log_count(log_yes, log_no, inside, weak)


def bag_chains(run: ImageRun) -> tuple[Tensor, bool]:
    """Weak labels of bags for one chain a class (B, C), or one for two classes (B, 1); whether they say "seen"."""
    name = run.supervision.name
    if name == "multi_instance":
        return seen_classes(run.weak, run.num_classes, name).to(run.device), True
    counts = counts_of(run)
    return (counts[:, 1:] if run.num_classes == 2 else counts).to(run.device), False


class CountLoss(StepObjective):
    """-log P(count) of bags, class by class."""

    def __init__(self, run: ImageRun) -> None:
        super().__init__()
        self.recipe, self.longest = run.recipe, int(run.sizes.max())
        self.weak, self.seen = bag_chains(run)

    def __call__(self, inputs: StepInputs) -> Tensor:
        weak, strong = view_logits(inputs)
        block = block_of(inputs.step, self.longest, len(weak))
        said = self.weak[inputs.step.bags] * block.held[:, None]
        many = inputs.real.sum().clamp(min=1)

        def risk(logits: Tensor) -> Tensor:
            nll = chain_nll(logits[block.rows], block.inside, said, seen=self.seen)
            return torch.where(block.held[:, None], nll, 0.0).sum() / many

        return blend(self.recipe, risk(weak), risk(strong)).float()


class CountLossUnlabelled(StepObjective):
    """-log p of known positives, and KL(count of positives || Binomial(n, prior)) / n of n unlabelled rows."""

    def __init__(self, run: ImageRun, prior: float) -> None:
        super().__init__()
        self.recipe, self.prior, self.known = run.recipe, prior, labelled_part(run, "count_loss")

    def __call__(self, inputs: StepInputs) -> Tensor:
        return blend(self.recipe, *(self.risk(score(logits)) for logits in view_logits(inputs))).float()

    def risk(self, f: Tensor) -> Tensor:
        """The first rows are positives, the others unlabelled."""
        known = torch.nn.functional.softplus(-f[: self.known]).mean()
        p = torch.sigmoid(f[self.known :].double())
        return known + binomial_divergence(p, self.prior) / len(p)


def make_count_loss(run: ImageRun, options: MethodOptions) -> StepObjective:
    if run.supervision.name == "positive_unlabeled":
        assert options.prior is not None  # one of its needs
        return CountLossUnlabelled(run, options.prior)
    return CountLoss(run)


class OwnPosteriorRisk(StepObjective):
    """Cross-entropy of each view with the posterior of its own predictions, held fixed.

    With exact posteriors its gradient, prediction minus posterior, is exactly that of -log P(w | x).
    """

    def __init__(self, posterior: FixedPosterior, recipe: Recipe) -> None:
        super().__init__()
        self.posterior, self.recipe, self.capturable = posterior, recipe, posterior.capturable

    def __call__(self, inputs: StepInputs) -> Tensor:
        many = inputs.real.sum().clamp(min=1)

        def risk(logits: Tensor) -> Tensor:
            with torch.no_grad():
                q = self.posterior(doubtful(logits.detach(), self.recipe.doubt), inputs.step)
            return torch.where(inputs.real, soft_cross_entropy(logits, q), 0.0).sum() / many

        return blend(self.recipe, *(risk(logits) for logits in view_logits(inputs)))


def whole_posterior(run: ImageRun) -> FixedPosterior:
    """The posterior of all labels of a bag together, as FastBUS computes it.

    Exact as far as the joint budget of `infer` reaches; the approximation that it chooses for larger bags.
    """
    return fixed_posterior(run.supervision, run.weak, run.sizes, run.num_classes, run.device)


register(
    Method(
        name="count_loss",
        title="Count Loss",
        settings=("multi_instance", "label_proportion", "positive_unlabeled"),
        reference="Shukla, Zeng, Ahmed, Van den Broeck, A unified approach to count-based weakly supervised "
        "learning, NeurIPS 2023",
        differs="The published log-space recursion starts from ones and returns P(S <= k); here P(S = k). More than "
        "two classes: one count a class. Unlabelled rows: KL(count || binomial) divided by "
        "their number; the authors' code divides by one more and takes the divergence the other way round, which is "
        "infinite for a classifier that is sure.",
        make=make_count_loss,
        needs_on={"positive_unlabeled": ("prior",)},
        instead="Or estimate it, e.g. by PositiveUnlabeled.estimate.",
    )
)
register(
    Method(
        name="gbm",
        title="Aggregate likelihood (GBM)",
        settings=("multi_instance", "label_proportion", "pair_comparison", "pair_similarity"),
        reference="Zhang, Charoenphakdee, Wu, Sugiyama, Learning from aggregate observations, NeurIPS 2020",
        differs="Any number of classes that exclude each other; the likelihood is descended through its gradient, "
        "prediction minus posterior, which infer computes exactly as far as the joint budget of a bag reaches and "
        "approximates beyond. Comparisons have the recipe's doubt, as all methods that "
        "solve pairs together have.",
        make=lambda run, options: OwnPosteriorRisk(whole_posterior(run), run.recipe),
        noise=True,
    )
)
