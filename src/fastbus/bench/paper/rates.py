"""Learning rates of one's own: for each method the one whose trial foretold its held-out weak labels best.

A trial is a run at an equal budget with a share of the weak labels kept back. Its figure is their likelihood, the
predictions made as hard or soft as suits it best, so that a method is judged by what it tells apart, not by how sure
it is. Test images play no part.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fastbus.bench.paper.grid import Cell
from fastbus.bench.results import Record
from fastbus.errors import InputError
from fastbus.training.recipes import Recipe

TEMPERATURES = tuple(2.0**power for power in range(-3, 6))
OF_ITS_OWN = ("learning_rate", "epochs", "fade")  # what a trial may have otherwise: its rate, and what goes by length
Rates = Callable[[Cell, str, Recipe], float]


def rates_of(records: Sequence[Record]) -> Rates:
    """A function of a cell, a method and its recipe: the rate of the best trial.

    Trials by the same recipe, but for its rate and its length, count: those on the cell itself, or where it has none
    on another cell of the setting with the same images. Of these, those with the largest budget at which there are
    several rates, and of several held-out shares the one that most have; several seeds by their mean.
    """
    trials = [record for record in records if record.get("budget") and record["config"]["held_out"]]

    def rate(cell: Cell, method: str, recipe: Recipe) -> float:
        entries = {name: value for name, value in recipe.as_dict().items() if name not in OF_ITS_OWN}
        fit = [
            trial
            for trial in trials
            if (trial["setting"], trial["data"], trial["method"]) == (cell.setting, cell.data, method)
            and trained_by(trial["config"], entries)
        ]
        fit = [trial for trial in fit if trial["cell"] == cell.name] or [
            trial for trial in fit if trial["cell"] == fit[0]["cell"]
        ]
        kinds: dict[tuple[int, float], list[Record]] = {}
        for trial in fit:
            kinds.setdefault((trial["budget"], trial["config"]["held_out"]), []).append(trial)
        rounds = {kind: _likelihoods(some) for kind, some in kinds.items()}
        enough = [kind for kind, found in rounds.items() if len(found) > 1]
        if not enough:
            most = max(map(len, rounds.values()), default=0)
            raise InputError(
                f"--tuned: {method} on {cell.title} has trials at {most} learning rates by the recipe of this run; "
                "expected 2 or more at one budget. Run it with --held-out, --views, --set learning_rate=... and the "
                "same further entries first."
            )
        found = rounds[max(enough, key=lambda kind: (kind[0], len(kinds[kind])))]
        return max(found, key=lambda value: found[value])

    return rate


def trained_by(config: Mapping[str, Any], entries: Mapping[str, Any]) -> bool:
    """Whether a run's configuration has these entries of a recipe; one that an older line does not have was off."""
    return all((config.get(name) or 0) == (value or 0) for name, value in entries.items())


def _likelihoods(trials: Sequence[Record]) -> dict[float, float]:
    """The mean over seeds for each learning rate; a run that ended in no numbers, or stayed unscored, is the worst."""
    values: dict[float, list[float]] = {}
    for trial in trials:
        last: dict[str, Any] = trial["curve"][-1]
        value = last.get("held_out_tempered")
        values.setdefault(trial["config"]["learning_rate"], []).append(float("-inf") if value is None else value)
    return {rate: sum(some) / len(some) for rate, some in values.items()}
