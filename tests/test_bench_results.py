"""What a line of results says of its making: the commit, and whether the code was another."""

import subprocess
from pathlib import Path

import pytest

from fastbus.bench import results


def git(folder: Path, *words: str) -> str:
    who = ("-c", "user.name=nobody", "-c", "user.email=nobody@localhost")
    return subprocess.run(["git", *who, *words], cwd=folder, check=True, capture_output=True, text=True).stdout.strip()


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("src", "results"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_text("one\n")
    (tmp_path / "pyproject.toml").touch()
    git(tmp_path, "init", "--quiet")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "--quiet", "-m", "first")
    monkeypatch.setattr(results, "REPOSITORY", tmp_path)
    monkeypatch.delenv("FASTBUS_COMMIT", raising=False)
    return tmp_path


def test_the_commit_is_marked_where_code_differs_and_not_where_results_grow(repository: Path) -> None:
    commit = git(repository, "rev-parse", "HEAD")[:12]
    assert results.circumstances()["commit"] == commit
    (repository / "results" / "file").write_text("one\ntwo\n")
    assert results.circumstances()["commit"] == commit
    (repository / "src" / "new").touch()
    assert results.circumstances()["commit"] == f"{commit}-dirty"


def test_outside_a_repository_a_name_may_be_told(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (repository / ".git").rename(repository / "elsewhere")
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(repository.parent))
    assert results.circumstances()["commit"] == ""
    monkeypatch.setenv("FASTBUS_COMMIT", "abc")
    assert results.circumstances()["commit"] == "abc"
