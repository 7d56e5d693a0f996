"""Malformed tables: each ends with exit code 2 and one line on stderr that names the file, column or bag."""

import io
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from fastbus import cli

Capture = pytest.CaptureFixture[str]
GOOD = "bag,x,y\na,1,2\na,3,4\nb,5,6\n"
WEAK = "bag,weak\na,1\nb,0\n"
COUNTS = "bag,weak_cat,weak_dog\na,1,1\nb,0,1\n"


def refused(capture: Capture, folder: Path, words: list[str], *texts: str) -> None:
    """The command fails as a user error, says the texts in one line and leaves nothing behind."""
    before = set(folder.rglob("*"))
    code = cli.main(words)
    out, err = capture.readouterr()
    assert code == 2, (code, out, err)
    assert out == ""
    assert err.startswith("fastbus: ") and err.count("\n") == 1 and err.endswith("\n"), err
    assert "Traceback" not in err and len(err) < 900, err
    for text in texts:
        assert text in err, err
    assert set(folder.rglob("*")) == before, "nothing is left behind"


# -- instance tables in CSV ------------------------------------------------------------------------

INSTANCES: dict[str, tuple[bytes | str, str]] = {
    "empty": ("", "is empty"),
    "header only": ("bag,x\n", "no rows"),
    "no header": ("1,2.5\n1,2.5\n", "begins with the numbers"),
    "semicolons": ("bag;x\na;1\n", "single column 'bag;x'"),
    "ragged": ("bag,x\na,1\nb,1,2\n", "row 2"),
    "short row": ("bag,x\na,1\nb\n", "row 2"),
    "twice a column": ("bag,x,x\na,1,2\n", "two columns 'x'"),
    "unnamed column": ("bag,,x\na,1,2\n", "a name for each"),
    "not utf-8": (b"bag,x\n\xff\xfe,1\n", "is not UTF-8"),
    "open quote": ('bag,x\n"a,1\n', "cannot be read"),
    "text feature": (
        "bag,x\na,1\na,red\nb,2\n",
        "column 'x', row 2. Encode it as numbers, or leave it out with --ignore.",
    ),
    "empty feature": ("bag,x\na,1\na,\nb,2\n", "column 'x', row 2"),
    "nan feature": ("bag,x\na,1\na,nan\nb,2\n", "column 'x', row 2"),
    "infinite feature": ("bag,x\na,1\na,inf\nb,2\n", "column 'x', row 2"),
    "date feature": ("bag,x\na,2020-01-01\na,2020-01-02\nb,2020-01-03\n", "column 'x', row 1"),
    "no bag column": ("x\n1\n2\n3\n", "instances.csv has no column 'bag', so that every row would be its own bag"),
    "bag in another case": ("Bag,x\na,1\nb,2\n", "Add it, or rename 'Bag', or leave out the bag table."),
    "empty bag": ("bag,x\na,1\n,2\nb,3\n", "column 'bag', row 2"),
    "no features": ("bag\na\na\nb\n", "at least one feature"),
    "bag without a label": ("bag,x\na,1\nb,2\nc,3\n", "bag 'c'"),
    "bag without instances": ("bag,x\na,1\n", "bag 'b'"),
    "numbers as ids": ("bag,x\n1,1\n2,2\n", "expected such as"),
    "weak columns twice": ("bag,x,weak\na,1,1\nb,2,0\n", "weak columns in"),
    "other weak column": ("bag,x,weak_cat\na,1,1\nb,2,0\n", "weak"),
    "labels twice": ("bag,x,label,label_a\na,1,0,0\nb,2,0,1\n", "'label'"),
    "label no class": ("bag,x,label\na,1,0\nb,2,0.5\n", "column 'label', row 2"),
    "label below 0": ("bag,x,label\na,1,0\nb,2,-3\n", "column 'label', row 2"),
    "null bytes": (b"bag,x\n\x00\x00,1\n", "instances.csv"),
    "huge number": ("bag,x\na,1e999\nb,2\n", "column 'x', row 1"),
    "html": ("<html><body>no</body></html>\n", "instances.csv"),
    "json": ('{"bag": ["a", "b"], "x": [1, 2]}\n', "instances.csv"),
}


@pytest.mark.parametrize(("content", "text"), INSTANCES.values(), ids=INSTANCES)
@pytest.mark.parametrize("command", ["check", "fit"])
def test_instance_tables(command: str, content: bytes | str, text: str, tmp_path: Path, capsys: Capture) -> None:
    table = tmp_path / "instances.csv"
    table.write_bytes(content.encode() if isinstance(content, str) else content)
    (tmp_path / "bags.csv").write_text(WEAK)
    words = [command, str(table), "--bags", str(tmp_path / "bags.csv"), "--supervision", "multi_instance"]
    words += ["--out", str(tmp_path / "run")] if command == "fit" else []
    refused(capsys, tmp_path, words, text)


# -- bag tables ------------------------------------------------------------------------------------

BAGS: dict[str, tuple[str, str, str]] = {
    "empty": ("multi_instance", "", "bags.csv is empty"),
    "header only": ("multi_instance", "bag,weak\n", "no rows"),
    "no bag column": ("multi_instance", "weak\n1\n0\n", "'bag'"),
    "no weak column": ("multi_instance", "bag,note\na,1\nb,2\n", "weak label of multi_instance"),
    "duplicate bag": ("multi_instance", "bag,weak\na,1\nb,0\na,0\n", "bag 'a' a second time"),
    "unknown bag": ("multi_instance", "bag,weak\na,1\nb,0\nc,0\n", "bag 'c' without instances"),
    "missing bag": ("multi_instance", "bag,weak\na,1\n", "bag 'b'"),
    "ids of another type": ("multi_instance", "bag,weak\n1,1\n2,0\n", "column 'bag'"),
    "empty id": ("multi_instance", "bag,weak\na,1\n,0\n", "column 'bag', row 2"),
    "two": ("multi_instance", "bag,weak\na,1\nb,2\n", "column 'weak', row 2"),
    "negative": ("multi_instance", "bag,weak\na,1\nb,-2\n", "column 'weak', row 2"),
    "half": ("multi_instance", "bag,weak\na,1\nb,0.5\n", "column 'weak', row 2"),
    "word": ("multi_instance", "bag,weak\na,yes\nb,no\n", "column 'weak', row 1"),
    "infinite": ("multi_instance", "bag,weak\na,inf\nb,0\n", "column 'weak', row 1"),
    "misspelt": ("multi_instance", "bag,weak,weak_\na,1,1\nb,0,0\n", "weak_"),
    "negative count": ("label_proportion", "bag,weak_cat,weak_dog\na,1,1\nb,-2,1\n", "column 'weak_cat', row 2"),
    "broken count": ("label_proportion", "bag,weak_cat,weak_dog\na,1,1\nb,0.5,0.5\n", "row 2"),
    "word as count": ("label_proportion", "bag,weak_cat,weak_dog\na,one,1\nb,0,1\n", "'one'"),
    "pair of one": ("pair_similarity", WEAK, "bag 'b'"),
    "order of one": ("pair_comparison", WEAK, "bag 'b'"),
    "confidence of one": ("similarity_confidence", "bag,weak\na,0.5\nb,0.5\n", "bag 'b'"),
    "difference of one": ("confidence_difference", "bag,weak\na,0.5\nb,0.5\n", "bag 'b'"),
    "confidence of two": ("positive_confidence", "bag,weak\na,0.5\nb,0.5\n", "bag 'a'"),
    "classes of rows": ("noisy_label", "bag,weak\na,cat\nb,dog\n", "bag 'a'"),
    "sets of rows": ("partial_label", COUNTS, "bag 'a'"),
}


@pytest.mark.parametrize(("kind", "content", "text"), BAGS.values(), ids=BAGS)
def test_bag_tables(kind: str, content: str, text: str, tmp_path: Path, capsys: Capture) -> None:
    (tmp_path / "instances.csv").write_text(GOOD)
    (tmp_path / "bags.csv").write_text(content)
    words = ["--bags", str(tmp_path / "bags.csv"), "--supervision", kind]
    refused(capsys, tmp_path, ["check", str(tmp_path / "instances.csv"), *words], text)


# -- weak labels of instances ----------------------------------------------------------------------

ROWS: dict[str, tuple[list[str], str, str]] = {
    "unknown class": (["noisy_label", "--classes", "cat,dog"], "x,weak\n1,cat\n2,cow\n", "'cow'"),
    "class index": (["noisy_label", "--classes", "cat,dog"], "x,weak\n1,0\n2,7\n", "column 'weak', row 2"),
    "unknown true class": (["noisy_label", "--classes", "a,b"], "x,weak,label\n1,a,a\n2,b,c\n", "'label'"),
    "no labels": (["semi_supervised"], "x,weak\n1,\n2,\n", "label"),
    "one column of a set": (["partial_label", "--classes", "cat,dog"], "x,weak_cat\n1,1\n2,1\n", "'weak_dog'"),
    "unknown column of a set": (["partial_label", "--classes", "a,b"], "x,weak_a,weak_b,weak_c\n1,1,1,0\n", "'c'"),
    "three in a set": (["partial_label"], "x,weak_a,weak_b\n1,1,3\n2,0,1\n", "column 'weak_b', row 1"),
    "one column for sets": (["partial_label"], "x,weak\n1,1\n2,0\n", "weak_<class>"),
    "labelled negative": (["positive_unlabeled", "--option", "prior=0.5"], "x,weak\n1,1\n2,0\n", "row 2"),
    "set number": (["unlabeled_unlabeled", "--option", "priors=[0.2,0.7]"], "x,weak\n1,0\n2,2\n", "row 2"),
    "answers": (["crowd_label", "--option", "rate=0.2", "--classes", "a,b"], "x,weak_ann\n1,a\n2,z\n", "'z'"),
    "mixed classes": (["noisy_label", "--classes", "a,b"], "x,weak\n1,a\n2,1\n", "'1'"),
    "classes twice": (["noisy_label", "--classes", "a,a"], "x,weak\n1,a\n2,a\n", "different names"),
    "feature that is not there": (["noisy_label", "--features", "z"], "x,weak\n1,a\n2,b\n", "'z'"),
    "all ignored": (["noisy_label", "--ignore", "x"], "x,weak\n1,a\n2,b\n", "at least one feature"),
    "ignored nothing": (["noisy_label", "--ignore", "Target"], "target,x,weak\n1,1,a\n", "'Target' in --ignore, which"),
    "pictures nowhere": (["noisy_label", "--images", "no/where"], "image,weak\na.png,a\n", "'no/where' is no folder"),
    "pictures ignored": (["noisy_label", "--images", ".", "--ignore", "image"], "image,x,weak\nq,1,a\n", "--images or"),
    "picture": (["noisy_label"], "image,weak\nno.png,a\nno.png,b\n", "column 'image', row 1"),
    "picture outside": (["noisy_label"], "image,weak\n../../etc/passwd,a\nno.png,b\n", "column 'image', row 1"),
    "misspelt": (["noisy_label"], "x,waek\n1,a\n2,b\n", "expected the weak label of noisy_label: weak"),
    "unprefixed": (["noisy_label & semi_supervised"], "x,weak\n1,a\n2,b\n", "noisy_label."),
}


@pytest.mark.parametrize(("kind", "content", "text"), ROWS.values(), ids=ROWS)
def test_weak_labels_of_rows(kind: list[str], content: str, text: str, tmp_path: Path, capsys: Capture) -> None:
    (tmp_path / "rows.csv").write_text(content)
    refused(capsys, tmp_path, ["check", str(tmp_path / "rows.csv"), "--supervision", *kind], text)


# -- damaged files ---------------------------------------------------------------------------------


def parquet() -> bytes:
    buffer = io.BytesIO()
    pd.read_csv(io.StringIO(GOOD)).assign(weak=1).to_parquet(buffer)
    return buffer.getvalue()


def feather() -> bytes:
    buffer = io.BytesIO()
    pd.read_csv(io.StringIO(GOOD)).assign(weak=1).to_feather(buffer)
    return buffer.getvalue()


def archive(**arrays: object) -> bytes:
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)  # type: ignore[arg-type]
    return buffer.getvalue()


def flipped(data: bytes, at: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 0xFF]) + data[at + 1 :]


FILES: dict[str, tuple[str, Callable[[], bytes]]] = {
    **{f"parquet cut at {part}%": (".parquet", lambda part=part: (data := parquet())[: len(data) * part // 100])  # type: ignore[misc]
       for part in (1, 10, 50, 90, 99)},
    "parquet without its end": (".parquet", lambda: parquet()[:-1]),
    "parquet without its start": (".parquet", lambda: parquet()[4:]),
    "parquet with a broken footer": (".parquet", lambda: flipped(parquet(), len(parquet()) - 20)),
    "parquet of noise": (".parquet", lambda: np.random.default_rng(0).bytes(500)),
    "parquet that is csv": (".parquet", lambda: GOOD.encode()),
    "csv that is parquet": (".csv", parquet),
    **{f"feather cut at {part}%": (".feather", lambda part=part: (data := feather())[: len(data) * part // 100])  # type: ignore[misc]
       for part in (1, 50, 99)},
    "arrow of noise": (".arrow", lambda: np.random.default_rng(1).bytes(500)),
    "npz cut": (".npz", lambda: archive(x=np.ones(3), weak=np.ones(3))[:-30]),
    "npz of noise": (".npz", lambda: np.random.default_rng(2).bytes(500)),
    "npz with objects": (".npz", lambda: archive(x=np.array([{}, [], None], dtype=object), weak=np.ones(3))),
    "npz of uneven arrays": (".npz", lambda: archive(x=np.ones(3), weak=np.ones(2))),
    "npz of scalars": (".npz", lambda: archive(x=np.float64(1), weak=np.float64(1))),
    "npz of complex numbers": (".npz", lambda: archive(x=np.ones(3) * 1j, weak=np.ones(3))),
    "npz of nothing": (".npz", lambda: archive()),
    "pickle": (".pkl", lambda: b"\x80\x04."),
    "excel": (".xlsx", lambda: b"PK\x03\x04"),
    "no type": ("", lambda: GOOD.encode()),
}  # fmt: skip


@pytest.mark.parametrize(("suffix", "content"), FILES.values(), ids=FILES)
def test_damaged_files(suffix: str, content: Callable[[], bytes], tmp_path: Path, capsys: Capture) -> None:
    (tmp_path / f"table{suffix}").write_bytes(content())
    words = ["check", str(tmp_path / f"table{suffix}"), "--supervision", "multi_instance"]
    refused(capsys, tmp_path, words, "table")


def test_mixed_types_in_parquet(tmp_path: Path, capsys: Capture) -> None:
    frame = pd.DataFrame({"bag": ["a", "b"], "x": ["1", "red"], "weak": [1, 0]})
    frame.to_parquet(tmp_path / "mixed.parquet")
    words = ["check", str(tmp_path / "mixed.parquet"), "--supervision", "multi_instance"]
    refused(capsys, tmp_path, words, "mixed.parquet, column 'x'")


def test_folders(tmp_path: Path, capsys: Capture) -> None:
    words = ["--supervision", "multi_instance"]
    (tmp_path / "empty").mkdir()
    (tmp_path / "two").mkdir()
    for suffix in (".csv", ".tsv"):
        (tmp_path / "two" / f"instances{suffix}").write_text(GOOD)
    refused(capsys, tmp_path, ["check", str(tmp_path / "empty"), *words], "holds no table")
    refused(capsys, tmp_path, ["check", str(tmp_path / "two"), *words], "instances.csv")
    refused(capsys, tmp_path, ["check", str(tmp_path / "nowhere"), *words], "nowhere")
