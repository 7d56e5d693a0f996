"""Real tables on disk for the tests of the command line: iris in bags, digits one by one."""

from pathlib import Path

import numpy as np
import pandas as pd
from sklearn.datasets import load_digits, load_iris

from weak_tables import NAMES, write


def iris_files(folder: Path, suffix: str = ".csv") -> tuple[Path, Path]:
    """150 flowers in 30 bags of 5 with true labels, and how many of each kind a bag holds."""
    data = load_iris()
    rows = np.random.default_rng(0).permutation(150)
    frame = pd.DataFrame(data.data[rows], columns=["sepal_length", "sepal_width", "petal_length", "petal_width"])
    frame.insert(0, "bag", [f"b{position // 5}" for position in range(150)])
    frame["label"] = np.array(NAMES)[data.target[rows]]
    counts = pd.crosstab(frame["bag"], frame["label"]).reindex(index=frame["bag"].unique(), columns=NAMES)
    counts.columns = [f"weak_{name}" for name in NAMES]
    return write(frame, folder / f"iris{suffix}"), write(counts.reset_index(), folder / f"bags{suffix}")


def digit_arrays(folder: Path, rows: int = 400) -> Path:
    """Digits as one array column in .npz; a third of them has a label."""
    X, y = load_digits(return_X_y=True)
    weak = np.where(np.arange(rows) % 3 == 0, y[:rows], -1)
    np.savez(folder / "digits.npz", pixels=X[:rows] / 16, weak=weak, label=y[:rows])
    return folder / "digits.npz"


def digest(run: Path) -> str:
    """The checksum over the whole state of a saved classifier; its bytes may list the header in another order."""
    from safetensors import safe_open

    with safe_open(run / "model.safetensors", framework="np") as file:
        return str(file.metadata()["sha256"])
