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


def digit_pictures(folder: Path, rows: int = 360) -> Path:
    """A folder of the digits 0 to 4 as PNG files, in bags of four with the counts of the classes."""
    from PIL import Image

    data = load_digits(n_class=5)
    folder.mkdir()
    for row in range(rows):
        Image.fromarray((data.images[row] * 15).astype(np.uint8)).save(folder / f"{row}.png")
    label, bag = data.target[:rows], np.arange(rows) // 4
    frame = pd.DataFrame({"bag": bag, "image": [f"{row}.png" for row in range(rows)], "label": label})
    counts = np.zeros((rows // 4, 5), dtype=int)
    np.add.at(counts, (bag, label), 1)
    write(frame, folder / "instances.csv")
    table = pd.DataFrame(counts, columns=[f"weak_{name}" for name in range(5)])
    table.insert(0, "bag", range(len(table)))
    write(table, folder / "bags.csv")
    return folder


def digest(run: Path) -> str:
    """The checksum over the whole state of a saved classifier; its bytes may list the header in another order."""
    from safetensors import safe_open

    with safe_open(run / "model.safetensors", framework="np") as file:
        return str(file.metadata()["sha256"])
