"""How the settings of the demonstration were chosen: `python -m fastbus.bench.demo_selection`.

A fifth of each row's bags is kept apart, and whatever shares an image with them is left out of training. The score
of a setting is the mean log P(w | x) of the weak labels kept apart: no true label is read after the weak labels are
made, and the test images are never used. Settings are ranked within every kind and seed, and the best mean
rank wins: log-likelihoods of different kinds have different units.
"""

from __future__ import annotations

import argparse
import multiprocessing
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from itertools import product

import numpy as np

from fastbus.bench.demo_fit import Fitted, Settings, fit_weak
from fastbus.bench.demo_kinds import KINDS, Array, Digits, Task
from fastbus.bench.demo_run import make_task, split_digits
from fastbus.supervision import PositiveConfidence
from fastbus.training.set_score import membership_score, sets_of

HELD_OUT = 0.2
DROPOUTS = (0.0, 0.2, 0.5)
EPOCHS = (20, 30, 50)
WEIGHT_DECAYS = (1e-4, 1e-3, 1e-2, 1e-1)
START = Settings(weight_decay=1e-3)


def hold_out(task: Task, rng: np.random.Generator) -> tuple[Task, Task]:
    """Bags to train on and bags to score, which share no image."""
    bags = _bag_of_each_row(task)
    number = bags.max() + 1
    held = np.isin(bags, rng.choice(number, round(HELD_OUT * number), replace=False))
    spoiled = np.isin(bags, bags[np.isin(task.rows, task.rows[held])])
    return _part(task, bags, ~spoiled), _part(task, bags, held)


def _bag_of_each_row(task: Task) -> Array:
    if task.bags is not None:
        return task.bags
    if not hasattr(task.supervision, "terms"):
        return np.arange(len(task.rows))
    pairs = np.repeat(np.arange(len(task.weak[0])), 2)  # and after the pairs single images
    return np.concatenate([pairs, len(task.weak[0]) + np.arange(len(task.rows) - len(pairs))])


def _part(task: Task, bags: Array, kept: Array) -> Task:
    """The same task with these rows alone, which make whole bags."""
    numbers = np.unique(bags[kept])

    def cut(weak: Array) -> Array:
        if len(weak) == len(kept):
            return weak[kept]
        return weak[numbers[numbers < len(weak)]] if len(weak) > 1 else weak  # an unlabelled set stays one set

    weak = tuple(map(cut, task.weak)) if isinstance(task.weak, tuple) else cut(task.weak)
    renumbered = None if task.bags is None else np.searchsorted(numbers, bags[kept])
    return replace(task, rows=task.rows[kept], truth=task.truth[kept], weak=weak, bags=renumbered)


def held_out_likelihood(fitted: Fitted, digits: Digits, held: Task) -> float:
    """Mean log P(w | x) of a bag, or of an image's membership in its set; of positives, weighted as in training."""
    rule = held.supervision
    if isinstance(rule, PositiveConfidence):  # minus the risk that it trains on
        log_probs = np.log(fitted.probabilities(digits.images[held.rows]))  # (N, 2)
        return float((log_probs[:, 1] + (1 - held.weak) / held.weak * log_probs[:, 0]).mean())
    sets = sets_of(rule, held.weak)
    if sets is None:
        return fitted.likelihood(held)
    return membership_score(fitted.probabilities(digits.images[held.rows]), *sets)


def score(job: tuple[str, int, Settings]) -> float:
    """The held-out log-likelihood of one kind under one setting and seed."""
    import torch

    torch.set_num_threads(1)
    name, seed, settings = job
    digits = split_digits(seed)
    training, held = hold_out(make_task(name, digits, seed), np.random.default_rng(seed))
    return held_out_likelihood(fit_weak(training, digits, seed, settings), digits, held)


def mean_ranks(scores: Array) -> Array:
    """Mean rank of each setting, 1 for the best, of scores (settings, kinds, seeds)."""
    from scipy.stats import rankdata

    return np.asarray(rankdata(-scores, axis=0).mean((1, 2)))


def compare(settings: Sequence[Settings], kinds: Sequence[str], seeds: int, workers: int) -> Array:
    """Scores (settings, kinds, seeds)."""
    jobs = list(product(kinds, range(seeds), settings))
    if workers == 1:
        values: Iterable[float] = map(score, jobs)
        found = list(values)
    else:
        # Training is threaded and forked threads do not live on, so that workers start anew.
        with ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn")) as pool:
            found = list(pool.map(score, jobs))
    return np.array(found).reshape(len(kinds), seeds, len(settings)).transpose(2, 0, 1)


def show(settings: Sequence[Settings], kinds: Sequence[str], scores: Array) -> Settings:
    """Print the mean scores and their standard errors over seeds, and return the best setting."""
    ranks = mean_ranks(scores)
    for setting, of_kinds, rank in zip(settings, scores, ranks, strict=True):
        print(
            f"\nepochs {setting.epochs}, dropout {setting.dropout:g}, weight decay {setting.weight_decay:g}: "
            f"mean rank {rank:.2f} of {len(settings)}"
        )
        for kind, values in zip(kinds, of_kinds, strict=True):
            print(f"  {kind:36} {values.mean():9.4f} ± {values.std() / np.sqrt(max(1, len(values) - 1)):.4f}")
    best = settings[int(ranks.argmin())]
    print("\nbest setting of each kind:")
    for index, kind in enumerate(kinds):
        own = settings[int(scores[:, index].mean(1).argmax())]
        print(f"  {kind:36} epochs {own.epochs}, dropout {own.dropout:g}, weight decay {own.weight_decay:g}")
    print(f"chosen: {best}", flush=True)
    return best


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=3, help="splits, weak labels and first weights (default: 3)")
    parser.add_argument("--workers", type=int, default=2, help="processes (default: 2)")
    parser.add_argument("--only", nargs="+", choices=list(KINDS), default=list(KINDS), help="these kinds alone")
    options = parser.parse_args()
    grid = [START._replace(epochs=epochs, dropout=rate) for epochs, rate in product(EPOCHS, DROPOUTS)]
    best = show(grid, options.only, compare(grid, options.only, options.seeds, options.workers))
    decays = [best._replace(weight_decay=decay) for decay in WEIGHT_DECAYS]
    show(decays, options.only, compare(decays, options.only, options.seeds, options.workers))


if __name__ == "__main__":
    main()
