"""What a line of results says of its making: the commit, and whether the code was another."""

import json
import multiprocessing
import subprocess
from pathlib import Path

import pytest

from fastbus.bench import results
from fastbus.errors import DataError


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


def add_lines(path: Path, who: int) -> None:
    for number in range(40):
        results.append_record(path, {"who": who, "number": number, "long": "x" * 8000})


def test_processes_that_add_to_one_file_lose_nothing(tmp_path: Path) -> None:
    path = tmp_path / "lines.jsonl"
    others = [multiprocessing.get_context("spawn").Process(target=add_lines, args=(path, who)) for who in range(3)]
    for process in others:
        process.start()
    for process in others:
        process.join()
    found = [(line["who"], line["number"]) for line in map(json.loads, path.read_text().splitlines())]
    assert sorted(found) == [(who, number) for who in range(3) for number in range(40)]


def test_a_file_that_is_no_text_is_refused_by_its_line(tmp_path: Path) -> None:
    path = tmp_path / "lines.jsonl"
    path.write_bytes(b'{"a": 1}\n\xff\xfe{}\n')
    with pytest.raises(DataError, match="line 2: no record"):
        results.read_lines(path, {"a"})


def test_outside_a_repository_a_name_may_be_told(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (repository / ".git").rename(repository / "elsewhere")
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(repository.parent))
    assert results.circumstances()["commit"] == ""
    monkeypatch.setenv("FASTBUS_COMMIT", "abc")
    assert results.circumstances()["commit"] == "abc"
