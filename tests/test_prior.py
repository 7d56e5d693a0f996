"""Shares of positives that nobody told: estimates from real digits, and what is refused."""

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import StratifiedKFold

import fastbus
from fastbus import cli
from fastbus.data.draws import draw_positive_unlabeled
from fastbus.errors import FastbusError
from fastbus.supervision.prior import estimate_prior
from fastbus.training import image_prior
from fastbus.training.recipes import recipe_for
from fastbus.training.set_score import membership_score, sets_of

PIXELS, LABELS = load_digits(return_X_y=True)
HIGH = (LABELS >= 5).astype(np.int64)


def drawn(known: int, prior: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows of known positives and of 700 unlabelled digits, and their labels."""
    found = draw_positive_unlabeled(HIGH, known, 700, prior, seed)
    assert found.weak is not None
    return found.rows, found.weak


@pytest.mark.parametrize("prior", [0.2, 0.4, 0.7])
def test_ranks_of_an_independent_classifier_show_the_share(prior: float) -> None:
    errors = []
    for seed in range(5):
        rows, weak = drawn(100, prior, seed)
        known = (weak == 1).astype(int)
        scores, fold = np.empty(len(rows)), np.empty(len(rows), dtype=int)
        splits = StratifiedKFold(5, shuffle=True, random_state=seed).split(rows, known)
        for number, (seen, mine) in enumerate(splits):
            model = LogisticRegression(C=0.01, class_weight="balanced", max_iter=500)
            scores[mine] = model.fit(PIXELS[rows[seen]] / 16, known[seen]).decision_function(PIXELS[rows[mine]] / 16)
            fold[mine] = number
        rule = fastbus.PositiveUnlabeled.estimate(
            torch.from_numpy(scores), torch.from_numpy(weak), torch.from_numpy(fold)
        )
        errors.append(rule.known_prior - prior)
    # linear scores of half the digits against the others overlap, so that the bound lies above the share
    assert -0.08 < np.mean(errors) < 0.16, errors


def test_perfect_scores_show_the_exact_share() -> None:
    rows, weak = drawn(100, 0.3, 0)
    share = estimate_prior(torch.from_numpy(HIGH[rows]).double(), torch.from_numpy(weak) == 1)
    assert share == pytest.approx(0.3, abs=1e-9)


def test_scores_of_different_classifiers_are_compared_by_rank() -> None:
    rows, weak = drawn(100, 0.3, 0)
    positive, truth = torch.from_numpy(weak) == 1, torch.from_numpy(HIGH[rows]).double()
    fold = torch.arange(len(rows)) % 2
    shifted = truth + 10 * fold  # one of them calls everything likelier
    before = shifted.clone()
    assert estimate_prior(shifted, positive, fold) == pytest.approx(0.3, abs=0.005)
    assert estimate_prior(shifted, positive) > 0.33
    assert torch.equal(shifted, before)  # the caller's scores stay as they are


def test_the_estimator_finds_the_share_and_keeps_it(tmp_path) -> None:  # type: ignore[no-untyped-def]
    rows, weak = drawn(150, 0.4, 1)
    clf = fastbus.WeakClassifier("positive_unlabeled", epochs=12, random_state=0).fit(PIXELS[rows], weak)
    assert isinstance(clf.supervision_, fastbus.PositiveUnlabeled)
    assert clf.supervision_.known_prior == pytest.approx(0.4, abs=0.15)
    unseen = np.setdiff1d(np.arange(len(HIGH)), rows)
    assert (clf.predict(PIXELS[unseen]) == HIGH[unseen]).mean() > 0.75
    clf.save(tmp_path / "run")
    again = fastbus.WeakClassifier.load(tmp_path / "run")
    assert again.supervision_.prior == clf.supervision_.prior


def test_the_recipe_for_images_finds_the_share(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(image_prior, "STEPS", 60)  # a smaller set
    rows, weak = drawn(150, 0.4, 2)
    images = torch.from_numpy(np.rint(PIXELS[rows] * (255 / 16)).astype(np.uint8)).view(-1, 1, 8, 8)
    rule, said = fastbus.PositiveUnlabeled(constraint="mean"), torch.from_numpy(weak)
    recipe = recipe_for(rule, num_images=len(rows), num_bags=len(rows), image_shape=(1, 8, 8))
    found = image_prior.with_known_prior(rule, images, said, recipe=recipe, seed=0, device="cpu", flip=False)
    assert isinstance(found, fastbus.PositiveUnlabeled) and found.constraint == "mean"
    assert found.known_prior == pytest.approx(0.4, abs=0.15)
    known = fastbus.PositiveUnlabeled(0.3)
    assert image_prior.with_known_prior(known, images, said, recipe=recipe, seed=0, device="cpu") is known


@pytest.mark.parametrize(
    ("weak", "text"),
    [
        ([1, 1] + [-1] * 18, "2 known positives and 18 unlabelled"),
        ([1] * 19 + [-1], "19 known positives and 1 unlabelled"),
        ([1] * 10 + [0] * 10, "semi_supervised"),
    ],
)
def test_too_few_to_estimate_from_are_refused(weak: list[int], text: str) -> None:
    with pytest.raises(FastbusError, match=text):
        fastbus.WeakClassifier("positive_unlabeled", epochs=1).fit(PIXELS[:20], np.array(weak))


@pytest.mark.parametrize("method", ["cvir", "var_pu"])
def test_rivals_that_need_no_prior_are_not_asked_for_one(method: str) -> None:
    rows, weak = drawn(100, 0.4, 3)
    clf = fastbus.WeakClassifier("positive_unlabeled", method=method, recipe={"epochs": 1}, random_state=0)
    clf.fit(PIXELS[rows[:300]], weak[:300])
    assert clf.predict(PIXELS[:5]).shape == (5,)


def test_a_queue_is_left_to_the_training_proper() -> None:
    rows, weak = drawn(100, 0.4, 3)
    clf = fastbus.WeakClassifier("positive_unlabeled", queue=64, epochs=2, random_state=0).fit(PIXELS[rows], weak)
    assert 0 < clf.supervision_.known_prior < 1


def test_tables_without_a_prior_are_checked(tmp_path, capsys) -> None:  # type: ignore[no-untyped-def]
    rows, weak = drawn(5, 0.4, 3)
    lines = ["x,weak"] + [f"{row},{'1' if told == 1 else ''}" for row, told in zip(rows[:20], weak[:20], strict=True)]
    (tmp_path / "table.csv").write_text("\n".join(lines) + "\n")
    assert cli.main(["check", str(tmp_path / "table.csv"), "--supervision", "positive_unlabeled"]) == 0
    (tmp_path / "table.csv").write_text("x,weak\n1,1\n2,0\n")
    assert cli.main(["check", str(tmp_path / "table.csv"), "--supervision", "positive_unlabeled"]) == 2
    assert "row 2" in capsys.readouterr().err


def test_a_part_of_the_unlabelled_is_drawn_from_all_of_them() -> None:
    marked = torch.arange(1000) >= 100
    chosen = image_prior.at_most(300, marked, 0)
    assert int(chosen.sum()) == 300 and not bool((chosen & ~marked).any())
    assert 100 < int(chosen[550:].sum()) < 200  # half of the rows that were marked
    assert torch.equal(image_prior.at_most(5000, marked, 0), marked)


def test_membership_is_foretold_best_by_the_truth() -> None:
    """Worked by hand: 2 of 4 known positives, prior 1/2 among the 2 others, one certain positive and one negative."""
    rule, weak = fastbus.PositiveUnlabeled(0.5), np.array([1, 1, -1, -1])
    sets = sets_of(rule, weak)
    assert sets is not None
    sure = np.array([[0.0, 1.0], [0.0, 1.0], [0.0, 1.0], [1.0, 0.0]])
    # P(known | positive) = 2/3, P(unlabelled | positive) = 1/3, P(unlabelled | negative) = 1
    assert membership_score(sure, *sets) == pytest.approx((2 * np.log(2 / 3) + np.log(1 / 3)) / 4)
    for always in (0.98, 0.02):  # a single class for all
        assert membership_score(np.tile([1 - always, always], (4, 1)), *sets) < membership_score(sure, *sets)


def test_inference_and_drawing_without_a_prior_are_refused() -> None:
    with pytest.raises(fastbus.SupervisionError, match="prior is not known"):
        fastbus.infer("positive_unlabeled", torch.zeros(1, 3, 2), torch.tensor([[1, -1, -1]]))
    with pytest.raises(fastbus.SupervisionError, match="prior is not known"):
        fastbus.weaken("positive_unlabeled", HIGH, rng=0)
    told = fastbus.weaken("positive_unlabeled", HIGH, labelled=50, rng=0)
    assert (told == 1).sum() == 50 and HIGH[told == 1].all()
    with pytest.raises(fastbus.InputError, match="two classes"):
        fastbus.PositiveUnlabeled.estimate(torch.zeros(4, 3), torch.tensor([1, -1, -1, -1]))
    with pytest.raises(fastbus.InputError, match="0 known positives"):
        fastbus.PositiveUnlabeled.estimate(torch.zeros(4), torch.tensor([-1, -1, -1, -1]))
