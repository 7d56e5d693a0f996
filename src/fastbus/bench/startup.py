"""What starting up costs: seconds that the library adds to torch, and that the command line needs."""

from __future__ import annotations

import statistics
import subprocess
import sys
import time

LIBRARY = "import torch, fastbus; fastbus.infer, fastbus.WeakLoss"
HELP = "import sys; from fastbus.cli import main; sys.exit(main(['--help']))"


def seconds(code: str) -> float:
    """Wall time of a fresh interpreter that runs `code`."""
    start = time.perf_counter()
    subprocess.run([sys.executable, "-c", code], stdout=subprocess.DEVNULL, timeout=120, check=True)
    return time.perf_counter() - start


def added_to_torch(runs: int = 5) -> float:
    """Median of what the library's import adds; the two take turns, so that a busy machine slows both alike."""
    return statistics.median(seconds(LIBRARY) - seconds("import torch") for _ in range(runs))


def help_time(runs: int = 5) -> float:
    """Median seconds of `fastbus --help`."""
    return statistics.median(seconds(HELP) for _ in range(runs))
