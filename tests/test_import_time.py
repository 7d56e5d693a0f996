"""Starting up is quick: the library adds little to torch, and the command line answers at once."""

import statistics
import subprocess
import sys
import time

RUNS = 5
HELP = "import sys; from fastbus.cli import main; sys.exit(main(['--help']))"


def seconds(code: str) -> float:
    start = time.perf_counter()
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False
    )
    elapsed = time.perf_counter() - start
    assert result.returncode == 0, result.stderr
    return elapsed


def test_import_adds_less_than_two_seconds_to_torch() -> None:
    # Interleaved, so that a busy machine slows both alike.
    extra = [
        seconds("import torch, fastbus; fastbus.infer, fastbus.WeakLoss") - seconds("import torch")
        for _ in range(RUNS)
    ]
    assert statistics.median(extra) < 2


def test_help_takes_less_than_a_second() -> None:
    assert statistics.median(seconds(HELP) for _ in range(RUNS)) < 1


def test_help_does_not_load_torch() -> None:
    code = (
        "import sys; from fastbus.cli import main; code = main(['demo', '--help'])\n"
        "sys.exit(code or 'torch' in sys.modules)"
    )
    seconds(code)
