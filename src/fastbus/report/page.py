"""The page: numbers and pictures as one HTML file without scripts, links or other files.

All text that comes from the data goes through `escape`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from html import escape

from fastbus.report import pictures
from fastbus.report.agreement import Agreement
from fastbus.report.channels import Channel
from fastbus.report.likelihood import exactness
from fastbus.report.numbers import Numbers, Surprise
from fastbus.report.pictures import Picture
from fastbus.report.resample import Estimate
from fastbus.report.sheet import SHEET
from fastbus.report.words import percent


def render(numbers: Numbers) -> str:
    """The whole page."""
    sections = [
        _section("What was trained", _facts(numbers)),
        _section("Learning", _figures(_curves(numbers)), _learning_text(numbers)),
        _section("Weak labels, given and predicted", _figures(_weak(numbers)), _agreement_table(numbers)),
        _section("Classes, and how sure predictions are", _figures(_beliefs(numbers)), _share_table(numbers)),
        _noise(numbers.channels),
        _surprises(numbers),
        _gold(numbers),
        _section("Made with", _environment(numbers)),
    ]
    title = escape(numbers.title)
    notes = "".join(f'<p class="note">{escape(note)}</p>' for note in numbers.notes)
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        # nothing may be loaded, and no script may run, whatever a class or a bag is called
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'; "
        'img-src data:">\n'
        '<meta name="color-scheme" content="light dark">\n<link rel="icon" href="data:,">\n'
        f"<title>{title}</title>\n<style>\n{SHEET}</style>\n</head>\n<body>\n<header>\n<h1>{title}</h1>\n"
        f'<p class="lead">{escape(numbers.run.description)}</p>\n</header>\n<main>\n'
        f"{_cards(numbers)}\n{notes}\n{''.join(part for part in sections if part)}</main>\n</body>\n</html>\n"
    )


# -- pieces ---------------------------------------------------------------------------------------


def _section(title: str, *parts: str) -> str:
    body = "\n".join(part for part in parts if part)
    return f"<section>\n<h2>{escape(title)}</h2>\n{body}\n</section>\n" if body else ""


def _figures(found: Iterable[Picture | None]) -> str:
    shown = [picture for picture in found if picture is not None]
    if not shown:
        return ""
    inner = "".join(
        f"<figure>\n<h3>{escape(picture.title)}</h3>\n{picture.svg}\n<figcaption>{escape(picture.caption)}</figcaption>"
        "\n</figure>\n"
        for picture in shown
    )
    return f'<div class="figures">\n{inner}</div>'


def _table(head: Sequence[str], rows: Iterable[Sequence[str]], caption: str, numeric: Sequence[int] = ()) -> str:
    """Cells are text, escaped here; the first of a row names it."""
    kind = [' class="number"' if column in numeric else "" for column in range(len(head))]
    top = "".join(f'<th scope="col"{kind[i]}>{escape(text)}</th>' for i, text in enumerate(head))
    body = "".join(
        "<tr>"
        + "".join(
            f'<th scope="row">{escape(cell)}</th>' if i == 0 else f"<td{kind[i]}>{escape(cell)}</td>"
            for i, cell in enumerate(row)
        )
        + "</tr>\n"
        for row in rows
    )
    return (
        f'<div class="table" tabindex="0" role="region" aria-label="{escape(caption, quote=True)}"><table>\n'
        f"<caption>{escape(caption)}</caption>\n<thead><tr>{top}</tr></thead>\n<tbody>\n{body}</tbody>\n</table></div>"
    )


def number(value: float | None) -> str:
    """Three digits that matter, a proper minus sign."""
    if value is None or not math.isfinite(value):
        return "–"
    return f"{value:.3f}".replace("-", "−")


def _with_interval(found: Estimate, share: bool) -> str:
    form = percent if share else number
    if not math.isfinite(found.low):
        return form(found.value)
    if share:
        return f"{form(found.value)} ({100 * found.low:.1f} to {100 * found.high:.1f})"
    return f"{form(found.value)} ({form(found.low)} to {form(found.high)})"


# -- sections -------------------------------------------------------------------------------------


def _cards(numbers: Numbers) -> str:
    """The few numbers to look at first, each above its trivial baseline."""
    cards = []
    gold, likelihood = numbers.gold, numbers.likelihood
    if gold is not None:
        cards.append(("Accuracy on true labels", gold.accuracy, gold.majority, True, "majority class"))
    for found in numbers.agreements:
        share = not found.lower_is_better
        name = "Weak labels foretold" if found.kind == "labels" else found.what[0].upper() + found.what[1:]
        name = name if share else f"Error of the {found.what}"
        cards.append((name, found.score, found.baseline, share, "same answer for all"))
    name = "Log-likelihood an instance (nats)" if likelihood.exact else "Log-likelihood an instance (nats), not exact"
    cards.append((name, likelihood.per_instance, likelihood.baseline, False, "without X"))
    if likelihood.held_out is not None:
        unknown = math.nan
        held, base = (Estimate(x, unknown, unknown) for x in (likelihood.held_out, likelihood.baseline_per_bag))
        cards.append(("Log-likelihood of a held-out bag (nats)", held, base, False, "without X, all bags"))
    items = "".join(
        f'<li><span class="what">{escape(name)}</span><strong>{_value(found, share)}</strong>'
        f'<span class="interval">{_interval(found, share)}</span>'
        f'<span class="baseline">{escape(means)}: {_value(base, share)}</span></li>\n'
        for name, found, base, share, means in cards
    )
    return f'<ul class="cards" aria-label="Main results">\n{items}</ul>'


def _value(found: Estimate, share: bool) -> str:
    return percent(found.value) if share else number(found.value)


def _interval(found: Estimate, share: bool) -> str:
    if not math.isfinite(found.low):
        return "no interval"
    if share:
        return f"95 % interval {100 * found.low:.1f} to {100 * found.high:.1f} %"
    return f"95 % interval {number(found.low)} to {number(found.high)}"


def _facts(numbers: Numbers) -> str:
    run = numbers.run
    low, middle, high = run.bag_sizes
    sizes = f"{low} in each" if low == high else f"{low} to {high} in each, {middle:g} in the median"
    shape = " × ".join(map(str, run.input_shape))
    labels = ", ".join(run.classes[:12]) + (f" and {len(run.classes) - 12} more" if len(run.classes) > 12 else "")
    several = "any number of classes an instance" if run.head == "sigmoid" else "one class an instance"
    time = "" if run.seconds is None else f", {run.seconds:.1f} seconds"
    facts = (
        ("Supervision", run.options if " & " in run.supervision else f"{run.supervision} {run.options}".strip()),
        ("Data", f"{run.instances:,} instances in {run.bags:,} bags, {sizes}; {shape} numbers an instance"),
        ("Classes", f"{len(run.classes)}: {labels} ({several if len(run.classes) > 2 else 'two classes'})"),
        ("Network", f"{run.backbone}, {run.parameters:,} parameters"),
        ("Training", f"{run.epochs} epochs{time}"),
    )
    inner = "".join(f"<dt>{escape(name)}</dt><dd>{escape(value)}</dd>\n" for name, value in facts)
    text = (
        "<p>A <em>bag</em> is a group of instances that share one weak label. All numbers below are computed on the "
        "data this report was given; where that is the data of the training, expect somewhat less on new "
        "data. Beside each stands a trivial baseline: an answer that does not look at the "
        "instances. Intervals come from drawing whole bags anew 1,000 times.</p>"
    )
    return f"<dl>\n{inner}</dl>\n{text}"


def _curves(numbers: Numbers) -> list[Picture | None]:
    keys = ("loss", "held_out")
    return [pictures.learning_curve(numbers.history, key, numbers.likelihood) for key in keys]


def _learning_text(numbers: Numbers) -> str:
    found = numbers.likelihood
    rows = [
        ("Log-likelihood of the weak labels, an instance (nats)", _with_interval(found.per_instance, False),
         _with_interval(found.baseline, False)),
        ("Log-likelihood of the weak label of a bag (nats)", number(found.per_bag), number(found.baseline_per_bag)),
    ]  # fmt: skip
    if found.held_out is not None:
        rows.append(
            (
                "The same of held-out bags alone (without X: of all bags)",
                number(found.held_out),
                number(found.baseline_per_bag),
            )
        )
    caption = "How probable the given weak labels are (0 is certain; higher is better)"
    head = ("", "this classifier", "without looking at X")
    return _table(head, rows, caption, (1, 2)) + f"\n<p>{escape(exactness(found.kinds))}</p>"


def _beliefs(numbers: Numbers) -> list[Picture | None]:
    return [pictures.class_shares(numbers.shares), pictures.confidence_histogram(numbers.confidence)]


def _weak(numbers: Numbers) -> list[Picture | None]:
    return [pictures.given_and_predicted(found, at) for at, found in enumerate(numbers.agreements)]


def _agreement_table(numbers: Numbers) -> str:
    if not numbers.agreements:
        return ""

    def row(found: Agreement) -> tuple[str, ...]:
        share = not found.lower_is_better
        name = found.what[0].upper() + found.what[1:]
        name = f"{found.title}: {name}" if share else f"{found.title}: mean error of the {found.what}"
        return (
            name, _with_interval(found.score, share), _with_interval(found.baseline, share), found.baseline_means
        )  # fmt: skip

    head = ("", "this classifier", "baseline", "which baseline")
    return _table(head, map(row, numbers.agreements), "Agreement with the weak labels, and 95 % intervals", (1, 2))


def _share_table(numbers: Numbers) -> str:
    known = numbers.shares[0].true is not None
    head = ("class", "predicted (95 % interval)", "weak labels read", *(["true"] if known else []), "all alike")
    alike = percent(1 / len(numbers.shares))
    rows = [
        (
            share.name,
            _with_interval(share.predicted, True),
            percent(share.with_weak),
            *([percent(share.true or 0.0)] if known else []),
            alike,
        )
        for share in numbers.shares
    ]
    return _folded(f"Numbers of {len(rows)} classes", _table(head, rows, "Shares of the classes", (1, 2, 3, 4)))


def _folded(summary: str, body: str) -> str:
    return f"<details>\n<summary>{escape(summary)}</summary>\n{body}\n</details>"


def _noise(channels: Sequence[Channel]) -> str:
    shown: list[Picture | None] = []
    tables = []
    for at, channel in enumerate(channels):
        shown += [*pictures.noise_matrix(channel, at), pictures.annotators(channel, at)]
        if channel.counted.size and len(channel.rows) <= pictures.CELLS:
            rows = [
                (
                    name,
                    *(_with_interval(_entry(channel, i, j), True) for j in range(len(channel.columns))),
                )
                for i, name in enumerate(channel.rows)
            ]
            head = ("true class", *(f"given {name}" for name in channel.columns))
            body = _table(head, rows, "Counted noise with 95 % intervals", range(1, len(head)))
            tables.append(_folded("Counted noise as a table with intervals", body))
    return _section("Noise of the weak labels", _figures(shown), *tables) if channels else ""


def _entry(channel: Channel, row: int, column: int) -> Estimate:
    return Estimate(*(float(x[row, column]) for x in (channel.counted, channel.low, channel.high)))


def _surprises(numbers: Numbers) -> str:
    if not numbers.surprises:
        return ""

    def row(found: Surprise) -> tuple[str, ...]:
        return (
            found.bag, str(found.size), found.weak, found.expected, number(found.log_likelihood),
            number(found.per_instance), number(found.baseline),
        )  # fmt: skip

    head = ("bag", "instances", "given weak label", "expected", "log-likelihood", "an instance", "without X")
    text = (
        "<p>The bags whose weak labels the predictions find hardest to believe, by log-likelihood an instance. Look at "
        "these first: they are mislabelled, unusual, or not yet understood.</p>"
    )
    table = _table(head, map(row, numbers.surprises), "Most surprising bags first (nats)", (1, 4, 5, 6))
    return _section("The most surprising bags", text, table)


def _gold(numbers: Numbers) -> str:
    gold = numbers.gold
    if gold is None:
        return ""
    rows = (
        ("Prediction alone", _with_interval(gold.accuracy, True)),
        ("Weak labels of the same bags read as well", _with_interval(gold.with_weak, True)),
        (f"Baseline: {gold.majority_means}", _with_interval(gold.majority, True)),
    )
    table = _table(("", "accuracy (95 % interval)"), rows, f"Accuracy on {gold.labels:,} true labels", (1,))
    per_class = _folded(
        "Numbers of each class",
        _table(
            ("class", "share of the true labels", "found (recall)"),
            [
                (name, percent(float(share)), percent(float(recall)))
                for name, share, recall in zip(gold.names, gold.share, gold.recall, strict=True)
            ],
            "How many instances of each class are found; a baseline that always gives one class finds 100 % of it "
            "and 0 % of the others",
            (1, 2),
        ),
    )
    note = '<p class="note">Predicted classes were renamed to fit the true ones best.</p>' if gold.matched else ""
    shown = _figures([pictures.confusion_matrix(gold), pictures.calibration_curve(gold)])
    return _section("Against true labels", table, note, shown, per_class)


def _environment(numbers: Numbers) -> str:
    text = " · ".join(f"{name} {version}" for name, version in numbers.run.environment.items())
    return f'<p class="small">{escape(text)}</p>'
