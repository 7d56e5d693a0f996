"""Bad tables and files are refused in one line that names the file, the column and the row."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fastbus
from fastbus.data import iter_tables, read_tables
from fastbus.errors import DataError
from weak_tables import MIXED, NAMES, NAN, SINGLES, iris_frames, write

WEAK2 = {"bag": ["a", "b"], "weak": [1, 0]}
BAD: dict[str, tuple[Any, Any, str]] = {
    "no bag column in the bag table": (MIXED, {"weak": [1, 0]}, r"bag table has the columns 'weak'.*'bag'"),
    "no bag column": (
        {"x": MIXED["x"]},
        WEAK2,
        r"instance table has no column 'bag', so that every row.*Add it, or leave",
    ),
    "bag column misspelt": ({"Bag": MIXED["bag"], "x": MIXED["x"]}, WEAK2, r"has no column 'bag'.*rename 'Bag'"),
    "no weak column": (MIXED, {"bag": ["a", "b"]}, r"expected the weak label of multi_instance: weak or weak_<class>"),
    "other weak columns": (MIXED, {"bag": ["a", "b"], "weak": [1, 0], "weak_cat": [1, 0]}, "'weak', 'weak_cat'"),
    "weak columns twice": ({**MIXED, "weak": 1}, WEAK2, "in instance table and in bag table"),
    "duplicate bag": (MIXED, {"bag": ["a", "b", "a"], "weak": [1, 0, 1]}, r"bag 'a' a second time.*row 3"),
    "bag without instances": (MIXED, {"bag": ["a", "b", "c"], "weak": [1, 0, 1]}, r"bag 'c' without.*row 3"),
    "instances of an unknown bag": (MIXED, {"bag": ["a"], "weak": [1]}, r"bag 'b'; expected only.*row 4"),
    "ids of another type": (MIXED, {"bag": [1, 2], "weak": [1, 0]}, r"such as 1; expected such as 'a'"),
    "mixed ids": ({**MIXED, "bag": ["a", "a", 1, "b", "b"]}, WEAK2, r"1 beside 'a'.*'bag', row 3"),
    "missing id": ({**MIXED, "bag": ["a", None, "a", "b", "b"]}, WEAK2, r"an empty cell.*'bag', row 2"),
    "broken id": ({**MIXED, "bag": [1, 1, 1, 2.5, 2]}, WEAK2, r"2.5.*'bag', row 4"),
    "missing feature": ({**MIXED, "x": [0, 1, NAN, 3, 4]}, WEAK2, r"empty, NaN or infinite.*'x', row 3"),
    "infinite feature": ({**MIXED, "x": [0, 1, np.inf, 3, 4]}, WEAK2, r"infinite.*'x', row 3"),
    "text feature": ({**MIXED, "x": ["1", "2", "red", "4", "5"]}, WEAK2, r"'red' in a feature.*'x', row 3"),
    "mixed feature": ({**MIXED, "x": [1, 2, "red", 4, 5]}, WEAK2, r"'red' beside 1.*'x', row 3"),
    "no features": ({"bag": MIXED["bag"]}, WEAK2, "expected at least one feature"),
    "empty table": ({"bag": [], "x": []}, WEAK2, "no rows"),
    "empty bag table": (MIXED, {"bag": [], "weak": []}, "no rows"),
    "no columns": ({}, WEAK2, "no rows"),
    "uneven columns": ({**MIXED, "x": [1.0, 2.0]}, WEAK2, r"column 'x' has 2 rows; expected 5"),
    "weak label out of range": (MIXED, {"bag": ["a", "b"], "weak": [1, 2]}, r"^2; expected.*0 to 1.*'weak', row 2"),
    "weak label no number": (MIXED, {"bag": ["a", "b"], "weak": ["yes", "no"]}, r"'yes'; expected a number.*row 1"),
    "weak label no whole number": (MIXED, {"bag": ["a", "b"], "weak": [1, 0.5]}, r"0.5; expected a whole.*row 2"),
    "dates": ({**MIXED, "x": np.array(["2020-01-01"] * 5, "M8[D]")}, WEAK2, "values of type"),
    "objects": ({**MIXED, "x": [object()] * 5}, WEAK2, "cells of type object"),
    "ragged lists": ({**MIXED, "x": [[1], [1, 2], [1], [1], [1]]}, WEAK2, r"'x', row 2"),
    "no table": (7, WEAK2, "instance table of type int"),
    "labels twice": ({**MIXED, "label": 0, "label_a": 0}, WEAK2, "'label' and 'label_a'"),
}


def filled(table: Any) -> Any:
    if not isinstance(table, dict):
        return table
    rows = max((len(c) for c in table.values() if not isinstance(c, int)), default=0)
    return {name: [column] * rows if isinstance(column, int) else column for name, column in table.items()}


@pytest.mark.parametrize(("instances", "bags", "message"), BAD.values(), ids=BAD)
def test_bad_tables_are_refused_in_one_line(instances: Any, bags: Any, message: str) -> None:
    with pytest.raises(DataError, match=message) as caught:
        read_tables(filled(instances), filled(bags), supervision="multi_instance")
    text = str(caught.value)
    assert "\n" not in text and "; expected" in text and text.endswith(".")


@pytest.mark.parametrize(
    ("table", "supervision", "message"),
    [
        ({**SINGLES, "weak": ["cat", "cow", "dog"]}, fastbus.NoisyLabel(rate=0.1), r"'cow'; expected one of.*row 2"),
        ({**SINGLES, "weak": [0, 1, 7]}, fastbus.NoisyLabel(rate=0.1), r"7; expected a class index 0 to 1.*row 3"),
        ({**SINGLES, "weak_cat": [1, 0, 1]}, "partial_label", r"no column 'weak_dog'"),
        ({**SINGLES, "weak_cat": 1, "weak_dog": 1, "weak_cow": 1}, "partial_label", r"class 'cow'.*'weak_cow'"),
        ({**SINGLES, "label": ["cat", "cow", "dog"]}, None, r"'cow'; expected one of the classes 'cat', 'dog'"),
        ({**SINGLES, "weak": [1, 0, 1]}, fastbus.PositiveUnlabeled(0.5), r"0; expected .* equal to 1.*row 2"),
        ({**SINGLES, "weak": 1}, "pair_similarity", r"a bag of 1 instances; expected exactly 2"),
        ({**SINGLES, "weak_cat_low": 1}, fastbus.LabelProportion("interval"), r"weak_dog_low|weak_cat_high"),
        (
            {**SINGLES, "weak": 1, "weeks.weak": 1},
            fastbus.NoisyLabel(rate=0.1) & fastbus.SemiSupervised(),
            "noisy_label",
        ),
    ],
)
def test_unknown_classes_and_columns_are_refused(table: Any, supervision: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        read_tables(filled(table), supervision=supervision, classes=["cat", "dog"])


CSV: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "is empty"),
    "header only": (b"bag,x\n", "no rows"),
    "no header": (b"1,2.5\n1,2.5\n", "begins with the numbers"),
    "semicolons": (b"bag;x\na;1\n", "single column 'bag;x'"),
    "ragged": (b"bag,x\na,1\nb,1,2\n", r"3 cells; expected 2.*row 2"),
    "two columns of one name": (b"bag,x,x\na,1,2\n", "two columns 'x'"),
    "unnamed column": (b"bag,,x\na,1,2\n", "a name for each"),
    "not utf-8": (b"bag,x\n\xff\xfe,1\n", "is not UTF-8"),
    "open quote": (b'bag,x\n"a,1\n', "cannot be read"),
    "text": (b"bag,x\na,1\na,red\n", r"'red' in a feature.*'x', row 2"),
    "empty cell": (b"bag,x\na,1\na,\n", r"'x', row 2"),
}


@pytest.mark.parametrize(("content", "message"), CSV.values(), ids=CSV)
def test_bad_csv_files_are_refused(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "instances.csv"
    path.write_bytes(content)
    for read in (lambda: read_tables(path), lambda: list(iter_tables(path, 4))):
        with pytest.raises(DataError, match=message) as caught:
            read()
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("suffix", ["parquet", "feather", "arrow", "npz"])
def test_truncated_and_foreign_files_are_refused(tmp_path: Path, suffix: str) -> None:
    frame, _ = iris_frames()
    content = write(frame, tmp_path / f"whole.{suffix}").read_bytes()
    path = tmp_path / f"instances.{suffix}"
    for cut in (1, 7, len(content) // 2, len(content) - 9):
        path.write_bytes(content[:cut])
        for read in (lambda: read_tables(path), lambda: list(iter_tables(path, 4, classes=NAMES))):
            with pytest.raises(DataError) as caught:
                read()
            assert "\n" not in str(caught.value) and path.name in str(caught.value)
    path.write_bytes(b"bag,x\na,1\n" * 20)
    with pytest.raises(DataError, match=r"cannot be read|objects|archive"):
        read_tables(path)


def test_nothing_is_unpickled(tmp_path: Path) -> None:
    path = tmp_path / "instances.npz"
    np.savez(path, bag=np.array(["a", "b"]), x=np.array([{"a": 1}, None], dtype=object))
    with pytest.raises(DataError, match=r"Python objects.*array 'x'.*never unpickled"):
        read_tables(path)


def test_paths_that_lead_nowhere_are_refused(tmp_path: Path) -> None:
    for path, message in (
        (tmp_path / "missing.csv", "is no file"),
        (tmp_path / "data.pkl", r"expected \.csv"),
        (tmp_path, "holds no table"),
    ):
        with pytest.raises(DataError, match=message):
            read_tables(path)
    with pytest.raises(DataError, match="no instance table"):
        read_tables(None)
    assert issubclass(fastbus.DataError, fastbus.FastbusError) and fastbus.DataError is DataError


@pytest.mark.parametrize(
    ("answers", "message"),
    [
        ({"task": [0, 1], "worker": [0, 0]}, "expected a column 'label'"),
        ({"task": [0, 0], "worker": [1, 1], "label": [0, 1]}, r"a second answer of worker 1 to task 0.*row 2"),
        ({"task": [0, 9], "worker": [1, 1], "label": [0, 1]}, r"9; expected a task.*row 2"),
        ({"task": [0, 1], "worker": [1, 1], "label": [0, NAN]}, r"an answer in every row.*row 2"),
        ({"task": ["0", "1"], "worker": [1, 1], "label": [0, 1]}, "Write the ids in the same way"),
    ],
)
def test_bad_answers_of_a_crowd_are_refused(answers: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        read_tables(SINGLES, answers=answers, supervision=fastbus.CrowdLabel(rate=0.1))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"ignore": ["Noise"]}, r"'Noise' in ignore=, which is no column of instance table or bag table.*'noise'\?"),
        ({"ignore": ["noise", "z"]}, r"'z' in ignore=.*expected some of 'bag', 'x', 'noise', 'weak'\. Correct"),
        ({"images": "."}, r"images= or image_size= without pictures to read; expected a column 'image'"),
        ({"image_size": (8, 8)}, r"without pictures to read.*not 'bag', 'x', 'noise'\. Leave them out"),
    ],
)
def test_options_that_say_nothing_about_the_tables_are_refused(options: dict[str, Any], message: str) -> None:
    table = {"bag": ["a", "b"], "x": [1.0, 2.0], "noise": [0.0, 1.0]}
    with pytest.raises(DataError, match=message):
        read_tables(table, WEAK2, supervision="multi_instance", **options)
    data = read_tables(table, WEAK2, supervision="multi_instance", ignore=["noise"])
    assert data.features == ("x",)


def test_a_stream_beside_bags_needs_their_column() -> None:
    with pytest.raises(DataError, match=r"has no column 'bag', so that every row.*rename 'Bag'"):
        list(iter_tables({"Bag": ["a", "b"], "x": [1.0, 2.0]}, 4, bags=WEAK2, supervision="multi_instance"))


@pytest.mark.parametrize("kind", ["exact", "interval"])
def test_fractions_read_as_counts_are_told_the_unit(kind: Any) -> None:
    names = ["weak"] if kind == "exact" else ["weak_low", "weak_high"]
    bags = {"bag": ["a", "b"]} | {name: [0.25, 0.5] for name in names}
    with pytest.raises(DataError, match=r"^0.25; expected a whole number; bag table, column 'weak.*', row 1") as caught:
        read_tables(filled(MIXED), bags, supervision=fastbus.LabelProportion(kind))
    assert str(caught.value).endswith(
        'these are fractions of the bag: --option unit=fraction, in Python LabelProportion(unit="fraction").'
    )
    more = {"bag": ["a", "b"]} | {name: [2.5, 1] for name in names}
    with pytest.raises(DataError, match=r"^2.5; expected a whole number.*leave it empty") as caught:
        read_tables(filled(MIXED), more, supervision=fastbus.LabelProportion(kind))
    assert "unit" not in str(caught.value)
