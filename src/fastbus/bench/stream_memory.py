"""fastbus infer over a table larger than memory should hold: the ceiling it needs, printed.

    python -m fastbus.bench.stream_memory [--bags 1000000] [--size 8] [--json]

Predictions and counts of three classes are written to Parquet, then `fastbus infer` runs in a process of its
own over a tenth of the bags and over all of them; its peak memory must not grow with the number of bags.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

CHUNK = 50_000  # bags written at a time
NAMES = "abc"
GROWTH = 64.0  # MiB that ten times the bags may add: 8 bytes a bag to notice one that comes back, and noise


def write_bags(folder: Path, bags: int, size: int) -> tuple[Path, Path]:
    """Random predictions, and counts of labels drawn from them, so that every bag is possible."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    rng = np.random.default_rng(0)
    places = folder / f"predictions-{bags}.parquet", folder / f"bags-{bags}.parquet"
    writers: list[Any] = []
    for start in range(0, bags, CHUNK):
        count = min(CHUNK, bags - start)
        probs = rng.dirichlet(np.ones(len(NAMES)), count * size)
        labels = (rng.random((count * size, 1)) > probs.cumsum(1)).sum(1).clip(max=len(NAMES) - 1)
        counts = np.eye(len(NAMES), dtype=np.int64)[labels].reshape(count, size, -1).sum(1)
        ids = np.arange(start, start + count)
        tables = (
            pa.table({"bag": ids.repeat(size)} | {f"p_{name}": probs[:, at] for at, name in enumerate(NAMES)}),
            pa.table({"bag": ids} | {f"weak_{name}": counts[:, at] for at, name in enumerate(NAMES)}),
        )
        writers = writers or [
            pq.ParquetWriter(place, table.schema) for place, table in zip(places, tables, strict=True)
        ]
        for writer, table in zip(writers, tables, strict=True):
            writer.write_table(table, row_group_size=100_000)
    for writer in writers:
        writer.close()
    return places


def measure(folder: Path, bags: int, size: int) -> dict[str, Any]:
    """Summary of `fastbus infer` over that many bags, with the seconds it took."""
    predictions, counts = write_bags(folder, bags, size)
    out = folder / f"posteriors-{bags}.parquet"
    command = [sys.executable, "-m", "fastbus.cli", "infer", str(predictions), "--bags", str(counts)]
    command += ["--supervision", "label_proportion", "--out", str(out), "--json"]
    start = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(done.stderr[-2000:])
    summary: dict[str, Any] = json.loads(done.stdout)
    for path in (predictions, counts, out):
        path.unlink()
    return summary | {"seconds": round(time.perf_counter() - start, 1)}


def main(argv: list[str] | None = None) -> int:
    """Print both runs; 0 if memory stayed flat."""
    parser = argparse.ArgumentParser(prog="python -m fastbus.bench.stream_memory", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--bags", type=int, default=1_000_000)
    parser.add_argument("--size", type=int, default=8)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as folder:
        runs = [measure(Path(folder), bags, options.size) for bags in (max(1, options.bags // 10), options.bags)]
    growth = runs[1]["peak_memory_mib"] - runs[0]["peak_memory_mib"]
    flat = growth <= GROWTH
    if options.json:
        print(json.dumps({"runs": runs, "growth_mib": growth, "flat": flat}))
        return 0 if flat else 1
    for run in runs:
        print(
            f"{run['bags']:>9,} bags of {options.size}: {run['instances']:,} posteriors in {run['seconds']:.1f} s, "
            f"peak memory {run['peak_memory_mib']:.0f} MiB"
        )
    verdict = "flat" if flat else "NOT flat"
    print(f"ceiling {runs[1]['peak_memory_mib']:.0f} MiB, {growth:+.0f} MiB for ten times the bags: {verdict}")
    return 0 if flat else 1


if __name__ == "__main__":
    raise SystemExit(main())
