"""General methods keep their claims: likelihoods and posteriors equal enumeration, centroids are unbiased."""

import math

import numpy as np
import pytest
import torch
from scipy.stats import binom
from torch import Tensor

import fastbus
from baselines import better_than_majority
from digit_runs import method_run, unseen_accuracy
from fastbus.bench.paper.methods import EQUAL
from fastbus.errors import InputError, WeakLabelError
from fastbus.inference.fixed_build import fixed_posterior
from fastbus.methods import objective_of
from fastbus.methods.bag_rows import block_of, whole_counts
from fastbus.methods.cege import centroid_weights
from fastbus.methods.counting import binomial_divergence, count_distribution
from fastbus.methods.general import OwnPosteriorRisk, chain_nll
from fastbus.methods.glws import count_posterior
from fastbus.methods.registry import get_method
from fastbus.methods.uum import EnumeratedCounts, SeenClosedForm, SimilarPairs
from fastbus.oracle import enumerate_posterior
from fastbus.supervision.base import Supervision
from fastbus.training.image_run import ImageRun
from method_steps import inputs_of, random_logits, step_of
from pair_digits import pair_accuracy, pair_run
from test_image_run import QUICK, digits

SIZES = [3, 5, 1, 4]
CPU = torch.device("cpu")


def truth(classes: int, seed: int = 1) -> tuple[Tensor, Tensor, Tensor]:
    """Counts and classes seen (B, C) of a random labelling, and the bags' sizes."""
    labels = torch.randint(classes, (sum(SIZES),), generator=torch.Generator().manual_seed(seed))
    counts = torch.stack([torch.bincount(bag, minlength=classes) for bag in labels.split(SIZES)])
    return counts, (counts > 0).long(), torch.tensor(SIZES)


def odds(logits: Tensor) -> Tensor:
    """Logits of each class against the rest: what a sigmoid head needs to have the softmax head's probabilities."""
    p = logits.softmax(1)
    return p.log() - torch.log1p(-p)


@pytest.mark.parametrize("seen", [False, True])
@pytest.mark.parametrize("classes", [2, 4])
def test_count_loss_is_the_likelihood_of_each_class_by_enumeration(classes: int, seen: bool) -> None:
    counts, present, sizes = truth(classes)
    weak, rule = (present, fastbus.MultiInstance()) if seen else (counts, fastbus.LabelProportion())
    logits = random_logits(sum(SIZES) + 2, classes)
    step = step_of(SIZES)
    block = block_of(step, 5, len(logits))
    said = weak[step.bags] * block.held[:, None]
    found = chain_nll(logits[block.rows], block.inside, said, seen=seen)
    expected = enumerate_posterior(rule, odds(logits[:-2]), weak, bag_sizes=sizes, head="sigmoid").log_likelihood
    assert torch.allclose(found[:-1].sum(1), -torch.from_numpy(expected), atol=1e-10)
    assert float(found[-1].abs().max()) == 0  # no bag, nothing said
    one = chain_nll(logits[block.rows], block.inside, said[:, 1:2], seen=seen) if classes == 2 else None
    if one is not None:  # two classes need one chain
        binary = enumerate_posterior(rule, logits[:-2], weak[:, 1], bag_sizes=sizes).log_likelihood
        assert torch.allclose(one[:-1, 0], -torch.from_numpy(binary), atol=1e-10)


def test_counts_far_from_the_prediction_have_finite_gradients() -> None:
    logits = torch.tensor([[[-300.0, 300.0]] * 6]).requires_grad_()
    nll = chain_nll(logits, torch.ones(1, 6, dtype=torch.bool), torch.tensor([[1]]), seen=False)
    assert float(nll.detach()) == pytest.approx(5 * 600 - np.log(6), rel=1e-9)  # which of the six is free
    (slope,) = torch.autograd.grad(nll.sum(), logits)
    assert bool(slope.isfinite().all()) and float(slope[0, :, 1].sum()) == pytest.approx(5.0)


def test_the_distribution_of_a_count_equals_convolution() -> None:
    for n in (1, 6, 7, 40):
        p = torch.rand(n, generator=torch.Generator().manual_seed(n), dtype=torch.float64)
        expected = np.ones(1)
        for chance in p.tolist():
            expected = np.convolve(expected, [1 - chance, chance])
        assert np.abs(count_distribution(p).numpy() - expected).max() < 1e-14
    p = torch.tensor([0.5, 0.9, 0.3, 0.5])
    counts = np.convolve(np.convolve([0.5, 0.5], [0.1, 0.9]), np.convolve([0.7, 0.3], [0.5, 0.5]))
    by_hand = float((counts * np.log(counts / binom.pmf(np.arange(5), 4, 0.4))).sum())
    assert float(binomial_divergence(p.double(), 0.4)) == pytest.approx(by_hand, abs=1e-7)
    assert float(binomial_divergence(torch.full((300,), 0.4), 0.4)) == pytest.approx(0.0, abs=1e-6)


def pair_labels() -> Tensor:
    return torch.tensor([1, 0, 1, 0])


@pytest.mark.parametrize("name", ["label_proportion", "multi_instance", "pair_comparison", "pair_similarity"])
def test_gbm_descends_the_likelihood_of_enumeration(name: str) -> None:
    pairs = name.startswith("pair")
    classes, sizes = (2, [2, 2, 2, 2]) if pairs else (3, SIZES)
    counts, seen, _ = truth(3)
    weak = pair_labels() if pairs else counts if name == "label_proportion" else seen
    rule = fastbus.supervision.base.REGISTRY[name]()
    posterior = fixed_posterior(rule, weak, torch.tensor(sizes), classes, CPU)
    M = sum(sizes) + (0 if pairs else 2)
    weak_view, strong_view = (random_logits(M, classes, seed).float().requires_grad_() for seed in (0, 1))
    step = step_of(sizes, empty=0 if pairs else 1)
    if pairs:
        step = step._replace(rows=step.rows[:M])
    loss = OwnPosteriorRisk(posterior, QUICK)(inputs_of(weak_view, strong_view, step))
    value = 0.0
    for view, found in zip((weak_view, strong_view), torch.autograd.grad(loss, (weak_view, strong_view)), strict=True):
        real = view.detach()[: sum(sizes)]
        known = enumerate_posterior(rule, real, weak, bag_sizes=torch.tensor(sizes))
        slope = real.double().softmax(1) - torch.from_numpy(known.labels)
        assert torch.allclose(found[: sum(sizes)].double(), slope / (2 * sum(sizes)), atol=1e-7)
        assert not bool(found[sum(sizes) :].any())
        # which is the slope of the enumerated likelihood, by differences along a direction
        way = random_logits(len(real), classes, 7)
        ends = [
            enumerate_posterior(rule, real.double() + step * way, weak, bag_sizes=torch.tensor(sizes)).log_likelihood
            for step in (1e-4, -1e-4)
        ]
        rise = float((ends[0] - ends[1]).sum()) / 2e-4
        assert float((found[: sum(sizes)].double() * way).sum()) == pytest.approx(-rise / (2 * sum(sizes)), abs=1e-6)
        value += float(-(torch.from_numpy(known.labels) * real.double().log_softmax(1)).sum()) / (2 * sum(sizes))
    assert float(loss.detach()) == pytest.approx(value, abs=1e-6)


def test_posteriors_of_uum_equal_enumeration() -> None:
    counts, _, sizes = truth(3)
    logits = random_logits(sum(SIZES) + 2, 3)
    found = EnumeratedCounts(counts, sizes, CPU)(logits, step_of(SIZES))
    expected = enumerate_posterior(fastbus.LabelProportion(), logits[:-2], counts, bag_sizes=sizes).labels
    assert np.abs(found[:-2].numpy() - expected).max() < 1e-6
    assert not bool(found[-2:].any())

    two = random_logits(sum(SIZES) + 2, 2)
    seen = torch.tensor([1, 0, 1, 1])
    found = SeenClosedForm(seen[:, None], sizes)(two, step_of(SIZES))
    expected = enumerate_posterior(fastbus.MultiInstance(), two[:-2], seen, bag_sizes=sizes).labels
    assert np.abs(found[:-2].numpy() - expected).max() < 1e-6

    pairs, similar = random_logits(10, 3), pair_labels()
    found = SimilarPairs(similar)(pairs, step_of([2, 2, 2, 2]))
    expected = enumerate_posterior(fastbus.PairSimilarity(), pairs[:8].reshape(4, 2, 3), similar).labels
    assert np.abs(found[:8].numpy() - expected.reshape(8, 3)).max() < 1e-6


@pytest.mark.parametrize("classes", [2, 3])
def test_pairs_of_which_nothing_is_said_teach_nothing(classes: int) -> None:
    """As for gbm, of which uum is said to be another way."""
    for missing in (torch.tensor([1, -1, 0, -1]), torch.tensor([1.0, float("nan"), 0.0, float("nan")])):
        views = [random_logits(8, classes, seed).requires_grad_() for seed in (0, 1)]
        step = step_of([2, 2, 2, 2], empty=0)
        inputs = inputs_of(*views, step._replace(rows=step.rows[:8]))
        sizes = torch.full((4,), 2)
        other = fixed_posterior(fastbus.PairSimilarity(), missing, sizes, classes, CPU)
        slopes = []
        for posterior in (SimilarPairs(missing), other):
            slopes.append(torch.autograd.grad(OwnPosteriorRisk(posterior, QUICK)(inputs), views))
        silent = torch.tensor([False, True, False, True]).repeat_interleave(2)
        for mine, gbms in zip(*slopes, strict=True):
            assert torch.allclose(mine, gbms, atol=1e-7)
            assert float(mine[silent].abs().max()) < 1e-12 and float(mine[~silent].abs().max()) > 1e-3


def test_methods_say_how_far_they_are_exact() -> None:
    """Counts of five classes in 40 instances pass the joint budget of infer."""
    counts = torch.full((1, 5), 8)
    found = fastbus.infer("label_proportion", random_logits(40, 5), counts, bag_sizes=torch.tensor([40]))
    assert not found.exact
    for name in ("gbm", "uum"):
        assert "as far as the joint budget of a bag reaches" in get_method(name).differs
    with pytest.raises(InputError, match="as far as its joint budget reaches and approximate beyond"):
        EnumeratedCounts(torch.tensor([[7, 0]]), torch.tensor([7]), CPU)


def test_count_loss_of_positive_and_unlabelled_rows_by_hand() -> None:
    run = method_run("positive_unlabeled", "count_loss")
    L, M, prior = run.recipe.labelled_rows, 64, run.supervision.prior
    views = [random_logits(M, 2, seed) for seed in (0, 1)]
    step = step_of([1] * M, empty=0)
    found = float(run.objective(inputs_of(*views, step._replace(rows=step.rows[:M]))))
    expected = 0.0
    for logits in views:
        p = logits.softmax(1)[:, 1].numpy()
        counts = np.ones(1)
        for chance in p[L:]:
            counts = np.convolve(counts, [1 - chance, chance])
        apart = (counts * np.log(counts / binom.pmf(np.arange(M - L + 1), M - L, prior))).sum()
        expected += (-np.log(p[:L]).mean() + apart / (M - L)) / 2
    assert found == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("seen", [False, True])
def test_posteriors_of_glws_equal_enumeration_class_by_class(seen: bool) -> None:
    counts, present, sizes = truth(4)
    logits = random_logits(sum(SIZES) + 2, 4)
    step = step_of(SIZES, empty=0)
    block = block_of(step, 5, len(logits))
    padded, weak = logits[block.rows], present if seen else counts
    rule = fastbus.MultiInstance() if seen else fastbus.LabelProportion()
    found = SeenClosedForm.chains(padded, block, weak) if seen else count_posterior(padded, block, weak)
    expected = enumerate_posterior(rule, odds(logits[:-2]), weak, bag_sizes=sizes, head="sigmoid").labels
    assert np.abs(found[block.inside].numpy() - expected).max() < 1e-10


@pytest.mark.parametrize("gap", [20.0, 40.0, 700.0, 740.0, 800.0])
def test_a_class_seen_against_all_odds_has_finite_loss_and_slope(gap: float) -> None:
    """P(class 1) = e^-gap and e^-(gap + 1) of two instances, of which one has it; a third place is empty."""
    logits = torch.tensor([[[0.0, -gap], [0.0, -gap - 1], [0.0, 3.0]]], dtype=torch.float64, requires_grad=True)
    inside, seen = torch.tensor([[True, True, False]]), torch.ones(1, 1, dtype=torch.long)
    loss = chain_nll(logits, inside, seen, seen=True).sum()
    (slope,) = torch.autograd.grad(loss, logits)
    share = math.e / (math.e + 1)
    assert loss.item() == pytest.approx(gap - math.log1p(math.exp(-1)), rel=1e-9)
    assert slope[0, :, 1].tolist() == pytest.approx([-share, share - 1, 0.0], abs=1e-8)
    step = step_of([2], empty=0)
    found = SeenClosedForm.chains(logits.detach()[:, :2], block_of(step, 2, 2), seen)
    assert found.flatten().tolist() == pytest.approx([share, 1 - share], abs=1e-8)


def test_the_centroid_has_no_bias_and_the_least_variance() -> None:
    generator = torch.Generator().manual_seed(0)
    prior, shares, sizes = 0.35, torch.tensor([0.1, 0.5, 0.8]), torch.tensor([30, 50, 20])
    f = torch.randn(4, generator=generator, dtype=torch.float64)  # scores of four possible instances
    positive, negative = (torch.rand(4, generator=generator, dtype=torch.float64) for _ in range(2))
    positive, negative = positive / positive.sum(), negative / negative.sum()
    weight = centroid_weights(shares, sizes, prior)
    density = shares.double()[:, None] * positive + (1 - shares.double()[:, None]) * negative  # (groups, instances)
    estimated = (weight * sizes * (density * f).sum(1)).sum()
    marginal = prior * positive + (1 - prior) * negative
    risk = (marginal * (1 + f**2)).sum() / 4 - estimated / 2
    supervised = (prior * positive * (1 - f) ** 2 + (1 - prior) * negative * (1 + f) ** 2).sum()
    assert float(risk) == pytest.approx(float(supervised) / 4, abs=1e-10)
    # any other unbiased weights of the groups differ by this direction, and vary more
    a = weight * sizes
    free = torch.linalg.cross(torch.ones(3, dtype=torch.float64), shares.double())
    for change in (-0.1, 0.1):
        other = a + change * free
        assert float((other * shares).sum()) == pytest.approx(prior)
        assert float((other**2 / sizes).sum()) > float((a**2 / sizes).sum())
    with pytest.raises(InputError, match="two different shares"):
        centroid_weights(torch.tensor([0.4, 0.4]), torch.tensor([5, 5]), prior)


def test_bags_beyond_the_limits_of_a_method_are_refused() -> None:
    counts = torch.tensor([[7, 0], [1, 1]])
    with pytest.raises(InputError, match=r"uum: a bag of 7 instances; expected at most 6.*bag 0.*exact=True"):
        EnumeratedCounts(counts, torch.tensor([7, 2]), CPU)
    with pytest.raises(WeakLabelError, match=r"do not add up.*bag 1"):
        whole_counts(torch.tensor([[1, 1], [1, -1]]), torch.tensor([2, 2]), 2, "label_proportion")
    positives = whole_counts(torch.tensor([0, 2]), torch.tensor([2, 3]), 2, "label_proportion")
    assert positives.tolist() == [[2, 0], [1, 2]]


def test_exact_inference_extends_the_bags_of_uum() -> None:
    images, labels = digits()
    counts = torch.nn.functional.one_hot(torch.from_numpy(labels[:140]).long().reshape(20, 7), 10).sum(1)

    def run(**facts: object) -> ImageRun:
        sizes, make = torch.full((20,), 7), objective_of("uum", **facts)
        rule = fastbus.LabelProportion()
        return ImageRun(rule, images[:140], sizes, counts, num_classes=10, recipe=QUICK, flip=False, objective=make)

    with pytest.raises(InputError, match="at most 6"):
        run()
    assert np.isfinite(run(exact=True).run_epoch()["loss"])


def binary_run(kind: str, **facts: object) -> ImageRun:
    """Small digits against large ones, with CEGE."""
    images, labels = digits()
    positive = torch.from_numpy(labels[:1400] < 5).long()
    rng = np.random.default_rng(0)
    one, bags = torch.ones(1400, dtype=torch.long), torch.full((350,), 4)
    rule: Supervision
    if kind == "noisy_label":
        wrong = torch.from_numpy(rng.random(1400) < 0.2).long()
        rule, sizes, weak = fastbus.NoisyLabel(transition=[[0.8, 0.2], [0.2, 0.8]]), one, positive ^ wrong
    elif kind == "semi_supervised":
        rule, sizes = fastbus.SemiSupervised(), one
        weak = torch.where(torch.from_numpy(rng.random(1400) < 0.1), positive, -1)
    elif kind == "label_proportion":
        rule, sizes, weak = fastbus.LabelProportion(), bags, positive.reshape(350, 4).sum(1)
    else:  # one digit in ten is positive, so that most bags hold none
        few = torch.from_numpy(labels[:1400] == 0).long()
        rule, sizes, weak = fastbus.MultiInstance(), bags, few.reshape(350, 4).amax(1)
    make = objective_of("cege", **facts)
    return ImageRun(
        rule, images[:1400], sizes, weak, num_classes=2, recipe=QUICK.replace(epochs=10), flip=False, objective=make
    )


@pytest.mark.parametrize(
    ("kind", "facts", "floor"),
    [
        ("noisy_label", {"noise_rate": 0.2}, 0.7),
        ("semi_supervised", {}, 0.7),
        ("label_proportion", {}, 0.7),
        ("multi_instance", {"prior": 0.1}, 0.95),
    ],
)
def test_centroids_of_every_kind_learn_unseen_digits(kind: str, facts: dict[str, object], floor: float) -> None:
    run = binary_run(kind, **facts)
    while not run.done:
        run.run_epoch()
    images, labels = digits()
    expected = labels[1400:] == 0 if kind == "multi_instance" else labels[1400:] < 5
    accuracy = better_than_majority(run.predict(images[1400:]).argmax(1).numpy(), expected)
    assert accuracy > floor, accuracy


def centroid_loss(run: ImageRun, scores: Tensor, rows: Tensor) -> float:
    """CEGE's loss of a step of rows (M,), single instances, whose networks give these scores (M,) for both views."""
    logits = torch.stack([torch.zeros_like(scores), scores], 1)
    step = step_of([1] * len(rows), empty=0)._replace(rows=rows)
    return float(run.objective(inputs_of(logits, logits, step)))


def test_positives_known_by_heart_cannot_lower_the_centroid_risk_without_end() -> None:
    losses = {}
    for bound in (0.0, 2.0):
        run = method_run("positive_unlabeled", "cege", bound=bound)
        rows = torch.from_numpy(run._pack(0).rows[0])
        known = torch.from_numpy(run.labelled)[rows]
        losses[bound] = [centroid_loss(run, torch.where(known, far, -1.0), rows) for far in (1.0, 100.0, 10_000.0)]
    assert losses[0.0][2] < -1000 and losses[2.0][2] == pytest.approx(losses[2.0][1], abs=1e-5)
    with torch.no_grad():  # and it is judged by the scores that it learns by
        judged = run.objective.judged(run, torch.empty(0), torch.tensor([[3.0, 4.0], [0.0, 90.0]]), True)
    assert torch.allclose(judged[:, 1] - judged[:, 0], 2 * torch.tanh(torch.tensor([0.5, 45.0])))


@pytest.mark.parametrize("kind", ["noisy_label", "unlabeled_unlabeled"])
def test_centroids_take_a_missing_label_for_none(kind: str) -> None:
    """Weights and prior are those of the told labels alone; rows of no set stand for nothing."""
    images, one = digits()[0][:60], torch.ones(60, dtype=torch.long)
    told = torch.arange(60) % 3 > 0
    labels = (torch.arange(60) % 2 == 0).long()
    noisy = kind == "noisy_label"
    rule = fastbus.NoisyLabel(rate=0.2) if noisy else fastbus.UnlabeledUnlabeled([0.8, 0.3])
    make = objective_of("cege", **({"noise_rate": 0.2} if noisy else {}))

    def loss(kept: Tensor, weak: Tensor, rows: Tensor) -> float:
        count = int(kept.sum())
        run = ImageRun(rule, images[kept], one[:count], weak, num_classes=2, recipe=QUICK, flip=False, objective=make)
        return centroid_loss(run, torch.linspace(-1, 1, 40), rows)

    every = torch.ones(60, dtype=torch.bool)
    found = loss(every, torch.where(told, labels, -1), told.nonzero()[:, 0])
    assert found == pytest.approx(loss(told, labels[told], torch.arange(40)), abs=1e-6)


# Six short epochs of digits, seed 0: about ten points below what is reached; chance is .1, for two classes .5.
FLOORS = {
    ("label_proportion", "count_loss"): 0.65,
    ("label_proportion", "gbm"): 0.65,
    ("label_proportion", "uum"): 0.65,
    ("label_proportion", "glws"): 0.6,
    ("multi_instance", "count_loss"): 0.4,
    ("multi_instance", "gbm"): 0.5,
    ("multi_instance", "uum"): 0.4,
    ("multi_instance", "glws"): 0.4,
    ("positive_unlabeled", "count_loss"): 0.7,
    ("positive_unlabeled", "glws"): 0.7,
    ("positive_unlabeled", "cege"): 0.7,
    ("unlabeled_unlabeled", "cege"): 0.75,
    ("partial_label", "glws"): 0.8,
    ("noisy_label", "glws"): 0.8,
    ("semi_supervised", "glws"): 0.8,
}


@pytest.mark.parametrize(("kind", "method"), FLOORS)
def test_general_methods_learn_unseen_digits(kind: str, method: str) -> None:
    accuracy = unseen_accuracy(method_run(kind, method), kind)
    assert accuracy > FLOORS[kind, method], accuracy


@pytest.mark.parametrize("method", ["uum", "gbm", "glws"])
def test_general_methods_tell_similar_digits_apart(method: str) -> None:
    accuracy = pair_accuracy(pair_run("pair_similarity", method))
    assert max(accuracy, 1 - accuracy) > 0.85, accuracy  # which class is which, similarity does not say


@pytest.mark.parametrize("kind", ["multi_instance", "label_proportion", "pair_similarity", "similarity_confidence"])
def test_methods_that_are_called_equal_take_the_same_steps(kind: str) -> None:
    """The grid runs one of them for both."""
    name, other = next(pair for pair in EQUAL.items() if kind in get_method(pair[0]).settings)
    make = method_run if kind in ("multi_instance", "label_proportion") else pair_run
    facts = {"prior": 0.4} if kind == "similarity_confidence" else {}
    runs = [make(kind, method, QUICK.replace(epochs=1), **facts) for method in (name, other)]  # type: ignore[operator]
    first = float(runs[0].logits(runs[0].training.images).abs().sum())
    for run in runs:
        run.run_epoch()
    found, expected = (run.logits(run.training.images, average=False) for run in runs)
    assert torch.allclose(found, expected, atol=1e-3)
    assert abs(float(runs[0].logits(runs[0].training.images).abs().sum()) - first) > 1  # they did learn
