"""The comparison of defaults: weak labels that are true, and a likelihood that rises with training."""

import numpy as np
import pytest

from fastbus.bench.default_selection import BAG, CASES, score, table, weak_part


@pytest.mark.parametrize("name", ["digits", "wine"])
def test_counts_are_those_of_the_rows(name: str) -> None:
    rows, labels = table(name)
    part = weak_part("label_proportion", rows, labels, np.random.default_rng(0))
    assert part.weak[0].tolist() == np.bincount(labels[:BAG], minlength=int(labels.max()) + 1).tolist()


@pytest.mark.parametrize(("kind", "name"), sorted({case for cases in CASES.values() for case in cases}))
def test_every_case_has_a_held_out_likelihood(kind: str, name: str) -> None:
    assert -100 < score(kind, name, 0, epochs=1) < 0


def test_training_raises_it() -> None:
    few, more = (score("label_proportion", "wine", 0, epochs=epochs) for epochs in (1, 10))
    assert more > few
