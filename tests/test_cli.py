"""The command line: help, exit codes, one-line errors, the version, the demonstration."""

from importlib.metadata import version

import pytest

from fastbus import cli


def test_help_names_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--help"]) == 0
    printed = capsys.readouterr().out
    assert all(name in printed for name in cli.COMMANDS)


@pytest.mark.parametrize("command", ["fit", "resume", "predict", "infer", "check"])
def test_help_of_a_command_has_examples(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([command, "--help"]) == 0
    printed = capsys.readouterr().out
    assert "examples:" in printed and f"fastbus {command} " in printed and "--json" in printed


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out == f"fastbus {version('fastbus')}\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "<command>"),
        (["train"], "'train'"),
        (["demo", "--epochs", "many"], "'many', expected a whole number >= 1"),
        (["demo", "--epochs", "0"], "'0', expected a whole number >= 1"),
        (["demo", "--seed", "-1"], "'-1', expected a whole number >= 0"),
        (["demo", "--colour", "red"], "--colour"),
        (["fti"], "did you mean fit? See fastbus --help"),
        (["fit", "x.csv", "--epoch", "3"], "--epoch 3; did you mean --epochs? See fastbus fit --help"),
        (["fit", "x.csv", "--bag", "b.csv"], "--bag b.csv; did you mean --bags? See fastbus fit --help"),
        (["predict", "run", "x.csv", "--bags=b.csv"], "unrecognized arguments: --bags=b.csv"),
        (["bench"], "no <name>; expected one of tables, ablation, paper, report, speed; see fastbus bench --help"),
        (["bench", "repot"], "did you mean report?"),
        (["bench", "report", "--result", "x"], "did you mean --results? See fastbus bench report --help"),
        (["demo", "--only", "guesses"], "'guesses'; expected some of label_proportion"),
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


def test_demo_is_told_what_was_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []
    monkeypatch.setattr("fastbus.bench.demo.show_demo", lambda *options: asked.extend(options))
    assert cli.main(["demo", "--only", "noisy_label", "--epochs", "3", "--seeds", "2", "--json"]) == 0
    assert asked == [["noisy_label"], 0, 3, True, 2]
