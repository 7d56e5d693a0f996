"""The loss against its formula written out by hand: terms, reductions, weights, layouts and modes."""

import pytest
import torch
import torch.nn.functional as F
from torch.distributions import Bernoulli, Categorical, kl_divergence

import fastbus
from catalogue import CASES, infer, prior_of, random_batch
from fastbus import (
    PositiveConfidence,
    SimilarDissimilarUnlabeled,
    UnlabeledUnlabeled,
    WeakLoss,
    smoothing,
    unbiased_risk,
)
from tensors import close, draws, leaf, shares

torch.set_num_threads(1)
NAN = float("nan")
# one of each view of the engine, with instance evidence, soft labels and combinations among them
SOME = [
    "label_proportion-softmax3",
    "label_proportion-sigmoid2",
    "label_proportion-binary",
    "multi_instance-noise-softmax3",
    "pair_similarity-softmax3",
    "partial_label-larger-bags",
    "positive_unlabeled-jeffrey-sigmoid1",
    "semi_supervised-multi-label",
    "proportion & semi-softmax3",
    "proportion & semi-sigmoid2",
]
some = pytest.mark.parametrize("case", [CASES[name] for name in SOME], ids=SOME)


def hand_written(case, post, x, *, loss, bag_weights=None, sample_weights=None, class_weights=None):
    """Sums of each bag (B,) and the number, or weight, of its terms (B,), by plain loops."""
    B, K, C = x.shape
    q = post.labels
    sums, numbers = [], []
    for b in range(B):
        total, number = x.new_zeros(()), 0.0
        for k in range(K):
            weight = 1.0 if bag_weights is None else float(bag_weights[b])
            weight *= 1.0 if sample_weights is None else float(sample_weights[b, k])
            if case.head == "softmax":
                if bool(post.informed[b, k, 0]):
                    for j in range(C):
                        factor = 1.0 if class_weights is None else float(class_weights[j])
                        total = total + weight * factor * q[b, k, j] * loss(x[b, k], j)
                    number += weight
                continue
            for j in range(C):
                if bool(post.informed[b, k, j]):
                    factor = weight * (1.0 if class_weights is None else float(class_weights[j]))
                    total = total + factor * q[b, k, j] * loss(x[b, k, j], 1)
                    total = total + factor * (1 - q[b, k, j]) * loss(x[b, k, j], 0)
                    number += weight
        sums.append(total)
        numbers.append(number)
    return torch.stack(sums), torch.tensor(numbers, dtype=torch.float64)


def cross_entropy(scores, label):
    if scores.dim() == 0:
        return F.binary_cross_entropy_with_logits(scores, torch.full_like(scores, label))
    return F.cross_entropy(scores[None], torch.tensor([label]))


# -- the formula -----------------------------------------------------------------------------------


def test_smoothed_risk_is_the_divergence_from_the_prediction():
    logits, q = draws(5, 4, 3), torch.softmax(draws(5, 4, 3, seed=1), -1)
    q[0, 0] = torch.tensor([1.0, 0.0, 0.0])
    risk = unbiased_risk(logits, q) + smoothing(q)
    close(risk, kl_divergence(Categorical(probs=q, validate_args=False), Categorical(logits=logits)))
    close(risk, F.kl_div(logits.log_softmax(-1), q, reduction="none").sum(-1))
    q = torch.sigmoid(draws(5, 4, 3, seed=2))
    q[0, 0] = torch.tensor([1.0, 0.0, 0.5])
    risk = unbiased_risk(logits, q, head="sigmoid") + smoothing(q, head="sigmoid")
    divergence = kl_divergence(Bernoulli(probs=q[1:]), Bernoulli(logits=logits[1:]))
    close(risk[1:], divergence)
    corner = F.binary_cross_entropy_with_logits(logits[0, 0, :2], q[0, 0, :2], reduction="none")
    close(risk[0, 0, :2], corner)


@pytest.mark.parametrize("head", ["softmax", "sigmoid"])
def test_smoothing_is_flat_at_certainty(head):
    """q log q has no derivative at 0; a training step must not see NaN or infinity there."""
    q = leaf(torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.5, 0.5]], dtype=torch.float64))
    value = smoothing(q, head)
    value.sum().backward()
    assert bool(q.grad.isfinite().all())
    close(value[:2], torch.zeros_like(value[:2]))


@some
def test_loss_with_smoothing_is_the_mean_divergence(case):
    batch = random_batch(case, seed=1)
    post = infer(case, batch)
    prior = prior_of(case, batch.logits)
    if case.head == "softmax":
        informed = post.informed[..., 0]
        log_prior = prior.log()[informed]
        total = F.kl_div(log_prior, post.labels[informed], reduction="sum")
    else:
        informed = post.informed
        q, p = post.labels[informed], prior[informed]
        total = F.kl_div(torch.stack([p, 1 - p]).log(), torch.stack([q, 1 - q]), reduction="sum")
    loss = WeakLoss(case.supervision, head=case.head, smoothing=1.0)
    close(loss(batch.logits, batch.weak, batch.mask), total / int(informed.sum()))


@some
def test_reductions(case):
    batch = random_batch(case, seed=2)
    post = infer(case, batch)
    sums, numbers = hand_written(case, post, batch.logits, loss=cross_entropy)
    for reduction, expected in {
        "none": sums,
        "sum": sums.sum(),
        "mean": sums.sum() / numbers.sum(),
    }.items():
        loss = WeakLoss(case.supervision, head=case.head, reduction=reduction)
        close(loss(batch.logits, batch.weak, batch.mask), expected)
        # the likelihood is divided by the number of terms, not by the number of bags
        extra = {"none": 1, "sum": 1, "mean": numbers.sum()}[reduction]
        likelihood = post.log_likelihood if reduction == "none" else post.log_likelihood.sum()
        loss = WeakLoss(case.supervision, head=case.head, reduction=reduction, likelihood=0.7)
        close(loss(batch.logits, batch.weak, batch.mask), expected - 0.7 * likelihood / extra)


def test_mean_leaves_missing_terms_out():
    """Counted by hand: instances under a softmax head, (instance, class) entries under a sigmoid."""
    logits = draws(3, 2, 3)
    weak = torch.tensor([[1, 0, -1], [-1, -1, -1], [0, 1, 1]])
    risk = unbiased_risk(logits, fastbus.infer("multi_instance", logits, weak).labels)
    # the second bag says nothing: four instances of six are left
    close(WeakLoss("multi_instance")(logits, weak), (risk[0] + risk[2]).sum() / 4)
    q = fastbus.infer("multi_instance", logits, weak, head="sigmoid").labels
    risk = unbiased_risk(logits, q, head="sigmoid")
    # two classes of the first bag and three of the last, of two instances each
    expected = (risk[0, :, :2].sum() + risk[2].sum()) / 10
    close(WeakLoss("multi_instance", head="sigmoid")(logits, weak), expected)
    gold = torch.tensor([0, -1, 2])
    one = WeakLoss("semi_supervised")(logits[:, :1], gold)
    close(one, F.cross_entropy(logits[:, 0], gold, ignore_index=-1))
    nothing = leaf(logits)
    value = WeakLoss("multi_instance")(nothing, torch.full((3, 3), -1))
    value.backward()
    assert float(value.detach()) == 0 and float(nothing.grad.abs().max()) == 0


@some
def test_weights(case):
    batch = random_batch(case, seed=3)
    post = infer(case, batch)
    B, K = batch.mask.shape
    bag_weights, sample_weights = 2 * shares(B, seed=1), 2 * shares(B, K, seed=2)
    bag_weights[1] = 0.0
    class_weights = shares(case.classes, seed=3) + 0.5
    options = {"bag_weights": bag_weights, "sample_weights": sample_weights}
    sums, numbers = hand_written(case, post, batch.logits, loss=cross_entropy, class_weights=class_weights, **options)
    # a NaN of the padding weighs nothing
    options["sample_weights"] = sample_weights.masked_fill(~batch.mask, NAN)
    for reduction, expected in {
        "none": sums,
        "sum": sums.sum(),
        "mean": sums.sum() / numbers.sum(),
    }.items():
        loss = WeakLoss(case.supervision, head=case.head, reduction=reduction, class_weights=class_weights)
        close(loss(batch.logits, batch.weak, batch.mask, **options), expected)
    loss = WeakLoss(case.supervision, head=case.head, reduction="none", likelihood=1.0)
    plain = WeakLoss(case.supervision, head=case.head, reduction="none")
    arguments = (batch.logits, batch.weak, batch.mask)
    difference = loss(*arguments, bag_weights=bag_weights) - plain(*arguments, bag_weights=bag_weights)
    close(difference, -bag_weights * post.log_likelihood)


def test_class_weights_of_gold_labels_are_those_of_torch():
    logits, gold = draws(6, 3), torch.tensor([0, 1, 2, 1, 0, 2])
    weights = torch.tensor([0.5, 2.0, 1.25])
    loss = WeakLoss("semi_supervised", class_weights=weights, reduction="sum")
    expected = F.cross_entropy(logits, gold, weight=weights.double(), reduction="sum")
    close(loss(logits[:, None], gold), expected)
    both = F.binary_cross_entropy_with_logits(logits, torch.eye(3).double()[gold], weights.double())
    loss = WeakLoss("semi_supervised", head="sigmoid", class_weights=[0.5, 2.0, 1.25])
    close(loss(logits[:, None], torch.eye(3).long()[gold][:, None]), both)


@pytest.mark.parametrize("weights", [[-1.0, 1.0, 1.0, 1.0], [NAN, 1.0, 1.0, 1.0], [1.0, 1.0], "equal"])
def test_bad_weights_are_refused(weights):
    batch = random_batch(CASES["label_proportion-softmax3"])
    with pytest.raises(fastbus.InputError, match="bag_weights"):
        WeakLoss("label_proportion")(batch.logits, batch.weak, batch.mask, bag_weights=weights)
    with pytest.raises(fastbus.InputError, match="class_weights"):
        WeakLoss("label_proportion", class_weights=weights)(batch.logits, batch.weak, batch.mask)


def margin(scores, target):
    return F.multi_margin_loss(scores, target, reduction="none")


def absolute_error(scores, target):
    truth = F.one_hot(target, scores.shape[-1])
    return (torch.softmax(scores, -1) - truth).abs().sum(-1)


def soft_margin(scores, target):
    return F.soft_margin_loss(scores, 2 * target - 1, reduction="none")


def squared(scores, target):
    return (torch.sigmoid(scores) - target) ** 2


BASE = {
    "softmax": {
        margin: lambda s, j: sum((1 - s[j] + s[i]).clamp(min=0) for i in range(len(s)) if i != j) / len(s),
        absolute_error: lambda s, j: 2 * (1 - torch.softmax(s, -1)[j]),
    },
    "sigmoid": {
        soft_margin: lambda s, j: torch.log1p(torch.exp(-s if j else s)),
        squared: lambda s, j: (1 / (1 + torch.exp(-s)) - j) ** 2,
    },
}


@some
@pytest.mark.parametrize("which", [0, 1])
def test_any_base_loss(case, which):
    batch = random_batch(case, seed=4)
    base, by_hand = list(BASE[case.head].items())[which]
    post = infer(case, batch)
    x, y = leaf(batch.logits), leaf(batch.logits)
    sums, numbers = hand_written(case, post, y, loss=by_hand)
    value = WeakLoss(case.supervision, head=case.head, loss=base)(x, batch.weak, batch.mask)
    expected = sums.sum() / numbers.sum()
    close(value, expected)
    value.backward()
    expected.backward()
    close(x.grad, y.grad)


# -- layouts ---------------------------------------------------------------------------------------


ABOUT_INSTANCES = ("partial_label", "positive_unlabeled", "semi_supervised")


def flat_weak(supervision, weak, mask):
    """Weak labels of instances (B, K, ...) to (N, ...), those of bags as they are."""
    if isinstance(weak, tuple):
        parts = zip(supervision.parts, weak, strict=True)
        return tuple(flat_weak(part, entry, mask) for part, entry in parts)
    return weak[mask] if supervision.title in ABOUT_INSTANCES else weak


@some
@pytest.mark.parametrize("mode", ["em", "joint"])
@pytest.mark.parametrize("reduction", ["none", "mean"])
def test_padded_and_flat_agree_and_padding_may_hold_nan(case, mode, reduction):
    batch = random_batch(case, seed=5, bags=5)
    loss = WeakLoss(case.supervision, head=case.head, mode=mode, reduction=reduction, queue=0)
    weights = shares(*batch.mask.shape)
    padded = leaf(batch.logits.masked_fill(~batch.mask[..., None], NAN))
    flat = leaf(batch.logits[batch.mask])
    one = loss(padded, batch.weak, batch.mask, sample_weights=weights)
    weak = flat_weak(case.supervision, batch.weak, batch.mask)
    two = loss(flat, weak, bag_sizes=batch.mask.sum(1), sample_weights=weights[batch.mask])
    close(one, two)
    # bags of unequal importance, so that a gradient sent to the wrong bag shows
    for value in (one, two):
        (value * torch.arange(1, value.numel() + 1)).sum().backward()
    assert float(padded.grad[~batch.mask].abs().sum()) == 0
    close(padded.grad[batch.mask], flat.grad)


def test_instances_may_stand_anywhere_in_the_mask():
    case = CASES["label_proportion-sigmoid2"]
    batch = random_batch(case, seed=6, bags=3)
    order = torch.tensor([[0, 1, 2], [2, 0, 1], [1, 2, 0]])
    scattered = batch.mask.gather(1, order)
    moved = batch.logits.gather(1, order[..., None].expand_as(batch.logits))
    moved = moved.masked_fill(~scattered[..., None], NAN)
    loss = WeakLoss(case.supervision, head="sigmoid", reduction="none")
    close(loss(moved, batch.weak, scattered), loss(batch.logits, batch.weak, batch.mask))


# -- modes -----------------------------------------------------------------------------------------


@some
def test_em_mode_detaches_the_posterior(case):
    batch = random_batch(case, seed=7)
    x = leaf(batch.logits)
    WeakLoss(case.supervision, head=case.head, smoothing=0.5)(x, batch.weak, batch.mask).backward()
    post = infer(case, batch)
    informed = post.informed[..., :1] if case.head == "softmax" else post.informed
    expected = (prior_of(case, batch.logits) - post.labels) * informed
    close(x.grad, expected / informed.sum())


def entropy_sum(q):
    """sum q log q over the possible entries only, so that autograd meets no log 0."""
    possible = q[q > 0]
    return (possible * possible.log()).sum()


@some
def test_joint_mode_differentiates_everything(case):
    """Against autograd of the formula in plain operations."""
    batch = random_batch(case, seed=8)
    x, y, detached = (leaf(batch.logits) for _ in range(3))
    # with smoothing = 1 the posterior's own gradient vanishes for candidate sets: KL(q || p) = -log P
    options = {"head": case.head, "smoothing": 0.5, "likelihood": 1 / 3}
    value = WeakLoss(case.supervision, mode="joint", **options)(x, batch.weak, batch.mask)
    value.backward()
    post = infer(case, batch, y)
    q, p = post.labels[post.informed], prior_of(case, y)[post.informed]
    total = 0.5 * entropy_sum(q) - (q * p.log()).sum()
    number = int(post.informed.sum())
    if case.head == "softmax":
        number = number // case.classes
    else:
        total = total + 0.5 * entropy_sum(1 - q) - ((1 - q) * (1 - p).log()).sum()
    expected = (total - post.log_likelihood.sum() / 3) / number
    close(value, expected)
    expected.backward()
    close(x.grad, y.grad)
    WeakLoss(case.supervision, **options)(detached, batch.weak, batch.mask).backward()
    certain = bool(((q.detach() == 0) | (q.detach() == 1)).all())
    assert certain or float((detached.grad - x.grad).abs().max()) > 1e-4


def test_joint_gradient_by_finite_differences():
    batch = random_batch(CASES["label_proportion-softmax3"], seed=9, bags=2)
    loss = WeakLoss("label_proportion", mode="joint")
    assert torch.autograd.gradcheck(lambda x: loss(x, batch.weak, batch.mask), leaf(batch.logits))


def test_defaults_of_the_modes():
    assert (WeakLoss("multi_instance").smoothing, WeakLoss("multi_instance").likelihood) == (0, 0)
    joint = WeakLoss("multi_instance", mode="joint")
    assert (joint.smoothing, joint.likelihood) == (1, 1)


# -- kinds with a loss of their own -----------------------------------------------------------------


@pytest.mark.parametrize("head, classes", [("sigmoid", 1), ("softmax", 2)])
def test_positive_confidence_weighting_is_the_pconf_risk(head, classes):
    """(1/n) sum of loss(g, +1) + (1 - r)/r loss(g, -1), as Ishida et al. state it."""
    logits, r = draws(7, 1, classes), shares(7) * 0.9 + 0.1
    g = logits[:, 0, -1] - (logits[:, 0, 0] if head == "softmax" else 0)
    risk = F.softplus(-g) + (1 - r) / r * F.softplus(g)
    for reduction, expected in {"none": risk, "sum": risk.sum(), "mean": risk.mean()}.items():
        loss = WeakLoss(PositiveConfidence(weighting="pconf"), head=head, reduction=reduction)
        close(loss(logits, r), expected)
    loss = WeakLoss(PositiveConfidence(weighting="pconf"), head=head)
    weights = shares(7, seed=1)
    close(loss(logits, r, bag_weights=weights), (weights * risk).sum() / weights.sum())
    # without the weighting each instance counts once
    plain = WeakLoss(PositiveConfidence(), head=head)
    close(plain(logits, r), (r * risk).mean())


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("mode", ["em", "joint"])
def test_similar_dissimilar_unlabeled_is_the_sum_of_its_terms(mode, reduction):
    options = {"mode": mode, "reduction": reduction, "class_weights": [1.0, 2.0]}
    whole = WeakLoss(SimilarDissimilarUnlabeled(0.3, constraint="likelihood"), **options)
    pairs = WeakLoss("pair_similarity", **options)
    sets = WeakLoss(UnlabeledUnlabeled((0.3,), constraint="likelihood"), queue=0, **options)
    logits = leaf(draws(4, 2, 2)), leaf(draws(2, 5, 2, seed=1))
    weak = torch.tensor([1, 0, 0, -1]), torch.tensor([0, 0])
    masks = None, torch.arange(5) < torch.tensor([[5], [3]])
    value = whole(logits, weak, masks)
    expected = pairs(logits[0], weak[0]) + sets(logits[1], weak[1], masks[1])
    close(value, expected)
    close(torch.autograd.grad(value, logits), torch.autograd.grad(expected, logits))
    # weights and sizes go to the terms they belong to
    weights = shares(4), shares(2, seed=1)
    flat = logits[0].flatten(0, 1), logits[1][masks[1]]
    sizes = torch.full((4,), 2), torch.tensor([5, 3])
    value = whole(flat, weak, bag_sizes=sizes, bag_weights=weights)
    expected = pairs(logits[0], weak[0], bag_weights=weights[0])
    close(value, expected + sets(logits[1], weak[1], masks[1], bag_weights=weights[1]))
    with pytest.raises(fastbus.InputError, match="tuple"):
        whole(flat, weak, bag_sizes=sizes, bag_weights=torch.ones(6))
