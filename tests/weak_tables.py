"""Small tables of real flowers and of plain numbers that the tests of the data layer share."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet as pq
from sklearn.datasets import load_iris

import fastbus

PAIRS = {"bag": [0, 0, 1, 1, 2, 2], "x": [0.0, 1, 2, 3, 4, 5]}
SINGLES = {"x": [0.0, 1, 2]}
MIXED = {"bag": ["a", "a", "a", "b", "b"], "x": [0.0, 1, 2, 3, 4]}
NAN = np.nan
NAMES = ["setosa", "versicolor", "virginica"]


def iris_frames() -> tuple[pd.DataFrame, pd.DataFrame]:
    """Twelve flowers in three bags of unequal size, rows mixed, and how many of each kind they hold."""
    rows = np.random.default_rng(0).permutation(150)[:12]
    data = load_iris()
    frame = pd.DataFrame(data.data[rows], columns=["sepal_length", "sepal_width", "petal_length", "petal_width"])
    frame.insert(0, "bag", ["b10", "b2", "b10", "b1", "b2", "b1", "b10", "b10", "b1", "b1", "b10", "b1"])
    frame["label"] = np.array(NAMES)[data.target[rows]]
    counts = pd.crosstab(frame["bag"], frame["label"]).reindex(columns=NAMES, fill_value=0)
    counts.columns = [f"weak_{name}" for name in NAMES]
    return frame, counts.reset_index()


def sorted_iris() -> tuple[pd.DataFrame, pd.DataFrame]:
    frame, counts = iris_frames()
    frame = frame.sort_values("bag", key=lambda ids: ids.map(["b10", "b2", "b1"].index), kind="stable")
    return frame, counts.set_index("bag").loc[["b10", "b2", "b1"]].reset_index()


def write(frame: pd.DataFrame, path: Path) -> Path:
    match path.suffix:
        case ".csv":
            frame.to_csv(path, index=False)
        case ".tsv":
            frame.to_csv(path, index=False, sep="\t")
        case ".parquet":
            pq.write_table(pa.Table.from_pandas(frame, preserve_index=False), path, row_group_size=5)
        case ".feather":
            pyarrow.feather.write_feather(pa.Table.from_pandas(frame, preserve_index=False), path)
        case ".arrow":
            table = pa.Table.from_pandas(frame, preserve_index=False)
            with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as writer:
                writer.write_table(table, max_chunksize=5)
        case ".npz":
            columns = {name: frame[name].to_numpy() for name in frame.columns}
            np.savez(path, **{k: v.astype(str) if v.dtype.kind not in "if" else v for k, v in columns.items()})
    return path


def as_csv(table: dict[str, Any], path: Path) -> Path:
    pd.DataFrame(table).to_csv(path, index=False)
    return path


LP = fastbus.LabelProportion
CASES: dict[str, tuple[Any, dict[str, Any], dict[str, Any] | None, Any, str, int]] = {
    # supervision, instance table, bag table, weak labels in the order of the bags, head, classes
    "multi_instance binary": ("multi_instance", MIXED, {"bag": ["b", "a"], "weak": [1, 0]}, [0, 1], "softmax", 2),
    "multi_instance": (
        "multi_instance",
        MIXED,
        {"bag": ["a", "b"], "weak_cat": [1, NAN], "weak_dog": [True, False]},
        [[1, 1], [-1, 0]],
        "sigmoid",
        2,
    ),
    "counts": ("label_proportion", MIXED, {"bag": ["a", "b"], "weak": [2, ""]}, [2, -1], "softmax", 2),
    "fractions": (
        LP(unit="fraction"),
        MIXED,
        {"bag": ["a", "b"], "weak_0": [1 / 3, 0.5], "weak_1": [2 / 3, NAN]},
        [[1 / 3, 2 / 3], [0.5, NAN]],
        "softmax",
        2,
    ),
    "intervals": (
        LP("interval"),
        MIXED,
        {"bag": ["a", "b"], "weak_low": [1, 2], "weak_high": [2, NAN]},
        [[1, 2], [2, -1]],
        "softmax",
        2,
    ),
    "intervals a class": (
        LP("interval"),
        MIXED,
        {
            "bag": ["a", "b"],
            "weak_big_cat_low": [0, 1],
            "weak_big_cat_high": [3, 1],
            "weak_dog_high": [2, 2],
            "weak_dog_low": [NAN, 0],
        },
        [[[0, 3], [-1, 2]], [[1, 1], [0, 2]]],
        "softmax",
        2,
    ),
    "soft counts": (
        LP("soft"),
        MIXED,
        {
            "bag": ["a", "b"],
            "weak_0": [0.25, 0.5],
            "weak_1": [0.25, 0.5],
            "weak_2": [0.25, 0],
            "weak_3": [0.25, 0],
        },
        [[0.25] * 4, [0.5, 0.5, 0, 0]],
        "softmax",
        2,
    ),
    "pair_comparison": (
        "pair_comparison",
        PAIRS,
        {"bag": [2, 1, 0], "weak": [1, NAN, 0]},
        [0, -1, 1],
        "softmax",
        2,
    ),
    "pair_similarity": ("pair_similarity", PAIRS, {"bag": [0, 1, 2], "weak": [1, 0, 1]}, [1, 0, 1], "softmax", 4),
    "similarity_confidence": (
        "similarity_confidence",
        PAIRS,
        {"bag": [0, 1, 2], "weak": [1, 0.5, NAN]},
        [1, 0.5, NAN],
        "softmax",
        3,
    ),
    "confidence_difference": (
        "confidence_difference",
        PAIRS,
        {"bag": [0, 1, 2], "weak": [-1, 0.5, NAN]},
        [-1, 0.5, NAN],
        "softmax",
        2,
    ),
    "positive_confidence": (
        "positive_confidence",
        {**SINGLES, "weak": [0.5, 1, NAN]},
        None,
        [0.5, 1, NAN],
        "softmax",
        2,
    ),
    "partial_label": (
        "partial_label",
        {**SINGLES, "weak_a": [1, 0, NAN], "weak_b": [1, 1, NAN]},
        None,
        [[1, 1], [0, 1], [-1, -1]],
        "softmax",
        2,
    ),
    "partial_label in bags": (
        "partial_label",
        {**MIXED, "weak_a": [1, 0, 1, 1, 1], "weak_b": [0, 1, 0, 0, 0]},
        None,
        [[1, 0], [0, 1], [1, 0], [1, 0], [1, 0]],
        "softmax",
        2,
    ),
    "complementary_label": (
        "complementary_label",
        {**SINGLES, "weak": ["cat", "", "dog"]},
        None,
        [0, -1, 1],
        "softmax",
        2,
    ),
    "complementary sets": (
        "complementary_label",
        {**SINGLES, "weak_a": [1, 0, 0], "weak_b": [0, 1, 0], "weak_c": [0, 1, 0]},
        None,
        [[1, 0, 0], [0, 1, 1], [0, 0, 0]],
        "softmax",
        3,
    ),
    "noisy_label": (
        fastbus.NoisyLabel(rate=0.1),
        {**SINGLES, "weak": [2, 0, NAN]},
        None,
        [2, 0, -1],
        "softmax",
        3,
    ),
    "crowd_label": (
        fastbus.CrowdLabel(rate=0.1),
        {**SINGLES, "weak_ann": ["dog", "", "cat"], "weak_bob": ["cat", "cat", ""]},
        None,
        [[1, 0], [-1, 0], [0, -1]],
        "softmax",
        2,
    ),
    "positive_unlabeled": (
        fastbus.PositiveUnlabeled(0.4),
        {**MIXED, "weak": [1, NAN, NAN, NAN, 1]},
        None,
        [1, -1, -1, -1, 1],
        "softmax",
        2,
    ),
    "unlabeled_unlabeled": (
        fastbus.UnlabeledUnlabeled((0.2, 0.8)),
        MIXED,
        {"bag": ["a", "b"], "weak": [1, 0]},
        [1, 0],
        "softmax",
        2,
    ),
    "semi_supervised": (
        "semi_supervised",
        {**MIXED, "weak": ["", "no", "", "yes", ""]},
        None,
        [-1, 0, -1, 1, -1],
        "softmax",
        2,
    ),
    "semi_supervised multi-label": (
        "semi_supervised",
        {**SINGLES, "weak_a": [1, NAN, 0], "weak_b": [0, 1, NAN]},
        None,
        [[1, 0], [-1, 1], [0, -1]],
        "sigmoid",
        2,
    ),
}
