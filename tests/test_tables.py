"""One layout serves every supervision, and every format gives the same data."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pytest
import torch
from sklearn.datasets import load_digits

import fastbus
from fastbus.data import WeakData, read_tables
from fastbus.errors import DataError
from weak_tables import CASES, MIXED, NAMES, NAN, SINGLES, as_csv, iris_frames, write

SHARED = Path(__file__).resolve().parents[2] / "shared" / "data"
needs_shared = pytest.mark.skipif(
    not SHARED.exists(), reason="the folder shared/data with the real weak data is absent"
)


def expect_iris(data: WeakData) -> None:
    frame, counts = iris_frames()
    assert data.bags.ids.tolist() == ["b10", "b2", "b1"] and data.bags.sizes.tolist() == [5, 2, 5]
    assert data.classes == tuple(NAMES)
    assert data.features == tuple(frame.columns[1:5])
    assert np.allclose(data.bags.restore(data.bags.instances), frame[list(data.features)].to_numpy())
    assert data.labels is not None
    assert np.array(NAMES)[data.bags.restore(data.labels)].tolist() == frame["label"].tolist()
    by_id = counts.set_index("bag").loc[["b10", "b2", "b1"]].to_numpy()
    assert np.array_equal(data.weak, by_id)
    post = fastbus.infer("label_proportion", torch.zeros(12, 3), torch.from_numpy(data.weak), bag_sizes=data.bags.sizes)
    assert post.exact


@pytest.mark.parametrize("suffix", ["csv", "tsv", "parquet", "feather", "arrow", "npz"])
def test_every_file_format_gives_the_same_data(tmp_path: Path, suffix: str) -> None:
    frame, counts = iris_frames()
    instances = write(frame, tmp_path / f"instances.{suffix}")
    bags = write(counts.iloc[::-1], tmp_path / f"bags.{suffix}")
    expect_iris(read_tables(instances, bags, supervision="label_proportion"))
    expect_iris(read_tables(tmp_path, supervision="label_proportion"))  # found by their names in the folder


@pytest.mark.parametrize(
    "convert",
    [
        lambda frame: frame,
        lambda frame: pl.from_pandas(frame),
        lambda frame: pa.Table.from_pandas(frame, preserve_index=False),
        lambda frame: {name: frame[name].tolist() for name in frame.columns},
        lambda frame: frame.convert_dtypes(),
        lambda frame: frame.astype({name: "category" for name in ("bag", "label") if name in frame}),
    ],
    ids=["pandas", "polars", "arrow", "mapping", "nullable", "category"],
)
def test_every_object_in_memory_gives_the_same_data(convert: Any) -> None:
    frame, counts = iris_frames()
    expect_iris(read_tables(convert(frame), convert(counts), supervision="label_proportion"))


def test_hugging_face_data_sets() -> None:
    hf = pytest.importorskip("datasets", reason="the package datasets is absent: pip install 'fastbus[hf]'")
    frame, counts = iris_frames()
    rows = hf.Dataset.from_dict({name: frame[name].tolist() for name in frame.columns})
    bags = hf.Dataset.from_dict({name: counts[name].tolist() for name in counts.columns})
    expect_iris(read_tables(rows, bags, supervision="label_proportion"))
    coded = rows.cast_column("label", hf.ClassLabel(names=list(NAMES)))
    assert isinstance(coded["label"][0], int), "indices with declared names"
    expect_iris(read_tables(coded, counts.set_index("bag"), supervision="label_proportion"))
    arrays = coded.with_format("numpy")
    expect_iris(read_tables(arrays, bags, supervision="label_proportion"))
    with pytest.raises(DataError, match=r"dataset\['train'\]"):
        read_tables(hf.DatasetDict({"train": coded}))
    with pytest.raises(DataError, match="only streamed"):
        read_tables(coded.to_iterable_dataset())


def test_a_single_table_may_repeat_the_weak_label_of_a_bag() -> None:
    frame, counts = iris_frames()
    expect_iris(read_tables(frame.merge(counts, on="bag", how="left"), supervision="label_proportion"))
    broken = frame.merge(counts, on="bag", how="left")
    broken.loc[7, "weak_setosa"] += 1
    with pytest.raises(DataError, match=r"rows of bag 'b10' with different weak labels.*row 8"):
        read_tables(broken, supervision="label_proportion")


def test_for_prediction_weak_columns_are_neither_read_nor_features() -> None:
    frame, counts = iris_frames()
    data = read_tables(frame.merge(counts, on="bag", how="left"))
    assert data.weak is None and len(data.features) == 4


# -- every supervision --------------------------------------------------------------------------------


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
@pytest.mark.parametrize("form", ["memory", "csv"])
def test_the_layout_serves_every_supervision(case: Any, form: str, tmp_path: Path) -> None:
    supervision, instances, bags, expected, head, num_classes = case
    if form == "csv":
        instances = as_csv(instances, tmp_path / "instances.csv")
        bags = None if bags is None else as_csv(bags, tmp_path / "bags.csv")
    elif bags is not None and "" in bags.get("weak", []):
        pytest.skip("an empty string is a cell of text files only")
    data = read_tables(instances, bags, supervision=supervision)
    assert np.array_equal(data.weak, np.array(expected), equal_nan=True)
    assert (data.weak.dtype.kind == "f") == isinstance(np.array(expected).flat[0].item(), float)
    logits = torch.zeros(data.bags.num_instances, num_classes, dtype=torch.float64)
    weak = torch.from_numpy(data.weak)
    post = fastbus.infer(supervision, logits, weak, bag_sizes=data.bags.sizes, head=head)
    assert bool(post.log_likelihood.isfinite().all())


def test_combinations_put_the_name_of_the_part_before_its_columns() -> None:
    frame, counts = iris_frames()
    counts.columns = ["bag", *(f"label_proportion.{name}" for name in counts.columns[1:])]
    frame["semi_supervised.weak"] = ["" if i % 3 else name for i, name in enumerate(frame["label"])]
    both = fastbus.LabelProportion() & fastbus.SemiSupervised()
    data = read_tables(frame, counts, supervision=both)
    first, second = data.weak
    assert first.shape == (3, 3) and second.shape == (12,)
    gold = data.bags.restore(second)
    assert all(
        NAMES[code] == name if i % 3 == 0 else code == -1
        for i, (code, name) in enumerate(zip(gold, frame["label"], strict=True))
    )
    weak = (torch.from_numpy(first), torch.from_numpy(second))
    assert fastbus.infer(both, torch.zeros(12, 3), weak, bag_sizes=data.bags.sizes).exact
    one = data.subset([2])
    assert one.weak[0].shape == (1, 3) and one.weak[1].shape == (5,)
    # each kind alone reads its own columns of the same tables
    assert np.array_equal(read_tables(frame, counts, supervision="label_proportion").weak, first)
    assert np.array_equal(read_tables(frame, counts, supervision="semi_supervised").weak, second)


def test_two_parts_of_one_kind_are_numbered() -> None:
    table = {**SINGLES, "noisy_label.weak": [0, 1, 1], "noisy_label_2.weak": [0, 0, 1]}
    two = fastbus.NoisyLabel(rate=0.1) & fastbus.NoisyLabel(rate=0.3)
    weak = read_tables(table, supervision=two).weak
    assert [part.tolist() for part in weak] == [[0, 1, 1], [0, 0, 1]]


def test_a_sum_of_pairs_and_unlabelled_bags() -> None:
    table = {"bag": [0, 0, 1, 1, 2, 2, 2], "x": np.arange(7.0)}
    rule = fastbus.SimilarDissimilarUnlabeled(0.4)
    data = read_tables(table, {"bag": [0, 1, 2], "weak": [1, 0, NAN]}, supervision=rule)
    pairs, others = data.terms(rule)
    assert pairs.weak.tolist() == [1, 0] and others.weak.tolist() == [0] and others.bags.sizes.tolist() == [3]
    assert read_tables(table).terms(fastbus.MultiInstance())[0].weak is None
    with pytest.raises(DataError, match=r"a bag of 3 instances; expected exactly 2.*bag 2"):
        read_tables(table, {"bag": [0, 1, 2], "weak": [1, 0, 1]}, supervision=rule)


def test_sets_are_spread_over_instances_for_training() -> None:
    rule = fastbus.UnlabeledUnlabeled((0.2, 0.8))
    data = read_tables(MIXED, {"bag": ["a", "b"], "weak": [1, 0]}, supervision=rule)
    assert data.fit_weak(rule).tolist() == [1, 1, 1, 0, 0]


def test_own_rules_are_read_by_their_labels() -> None:
    class AtLeast(fastbus.Supervision):
        pass

    data = read_tables(MIXED, {"bag": ["a", "b"], "weak_x": [1, 0]}, supervision=AtLeast())
    assert data.weak.tolist() == [[1], [0]]


def test_classes_are_matched_by_name_or_index() -> None:
    table = {**SINGLES, "weak": [3, 1, 3]}
    noisy = fastbus.NoisyLabel(rate=0.1)
    assert read_tables(table, supervision=noisy, classes=["1", "3"]).weak.tolist() == [1, 0, 1]
    assert read_tables(table, supervision=noisy, classes=list("abcd")).weak.tolist() == [3, 1, 3]
    assert read_tables(table, supervision=noisy).classes is None
    multi = read_tables({**SINGLES, "label_b": [1, 0, NAN], "label_a": [0, 1, 1]}, classes=["a", "b"])
    assert multi.labels is not None and multi.labels.tolist() == [[0, 1], [1, 0], [1, -1]]


# -- real data ----------------------------------------------------------------------------------------


def test_images_in_a_folder(tmp_path: Path) -> None:
    from PIL import Image

    digits = load_digits()
    for i in range(6):
        Image.fromarray((digits.images[i] * 15).astype(np.uint8)).save(tmp_path / f"{i}.png")
    as_csv(
        {"bag": ["a", "b"] * 3, "image": [f"{i}.png" for i in range(6)], "label": digits.target[:6]},
        tmp_path / "instances.csv",
    )
    as_csv({"bag": ["a", "b"], "weak": [1, 0]}, tmp_path / "bags.csv")
    data = read_tables(tmp_path, supervision="multi_instance")
    assert data.bags.instances.shape == (6, 1, 8, 8) and data.bags.instances.dtype == np.uint8
    assert np.array_equal(data.bags[1][:, 0], (digits.images[[1, 3, 5]] * 15).astype(np.uint8))
    assert data.features == ("image",)
    assert read_tables(tmp_path, image_size=(16, 12)).bags.instances.shape == (6, 1, 16, 12)
    Image.new("RGB", (9, 8)).save(tmp_path / "5.png")
    with pytest.raises(DataError, match=r"8 x 9 pixels; expected 8 x 8.*row 6"):
        read_tables(tmp_path)
    (tmp_path / "5.png").write_bytes((tmp_path / "4.png").read_bytes()[:40])
    with pytest.raises(DataError, match=r"'5.png' cannot be read.*row 6"):
        read_tables(tmp_path)
    for path in ("../secret.png", "missing.png"):
        as_csv({"image": [path]}, tmp_path / "instances.csv")
        with pytest.raises(DataError, match="is no file of the folder"):
            read_tables(tmp_path / "instances.csv")


@needs_shared
@pytest.mark.parametrize("name", ["mil_musk1", "mil_elephant", "mil_fox"])
def test_real_multi_instance_bags(name: str) -> None:
    with np.load(SHARED / f"{name}.npz", allow_pickle=False) as file:
        arrays = dict(file)
    table = {"bag": arrays["bag"], "x": arrays["x"]}
    bags = {"bag": np.arange(len(arrays["bag_label"])), "weak": arrays["bag_label"]}
    data = read_tables(table, bags, supervision="multi_instance")
    assert data.bags.instances.dtype == np.float32 and data.bags.instances.shape == arrays["x"].shape
    assert np.array_equal(data.weak, arrays["bag_label"][data.bags.ids])


@needs_shared
def test_real_crowds_with_and_without_features() -> None:
    with np.load(SHARED / "crowd_dog.npz", allow_pickle=False) as file:
        answers = {name: file[name] for name in ("task", "worker", "label")}
    crowd = fastbus.CrowdLabel(rate=0.3)
    data = read_tables(None, answers=answers, supervision=crowd)
    assert data.weak.shape == (807, len(np.unique(answers["worker"]))) and (data.weak >= 0).sum() == 8070
    expected = fastbus.answers_from_table(*(answers[name].astype(np.int64) for name in ("task", "worker", "label")))
    assert np.array_equal(data.weak, expected.numpy())
    with np.load(SHARED / "crowd_labelme.npz", allow_pickle=False) as file:
        x, y, matrix = file["x_train"], file["y_train"], file["answers"]
    task, worker = np.nonzero(matrix >= 0)
    rows = {"task": [f"image{i}" for i in task], "worker": worker, "label": matrix[task, worker]}
    order = np.random.default_rng(0).permutation(len(x))
    table = {"task": [f"image{i}" for i in order], "x": x[order], "label": y[order]}
    data = read_tables(table, answers=rows, supervision=crowd)
    assert np.array_equal(data.weak, matrix[order]) and data.annotators == tuple(map(str, range(59)))


@needs_shared
def test_real_partial_and_multi_label_sets() -> None:
    with np.load(SHARED / "partial_lost.npz", allow_pickle=False) as file:
        data = read_tables(
            {"x": file["x"], "weak": file["candidates"], "label": file["y"]}, supervision="partial_label"
        )
        assert np.array_equal(data.weak, file["candidates"]) and np.array_equal(data.labels, file["y"])
    with np.load(SHARED / "multilabel_yeast.npz", allow_pickle=False) as file:
        data = read_tables({"x": file["x_train"], "label": file["y_train"]})
        assert data.labels is not None and data.labels.shape == (1500, 14)


def test_the_data_layer_is_light_to_import() -> None:
    code = (
        "import sys, torch; before = set(sys.modules); import fastbus.data\n"
        "heavy = {'pandas', 'polars', 'pyarrow', 'PIL', 'sklearn', 'matplotlib'}\n"
        "print(*sorted(heavy & (set(sys.modules) - before)))"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert result.returncode == 0, result.stderr
    assert result.stdout.split() == []
