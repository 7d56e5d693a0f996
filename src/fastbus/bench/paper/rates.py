"""Learning rates of one's own: for each method the one whose trial foretold its held-out weak labels best.

A trial is a run at an equal budget with a share of the weak labels kept back. Its figure is their likelihood, the
predictions made as hard or soft as suits it best, so that a method is judged by what it tells apart, not by how sure
it is. Test images play no part.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from fastbus.bench.paper.grid import Cell
from fastbus.bench.results import Record
from fastbus.errors import InputError
from fastbus.training.recipes import Recipe

TEMPERATURES = tuple(2.0**power for power in range(-3, 6))
Rates = Callable[[Cell, str, Recipe], float]


def rates_of(records: Sequence[Record]) -> Rates:
    """A function of a cell, a method and its recipe: the rate of the best trial.

    Of trials on the cell itself, or where it has none on another cell of the setting with the same images, those with
    the same network and the largest budget count; several seeds by their mean.
    """
    trials = [record for record in records if record.get("budget") and record["config"]["held_out"]]

    def rate(cell: Cell, method: str, recipe: Recipe) -> float:
        fit = [
            trial
            for trial in trials
            if (trial["setting"], trial["data"], trial["method"]) == (cell.setting, cell.data, method)
            and trial["config"]["backbone"] == recipe.backbone
        ]
        fit = [trial for trial in fit if trial["cell"] == cell.name] or [
            trial for trial in fit if trial["cell"] == fit[0]["cell"]
        ]
        found = _likelihoods([trial for trial in fit if trial["budget"] == max(one["budget"] for one in fit)])
        if len(found) < 2:
            raise InputError(
                f"--tuned: {method} on {cell.title} has trials at {len(found)} learning rates; expected 2 or more. Run "
                "it with --held-out, --views and --set learning_rate=... first."
            )
        return max(found, key=lambda value: found[value])

    return rate


def _likelihoods(trials: Sequence[Record]) -> dict[float, float]:
    """The mean over seeds for each learning rate; a run that ended in no numbers, or stayed unscored, is the worst."""
    values: dict[float, list[float]] = {}
    for trial in trials:
        last: dict[str, Any] = trial["curve"][-1]
        value = last.get("held_out_tempered")
        values.setdefault(trial["config"]["learning_rate"], []).append(float("-inf") if value is None else value)
    return {rate: sum(some) / len(some) for rate, some in values.items()}
