"""Tables are read in chunks of whole bags that add up to the whole, in memory that does not grow."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from sklearn.datasets import load_digits

import fastbus
from fastbus.data import iter_tables, read_tables
from fastbus.errors import DataError, InputError
from weak_tables import NAMES, as_csv, sorted_iris, write


@pytest.mark.parametrize("suffix", ["csv", "parquet", "arrow", "npz"])
@pytest.mark.parametrize("chunk_bags", [1, 2, 5])
@pytest.mark.parametrize("rows", [1, 4, 100])
def test_chunks_of_whole_bags_add_up(
    tmp_path: Path, suffix: str, chunk_bags: int, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fastbus.data.stream.ROWS", rows)
    frame, counts = sorted_iris()
    instances = write(frame, tmp_path / f"instances.{suffix}")
    bags = write(counts, tmp_path / f"bags.{suffix}")
    whole = read_tables(instances, bags, supervision="label_proportion")
    chunks = list(iter_tables(instances, chunk_bags, bags=bags, supervision="label_proportion", classes=NAMES))
    assert [len(chunk) for chunk in chunks] == {1: [1, 1, 1], 2: [2, 1], 5: [3]}[chunk_bags]
    assert np.array_equal(np.concatenate([chunk.bags.instances for chunk in chunks]), whole.bags.instances)
    assert np.array_equal(np.concatenate([chunk.weak for chunk in chunks]), whole.weak)
    assert np.array_equal(np.concatenate([chunk.labels for chunk in chunks]), whole.labels)
    assert np.concatenate([chunk.bags.ids for chunk in chunks]).tolist() == whole.bags.ids.tolist()


def test_rows_without_bags_are_numbered_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fastbus.data.stream.ROWS", 3)
    path = as_csv({"x": np.arange(8.0), "weak": [0, 1] * 4}, tmp_path / "rows.csv")
    chunks = list(iter_tables(path, 5, supervision=fastbus.NoisyLabel(rate=0.1)))
    assert np.concatenate([chunk.bags.ids for chunk in chunks]).tolist() == list(range(8))


@pytest.mark.parametrize(
    ("ids", "bag_ids", "message"),
    [
        ([1, 1, 2, 2, 1, 3], None, r"bag 1 once more.*row 5"),
        (["x", "y", "z", "y", "w", "v"], None, r"bag 'y' once more.*row 4"),
        ([1, 1, 2, 2, 3, 3], [1, 3, 2], r"bag 3; expected 2"),
        ([1, 1, 2, 2, 3, 3], [1, 2], r"bag 3; expected only bags of the bag table"),
        ([1, 1, 2, 2, 3, 3], [1, 2, 3, 4], r"bag 4 without instances"),
        ([1, 1, 2, 2, 3, 3], [1, 2, 2, 3], r"bag 2 a second time; expected one row a bag.*row 3\. Keep"),
        ([1, 1, 2, 2, 3, 3], [1, 2, 3, 1], r"bag 1 a second time.*row 4"),
        (list("aabbcc"), ["a", "b", "c", "b"], r"bag 'b' a second time.*row 4"),
        ([1, 1, 2, 2, 3, "a"], None, r"numbers beside text.*'bag'"),
    ],
)
@pytest.mark.parametrize("rows", [1, 2, 100])
def test_tables_that_cannot_be_streamed_are_refused(
    tmp_path: Path, ids: list[Any], bag_ids: list[Any] | None, message: str, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    if message.startswith("numbers") and rows == 100:
        pytest.skip("read at once, such ids are text")
    monkeypatch.setattr("fastbus.data.stream.ROWS", rows)
    path = as_csv({"bag": ids, "x": np.arange(6.0)}, tmp_path / "instances.csv")
    bags = None if bag_ids is None else as_csv({"bag": bag_ids, "weak": 1}, tmp_path / "bags.csv")
    with pytest.raises(DataError, match=message):
        list(iter_tables(path, 1, bags=bags, supervision=None if bags is None else "multi_instance"))


def test_streaming_needs_the_list_of_classes(tmp_path: Path) -> None:
    frame, _ = sorted_iris()
    with pytest.raises(DataError, match=r"Pass classes=\[\.\.\.\]"):
        next(iter_tables(frame, 2))
    with pytest.raises(InputError, match="chunk_bags=0"):
        next(iter_tables(frame, 0))


def test_memory_stays_flat_while_rows_grow(tmp_path: Path) -> None:
    code = (
        "import sys, resource; from fastbus.data import iter_tables\n"
        "n = sum(len(d) for d in iter_tables(sys.argv[1], 512, supervision='multi_instance'))\n"
        "print(n, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024)"
    )
    peaks = []
    x = load_digits().data[:, :40]
    for bags in (5_000, 80_000):  # of eight rows; 200 MB of features more in the second
        path = tmp_path / f"{bags}.parquet"
        schema = pa.schema([("bag", pa.int64()), *((f"p{i}", pa.float64()) for i in range(40)), ("weak", pa.int8())])
        with pq.ParquetWriter(path, schema) as writer:
            for start in range(0, bags, 5_000):
                ids = np.repeat(np.arange(start, start + 5_000), 8)
                rows = x[ids % len(x)]
                columns = [ids, *rows.T, (ids % 2).astype(np.int8)]
                writer.write_table(pa.table(columns, schema=schema))
        out = subprocess.run(
            [sys.executable, "-c", code, str(path)], capture_output=True, text=True, timeout=300, check=False
        )
        assert out.returncode == 0, out.stderr
        count, peak = map(int, out.stdout.split())
        assert count == bags
        peaks.append(peak)
    assert peaks[1] - peaks[0] < 60, f"{peaks} MB"
