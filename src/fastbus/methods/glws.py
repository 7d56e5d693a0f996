"""GLWS: an EM step from the weak to the strong view, plus the likelihood of the weak labels under the weak view.

Bags are read class by class. Where all labels of a bag are solved together (pairs), the gradient of the likelihood
is that of a cross-entropy with the posterior, so that both terms are cross-entropies.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid, nll_loss, normalize, softplus

from fastbus.inference.fixed import FixedPosterior
from fastbus.inference.fixed_build import fixed_posterior
from fastbus.methods.bag_rows import Block, back_to_rows, block_of
from fastbus.methods.counting import class_odds, log_count
from fastbus.methods.general import bag_chains, chain_nll, whole_posterior
from fastbus.methods.registry import Method, MethodOptions, register
from fastbus.methods.rows import (
    MANY_CLASSES,
    blend,
    candidates_of,
    classes_of,
    labelled_part,
    mean_where,
    score,
    soft_cross_entropy,
    strong_share,
    transition_of,
    view_logits,
)
from fastbus.methods.uum import SeenClosedForm
from fastbus.supervision.incomplete import PositiveUnlabeled
from fastbus.training.recipes import usual_own
from fastbus.training.step_objective import RunningMean, StepInputs, StepObjective, doubtful, own_first

if TYPE_CHECKING:
    from fastbus.training.image_run import ImageRun

KEPT_CLASSES = 3  # of a pseudo-label
ALIGN_DECAY = 0.999
SCALE, SCALE_OF_MANY = 1.0, 2.25  # of a learned confusion: the authors' for CIFAR-10 and CIFAR-100
BALANCE = 0.1  # weight of class shares of the mean prediction, where single instances are labelled


def count_posterior(logits: Tensor, block: Block, counts: Tensor) -> Tensor:
    """P(class | count of it), (B, K, G), of each class against the rest: p plus the gradient of log P(count)."""
    log_yes, log_no = class_odds(logits.detach(), counts.shape[1])
    with torch.enable_grad():
        odds = (log_yes - log_no).requires_grad_()
        total = log_count(logsigmoid(odds), logsigmoid(-odds), block.inside, counts).sum()
        (change,) = torch.autograd.grad(total, odds)
    return (log_yes.exp() + change).clamp(min=0.0)


def imbalance(logits: Tensor, shares: Tensor | None = None) -> Tensor:
    """Cross-entropy of class shares (C,), even ones by default, with the mean prediction; logits (M, C)."""
    log_mean = logits.softmax(1).mean(0).clamp(min=1e-6).log()
    return -log_mean.mean() if shares is None else -(shares * log_mean).sum()


def confusion_of(matrix: Tensor, scale: float = 1.0) -> Tensor:
    """log P(said | class), (C, C), of a learned matrix: its columns, then its rows are brought to length 1, then scale.

    So no class is said with odds above e^scale to any other, however long it learns, and the network cannot take all
    labels for right: with 10 classes and scale 1 P(said = class) is at most .23.
    """
    return torch.log_softmax(scale * normalize(normalize(matrix, dim=0), dim=1), 1)


def own_of(run: ImageRun) -> bool | float:
    """How long strong views have posteriors of their own: as in the recipe, but not because a run is short."""
    return run.recipe.own and usual_own(run.supervision, int(run.sizes.sum()), len(run.sizes))


class BagEM(StepObjective):
    """Bags with counts or seen classes.

    The likelihood is a mean over bags, the EM term over instances, as the authors have it; their sum is divided by what
    it weighs.
    """

    def __init__(self, run: ImageRun) -> None:
        super().__init__()
        self.own, self.strong = own_of(run), strong_share(run.recipe)
        self.longest = int(run.sizes.max())
        self.weak, self.seen = bag_chains(run)

    def __call__(self, inputs: StepInputs) -> Tensor:
        weak, strong = view_logits(inputs)
        block = block_of(inputs.step, self.longest, len(weak))
        said = self.weak[inputs.step.bags] * block.held[:, None]
        padded = weak[block.rows]
        with torch.no_grad():

            def solved(logits: Tensor) -> Tensor:
                return back_to_rows(self.posterior(logits[block.rows], block, said), block, len(weak)).float()

            q = own_first(self.own, inputs.progress, lambda: solved(strong.detach()), solved(weak.detach()))
        nll = torch.where(block.held[:, None], chain_nll(padded, block.inside, said, seen=self.seen), 0.0).sum()
        rows, bags = (x.sum().clamp(min=1) for x in (inputs.real, block.held))
        agree = self.strong * soft_cross_entropy(strong, q)
        return (mean_where(agree, inputs.real) + nll.float() / bags) / (self.strong + rows / bags)

    def posterior(self, padded: Tensor, block: Block, said: Tensor) -> Tensor:
        """(B, K, C), normalised over the classes."""
        chains = SeenClosedForm.chains(padded, block, said) if self.seen else count_posterior(padded, block, said)
        if chains.shape[-1] == 1:
            return torch.cat([1 - chains, chains], -1)
        return chains / chains.sum(-1, keepdim=True).clamp(min=1e-300)


class PairEM(StepObjective):
    """Pairs, hard or soft, whose four labellings are solved together.

    own, doubt: as in a recipe.
    """

    def __init__(self, posterior: FixedPosterior, own: float, doubt: float = 0.0) -> None:
        super().__init__()
        self.posterior, self.own, self.doubt, self.capturable = posterior, own, doubt, posterior.capturable

    def __call__(self, inputs: StepInputs) -> Tensor:
        weak, strong = view_logits(inputs)
        with torch.no_grad():
            q = self.posterior(doubtful(weak.detach(), self.doubt), inputs.step)
            judged = doubtful(strong.detach(), self.doubt)
            q_strong = own_first(self.own, inputs.progress, lambda: self.posterior(judged, inputs.step), q)
        return mean_where(soft_cross_entropy(strong, q_strong) + soft_cross_entropy(weak, q), inputs.real) / 2


class PartialEM(StepObjective):
    """Candidate sets: nothing on the others, and both views agree with the prediction among the candidates."""

    def __init__(self, run: ImageRun) -> None:
        super().__init__()
        self.candidates, self.recipe = candidates_of(run), run.recipe

    def __call__(self, inputs: StepInputs) -> Tensor:
        weak, strong = view_logits(inputs)
        candidate = self.candidates[inputs.step.rows].float()
        log_yes, log_no = class_odds(weak, weak.shape[1])
        outside = -(log_no * (1 - candidate)).sum(1).float()
        with torch.no_grad():
            q = log_yes.exp().float() * candidate
            q = q / q.sum(1, keepdim=True).clamp(min=1e-12)
        agree = blend(self.recipe, soft_cross_entropy(weak, q), soft_cross_entropy(strong, q))
        return (outside + agree).mean() + BALANCE * imbalance(weak)


class NoisyEM(StepObjective):
    """Wrong labels through a confusion matrix, known or learned; the strong view agrees with the weak.

    It agrees twice: the posteriors given the label that was said, and the predictions.
    """

    def __init__(self, run: ImageRun, transition: Tensor | None, scale: float = 1.0) -> None:
        """transition (C, C): P(said | class), None to learn it, with odds up to e^scale."""
        super().__init__()
        C = run.num_classes
        self.scale, self.strong = scale, strong_share(run.recipe)
        labels = classes_of(run.weak, C, run.supervision.name).to(run.device)
        self.labels, self.told = labels.clamp(min=0), labels >= 0
        self.log_known: Tensor | None = None
        if transition is None:
            self.learned["confusion"] = torch.eye(C, device=run.device).requires_grad_()
        else:
            self.log_known = transition.float().clamp(min=1e-12).log().to(run.device)

    def log_confusion(self) -> Tensor:
        """log P(said | class), (C, C)."""
        return confusion_of(self.learned["confusion"], self.scale) if self.log_known is None else self.log_known

    def __call__(self, inputs: StepInputs) -> Tensor:
        weak, strong = view_logits(inputs)
        said = self.labels[inputs.step.rows]
        log_evidence = self.log_confusion().T[said]  # (M, C): log P(said | class)
        log_evidence = torch.where(self.told[inputs.step.rows][:, None], log_evidence, 0.0)
        joint = torch.log_softmax(weak, 1) + log_evidence
        q = torch.softmax(joint.detach(), 1)
        likelihood = -torch.logsumexp(joint, 1)
        em = soft_cross_entropy(strong + log_evidence.detach(), q)
        consistent = soft_cross_entropy(strong, weak.detach().softmax(1))
        return (likelihood + self.strong * (em + consistent)).mean() + BALANCE * imbalance(weak)


class SemiEM(StepObjective):
    """Gold labels, and pseudo-labels of the most probable classes, aligned with the shares of the gold ones."""

    def __init__(self, run: ImageRun) -> None:
        super().__init__()
        C = run.num_classes
        gold = classes_of(run.weak, C, run.supervision.name)
        shares = torch.bincount(gold[gold >= 0], minlength=C).float()
        self.known, self.gold = labelled_part(run, "glws"), gold.clamp(min=0).to(run.device)
        self.target = (shares / shares.sum()).to(run.device)
        self.mean = RunningMean(C, ALIGN_DECAY, run.device)

    def state(self) -> dict[str, Tensor]:
        return self.mean.state("mean")

    def __call__(self, inputs: StepInputs) -> Tensor:
        L = self.known
        weak, strong = view_logits(inputs)
        gold = self.gold[inputs.step.rows[:L]]
        known = nll_loss(torch.log_softmax(weak[:L], 1), gold) + nll_loss(torch.log_softmax(strong[:L], 1), gold)
        with torch.no_grad():
            p = weak[L:].softmax(1)
            p = p * (self.target / self.mean(p.mean(0)).clamp(min=torch.finfo(p.dtype).tiny))
            kept = p.topk(min(KEPT_CLASSES, p.shape[1]), 1).indices
            p = p * torch.zeros_like(p).scatter(1, kept, 1.0)
            p = p / p.sum(1, keepdim=True).clamp(min=torch.finfo(p.dtype).tiny)
        agree = soft_cross_entropy(strong[L:], p).mean()
        return known / 2 + agree + BALANCE * imbalance(weak[L:], self.target)


class PositiveEM(StepObjective):
    """Known positives, and an EM step on unlabelled rows of which a known share is positive."""

    def __init__(self, run: ImageRun, prior: float) -> None:
        super().__init__()
        told = PositiveUnlabeled(prior)  # which may be another share than that of the run's supervision
        self.known = labelled_part(run, "glws")
        self.posterior = fixed_posterior(told, run.weak, run.sizes, run.num_classes, run.device)

    def __call__(self, inputs: StepInputs) -> Tensor:
        L = self.known
        weak, strong = view_logits(inputs)
        with torch.no_grad():
            q = self.posterior(weak.detach(), inputs.step)
        known = softplus(-score(weak)[:L]).mean() + softplus(-score(strong)[:L]).mean()
        # of the strong view alone, the weak one, which is closest to the images as they are, would drift
        agree = soft_cross_entropy(weak[L:], q[L:]) + soft_cross_entropy(strong[L:], q[L:])
        return (known + agree.mean()) / 4


def make_glws(run: ImageRun, options: MethodOptions) -> StepObjective:
    name = run.supervision.name
    if name in ("multi_instance", "label_proportion"):
        return BagEM(run)
    if name == "partial_label":
        return PartialEM(run)
    if name == "noisy_label":
        learnt = options.extra.get("learn_transition", False)
        scale = options.number("scale", SCALE if run.num_classes <= MANY_CLASSES else SCALE_OF_MANY)
        return NoisyEM(run, None if learnt else transition_of(run, options.noise_rate, "glws"), scale)
    if name == "semi_supervised":
        return SemiEM(run)
    if name == "positive_unlabeled":
        assert options.prior is not None  # one of its needs
        return PositiveEM(run, options.prior)
    return PairEM(whole_posterior(run), own_of(run), run.recipe.doubt)


register(
    Method(
        name="glws",
        title="GLWS",
        settings=(
            "multi_instance",
            "label_proportion",
            "pair_comparison",
            "pair_similarity",
            "similarity_confidence",
            "confidence_difference",
            "partial_label",
            "noisy_label",
            "semi_supervised",
            "positive_unlabeled",
        ),
        reference="Chen, Wang, Feng et al., A general framework for learning from weak supervision, ICML 2024",
        differs="Posteriors equal enumeration: the published backward passes of bags use the wrong label column, a "
        "similarity confidence gives the second instance no evidence, the count's likelihood is divided by P(S <= w), "
        "negative confidence differences are lost, comparisons are normalised over the pair instead of the classes, "
        "and only sure negatives of multi-instance bags enter the EM term. "
        "Two views instead of three. The EM term of bags is one softmax cross-entropy, not one of each class. The loss "
        "of bags is divided by what its terms weigh, since SGD minds the scale; of pairs both terms weigh alike, the "
        "authors' likelihood weighs double. Differences, few comparisons, large bags: each view has its own posterior; "
        "comparisons and differences: the recipe's doubt and the likelihood, which their code leaves out of "
        "comparisons. Noisy labels: a transition or a rate that is told is used as it is, otherwise one is learned as "
        "the authors do, which learn_transition=True does in any case; its scale (scale=) is theirs for CIFAR-10 or, "
        "beyond 50 classes, for CIFAR-100. Unlabelled rows: the posterior given the share of positives stands for that "
        "given their count, for both views, and the loss is halved, since SGD minds the scale. On pairs it is then "
        "near FastBUS's own objective, on similar ones without its sharper start.",
        make=make_glws,
        needs_on={"positive_unlabeled": ("prior",)},
        extra=("learn_transition", "scale"),
        instead="Or estimate it, e.g. by PositiveUnlabeled.estimate.",
    )
)
