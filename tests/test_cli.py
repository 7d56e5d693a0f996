"""The command line: exit codes, one-line errors, the version."""

import json
from importlib.metadata import version

import pytest

from fastbus import cli


def test_help_names_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--help"]) == 0
    printed = capsys.readouterr().out
    assert all(name in printed for name in cli.COMMANDS)


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out == f"fastbus {version('fastbus')}\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "<command>"),
        (["train"], "'train'"),
        (["demo", "--bags", "many"], "'many', expected a whole number >= 1"),
        (["demo", "--bags", "0"], "'0', expected a whole number >= 1"),
        (["demo", "--seed", "-1"], "'-1', expected a whole number >= 0"),
        (["demo", "--colour", "red"], "--colour"),
        (["demo", "--bags", "500"], "500 bags of 10 need 5000 images; expected at most 1347"),
    ],
)
def test_user_errors_take_one_line_and_code_2(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert err.startswith("fastbus")
    assert message in err


def test_interrupt_gives_130(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("fastbus.bench.demo.show_demo", interrupted)
    assert cli.main(["demo"]) == 130
    assert capsys.readouterr().err == "fastbus: interrupted\n"


def test_demo_prints_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["demo", "--bags", "8", "--bag-size", "4", "--epochs", "1"]) == 0
    out = capsys.readouterr().out
    assert "8 bags of 4" in out
    assert all(name in out for name in ("majority class", "FastBUS", "fully supervised"))


def test_demo_prints_json_and_nothing_else(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["demo", "--bags", "8", "--bag-size", "4", "--epochs", "1", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert (result["bags"], result["bag_size"], result["epochs"], result["seed"]) == (8, 4, 1, 0)
    assert [row["name"] for row in result["scores"]] == [
        "majority class",
        "FastBUS",
        "fully supervised",
    ]
    assert all(0 <= row["accuracy"] <= 1 for row in result["scores"])
