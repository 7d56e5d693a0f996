"""The comparison of two devices, here of the CPU with itself."""

import pytest

from fastbus.bench import devices
from fastbus.bench.problems import CASES


def test_all_cases_agree_with_themselves(capsys: pytest.CaptureFixture[str]) -> None:
    assert devices.main(["--device", "cpu", "--bags", "1", "--workers", "2"]) == 0
    printed = capsys.readouterr().out.splitlines()
    assert len(printed) == len(CASES) + 3
    assert printed[-1] == f"{len(CASES)} of {len(CASES)} cases agree to 1e-10"
    assert all(line.endswith("PASS") for line in printed[2:-1])


@pytest.mark.parametrize("worst", ["posterior", "likelihood", "gradient", "labellings"])
def test_a_difference_fails(worst: str) -> None:
    same = devices.Agreement("case", 0.0, 0.0, 0.0, 0)
    assert same.passed
    assert not same._replace(**{worst: 1}).passed


@pytest.mark.parametrize("flags", [["--workers", "0"], ["--bags", "0"]])
def test_counts_are_counts(flags: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        devices.main(["--device", "cpu", *flags])
    assert stopped.value.code == 2
    assert "whole numbers from 1" in capsys.readouterr().err
