"""fastbus predict: classes of new rows, read and written piece by piece."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from jsonargparse import ArgumentParser

from fastbus.commands import data_options as shared
from fastbus.commands import fit
from fastbus.commands.parser import parse_config

if TYPE_CHECKING:
    from fastbus.commands.output import TableWriter
    from fastbus.data.dataset import WeakData
    from fastbus.data.layout import Layout
    from fastbus.learner import WeakClassifier

HELP = "predict the classes of new rows with a trained run"
EXAMPLES = """
examples:
  fastbus predict run new.csv --out predictions.parquet
  fastbus predict run new.parquet --out predictions.csv --bags-out bags.csv

Columns of the output: bag (where the table has it), p_<class>, predicted.
"""
ROWS = 16_384


def add_options(parser: ArgumentParser) -> None:
    parser.add_argument("run", help="folder of a finished run")
    shared.add_table_options(parser, weak=False)
    parser.add_argument("--images", metavar="FOLDER", help="folder of the pictures in column image")
    parser.add_argument("--image-size", metavar="H,W", help="scale pictures so; as fitted otherwise")
    parser.add_argument("--out", metavar="FILE", help="predictions: .csv or .parquet")
    parser.add_argument("--bags-out", metavar="FILE", help="weak labels predicted for bags; holds all rows in memory")


def run(options: Any) -> int:
    """Predict a table."""
    from fastbus.commands.output import check_targets, print_summary, table_writers
    from fastbus.commands.run_folder import CONFIG, read_finished
    from fastbus.data.layout import make_layout
    from fastbus.learner import WeakClassifier

    run = Path(options.run)
    source = shared.existing(shared.given(options, "instances", "the instance table"))
    target = shared.given(options, "out", "the file for the predictions")
    out, bags_out = check_targets(target, options.bags_out, [source])
    facts = read_finished(run)
    classifier = WeakClassifier.load(run)
    options.features, options.ignore = None, None
    pictures = options.images is not None or options.image_size is not None
    if options.image_size is None:
        options.image_size = parse_config("fit", fit.add_options, run / CONFIG).image_size
    columns = shared.columns_of(options)
    columns["images"] = Path(columns["images"] or (source if source.is_dir() else source.parent))
    columns["features"] = None if facts["features"] == ["image"] else facts["features"]
    layout = make_layout(None, None, columns.pop("features"), columns.pop("ignore"), **columns)
    if source.is_dir():
        source = table_of(source)
    # what the bags may be refused for comes first: many rows may take long
    data = None if bags_out is None else _bags_of(classifier, source, layout)
    with table_writers(out, bags_out) as (by_row, by_bag):
        rows = _predict_rows(classifier, source, layout, pictures, by_row)
        summary: dict[str, Any] = {"predictions": str(out), "instances": rows}
        if data is not None and by_bag is not None:
            _predict_bags(classifier, data, by_bag)
            summary |= {"bag_predictions": str(bags_out), "bags": len(data)}
    print_summary(summary, options.json)
    return 0


def table_of(folder: Path) -> Path:
    from fastbus.data.readers import SUFFIXES
    from fastbus.errors import DataError

    found = sorted(path for path in folder.glob("instances.*") if path.suffix.lower() in SUFFIXES)
    if len(found) != 1:
        raise DataError(f"{folder} holds {len(found)} tables instances.*; expected one. Pass the path of the table.")
    return found[0]


def _predict_rows(classifier: WeakClassifier, source: Path, layout: Layout, pictures: bool, writer: TableWriter) -> int:
    """Write bag, p_<class> and predicted for every row, in the order of the table; how many there are.

    pictures: whether the user said something about them, which the table then must name.
    """
    from fastbus.bags import BAG
    from fastbus.commands.output import Progress
    from fastbus.data.features import feature_rows
    from fastbus.data.image_folder import needs_pictures
    from fastbus.data.keys import bag_ids
    from fastbus.data.readers import read_chunks
    from fastbus.errors import DataError

    names = [str(name) for name in classifier.classes_.tolist()]
    progress = Progress("rows")
    done = 0
    for table in read_chunks(source, "instance table", ROWS):
        if len(table) == 0:
            continue
        if pictures:
            needs_pictures(table, layout)
        rows, _ = feature_rows(table, layout)
        same_shape(classifier, rows.shape[1:], source)
        probs = classifier.predict_proba(rows)
        columns = {BAG: bag_ids(table, BAG)} if BAG in table.columns else {}
        columns |= {f"p_{name}": probs[:, at] for at, name in enumerate(names)}
        if classifier.n_outputs_ > 1 and classifier.head == "sigmoid":
            columns |= {f"predicted_{name}": (probs[:, at] >= 0.5).astype(int) for at, name in enumerate(names)}
        else:
            columns["predicted"] = classifier.classes_[probs.argmax(1)]
        writer.write(columns)
        done += len(table)
        progress.add(len(table))
    if not done:
        raise DataError(f"{source} has no rows; expected at least one. Write the data first.")
    progress.end()
    return done


def same_shape(classifier: WeakClassifier, shape: tuple[int, ...], source: Path) -> None:
    from fastbus.errors import DataError

    if tuple(shape) != tuple(classifier.input_shape_):
        raise DataError(
            f"{source}: rows of shape {tuple(shape)}; expected {tuple(classifier.input_shape_)}, as fitted. Reshape "
            "them, or scale pictures with --image-size."
        )


def _bags_of(classifier: WeakClassifier, source: Path, layout: Layout) -> WeakData:
    """The bags of the table, refused where the supervision does not speak about bags of their size."""
    from fastbus.bags import BAG
    from fastbus.data.readers import read_table
    from fastbus.data.tables import assemble
    from fastbus.errors import DataError

    table = read_table(source, "instance table")
    data = assemble(table, None, None, layout)
    supervision = classifier.supervision_
    wrong = data.bags.sizes != (supervision.bag_size or data.bags.sizes)
    if wrong.any():
        size, name = int(data.bags.sizes[wrong][0]), data.bags.ids[wrong][0].item()
        rule = f"expected exactly {supervision.bag_size} for {supervision.title}"
        if BAG not in table.columns:
            got = f"--bags-out where every row is its own bag, without a column {BAG!r}; {rule}; {table.name}"
            raise DataError(f"{got}. Add the column, or leave out --bags-out.")
        more = f" (and {int(wrong.sum()) - 1} more)" if wrong.sum() > 1 else ""
        got = f"--bags-out with a bag of {size} instances; {rule}; {table.name}, bag {name!r}{more}"
        raise DataError(f"{got}. Regroup the instances, or leave out --bags-out.")
    return data


def _predict_bags(classifier: WeakClassifier, data: WeakData, writer: TableWriter) -> None:
    """Write bag and its predicted weak label, in columns named as those that were fitted."""
    import numpy as np

    from fastbus.training.inputs import parts_of

    answers = classifier.predict_weak(data.bags)
    parts = parts_of(classifier.supervision_)
    columns: dict[str, Any] = {"bag": data.bags.ids}
    for part, weak in zip(parts, answers if len(parts) > 1 else (answers,), strict=True):
        if part.level != "bag":
            continue
        prefix = f"{part.title}.weak" if len(parts) > 1 else "weak"
        values = np.asarray(weak)
        flat = values.reshape(len(values), -1)
        names = classifier.classes_.tolist() if flat.shape[1] == len(classifier.classes_) else range(flat.shape[1])
        if values.ndim == 1:
            columns[prefix] = values
        else:
            columns |= {f"{prefix}_{name}": flat[:, at] for at, name in enumerate(names)}
    if len(columns) == 1:  # kinds that speak about instances: the mean probability of each class
        probs = classifier.predict_proba(data.bags)
        rows = data.bags.arrange(probs)
        means = np.add.reduceat(rows, data.bags.offsets[:-1], axis=0) / data.bags.sizes[:, None]
        columns |= {f"mean_p_{name}": means[:, at] for at, name in enumerate(classifier.classes_.tolist())}
    writer.write(columns)
