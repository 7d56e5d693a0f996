"""Starting up is quick: the library adds little to torch, and the command line answers at once."""

from fastbus.bench.startup import added_to_torch, help_time, seconds


def test_import_adds_less_than_two_seconds_to_torch() -> None:
    assert added_to_torch() < 2


def test_help_takes_less_than_a_second() -> None:
    assert help_time() < 1


def test_help_does_not_load_torch() -> None:
    seconds(
        "import sys; from fastbus.cli import main; code = main(['demo', '--help'])\n"
        "sys.exit(code or 'torch' in sys.modules)"
    )
