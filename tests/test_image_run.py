"""Training on images from every kind of weak label: it learns, it goes on where it stopped, it refuses nonsense."""

import functools

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from torch import Tensor

import fastbus
from baselines import better_than_majority
from fastbus.errors import InputError
from fastbus.inference.fixed import General, Instances, KnownShare, Pairs, Step
from fastbus.inference.fixed_build import fixed_posterior
from fastbus.supervision.base import Supervision
from fastbus.supervision.confusion import class_shares
from fastbus.training.image_noise import with_known_confusions
from fastbus.training.image_run import ImageRun
from fastbus.training.packing import pack_rows
from fastbus.training.recipes import RECIPES, Recipe, recipe_for
from fastbus.training.step_objective import (
    PosteriorRisk,
    StepInputs,
    SureLabels,
    faded,
    mixed,
    own_first,
    sharpened,
    strode,
)

CPU = torch.device("cpu")
QUICK = Recipe(backbone="small_cnn", epochs=6, rows=64, labelled_rows=16, learning_rate=0.1, warmup=5, align=0.9)


@functools.cache
def digits() -> tuple[Tensor, np.ndarray]:
    data = load_digits()
    return torch.from_numpy((data.images * 15.9).astype(np.uint8))[:, None], data.target


def weak_digits(kind: str) -> tuple[Supervision, Tensor, Tensor, Tensor, np.ndarray, int]:
    """Supervision, training images, sizes, weak labels, truth of all images, classes; 1,400 images train."""
    images, labels = digits()
    rng = np.random.default_rng(0)
    train, truth = images[:1400], labels[:1400]
    one = torch.ones(1400, dtype=torch.long)
    positive = (labels < 5).astype(np.int64)
    if kind in ("label_proportion", "multi_instance"):
        sizes = np.full(350, 4)
        rule = fastbus.LabelProportion() if kind == "label_proportion" else fastbus.MultiInstance()
        weak = fastbus.weaken(rule, truth, sizes, num_classes=10)
        return rule, train, torch.from_numpy(sizes), torch.as_tensor(np.asarray(weak)).long(), labels, 10
    if kind == "partial_label":
        candidates = rng.random((1400, 10)) < 0.3
        candidates[np.arange(1400), truth] = True
        return fastbus.PartialLabel(), train, one, torch.from_numpy(candidates).long(), labels, 10
    if kind == "noisy_label":
        noisy = np.where(rng.random(1400) < 0.2, (truth + rng.integers(1, 10, 1400)) % 10, truth)
        return fastbus.NoisyLabel(rate=0.2), train, one, torch.from_numpy(noisy).long(), labels, 10
    if kind == "semi_supervised":
        weak = np.where(rng.random(1400) < 0.1, truth, -1)
        return fastbus.SemiSupervised(), train, one, torch.from_numpy(weak).long(), labels, 10
    if kind == "positive_unlabeled":
        known = (positive[:1400] == 1) & (rng.random(1400) < 0.3)
        prior = float(positive[:1400][~known].mean())
        weak = np.where(known, 1, -1)
        return fastbus.PositiveUnlabeled(prior=prior), train, one, torch.from_numpy(weak), positive, 2
    # pairs alone find classes that look alike, so zeros against ones instead of small digits against large ones
    chosen = np.flatnonzero(truth < 2)[:280]
    same = (truth[chosen[0::2]] == truth[chosen[1::2]]).astype(np.int64)
    return fastbus.PairSimilarity(), train[chosen], torch.full((140,), 2), torch.from_numpy(same), labels, 2


FLOORS = {  # about ten points below what seed 0 reaches after six short epochs; chance is .1 or .5
    "label_proportion": 0.68,
    "multi_instance": 0.5,
    "partial_label": 0.7,
    "noisy_label": 0.8,
    "semi_supervised": 0.6,
    "positive_unlabeled": 0.75,
    "pair_similarity": 0.85,
}


@pytest.mark.parametrize("kind", FLOORS)
def test_every_kind_learns_unseen_digits(kind: str) -> None:
    rule, images, sizes, weak, truth, classes = weak_digits(kind)
    pairs = kind == "pair_similarity"
    epochs = 60 if pairs else 6
    recipe = QUICK.replace(teacher=kind == "positive_unlabeled", epochs=epochs, sharpen=2.0 if pairs else 1.0)
    run = ImageRun(rule, images, sizes, weak, num_classes=classes, recipe=recipe, flip=False)
    while not run.done:
        assert np.isfinite(run.run_epoch()["loss"])
    unseen, expected = digits()[0][1400:], truth[1400:]
    if kind == "pair_similarity":
        unseen, expected = unseen[expected < 2], expected[expected < 2]
    found = run.predict(unseen).argmax(1).numpy()
    accuracy = better_than_majority(found, expected, either_way=pairs)  # which class is which, similarity does not say
    accuracy = max(accuracy, 1 - accuracy) if pairs else accuracy
    assert accuracy > FLOORS[kind], accuracy
    assert run.views_seen == 2 * run.steps_per_epoch * 64 * epochs


@pytest.mark.parametrize("kind", ["label_proportion", "semi_supervised"])
def test_a_run_goes_on_as_if_it_had_never_stopped(kind: str) -> None:
    rule, images, sizes, weak, _, classes = weak_digits(kind)

    def fresh() -> ImageRun:
        return ImageRun(rule, images, sizes, weak, num_classes=classes, recipe=QUICK.replace(epochs=3), flip=False)

    whole, part, later = fresh(), fresh(), fresh()
    for _ in range(3):
        whole.run_epoch()
    part.run_epoch()
    later.load_state_dict(part.state_dict())
    while not later.done:
        later.run_epoch()
    assert torch.equal(whole.logits(images[:50]), later.logits(images[:50]))
    assert later.views_seen == whole.views_seen
    with pytest.raises(InputError, match="other tensors"):
        fresh().load_state_dict({"tensors": {}, "epoch": 1, "views_seen": 0, "seconds": 0.0})


def test_the_posterior_fits_the_kind() -> None:
    expected = {
        "label_proportion": General,  # a kernel takes over on a GPU
        "partial_label": Instances,
        "noisy_label": Instances,
        "positive_unlabeled": KnownShare,
        "pair_similarity": Pairs,
    }
    for kind, posterior in expected.items():
        rule, _, sizes, weak, _, classes = weak_digits(kind)
        assert type(fixed_posterior(rule, weak, sizes, classes, CPU)) is posterior, kind


@pytest.mark.parametrize("name", ["pair_comparison", "pair_similarity"])
def test_the_four_labellings_of_hard_pairs_equal_infer(name: str) -> None:
    logits = torch.randn(12, 2, generator=torch.Generator().manual_seed(1)) * 2
    weak, sizes = torch.tensor([1, 0, 1, 1, 0, 0]), torch.full((6,), 2)
    every = torch.arange(6)
    options = {"noise": (0.1, 0.2)}
    rule = fastbus.PairComparison(**options) if name == "pair_comparison" else fastbus.PairSimilarity(**options)
    posterior = fixed_posterior(rule, weak, sizes, 2, CPU)
    found = posterior(logits, Step(torch.arange(12), every, 2 * every, sizes))
    assert torch.allclose(found, fastbus.infer(rule, logits, weak, bag_sizes=sizes).labels, atol=1e-6)


def test_a_known_share_equals_the_mean_constraint_of_infer() -> None:
    logits = torch.randn(40, 2, generator=torch.Generator().manual_seed(2)) * 3
    weak = torch.full((40,), -1)
    weak[:6] = 1
    rule = fastbus.PositiveUnlabeled(prior=0.3, constraint="mean")
    every = torch.arange(40)
    posterior = fixed_posterior(rule, weak, torch.ones(40, dtype=torch.long), 2, CPU)
    found = posterior(logits, Step(every, every, every, torch.ones(40, dtype=torch.long)))
    expected = fastbus.infer(rule, logits[None], weak[None]).labels[0]
    assert torch.allclose(found, expected, atol=1e-6)


def test_mixed_images_and_targets_use_the_same_partner_and_share() -> None:
    images = torch.eye(8)[:, None, None]  # (8, 1, 1, 8): an image says which one it is
    out, partner, own = mixed(images, 1.0, torch.Generator().manual_seed(0))
    assert partner is not None and sorted(partner.tolist()) == list(range(8))
    expected = own * torch.eye(8) + (1 - own) * torch.eye(8)[partner]
    assert torch.allclose(out[:, 0, 0], expected)
    assert mixed(images, 0.0, torch.Generator())[1] is None


def test_strong_views_judge_themselves_for_a_share_of_the_steps() -> None:
    own, weak = torch.tensor([1.0]), torch.tensor([2.0])
    early, late = torch.tensor(0.3), torch.tensor(0.5)
    assert [float(own_first(0.5, progress, lambda: own, weak)) for progress in (early, late)] == [1.0, 2.0]
    assert own_first(True, late, lambda: own, weak) is own
    assert own_first(False, early, lambda: own, weak) is weak


def test_strides_lead_beyond_the_posterior() -> None:
    """With evidence e and predictions p, the targets are p e^(1 + stride), normalised."""
    logits = torch.randn(6, 4, generator=torch.Generator().manual_seed(0))
    evidence = torch.rand(6, 4, generator=torch.Generator().manual_seed(1)) * (torch.arange(4) != 2)
    q = logits.softmax(1) * evidence
    expected = q * evidence**2.5
    q, expected = (x / x.sum(1, keepdim=True) for x in (q, expected))
    assert torch.allclose(strode(q, logits, torch.tensor(2.5)), expected, atol=1e-6)
    assert torch.allclose(strode(q, logits, torch.tensor(0.0)), q, atol=1e-7)
    assert not bool(strode(torch.zeros(6, 4), logits, torch.tensor(2.5)).any())
    far = torch.tensor([[60.0, -60.0]])
    assert torch.equal(strode(torch.tensor([[0.0, 1.0]]), far, torch.tensor(19.0)), torch.tensor([[0.0, 1.0]]))
    assert bool(strode(far.softmax(1), far, torch.tensor(19.0)).isfinite().all())


def test_what_labels_add_fades_at_the_end() -> None:
    shares = [float(faded(0.4, torch.tensor(progress, dtype=torch.float64))) for progress in (0.1, 0.6, 0.8, 1.0)]
    assert shares == pytest.approx([0, 0, 0.5, 1])
    assert float(faded(0.0, torch.tensor(1.0))) == 0
    logits, evidence = torch.randn(2, 6, 4, generator=torch.Generator().manual_seed(0)).unbind()
    q = (logits + evidence).softmax(1)
    assert torch.allclose(strode(q, logits, torch.tensor(-0.5)), (logits + evidence / 2).softmax(1), atol=1e-6)
    assert torch.allclose(strode(q, logits, torch.tensor(-1.0)), logits.softmax(1), atol=1e-6)


def test_sharpened_targets_keep_zeros_and_sum_to_one() -> None:
    q = torch.tensor([[0.6, 0.4, 0.0], [0.5, 0.5, 0.0], [0.0, 0.0, 0.0]])
    sharp = sharpened(q, torch.tensor(2.0))
    assert torch.allclose(sharp[0], torch.tensor([0.36, 0.16, 0.0]) / 0.52)
    assert torch.allclose(sharp[1], q[1]) and not bool(sharp[2].any())
    assert torch.equal(sharpened(q, torch.tensor(1.0)), q)


@pytest.mark.parametrize(("progress", "power"), [(0.2, 1), (0.25, 3), (0.9, 3)])
def test_targets_settle_after_the_first_quarter(progress: float, power: int) -> None:
    """A teacher's predictions times the evidence of a label that is wrong half of the time, then to the power of 3."""
    generator = torch.Generator().manual_seed(0)
    weak, strong, taught = torch.randn(3, 6, 3, generator=generator)
    labels, one, rows = torch.arange(6) % 3, torch.ones(6, dtype=torch.long), torch.arange(6)
    posterior = fixed_posterior(fastbus.NoisyLabel(rate=0.5), labels, one, 3, CPU)
    objective = PosteriorRisk(posterior, Recipe(teacher=True, settle=2.0))
    step, real = Step(rows, rows, rows, one), torch.ones(6, dtype=torch.bool)
    same, teacher = (lambda x: x), (lambda x: taught)
    loss = objective(
        StepInputs(step, real, weak, strong, same, teacher, same, same, same, generator, torch.tensor(progress))
    )
    q = (taught.softmax(1) * (0.25 + 0.25 * torch.eye(3)[labels])) ** power
    q = q / q.sum(1, keepdim=True)
    expected = -(q * (torch.log_softmax(weak, 1) + torch.log_softmax(strong, 1))).sum() / 12
    assert float(loss) == pytest.approx(float(expected), rel=1e-5)


def test_labels_count_the_more_the_surer_they_are() -> None:
    probs = torch.tensor([[0.9, 0.1], [0.3, 0.7], [0.5, 0.5], [1.0, 0.0]], dtype=torch.float64)
    real = torch.tensor([True, True, True, False])
    sure = SureLabels(0.9, CPU)
    label, weight = sure(probs, real)
    assert label.tolist()[:2] == [0, 1]
    spread = (0.2**2 + 0.2**2) / 3  # around a mean of .7; the second half of the deviation makes 4 / 2
    expected = [0.9, 0.7, 0.5 * np.exp(-2 * 0.2**2 / spread), 0.0]
    assert weight.tolist() == pytest.approx(expected, rel=1e-5)
    _, later = sure(torch.tensor([[0.6, 0.4]] * 4, dtype=torch.float64), real)
    usual, spread = (0.09 * 0.7 + 0.1 * 0.6) / 0.19, 0.09 * spread / 0.19
    assert later.tolist()[:3] == pytest.approx([0.6 * np.exp(-2 * (usual - 0.6) ** 2 / spread)] * 3, rel=1e-4)


@pytest.mark.parametrize(("teacher", "decided"), [(False, True), (True, True), (True, 0.6), (True, 0.4)])
def test_decided_targets_are_the_likeliest_classes_and_weak_views_follow_the_likelihood(
    teacher: bool, decided: bool | float
) -> None:
    """The weak view's part has the gradient of -log P(label), whoever teaches the strong one, in its steps."""
    generator = torch.Generator().manual_seed(0)
    weak, strong, taught = torch.randn(3, 6, 3, generator=generator, dtype=torch.float64)
    labels, one, rows = torch.arange(6) % 3, torch.ones(6, dtype=torch.long), torch.arange(6)
    posterior = fixed_posterior(fastbus.NoisyLabel(rate=0.5), labels, one, 3, CPU)
    objective = PosteriorRisk(posterior, Recipe(teacher=teacher, decided=decided))
    step, real = Step(rows, rows, rows, one), torch.ones(6, dtype=torch.bool)
    weak.requires_grad_()
    strong.requires_grad_()
    inputs = StepInputs(
        step, real, weak, strong, lambda x: x, lambda x: taught, *[lambda x: x] * 3, generator, torch.tensor(0.5)
    )
    slopes = torch.autograd.grad(objective(inputs), [weak, strong])
    evidence = 0.25 + 0.25 * torch.eye(3, dtype=torch.float64)[labels]
    q = (taught if teacher else weak.detach()).softmax(1) * evidence
    q = q / q.sum(1, keepdim=True)
    likelihood = -torch.log((weak.softmax(1) * evidence).sum(1)).mean()
    by_teacher = -(q * torch.log_softmax(weak, 1)).sum(1).mean()
    weak_part = by_teacher if decided < 0.5 else likelihood
    assert torch.allclose(slopes[0], torch.autograd.grad(weak_part, weak)[0], atol=1e-7)
    label, weight = SureLabels(0.99, CPU)(q.float(), real)
    expected = (weight * torch.nn.functional.cross_entropy(strong, label, reduction="none")).mean()
    assert torch.allclose(slopes[1], torch.autograd.grad(expected, strong)[0], atol=1e-6)
    assert set(objective.state()) == {"sure", "sure.weight"}


def test_predictions_are_aligned_with_the_shares_that_labels_tell() -> None:
    """Wrong labels of a class that is rare, and a network that never calls it: it gets its share back."""
    confusion = torch.tensor([[0.7, 0.2, 0.1], [0.1, 0.8, 0.1], [0.3, 0.1, 0.6]], dtype=torch.float64)
    truth = torch.tensor([0.6, 0.3, 0.1], dtype=torch.float64)
    labels = torch.arange(3).repeat_interleave((truth @ confusion * 10_000).round().long())
    shares = class_shares(torch.cat([labels, torch.full((7,), -1)]), confusion)
    assert torch.allclose(shares, truth, atol=0.01)
    assert torch.allclose(class_shares(labels, confusion, 1000), truth, atol=1e-4)
    assert torch.allclose(class_shares(torch.full((7,), -1), confusion), torch.full_like(truth, 1 / 3))

    given = torch.tensor([0, 1, 2, 0])
    rows, one, real = torch.arange(4), torch.ones(4, dtype=torch.long), torch.tensor([True, True, True, False])
    posterior = fixed_posterior(fastbus.NoisyLabel(confusion), given, one, 3, CPU)
    objective = PosteriorRisk(posterior, Recipe(align=0.9, weak=0.0), shares.float())
    predicted = torch.tensor([[4.0, 1, -3], [3.0, 2, -5], [1.0, 1, -4], [-9.0, 0, 9]])
    same, generator = (lambda x: x), torch.Generator()
    loss = objective(
        StepInputs(Step(rows, rows, rows, one), real, predicted, predicted, same, same, same, same, same, generator,
                   torch.tensor(0.5))
    )  # fmt: skip
    p = predicted.softmax(1).double()
    q = p * shares / p[:3].mean(0) * confusion[:, given].T
    q = q / q.sum(1, keepdim=True)
    assert float(loss) == pytest.approx(float(-(q * p.log())[:3].sum() / 3), rel=1e-4)
    assert objective.state()["mean.weight"].item() == pytest.approx(0.1)


def test_a_pass_covers_the_unlabelled_and_keeps_shares() -> None:
    packed = pack_rows((np.arange(3), np.arange(3, 103)), (2, 10), np.random.default_rng(0))
    assert packed.rows.shape == (10, 12) and packed.real.all()
    assert sorted(packed.rows[:, 2:].ravel().tolist()) == list(range(3, 103))
    assert (packed.rows[:, :2] < 3).all() and (packed.sizes == 1).all()


def test_recipes_fit_the_images() -> None:
    for name in RECIPES:
        if name in fastbus.supervision.base.REGISTRY and name not in ("positive_unlabeled", "unlabeled_unlabeled"):
            rule = fastbus.supervision.base.REGISTRY[name]()
            assert recipe_for(rule, num_images=6000, num_bags=1000).backbone in ("wrn_28_2", "resnet18")
            small = recipe_for(rule, num_images=6000, num_bags=1000, image_shape=(1, 8, 8))
            assert small.backbone == "small_cnn"
            assert recipe_for(rule, num_images=6000, num_bags=10, image_shape=(1, 28, 28)).backbone == "lenet5"
    small, large = (recipe_for(fastbus.MultiInstance(), num_images=100 * k, num_bags=100) for k in (10, 20))
    assert (small.own, large.own) == (False, 0.5) and small.weight_decay == large.weight_decay
    plain = recipe_for(fastbus.MultiInstance(), num_images=2000, num_bags=100, image_shape=(1, 28, 28))
    assert plain.own == large.own and plain.weight_decay < large.weight_decay
    few, many = (recipe_for(fastbus.PairComparison(), num_images=2 * n, num_bags=n) for n in (100, 10_000))
    assert few.own and not many.own
    few, many = (recipe_for(fastbus.PairSimilarity(), num_images=2 * n, num_bags=n) for n in (300, 10_000))
    assert few.epochs * 600 / few.rows >= 2500 and many.epochs == RECIPES["pair_similarity"].epochs
    few, many = (recipe_for(fastbus.NoisyLabel(), num_images=n, num_bags=n) for n in (10_000, 50_000))
    assert not few.fade and many.fade and few.pretrain == many.pretrain
    with pytest.raises(InputError, match="epochs"):
        Recipe(epochs=0)
    with pytest.raises(InputError, match="decay"):
        Recipe(decay=1.0)
    with pytest.raises(InputError, match="an entry of the recipe"):
        Recipe().replace(lr=1.0)


def test_images_that_are_no_bytes_are_refused() -> None:
    rule, images, sizes, weak, _, _ = weak_digits("label_proportion")
    with pytest.raises(InputError, match="bytes"):
        ImageRun(rule, images.float(), sizes, weak, num_classes=10, recipe=QUICK)
    with pytest.raises(InputError, match="1400"):
        ImageRun(rule, images, sizes[:10], weak, num_classes=10, recipe=QUICK)


@pytest.mark.parametrize("rate", [0.2, 0.5])
def test_the_rate_of_wrong_labels_is_found_without_being_told(rate: float) -> None:
    images, labels = digits()
    rng = np.random.default_rng(0)
    wrong = rng.random(len(labels)) < rate
    noisy = torch.from_numpy(np.where(wrong, (labels + rng.integers(1, 10, len(labels))) % 10, labels)).long()
    found = with_known_confusions(
        fastbus.NoisyLabel(),
        images,
        noisy,
        num_classes=10,
        recipe=QUICK.replace(epochs=20),
        seed=0,
        device="cpu",
        flip=False,
    )
    assert isinstance(found, fastbus.NoisyLabel) and found.transition is not None
    estimated = 1 - float(found.transition.diagonal().mean())
    assert abs(estimated - rate) < 0.07, estimated
    told = fastbus.NoisyLabel(rate=0.1)
    same = with_known_confusions(told, images, noisy, num_classes=10, recipe=QUICK, seed=0, device="cpu")
    assert same is told


def test_pairs_in_order_find_their_classes_where_each_view_judges_itself() -> None:
    images, labels = digits()
    chosen = np.flatnonzero(labels < 2)
    train, unseen = chosen[:280], chosen[280:]
    rng = np.random.default_rng(0)
    pairs = rng.permutation(train).reshape(-1, 2)
    ordered = np.where((labels[pairs[:, 0]] < labels[pairs[:, 1]])[:, None], pairs[:, ::-1], pairs)
    recipe = QUICK.replace(epochs=20, own=True)
    run = ImageRun(
        fastbus.PairComparison(),
        images[ordered.ravel()],
        torch.full((140,), 2),
        torch.ones(140, dtype=torch.long),
        num_classes=2,
        recipe=recipe,
        flip=False,
    )
    while not run.done:
        run.run_epoch()
    accuracy = float((run.predict(images[unseen]).argmax(1).numpy() == labels[unseen]).mean())
    assert accuracy > 0.85, accuracy
