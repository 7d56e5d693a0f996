"""fastbus show: a picture of a supervision's chain, or of what it makes of one bag."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import yaml
from jsonargparse import ArgumentParser

from fastbus.commands import data_options as shared
from fastbus.commands import fit
from fastbus.commands.parser import names_of, parse_config

if TYPE_CHECKING:
    from torch import Tensor

    from fastbus.data.dataset import WeakData
    from fastbus.report.drawing import Drawing
    from fastbus.supervision.base import Supervision

HELP = "draw the chain of a supervision, or its beliefs about one bag"
EXAMPLES = """
examples:
  fastbus show label_proportion --bag-size 4 --out chain.svg
  fastbus show multi_instance --bag-size 6 --weak 1 --out chain.png
  fastbus show predictions.csv --bags bags.csv --supervision label_proportion --bag 7 --out bag.png
  fastbus show instances.csv --bags bags.csv --run run --bag 7 --out bag.svg

The chain alone: name the supervision. Its beliefs about a bag: give predictions as fastbus infer takes them and
--supervision, or instances and the folder of a trained --run. Circles are states, lines are labels; dark states and
thick lines are probable.
"""
BAG_SIZE = 4
OF_CHAINS = ("bag_size", "n_classes", "weak")
OF_BELIEFS = ("bags", "bag", "of_class")
OF_PREDICTIONS = ("columns", "inputs", "head")
PICTURES = (".svg", ".png")


def add_options(parser: ArgumentParser) -> None:
    parser.add_argument("what", nargs="?", help="kind of weak label, or a table; a table needs --supervision or --run")
    parser.add_argument("--predictions", metavar="FILE", help="the table of predictions, for configs")
    parser.add_argument("--instances", metavar="FILE", help="the table of instances of a --run, for configs")
    shared.add_supervision_options(parser)
    parser.add_argument(
        "--bag-size", type=int, help=f"of the chain: instances (default: that of the kind, or {BAG_SIZE})"
    )
    parser.add_argument("--n-classes", type=int, help="of the chain: number of classes (default: 2, or --classes)")
    parser.add_argument(
        "--weak", metavar="VALUE", help="of the chain: mark what this weak label allows, e.g. 2 or [1, 3]"
    )
    parser.add_argument("--run", metavar="FOLDER", help="folder of a finished run, to predict the instances")
    parser.add_argument("--bags", metavar="FILE", help="bag table")
    parser.add_argument("--bag", metavar="ID", help="the bag to draw, the first otherwise; rows count from 0")
    parser.add_argument("--of-class", metavar="NAME", help="the class to draw, where each has a chain (sigmoid heads)")
    parser.add_argument("--classes", metavar="A,B", help="names of the classes in the order of their indices")
    parser.add_argument("--columns", metavar="A,B", help="columns of the predictions, one a class")
    parser.add_argument("--inputs", help="what they hold: probs, logits or log_probs")
    parser.add_argument("--head", help="softmax (default): one class an instance; sigmoid: any number")
    parser.add_argument("--out", metavar="FILE", help="the picture: .svg or .png")
    parser.add_argument("--config", metavar="FILE", help="YAML file with flags; those given here win")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


class _Bag(NamedTuple):
    """One bag, its predictions (K, C) and what they are of."""

    supervision: Supervision
    data: WeakData
    predictions: Tensor
    draw: bool  # all rows are one bag, drawn from a set
    classes: list[str]
    source: Path
    asked: dict[str, Any]


def run(options: Any) -> int:
    """Draw and write the picture."""
    from fastbus.commands.output import print_summary

    out = _target(shared.given(options, "out", "the file for the picture"))
    table = _table(options)
    drawing, summary = _chain(options) if table is None else _beliefs(options, table)
    drawing.write(out)
    summary = {"out": str(out), **summary, "states": list(drawing.states), "note": drawing.note}
    if not options.json and not drawing.note:
        del summary["note"]
    print_summary(summary, options.json)
    return 0


def _target(path: str) -> Path:
    """Refuse what cannot be drawn, or not there, before the work is done."""
    from fastbus.errors import InputError
    from fastbus.report.style import plotting

    place = Path(path)
    if place.suffix.lower() not in PICTURES or "\0" in path:
        raise InputError(f"--out {path!r}; expected a file that ends in {' or '.join(PICTURES)}. Rename it.")
    if place.is_dir():
        raise InputError(f"--out {path!r} is a folder; expected a file. Name one in it.")
    with plotting():
        return place


def _table(options: Any) -> Path | None:
    """The table whose bag is drawn; None for a chain alone, whose supervision then is in the options."""
    from fastbus.errors import InputError

    if options.run is not None and options.supervision is not None:
        raise InputError("--run and --supervision; expected one, since a run knows its own. Leave one out.")
    if options.run is not None and options.predictions is not None:
        raise InputError("--run and --predictions; expected --instances, since the run predicts. Leave one out.")
    if options.run is None and options.instances is not None:
        raise InputError("--instances without --run; expected a trained run to predict them. Add --run.")
    table = options.what or options.instances or options.predictions
    if options.run is not None:
        _unused(options, (*OF_CHAINS, *OF_PREDICTIONS, "classes", "option"), "with --run")
        if table is None:
            raise InputError(
                "--run without a table; expected the instances of the bag. Give it, or set it in --config."
            )
        return shared.existing(table)
    if options.supervision is None:
        if options.predictions is not None or (table is not None and Path(table).is_file()):
            raise InputError(f"{table!r} without --supervision; expected the kind of weak label. Give it, or --run.")
        if options.what is None:
            raise InputError("nothing to draw; expected a supervision, e.g. label_proportion, or a table. Name one.")
        options.supervision, table = options.what, None
    if table is None:
        _unused(options, (*OF_BELIEFS, *OF_PREDICTIONS), "without a table")
        return None
    _unused(options, OF_CHAINS, "with a table")
    return shared.existing(table)


def _unused(options: Any, names: tuple[str, ...], where: str) -> None:
    from fastbus.errors import InputError

    for name in names:
        if getattr(options, name) is not None:
            raise InputError(f"--{name.replace('_', '-')} {where}; expected it not to be there. Leave it out.")


# -- the chain alone -------------------------------------------------------------------------------


def _chain(options: Any) -> tuple[Drawing, dict[str, Any]]:
    from fastbus.errors import InputError, WeakLabelError
    from fastbus.report.drawing import draw_chain

    supervision = shared.supervision_of(options)
    names = names_of(options.classes, "--classes")
    classes = options.n_classes if options.n_classes is not None else 2 if names is None else len(names)
    if names is not None and classes != len(names):
        raise InputError(f"--n-classes {classes} for {len(names)} --classes; expected as many. Leave one out.")
    if classes < 2:
        raise InputError(f"{classes} classes; expected at least 2. Raise --n-classes, or name more in --classes.")
    fixed = getattr(supervision, "terms", (supervision,))[0].bag_size
    size = options.bag_size if options.bag_size is not None else fixed or BAG_SIZE
    if size < 1 or (fixed is not None and size != fixed):
        wanted = "at least 1" if fixed is None else f"{fixed}, which is all that {supervision.title} speaks about"
        raise InputError(f"--bag-size {size}; expected {wanted}. Correct it.")
    try:
        drawing = draw_chain(supervision, size, classes, _weak(options.weak))
    except WeakLabelError as problem:  # of the one bag there is, whose evidence is all that is asked about
        raise InputError(f"--weak {options.weak}: {str(problem).split('; bag 0')[0]}. Correct it.") from None
    return drawing, {"supervision": supervision.title, "bag_size": size}


def _weak(text: str | None) -> Any:
    from fastbus.errors import InputError

    if text is None:
        return None
    try:
        value = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError):
        value = None
    if isinstance(value, bool) or not isinstance(value, (int, float, list)):
        raise InputError(f"--weak {text!r}; expected a number, or a list as [1, 3]. Correct it.")
    return value


# -- the beliefs about a bag -----------------------------------------------------------------------


def _beliefs(options: Any, table: Path) -> tuple[Drawing, dict[str, Any]]:
    from fastbus.commands.posteriors import infer_bag
    from fastbus.errors import InputError
    from fastbus.report.drawing import draw_beliefs

    bag = _predicted_bag(options, table) if options.run is None else _run_bag(options, table)
    posterior = infer_bag(bag.supervision, bag.predictions, bag.data, str(bag.source), bag.asked)
    column = 0
    if options.of_class is not None:
        if bag.asked["head"] != "sigmoid" or bag.predictions.shape[1] == 1:
            raise InputError("--of-class where one chain serves all classes; expected a sigmoid head. Leave it out.")
        if options.of_class not in bag.classes:
            raise InputError(f"--of-class {options.of_class!r}; expected one of {', '.join(bag.classes)}. Correct it.")
        column = bag.classes.index(options.of_class)
    chance = float(posterior.log_likelihood[0])
    name = None if bag.draw else bag.data.bags.ids[0].item()
    what = f"a draw of {len(bag.predictions)}" if bag.draw else f"bag {name}"
    title = f"{bag.supervision.title}, {what}: log P(weak label) = {chance:.4g}"
    drawing = draw_beliefs(posterior, 0, column, title, bag.classes)
    facts = {"supervision": bag.supervision.title, "bag": name, "bag_size": len(bag.predictions)}
    return drawing, facts | {"log_likelihood": chance}


def _single_grouping(supervision: Supervision) -> None:
    from fastbus.errors import SupervisionError

    if hasattr(supervision, "terms"):
        raise SupervisionError(
            f"{supervision.title} is a sum over differently grouped bags; expected one grouping. Show its pairs with "
            "pair_similarity."
        )


def _predicted_bag(options: Any, source: Path) -> _Bag:
    """The bag in a table of predictions, read as `fastbus infer` reads it, until it is found."""
    from fastbus.commands.infer import prediction_columns
    from fastbus.commands.posteriors import SET_ROWS
    from fastbus.data.stream import iter_tables
    from fastbus.errors import InputError, choice

    supervision = shared.supervision_of(options)
    _single_grouping(supervision)
    head = options.head or "softmax"
    choice(head, ("softmax", "sigmoid"), "--head", InputError)
    columns, names, inputs, has_bags = prediction_columns(source, options)
    draw = supervision.level == "set" and not has_bags
    bags = None if options.bags is None else shared.existing(options.bags)
    chunks = iter_tables(source, SET_ROWS, bags=bags, supervision=supervision, classes=names, features=columns)
    asked = {"head": head, "inputs": inputs}
    for chunk in chunks:
        data = _chosen(chunk, options.bag, draw)
        if data is not None:
            return _Bag(supervision, data, _tensor(data), draw, names, source, asked)
    raise _no_such_bag(options.bag, source)


def _run_bag(options: Any, source: Path) -> _Bag:
    """The bag in a table of instances, with the predictions of a trained run."""
    from fastbus.commands.predict import same_shape
    from fastbus.commands.run_folder import CONFIG, read_finished
    from fastbus.data.tables import read_tables
    from fastbus.learner import WeakClassifier

    run = Path(options.run)
    facts = read_finished(run)
    classifier = WeakClassifier.load(run)
    supervision = classifier.supervision_
    _single_grouping(supervision)
    fitted = parse_config("fit", fit.add_options, run / CONFIG)
    fitted.features = fitted.ignore = None
    columns = shared.columns_of(fitted)
    columns["features"] = None if facts["features"] == ["image"] else facts["features"]
    columns["images"] = None  # beside the table
    bags = None if options.bags is None else shared.existing(options.bags)
    if facts["features"] == ["image"]:
        _keep_pictures(Path(options.out), source)
    chunk = read_tables(source, bags, supervision=supervision, classes=facts["classes"], **columns)
    draw = supervision.level == "set" and int(chunk.bags.sizes.max()) == 1
    data = _chosen(chunk, options.bag, draw)
    if data is None:
        raise _no_such_bag(options.bag, source)
    same_shape(classifier, data.bags.instances.shape[1:], source)
    logits = classifier._logits(data.bags)
    names = [str(name) for name in classifier.classes_.tolist()]
    names = names[1:] if logits.shape[1] == 1 else names
    return _Bag(supervision, data, logits, draw, names, source, {"head": classifier.head})


def _keep_pictures(out: Path, source: Path) -> None:
    """Refuse to draw over a picture that the instances are."""
    from fastbus.commands.output import refuse_input
    from fastbus.commands.predict import table_of
    from fastbus.data.image_folder import IMAGE
    from fastbus.data.readers import read_table

    table = table_of(source) if source.is_dir() else source
    column = read_table(table, "instance table").columns.get(IMAGE)
    if column is not None and column.dtype.kind == "U":
        refuse_input(out, "--out", [table.parent / name for name in column.tolist()])


def _tensor(data: WeakData) -> Tensor:
    import numpy as np
    import torch

    return torch.from_numpy(np.asarray(data.bags.instances, dtype=np.float64))


def _chosen(chunk: WeakData, bag: str | None, draw: bool) -> WeakData | None:
    """The bag of that id, the first without one; a draw from a set is the first rows of the table."""
    import numpy as np

    from fastbus.commands.posteriors import SET_ROWS
    from fastbus.errors import InputError

    if draw:
        if bag is not None:
            raise InputError("--bag where the rows are one set; expected a column bag in the table. Leave it out.")
        return chunk.subset(np.arange(min(len(chunk), SET_ROWS)))
    at = [0] if bag is None else np.nonzero(chunk.bags.ids.astype(str) == bag)[0].tolist()
    return chunk.subset(np.array(at)) if at else None


def _no_such_bag(bag: str, source: Path) -> Exception:
    from fastbus.errors import InputError

    return InputError(f"--bag {bag!r} is not in {source}; expected the id of a bag there. Correct it.")
