"""Noisy labels: forward correction against enumeration, ELR, SOP and DivideMix against numbers worked apart."""

import numpy as np
import pytest
import torch
from sklearn.mixture import GaussianMixture
from torch import Tensor, nn

import fastbus
from digit_runs import method_run, unseen_accuracy
from fastbus.errors import InputError, WeakLabelError
from fastbus.methods import imperfect_dividemix as dividemix
from fastbus.methods import imperfect_noisy as noisy
from fastbus.methods import objective_of
from fastbus.methods.mixing import BetaShares, mix, sharpen
from fastbus.methods.registry import MethodOptions
from fastbus.methods.second_network import SecondNetwork, fresh_network
from fastbus.models.build import build_backbone
from fastbus.oracle import enumerate_posterior
from fastbus.supervision.confusion import symmetric_confusion
from fastbus.training.image_run import ImageRun
from tensors import close
from test_image_run import QUICK, digits, weak_digits

CPU = torch.device("cpu")
TRANSITION = torch.tensor([[0.7, 0.2, 0.1], [0.0, 0.9, 0.1], [0.3, 0.3, 0.4]], dtype=torch.float64)


def test_forward_correction_is_the_likelihood_by_enumeration() -> None:
    logits = torch.randn(9, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    labels = torch.arange(9) % 3
    oracle = enumerate_posterior(fastbus.NoisyLabel(TRANSITION), logits[:, None].numpy(), labels[:, None].numpy())
    expected = -torch.as_tensor(np.asarray(oracle.log_likelihood, dtype=float))
    close(noisy.forward_loss(logits, labels, TRANSITION), expected, 1e-10)
    plain = torch.nn.functional.cross_entropy(logits, labels, reduction="none")
    close(noisy.forward_loss(logits, labels, torch.eye(3, dtype=torch.float64)), plain, 1e-10)


def test_forward_correction_is_smallest_at_the_clean_posterior() -> None:
    clean = torch.tensor([[0.2, 0.5, 0.3]], dtype=torch.float64)
    logits = clean.log().requires_grad_()
    risk = ((clean @ TRANSITION)[0] * noisy.forward_loss(logits.expand(3, 3), torch.arange(3), TRANSITION)).sum()
    (gradient,) = torch.autograd.grad(risk, logits)
    assert float(gradient.abs().max()) < 1e-12
    other = noisy.forward_loss(torch.zeros(3, 3, dtype=torch.float64), torch.arange(3), TRANSITION)
    assert float(risk.detach()) < float(((clean @ TRANSITION)[0] * other).sum())


def test_early_learning_targets_and_regulariser_by_hand() -> None:
    first, second = ([0.7, 0.2, 0.1], [0.5, 0.3, 0.2])
    target = torch.zeros(1, 3, dtype=torch.float64)
    for p in (first, second):
        target = noisy.elr_target(target, torch.tensor([p], dtype=torch.float64).log(), 0.7)
    expected = 0.7 * 0.3 * np.array(first) + 0.3 * np.array(second)
    close(target, torch.tensor(expected[None]))
    value = noisy.elr_regulariser(torch.tensor([second], dtype=torch.float64).log(), target)
    assert float(value) == pytest.approx(np.log(1 - expected @ np.array(second)), abs=1e-10)


def test_sparse_noise_by_hand_and_who_learns_from_what() -> None:
    p = torch.tensor([[0.6, 0.3, 0.1]], dtype=torch.float64)
    logits = p.log().requires_grad_()
    u = torch.tensor([[0.5]], dtype=torch.float64, requires_grad=True)
    v = torch.tensor([[0.4, 0.9, 0.2]], dtype=torch.float64, requires_grad=True)
    entropy, squared = noisy.sop_losses(logits, torch.tensor([1]), u, v)
    changed = np.array([0.6 - 0.16, 0.3 + 0.25, 0.1 - 0.04])
    assert float(entropy.detach()) == pytest.approx(-np.log(changed[1] / changed.sum()), abs=1e-10)
    assert float(squared.detach()) == pytest.approx((1 - 0.16) ** 2 + (0.25 - 1) ** 2 + 0.04**2, abs=1e-10)
    assert torch.autograd.grad(entropy, v, retain_graph=True, allow_unused=True)[0] is None
    assert torch.autograd.grad(squared, [logits, u], retain_graph=True, allow_unused=True) == (None, None)
    assert float(torch.autograd.grad(entropy, u)[0]) < 0  # the noise on the label grows where it is not believed


def test_sparse_noise_grows_at_wrong_labels_only() -> None:
    logits = torch.tensor([[0.98, 0.01, 0.01]] * 2, dtype=torch.float64).log()
    labels = torch.tensor([0, 2])  # the second one is wrong
    u, v = (torch.full((2, n), 1e-3, dtype=torch.float64, requires_grad=True) for n in (1, 3))
    for _ in range(200):
        loss = sum(x.sum() for x in noisy.sop_losses(logits, labels, u, v))
        with torch.no_grad():
            for mine, gradient in zip((u, v), torch.autograd.grad(loss, (u, v)), strict=True):
                mine -= 0.05 * gradient
    u, v = u.detach(), v.detach()
    right, wrong = (float(x) ** 2 for x in u)
    assert right < 1e-3 and wrong > 0.5
    assert float(v[1, 0]) ** 2 > 0.5 and float(v[0].abs().max()) < 0.01  # and takes its share from the believed class


def test_the_two_gaussians_of_the_losses_equal_scikit_learns() -> None:
    images, labels = digits()
    level = torch.from_numpy(images.flatten(1).double().mean(1).numpy())  # two overlapping groups of real numbers
    losses = torch.where(torch.from_numpy(labels % 3 == 0), level + 30, level)
    found = dividemix.clean_probability(losses, rounds=2000)
    x = ((losses - losses.min()) / (losses.max() - losses.min())).numpy()[:, None]
    quantiles = np.quantile(x, [0.1, 0.9])[:, None]
    gmm = GaussianMixture(2, reg_covar=5e-4, tol=1e-12, max_iter=2000, means_init=quantiles).fit(x)
    expected = gmm.predict_proba(x)[:, int(gmm.means_.argmin())]
    assert float((found - torch.from_numpy(expected)).abs().max()) < 1e-3


def test_targets_are_refined_and_guessed_by_hand() -> None:
    said = torch.tensor([[1.0, 0.0], [1.0, 0.0]])
    own, other = torch.tensor([[0.4, 0.6], [0.4, 0.6]]), torch.tensor([[0.2, 0.8], [0.2, 0.8]])
    targets, kept = dividemix.refined_targets(torch.tensor([0.75, 0.25]), said, own, other)
    refined, guessed = np.array([0.75 + 0.25 * 0.4, 0.25 * 0.6]), np.array([0.3, 0.7])
    expected = np.stack([refined**2 / (refined**2).sum(), guessed**2 / (guessed**2).sum()])
    assert kept.tolist() == [True, False] and np.allclose(targets, expected, atol=1e-6)
    two = torch.tensor([[0.8, 0.2], [0.5, 0.5]]).log()
    loss = dividemix.mixed_loss(two, targets, kept, torch.tensor(25.0), torch.ones(2))
    by_hand = -(expected[0] * np.log([0.8, 0.2])).sum() + 25 * ((expected[1] - 0.5) ** 2).mean()
    assert float(loss) == pytest.approx(by_hand, rel=1e-5)
    skewed = torch.tensor([[0.9, 0.1], [0.7, 0.3]]).log()
    assert float(dividemix.balance_penalty(skewed)) == pytest.approx(0.5 * np.log(0.5 / 0.8) + 0.5 * np.log(0.5 / 0.2))


def test_shares_follow_the_beta_distribution_and_mixing_keeps_rows_themselves() -> None:
    shares = BetaShares(0.75, CPU)
    assert float(shares.quantiles.mean()) == pytest.approx(0.5, abs=1e-4)
    assert float(shares.quantiles.var()) == pytest.approx(1 / (4 * (2 * 0.75 + 1)), rel=1e-3)  # ab / ((a+b)^2 (a+b+1))
    own = shares.own(1000, torch.Generator().manual_seed(0))
    assert own.shape == (1000, 1) and float(own.min()) >= 0.5
    x = torch.tensor([[1.0, 0.0], [0.0, 2.0]])
    close(mix(x, torch.tensor([1, 0]), torch.tensor([[0.75], [0.5]])), torch.tensor([[0.75, 0.5], [0.5, 1.0]]))
    close(sharpen(torch.tensor([[0.6, 0.4]]), 0.5), torch.tensor([[0.36, 0.16]]) / 0.52, 1e-6)


def test_the_second_network_steps_as_torchs_sgd() -> None:
    recipe = QUICK.replace(schedule="constant", warmup=0, learning_rate=0.05)
    network, twin = (build_backbone("linear", (1, 8, 8), 10, seed=1) for _ in range(2))
    second = SecondNetwork(network, recipe, 100, CPU)
    optimiser = torch.optim.SGD(twin.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4, nesterov=True)
    images, labels = digits()
    x, y = images[:64] / 255, torch.from_numpy(labels[:64])
    for step in range(5):
        progress = torch.tensor(step / 100, dtype=torch.float64)
        second.descend(torch.nn.functional.cross_entropy(second(x), y), progress)
        optimiser.zero_grad()
        torch.nn.functional.cross_entropy(twin(x), y).backward()
        optimiser.step()
    for mine, theirs in zip(second.network.parameters(), twin.parameters(), strict=True):
        close(mine.detach(), theirs.detach(), 1e-6)


class Own(nn.Module):
    """A network of the caller's, a part of which is frozen and another cannot be drawn anew."""

    def __init__(self) -> None:
        super().__init__()
        self.frozen = nn.Linear(64, 16).requires_grad_(False)
        self.hidden, self.out = nn.Linear(16, 12), nn.Linear(12, 10)
        self.scale = nn.Parameter(torch.full((10,), 0.5))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.scale * self.out(torch.relu(self.hidden(torch.relu(self.frozen(x.flatten(1))))))
        return out


def test_the_second_network_is_of_the_callers_architecture_with_weights_of_its_own() -> None:
    rule, images, sizes, weak, _, _ = weak_digits("noisy_label")
    recipe, make = QUICK.replace(epochs=2), objective_of("dividemix")
    torch.manual_seed(3)
    drawn = torch.rand(2)
    torch.manual_seed(3)
    network = Own()
    torch.manual_seed(3)
    run = ImageRun(rule, images, sizes, weak, num_classes=10, recipe=recipe, network=network, objective=make)
    assert torch.equal(drawn, torch.rand(2))  # the caller's random numbers stay
    second = run.objective.second.network
    assert type(second) is Own and second is not network
    alike = {name for name, x in second.state_dict().items() if torch.equal(x, network.state_dict()[name])}
    assert alike == {"frozen.weight", "frozen.bias", "scale"}
    assert np.isfinite(run.run_epoch()["loss"])
    average = run.objective.second.average
    assert all(torch.equal(x.frozen.weight, second.frozen.weight) for x in (network, average))
    built = build_backbone("mlp", (1, 8, 8), 10, seed=run.seed, hidden=(7,))
    twin = fresh_network(built, run.seed + 1)
    assert [x.shape for x in twin.parameters()] == [x.shape for x in built.parameters()]
    assert not torch.equal(twin.classifier.weight, built.classifier.weight)


@pytest.mark.parametrize("schedule", ["cosine", "constant"])
def test_the_noise_is_learnt_at_one_rate_whatever_the_schedule(schedule: str) -> None:
    run = method_run("noisy_label", "sop", QUICK.replace(epochs=1, schedule=schedule, warmup=7))
    u = run.objective.learned["u"]
    with torch.no_grad():
        u.fill_(0.1)
    before = u.detach().clone()
    run.training.load(run._pack(0))
    run.training.run(run.steps_per_epoch)
    moved = (u.detach() - before).abs().flatten()
    rows = torch.from_numpy(run._pack(0).rows)
    first, last = (float(moved[rows[step]].mean()) for step in (0, -1))
    assert 0.3 < last / first < 3  # a schedule would have come down to a thousandth


def test_wrong_labels_that_go_to_one_class_are_asymmetric() -> None:
    _, images, sizes, weak, _, _ = weak_digits("noisy_label")
    shifted = 0.6 * torch.eye(10, dtype=torch.float64) + 0.4 * torch.eye(10, dtype=torch.float64).roll(1, 1)
    for matrix, one_sided in ((shifted, True), (symmetric_confusion(0.4, 10), False)):
        rule, make = fastbus.NoisyLabel(matrix), objective_of("elr")
        run = ImageRun(rule, images, sizes, weak, num_classes=10, recipe=QUICK, objective=make)
        rate, asymmetric = noisy.noise_of(run, MethodOptions())
        assert rate == pytest.approx(0.4) and asymmetric is one_sided
        assert (run.objective.keep, run.objective.weight) == ((0.9, 1.0) if one_sided else (0.7, 3.0))


@pytest.mark.parametrize("classes", [2, 3, 4, 10])
def test_even_noise_is_symmetric_however_few_classes_and_estimated(classes: int) -> None:
    rng = np.random.default_rng(0)
    for rate in (0.1, 0.3, 0.45):
        labels = rng.integers(classes, size=3000)
        said = np.where(rng.random(3000) < rate, (labels + rng.integers(1, classes, 3000)) % classes, labels)
        counts = np.zeros((classes, classes))
        np.add.at(counts, (labels, said), 1)
        wrong = torch.from_numpy(counts / counts.sum(1, keepdims=True)).fill_diagonal_(0.0)
        assert not noisy.one_sided(wrong)
        one = torch.zeros(classes, classes, dtype=torch.float64)
        one[0, 1] = rate  # labels of the first class alone are wrong, always in the same way
        assert noisy.one_sided(one)


def test_distrusted_labels_weigh_as_published() -> None:
    # the authors draw 20, 50, 80 and 90 % of the labels anew, the true one among them
    weights = [dividemix.published_weight(0.9 * rate, False, 10) for rate in (0.2, 0.5, 0.8, 0.9)]
    assert weights == [0.0, 25.0, 25.0, 50.0]
    assert dividemix.published_weight(0.4, True, 10) == 0.0
    assert [dividemix.published_weight(rate, False, 100) for rate in (0.2, 0.5)] == [25.0, 150.0]


@pytest.mark.parametrize(("distrusted", "weight"), [(0.3, 0.0), (0.4, 25.0), (0.8, 50.0)])
def test_an_unknown_share_is_that_of_the_first_division(
    monkeypatch: pytest.MonkeyPatch, distrusted: float, weight: float
) -> None:
    _, images, sizes, weak, _, _ = weak_digits("noisy_label")
    recipe, make = QUICK.replace(epochs=2), objective_of("dividemix")
    run = ImageRun(fastbus.NoisyLabel(), images, sizes, weak, num_classes=10, recipe=recipe, objective=make)
    run.run_epoch()
    assert float(run.objective.state()["unlabelled_weight"]) == 0
    # the published weights are for .18, .45, .72 and .81 wrong labels: 0, 25, 25 and 50
    doubted = torch.arange(1400) < distrusted * 1400
    monkeypatch.setattr(dividemix, "clean_probability", lambda losses: torch.where(doubted, 0.1, 0.9).double())
    run.objective.start_epoch(run)
    assert float(run.objective.state()["unlabelled_weight"]) == weight


def test_sure_predictions_cost_while_warm_where_noise_is_asymmetric() -> None:
    _, images, sizes, weak, _, _ = weak_digits("noisy_label")
    shifted = 0.7 * torch.eye(10, dtype=torch.float64) + 0.3 * torch.eye(10, dtype=torch.float64).roll(1, 1)
    losses = []
    for rule in (fastbus.NoisyLabel(shifted), fastbus.NoisyLabel(rate=0.3)):
        recipe, make = QUICK.replace(epochs=2), objective_of("dividemix")
        run = ImageRun(rule, images, sizes, weak, num_classes=10, recipe=recipe, flip=False, objective=make)
        run.training.load(run._pack(0))
        run.training.run(1)
        losses.append(float(run.training.loss))
    assert losses[1] - losses[0] == pytest.approx(np.log(10), abs=0.2)  # the entropy of a network that knows nothing


@pytest.mark.parametrize("pretrain", [0, 5])
def test_both_networks_begin_with_pretrained_features(pretrain: int) -> None:
    run = method_run("noisy_label", "dividemix", QUICK.replace(pretrain=pretrain))
    objective = run.objective
    assert isinstance(objective, dividemix.DivideMix)
    objective.start_epoch(run)
    first, second = run.training.network.state_dict(), objective.second.network.state_dict()
    learnt = [name for name in first if name.endswith("weight") and first[name].dim() > 1]
    alike = {name for name in learnt if torch.equal(first[name], second[name])}
    assert alike == ({name for name in learnt if not name.startswith("classifier.")} if pretrain else set())
    assert all(torch.equal(x, second[name]) for name, x in objective.second.average.state_dict().items())


def test_both_networks_are_evaluated() -> None:
    run = method_run("noisy_label", "dividemix", QUICK.replace(epochs=2))
    run.run_epoch()
    x = run.views.plain(digits()[0][:30])
    run.objective.second.average.eval()
    with torch.no_grad():
        expected = (run.training.average(x) + run.objective.second.average(x)) / 2
    close(run.logits(digits()[0][:30]), expected, 1e-5)
    run.training.network.eval()
    run.objective.second.network.eval()
    with torch.no_grad():
        alone = run.training.network(x)
        expected = (alone + run.objective.second.network(x)) / 2
    close(run.logits(digits()[0][:30], average=False), expected, 1e-5)
    close(run.logits(digits()[0][:30], average=False, plain=True), alone, 1e-5)


SMOKE = {"forward": 0.83, "elr": 0.83, "sop": 0.83, "dividemix": 0.7}  # some ten points below seed 0; chance is .1


@pytest.mark.parametrize("method", SMOKE)
def test_it_learns_unseen_digits(method: str) -> None:
    run = method_run("noisy_label", method)
    assert unseen_accuracy(run, "noisy_label") > SMOKE[method]
    if method == "dividemix":  # right labels are told from wrong ones, by either network
        _, _, _, weak, truth, _ = weak_digits("noisy_label")
        right = torch.from_numpy(weak.numpy() == truth[:1400])
        for clean in run.objective.state()["clean"]:
            assert float((clean[right] > 0.5).float().mean()) > float((clean[~right] > 0.5).float().mean()) + 0.5


def test_two_networks_go_on_as_if_they_had_never_stopped() -> None:
    recipe = QUICK.replace(epochs=3)
    straight, broken = (method_run("noisy_label", "dividemix", recipe) for _ in range(2))
    straight.run_epoch()
    straight.run_epoch()
    broken.load_state_dict(straight.state_dict())
    assert straight.run_epoch()["loss"] == broken.run_epoch()["loss"]
    assert torch.equal(straight.predict(digits()[0][:50]), broken.predict(digits()[0][:50]))


def test_what_is_missing_or_wrong_is_said() -> None:
    _, images, sizes, weak, _, _ = weak_digits("noisy_label")

    def run(labels: torch.Tensor, method: str) -> ImageRun:
        rule, make = fastbus.NoisyLabel(), objective_of(method)
        return ImageRun(rule, images, sizes, labels, num_classes=10, recipe=QUICK, objective=make)

    cure = r"forward needs the share of wrong labels; expected noise_rate=.*NoisyLabel a transition.*method='elr'"
    with pytest.raises(InputError, match=cure):
        run(weak, "forward")
    rule, make = fastbus.NoisyLabel(symmetric_confusion(0.3, 10)), objective_of("forward", noise_rate=0.2)
    with pytest.raises(InputError, match=r"forward: noise_rate=0.2 beside a transition of other rates; expected one"):
        ImageRun(rule, images, sizes, weak, num_classes=10, recipe=QUICK, objective=make)
    wrong = weak.clone()
    wrong[5] = 10
    with pytest.raises(WeakLabelError, match="label 10 at instance 5; expected classes 0 to 9"):
        run(wrong, "elr")


@pytest.mark.parametrize(("epochs", "rows", "factor"), [(15, 128, 1.0), (300, 128, 1.0), (300, 64, 0.5)])
def test_noise_of_its_own_grows_with_rows_as_the_authors_does(epochs: int, rows: int, factor: float) -> None:
    run = method_run("noisy_label", "sop", QUICK.replace(epochs=epochs, rows=rows))
    for name in ("u", "v"):
        assert run.objective.rates[name] == pytest.approx(10 * factor / QUICK.learning_rate)
