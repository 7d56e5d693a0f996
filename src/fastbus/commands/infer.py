"""fastbus infer: posteriors for predictions you already have, chunk by chunk, in memory that does not grow."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from jsonargparse import ArgumentParser

from fastbus.commands import data_options as shared

if TYPE_CHECKING:
    from numpy.typing import NDArray

HELP = "posteriors for predictions you already have, in flat memory"
EXAMPLES = """
examples:
  fastbus infer predictions.parquet --bags bags.parquet --supervision label_proportion --out posteriors.parquet
  fastbus infer scores.csv --supervision partial_label --columns cat,dog --inputs logits --out posteriors.csv

Predictions: columns p_<class>, logit_<class> or log_p_<class> (or those of --columns), and bag where bags have
several rows. The rows of a bag stand together, and the bag table lists the bags in the same order.
Columns of the output: bag, posterior_<class>, predicted. --bags-out: bag, log_likelihood, exact, ignored.
"""
PREFIXES = {"p_": "probs", "logit_": "logits", "log_p_": "log_probs"}


def add_options(parser: ArgumentParser) -> None:
    shared.add_table_options(parser, "predictions")
    shared.add_supervision_options(parser)
    parser.add_argument("--columns", metavar="A,B", help="columns of the predictions, one a class")
    parser.add_argument("--inputs", help="what they hold: probs, logits or log_probs")
    parser.add_argument("--head", default="softmax", help="softmax: one class an instance; sigmoid: any number")
    parser.add_argument("--coupling", default="auto", help="auto, joint, tilted, loop or independent")
    parser.add_argument("--on-impossible", default="error", help="error, or ignore impossible weak labels")
    parser.add_argument("--chunk-bags", type=int, default=1024, help="bags held in memory at a time")
    parser.add_argument("--out", metavar="FILE", help="posteriors: .csv or .parquet")
    parser.add_argument("--bags-out", metavar="FILE", help="log-likelihood of each bag: .csv or .parquet")


def run(options: Any) -> int:
    """Infer a table of predictions."""
    import torch

    from fastbus.commands.output import Progress, check_targets, peak_memory, print_summary, table_writers
    from fastbus.commands.posteriors import SET_ROWS, infer_chunk
    from fastbus.data.stream import iter_tables
    from fastbus.errors import InputError, SupervisionError, choice

    source = shared.existing(shared.given(options, "predictions", "the table of predictions"))
    supervision = shared.supervision_of(options)
    if hasattr(supervision, "terms"):
        raise SupervisionError(
            f"{supervision.title} is a sum over differently grouped bags; expected one grouping. Infer its pairs with "
            "pair_similarity."
        )
    choice(options.head, ("softmax", "sigmoid"), "--head", InputError)
    bags = None if options.bags is None else shared.existing(options.bags)
    target = shared.given(options, "out", "the file for the posteriors")
    out, bags_out = check_targets(target, options.bags_out, [source] if bags is None else [source, bags])
    columns, names, inputs, has_bags = prediction_columns(source, options)
    asked: dict[str, Any] = {
        "head": options.head,
        "coupling": options.coupling,
        "inputs": inputs,
        "on_impossible": options.on_impossible,
    }
    draw = supervision.level == "set" and not has_bags
    chunks = iter_tables(
        source,
        SET_ROWS if draw else options.chunk_bags,
        bags=bags,
        supervision=supervision,
        classes=names,
        features=columns,
    )
    progress = Progress("bags")
    totals = {"bags": 0, "instances": 0, "exact_bags": 0, "ignored_bags": 0}
    log_likelihood = 0.0
    with table_writers(out, bags_out) as (posteriors, likelihoods), torch.no_grad():
        for chunk in chunks:
            labels, values, exact, ignored = infer_chunk(supervision, chunk, draw, str(source), asked)
            rows = chunk.bags.restore(labels)
            ids = {"bag": chunk.bags.restore(chunk.bags.ids.repeat(chunk.bags.sizes))} if has_bags else {}
            posteriors.write(ids | _posterior_columns(rows, names, options.head))
            if likelihoods is not None:
                bag = chunk.bags.ids[:1] if draw else chunk.bags.ids
                likelihoods.write({"bag": bag, "log_likelihood": values, "exact": exact, "ignored": ignored})
            totals["bags"] += len(values)
            totals["instances"] += len(rows)
            totals["exact_bags"] += int(exact.sum())
            totals["ignored_bags"] += int(ignored.sum())
            log_likelihood += float(values.sum())
            progress.add(len(values))
    progress.end()
    summary: dict[str, Any] = {"posteriors": str(out), **totals}
    summary["mean_log_likelihood"] = log_likelihood / totals["bags"]
    summary["peak_memory_mib"] = round(peak_memory(), 1)
    print_summary(summary, options.json)
    return 0


def _posterior_columns(rows: NDArray[Any], names: list[str], head: str) -> dict[str, NDArray[Any]]:
    import numpy as np

    columns = {f"posterior_{name}": rows[:, at] for at, name in enumerate(names)}
    if head == "softmax":
        return columns | {"predicted": np.asarray(names)[rows.argmax(1)]}
    return columns | {f"predicted_{name}": (rows[:, at] >= 0.5).astype(np.int64) for at, name in enumerate(names)}


def prediction_columns(source: Path, options: Any) -> tuple[list[str], list[str], str, bool]:
    """Columns of the predictions, names of their classes, what they hold, and whether the table names bags."""
    from fastbus.bags import BAG
    from fastbus.commands.parser import names_of
    from fastbus.data.columns import listed
    from fastbus.data.readers import read_chunks
    from fastbus.errors import DataError, InputError, choice

    first = next((table for table in read_chunks(source, "predictions", 1)), None)
    if first is None:
        raise DataError(f"{source} has no rows; expected predictions. Write them first.")
    there = list(first.columns)
    classes = names_of(options.classes, "--classes")
    columns = names_of(options.columns, "--columns")
    inputs = options.inputs
    if inputs is not None:
        choice(inputs, tuple(PREFIXES.values()), "--inputs", InputError)
    if columns is None:
        found = {
            kind: [name for name in there if name.startswith(prefix)]
            for prefix, kind in PREFIXES.items()
            if inputs in (None, kind)
        }
        kinds = [kind for kind, names in found.items() if names]
        if len(kinds) != 1:
            raise DataError(
                f"{source} has the columns {listed(there)}; expected predictions in columns "
                f"{' or '.join(f'{prefix}<class>' for prefix in PREFIXES)}. Name them with --columns and --inputs."
            )
        inputs = kinds[0]
        prefix = next(prefix for prefix, kind in PREFIXES.items() if kind == inputs)
        shown = [name.removeprefix(prefix) for name in found[inputs]]
        if classes is not None and sorted(classes) != sorted(shown):
            raise InputError(f"--classes {listed(classes)}; expected those of {source}: {listed(shown)}. Correct them.")
        names = classes or shown
        return [f"{prefix}{name}" for name in names], names, inputs, BAG in there
    if inputs is None:
        raise InputError(
            "--columns without --inputs; expected what they hold. Add --inputs probs, logits or log_probs."
        )
    names = classes or columns
    if len(names) != len(columns):
        raise InputError(f"{len(names)} --classes for {len(columns)} --columns; expected one for each. Align them.")
    return columns, names, inputs, BAG in there
