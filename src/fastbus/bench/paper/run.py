"""One run, from images to a record; it can stop at a deadline and go on from its checkpoint as if it had not.

The learning curve shows test accuracies of the averaged weights. They are looked at, nothing is chosen by them:
what counts is the last epoch.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fastbus.bench.paper.draw import Source, Task, draw_task, gold_task, num_classes, true_labels
from fastbus.bench.paper.held_out import Weak
from fastbus.bench.paper.methods import OWN, SUPERVISED, facts_for
from fastbus.bench.paper.metrics import score
from fastbus.bench.paper.noise import known_noise, noise_path, unknown_noise
from fastbus.bench.paper.plan import MIRRORED, Groundwork, Job, Pretraining, Scorer
from fastbus.bench.paper.pretrained import first_network, pretrained_path, pretraining_run, write_pretrained
from fastbus.bench.paper.rates import TEMPERATURES
from fastbus.bench.paper.scorer import read_scores, scorer_path, scorer_run, write_scores
from fastbus.bench.paper.sets import Images, load_set
from fastbus.bench.results import Record, circumstances
from fastbus.methods.registry import objective_of
from fastbus.training.checkpoint import read_checkpoint, write_checkpoint
from fastbus.training.image_run import ImageRun

CURVE_POINTS = 20
TINY_TEST = 1_000  # images of a trial, whose figures nobody reads
START_MARGIN, NOISE_MARGIN = 20.0, 120.0  # seconds: reading, drawing and the first epoch; an estimate before them


@dataclass(frozen=True)
class Place:
    """Where runs read and write, on what device, and until when."""

    images: Path | None
    tables: Path
    checkpoints: Path
    device: str
    threads: int
    every: float  # seconds between checkpoints
    deadline: float | None = None  # by time.time()
    compiled: bool = False  # whether torch.compile fuses the networks' operations

    def short_of_time(self, needed: float) -> bool:
        return self.deadline is not None and time.time() + needed > self.deadline


def work(what: Job | Groundwork, place: Place) -> Record | None:
    """Do it to the end and return its record, or until the time is up and return None."""
    torch.set_num_threads(place.threads)
    if place.short_of_time(margin(what, place)):
        return None
    start = time.perf_counter()
    doing: Any = {Scorer: _train_scorer, Pretraining: _pretrain, Job: _run}[type(what)]
    record: Record | None = doing(what, place)
    return None if record is None else record | {"wall_seconds": time.perf_counter() - start}


def margin(what: Job | Groundwork, place: Place) -> float:
    """Seconds without which it is not begun: a run can stop after an epoch, but not before."""
    return START_MARGIN if awaited_noise(what, place) is None else NOISE_MARGIN


def awaited_noise(what: Job | Groundwork, place: Place) -> Path | None:
    """The file of a confusion matrix that must be estimated before its training; None where there is no need."""
    if not isinstance(what, Job) or not unknown_noise(what):
        return None
    path = noise_path(what, place.checkpoints)
    return None if path.is_file() else path


def forget(what: Job | Groundwork, folder: Path) -> None:
    """Remove what a finished run has left."""
    checkpoint_of(what, folder).unlink(missing_ok=True)


def checkpoint_of(what: Job | Groundwork, folder: Path) -> Path:
    return folder / (
        f"{what.fingerprint}-{what.seed}.safetensors" if isinstance(what, Job) else f"{what.fingerprint}.safetensors"
    )


def is_done(work: Groundwork, folder: Path) -> bool:
    """Whether its file is there."""
    path = scorer_path(folder, work) if isinstance(work, Scorer) else pretrained_path(folder, work)
    return path.is_file()


def _pretrain(work: Pretraining, place: Place) -> Record | None:
    if is_done(work, place.checkpoints):
        return {}
    source = Source(load_set(work.cell.data, place.images), None, place.tables)
    run = pretraining_run(work, source, place.device, place.compiled)
    if not _train(run, work, place, None, []):
        return None
    return write_pretrained(place.checkpoints, work, run)


def _train_scorer(scorer: Scorer, place: Place) -> Record | None:
    if is_done(scorer, place.checkpoints):
        return {"scorer": scorer.data}
    images = load_set(scorer.data, place.images)
    run = scorer_run(scorer, images, place.device)
    if not _train(run, scorer, place, None, []):
        return None
    return {"scorer": scorer.data} | write_scores(place.checkpoints, scorer, run, images)


def _run(job: Job, place: Place) -> Record | None:
    images = load_set(job.cell.data, place.images)
    scores, scorer_facts = (None, None) if job.scorer is None else read_scores(place.checkpoints, job.scorer)
    task = draw_task(job.cell, Source(images, scores, place.tables), job.seed, job.held_out)
    task = gold_task(task) if job.method == SUPERVISED else task
    tensors = _tensors(images, task.train)
    network, pretraining = first_network(job, place.checkpoints)
    rule, estimated, noise_seconds = known_noise(
        job, task.supervision, tensors[0], tensors[2], network, place.checkpoints, place.device
    )
    task.facts.update(estimated)
    run = ImageRun(
        rule,
        *tensors,
        num_classes=task.num_classes,
        recipe=job.recipe,
        seed=job.seed,
        device=place.device,
        flip=job.cell.data in MIRRORED,
        network=network,
        objective=None if job.method in OWN else objective_of(job.method, **facts_for(job.method, job.cell)),
        compiled=place.compiled,
    )
    watch = _Watch(job, images, task)
    curve: list[Record] = []
    if not _train(run, job, place, watch, curve):
        return None
    more = {"scorer": scorer_facts, "noise_seconds": noise_seconds, "pretraining": pretraining}
    return _record(job, run, task, watch, curve) | more | circumstances(place.device)


def _train(run: ImageRun, what: Job | Groundwork, place: Place, watch: _Watch | None, curve: list[Record]) -> bool:
    """Epoch after epoch, from the checkpoint if there is one; False where the time was up before the end."""
    path = checkpoint_of(what, place.checkpoints)
    if path.is_file():
        state = read_checkpoint(path)
        run.load_state_dict(state["run"])
        curve += state["curve"]
    epochs = run.recipe.epochs
    every = max(1, epochs // CURVE_POINTS)
    saved = time.monotonic()
    passes: list[float] = []  # seconds; the first one compiles and captures, and says nothing about the others
    while not run.done:
        start = time.monotonic()
        told = run.run_epoch()
        if watch is not None and (run.epoch % every == 0 or run.done):
            curve.append({"epoch": run.epoch, "loss": told["loss"], **watch(run)})
        passes.append(time.monotonic() - start)
        stop = not run.done and place.short_of_time(2 * max(passes[1:] or passes) + 5)
        if stop or run.done or time.monotonic() - saved >= place.every:
            # of a finished run as well: the record may still be lost on its way to the disk
            write_checkpoint({"run": run.state_dict(), "curve": curve}, path)
            saved = time.monotonic()
        if stop:
            return False
    return True


class _Watch:
    """Looks at a run: test accuracy, and how likely the weak labels are that were kept back."""

    def __init__(self, job: Job, images: Images, task: Task) -> None:
        self.cell = job.cell
        number = TINY_TEST if job.cell.name == "tiny" else len(images.test)
        self.test = torch.from_numpy(images.test[:number])
        self.truth = true_labels(job.cell, images.test_labels)[:number]
        self.kept = None if task.held_out is None else _tensors(images, task.held_out)

    def __call__(self, run: ImageRun) -> Record:
        told: Record = {"accuracy": self.accuracy(self.predictions(run))}
        if self.kept is None:
            return told
        told["held_out"] = run.weak_score(*self.kept)
        if run.done:
            told["held_out_tempered"] = run.weak_score(*self.kept, temperatures=TEMPERATURES)
        if self.cell.setting == "semi_supervised":  # classes, so that they can be hit
            images, _, labels = self.kept
            told["held_out_accuracy"] = 100 * float((run.predict(images).argmax(1) == labels).double().mean())
        return told

    def predictions(self, run: ImageRun, average: bool = True) -> Tensor:
        """Probabilities of the classes of the test images."""
        return run.predict(self.test, average=average)

    def accuracy(self, predictions: Tensor, metric: str | None = None) -> float:
        return score(metric or self.cell.metric, predictions.argmax(1).numpy(), self.truth, num_classes(self.cell))


def _shares(predictions: Tensor) -> list[float]:
    """How often each class is predicted; of numbers that are none, an empty list."""
    if not bool(predictions.isfinite().all()):
        return []
    counts = torch.bincount(predictions.argmax(1), minlength=predictions.shape[1])
    return [round(float(share), 4) for share in counts / len(predictions)]


def _tensors(images: Images, weak: Weak) -> tuple[Tensor, Tensor, Tensor]:
    return torch.from_numpy(images.train[weak.rows]), torch.from_numpy(weak.sizes), torch.from_numpy(weak.weak)


def _record(job: Job, run: ImageRun, task: Task, watch: _Watch, curve: list[Record]) -> Record:
    cell = job.cell
    told, averaged = facts_for(job.method, cell), watch.predictions(run)
    config: dict[str, Any] = {"draw": dict(cell.draw), "held_out": job.held_out, "told": told, **run.config()}
    return {
        "setting": cell.setting,
        "data": cell.data,
        "cell": cell.name,
        "method": job.method,
        "variant": job.variant,
        "budget": job.budget,
        "seed": job.seed,
        "fingerprint": job.fingerprint,
        "metric": cell.metric,
        "accuracy": watch.accuracy(averaged),
        "accuracy_last": watch.accuracy(watch.predictions(run, average=False)),
        "accuracy_plain": watch.accuracy(averaged, metric="accuracy"),
        "predicted_shares": _shares(averaged),
        "curve": curve,
        "seconds": run.seconds,
        "views": run.views_seen,
        "images_per_second": run.views_seen / run.seconds,
        "config": config,
        "facts": task.facts,
    }
