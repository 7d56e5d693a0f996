"""Methods for bags: proportions with virtual adversarial training, and attention that pools instance scores."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

from fastbus.errors import InputError
from fastbus.methods.adversarial import unmoved_statistics, virtual_adversarial_loss
from fastbus.methods.bag_rows import block_of, counts_of, seen_classes
from fastbus.methods.registry import Method, MethodOptions, register
from fastbus.methods.rows import blend, score, view_logits
from fastbus.training.precision import is_coarse
from fastbus.training.step_objective import StepInputs, StepObjective

if TYPE_CHECKING:
    from fastbus.training.image_run import ImageRun

VAT_WEIGHT, VAT_RADIUS = 0.05, 6.0
VAT_PROBE, COARSE_PROBE = 1e-2, 1.0  # float32 loses a change of 1e-6, bfloat16 one of 1e-2
VAT_INPUTS = 3 * 32 * 32  # of images that these lengths are meant for
RAMP = 0.4  # share of all steps after which the weight is full
ATTENTION_UNITS = 128


def proportion_loss(logits: Tensor, inside: Tensor, shares: Tensor) -> Tensor:
    """Cross-entropy (B,) of the bags' shares (B, C) with the mean prediction; logits (B, K, C), inside (B, K)."""
    size = inside.sum(1).clamp(min=1)
    log_p = torch.log_softmax(logits, 2).masked_fill(~inside[..., None], float("-inf"))
    log_mean = torch.logsumexp(torch.where(inside.any(1)[:, None, None], log_p, 0.0), 1) - size.log()[:, None]
    return -(shares * log_mean).sum(1)


def sigmoid_ramp(progress: Tensor, until: float) -> Tensor:
    """exp(-5 (1 - t)^2), t from 0 to 1 over that share of all steps."""
    return torch.exp(-5 * (1 - (progress / until).clamp(max=1.0)) ** 2).float()


class ProportionVAT(StepObjective):
    """Proportions of the mean prediction, smooth in the worst direction."""

    def __init__(self, run: ImageRun) -> None:
        super().__init__()
        self.recipe, self.longest = run.recipe, int(run.sizes.max())
        self.shares = (counts_of(run) / run.sizes[:, None]).float().to(run.device)
        self.probe = COARSE_PROBE if is_coarse(run.device, run.recipe) else VAT_PROBE
        self.module: nn.Module | None = None

    def start_epoch(self, run: ImageRun) -> None:
        self.module = run.training.network

    def __call__(self, inputs: StepInputs) -> Tensor:
        weak, strong = view_logits(inputs)
        block = block_of(inputs.step, self.longest, len(weak))
        shares = self.shares[inputs.step.bags] * block.held[:, None]
        bags = block.held.sum().clamp(min=1)
        losses = [proportion_loss(logits[block.rows], block.inside, shares).sum() / bags for logits in (weak, strong)]
        assert self.module is not None
        size = (inputs.weak[0].numel() / VAT_INPUTS) ** 0.5  # lengths grow with the root of the number of inputs
        with unmoved_statistics(self.module):
            with torch.no_grad():
                alone = inputs.network(inputs.weak)
            smooth = virtual_adversarial_loss(
                inputs.network,
                inputs.weak,
                alone,
                inputs.generator,
                radius=VAT_RADIUS * size,
                probe=self.probe * size,
            )
        return blend(self.recipe, *losses) + VAT_WEIGHT * sigmoid_ramp(inputs.progress, RAMP) * smooth


class AttentionMIL(StepObjective):
    """A bag's score of a class is the attention-weighted mean of its instances' scores; one head a class.

    The attention is learned and thrown away: what remains is the network, whose scores are those of instances.
    """

    def __init__(self, run: ImageRun, gated: bool) -> None:
        super().__init__()
        if run.num_features is None:
            raise InputError(
                "attention needs the features of the network; expected one with `num_features`, `features` and "
                "`classify`. Use a built-in backbone, or give yours these."
            )
        self.recipe, self.longest, self.gated = run.recipe, int(run.sizes.max()), gated
        seen = seen_classes(run.weak, run.num_classes, run.supervision.name)
        self.seen = (seen[:, 1:] if seen.shape[1] == 2 else seen).float().to(run.device)
        generator = torch.Generator().manual_seed(run.seed)

        def drawn(*shape: int) -> Tensor:
            x: Tensor = torch.randn(*shape, generator=generator) * shape[0] ** -0.5
            return x.to(run.device).requires_grad_()

        self.learned["attention.hidden"] = drawn(run.num_features, ATTENTION_UNITS)
        if gated:
            self.learned["attention.gate"] = drawn(run.num_features, ATTENTION_UNITS)
        self.learned["attention.heads"] = drawn(ATTENTION_UNITS, self.seen.shape[1])
        self.rates = dict.fromkeys(self.learned, 1 / (1 - run.recipe.momentum))  # as momentum moves the network

    def __call__(self, inputs: StepInputs) -> Tensor:
        M = len(inputs.weak)
        features = inputs.features(torch.cat([inputs.weak, inputs.strong]))
        logits = inputs.classify(features)
        block = block_of(inputs.step, self.longest, M)
        seen, bags = self.seen[inputs.step.bags], block.held.sum().clamp(min=1)

        def risk(view: slice) -> Tensor:
            scores = logits[view] if self.seen.shape[1] > 1 else score(logits[view])[:, None]
            bag = pooled(scores[block.rows], self.attention(features[view])[block.rows], block.inside)
            loss = binary_cross_entropy_with_logits(bag, seen, reduction="none").sum(1)
            return torch.where(block.held, loss, 0.0).sum() / bags

        return blend(self.recipe, risk(slice(0, M)), risk(slice(M, 2 * M)))

    def attention(self, features: Tensor) -> Tensor:
        """Unnormalised weights (M, G) of instances in the logarithm."""
        hidden = torch.tanh(features @ self.learned["attention.hidden"])
        if self.gated:
            hidden = hidden * torch.sigmoid(features @ self.learned["attention.gate"])
        return hidden @ self.learned["attention.heads"]


def pooled(scores: Tensor, attention: Tensor, inside: Tensor) -> Tensor:
    """Bag scores (B, G): the mean of (B, K, G) weighed by the softmax of the attention over the bag's instances."""
    none = ~inside.any(1)[:, None]
    weight = torch.softmax(attention.masked_fill(~(inside | none)[..., None], float("-inf")), 1)
    return (weight * scores).sum(1)


register(
    Method(
        name="llp_vat",
        title="LLP-VAT",
        settings=("label_proportion",),
        reference="Tsai and Lin, Learning from label proportions with consistency regularization, ACML 2020",
        differs="Both views enter the proportion loss. Images of another size have their disturbance scaled by the "
        "root of the number of inputs. The power iteration probes at distance 1e-2, on a GPU, where the network "
        "computes in bfloat16, at 1; the authors' 1e-6, spread over all inputs, is below what float32 resolves.",
        make=lambda run, options: ProportionVAT(run),
    )
)
_ILSE = "Ilse, Tomczak, Welling, Attention-based deep multiple instance learning, ICML 2018"
_ADDED = (
    "Instance scores are pooled instead of features: the same bag score, since the last layer is linear, but instances "
    "have scores of their own. Every class has a head of attention, for bags of many classes, each present or not."
)


def _make_attention(gated: bool) -> Method:
    def make(run: ImageRun, options: MethodOptions) -> StepObjective:
        return AttentionMIL(run, gated)

    return Method(
        name="gated_attention_mil" if gated else "attention_mil",
        title="Gated attention MIL" if gated else "Attention MIL",
        settings=("multi_instance",),
        reference=_ILSE,
        differs=_ADDED,
        make=make,
    )


register(_make_attention(gated=False))
register(_make_attention(gated=True))
