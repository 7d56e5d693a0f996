"""From tables to weak data: one layout for every supervision.

instance table   bag, features..., optional `label` (or `label_<class>`), weak columns of instance-level kinds
bag table        bag, weak columns of bag-level kinds
answer table     task, worker, label: answers of a crowd, instead of `weak_<annotator>` columns

Without a column `bag` every row is its own bag. Without a bag table its columns may stand in the instance
table, repeated on every row of a bag. An empty cell is missing. `weak_columns.py` says which columns hold the
weak labels of each supervision; docs/data.md shows one small table for each.
"""

from __future__ import annotations

from collections.abc import Sequence
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastbus.bags import BAG, Bags
from fastbus.data.answers import answer_matrix
from fastbus.data.class_names import class_names
from fastbus.data.columns import Table, listed, missing
from fastbus.data.dataset import WeakData
from fastbus.data.features import feature_rows, true_labels
from fastbus.data.image_folder import needs_pictures
from fastbus.data.keys import bag_ids, positions
from fastbus.data.layout import LABEL, TASK, Layout, make_layout
from fastbus.data.readers import SUFFIXES, read_table
from fastbus.data.weak_columns import SHOWN, WEAK, WeakColumns, convention, find_weak
from fastbus.errors import DataError
from fastbus.spelling import did_you_mean, nearest
from fastbus.supervision.base import Supervision
from fastbus.supervision.combine import Combination
from fastbus.supervision.imperfect import CrowdLabel
from fastbus.supervision.incomplete import SimilarDissimilarUnlabeled


def read_tables(
    instances: Any,
    bags: Any = None,
    *,
    answers: Any = None,
    supervision: Supervision | str | None = None,
    classes: Sequence[Any] | None = None,
    features: Sequence[str] | None = None,
    ignore: Sequence[str] = (),
    images: str | PathLike[str] | None = None,
    image_size: tuple[int, int] | None = None,
) -> WeakData:
    """Read weak data from an instance table, a bag table and an answer table.

    Each is a path (.csv, .tsv, .parquet, .arrow, .npz), a frame, a data set or a mapping of arrays.
    `instances` may be a folder that holds instances.*, and perhaps bags.* and answers.*; it may be None
    where the answers of a crowd are all there is.
    supervision: whose weak columns to read; None: no weak labels, as for prediction.
    classes: names in the order of their indices. features: columns to use; all numbers otherwise.
    ignore: columns to leave out. images: folder of the pictures that the column `image` names.
    """
    asked = images is not None or image_size is not None
    if isinstance(instances, (str, PathLike)) and Path(instances).is_dir():
        folder = Path(instances)
        images = folder if images is None else images
        bags = _inside(folder, "bags", False) if bags is None else bags
        answers = _inside(folder, "answers", False) if answers is None else answers
        instances = _inside(folder, "instances", True)
    elif images is None and isinstance(instances, (str, PathLike)):
        images = Path(instances).parent
    layout = make_layout(
        supervision,
        classes,
        features,
        ignore,
        images=None if images is None else Path(images),
        image_size=image_size,
    )
    answer_table = None if answers is None else read_table(answers, "answer table")
    if instances is None:
        if answer_table is None:
            raise DataError("no instance table; expected one. Pass a path or a frame.")
        table = Table(answer_table.name, {BAG: np.unique(bag_ids(answer_table, TASK))})
    else:
        table = read_table(instances, "instance table")
    if asked:
        needs_pictures(table, layout)
    bag_table = None if bags is None else read_table(bags, "bag table")
    return assemble(table, bag_table, answer_table, layout, bare=instances is None)


def _inside(folder: Path, stem: str, needed: bool) -> Path | None:
    found = sorted(path for path in folder.iterdir() if path.stem == stem and path.suffix.lower() in SUFFIXES)
    if len(found) > 1:
        raise DataError(f"{folder} holds {listed(path.name for path in found)}; expected one. Remove the others.")
    if needed and not found:
        raise DataError(f"{folder} holds no table; expected {stem}.csv or the like. Write one, or pass its path.")
    return found[0] if found else None


def assemble(
    table: Table, bag_table: Table | None, answers: Table | None, layout: Layout, *, bare: bool = False
) -> WeakData:
    """Tables that were read, put together."""
    if bag_table is not None:
        names_bags(table)
    _ignored_are_there(layout, [each for each in (table, bag_table, answers) if each is not None])
    ids = bag_ids(table, BAG) if BAG in table.columns else None
    # before the features, or a misspelt weak column would be blamed for being one
    found = [_find(part, prefixes, table, bag_table, answers) for part, prefixes in layout.parts]
    rows, names = (np.zeros((len(table), 0), np.float32), ()) if bare else feature_rows(table, layout)
    bags = Bags.from_ids(rows, ids)
    if ids is None and table.first_row:
        bags = Bags(bags.instances, bags.sizes, bags.ids + table.first_row, bags.order)
    at = None if bag_table is None else positions(bag_table, table, bags)
    _nothing_left_over(layout, found, table, bag_table)
    label_columns = [name for name in table.columns if name.startswith(f"{LABEL}_") and name not in names]
    cells = [place for part in found if part is not None for place in part.class_cells]
    if LABEL in table.columns and LABEL not in names:
        cells.append((table, LABEL))
    if answers is not None:
        answers.require(LABEL, "the answer of the worker")
        cells.append((answers, LABEL))
    shown = [part.class_columns for part in found if part is not None and part.class_columns is not None]
    if label_columns:
        shown.append([name.removeprefix(f"{LABEL}_") for name in label_columns])
    classes = class_names(layout.classes, shown, cells, streaming=layout.streaming)
    labels = true_labels(table, label_columns, names, classes)
    annotators = next((tuple(part.names) for part in found if part and part.form == "annotators"), None)
    weak: list[Any] = []
    for (part, _), columns in zip(layout.parts, found, strict=True):
        if columns is None:
            assert answers is not None
            tasks = bag_ids(table, TASK) if TASK in table.columns else _single(table, bags, answers)
            matrix, annotators = answer_matrix(answers, tasks, classes)
            weak.append(matrix[bags.order])
        else:
            weak.append(_aligned(columns, columns.values(classes), table, bags, at))
        _check_sizes(part, weak[-1], bags, table)
    return WeakData(
        bags,
        tuple(weak) if isinstance(layout.supervision, Combination) else (weak[0] if weak else None),
        None if labels is None else labels[bags.order],
        classes,
        names,
        annotators,
    )


def names_bags(table: Table) -> None:
    """Refuse an instance table beside a bag table that does not say which bag a row is of."""
    if BAG not in table.columns:
        near = nearest(BAG, table.columns)
        raise DataError(
            f"{table.name} has no column {BAG!r}, so that every row would be its own bag; expected one, since a bag "
            f"table is given. Add it{'' if near is None else f', or rename {near!r}'}, or leave out the bag table."
        )


def _ignored_are_there(layout: Layout, tables: list[Table]) -> None:
    """Refuse to leave out what is not there: a misspelt name would leave a true label among the features."""
    known = list(dict.fromkeys(name for table in tables for name in table.columns))
    for name in layout.ignore:
        if name not in known:
            raise DataError(
                f"{name!r} in ignore=, which is no column of {' or '.join(table.name for table in tables)}; expected "
                f"some of {listed(known, 20)}{did_you_mean(name, known)}. Correct the name, or leave it out."
            )


# -- weak labels --------------------------------------------------------------------------------------


def _find(
    part: Supervision,
    prefixes: tuple[str, ...],
    table: Table,
    bag_table: Table | None,
    answers: Table | None,
) -> WeakColumns | None:
    """The weak columns of a part, in the table where they belong; None for the answers of a crowd."""
    for prefix in prefixes:
        places = [find_weak(part, source, prefix) for source in (table, bag_table)]
        found = [place for place in places if place is not None]
        if len(found) > 1:
            raise DataError(
                f"{part.title}: weak columns in {found[0].table.name} and in {found[1].table.name}; expected "
                "one place. Remove those of one table."
            )
        if found:
            return found[0]
    if isinstance(part, CrowdLabel) and answers is not None:
        return None
    rule = convention(part)
    home = bag_table if rule.of_bags and bag_table is not None else table
    shown = " or ".join(SHOWN[form] for form in rule.forms)
    prefix = "" if "" in prefixes else f", each after {prefixes[0]!r}"
    forgotten = ", or give the bag table too" if rule.of_bags and bag_table is None else ""
    raise DataError(
        f"{home.name} has the columns {listed(home.columns)}; expected the weak label of {part.title}: "
        f"{shown}{prefix}. Add or rename columns{forgotten}."
    )


def _nothing_left_over(layout: Layout, found: list[WeakColumns | None], table: Table, bag_table: Table | None) -> None:
    """Refuse weak columns that no part reads; those of other kinds, with their prefix, may stay."""
    if layout.supervision is None:
        return
    used = {id(part.table): set(part.columns.values()) for part in found if part is not None}
    for part in found:
        if part is not None:
            used[id(part.table)] |= set(part.columns.values())
    for source in (table, bag_table):
        if source is None:
            continue
        spare = set(used.get(id(source), set())) | set(layout.ignore) | set(layout.features or ())
        for name in source.columns:
            if name not in spare and WEAK.fullmatch(name) and "." not in name:
                raise DataError(
                    f"a weak column that {layout.supervision.title} does not read; expected names as in "
                    f"docs/data.md; {source.place(name)}. Rename it, or leave it out with ignore=."
                )


def _aligned(
    columns: WeakColumns, values: NDArray[Any], table: Table, bags: Bags, at: NDArray[np.int64] | None
) -> NDArray[Any]:
    """Values in the row order of their table to (B, ...) for bag-level kinds, (N, ...) for the others."""
    if columns.table is not table:
        assert at is not None
        if not columns.rule.of_bags and bags.sizes.max() > 1:
            name = next(iter(columns.columns.values()))
            raise DataError(
                "weak labels of single instances in the bag table; expected them in the instance table: "
                f"bag {bags.ids[bags.sizes > 1][0].item()!r} holds several; "
                f"{columns.table.place(name)}. Move them."
            )
        return np.asarray(values[at])
    rows = values[bags.order]
    if not columns.rule.of_bags:
        return np.asarray(rows)
    first = rows[bags.offsets[:-1]]
    same = (rows == np.repeat(first, bags.sizes, axis=0)) | (
        missing(rows) & missing(np.repeat(first, bags.sizes, axis=0))
    )
    if not same.all():
        position = int(np.nonzero(~same.reshape(len(same), -1).all(1))[0][0])
        bag = int(np.searchsorted(bags.offsets, position, side="right")) - 1
        name = next(iter(columns.columns.values()))
        raise DataError(
            f"rows of bag {bags.ids[bag].item()!r} with different weak labels; expected one for the bag; "
            f"{table.place(name, int(bags.order[position]))}. Repeat it on every row, or pass a bag table."
        )
    return np.asarray(first)


def _check_sizes(part: Supervision, weak: NDArray[Any], bags: Bags, table: Table) -> None:
    size, concerned = part.bag_size, np.ones(len(bags), dtype=np.bool_)
    if isinstance(part, SimilarDissimilarUnlabeled):
        size, concerned = 2, weak >= 0
    wrong = concerned & (bags.sizes != size)
    if size is not None and wrong.any():
        raise DataError(
            f"a bag of {int(bags.sizes[wrong][0])} instances; expected exactly {size} for {part.title}; "
            f"{table.name}, bag {bags.ids[wrong][0].item()!r}. Regroup the instances."
        )


def _single(table: Table, bags: Bags, answers: Table) -> NDArray[Any]:
    """Bag ids as the tasks of a crowd, in the row order of the table."""
    if bags.sizes.max() > 1:
        raise DataError(
            f"answers to tasks, but bags of several instances; expected a column {TASK!r} that names each "
            f"instance; {table.name} beside {answers.name}. Add it."
        )
    return np.asarray(bags.restore(bags.ids))
