"""fastbus check: is a data set fit for training, and what is in it."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from jsonargparse import ArgumentParser

from fastbus.commands import data_options as shared

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from fastbus.data.dataset import WeakData
    from fastbus.supervision.base import Supervision

HELP = "validate a data set and summarise it"
EXAMPLES = """
examples:
  fastbus check instances.csv --bags bags.csv --supervision label_proportion
  fastbus check folder/ --supervision crowd_label --option rate=0.2 --json

Exit code 2 where a table breaks the layout, or a bag has a weak label that no labelling satisfies.
"""
SHOWN = 10
NAMED = 50  # features


def add_options(parser: ArgumentParser) -> None:
    shared.add_table_options(parser)
    shared.add_column_options(parser)
    shared.add_supervision_options(parser)
    parser.add_argument("--head", default="softmax", help="softmax: one class an instance; sigmoid: any number")
    parser.add_argument("--n-classes", type=int, help="number of classes, where nothing shows it")


def run(options: Any) -> int:
    """Print the summary; 2 where some bag is impossible."""
    import numpy as np

    from fastbus.commands.output import print_summary
    from fastbus.errors import InputError, choice

    choice(options.head, ("softmax", "sigmoid"), "--head", InputError)
    supervision = shared.supervision_of(options)
    data = shared.read_data(options, supervision)
    shared.check_n_classes(options, data)
    names, bad, missing, balance = _weak_facts(options, supervision, data)
    sizes = data.bags.sizes
    summary: dict[str, Any] = {
        "supervision": supervision.title,
        "bags": len(data),
        "instances": data.bags.num_instances,
        "bag_sizes": {"least": int(sizes.min()), "median": float(np.median(sizes)), "most": int(sizes.max())},
        "features": len(data.features) if data.bags.instances.ndim == 2 else list(data.bags.instances.shape[1:]),
        "feature_names": _shown(data.features, options.json),
        "classes": names,
        "missing_weak_labels": missing,
    }
    if balance:
        summary["balance_of_weak_labels"] = balance
    if data.labels is not None:
        summary["balance_of_true_labels"] = _balance(data.labels, names)
    first = [str(bag) for bag in bad[:SHOWN].tolist()] + (["..."] if len(bad) > SHOWN else [])
    if options.json:
        summary |= {"impossible_bags": first} | ({"impossible": len(bad)} if len(bad) else {})
    else:
        summary["impossible_bags"] = f"{len(bad)}, namely {', '.join(first)}" if len(bad) else "none"
    print_summary(summary, options.json)
    if not len(bad):
        return 0
    listed = ", ".join(repr(bag) for bag in bad[:SHOWN].tolist()) + (", ..." if len(bad) > SHOWN else "")
    print(
        f"fastbus: {_source(options)}: {len(bad)} of {len(data)} bags have a weak label that no labelling "
        f"satisfies: bag {listed}. Correct them, or fit with --on-impossible ignore.",
        file=sys.stderr,
    )
    return 2


def _weak_facts(
    options: Any, supervision: Supervision, data: WeakData
) -> tuple[list[str], NDArray[Any], dict[str, float], dict[str, float]]:
    """Class names, ids of impossible bags, missing share of each part, and shares of the classes given."""
    import numpy as np

    from fastbus.commands.learning import rows_and_weak
    from fastbus.supervision.combine import Combination
    from fastbus.training.inputs import CLASS_VALUED, parts_of, read_inputs

    if hasattr(supervision, "terms"):
        data.terms(supervision)  # both kinds of bags are there
        share = {supervision.title: float((np.asarray(data.weak) < 0).mean())}
        return ["0", "1"], data.bags.ids[:0], share, {}
    bags, weak = rows_and_weak(supervision, data)
    given = read_inputs(
        supervision, bags, weak, options.head, data.classes, None if data.classes else options.n_classes
    )
    names = [str(name) for name in given.classes.tolist()]
    entries = given.weak if isinstance(supervision, Combination) else (given.weak,)
    missing: dict[str, float] = {}
    balance: dict[str, float] = {}
    for part, entry in zip(parts_of(supervision), entries, strict=True):
        values = entry.numpy()
        gone = np.isnan(values) if values.dtype.kind == "f" else values == -1
        missing[part.title] = float(gone.mean())
        if part.title in CLASS_VALUED and (values.ndim == 1 or part.title == "crowd_label"):
            balance = _balance(values, names)
        elif part.title == "label_proportion" and values.ndim == 2 and getattr(part, "kind", "") == "exact":
            whole = ~gone.any(1)
            totals = values[whole].sum(0)
            if len(totals) == len(names) and totals.sum() > 0:
                balance = dict(zip(names, (totals / totals.sum()).tolist(), strict=True))
    wide = given.columns or options.head == "softmax" or len(names) > 2
    outputs = len(names) if wide else 1
    return names, _impossible(options, supervision, data, outputs), missing, balance


def _impossible(options: Any, supervision: Supervision, data: WeakData, outputs: int) -> NDArray[Any]:
    """Ids of the bags whose weak label no labelling satisfies, whatever is predicted."""
    import numpy as np

    from fastbus.commands.posteriors import SET_ROWS, infer_chunk
    from fastbus.training.noise import readable

    supervision = readable(supervision)
    level = data.bags.num_instances if supervision.level != "set" else SET_ROWS
    draw = supervision.level == "set" and int(data.bags.sizes.max()) == 1
    blank = replace(data, bags=replace(data.bags, instances=np.zeros((data.bags.num_instances, outputs))))
    asked = {"head": options.head, "on_impossible": "ignore"}
    found = []
    for start in range(0, len(data), level):
        chunk = blank.subset(np.arange(start, min(start + level, len(data))))
        flags = infer_chunk(supervision, chunk, draw, _source(options), asked).ignored
        found.append(chunk.bags.ids[:0] if draw else chunk.bags.ids[flags])
    return np.concatenate(found)


def _shown(names: tuple[str, ...], whole: bool) -> list[str]:
    """Names of the features, for people only the first of very many."""
    return list(names) if whole or len(names) <= NAMED else [*names[:NAMED], "..."]


def _source(options: Any) -> str:
    return str(options.bags or shared.given(options, "instances", "the instance table"))


def _balance(labels: NDArray[Any], names: list[str]) -> dict[str, float]:
    """Share of each class among the labels that are known; of 0/1 columns, the share of ones."""
    if labels.ndim == 2 and labels.shape[1] == len(names) and labels.max() <= 1:
        return {name: float((labels[:, at] == 1).mean()) for at, name in enumerate(names)}
    known = labels[labels >= 0]
    return {name: float((known == at).mean()) if len(known) else 0.0 for at, name in enumerate(names)}
