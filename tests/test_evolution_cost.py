"""The cost of learned messages is measured, and the slopes of its growth are those of known curves."""

import json
import shlex

import pytest

from fastbus.bench.evolution_cost import Cost, Growth, main

TINY = shlex.split(
    "--device cpu --backbone small_cnn --bags 2 --size 3 --classes 3 --features 8 --warm-up 1 --repeats 1"
    " --lengths 2 3 4 --states 2 3 4"
)


def test_every_method_is_timed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*TINY, "--json"]) == 0
    found = capsys.readouterr()
    result = json.loads(found.out)
    assert len(result["steps"]) == 8 and all(row["seconds"] > 0 for row in result["steps"])
    for kind, ratios in result["ratios"].items():
        seconds = {row["method"]: row["seconds"] for row in result["steps"] if row["kind"] == kind}
        assert ratios == {to: pytest.approx(seconds["learned"] / seconds[to]) for to in ("exact", "exact, independent")}
    assert [line["sizes"] for line in result["growth"]] == [[2, 3, 4], [2, 3, 4]]
    assert "learned / this" in found.err and "log-log slope" in found.err


@pytest.mark.parametrize("power", [0.5, 1.0, 2.0])
@pytest.mark.parametrize("constant", [0.0, 3.0])
def test_slopes_are_those_of_the_curve(power: float, constant: float) -> None:
    sizes = [5, 10, 20, 40, 80]
    line = Growth("K", sizes, [Cost(constant + 0.1 * size**power, None) for size in sizes])
    assert line.beyond_constant == pytest.approx(power, abs=1e-3)
    assert line.overall <= power + 1e-9 and line.last <= power + 1e-9
    if constant == 0:
        assert line.overall == pytest.approx(power) and line.last == pytest.approx(power)


def test_what_does_not_grow_has_no_slope_beyond_its_constant() -> None:
    line = Growth("K", [5, 10, 20, 40, 80], [Cost(1.0, None)] * 5)
    assert line.overall == pytest.approx(0) and line.beyond_constant is None


@pytest.mark.parametrize("wrong", [["--lengths", "4"], ["--states", "2", "6"], ["--backbone", "huge"]])
def test_wrong_options_are_refused(wrong: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main([*TINY, *wrong])
    assert stop.value.code == 2
    assert "error:" in capsys.readouterr().err
