"""Modules that tie classes: factors estimated from labels, transitions between classes, and what is refused."""

import numpy as np
import pytest
import torch

import fastbus
from class_loop_cases import AtLeastTwo, infer, random_factor
from fastbus import ClassLoop, ClassTransition, CouplingError, InputError, WeakLabelError
from tensors import close, draws, leaf

# -- the estimate from labels -----------------------------------------------------------------------


def test_factors_of_labels_are_their_log_odds():
    generator = np.random.default_rng(0)
    first = generator.random(4000) < 0.3
    second = np.where(generator.random(4000) < 0.8, first, generator.random(4000) < 0.5)
    labels = np.stack([first, second, generator.random(4000) < 0.5], 1).astype(int)
    both = np.array([[np.mean((labels[:, 0] == v) & (labels[:, 1] == u)) for u in (0, 1)] for v in (0, 1)])
    expected = torch.tensor(np.log(both / both.sum(1, keepdims=True) / both.sum(0)))
    plain = ClassLoop.from_labels(labels, pseudo_count=0.0, learn=False)
    close(plain.log_factor[0, 1].detach().double(), expected, 1e-6)
    close(plain.log_factor[1, 0].detach(), plain.log_factor[0, 1].detach().T)
    assert float(plain.log_factor[0, 2].abs().max()) < 0.1
    half = ClassLoop.from_labels(labels, pseudo_count=0.0, strength=0.5, learn=False)
    close(half.log_factor.detach(), plain.log_factor.detach() / 2, 1e-6)
    flipped = np.where(generator.random(labels.shape) < 0.2, 1 - labels, labels).astype(float)
    flipped[generator.random(labels.shape) < 0.1] = np.nan
    cleaned = ClassLoop.from_labels(flipped, pseudo_count=0.0, noise=(0.2, 0.2), learn=False)
    naive = ClassLoop.from_labels(flipped, pseudo_count=0.0, learn=False)
    assert float((cleaned.log_factor[0, 1] - expected).abs().max()) < 0.4
    assert float((naive.log_factor[0, 1] - expected).abs().max()) > 0.5
    assert ClassLoop.from_labels(np.full((3, 2), -1)).is_neutral()


def test_factors_of_labels_leave_their_frequencies_alone():
    """Where predictions know nothing but frequencies, beliefs are these frequencies, on trees exactly."""
    labels = np.array([[1, 1], [1, 1], [1, 0], [0, 0], [0, 0], [0, 1], [0, 0], [0, 0]])
    loop = ClassLoop.from_labels(labels, pseudo_count=0.0, learn=False)
    logits = torch.tensor(labels.mean(0)).logit()[None, None]
    post = infer(logits, [[-1, -1]], loop)
    close(post.labels[0, 0], torch.tensor(labels.mean(0)), 1e-6)
    close(infer(logits, [[1, -1]], loop).labels[0, 0, 1], torch.tensor(2 / 3, dtype=torch.float64), 1e-6)


def test_factors_of_labels_are_parameters_like_others_and_messages_keep_their_precision():
    labels = np.array([[1, 1], [1, 1], [1, 0], [0, 0], [0, 0], [0, 1]])
    loop = ClassLoop.from_labels(labels)
    assert loop.log_pair.dtype == torch.get_default_dtype() == torch.float32
    given = loop.log_factor.detach().double()
    logits = draws(2, 3, 2)
    post, exact = (infer(logits, [[1, -1], [-1, -1]], module) for module in (loop, ClassLoop(2, 2, given)))
    assert post.labels.dtype == torch.float64
    # the same factors in float64 give the same messages to the last bit: none of them is rounded to float32
    assert torch.equal(post.labels, exact.labels) and torch.equal(post.log_likelihood, exact.log_likelihood)
    sure = ClassLoop.from_labels(np.array([[1, 1], [0, 0]]), pseudo_count=0.0)  # values that never meet
    assert bool(sure.forbidden.any()) and bool(sure.log_pair.isfinite().all())


def test_a_loop_says_how_it_sends_its_messages():
    text = repr(ClassLoop(3, 2, method="sweeps", sweeps=7, damping=0.25, tolerance=1e-5, max_configurations=64))
    for words in ("sweeps=7", "damping=0.25", "tolerance=1e-05", "max_configurations=64"):
        assert words in text


# -- transitions ------------------------------------------------------------------------------------


def test_transition_worked_by_hand():
    """Two classes, bags of one: p = (.8, .4), T = [[.75, .25], [.5, .5]], both labels 1.

    Columns sum to 1.25 and .75, so the label of class 0 is .6 class 0 and .4 class 1, that of class 1 is 1/3 and 2/3:
    L_0 = .6 * .8 + .4 * .4 = .64, L_1 = .8 / 3 + .8 / 3 = 8/15.
    """
    module = ClassTransition(2, 2, torch.tensor([[0.75, 0.25], [0.5, 0.5]], dtype=torch.float64))
    logits = leaf(torch.tensor([[[0.8, 0.4]]], dtype=torch.float64).logit())
    post = infer(logits, [[1, 1]], module)
    close(post.log_likelihood, torch.tensor([np.log(0.64 * 8 / 15)]))
    close(post.labels, torch.ones(1, 1, 2, dtype=torch.float64))
    assert post.likelihood == "composite" and not post.exact
    # only the label of class 0 is known, and is 1: class 1 hears 1 with weight .4 / .64 and else its own unknown label
    post = infer(logits, [[1, -1]], module)
    close(post.log_likelihood, torch.tensor([np.log(0.64)]))
    for c, (share, other) in enumerate([(0.6, 1 / 3), (0.4, 2 / 3)]):
        p = [0.8, 0.4][c]
        back = [other, share / 0.64 + other]  # beta at 0 and 1
        close(float(post.labels[0, 0, c].detach()), p * back[1] / (p * back[1] + (1 - p) * back[0]))


def test_transition_gradient_is_a_multiple_of_posterior_minus_prior():
    T = torch.softmax(draws(3, 3), -1)
    module, logits = ClassTransition(3, 2, T), leaf(draws(2, 3, 3, seed=3))
    weak = torch.tensor([[1, -1, 0], [0, 1, 1]])
    post = infer(logits, weak, module, fastbus.MultiInstance(noise=(0.1, 0.2)))
    post.log_likelihood.sum().backward()
    p = torch.sigmoid(logits.detach())
    some = 1 - (1 - p).prod(1)  # (B, C)
    message = torch.stack([1 - some, some], -1)
    channel = torch.tensor([[0.9, 0.1], [0.2, 0.8]], dtype=torch.float64)  # [value, weak]
    evidence = torch.where((weak == -1)[..., None], 1.0, channel.T[weak.clamp(min=0)])  # (B, C, V)
    source = (T / T.sum(0)).T  # [j, i]
    label = torch.einsum("ji,biv,bjv->bj", source, message, evidence)
    close(post.log_likelihood.detach(), label.log().sum(1))
    back = torch.einsum("ji,bjv,bj->biv", source, evidence, 1 / label)
    total = (back * message).sum(-1)[:, None]
    close(logits.grad, total * (post.labels.detach() - p))
    close(module.transition.detach(), T)


# -- what is refused --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rule", "head", "C", "weak", "options", "words"),
    [
        ("multi_instance", "softmax", 3, [[1, 0, 0]], {}, 'head="sigmoid"'),
        ("semi_supervised", "sigmoid", 3, [[[1, 0, 0]] * 3], {}, "exactly one rule"),
        ("multi_instance", "sigmoid", 2, [[1, 0]], {}, "3 classes with predictions of 2"),
        ("label_proportion", "sigmoid", 3, [[1, 0, 0]], {}, "num_values=4"),
        ("multi_instance", "sigmoid", 3, [[1, 0, 0]], {"coupling": "loop"}, "the loop is what ties"),
        ("multi_instance", "sigmoid", 3, [[1, 0, 0]], {"rank": 1}, "class_loop with rank"),
    ],
)
def test_problems_a_loop_does_not_fit(rule, head, C, weak, options, words):
    for module in (ClassLoop(3, 2, random_factor(3)), ClassLoop.ones(3)):
        with pytest.raises((CouplingError, InputError), match=words):
            fastbus.infer(rule, draws(1, 3, C), torch.tensor(weak), head=head, class_loop=module, **options)


def test_a_noisy_rule_of_ones_own_is_refused():
    class Unsure(AtLeastTwo):
        def evidence(self, state, weak):
            return torch.where(super().evidence(state, weak), 0.9, 0.1).double()

    with pytest.raises(CouplingError, match="uncertain given the last state"):
        infer(draws(1, 3, 2), [[1, 0]], ClassLoop.ones(2), Unsure())


def test_malformed_modules():
    with pytest.raises(InputError, match="at least 2"):
        ClassLoop(1)
    with pytest.raises(InputError, match=r"expected \(3, 3, 2, 2\)"):
        ClassLoop(3, 2, torch.zeros(3, 3))
    with pytest.raises(InputError, match=r"NaN or \+inf"):
        ClassLoop(2, 2, torch.full((2, 2, 2, 2), float("nan")))
    with pytest.raises(InputError, match="damping"):
        ClassLoop(2, damping=1.0)
    with pytest.raises(CouplingError, match="2\\*\\*13 configurations"):
        ClassLoop(13, method="exact")
    with pytest.raises(InputError, match="row-stochastic"):
        ClassTransition(2, 2, torch.ones(2, 2))
    with pytest.raises(InputError, match="column of zeros"):
        ClassTransition(2, 2, torch.tensor([[1.0, 0.0], [1.0, 0.0]]))
    with pytest.raises(WeakLabelError, match="bag 1"):
        ClassLoop.from_labels([[0, 1], [2, 1]])
    with pytest.raises(InputError, match="sum to less than 1"):
        ClassLoop.from_labels([[0, 1]], noise=(0.5, 0.5))
    with pytest.raises(InputError, match="not negative"):
        ClassLoop.from_labels([[0, 1]], noise=(-0.2, 0.1))
    soft = torch.full((1, 3, 4), 0.25)
    with pytest.raises(CouplingError, match="virtual"):
        loop = ClassLoop(3, 4, random_factor(3, 4), method="sweeps")
        infer(draws(1, 3, 3), soft, loop, fastbus.LabelProportion("soft"))
    with pytest.raises(CouplingError, match="whole labellings"):
        infer(draws(1, 3, 3), [[1, -1, 0]], ClassLoop(3, 2, random_factor(3))).map()
