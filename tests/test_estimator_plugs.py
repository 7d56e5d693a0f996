"""WeakClassifier with learned messages, fewer states and class loops: it trains, it saves, it resumes, it refuses."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from torch import nn

import fastbus
from fastbus import ClassLoop, ClassTransition, InputError, WeakClassifier, weaken
from fastbus.errors import CouplingError, FastbusError
from fastbus.learner_plugs import batch_of_sets
from fastbus.models.build import build_backbone
from fastbus.training.bag_set import BagSet
from fastbus.training.checkpoint import read_checkpoint, write_checkpoint
from fastbus.training.fit import METRICS

torch.set_num_threads(1)
YEAST = Path(__file__).resolve().parents[2] / "shared" / "data" / "multilabel_yeast.npz"
X, Y = load_digits(return_X_y=True)
IDS = np.arange(300) // 5
COUNTS = weaken("label_proportion", Y[:300], IDS)
FIT: dict[str, Any] = {"epochs": 2, "random_state": 0, "learning_rate": 0.02}


@pytest.fixture(scope="module")
def yeast() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Bags of 4 genes of yeast, 14 classes, a third of the bag labels missing."""
    if not YEAST.exists():
        pytest.skip("the folder shared/data with the real multi-label data is absent")
    with np.load(YEAST, allow_pickle=False) as arrays:
        rows, labels = arrays["x_train"][:240], arrays["y_train"][:240].astype(int)
    bags = np.arange(240) // 4
    weak = labels.reshape(60, 4, -1).max(1)
    return rows, np.where(np.random.default_rng(0).random(weak.shape) < 0.3, -1, weak), bags


def digit_parts() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Three labels of a digit that go together: even, at least 5, prime; a quarter of the bag labels missing."""
    truth = np.stack([Y % 2 == 0, Y >= 5, np.isin(Y, [2, 3, 5, 7])], 1)[:300].astype(int)
    weak = truth.reshape(60, 5, 3).max(1)
    return X[:300], np.where(np.random.default_rng(1).random(weak.shape) < 0.25, -1, weak), IDS


def multi_label(**options: Any) -> WeakClassifier:
    return WeakClassifier("multi_instance", head="sigmoid", **FIT | options)


# -- state evolution and rank ------------------------------------------------------------------------


@pytest.mark.parametrize("variant", ["full", "mlp"])
def test_a_learned_evolution_trains_and_predictions_do_without_it(variant: str, tmp_path: Path) -> None:
    clf = WeakClassifier("label_proportion", evolution=variant, **FIT | {"epochs": 8}).fit(X[:300], COUNTS, bags=IDS)
    assert clf.evolution_ is not None and clf.evolution_.variant == variant
    assert float(clf.evolution_.last.weight.detach().abs().max()) > 0, "it has learned nothing"
    assert clf.score(X[300:], Y[300:]) > 0.5  # chance is 0.1
    post = clf.posterior(X[:300], COUNTS, bags=IDS)
    logits = torch.from_numpy(clf.decision_function(X[:300])).reshape(60, 5, 10)
    exact = fastbus.infer("label_proportion", logits, torch.from_numpy(np.asarray(COUNTS)))
    assert np.allclose(post.reshape(60, 5, 10), exact.labels.numpy(), atol=1e-6)
    assert np.allclose(post.reshape(60, 5, 10).sum(1), COUNTS, atol=1e-5)  # what only exact posteriors do
    clf.save(tmp_path)
    again = WeakClassifier.load(tmp_path)
    assert again.get_params()["evolution"] == variant and again.evolution_ is None
    assert np.array_equal(again.predict_proba(X), clf.predict_proba(X))
    assert np.array_equal(again.posterior(X[:300], COUNTS, bags=IDS), post)


def test_single_instances_have_an_evolution_too() -> None:
    sets = weaken("partial_label", Y[:200], rng=0, ratio=0.3)
    clf = WeakClassifier("partial_label", evolution="full", **FIT | {"epochs": 5}).fit(X[:200], sets)
    assert clf.score(X[300:], Y[300:]) > 0.5


def of_known_prior(kind: str) -> tuple[fastbus.Supervision, np.ndarray]:
    """600 digits, even ones positive: a fifth of the positives are known, or two sets of 70 % and 20 % positives."""
    positive, draw = Y[:600] % 2 == 0, np.random.default_rng(0).random(600)
    if kind == "positive_unlabeled":
        known = positive & (draw < 0.2)
        return fastbus.PositiveUnlabeled(float(positive[~known].mean())), np.where(known, 1, -1)
    first = np.where(positive, draw < 0.8, draw < 0.35)
    return fastbus.UnlabeledUnlabeled([positive[~first].mean(), positive[first].mean()]), first.astype(int)


@pytest.mark.parametrize("kind", ["positive_unlabeled", "unlabeled_unlabeled"])
def test_sets_of_known_prior_have_an_evolution_too(kind: str, tmp_path: Path) -> None:
    rule, weak = of_known_prior(kind)
    clf = WeakClassifier(rule, evolution="mlp", **FIT | {"epochs": 30, "learning_rate": 0.01}).fit(X[:600], weak)
    assert clf.evolution_ is not None and float(clf.evolution_.last.weight.detach().abs().max()) > 0
    assert clf.evolution_.num_states == {"positive_unlabeled": 201, "unlabeled_unlabeled": 301}[kind]
    even = (Y[600:] % 2 == 0).astype(int)
    accuracy, majority = clf.score(X[600:], even), max(even.mean(), 1 - even.mean())
    print(f"{kind} with an evolution: {accuracy:.3f}, majority {majority:.3f}")
    assert accuracy > majority + 0.2
    clf.save(tmp_path)
    again = WeakClassifier.load(tmp_path)
    assert again.evolution == "mlp" and np.array_equal(again.predict_proba(X), clf.predict_proba(X))
    assert np.array_equal(again.posterior(X[:600], weak), clf.posterior(X[:600], weak))


@pytest.mark.parametrize("rows", [1, 3, 200, 257, 300, 1437, 76_801])
@pytest.mark.parametrize("held_out", [0.0, 0.1])
def test_no_batch_of_a_set_is_much_smaller_than_the_others(rows: int, held_out: float) -> None:
    weak = torch.full((rows,), -1)
    data = BagSet(fastbus.PositiveUnlabeled(0.5), torch.zeros(rows, 1), torch.ones(rows, dtype=torch.long), weak)
    batch, trained = batch_of_sets(data, held_out), rows - round(held_out * rows)
    assert min(128, trained) <= batch <= 256
    assert trained % batch == 0 or trained % batch > 0.9 * batch


def test_a_rank_that_loses_nothing_changes_nothing() -> None:
    fits = [
        WeakClassifier("label_proportion", coupling="independent", rank=rank, **FIT).fit(X[:300], COUNTS, bags=IDS)
        for rank in (None, int(COUNTS.max()) + 1)
    ]
    assert np.allclose(fits[0].predict_proba(X), fits[1].predict_proba(X), atol=1e-4)
    # bag 0 holds the digits 0 to 4 once, the first bag with a digit twice is out of reach of two states
    bag = int(np.flatnonzero(COUNTS.max(1) > 1)[0])
    with pytest.raises(FastbusError, match=rf"rank.*bag {bag}\b"):
        WeakClassifier("label_proportion", rank=2, **FIT).fit(X[:300], COUNTS, bags=IDS)


class StoppedError(Exception):
    """It went off."""


class Fragile(nn.Module):
    """A network that breaks down after so many more batches."""

    batches = 10**9
    num_features = 16

    def __init__(self, outputs: int) -> None:
        super().__init__()
        self.inner = build_backbone("mlp", (64,), outputs, seed=0, hidden=(16,), dropout=0.2)

    def features(self, x: torch.Tensor) -> torch.Tensor:
        Fragile.batches -= 1
        if Fragile.batches < 0:
            raise StoppedError
        return self.inner.features(x)

    def classify(self, features: torch.Tensor) -> torch.Tensor:
        return self.inner.classify(features)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.classify(self.features(x))


@pytest.mark.parametrize("how", ["evolution", "evolution of a set", "class_loop"])
def test_fits_resume_exactly(how: str, tmp_path: Path) -> None:
    def start(folder: str, batches: int = 10**9, **more: Any) -> WeakClassifier:
        Fragile.batches = batches
        options = FIT | {"epochs": 3, "batch_bags": 12, "folder": str(tmp_path / folder), "resume": True}
        if how == "evolution":
            clf = WeakClassifier("label_proportion", backbone=Fragile(10), evolution="mlp", **options | more)
            return clf.fit(X[:300], COUNTS, bags=IDS)
        if how == "evolution of a set":
            rule, known = of_known_prior("positive_unlabeled")
            options |= {"batch_bags": 120, "ema": 0.9}
            clf = WeakClassifier(rule, backbone=Fragile(2), evolution="full", **options | more)
            return clf.fit(X[:600], known)
        rows, weak, bags = digit_parts()
        clf = multi_label(backbone=Fragile(3), **options | {"class_loop": "learned"} | more)
        return clf.fit(rows, weak, bags=bags)

    whole = start("whole")
    with pytest.raises(StoppedError):
        start("cut", batches=12)  # in the third epoch of five batches each
    assert len((tmp_path / "cut" / METRICS).read_text().splitlines()) == 2
    resumed = start("cut")
    assert resumed.history_ == whole.history_
    assert np.array_equal(resumed.predict_proba(X), whole.predict_proba(X))
    mine, other = (clf.class_loop_ if how == "class_loop" else clf.evolution_ for clf in (resumed, whole))
    assert mine is not None and other is not None
    assert all(torch.equal(mine.state_dict()[name], x) for name, x in other.state_dict().items())
    if how == "class_loop":
        assert float(mine.log_pair.abs().max()) > 1e-2, "factors that did not move show nothing"
        with pytest.raises(InputError, match="resume with loss"):
            start("cut", class_loop=None, likelihood=1.0)


def test_a_run_does_not_resume_with_another_class_loop(tmp_path: Path) -> None:
    rows, weak, bags = digit_parts()

    def fit(**options: Any) -> None:
        loop = ClassLoop.from_labels(weak, learn=False, **options)
        clf = multi_label(class_loop=loop, epochs=1, folder=str(tmp_path), resume=True)
        clf.fit(rows, weak, bags=bags)

    fit()
    fit()  # the same one
    for other in ({"damping": 0.1}, {"tolerance": 1e-3}, {"strength": 0.5}):
        with pytest.raises(InputError, match="resume with loss") as caught:
            fit(**other)
        assert "\n" not in str(caught.value)


# -- class loops -------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["labels", "learned", "loop", "transition"])
def test_class_loops_train_save_and_load(how: str, tmp_path: Path) -> None:
    rows, weak, bags = digit_parts()
    given = {"loop": ClassLoop.from_labels(weak), "transition": ClassTransition.near_identity(3, 0.05)}
    asked = given.get(how, how)
    clf = multi_label(class_loop=asked, epochs=10).fit(rows, weak, bags=bags)
    loop = clf.class_loop_
    assert loop is not None and not loop.is_neutral()
    if how in ("learned", "loop"):  # factors are learned, and the caller's own module is left as it was
        difference = loop.log_factor - ClassLoop.from_labels(weak).log_factor
        assert float(difference.detach().abs().max()) > 1e-2
    if how in given:
        for name, x in given[how].named_parameters():
            assert x.requires_grad and not torch.equal(x, dict(loop.named_parameters())[name])
    elif how == "labels":
        assert torch.equal(loop.log_factor, ClassLoop.from_labels(weak).log_factor)
    post = clf.posterior(rows, weak, bags=bags)
    logits = torch.from_numpy(clf.decision_function(rows)).reshape(60, 5, 3)
    tied = fastbus.infer("multi_instance", logits, torch.from_numpy(weak), head="sigmoid", class_loop=loop).labels
    alone = fastbus.infer("multi_instance", logits, torch.from_numpy(weak), head="sigmoid").labels
    assert np.allclose(post.reshape(60, 5, 3), tied.detach().numpy(), atol=1e-6)
    assert float((tied - alone).abs().max()) > 1e-3
    assert np.allclose(clf.predict_proba(rows), 1 / (1 + np.exp(-clf.decision_function(rows))), atol=1e-12)
    clf.save(tmp_path)
    again = WeakClassifier.load(tmp_path)
    assert np.array_equal(again.posterior(rows, weak, bags=bags), post)
    assert isinstance(again.class_loop, str) == isinstance(asked, str)


def test_early_stopping_keeps_factors_and_weights_of_one_epoch() -> None:
    rows, weak, bags = digit_parts()
    options: dict[str, Any] = {"schedule": "constant"}
    clf = multi_label(class_loop="learned", epochs=60, patience=3, held_out=0.3, train_options=options)
    clf.fit(rows, weak, bags=bags)
    losses = [row["held_out"] for row in clf.history_]
    best = int(np.argmin(losses))
    assert clf.n_iter_ == best + 1 + 3 < 60 and losses[-1] > losses[best] + 1e-3
    seed = int(np.random.RandomState(0).randint(2**31 - 1))
    kept = torch.randperm(60, generator=torch.Generator().manual_seed(seed))[:18].sort().values.tolist()
    found = -clf.weak_log_likelihood([rows[bags == bag] for bag in kept], weak[kept])
    assert found == pytest.approx(losses[best], rel=1e-5)


@pytest.mark.parametrize("how", ["labels", "learned"])
def test_class_loops_of_real_multi_label_data(how: str, yeast: Any, tmp_path: Path) -> None:
    rows, weak, bags = yeast
    clf = multi_label(class_loop=how, epochs=4).fit(rows, weak, bags=bags)
    assert clf.class_loop_ is not None and clf.class_loop_.num_classes == 14
    post = clf.posterior(rows, weak, bags=bags)
    assert np.isfinite(post).all() and post.shape == (240, 14)
    # what is known to be absent is absent, whatever ties the classes
    assert float(post.reshape(60, 4, 14).max(1)[weak == 0].max()) == 0
    clf.save(tmp_path)
    assert np.array_equal(WeakClassifier.load(tmp_path).posterior(rows, weak, bags=bags), post)


def test_factors_come_from_the_bags_that_are_trained_on() -> None:
    """Else the held-out likelihood, which chooses the epoch, would have seen its own labels."""
    rows, weak, bags = digit_parts()
    clf = multi_label(class_loop="labels", held_out=0.5).fit(rows, weak, bags=bags)
    assert clf.class_loop_ is not None
    assert not torch.equal(clf.class_loop_.log_factor, ClassLoop.from_labels(weak).log_factor)


def test_counts_may_be_tied() -> None:
    truth = np.stack([Y % 2 == 0, Y >= 5], 1)[:300].astype(int).reshape(60, 5, 2).sum(1)
    for how in ("labels", "learned"):
        clf = WeakClassifier("label_proportion", head="sigmoid", class_loop=how, **FIT).fit(X[:300], truth, bags=IDS)
        assert clf.class_loop_ is not None and clf.class_loop_.num_values == 6


# -- what is refused ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"class_loop": "labels"}, InputError, 'head="softmax"'),
        ({"class_loop": "often", "head": "sigmoid"}, InputError, "class_loop"),
        ({"class_loop": nn.Linear(2, 2), "head": "sigmoid"}, InputError, "class_loop of type Linear"),
        ({"class_loop": ClassLoop(3), "head": "sigmoid"}, CouplingError, "3 classes with predictions of 10"),
        ({"class_loop": "learned", "head": "sigmoid", "rank": 3}, InputError, "class_loop with rank"),
        ({"evolution": "huge"}, InputError, "evolution"),
        ({"evolution": "full", "backbone": nn.Linear(64, 10)}, InputError, "num_features"),
        ({"evolution": "full", "coupling": "joint"}, CouplingError, 'coupling="joint"'),
        ({"rank": 0}, InputError, "rank=0"),
    ],
)
def test_what_does_not_fit_is_refused(options: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words) as caught:
        WeakClassifier("label_proportion", **FIT | options).fit(X[:300], COUNTS, bags=IDS)
    assert "\n" not in str(caught.value)


def test_labels_that_cannot_be_counted_are_refused() -> None:
    shares = COUNTS / 5
    with pytest.raises(InputError, match='class_loop="learned"'):
        rule = fastbus.LabelProportion(unit="fraction")
        WeakClassifier(rule, head="sigmoid", class_loop="labels", **FIT).fit(X[:300], shares, bags=IDS)
    with pytest.raises(InputError, match="exactly one rule"):
        WeakClassifier("semi_supervised", head="sigmoid", class_loop="labels", **FIT).fit(
            X[:300], np.eye(10, dtype=int)[Y[:300]]
        )
    with pytest.raises(InputError, match="evolution= with queue="):
        rule, known = of_known_prior("positive_unlabeled")
        WeakClassifier(rule, evolution="mlp", queue=64, **FIT).fit(X[:600], known)


def test_hostile_class_loops_in_files_are_refused(tmp_path: Path) -> None:
    rows, weak, bags = digit_parts()
    multi_label(class_loop="learned", epochs=1).fit(rows, weak, bags=bags).save(tmp_path)
    state = read_checkpoint(tmp_path / "model.safetensors")
    loop = state["fitted_class_loop"]
    broken: list[Any] = [
        loop | {"num_values": 10**9},
        loop | {"kind": "os.system"},
        loop | {"state": {}},
        loop | {"state": loop["state"] | {"log_pair": torch.full((3, 2, 2), torch.nan)}},
        loop | {"options": {"shell": "rm"}},
        [1],
    ]
    for tree in broken:
        write_checkpoint(state | {"fitted_class_loop": tree}, tmp_path / "model.safetensors")
        with pytest.raises(FastbusError) as caught:
            WeakClassifier.load(tmp_path)
        assert "\n" not in str(caught.value)
