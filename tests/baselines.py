"""What a trained model must beat before any floor: always naming the class that is the most frequent one."""

import numpy as np


def better_than_majority(found: np.ndarray, truth: np.ndarray, either_way: bool = False) -> float:
    """The accuracy of classes found, above the most frequent class's share of these very instances.

    either_way: two classes, whose names the weak labels do not tell.
    """
    found, truth = np.asarray(found).astype(int), np.asarray(truth).astype(int)
    accuracy = float((found == truth).mean())
    majority = float(np.bincount(truth).max() / len(truth))
    best = max(accuracy, 1 - accuracy) if either_way else accuracy
    assert best > majority, f"{best:.3f}, not above {majority:.3f} of the most frequent class"
    return accuracy
