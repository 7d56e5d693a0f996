"""The loss as a module of a training loop: precision, devices, copies, impossible bags."""

import copy
import io
import pickle

import pytest
import torch
import torch.nn.functional as F

import fastbus
from catalogue import CASES, random_batch
from fastbus import (
    LabelProportion,
    MultiInstance,
    NoisyLabel,
    SemiSupervised,
    SimilarDissimilarUnlabeled,
    UnlabeledUnlabeled,
    WeakLoss,
)
from tensors import close, draws, leaf

torch.set_num_threads(1)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("mode", ["em", "joint"])
def test_low_precision_logits(dtype, mode):
    """Computed in higher precision on the rounded logits; only the gradient is rounded."""
    batch = random_batch(CASES["label_proportion-softmax3"])
    x = leaf(batch.logits.to(dtype))
    y = leaf(x.double())
    loss = WeakLoss("label_proportion", mode=mode)
    value, expected = loss(x, batch.weak, batch.mask), loss(y, batch.weak, batch.mask)
    assert value.dtype == torch.float32 and expected.dtype == torch.float64
    torch.testing.assert_close(value.double(), expected, rtol=1e-5, atol=1e-5)
    value.backward()
    expected.backward()
    assert x.grad.dtype == dtype
    unit = torch.finfo(dtype).eps
    torch.testing.assert_close(x.grad.double(), y.grad, rtol=2 * unit, atol=max(unit / 10, 1e-6))


def test_impossible_bags_are_left_out_on_request():
    logits = draws(3, 2, 3)
    weak = torch.tensor([[1, 1, 0], [2, 2, 0], [0, 0, 2]])
    with pytest.raises(fastbus.ImpossibleError, match="bag 1"):
        WeakLoss("label_proportion")(logits, weak)
    loss = WeakLoss("label_proportion", on_impossible="ignore", mode="joint")
    x, y = leaf(logits), leaf(logits[[0, 2]])
    with pytest.warns(fastbus.ImpossibleEvidenceWarning, match="bag 1"):
        value = loss(x, weak)
    expected = loss(y, weak[[0, 2]])
    close(value, expected)
    value.backward()
    expected.backward()
    close(x.grad[[0, 2]], y.grad)
    close(x.grad[1], torch.zeros_like(x.grad[1]))


def test_module_moves_and_copies():
    loss = WeakLoss(UnlabeledUnlabeled((0.2, 0.7)), class_weights=[1.0, 2.0], queue=4, mode="joint")
    assert {buffer.dtype for buffer in (loss.class_weights, loss.queue.log_odds)} == {torch.float32}
    loss.to(torch.float64)
    assert {buffer.dtype for buffer in (loss.class_weights, loss.queue.log_odds)} == {torch.float64}
    assert loss.queue.filled.dtype == torch.long
    assert list(loss.parameters()) == []
    x, weak = draws(2, 3, 2), torch.tensor([0, 1])
    loss(x, weak)
    twins = [copy.deepcopy(loss), pickle.loads(pickle.dumps(loss))]
    stream = io.BytesIO()
    torch.save(loss.state_dict(), stream)
    stream.seek(0)
    state = torch.load(stream, weights_only=True)
    expected = loss(x, weak)
    for twin in twins:
        close(twin(x, weak), expected)
        close(dict(twin.state_dict()), dict(loss.state_dict()))
    assert {name: tuple(value.shape) for name, value in state.items()} == {
        "class_weights": (2,),
        "queue.log_odds": (2, 4),
        "queue.filled": (2,),
    }
    # a copy has a queue of its own
    twins[0](x + 1, weak)
    assert not torch.equal(twins[0].queue.log_odds, loss.queue.log_odds)


def test_module_on_another_device():
    """The meta device stands for any other: every buffer must follow."""
    loss = WeakLoss(UnlabeledUnlabeled((0.2, 0.7)), class_weights=[1.0, 2.0], queue=4).to("meta")
    assert {value.device.type for value in loss.state_dict().values()} == {"meta"}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_every_rule_can_be_copied_and_pickled(case):
    batch = random_batch(case)
    loss = WeakLoss(case.supervision, head=case.head)
    twins = copy.deepcopy(loss), pickle.loads(pickle.dumps(loss))
    expected = loss(batch.logits, batch.weak, batch.mask)
    for twin in twins:
        close(twin(batch.logits, batch.weak, batch.mask), expected)


def test_inputs_are_left_alone():
    batch = random_batch(CASES["label_proportion-softmax3"])
    x = leaf(batch.logits)
    kept = x.detach().clone(), batch.weak.clone(), batch.mask.clone()
    WeakLoss("label_proportion", mode="joint")(x, batch.weak, batch.mask).backward()
    assert torch.equal(x.detach(), kept[0]) and torch.equal(batch.weak, kept[1])
    assert torch.equal(batch.mask, kept[2]) and x.requires_grad
    with torch.no_grad():
        value = WeakLoss("label_proportion", mode="joint")(x, batch.weak, batch.mask)
    assert not value.requires_grad
    weights = torch.ones(3)
    loss = WeakLoss("label_proportion", class_weights=weights)
    loss.load_state_dict({"class_weights": torch.full((3,), 2.0)})
    assert torch.equal(weights, torch.ones(3)) and torch.equal(loss.class_weights, torch.full((3,), 2.0))


def test_a_learnable_transition_gets_its_gradient_through_the_likelihood():
    free = leaf(torch.eye(3, dtype=torch.float64) * 2)
    logits, weak = draws(5, 1, 3), torch.tensor([0, 1, 2, 1, 0])
    WeakLoss(NoisyLabel(free.softmax(-1)), likelihood=1.0, reduction="sum")(logits, weak).backward()
    fixed = leaf(free)
    mixture = (torch.softmax(logits[:, 0], -1) @ fixed.softmax(-1)).gather(1, weak[:, None])
    (-mixture.log().sum()).backward()
    close(free.grad, fixed.grad)


def test_combination_takes_part_in_every_reduction():
    """Gold labels beside proportions: an informed instance in an otherwise silent bag counts once."""
    logits = draws(2, 2, 3)
    weak = torch.tensor([[1, 1, 0], [-1, -1, -1]]), torch.tensor([[-1, -1], [2, -1]])
    q = fastbus.infer(LabelProportion() & SemiSupervised(), logits, weak).labels
    expected = -(q[0] * logits[0].log_softmax(-1)).sum() + F.cross_entropy(logits[1, :1], torch.tensor([2]))
    close(WeakLoss(LabelProportion() & SemiSupervised())(logits, weak), expected / 3)
    loss = WeakLoss(MultiInstance() & SemiSupervised(), head="sigmoid")
    silent = torch.tensor([[-1, -1, -1], [-1, -1, -1]]), torch.full((2, 2, 3), -1)
    silent[1][1, 0, 2] = 1
    close(loss(logits, silent), F.softplus(-logits[1, 0, 2]))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("mode", ["em", "joint"])
def test_a_batch_that_says_nothing_costs_nothing(mode, reduction, dtype):
    """Missing and dropped labels: the rounding of log P must not be divided by a weight of zero."""
    logits = leaf(draws(3, 4, 3).to(dtype))
    weak = torch.tensor([[-1, -1, -1], [3, 3, -1], [-1, -1, -1]])
    loss = WeakLoss(LabelProportion(), mode=mode, reduction=reduction, on_impossible="ignore")
    with pytest.warns(fastbus.ImpossibleEvidenceWarning):
        value = loss(logits, weak).sum()
    value.backward()
    assert abs(float(value.detach())) < 1e-6
    assert float(logits.grad.abs().max()) < 1e-6


def test_instances_without_weight_leave_the_likelihood():
    logits, weak = draws(2, 3, 3), torch.tensor([[1, 1, 1], [3, 0, 0]])
    loss = WeakLoss(LabelProportion(), likelihood=1.0)
    likelihood = fastbus.infer(LabelProportion(), logits, weak).log_likelihood
    close(loss(logits, weak, sample_weights=torch.zeros(2, 3)), -likelihood.sum())


def test_printed_with_what_it_was_made_of():
    assert "MultiInstance(noise=None), head='sigmoid', mode='em'" in repr(WeakLoss("multi_instance", "sigmoid"))


def test_similar_dissimilar_unlabeled_gives_every_bag_its_sum():
    logits, weak = (draws(4, 2, 2), draws(2, 5, 2)), (torch.tensor([1, 0, 0, -1]), torch.tensor([0, 0]))
    pairs = WeakLoss("pair_similarity", reduction="none")(logits[0], weak[0])
    sets = WeakLoss(UnlabeledUnlabeled((0.3,)), reduction="none")(logits[1], weak[1])
    value = WeakLoss(SimilarDissimilarUnlabeled(0.3), reduction="none")(logits, weak)
    close(value, torch.cat([pairs, sets]))


@pytest.mark.parametrize(
    ("options", "cure"),
    [({"evolution": "full"}, "Build one with build_evolution"), ({"class_loop": "labels"}, "ClassLoop.from_labels")],
)
def test_names_of_modules_are_refused(options, cure):
    """They are what WeakClassifier takes."""
    with pytest.raises(fastbus.InputError, match=cure):
        WeakLoss("multi_instance", head="sigmoid", **options)
    with pytest.raises(fastbus.InputError, match=cure):
        fastbus.infer("multi_instance", draws(1, 3, 2), [[1, 0]], head="sigmoid", **options)


def test_similar_dissimilar_unlabeled_takes_posteriors_inferred_before():
    rule = SimilarDissimilarUnlabeled(0.3)
    logits, weak = (draws(4, 2, 2), draws(2, 5, 2)), (torch.tensor([1, 0, 0, -1]), torch.tensor([0, 0]))
    posts = fastbus.infer(rule, (draws(4, 2, 2, seed=5), draws(2, 5, 2, seed=6)), weak)
    loss = WeakLoss(rule, reduction="none")
    pairs = WeakLoss("pair_similarity", reduction="none")(logits[0], weak[0], posterior=posts[0])
    sets = WeakLoss(UnlabeledUnlabeled((0.3,)), reduction="none", queue=0)(logits[1], weak[1], posterior=posts[1])
    close(loss(logits, weak, posterior=posts), torch.cat([pairs, sets]))


@pytest.mark.parametrize(
    ("head", "base"),
    [("softmax", F.cross_entropy), ("sigmoid", F.binary_cross_entropy_with_logits)],
)
def test_a_reduced_base_loss_is_refused(head, base):
    with pytest.raises(fastbus.InputError, match='reduction="none"'):
        WeakLoss("label_proportion", head, loss=base)(draws(1, 2, 3), torch.tensor([[1, 1, 0]]))
