"""State evolution: a fresh module is exact inference, a trained one is what enumeration of its chain says."""

import itertools

import pytest
import torch
from torch import nn

import fastbus
from catalogue import CASES, infer, prior_of, random_batch
from evolution_modules import CHAINS, features_of, module_for, one_chain_a_class, randomised
from fastbus import WeakLoss
from fastbus.inference.evolution import VARIANTS, gumbel_like
from fastbus.inference.evolved import category_chain, category_labels, solve_evolved
from tensors import close, leaf

HARD = ["multi_instance-sigmoid2", "multi_instance-softmax3", "label_proportion-noise-sigmoid1"]
HARD += ["label_proportion-softmax3", "pair_comparison-sorted-softmax2", "pair_similarity-softmax3"]
HARD += ["at_least-sigmoid2", "last_positive-sigmoid1"]


# -- a fresh module ------------------------------------------------------------------------------


@pytest.mark.parametrize("train", [False, True])
@pytest.mark.parametrize("name", CHAINS)
def test_a_fresh_module_is_exact(name, train):
    case = CASES[name]
    batch = random_batch(case)
    module = module_for(case, batch).double().train(train)
    post = infer(case, batch, evolution=module, features=features_of(batch))
    expected = one_chain_a_class(case, batch)
    close(post.labels, expected.labels)
    close(post.log_likelihood, expected.log_likelihood)
    assert not post.exact
    assert post.likelihood == "learned"
    assert set(post.coupling) == {"evolution"}
    assert torch.equal(post.informed, expected.informed)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("name", ["label_proportion-softmax3", "pair_similarity-softmax3", "partial_label-softmax3"])
def test_a_fresh_module_is_exact_in_float32(name, variant):
    case = CASES[name]
    batch = random_batch(case)
    logits = batch.logits.float()
    module = module_for(case, batch, variant=variant).train()
    post = infer(case, batch, logits, evolution=module, features=features_of(batch).float())
    expected = one_chain_a_class(case, batch, logits=logits)
    close(post.labels, expected.labels, 1e-6)
    close(post.log_likelihood, expected.log_likelihood, 1e-6)


def test_a_fresh_module_leaves_the_joint_gradient_of_the_network_alone():
    case = CASES["label_proportion-noise-sigmoid2"]
    batch = random_batch(case)
    gradients = []
    for module in (None, module_for(case, batch).double().train()):
        logits = leaf(batch.logits)
        loss = WeakLoss(case.supervision, head=case.head, mode="joint", evolution=module)
        loss(logits, batch.weak, batch.mask, features=features_of(batch)).backward()
        gradients.append(logits.grad)
    close(gradients[1], gradients[0])
    assert float(gradients[0].abs().max()) > 0.01
    # what starts at zero learns at once: the last layer, and the gate of the noise
    assert float(module.last.weight.grad.abs().max()) > 0
    assert float(module.gate.grad.abs()) > 0


# -- any module: enumeration of its chain ---------------------------------------------------------


def log_labels(case, batch, bag, size, module):
    """log u (G, size, Z, Y), the module's label distributions of one bag alone."""
    prior = prior_of(case, batch.logits[bag])[None, :size]
    if case.supervision.labels == "categorical" or (case.supervision.binary and case.head == "softmax"):
        base = prior[:, :, None].log()
    else:
        base = torch.stack([1 - prior, prior], -1).log()
    base = base.unsqueeze(3).expand(*base.shape[:3], module.num_states, -1)
    features = features_of(batch)[bag, None, :size]
    return module.log_labels(base, features, torch.ones(1, size, dtype=torch.bool))[0].transpose(0, 1)


def enumerated(rule, weak, log_u):
    """P(w) and P(w, y_k = y) (size, Y) of one chain: the sum over all labellings of prod u(y_k | z_{k-1})."""
    size, _, Y = log_u.shape
    states = rule.num_states(size, Y) if rule.fold == "similar" else rule.num_states(size)
    evidence = rule.evidence(torch.arange(states), weak.reshape(1)).double().reshape(-1)
    mass, labels = 0.0, torch.zeros(size, Y, dtype=torch.float64)
    for combination in itertools.product(range(Y), repeat=size):
        state, weight = torch.tensor(0), torch.ones((), dtype=torch.float64)
        for k, label in enumerate(combination):
            weight = weight * log_u[k, state, label].exp()
            position = {"position": k} if "position" in rule.step.__code__.co_varnames else {}
            state = rule.step(state, torch.tensor(label), **position)
        weight = weight * evidence[state]
        mass = mass + weight
        for k, label in enumerate(combination):
            labels[k, label] += weight
    return mass, labels


@torch.no_grad()
@pytest.mark.parametrize("name", HARD)
def test_messages_are_the_sum_over_all_labellings(name):
    case = CASES[name]
    batch = random_batch(case)
    module = randomised(module_for(case, batch))
    post = infer(case, batch, evolution=module, features=features_of(batch))
    moved = (post.labels - infer(case, batch).labels).abs().max()
    assert float(moved) > 0.05, "the module should matter here"
    for bag in range(len(batch.logits)):
        size = int(batch.mask[bag].sum())
        log_u = log_labels(case, batch, bag, size, module)
        one_vs_rest = case.head == "softmax" and len(log_u) > 1
        expected, total = torch.zeros(size, case.classes, dtype=torch.float64), 0.0
        for chain, of_chain in enumerate(log_u):
            weak = batch.weak[bag] if batch.weak.dim() == 1 else batch.weak[bag, chain]
            mass, labels = enumerated(case.supervision, weak, of_chain)
            total = total + mass.log()
            if len(log_u) == 1 and case.classes > 1:
                expected = labels / mass
            else:
                expected[:, chain] = labels[:, 1] / mass
        if one_vs_rest:
            expected = expected / expected.sum(1, keepdim=True)
        close(post.labels[bag, :size], expected, 1e-11)
        close(post.log_likelihood[bag], total, 1e-11)


@torch.no_grad()
def test_soft_counts_set_the_distribution_of_the_learned_state():
    case = CASES["label_proportion-soft-sigmoid1"]
    batch = random_batch(case)
    module = randomised(module_for(case, batch))
    post = infer(case, batch, evolution=module, features=features_of(batch))
    counts = fastbus.LabelProportion()
    for bag in range(len(batch.logits)):
        size = int(batch.mask[bag].sum())
        log_u = log_labels(case, batch, bag, size, module)[0]
        expected, total = torch.zeros(size, dtype=torch.float64), 0.0
        for count, share in enumerate(batch.weak[bag].reshape(-1)[: size + 1]):
            mass, labels = enumerated(counts, torch.tensor(count), log_u)
            expected = expected + share * labels[:, 1] / mass
            total = total + share * mass.log()
        close(post.labels[bag, :size, 0], expected, 1e-11)
        close(post.log_likelihood[bag], total, 1e-11)


@torch.no_grad()
@pytest.mark.parametrize("name", ["partial_label-larger-bags", "noisy_label-zeros-softmax3", "crowd_label-softmax3"])
def test_kinds_without_a_rule_decide_category_by_category(name):
    case = CASES[name]
    batch = random_batch(case)
    module = randomised(module_for(case, batch), scale=1.0)
    assert module.along == "categories"
    features = features_of(batch)
    post = infer(case, batch, evolution=module, features=features)
    exact = infer(case, batch)
    prior = prior_of(case, batch.logits)
    evidence = exact.labels / prior  # up to a constant of the instance
    C = batch.logits.shape[-1]
    alone = torch.ones(1, 1, dtype=torch.bool)
    for bag, k in torch.nonzero(batch.mask).tolist():
        base = category_labels(prior[bag, k].log()[None])[None]
        u = module.log_labels(base, features[bag, k][None, None], alone)[0, 0].exp()
        chance = torch.stack([u[:c, 0, 0].prod() * u[c, 0, 1] * u[c + 1 :, 1, 0].prod() for c in range(C)])
        close(chance.sum(), torch.ones((), dtype=torch.float64))
        close(post.labels[bag, k], chance * evidence[bag, k] / (chance * evidence[bag, k]).sum(), 1e-11)
    assert float((post.labels - exact.labels).abs().max()) > 0.01


def test_impossible_categories_stay_impossible():
    log_prob = torch.tensor([[0.5, 0.0, 0.5, 0.0], [0.0, 1.0, 0.0, 0.0]], dtype=torch.float64).log()
    base = leaf(log_prob)
    u = category_labels(base)
    log_posterior, likelihood = solve_evolved(u, category_chain(2, 4, u))
    close(log_posterior[..., 1].exp().detach(), log_prob.exp())
    close(likelihood.detach(), torch.zeros(2, dtype=torch.float64))
    (gradient,) = torch.autograd.grad(log_posterior[..., 1].exp().sum() + likelihood.sum(), base)
    assert bool(gradient.isfinite().all())


# -- gradients ------------------------------------------------------------------------------------


class Answer(nn.Module):
    """infer as a function of logits and of the module's parameters."""

    def __init__(self, case, batch, module):
        super().__init__()
        self.case, self.batch, self.evolution = case, batch, module

    def forward(self, logits):
        post = infer(self.case, self.batch, logits, evolution=self.evolution, features=features_of(self.batch))
        return post.log_likelihood, post.labels


@pytest.mark.parametrize(
    "name",
    [
        "multi_instance-softmax3",
        "label_proportion-soft-sigmoid1",
        "confidence_difference-sigmoid1",
        "pair_similarity-softmax3",
        "partial_label-softmax3",
        "proportion & semi-sigmoid2",
    ],
)
def test_gradients_reach_logits_and_module(name):
    case = CASES[name]
    batch = random_batch(case, bags=2)
    answer = Answer(case, batch, randomised(module_for(case, batch)))
    last = answer.evolution.last

    def of(logits, weight, bias):
        outputs = {"evolution.last.weight": weight, "evolution.last.bias": bias}
        return torch.func.functional_call(answer, outputs, (logits,))

    assert torch.autograd.gradcheck(of, (leaf(batch.logits), leaf(last.weight), leaf(last.bias)))


@pytest.mark.parametrize("name", ["label_proportion-sigmoid2", "multi_instance-softmax3", "pair_similarity-softmax3"])
def test_certain_predictions_leave_no_nan(name):
    case = CASES[name]
    batch = random_batch(case)
    module = randomised(module_for(case, batch)).train()
    certain = batch.logits.clone()
    certain[:, 0] = 0.0
    certain[0, 0, 0] = float("-inf")
    logits = leaf(certain)
    loss = WeakLoss(case.supervision, head=case.head, mode="joint", evolution=module)
    value = loss(logits, batch.weak, batch.mask, features=features_of(batch))
    value.backward()
    finite = certain.isfinite()
    assert bool(value.isfinite())
    assert bool(logits.grad[finite].isfinite().all())
    for name, parameter in module.named_parameters():
        assert parameter.grad is not None and bool(parameter.grad.isfinite().all()), name


def test_a_module_follows_the_predictions_to_their_device():
    """The meta device stands for any other."""
    case = CASES["multi_instance-sigmoid2"]
    batch = random_batch(case)
    module = module_for(case, batch)
    B, K, C = batch.logits.shape
    base = torch.zeros(B, K, C, 2, 2, device="meta")
    found = module.log_labels(base, features_of(batch).to("meta"), batch.mask.to("meta"))
    assert found.device.type == "meta"
    assert {parameter.device.type for parameter in module.parameters()} == {"meta"}


# -- padding and random numbers --------------------------------------------------------------------


@pytest.mark.parametrize("train", [False, True])
@pytest.mark.parametrize("name", ["label_proportion-noise-softmax3", "multi_instance-sigmoid2"])
def test_padding_changes_nothing(name, train):
    case = CASES[name]
    batch = random_batch(case)
    module = randomised(module_for(case, batch)).train(train)
    features = features_of(batch)

    def answer(logits, features, mask):
        torch.manual_seed(3)
        return fastbus.infer(
            case.supervision, logits, batch.weak, mask, head=case.head, evolution=module, features=features
        )

    plain = answer(batch.logits, features, batch.mask)
    places = torch.tensor([1, 2, 4])  # padding in front, in between and behind

    def scattered(x):
        wide = x.new_full((len(x), 6, x.shape[-1]), float("nan"))
        wide[:, places] = x.masked_fill(~batch.mask[..., None], float("nan"))
        return wide

    mask = torch.zeros(len(batch.mask), 6, dtype=torch.bool)
    mask[:, places] = batch.mask
    got = answer(scattered(batch.logits), scattered(features), mask)
    close(got.labels[:, places], plain.labels)
    close(got.log_likelihood, plain.log_likelihood)
    flat = answer_flat(case, batch, module, features)
    close(flat.labels, plain.labels[batch.mask])


def answer_flat(case, batch, module, features):
    torch.manual_seed(3)
    return fastbus.infer(
        case.supervision,
        batch.logits[batch.mask],
        batch.weak,
        bag_sizes=batch.mask.sum(1),
        head=case.head,
        evolution=module,
        features=features[batch.mask],
    )


def test_noise_is_gumbel_and_only_in_training():
    torch.manual_seed(0)
    real = torch.tensor([[True, False], [True, True]])
    noise = gumbel_like(torch.zeros(2, 2, 20000, dtype=torch.float64), real)
    assert bool((noise[0, 1] == 0).all())
    assert noise[real].mean().item() == pytest.approx(0.5772, abs=0.02)
    assert noise[real].var().item() == pytest.approx(torch.pi**2 / 6, abs=0.05)
    case = CASES["label_proportion-noise-sigmoid1"]
    batch = random_batch(case)
    module = randomised(module_for(case, batch))
    answers = [infer(case, batch, evolution=module, features=features_of(batch)).labels for _ in range(2)]
    assert torch.equal(*answers)
    module.train()
    answers = [infer(case, batch, evolution=module, features=features_of(batch)).labels for _ in range(2)]
    assert float((answers[0] - answers[1]).abs().max().detach()) > 1e-4
