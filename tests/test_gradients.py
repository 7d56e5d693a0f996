"""Gradients: right by finite differences everywhere, equal to posterior - prior where exact, never NaN."""

import warnings

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

import fastbus
from catalogue import CASES, CONFUSION, CROWD, Case, infer, prior_of, random_batch
from fastbus import (
    CrowdLabel,
    LabelProportion,
    MultiInstance,
    NoisyLabel,
    PairSimilarity,
    PartialLabel,
    SemiSupervised,
    WeakLoss,
)
from fastbus.bench.own_rules import AtLeast
from fastbus.oracle import enumerate_posterior
from fastbus.supervision.base import REGISTRY
from tensors import draws, leaf

torch.set_num_threads(1)
INF = float("inf")
EVERY_CASE = pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())


def outputs(case, batch, **options):
    """What a caller differentiates: posteriors and likelihoods, as functions of the predictions."""

    def function(x):
        post = infer(case, batch, x, **options)
        return post.labels, post.log_likelihood

    return function


# -- finite differences ---------------------------------------------------------------------------


@EVERY_CASE
def test_first_derivatives(case):
    batch = random_batch(case, seed=1, bags=3)
    assert gradcheck(outputs(case, batch), leaf(batch.logits), fast_mode=True)


COUPLED = {
    "joint proportion": (LabelProportion(), [[2, 1, 1], [1, 1, 1]], "joint"),
    "joint missing count": (LabelProportion(), [[2, -1, -1], [1, -1, 0]], "joint"),
    "joint multi-instance": (MultiInstance(noise=(0.1, 0.2)), [[1, 1, 0], [1, -1, 0]], "joint"),
    "joint own rule": (AtLeast(2), [[1, 0, 0], [1, 0, -1]], "joint"),
    "independent proportion": (LabelProportion(), [[2, 1, 1], [1, 1, 1]], "independent"),
    "independent multi-instance": (MultiInstance(), [[1, 1, 0], [1, -1, 0]], "independent"),
    "independent own rule": (AtLeast(2), [[1, 0, 0], [1, 0, -1]], "independent"),
    "tilted": (LabelProportion(), [[2, 1, 1], [1, 1, 1]], "tilted"),
    "tilted missing count": (LabelProportion(), [[2, -1, -1], [1, -1, 0]], "tilted"),
    "loop": (MultiInstance(), [[1, 1, 1], [1, 1, 0]], "loop"),
    "loop noise": (MultiInstance(noise=(0.1, 0.2)), [[1, 1, 0], [1, -1, 0]], "loop"),
}


@pytest.mark.parametrize("second", [False, True], ids=["first", "second"])
@pytest.mark.parametrize("supervision, weak, coupling", COUPLED.values(), ids=COUPLED.keys())
def test_derivatives_of_couplings(supervision, weak, coupling, second):
    weak = torch.tensor(weak)
    mask = torch.tensor([[True] * 4, [True] * 3 + [False]])
    logits = draws(2, 4, 3, seed=3)

    def function(x):
        post = fastbus.infer(supervision, x, weak, mask, coupling=coupling)
        assert post.coupling == [coupling] * 2 and bool(post.converged.all())
        return post.labels, post.log_likelihood

    check = gradgradcheck if second else gradcheck
    # a random direction hardly sees the second derivative of the multipliers, so all of them are tried
    assert check(function, leaf(logits), fast_mode=coupling != "tilted")


SECOND = [
    "multi_instance-sigmoid1",
    "multi_instance-noise-softmax3",
    "label_proportion-sigmoid1",
    "label_proportion-softmax3",
    "label_proportion-soft-sigmoid2",
    "label_proportion-virtual-softmax3",
    "pair_comparison-sorted-sigmoid1",
    "pair_similarity-softmax3",
    "similarity_confidence-softmax3",
    # a mean is met by root finding; the root's second derivative is part of the posterior's
    "confidence_difference-sigmoid1",
    "unlabeled_unlabeled-mean-softmax2",
    "comparison & difference-softmax2",
    "positive_unlabeled-jeffrey-sigmoid1",
    "crowd_label-softmax3",
    "proportion & semi-softmax3",
    "from_function-majority-softmax2",
]


@pytest.mark.parametrize("name", SECOND)
def test_second_derivatives(name):
    batch = random_batch(CASES[name], seed=1, bags=2)
    assert gradgradcheck(outputs(CASES[name], batch), leaf(batch.logits), fast_mode=True)


PROBABILITIES = ["label_proportion-softmax3", "label_proportion-sigmoid2", "partial_label-softmax3"]
PROBABILITIES += [
    "multi_instance-sigmoid1",
    "similarity_confidence-softmax3",
    "confidence_difference-sigmoid1",
]


@pytest.mark.parametrize("inputs", ["probs", "log_probs"])
@pytest.mark.parametrize("name", PROBABILITIES)
def test_derivatives_of_probabilities(name, inputs):
    case = CASES[name]
    batch = random_batch(case, seed=1, bags=3)
    prior = prior_of(case, batch.logits)
    x = leaf(prior if inputs == "probs" else prior.log())
    assert gradcheck(outputs(case, batch, inputs=inputs), x, fast_mode=True)
    post = infer(case, batch, x, inputs=inputs)
    (gradient,) = torch.autograd.grad(post.log_likelihood.sum(), x)
    # by the chain rule from (posterior - prior): dp = p (1 - p) d logit, or p d logit within a row
    slope = prior * (1 - prior) if case.head == "sigmoid" else prior
    if inputs == "log_probs":
        slope = slope / prior
    expected = (post.labels.detach() - prior) / slope * batch.mask[..., None]
    torch.testing.assert_close(gradient, expected, rtol=1e-11, atol=1e-11)


def test_learnable_transitions():
    logits, weak = draws(4, 1, 3), torch.tensor([0, 1, 2, 1])
    answers = torch.tensor([[0, 1, -1], [2, 2, 2], [-1, -1, 0], [1, 0, 2]])

    def noisy(free):
        post = fastbus.infer(NoisyLabel(free.softmax(-1)), logits, weak)
        return post.labels, post.log_likelihood

    def crowd(free):
        post = fastbus.infer(CrowdLabel(free.softmax(-1)), logits, answers)
        return post.labels, post.log_likelihood

    assert gradcheck(noisy, leaf(CONFUSION.log()))
    assert gradcheck(crowd, leaf(CROWD.log()), fast_mode=True)
    # d log P(w) / d T[y, w] = P(y | w) / T[y, w], a count of soft co-occurrences
    matrix = leaf(CONFUSION)
    post = fastbus.infer(NoisyLabel(matrix), logits, weak)
    post.log_likelihood.sum().backward()
    seen = torch.zeros(3, 3, dtype=torch.float64).index_add(1, weak, post.labels.detach()[:, 0].T)
    torch.testing.assert_close(matrix.grad, seen / CONFUSION, rtol=1e-12, atol=1e-12)


# -- the identity of exact inference ----------------------------------------------------------------


@EVERY_CASE
def test_gradient_is_posterior_minus_prior(case):
    batch = random_batch(case, seed=2)
    x = leaf(batch.logits)
    post = infer(case, batch, x)
    assert post.exact
    (gradient,) = torch.autograd.grad(post.log_likelihood.sum(), x)
    real = batch.mask[..., None]
    expected = (post.labels.detach() - prior_of(case, batch.logits)) * real
    torch.testing.assert_close(gradient, expected, rtol=0, atol=1e-12)
    truth = enumerate_posterior(case.supervision, batch.logits.numpy(), batch.weak, batch.mask.numpy(), head=case.head)
    enumerated = (torch.from_numpy(truth.labels) - prior_of(case, batch.logits)) * real
    torch.testing.assert_close(gradient, enumerated, rtol=0, atol=1e-12)


@EVERY_CASE
def test_loss_has_the_gradient_of_the_likelihood(case):
    batch = random_batch(case, seed=3)
    x, y = leaf(batch.logits), leaf(batch.logits)
    loss = WeakLoss(case.supervision, head=case.head, reduction="sum")(x, batch.weak, batch.mask)
    loss.backward()
    (-infer(case, batch, y).log_likelihood.sum()).backward()
    torch.testing.assert_close(x.grad, y.grad, rtol=0, atol=1e-12)
    assert float(x.grad.abs().max()) > 1e-3, "a batch without anything to learn tests nothing"


# -- the edges -------------------------------------------------------------------------------------


def finite_gradients(case, batch, x, **options):
    """Gradients of likelihoods and posteriors at x, both finite; returns the former and the posterior."""
    x = leaf(x)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", fastbus.ImpossibleEvidenceWarning)
        post = infer(case, batch, x, on_impossible="ignore", **options)
    assert bool(post.log_likelihood.isfinite().all()) and bool(post.labels.isfinite().all())
    (gradient,) = torch.autograd.grad(post.log_likelihood.sum(), x, retain_graph=True)
    weights = draws(*post.labels.shape, seed=5)
    (through,) = torch.autograd.grad((post.labels * weights).sum(), x)
    assert bool(gradient.isfinite().all()) and bool(through.isfinite().all())
    return gradient, post


@EVERY_CASE
@pytest.mark.parametrize("scale", [50.0, 1e4])
def test_gradients_at_enormous_logits(case, scale):
    batch = random_batch(case, seed=4, scale=scale)
    gradient, post = finite_gradients(case, batch, batch.logits)
    expected = (post.labels.detach() - prior_of(case, batch.logits)) * batch.mask[..., None]
    # the logarithm of e^-10000 carries an absolute error of about 1e-12, which the posterior inherits
    torch.testing.assert_close(gradient, expected, rtol=0, atol=1e-10)
    for mode in ("em", "joint"):
        x = leaf(batch.logits)
        loss = WeakLoss(case.supervision, head=case.head, mode=mode)
        loss(x, batch.weak, batch.mask).backward()
        assert bool(x.grad.isfinite().all())


def certain_instances(case, batch):
    """Logits whose first instance in every bag is certain of a label that the evidence allows."""
    labels = infer(case, batch).map()[:, 0]
    x = batch.logits.clone()
    if case.head == "sigmoid":
        x[:, 0] = torch.where(labels == 1, INF, -INF)
        return x
    other = torch.arange(case.classes) != labels[:, None]
    x[:, 0] = x[:, 0].masked_fill(other, -INF)
    return x


def sets_a_distribution(case):
    """Such weak labels ask for every state, which certain predictions may rule out."""
    return case.supervision.applies_last


@EVERY_CASE
def test_gradients_of_certain_predictions(case):
    batch = random_batch(case, seed=5)
    x = certain_instances(case, batch)
    prior = prior_of(case, x)
    gradient, post = finite_gradients(case, batch, x)
    if not sets_a_distribution(case):
        assert not bool(post.ignored.any())
    expected = (post.labels.detach() - prior) * batch.mask[..., None]
    torch.testing.assert_close(gradient, expected, rtol=0, atol=1e-12)
    finite_gradients(case, batch, prior, inputs="probs")
    finite_gradients(case, batch, prior.log(), inputs="log_probs")
    for mode in ("em", "joint"):
        y = leaf(x)
        loss = WeakLoss(case.supervision, head=case.head, mode=mode, on_impossible="ignore")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", fastbus.ImpossibleEvidenceWarning)
            value = loss(y, batch.weak, batch.mask)
        value.backward()
        assert bool(value.isfinite()) and bool(y.grad.isfinite().all())


def test_infinite_logit_is_certainty_in_the_loss():
    """A +inf logit and a row that is -inf elsewhere say the same."""
    weak = torch.tensor([[1, 2, 0]])
    logits = draws(1, 3, 3)
    sure, equal = logits.clone(), logits.clone()
    sure[0, 0, 1] = INF
    equal[0, 0, [0, 2]] = -INF
    results = []
    for x in (leaf(sure), leaf(equal)):
        value = WeakLoss("label_proportion", smoothing=1.0, likelihood=1.0)(x, weak)
        value.backward()
        results.append((value.detach(), x.grad))
    torch.testing.assert_close(results[0], results[1], rtol=1e-13, atol=1e-13)
    assert bool(results[0][0].isfinite())


@pytest.mark.parametrize("head, classes", [("sigmoid", 1), ("softmax", 2)])
def test_gradients_of_improbable_evidence(head, classes):
    """Answers known in closed form, where a linear-space recursion has long underflown."""
    K, low = 40, -800.0
    x = torch.zeros(1, K, classes, dtype=torch.float64)
    x[..., -1] = low
    everyone = fastbus.infer("label_proportion", y := leaf(x), torch.tensor([K]), head=head)
    everyone.log_likelihood.sum().backward()
    torch.testing.assert_close(float(everyone.log_likelihood.detach()), K * low, rtol=1e-14, atol=0)
    torch.testing.assert_close(y.grad[..., -1], torch.ones(1, K, dtype=torch.float64), rtol=0, atol=1e-12)
    someone = fastbus.infer("multi_instance", y := leaf(x), torch.tensor([1]), head=head)
    someone.log_likelihood.sum().backward()
    share = torch.full((1, K), 1 / K, dtype=torch.float64)
    torch.testing.assert_close(y.grad[..., -1], share, rtol=0, atol=1e-12)


# -- expectation maximisation ----------------------------------------------------------------------


def em_problem(name):
    """A supervision, its head, bags of recurring types (B, K), weak labels, and a first table (T, C)."""
    generator = torch.Generator().manual_seed(11)
    types, B, K = 6, 24, 4
    K = {"pair similarity": 2, "partial labels": 1}.get(name, K)
    which = torch.randint(types, (B, K), generator=generator)
    truth = torch.randint(3, (types,), generator=generator)
    # labels scatter about their type's own, so that the best table is no corner
    flipped = torch.rand(B, K, generator=generator) < 0.3
    labels = torch.where(flipped, torch.randint(3, (B, K), generator=generator), truth[which])
    table = torch.rand(types, 3, generator=generator, dtype=torch.float64) + 0.2
    table = table / table.sum(-1, keepdim=True)
    one_hot = torch.nn.functional.one_hot(labels, 3)
    if name == "multi-instance":
        chances = torch.rand(types, 2, generator=generator, dtype=torch.float64)
        return MultiInstance(), "sigmoid", which, one_hot[..., :2].amax(1), chances
    if name == "pair similarity":
        return PairSimilarity(), "softmax", which, (labels[:, 0] == labels[:, 1]).long(), table
    if name == "partial labels":
        candidates = one_hot[:, 0] | (torch.rand(B, 3, generator=generator) < 0.4)
        return PartialLabel(), "softmax", which, candidates.long(), table
    if name == "combination":
        gold = torch.where(torch.rand(B, K, generator=generator) < 0.1, labels, -1)
        seen = one_hot.amax(1)
        return MultiInstance() & SemiSupervised(), "softmax", which, (seen, gold), table
    return LabelProportion(), "softmax", which, one_hot.sum(1), table


def em_step(supervision, head, which, weak, table, **options):
    """The total log-likelihood of a table, and the table of averaged posteriors."""
    post = fastbus.infer(supervision, table[which], weak, head=head, inputs="probs", **options)
    bags = which.flatten()
    total = torch.zeros_like(table).index_add(0, bags, post.labels.flatten(0, 1))
    occurrences = torch.bincount(bags, minlength=len(table))[:, None]
    return float(post.log_likelihood.sum()), total / occurrences


@pytest.mark.parametrize("name", ["proportions", "multi-instance", "pair similarity", "partial labels", "combination"])
def test_em_never_lowers_the_likelihood(name):
    supervision, head, which, weak, table = em_problem(name)
    assert int(torch.bincount(which.flatten(), minlength=len(table)).min()) > 0
    history = []
    for step in range(1000):
        # the first step has checked the values; what follows only has to be quick
        likelihood, table = em_step(supervision, head, which, weak, table, validate=step == 0)
        history.append(likelihood)
    rises = torch.tensor(history, dtype=torch.float64).diff()
    assert float(rises.min()) >= -1e-10
    assert history[-1] > history[0] + 1.0
    assert abs(float(rises[-1])) < 1e-3, "it has not settled"


def test_an_inexact_posterior_lowers_the_likelihood():
    """What the test above can see: steps of the independent coupling lead away from the optimum."""
    problem = em_problem("proportions")
    for _ in range(300):
        best, table = em_step(*problem)
        problem = (*problem[:-1], table)
    for _ in range(5):
        _, table = em_step(*problem, coupling="independent")
        problem = (*problem[:-1], table)
    assert em_step(*problem)[0] < best - 1e-2


def test_case_table_covers_the_registry():
    # other tests may have registered rules of their own
    kinds = {name for name, kind in REGISTRY.items() if kind.__module__.startswith("fastbus.")}
    named = {part.title for case in CASES.values() for part in parts_of(case)}
    # a sum over differently grouped bags: its terms are rows of the table
    assert kinds - named == {"similar_dissimilar_unlabeled"}


def parts_of(case: Case):
    return getattr(case.supervision, "parts", (case.supervision,))
