"""Gold labels for a few, nothing for the rest: Pseudo-Label, VAT, Mean Teacher, MixMatch, FixMatch.

L labelled rows of a step come first, the others are unlabelled.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from fastbus.methods.adversarial import unmoved_statistics, virtual_adversarial_loss
from fastbus.methods.mixing import BetaShares, mix, sharpen, shuffled
from fastbus.methods.registry import Method, MethodOptions, register
from fastbus.methods.rows import blend, classes_of, indicator, labelled_part, linear_ramp, soft_cross_entropy
from fastbus.training.image_run import ImageRun
from fastbus.training.step_objective import StepInputs, StepObjective

SETTINGS = ("semi_supervised",)
SURE = 0.95  # confidence of a guess that is learnt
RAMP = 0.4  # share of the steps over which what is learnt without labels gains its weight
TEACHER_WEIGHT, MIXMATCH_WEIGHT = 50.0, 75.0
MIXMATCH_RAMP = 1.0  # its weight is so large that guesses of a network that knows nothing yet drown the labels
MIXMATCH_ALPHA, MIXMATCH_TEMPERATURE = 0.75, 0.5
VAT_RADIUS, VAT_PROBE = 6.0, 1.0  # length of the change, and of the step that finds it, for images of 3 x 32 x 32
VAT_INPUTS = 3 * 32 * 32
VAT_WEIGHT, VAT_ENTROPY = 0.3, 0.06


def sure_guess_loss(guess: Tensor, logits: Tensor, sure: float) -> Tensor:
    """Cross-entropy with the most probable class of guesses (M, C), mean over all rows; unsure ones count 0."""
    confidence, label = guess.max(1)
    learnt = indicator(label, guess.shape[1]) * (confidence >= sure)[:, None]
    return soft_cross_entropy(logits, learnt).mean()


class SemiObjective(StepObjective):
    """Base: gold labels of the first L rows."""

    def __init__(self, run: ImageRun, method: str) -> None:
        super().__init__()
        self.recipe, self.labelled = run.recipe, labelled_part(run, method)
        self.num_classes = run.num_classes
        self.gold = classes_of(run.weak, run.num_classes, "semi_supervised").flatten().to(run.device)

    def _gold(self, inputs: StepInputs) -> Tensor:
        return self.gold.index_select(0, inputs.step.rows[: self.labelled])

    def _known_loss(self, weak: Tensor, strong: Tensor, inputs: StepInputs) -> Tensor:
        """Cross-entropy of both views of the labelled rows."""
        gold = self._gold(inputs)
        return blend(self.recipe, cross_entropy(weak, gold), cross_entropy(strong, gold))


class PseudoLabel(SemiObjective):
    """Sure predictions of both views become their labels, more and more."""

    def __call__(self, inputs: StepInputs) -> Tensor:
        L, M = self.labelled, len(inputs.weak)
        logits = inputs.network(torch.cat([inputs.weak, inputs.strong]))
        weak, strong = logits[:M], logits[M:]
        guess = torch.softmax(weak[L:].detach(), 1)
        guessed = blend(self.recipe, *(sure_guess_loss(guess, x[L:], SURE) for x in (weak, strong)))
        return self._known_loss(weak[:L], strong[:L], inputs) + linear_ramp(inputs.progress, 0.0, RAMP) * guessed


class FixMatch(SemiObjective):
    """Strong views learn what weak views surely say."""

    def __call__(self, inputs: StepInputs) -> Tensor:
        L, M = self.labelled, len(inputs.weak)
        logits = inputs.network(torch.cat([inputs.weak, inputs.strong[L:]]))
        guess = torch.softmax(logits[L:M].detach(), 1)
        return cross_entropy(logits[:L], self._gold(inputs)) + sure_guess_loss(guess, logits[M:], SURE)


class MeanTeacher(SemiObjective):
    """Predictions stay near those that the averaged network makes of the other view."""

    def __call__(self, inputs: StepInputs) -> Tensor:
        L, M = self.labelled, len(inputs.weak)
        logits = inputs.network(torch.cat([inputs.weak, inputs.strong]))
        taught = torch.softmax(inputs.teacher(inputs.weak), 1)
        apart = ((torch.softmax(logits[M:], 1) - taught) ** 2).mean()
        weight = TEACHER_WEIGHT * linear_ramp(inputs.progress, 0.0, RAMP)
        return self._known_loss(logits[:L], logits[M : M + L], inputs) + weight * apart


class MixMatch(SemiObjective):
    """Guesses averaged over the views and sharpened; everything is mixed with everything."""

    def __init__(self, run: ImageRun) -> None:
        super().__init__(run, "mixmatch")
        self.shares = BetaShares(MIXMATCH_ALPHA, run.device)

    def __call__(self, inputs: StepInputs) -> Tensor:
        L, U = self.labelled, len(inputs.weak) - self.labelled
        with torch.no_grad():
            seen = torch.softmax(inputs.network(torch.cat([inputs.weak[L:], inputs.strong[L:]])), 1)
            guess = sharpen((seen[:U] + seen[U:]) / 2, MIXMATCH_TEMPERATURE)
            gold = indicator(self._gold(inputs), self.num_classes)
            targets = torch.cat([gold, guess, guess])
            images = torch.cat([inputs.weak, inputs.strong[L:]])
            partner = shuffled(len(images), inputs.generator, images.device)
            share = self.shares.own(len(images), inputs.generator)
            images, targets = mix(images, partner, share), mix(targets, partner, share)
        logits = inputs.network(images)
        known = soft_cross_entropy(logits[:L], targets[:L]).mean()
        apart = ((torch.softmax(logits[L:], 1) - targets[L:]) ** 2).mean()
        return known + MIXMATCH_WEIGHT * linear_ramp(inputs.progress, 0.0, MIXMATCH_RAMP) * apart


class VirtualAdversarial(SemiObjective):
    """Predictions do not change along the direction in which they would change most, and are sure."""

    def __init__(self, run: ImageRun, weight: float, entropy: float) -> None:
        super().__init__(run, "vat")
        self.weight, self.entropy = weight, entropy
        self.module: nn.Module | None = None

    def start_epoch(self, run: ImageRun) -> None:
        self.module = run.training.network

    def __call__(self, inputs: StepInputs) -> Tensor:
        assert self.module is not None
        L = self.labelled
        logits = inputs.network(inputs.weak)  # by itself, so that only changes of the images change batch statistics
        size = (inputs.weak[0].numel() / VAT_INPUTS) ** 0.5  # lengths grow with the root of the number of inputs
        radius, probe = VAT_RADIUS * size, VAT_PROBE * size
        with unmoved_statistics(self.module):
            strong = inputs.network(inputs.strong[:L])
            steady = virtual_adversarial_loss(
                inputs.network, inputs.weak, logits, inputs.generator, radius=radius, probe=probe
            )
        entropy = soft_cross_entropy(logits[L:], torch.softmax(logits[L:], 1)).mean()
        weight = self.weight * linear_ramp(inputs.progress, 0.0, RAMP)
        return self._known_loss(logits[:L], strong, inputs) + weight * steady + self.entropy * entropy


def _pseudo_label(run: ImageRun, options: MethodOptions) -> StepObjective:
    return PseudoLabel(run, "pseudo_label")


def _fixmatch(run: ImageRun, options: MethodOptions) -> StepObjective:
    return FixMatch(run, "fixmatch")


def _mean_teacher(run: ImageRun, options: MethodOptions) -> StepObjective:
    return MeanTeacher(run, "mean_teacher")


def _mixmatch(run: ImageRun, options: MethodOptions) -> StepObjective:
    return MixMatch(run)


def _vat(run: ImageRun, options: MethodOptions) -> StepObjective:
    weight, entropy = (options.number(*pair) for pair in (("weight", VAT_WEIGHT), ("entropy", VAT_ENTROPY)))
    return VirtualAdversarial(run, weight, entropy)


register(
    Method(
        name="pseudo_label",
        title="Pseudo-Label",
        settings=SETTINGS,
        reference="Lee, Pseudo-Label: the simple and efficient semi-supervised learning method for deep neural "
        "networks, ICML workshop 2013",
        differs="Only guesses of at least 0.95 are learnt, and their weight grows to 1 over 40 % of the steps, as in "
        "later comparisons; guesses are of the weak view, both views learn them.",
        make=_pseudo_label,
    )
)
register(
    Method(
        name="vat",
        title="VAT",
        settings=SETTINGS,
        reference="Miyato et al., Virtual adversarial training, IEEE TPAMI 2019, with entropy minimisation",
        differs="Weights of later comparisons with this network: 0.3 for steadiness, growing over 40 % of the steps, "
        "0.06 for entropy, radius 6 (weight=1, entropy=1 are the paper's). The step that finds the direction has "
        "length 1 instead of 1e-6, which half precision would lose; both lengths are for 3 x 32 x 32 inputs and scale "
        "with the root of their number; labelled rows learn from both views.",
        make=_vat,
        extra=("weight", "entropy"),
    )
)
register(
    Method(
        name="mean_teacher",
        title="Mean Teacher",
        settings=SETTINGS,
        reference="Tarvainen and Valpola, Mean teachers are better role models, NeurIPS 2017",
        differs="The teacher is the trainer's averaged network, normalised by the batch, and sees the weak view, the "
        "student the strong one; the weight of 50 grows linearly over 40 % of the steps.",
        make=_mean_teacher,
    )
)
register(
    Method(
        name="mixmatch",
        title="MixMatch",
        settings=SETTINGS,
        reference="Berthelot et al., MixMatch: a holistic approach to semi-supervised learning, NeurIPS 2019",
        differs="The two augmentations are the weak and the strong view; batches are not interleaved. The weight of 75 "
        "grows over the whole run: the authors' 16,000 steps are a 64th of theirs, but all of a short one; if it grows "
        "over 40 % of the steps, as in later comparisons, most short runs on digits end at chance.",
        make=_mixmatch,
    )
)
register(
    Method(
        name="fixmatch",
        title="FixMatch",
        settings=SETTINGS,
        reference="Sohn et al., FixMatch: simplifying semi-supervised learning with consistency and confidence, "
        "NeurIPS 2020",
        differs="The strong view is this package's (affine, colour, cutout), not RandAugment.",
        make=_fixmatch,
    )
)
