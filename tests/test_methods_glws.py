"""GLWS against numbers worked out by hand: what its two terms compare, and with which view."""

import numpy as np
import pytest
import torch
from scipy.optimize import brentq

import fastbus
from digit_runs import method_digits, method_run
from fastbus.methods import objective_of
from fastbus.methods.general import OwnPosteriorRisk
from fastbus.methods.glws import BagEM, NoisyEM, PairEM, SemiEM, confusion_of, imbalance
from fastbus.oracle import enumerate_posterior
from fastbus.training.image_run import ImageRun
from fastbus.training.step_objective import PosteriorRisk, doubtful
from method_steps import inputs_of, random_logits, step_of
from pair_digits import pair_run
from test_image_run import QUICK
from test_methods_steps import Waiting


@pytest.mark.parametrize("kind", ["pair_comparison", "confidence_difference"])
def test_glws_compares_each_view_of_ordered_pairs_with_itself_where_the_recipe_does(kind: str) -> None:
    objective = pair_run(kind, "glws", QUICK.replace(own=True)).objective
    assert isinstance(objective, PairEM)
    views = [random_logits(8, 2, seed).float().requires_grad_() for seed in (0, 1)]
    step = step_of([2, 2, 2, 2], empty=0)
    inputs = inputs_of(views[0], views[1], step._replace(rows=step.rows[:8]))
    likelihood = OwnPosteriorRisk(objective.posterior, QUICK)
    for found, expected in zip(*(torch.autograd.grad(f(inputs), views) for f in (objective, likelihood)), strict=True):
        assert torch.allclose(found, expected, atol=1e-7)
    crossed = torch.autograd.grad(pair_run(kind, "glws").objective(inputs), views)[1]
    assert not torch.allclose(crossed, expected, atol=1e-3)


def test_glws_of_noisy_labels_by_hand() -> None:
    run = method_run("noisy_label", "glws")
    step = step_of([1, 1, 1, 1], empty=0)
    step = step._replace(rows=step.rows[:4])
    weak, strong = (random_logits(4, 10, seed).float() for seed in (0, 1))
    said = run.weak[:4].numpy()
    evidence = np.where(np.arange(10) == said[:, None], 0.8, 0.2 / 9)  # P(said | class)
    p, r = (x.double().softmax(1).numpy() for x in (weak, strong))
    q, s = ((x * evidence) / (x * evidence).sum(1, keepdims=True) for x in (p, r))
    total = -np.log((p * evidence).sum(1)) - (q * np.log(s)).sum(1) - (p * np.log(r)).sum(1)
    expected = float(total.mean() - 0.1 * np.log(p.mean(0)).mean())
    assert float(run.objective(inputs_of(weak, strong, step))) == pytest.approx(expected, abs=1e-5)
    uneven = torch.tensor([0.2, 0.1, 0.7])
    mean = torch.tensor([[0.5, 0.25, 0.25]]).log()
    assert float(imbalance(mean, uneven)) == pytest.approx(-0.2 * np.log(0.5) - 0.8 * np.log(0.25), rel=1e-6)


@pytest.mark.parametrize("learnt", [False, True])
def test_glws_goes_by_a_transition_that_is_told_unless_it_is_to_learn_one(learnt: bool) -> None:
    _, images, sizes, weak, _, _ = method_digits("noisy_label")
    transition = np.full((10, 10), 0.03) + 0.5 * np.eye(10) + 0.2 * np.eye(10)[:, ::-1]
    told, make = fastbus.NoisyLabel(transition), objective_of("glws", **({"learn_transition": True} if learnt else {}))
    run = ImageRun(told, images, sizes, weak, num_classes=10, recipe=QUICK, flip=False, objective=make)
    assert set(run.objective.learned) == ({"confusion"} if learnt else set())
    step = step_of([1] * 4, empty=0)
    weak_view, strong = (random_logits(4, 10, seed).float() for seed in (0, 1))
    found = float(run.objective(inputs_of(weak_view, strong, step._replace(rows=step.rows[:4]))).detach())
    evidence = transition.T[weak[:4].numpy()]  # P(said | class)
    p, r = (x.double().softmax(1).numpy() for x in (weak_view, strong))
    q, s = ((x * evidence) / (x * evidence).sum(1, keepdims=True) for x in (p, r))
    total = -np.log((p * evidence).sum(1)) - (q * np.log(s)).sum(1) - (p * np.log(r)).sum(1)
    by_hand = float(total.mean() - 0.1 * np.log(p.mean(0)).mean())
    assert (found == pytest.approx(by_hand, abs=1e-5)) is not learnt


def labellings(kind: str, weak: float, joint: np.ndarray) -> np.ndarray:
    """P(both labels | what is said), (2, 2), from that by the predictions alone; written out apart from the library."""
    first, second = np.array([[0, 0], [1, 1]]), np.array([[0, 1], [0, 1]])
    if kind == "pair_comparison":  # two that are alike are put in either order
        ahead, behind = (first, second) if weak == 1 else (second, first)
        told = joint * np.where(ahead == behind, 0.5, ahead > behind)
        return told / told.sum()
    alike = first == second
    if kind in ("pair_similarity", "similarity_confidence"):  # Jeffrey's rule; a hard label is a sure one
        return np.where(alike, weak * joint / joint[alike].sum(), (1 - weak) * joint / joint[~alike].sum())

    def tilted(t: float) -> np.ndarray:  # one of these is the nearest distribution that has the difference as its mean
        q = joint * np.exp(t * (second - first))
        return q / q.sum()

    return tilted(brentq(lambda t: ((second - first) * tilted(t)).sum() - weak, -50, 50, xtol=1e-12))


@pytest.mark.parametrize(
    "kind", ["pair_comparison", "pair_similarity", "similarity_confidence", "confidence_difference"]
)
def test_glws_of_pairs_by_hand(kind: str) -> None:
    run = pair_run(kind, "glws")
    bags = 6
    views = [random_logits(2 * bags, 2, seed).float() for seed in (0, 1)]
    step = step_of([2] * bags, empty=0)
    found = float(run.objective(inputs_of(*views, step._replace(rows=step.rows[: 2 * bags]))))
    p = views[0].double().softmax(1).numpy().reshape(bags, 2, 2)
    logs = [x.double().log_softmax(1).numpy().reshape(bags, 2, 2) for x in views]
    expected = 0.0
    for bag in range(bags):
        joint = labellings(kind, float(run.weak[bag]), np.outer(p[bag, 0], p[bag, 1]))
        q = np.stack([joint.sum(1), joint.sum(0)])  # of the weak view's predictions, for both views
        expected -= sum((q * log[bag]).sum() for log in logs) / 2
    assert found == pytest.approx(expected / (2 * bags), abs=1e-5)


def test_glws_of_candidates_by_hand() -> None:
    run = method_run("partial_label", "glws")
    views = [random_logits(5, 10, seed).float() for seed in (0, 1)]
    step = step_of([1] * 5, empty=0)
    found = float(run.objective(inputs_of(*views, step._replace(rows=step.rows[:5]))))
    candidate = run.weak[:5].numpy()
    assert 0 < candidate.mean() < 1
    p, r = (x.double().softmax(1).numpy() for x in views)
    q = p * candidate / (p * candidate).sum(1, keepdims=True)
    outside = -(np.log(1 - p) * (1 - candidate)).sum(1)
    agree = -(q * np.log(p)).sum(1) - (q * np.log(r)).sum(1)
    assert found == pytest.approx(float((outside + agree / 2).mean() - 0.1 * np.log(p.mean(0)).mean()), abs=1e-5)


@pytest.mark.parametrize("prior", [None, 0.15])
def test_glws_of_positives_by_hand_with_the_share_that_it_is_told(prior: float | None) -> None:
    run = method_run("positive_unlabeled", "glws", **({} if prior is None else {"prior": prior}))
    share = run.supervision.prior if prior is None else prior
    rows = torch.from_numpy(run._pack(0).rows[0])
    L, M = run.recipe.labelled_rows, len(rows)
    views = [random_logits(M, 2, seed).float() for seed in (0, 1)]
    found = float(run.objective(inputs_of(*views, step_of([1] * M, empty=0)._replace(rows=rows))))
    f, g = ((x[:, 1] - x[:, 0]).double().numpy() for x in views)
    shift = brentq(lambda t: (1 / (1 + np.exp(-f[L:] - t))).mean() - share, -50, 50, xtol=1e-12)
    q = 1 / (1 + np.exp(-f[L:] - shift))
    known = np.log1p(np.exp(-f[:L])).mean() + np.log1p(np.exp(-g[:L])).mean()
    agree = sum((q * np.log1p(np.exp(-x[L:])) + (1 - q) * np.log1p(np.exp(x[L:]))).mean() for x in (f, g))
    assert found == pytest.approx((known + agree) / 4, abs=1e-5)


def test_a_learned_confusion_is_that_of_the_authors() -> None:
    matrix = np.random.default_rng(0).normal(size=(4, 4))
    unit = matrix / np.sqrt((matrix**2).sum(0, keepdims=True))
    unit = unit / np.sqrt((unit**2).sum(1, keepdims=True))
    expected = np.exp(unit) / np.exp(unit).sum(1, keepdims=True)
    assert np.allclose(confusion_of(torch.from_numpy(matrix)).exp().numpy(), expected, atol=1e-12)
    steeper = expected**2.5 / (expected**2.5).sum(1, keepdims=True)
    assert np.allclose(confusion_of(torch.from_numpy(matrix), 2.5).exp().numpy(), steeper, atol=1e-12)
    start = confusion_of(torch.eye(10)).exp()
    assert float(start[0, 0]) == pytest.approx(np.e / (np.e + 9), rel=1e-6)


def test_a_learned_confusion_cannot_take_all_labels_for_right() -> None:
    _, images, sizes, weak, _, _ = method_digits("noisy_label")
    recipe = QUICK.replace(epochs=4)
    make = objective_of("glws")
    run = ImageRun(fastbus.NoisyLabel(), images, sizes, weak, num_classes=10, recipe=recipe, flip=False, objective=make)
    assert isinstance(run.objective, NoisyEM)
    before = run.objective.log_confusion().exp().detach().clone()
    while not run.done:
        assert np.isfinite(run.run_epoch()["loss"])
    after = run.objective.log_confusion().exp().detach()
    assert float((after - before).abs().max()) > 1e-4  # it learns
    assert float(after.max()) <= np.e / (np.e + 9 * np.exp(-1)) and float(after.diagonal().max()) < 0.25


@pytest.mark.parametrize("kind", ["label_proportion", "multi_instance"])
def test_glws_of_bags_by_hand(kind: str) -> None:
    run = method_run(kind, "glws")
    objective = run.objective
    assert isinstance(objective, BagEM)
    bags = 3
    sizes = run.sizes[:bags].tolist()
    rows = sum(sizes)
    weak, strong = (random_logits(rows + 2, 10, seed) for seed in (0, 1))
    p = weak[:rows].softmax(1)
    rule = fastbus.LabelProportion() if kind == "label_proportion" else fastbus.MultiInstance()
    told = {"bag_sizes": torch.tensor(sizes), "head": "sigmoid"}
    found = enumerate_posterior(rule, p.log() - torch.log1p(-p), run.weak[:bags], **told)  # class by class
    q = torch.as_tensor(found.labels)
    q = q / q.sum(1, keepdim=True)
    agree = -(q * strong[:rows].log_softmax(1)).sum(1).mean()
    likelihood = -torch.as_tensor(found.log_likelihood).mean()  # over bags
    expected = float(agree + likelihood) / (1 + rows / bags)
    assert float(objective(inputs_of(weak, strong, step_of(sizes)))) == pytest.approx(expected, rel=1e-5)
    objective.own = True
    r = strong[:rows].softmax(1)
    own = enumerate_posterior(rule, r.log() - torch.log1p(-r), run.weak[:bags], **told)
    q = torch.as_tensor(own.labels)
    agree = -(q / q.sum(1, keepdim=True) * strong[:rows].log_softmax(1)).sum(1).mean()
    expected = float(agree + likelihood) / (1 + rows / bags)
    assert float(objective(inputs_of(weak, strong, step_of(sizes)))) == pytest.approx(expected, rel=1e-5)


def test_glws_takes_a_missing_label_for_no_evidence() -> None:
    run = method_run("noisy_label", "glws")
    objective = run.objective
    rows = torch.arange(4)
    objective.told[rows] = False
    view = random_logits(4 + 2, run.num_classes, 0).float()
    step = step_of([1] * 4)
    losses = []
    for label in (0, 1):  # whatever class stands in its place
        objective.labels[rows] = label
        losses.append(float(objective(inputs_of(view[:4], view[:4], step._replace(rows=rows)))))
    assert losses[0] == losses[1]


@pytest.mark.parametrize("kind", ["label_proportion", "multi_instance", "semi_supervised", "positive_unlabeled"])
def test_a_step_waits_for_nothing(kind: str) -> None:
    run = method_run(kind, "glws", QUICK.replace(epochs=1))
    run.training.load(run._pack(0))
    with Waiting():
        run.training.run(1)
    assert bool(run.training.loss.isfinite())


def test_targets_keep_the_three_most_probable_classes() -> None:
    run = method_run("semi_supervised", "glws")
    L, M = run.recipe.labelled_rows, 64
    weak, strong = (random_logits(M, 10, seed).float() for seed in (0, 1))
    objective = run.objective
    assert isinstance(objective, SemiEM)
    rows = torch.from_numpy(run._pack(0).rows[0])
    step = step_of([1] * M, empty=0)._replace(rows=rows)
    found = float(objective(inputs_of(weak, strong, step)))
    gold = run.weak[rows[:L]]
    known = sum(torch.nn.functional.cross_entropy(x[:L], gold) for x in (weak, strong)) / 2
    p = weak[L:].softmax(1)
    shares = torch.bincount(run.weak[run.weak >= 0], minlength=10) / (run.weak >= 0).sum()
    aligned = p * shares / p.mean(0)  # the first step is all there is of a running mean
    top, kept = aligned.sort(1, descending=True)
    target = top[:, :3] / top[:, :3].sum(1, keepdim=True)
    agree = -(target * strong[L:].log_softmax(1).gather(1, kept[:, :3])).sum(1).mean()
    expected = known + agree - 0.1 * (shares * p.mean(0).log()).sum()
    assert found == pytest.approx(float(expected), abs=1e-5)


@pytest.mark.parametrize("method", ["glws", "fastbus"])
def test_doubt_leads_out_of_a_single_class(method: str) -> None:
    """All instances far on one side: comparisons agree, and only doubt tells the two of a pair apart."""
    posterior = pair_run("pair_comparison", "glws").objective.posterior
    step = step_of([2, 2, 2, 2], empty=0)
    step = step._replace(rows=step.rows[:8])

    def slope(doubt: float) -> torch.Tensor:
        views = [torch.tensor([-15.0, 15.0]).repeat(8, 1).requires_grad_() for _ in range(2)]
        recipe = QUICK.replace(own=True, doubt=doubt)
        objective = PairEM(posterior, True, doubt) if method == "glws" else PosteriorRisk(posterior, recipe)
        return torch.autograd.grad(objective(inputs_of(views[0], views[1], step)), views)[0]

    assert float(slope(0.0).abs().max()) < 1e-7
    # the less positive one of a pair goes down, the other hardly moves
    pairs = slope(0.02)[:, 1].view(4, 2)
    less, more = pairs.max(1).values, pairs.min(1).values
    assert bool((less > 1e-3).all()) and bool((more.abs() < less / 50).all())


def test_doubt_mixes_an_even_guess_in() -> None:
    logits = random_logits(5, 3, 0)
    mixed = doubtful(logits, 0.1).softmax(1)
    assert torch.allclose(mixed, 0.9 * logits.softmax(1) + 0.1 / 3, atol=1e-12)
    assert doubtful(logits, 0.0) is logits
