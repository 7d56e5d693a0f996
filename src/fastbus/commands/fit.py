"""fastbus fit and fastbus resume: tables in, a run folder with a trained classifier out."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jsonargparse import ArgumentParser

from fastbus.commands import data_options as shared
from fastbus.commands.parser import parse_config

if TYPE_CHECKING:
    from fastbus.data.dataset import WeakData
    from fastbus.learner import WeakClassifier
    from fastbus.supervision.base import Supervision

HELP = "train a classifier from tables with weak labels"
EXAMPLES = """
examples:
  fastbus fit instances.csv --bags bags.csv --supervision label_proportion --out run
  fastbus fit photos/ --supervision crowd_label --option rate=0.2 --backbone resnet18 --out run
  fastbus fit photos/ --supervision noisy_label --views '{flip: false}' --train-option optimizer=sgd --out run
  fastbus fit photos/ --supervision partial_label --recipe '{epochs: 50, mixup: 0.5}' --out run
  fastbus fit t.parquet --supervision 'label_proportion & semi_supervised' --epochs 30 --out run
  fastbus fit --config run.yaml --seed 1 --out run1      (flags win over the config)
"""
RESUME_HELP = "go on with an interrupted fit, to the same result to the last bit"
RESUME_EXAMPLES = """
examples:
  fastbus resume run

The data files must lie where they lay, seen from the run, and be unchanged.
"""
NUMBERS = {
    "epochs": (int, "passes over the bags (default: by the size of the set)"),
    "batch_bags": (int, "bags in a batch"),
    "learning_rate": (float, "largest learning rate"),
    "weight_decay": (float, "weight decay"),
    "dropout": (float, "dropout of an MLP"),
    "ema": (float, "decay of averaged weights, 0 for none"),
    "held_out": (float, "share of bags to watch"),
    "patience": (int, "epochs without a better likelihood of held-out bags before it stops"),
    "likelihood": (float, "weight of the likelihood of the weak labels in the loss"),
    "consistency": (float, "weight of the agreement of two views of rows without evidence"),
    "queue": (int, "detached predictions that join sets of known prior"),
    "rank": (int, "states that messages keep in training; all otherwise"),
    "n_classes": (int, "number of classes, where nothing shows it"),
}
WORDS = {
    "head": "softmax: one class an instance; sigmoid: any number",
    "backbone": "auto, linear, mlp, small_cnn, lenet5, resnet18, preact_resnet18, wrn_28_2, wrn_28_8 or wrn_34_10",
    "coupling": "auto, joint, tilted, loop or independent",
    "on_impossible": "error, or ignore weak labels that no labelling satisfies",
    "device": "cpu, cuda, mps or auto",
    "evolution": "train with learned messages: full, mlp, no_attention, relu or gelu",
    "class_loop": "tie the classes of a sigmoid head: labels or learned",
    "method": "fastbus (default), or a competing method by name, as docs/methods.md lists them",
    "views": "on, off, or options of the changed copies to train on, e.g. '{flip: false, pad: 2, cutout: 0}'",
    "recipe": "on, off, or changed entries of the recipe that images are trained by, e.g. '{epochs: 50}'; on a GPU on",
}
EITHER = {"views": "{flip: false}", "recipe": "{epochs: 50}"}  # on, off, or a mapping such as this
SWITCHES = {"calibrate": "fit a temperature on held-out bags", "raw": "do not standardise the features"}
LEARNER = (*NUMBERS, *WORDS, "calibrate")


def add_options(parser: ArgumentParser) -> None:
    shared.add_table_options(parser)
    shared.add_column_options(parser)
    shared.add_supervision_options(parser)
    parser.add_argument("--out", metavar="RUN", help="folder of the run")
    parser.add_argument("--force", action="store_true", help="replace a run that is there")
    parser.add_argument("--seed", type=int, default=0, help="random numbers of split, order and weights")
    parser.add_argument("--threads", type=int, help="threads of torch")
    parser.add_argument("--quiet", action="store_true", help="no progress bar")
    for name, (kind, text) in NUMBERS.items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=kind, help=text)
    for name, text in WORDS.items():
        parser.add_argument(f"--{name.replace('_', '-')}", help=text)
    parser.add_argument(
        "--train-option",
        metavar="KEY=VALUE",
        action="append",
        type=str,
        help="optimizer, momentum, schedule, warmup, precision, clip, accumulate, max_instances, teacher, "
        "confidence or alignment; repeatable",
    )
    facts = "what a competing method must be told, e.g. prior=0.4; repeatable"
    parser.add_argument("--method-option", metavar="KEY=VALUE", action="append", type=str, help=facts)
    for name, text in SWITCHES.items():
        parser.add_argument(f"--{name}", action="store_true", help=text)


def add_resume_options(parser: ArgumentParser) -> None:
    parser.add_argument("run", help="folder of the run")
    parser.add_argument("--quiet", action="store_true", help="no progress bar")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(options: Any) -> int:
    """A new fit."""
    from fastbus.commands.run_folder import check_folder, clear_folder, remove_unstarted, write_start
    from fastbus.errors import FastbusError

    run = Path(shared.given(options, "out", "the folder of the run"))
    supervision = shared.supervision_of(options)
    threads = _use_threads(options.threads)
    check_folder(run, options.force)
    data = shared.read_data(options, supervision)
    classifier = _classifier(options, supervision, data)
    clear_folder(run)
    with resumable(run):
        try:
            write_start(run, _settings(options), data, threads)
            return _train(classifier, supervision, data, run, options)
        except FastbusError:
            remove_unstarted(run)
            raise


def resume(options: Any) -> int:
    """Go on with a fit."""
    from fastbus.commands.run_folder import CONFIG, SUMMARY, check_files, read_run
    from fastbus.errors import InputError

    run = Path(options.run)
    facts, environment = read_run(run)
    if (run / SUMMARY).is_file():
        raise InputError(f"{run} is finished; expected an interrupted run. Predict with: fastbus predict {run} ...")
    # the flags of the run are checked as those of a user are
    fit = parse_config("fit", add_options, run / CONFIG)
    check_files(run, {"instances": fit.instances_flag, "bags": fit.bags, "answers": fit.answers}, facts)
    _use_threads(environment["threads"])
    fit.quiet, fit.json = options.quiet, options.json
    supervision = shared.supervision_of(fit)
    data = shared.read_data(fit, supervision)
    with resumable(run):
        return _train(_classifier(fit, supervision, data), supervision, data, run, fit)


@contextlib.contextmanager
def resumable(run: Path) -> Iterator[None]:
    """An interrupt says how to go on."""
    try:
        yield
    except KeyboardInterrupt:
        raise KeyboardInterrupt(f"interrupted; go on with: fastbus resume {run}") from None


def _use_threads(threads: int | None) -> int:
    import torch

    from fastbus.errors import InputError

    if threads is None:
        return torch.get_num_threads()
    if not 1 <= threads <= 4096:
        raise InputError(f"--threads {threads}; expected a whole number from 1 to 4096. Pass e.g. 1.")
    if threads != torch.get_num_threads():
        torch.set_num_threads(threads)
    return threads


def _settings(options: Any) -> dict[str, Any]:
    """The flags of a fit, as a config holds them."""
    kept: dict[str, Any] = {"instances": shared.given(options, "instances", "the instance table")}
    names = ("bags", "answers", "supervision", "classes", "features", "ignore", "images", "image_size")
    for name in (*names, *NUMBERS, *WORDS, *SWITCHES, "seed", "threads"):
        value = getattr(options, name)
        kept[name] = None if value is False else value
    several = {"option": options.option, "train_option": options.train_option, "method_option": options.method_option}
    read = {name: shared.parse_settings(texts, name) for name, texts in several.items()}
    return kept | {name: settings for name, settings in read.items() if settings}


def _train_options(options: Any) -> dict[str, Any]:
    settings = shared.parse_settings(options.train_option, "train_option")
    if isinstance(settings.get("precision"), int):  # 16 and 32 are names there
        settings["precision"] = str(settings["precision"])
    return settings


def _switch_or_entries(name: str, text: str) -> Any:
    from fastbus.errors import InputError

    complaint = f"--{name} {text!r}; expected on, off or a mapping. Write e.g. --{name} '{EITHER[name]}'."
    value = shared.yaml_value(text, complaint)
    if not isinstance(value, (bool, dict)):
        raise InputError(complaint)
    return value


def _classifier(options: Any, supervision: Supervision, data: WeakData) -> WeakClassifier:
    from fastbus.errors import InputError
    from fastbus.learner import WeakClassifier

    if options.seed < 0 or options.seed >= 2**32:
        raise InputError(f"--seed {options.seed}; expected a whole number from 0 to 2^32 - 1. Pass e.g. 0.")
    given = {name: getattr(options, name) for name in LEARNER}
    chosen = {name: value for name, value in given.items() if value is not None and value is not False}
    for name in EITHER:
        if name in chosen:
            chosen[name] = _switch_or_entries(name, chosen[name])
    if options.train_option:
        chosen["train_options"] = _train_options(options)
    if options.method_option:
        chosen["method_options"] = shared.parse_settings(options.method_option, "method_option")
    shared.check_n_classes(options, data)
    if data.classes is not None:
        chosen.pop("n_classes", None)
        chosen["classes"] = list(data.classes)
    return WeakClassifier(supervision, random_state=options.seed, standardize=not options.raw, **chosen)


def _train(classifier: WeakClassifier, supervision: Supervision, data: WeakData, run: Path, options: Any) -> int:
    """Train in the folder of a run, from its checkpoint where it has one, and finish the folder."""
    from fastbus.commands.learning import fit_resumably, report, scores
    from fastbus.commands.output import print_summary
    from fastbus.commands.run_folder import REPORT, SUMMARY, write_json

    start = time.perf_counter()
    progress = sys.stderr.isatty() and not options.quiet
    # the bar writes to stdout, which is the summary's
    with contextlib.redirect_stdout(sys.stderr) if progress else contextlib.nullcontext():
        fit_resumably(classifier, supervision, data, run, progress)
    classifier.save(run)
    lacking = report(classifier, supervision, data, run)
    summary = {
        "run": str(run),
        "report": f"none: {lacking}" if lacking else REPORT,
        "bags": len(data),
        "instances": data.bags.num_instances,
        "classes": [str(name) for name in classifier.classes_.tolist()],
        "epochs": classifier.n_iter_,
        **scores(classifier, data),
    }
    write_json(run / SUMMARY, {name: value for name, value in summary.items() if name != "run"})
    place = {} if options.json or lacking else {"report": str(run / REPORT)}  # read by people: to be opened
    print_summary(summary | place | {"seconds": time.perf_counter() - start}, options.json)
    return 0
