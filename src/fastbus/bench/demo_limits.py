"""What two rows of the demonstration lack, measured: `python -m fastbus.bench.demo_limits`.

complementary_label lacks information: three wrong classes an image, and true labels of as many images as carry what
one wrong class each does, show how much. positive_confidence lacks negatives: its scorer alone, and the same network
told the confidences of negatives too, show what is left of the gap. Nothing is chosen by these figures.
"""

from __future__ import annotations

import argparse
import math
from dataclasses import replace

import numpy as np

from fastbus.bench.demo_fit import fit_weak, settings_of
from fastbus.bench.demo_kinds import POSITIVES, Digits, Task, scored
from fastbus.bench.demo_run import EPOCHS, generator, make_task, split_digits
from fastbus.data.draws import binary_labels
from fastbus.data.weaken import weaken
from fastbus.supervision import PositiveConfidence, SemiSupervised

EPOCHS_OF_FEW = 6 * EPOCHS  # a pass over few images has few steps


def labels_worth(images: int, classes: int, excluded: int) -> int:
    """How many true labels carry as many bits as so many excluded classes on each of these images."""
    return round(images * math.log(classes / (classes - excluded)) / math.log(classes))


def complementary_limits(digits: Digits, seed: int) -> dict[str, float]:
    name = "complementary_label"
    one, rng = make_task(name, digits, seed), generator(name, seed)
    three = replace(one, weak=weaken(one.supervision, digits.labels, rng=rng, num_classes=10, excluded=3))
    worth = labels_worth(len(one.rows), 10, 1)
    few = rng.permutation(len(one.rows))[:worth]
    gold = replace(one, supervision=SemiSupervised(), rows=few, truth=one.truth[few], weak=one.truth[few])
    tasks = {"one wrong class": one, "three wrong classes": three}
    found = {f"{name}: {what}": _accuracy(name, task, digits, seed) for what, task in tasks.items()}
    found[f"{name}: {worth} true labels"] = _accuracy("semi_supervised", gold, digits, seed, EPOCHS_OF_FEW)
    return found


def confidence_limits(digits: Digits, seed: int) -> dict[str, float]:
    name = "positive_confidence"
    rows, scores = scored(digits, generator(name, seed))
    high = digits.high[rows]
    positives = make_task(name, digits, seed)
    everyone = replace(positives, supervision=PositiveConfidence(), rows=rows, truth=high, weak=scores)
    odds = (1 - positives.weak) / positives.weak
    return {
        f"{name}: positives": _accuracy(name, positives, digits, seed),
        f"{name}: positives and negatives": _accuracy(name, everyone, digits, seed),
        f"{name}: the scorer itself, on images it did not see": float(((scores > 0.5) == high).mean()),
        # 1 if positives were found, however rarely, wherever negatives are: both classes are equally frequent
        f"{name}: share of the negatives that positives speak for, mean (1 - r) / r": float(odds.mean()),
    }


def _accuracy(name: str, task: Task, digits: Digits, seed: int, epochs: int = EPOCHS) -> float:
    truth = binary_labels(digits.test_labels, POSITIVES) if task.binary else digits.test_labels
    predicted = fit_weak(task, digits, seed, settings_of(name, epochs)).predict(digits.test_images)
    return float((predicted == truth).mean())


def main() -> None:
    import torch

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=3, help="splits, weak labels and first weights (default: 3)")
    torch.set_num_threads(1)
    found: dict[str, list[float]] = {}
    for seed in range(parser.parse_args().seeds):
        digits = split_digits(seed)
        for what, value in (complementary_limits(digits, seed) | confidence_limits(digits, seed)).items():
            found.setdefault(what, []).append(value)
    for what, values in found.items():
        print(f"{what:80} {np.mean(values):.3f}  of seeds {' '.join(f'{value:.3f}' for value in values)}")


if __name__ == "__main__":
    main()
