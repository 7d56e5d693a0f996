"""Classes tied at their weak labels: against enumeration, without a trace where factors are ones, safe at the edges."""

import numpy as np
import pytest
import torch

import fastbus
from class_loop_cases import AtLeastTwo, Truth, enumerate_bag, infer, random_factor, reported
from fastbus import ClassLoop, ClassTransition, ImpossibleError, InputError
from fastbus.inference.class_messages import connected, is_forest
from tensors import close, draws, leaf

EXACT, MISSING = [[1, 0, 1, 1], [0, 0, 1, 0]], [[1, -1, 0, -1], [-1, -1, 1, -1]]
TREE = [(0, 1), (1, 2), (1, 3)]


def truths(logits, loop, said, rule=np.max):
    """The enumerated truth of every bag; said(b) is the evidence of bag b."""
    log_factor = loop.log_factor.detach().double().numpy()
    probs = torch.sigmoid(logits.detach()).numpy()
    return [enumerate_bag(probs[b], rule, said(b), log_factor) for b in range(len(probs))]


def compare(post, expected: list[Truth], tolerance=1e-12):
    close(post.labels.detach(), torch.tensor(np.stack([truth.labels for truth in expected])), tolerance)
    close(
        post.log_likelihood.detach(),
        torch.tensor([truth.log_likelihood for truth in expected], dtype=torch.float64),
        tolerance,
    )


# -- no trace of factors that are ones --------------------------------------------------------------


@pytest.mark.parametrize("learn", [True, False])
@pytest.mark.parametrize("method", ["exact", "sweeps"])
@pytest.mark.parametrize("make", [ClassLoop.ones, ClassTransition])
@pytest.mark.parametrize(
    ("rule", "weak"),
    [
        (fastbus.MultiInstance(), MISSING),
        (fastbus.MultiInstance(noise=(0.1, 0.2)), EXACT),
        (fastbus.LabelProportion(), [[2, -1, 0, 1], [1, 3, -1, -1]]),
        (AtLeastTwo(), MISSING),
    ],
)
def test_neutral_modules_change_no_bit(make, method, learn, rule, weak):
    values = 4 if isinstance(rule, fastbus.LabelProportion) else 2
    options = {"learn": learn} | ({"method": method} if make != ClassTransition else {})
    module = make(4, values, **options)
    logits = draws(2, 3, 4)
    for dtype in (torch.float64, torch.float32):
        alone = infer(logits.to(dtype), weak, None, rule)
        tied = infer(logits.to(dtype), weak, module, rule)
        assert torch.equal(tied.labels, alone.labels) and torch.equal(tied.log_likelihood, alone.log_likelihood)
        assert torch.equal(tied.informed, alone.informed) and tied.exact and tied.likelihood == "exact"
    alone_loss = fastbus.WeakLoss(rule, head="sigmoid", mode="joint")(logits, weak)
    tied_loss = fastbus.WeakLoss(rule, head="sigmoid", mode="joint", class_loop=module)(logits, weak)
    assert torch.equal(alone_loss, tied_loss)


def test_neutral_factors_have_the_gradient_of_independent_chains_and_their_own():
    loop, alone, tied = ClassLoop.ones(4).double(), leaf(draws(2, 3, 4)), leaf(draws(2, 3, 4))
    infer(alone, MISSING, None).log_likelihood.sum().backward()
    infer(tied, MISSING, loop).log_likelihood.sum().backward()
    close(tied.grad, alone.grad)
    expected = truths(tied, loop, lambda b: reported(MISSING[b]))
    _close_factor_gradient(loop, expected)


# -- against enumeration ----------------------------------------------------------------------------


@pytest.mark.parametrize("weak", [EXACT, MISSING, [[-1] * 4, [1] * 4]], ids=["exact", "missing", "nothing"])
def test_enumeration_of_configurations_equals_that_of_labellings(weak):
    loop, logits = ClassLoop(4, 2, random_factor(4)), draws(2, 3, 4, seed=1)
    post = infer(logits, weak, loop)
    assert post.exact and post.likelihood == "exact" and post.coupling == ["class_loop"] * 2
    compare(post, truths(logits, loop, lambda b: reported(weak[b])))


@pytest.mark.parametrize("method", ["exact", "sweeps"])
def test_noisy_labels(method):
    channel = np.array([[0.9, 0.1], [0.25, 0.75]])
    loop = ClassLoop(4, 2, random_factor(4, edges=TREE), method=method)
    logits = draws(2, 3, 4, seed=2)
    post = infer(logits, MISSING, loop, fastbus.MultiInstance(noise=(0.1, 0.25)))
    compare(post, truths(logits, loop, lambda b: reported(MISSING[b], channel)))


@pytest.mark.parametrize("method", ["exact", "sweeps"])
def test_counts(method):
    weak = [[2, -1, 0], [-1, 1, 3]]
    loop = ClassLoop(3, 5, random_factor(3, 5, edges=[(0, 1), (1, 2)]), method=method)  # more values than counts
    logits = draws(2, 3, 3, seed=3)
    compare(infer(logits, weak, loop, "label_proportion"), truths(logits, loop, lambda b: reported(weak[b]), np.sum))


def test_soft_counts_as_virtual_evidence():
    soft = torch.softmax(draws(2, 3, 4, seed=5), -1)
    soft[1, 2] = float("nan")
    loop, logits = ClassLoop(3, 4, random_factor(3, 4)), draws(2, 3, 3, seed=4)
    post = infer(logits, soft, loop, fastbus.LabelProportion("soft", soft="virtual"))

    def said(b):
        return lambda c, v: 1.0 if bool(soft[b, c, v].isnan()) else float(soft[b, c, v])

    compare(post, truths(logits, loop, said, np.sum))


def test_soft_counts_by_jeffreys_rule():
    """Bag 0: counts of class 0 and 2 are set to distributions, class 1 follows; sum over what they may be."""
    soft = torch.softmax(draws(1, 3, 4, seed=5), -1)
    soft[0, 1] = float("nan")
    loop, logits = ClassLoop(3, 4, random_factor(3, 4)), draws(1, 3, 3, seed=4)
    post = infer(logits, soft, loop, fastbus.LabelProportion("soft"))
    labels, likelihood = np.zeros((3, 3)), 0.0
    for first in range(4):
        for last in range(4):
            share = float(soft[0, 0, first] * soft[0, 2, last])
            (truth,) = truths(logits, loop, lambda b, said=(first, -1, last): reported(said), np.sum)
            labels, likelihood = labels + share * truth.labels, likelihood + share * truth.log_likelihood
    close(post.labels[0].detach(), torch.tensor(labels))
    close(post.log_likelihood.detach(), torch.tensor([likelihood], dtype=torch.float64))


@pytest.mark.parametrize("method", ["exact", "sweeps"])
def test_rules_of_ones_own_and_gold_labels(method):
    loop = ClassLoop(3, 2, random_factor(3, edges=[(0, 2), (1, 2)]), method=method)
    logits = draws(2, 3, 3, seed=6)
    weak = torch.tensor([[1, -1, -1], [-1, 0, -1]])
    compare(
        infer(logits, weak, loop, AtLeastTwo()),
        truths(logits, loop, lambda b: reported(weak[b]), lambda labels: int(labels.sum() >= 2)),
    )
    gold = torch.full((2, 3, 3), -1)
    gold[0, 1, 2], gold[1, 0, 0] = 1, 0
    known = fastbus.infer(
        AtLeastTwo() & fastbus.SemiSupervised(), logits, (weak, gold), head="sigmoid", class_loop=loop
    )
    for b in range(2):
        probs = torch.sigmoid(logits[b]).numpy()
        log_factor = loop.log_factor.detach().numpy()
        # P(gold, w | x) = P(gold, w, loop) / P(loop): certain predictions, and what they were certain of
        sure = np.where(gold[b] == -1, probs, gold[b].numpy())
        truth = enumerate_bag(sure, lambda y: int(y.sum() >= 2), reported(weak[b]), log_factor)
        close(known.labels[b].detach(), torch.tensor(truth.labels))
    # bag 1: P(gold and w) = P(w) P(gold | w), the latter a marginal of the posterior without gold labels
    without = infer(logits, weak, loop, AtLeastTwo())
    only = fastbus.infer(AtLeastTwo() & fastbus.SemiSupervised(), logits, (weak, gold), head="sigmoid", class_loop=loop)
    expected = without.log_likelihood[1] + (1 - without.labels[1, 0, 0]).log()
    close(only.log_likelihood[1], expected)


@pytest.mark.parametrize("damping", [0.0, 0.3])
def test_messages_are_exact_on_trees(damping):
    loop = ClassLoop(4, 2, random_factor(4, scale=2.0, edges=TREE), method="sweeps", damping=damping)
    logits = draws(2, 3, 4, seed=7)
    post = infer(logits, MISSING, loop)
    assert is_forest(loop.log_factor) and post.exact and post.likelihood == "exact" and bool(post.converged.all())
    assert post.loop_deltas.shape[1] == 2 and float(post.loop_deltas[-1].max()) <= loop.tolerance
    compare(post, truths(logits, loop, lambda b: reported(MISSING[b])))


@pytest.mark.parametrize(
    ("scale", "labels_off", "likelihood_off"), [(0.1, 3e-4, 1e-3), (0.5, 0.03, 0.15), (1.0, 0.25, 0.6)]
)
def test_error_of_messages_on_loops(scale, labels_off, likelihood_off, capsys):
    """All pairs of five classes have a factor: no tree. The errors are printed, and grow with the factors."""
    worst, least = np.zeros(2), True
    for seed in range(10):
        loop = ClassLoop(5, 2, random_factor(5, scale=scale, seed=seed), method="sweeps", sweeps=300)
        logits = draws(4, 2, 5, seed=100 + seed)
        weak = torch.where(draws(4, 5, seed=200 + seed) > 0, 1, -1)
        with torch.no_grad():
            post = infer(logits, weak, loop)
            exact = infer(logits, weak, ClassLoop(5, 2, loop.log_factor, method="exact"))
        least = least and bool(post.converged.all())
        off = (post.labels - exact.labels).abs().max(), (post.log_likelihood - exact.log_likelihood).abs().max()
        worst = np.maximum(worst, [float(x) for x in off])
        assert not post.exact and post.likelihood == "bethe"
    with capsys.disabled():
        print(
            f"\n  loops of 5 classes, log factors of size {scale}: largest error of a posterior {worst[0]:.1e}, "
            f"of log P {worst[1]:.1e}, converged: {least}"
        )
    assert worst[0] < labels_off and worst[1] < likelihood_off and least


@pytest.mark.parametrize("method", ["exact", "sweeps"])
def test_exactly_observed_labels_leave_the_posterior_alone(method):
    logits = draws(2, 3, 4)
    alone = infer(logits, EXACT, None)
    tied = infer(logits, EXACT, ClassLoop(4, 2, random_factor(4, scale=3.0), method=method))
    close(tied.labels.detach(), alone.labels)
    assert bool(((tied.log_likelihood - alone.log_likelihood).abs() > 0.1).all())  # the likelihood does change


# -- gradients --------------------------------------------------------------------------------------


def _close_factor_gradient(loop, expected):
    """d log P / d log h_ij(v, u) is P(W_i = v, W_j = u) after the weak labels minus before."""
    first, second = torch.triu_indices(loop.num_classes, loop.num_classes, 1)
    moved = sum(truth.pairs - truth.prior_pairs for truth in expected)
    close(loop.log_pair.grad.double(), torch.tensor(moved)[first, second], 1e-11)


@pytest.mark.parametrize("method", ["exact", "sweeps"])
def test_the_gradient_is_the_posterior_minus_the_loops_prior(method):
    edges = None if method == "exact" else TREE
    # without damping the messages of a tree, and their derivatives, are final after a few sweeps
    loop = ClassLoop(4, 2, random_factor(4, edges=edges), method=method, damping=0.0)
    logits = leaf(draws(2, 3, 4, seed=8))
    post = infer(logits, MISSING, loop)
    post.log_likelihood.sum().backward()
    expected = truths(logits, loop, lambda b: reported(MISSING[b]))
    close(logits.grad, torch.tensor(np.stack([t.labels - t.prior_labels for t in expected])), 1e-11)
    if method == "exact":
        _close_factor_gradient(loop, expected)


@pytest.mark.parametrize("what", ["log_likelihood", "labels"])
@pytest.mark.parametrize("method", ["exact", "sweeps"])
def test_gradients_against_finite_differences(method, what):
    loop = ClassLoop(3, 2, random_factor(3, scale=0.5), method=method, sweeps=20, tolerance=0.0)
    weak = torch.tensor([[1, -1, -1], [-1, 0, 1]])

    def function(logits, pairs):
        post = torch.func.functional_call(_Inferred(loop, weak), {"loop.log_pair": pairs}, (logits,))
        return getattr(post, what)

    assert torch.autograd.gradcheck(function, (leaf(draws(2, 2, 3, seed=9)), leaf(loop.log_pair)))


@pytest.mark.parametrize("what", ["log_likelihood", "labels"])
def test_gradients_of_transitions_against_finite_differences(what):
    module = ClassTransition(3, 2, torch.softmax(draws(3, 3), -1), learn=True)
    weak = torch.tensor([[1, -1, 0], [-1, 0, 1]])

    def function(logits, log_weight):
        post = torch.func.functional_call(_Inferred(module, weak), {"loop.log_weight": log_weight}, (logits,))
        return getattr(post, what)

    assert torch.autograd.gradcheck(function, (leaf(draws(2, 2, 3, seed=9)), leaf(module.log_weight)))


class _Inferred(torch.nn.Module):
    def __init__(self, loop, weak):
        super().__init__()
        self.loop, self.weak = loop, weak

    def forward(self, logits):
        return fastbus.infer("multi_instance", logits, self.weak, head="sigmoid", class_loop=self.loop)


@pytest.mark.parametrize("options", [{"likelihood": 1.0}, {"mode": "joint"}])
def test_the_loss_reaches_the_factors(options):
    loop = ClassLoop.ones(4)
    loss = fastbus.WeakLoss("multi_instance", head="sigmoid", class_loop=loop, **options)
    assert [name for name, _ in loss.named_parameters()] == ["class_loop.log_pair"]
    loss(draws(2, 3, 4), torch.tensor(EXACT)).backward()
    assert float(loop.log_pair.grad.abs().max()) > 1e-3
    with pytest.raises(InputError, match="gets no gradient"):
        fastbus.WeakLoss("multi_instance", head="sigmoid", class_loop=loop)


def test_labels_of_other_classes_inform_the_loss():
    loop = ClassLoop(4, 2, random_factor(4, edges=[(0, 1), (1, 2)]), learn=False)
    weak = torch.tensor([[1, -1, -1, -1], [-1, -1, -1, 0]])
    assert connected(loop.log_factor)[0].tolist() == [True, True, True, False]
    informed = infer(draws(2, 3, 4), weak, loop).informed
    assert informed[0].all(0).tolist() == [True, True, True, False]
    assert informed[1].any(0).tolist() == [False, False, False, True]


# -- edges ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["exact", "sweeps"])
def test_classes_that_exclude_each_other(method):
    log_factor = torch.zeros(3, 3, 2, 2, dtype=torch.float64)
    log_factor[:, :, 1, 1] = float("-inf")
    log_factor[0, 1] = 0.0
    loop = ClassLoop(3, 2, log_factor, method=method)  # a chain 0 - 2 - 1
    logits, weak = leaf(draws(2, 3, 3)), [[-1, -1, 1], [1, -1, -1]]
    post = infer(logits, weak, loop)
    compare(post, truths(logits, loop, lambda b: reported(weak[b])))
    assert not bool(post.labels[0, :, :2].any()) and not bool(post.labels[1, :, 2].any())
    (post.log_likelihood.sum() + post.labels.sum()).backward()
    assert bool(logits.grad.isfinite().all()) and bool(loop.log_pair.grad.isfinite().all())
    with pytest.raises(ImpossibleError, match=r"class loop.*bag 1"):
        infer(draws(2, 3, 3), [[0, 0, 1], [1, -1, 1]], loop)
    with pytest.warns(fastbus.ImpossibleEvidenceWarning, match="bag 1"):
        kept = infer(draws(2, 3, 3), [[0, 0, 1], [1, -1, 1]], loop, on_impossible="ignore")
    assert kept.ignored.tolist() == [False, True] and bool(kept.labels.isfinite().all())
    close(kept.log_likelihood[1].detach(), torch.zeros((), dtype=torch.float64))


@pytest.mark.parametrize("method", ["exact", "sweeps"])
def test_certain_predictions_and_huge_factors(method):
    logits = torch.tensor([[[1e4, -1e4, 0.0], [40.0, -1e4, -3.0]]], dtype=torch.float64)
    loop = ClassLoop(3, 2, random_factor(3, scale=200.0, edges=[(0, 1), (1, 2)]), method=method)
    logits = leaf(logits)
    post = infer(logits, [[1, -1, -1]], loop)
    (post.log_likelihood.sum() + post.labels.sum()).backward()
    assert bool(post.labels.isfinite().all()) and bool(logits.grad.isfinite().all())
    assert bool(loop.log_pair.grad.isfinite().all()) and bool(post.log_likelihood.isfinite().all())


@pytest.mark.parametrize("method", ["exact", "sweeps"])
def test_other_bags_and_padding_do_not_matter(method):
    loop = ClassLoop(4, 2, random_factor(4), method=method)
    logits, sizes = draws(3, 5, 4), torch.tensor([2, 5, 3])
    weak = torch.tensor([[1, -1, 0, -1], [-1, -1, -1, 1], [1, 1, -1, -1]])
    mask = torch.arange(5) < sizes[:, None]
    together = infer(logits.masked_fill(~mask[..., None], float("nan")), weak, loop, mask=mask)
    flat = infer(logits[mask], weak, loop, bag_sizes=sizes)
    assert torch.equal(together.labels[mask], flat.labels)
    for b in range(3):
        own = infer(logits[b : b + 1, : sizes[b]], weak[b : b + 1], loop)
        close(together.labels[b, : sizes[b]], own.labels[0], 1e-14)
        close(together.log_likelihood[b], own.log_likelihood[0], 1e-14)
    order = torch.tensor([2, 0, 3, 1])
    permuted = ClassLoop(4, 2, loop.log_factor[order][:, order], method=method)
    close(infer(logits[..., order], weak[:, order], permuted, mask=mask).labels, together.labels[..., order])
