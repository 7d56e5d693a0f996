"""The queue: earlier predictions join a set's count, detached, saved, and at rest in eval mode."""

import copy

import pytest
import torch

import fastbus
from fastbus import (
    PositiveUnlabeled,
    SupervisionError,
    UnlabeledUnlabeled,
    WeakLoss,
    smoothing,
    unbiased_risk,
)
from tensors import close, draws, leaf

torch.set_num_threads(1)
NAN = float("nan")


def two_class_logits(head, *shape, seed=0):
    odds = draws(*shape, seed=seed)
    return odds[..., None] if head == "sigmoid" else torch.stack([torch.zeros_like(odds), odds], -1)


@pytest.mark.parametrize("head", ["sigmoid", "softmax"])
@pytest.mark.parametrize("constraint", ["jeffrey", "likelihood", "count", "mean"])
def test_queue_joins_earlier_predictions_to_the_set(constraint, head):
    supervision = PositiveUnlabeled(0.4, constraint=constraint)
    loss = WeakLoss(supervision, head=head, queue=8, reduction="sum").double()
    first, second = two_class_logits(head, 1, 4), two_class_logits(head, 1, 5, seed=1)
    labels = torch.tensor([[1, -1, -1, 1]]), torch.tensor([[-1, 1, -1, -1, -1]])
    alone = WeakLoss(supervision, head=head, reduction="sum")(first, labels[0])
    close(loss(first, labels[0]), alone)
    # only the unlabelled ones are kept: a labelled positive is no draw from the set
    both = torch.cat([second, first[:, 1:3]], 1)
    joined = torch.cat([labels[1], torch.full((1, 2), -1)], 1)
    x = leaf(second)
    value = loss(x, labels[1])
    q = fastbus.infer(supervision, both, joined, head=head).labels[:, :5]
    close(value, unbiased_risk(second, q, head=head).sum())
    value.backward()
    prior = torch.sigmoid(second) if head == "sigmoid" else torch.softmax(second, -1)
    close(x.grad, prior - q)
    assert int(loss.queue.filled) == 6


def test_queue_keeps_the_newest_and_drops_the_oldest():
    loss = WeakLoss(PositiveUnlabeled(0.4), head="sigmoid", queue=5).double()
    batches = [draws(2, 2, 1, seed=seed) for seed in range(4)]
    for x in batches:
        loss(x, torch.full((2, 2), -1))
    newest = torch.cat([batches[3].flatten(), batches[2].flatten()])[:5]
    close(loss.queue.log_odds[0], newest)


def test_queue_is_detached():
    loss = WeakLoss(PositiveUnlabeled(0.4), head="sigmoid", queue=8, mode="joint").double()
    first, second = leaf(draws(1, 4, 1)), leaf(draws(1, 4, 1, seed=1))
    unlabelled = torch.full((1, 4), -1)
    loss(first, unlabelled)
    assert not loss.queue.log_odds.requires_grad
    loss(second, unlabelled).backward()
    assert first.grad is None
    # joint mode differentiates the batch's own predictions only
    queued = first.detach()

    def by_hand(x):
        post = fastbus.infer(PositiveUnlabeled(0.4), torch.cat([x, queued], 1), torch.full((1, 8), -1), head="sigmoid")
        q = post.labels[:, :4]
        risk = unbiased_risk(x, q, "sigmoid") + smoothing(q, "sigmoid")
        return (risk.sum() - post.log_likelihood.sum()) / 4

    y = leaf(second)
    by_hand(y).backward()
    close(second.grad, y.grad)


def test_queue_is_saved_and_rests_in_eval_mode():
    loss = WeakLoss(UnlabeledUnlabeled((0.2, 0.7)), head="sigmoid", queue=6).double()
    weak = torch.tensor([0, 1])
    loss(draws(2, 3, 1), weak)
    saved = copy.deepcopy(loss.state_dict())
    assert set(saved) == {"queue.log_odds", "queue.filled"}
    fresh = WeakLoss(UnlabeledUnlabeled((0.2, 0.7)), head="sigmoid", queue=6).double()
    fresh.load_state_dict(saved)
    x = draws(2, 3, 1, seed=1)
    loss.eval()
    before = loss(x, weak)
    close(loss(x, weak), before)
    close(dict(loss.state_dict()), saved)
    fresh.train()
    close(fresh(x, weak), before)
    assert fresh.queue.filled.tolist() == [6, 6]


def test_queue_keeps_one_list_a_set():
    supervision = UnlabeledUnlabeled((0.2, 0.7))
    loss = WeakLoss(supervision, head="sigmoid", queue=4, reduction="none").double()
    first = draws(3, 2, 1)
    # the set of the second bag is not known: it speaks for no set, and joins none
    loss(first, torch.tensor([1, -1, 0]))
    assert loss.queue.filled.tolist() == [2, 2]
    close(loss.queue.log_odds[:, :2], torch.stack([first[2, :, 0], first[0, :, 0]]))
    second = draws(1, 3, 1, seed=1)
    q = fastbus.infer(supervision, torch.cat([second, first[:1]], 1), torch.tensor([1]), head="sigmoid").labels[:, :3]
    close(loss(second, torch.tensor([1])), unbiased_risk(second, q, "sigmoid").sum((1, 2)))


def test_queue_reads_weak_labels_as_infer_does():
    """Floats with NaN, bags of one without an axis for it, flat rows, and the same refusals."""
    x = draws(3, 1, 1)
    kept = []
    for logits, weak, sizes in [
        (x, torch.tensor([[-1], [1], [-1]]), None),
        (x, torch.tensor([-1, 1, -1]), None),
        (x, torch.tensor([NAN, 1.0, NAN]), None),
        (x[:, 0], torch.tensor([-1, 1, -1]), torch.ones(3, dtype=torch.long)),
    ]:
        loss = WeakLoss(PositiveUnlabeled(0.4), head="sigmoid", queue=4).double()
        loss(logits, weak, bag_sizes=sizes)
        kept.append((loss(logits, weak, bag_sizes=sizes), loss.queue.log_odds.clone()))
    for other in kept[1:]:
        close(other, kept[0])
    close(kept[0][1][0], x[[0, 2, 0, 2], 0, 0])
    loss = WeakLoss(PositiveUnlabeled(0.4), head="sigmoid", queue=4)
    with pytest.raises(fastbus.WeakLabelError):
        loss(x, torch.tensor([0, 1, -1]))
    with pytest.raises(fastbus.WeakLabelError, match="shape"):
        loss(x, torch.tensor([1, -1]))
    sets = WeakLoss(UnlabeledUnlabeled((0.2, 0.7)), head="sigmoid", queue=4)
    with pytest.raises(fastbus.WeakLabelError):
        sets(x, torch.tensor([0, 1, 2]))
    assert sets.queue.filled.tolist() == [0, 0] and loss.queue.filled.tolist() == [0]


def test_queue_is_for_sets_of_known_prior():
    with pytest.raises(SupervisionError, match="queue=3"):
        WeakLoss("multi_instance", queue=3)
    for supervision in (PositiveUnlabeled(0.4), UnlabeledUnlabeled((0.2, 0.7))):
        assert WeakLoss(supervision).queue.size == 1024
        assert WeakLoss(supervision, queue=0).queue is None
    pairs_and_set = fastbus.SimilarDissimilarUnlabeled(0.4)
    for supervision in ("multi_instance", pairs_and_set, PositiveUnlabeled(0.4) & fastbus.PartialLabel()):
        assert WeakLoss(supervision).queue is None


def test_an_evolution_keeps_no_queue_unless_one_is_asked_for():
    """It reads features, which earlier predictions lack; that a queue of one's own is refused stands elsewhere."""
    module = fastbus.StateEvolution(5, 1, 4, variant="mlp")
    assert WeakLoss(PositiveUnlabeled(0.4), head="sigmoid", mode="joint", evolution=module).queue is None


def test_usual_queue_outgrows_the_batch():
    """1,024 predictions join: the count runs over all of them, and the batch's posterior is that of the union."""
    supervision = PositiveUnlabeled(0.4)
    loss = WeakLoss(supervision, head="sigmoid", reduction="sum").double()
    batches = [draws(1, 128, 1, seed=seed) for seed in range(10)]
    for x in batches[:9]:
        loss(x, torch.full((1, 128), -1))
    assert int(loss.queue.filled) == 1024
    newest = torch.cat(batches[:0:-1], 1)  # 1 to 9, the newest first
    q = fastbus.infer(supervision, newest, torch.full((1, 1152), -1), head="sigmoid").labels
    close(q.sum(), torch.tensor(0.4 * 1152).round().double(), 1e-9)
    close(loss(batches[9], torch.full((1, 128), -1)), unbiased_risk(batches[9], q[:, :128], "sigmoid").sum(), 1e-9)
