"""train: a backbone, a set of bags and a config, to a trained network; resumable at any moment.

Lightning runs the loop. Checkpoints go through its own interface, written by `fastbus.training.checkpoint`.
"""

from __future__ import annotations

import json
import logging
import signal
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import nn

from fastbus.errors import InputError
from fastbus.objective import WeakLoss
from fastbus.training.bag_set import BagSet
from fastbus.training.checkpoint import (
    Moment,
    _silent,
    read_checkpoint,
    remove_parts,
    write_atomically,
    write_checkpoint,
)
from fastbus.training.config import TrainConfig
from fastbus.training.views import Views

if TYPE_CHECKING:
    from fastbus.training.module import WeakModule

CHECKPOINT = "checkpoint.safetensors"
METRICS = "metrics.jsonl"


class TrainResult(NamedTuple):
    """The trained network, what was seen on the way, and where training ended."""

    network: nn.Module
    history: list[dict[str, float]]
    epochs: int
    stopped_early: bool


def train(
    network: nn.Module,
    loss: WeakLoss,
    train_set: BagSet,
    config: TrainConfig,
    *,
    held_out: BagSet | None = None,
    views: Views | None = None,
    folder: str | Path | None = None,
    resume: bool = False,
    progress: bool = False,
    trainer_options: dict[str, Any] | None = None,
    moment: Moment = _silent,
) -> TrainResult:
    """Train `network` in place and return the weights that predictions should use.

    folder: where the checkpoint and the metrics are kept, after every epoch. resume: go on from there; a run
        that has ended is only read.
    trainer_options: passed to Lightning's Trainer (accelerator, devices, strategy, logger, ...); callbacks and
        plugins join those of this function.
    moment: told the moments of each checkpoint's write.
    Ctrl-C raises KeyboardInterrupt and leaves the checkpoint of the last full epoch.
    """
    _check(loss, config, held_out, views)
    _check_features(network, loss)
    place = None if folder is None else Path(folder)
    state = _state_to_resume(place) if resume else None

    import pytorch_lightning as pl

    from fastbus.training.module import WeakModule

    module = WeakModule(network, loss, train_set, config, views, held_out)
    if place is not None and state is not None:
        module.check_checkpoint(state)
        if state["fastbus"]["finished"]:
            module.load_state_dict(state["state_dict"])
            module.on_load_checkpoint(state)
            _write_metrics(module, place)  # the end may have come between the two files
            return _result(module)
    callbacks: list[Any] = [] if place is None else [_keeper(place)]
    options: dict[str, Any] = {
        "accelerator": "auto",
        "devices": 1,
        "max_epochs": config.epochs,
        "accumulate_grad_batches": config.accumulate,
        "gradient_clip_val": config.clip or None,
        "precision": {"32": "32-true", "bf16": "bf16-mixed", "16": "16-mixed"}[config.precision],
        "logger": False,
        "enable_checkpointing": place is not None,
        "enable_progress_bar": progress,
        "enable_model_summary": False,
        "reload_dataloaders_every_n_epochs": 1,
        "num_sanity_val_steps": 0,
        "use_distributed_sampler": False,
    }
    options |= trainer_options or {}
    options["callbacks"] = [*options.get("callbacks", ()), *callbacks]
    options["plugins"] = [*options.get("plugins", ()), _checkpoint_io(state, moment)]
    with _quiet(), _same_random_numbers(str(options["accelerator"])), _interruptible():
        trainer = pl.Trainer(**options)
        if place is not None and trainer.is_global_zero:
            remove_parts(place)
        trainer.fit(module, ckpt_path=str(place / CHECKPOINT) if place is not None and resume else None)
    return _result(module)


def _check(loss: WeakLoss, config: TrainConfig, held_out: BagSet | None, views: Views | None) -> None:
    """What would otherwise be left out without a word."""
    if config.patience and held_out is None:
        raise InputError(
            f"patience={config.patience} without held-out bags; expected some to watch. Keep a share of the bags, "
            "e.g. held_out=0.1, or pass patience=0."
        )
    if (config.views or config.consistency) and views is None:
        asked = "views=True" if config.views else f"consistency={config.consistency:g}"
        raise InputError(
            f"{asked} without views; expected those of this kind of data. Pass views=build_views(...) to train, or "
            "views=False and consistency=0."
        )
    if config.teacher == "average" and (loss.mode == "joint" or loss.likelihood):
        raise InputError(
            f'teacher="average" with mode={loss.mode!r} and likelihood={loss.likelihood:g}; expected mode="em" and '
            'likelihood=0, since a teacher is not differentiated. Pass teacher="online".'
        )


def _check_features(network: nn.Module, loss: WeakLoss) -> None:
    if loss.evolution is not None and not all(hasattr(network, name) for name in ("features", "classify")):
        raise InputError(
            f"evolution= with a {type(network).__name__}; expected a network with features(x) and classify(features), "
            "such as those of build_backbone. Give it these two methods; forward is one after the other."
        )


def _state_to_resume(place: Path | None) -> dict[str, Any]:
    if place is None or not (place / CHECKPOINT).is_file():
        raise InputError(f"resume without a checkpoint in {place}; expected {CHECKPOINT} there. Start a new run.")
    state = read_checkpoint(place / CHECKPOINT)
    if "fastbus" not in state:
        raise InputError(
            f"{place / CHECKPOINT}: no checkpoint of a training run; expected one that train wrote. "
            "Pass the folder of a run."
        )
    return state


def _result(module: WeakModule) -> TrainResult:
    final, config = module.predictor, module.config
    module.factors.hand_over(module.loss)
    if module.best is not None and config.patience:
        final.load_state_dict(module.best["weights"])
        # what the loss has learned must be of the same epoch; buffers such as the queue may go on
        module.loss.load_state_dict(module.best.get("loss", {}), strict=False)
    stopped = len(module.history) < config.epochs
    return TrainResult(final.cpu().eval(), module.history, len(module.history), stopped)


def _write_metrics(module: WeakModule, folder: Path) -> None:
    lines = "".join(json.dumps(row) + "\n" for row in module.history)
    write_atomically(lines.encode(), folder / METRICS)


def _checkpoint_io(state: dict[str, Any] | None, moment: Moment) -> Any:
    from lightning_fabric.plugins import CheckpointIO

    class PlainCheckpointIO(CheckpointIO):
        """Lightning's checkpoints as one verified safetensors file; the one to resume has been read."""

        def save_checkpoint(self, checkpoint: Any, path: Any, storage_options: Any = None) -> None:
            write_checkpoint(checkpoint, path, moment)

        def load_checkpoint(self, path: Any, map_location: Any = None, weights_only: Any = None) -> Any:
            return read_checkpoint(path) if state is None else state

        def remove_checkpoint(self, path: Any) -> None:
            Path(path).unlink(missing_ok=True)

    return PlainCheckpointIO()


def _keeper(folder: Path) -> Any:
    from pytorch_lightning.callbacks import Checkpoint

    class Keeper(Checkpoint):
        """After every epoch, once all else has happened: the checkpoint, then the metrics that belong to it."""

        def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
            trainer.save_checkpoint(folder / CHECKPOINT)
            if trainer.is_global_zero:
                _write_metrics(pl_module, folder)

    return Keeper()


@contextmanager
def _same_random_numbers(accelerator: str) -> Iterator[None]:
    """The caller's random numbers are not touched."""
    on_gpu = accelerator != "cpu" and torch.cuda.is_available()
    with torch.random.fork_rng(devices=[torch.cuda.current_device()] if on_gpu else []):
        yield


@contextmanager
def _interruptible() -> Iterator[None]:
    """Ctrl-C stays a KeyboardInterrupt: Lightning exits with 1 instead, and leaves the signal ignored."""
    in_main = threading.current_thread() is threading.main_thread()
    handler = signal.getsignal(signal.SIGINT) if in_main else None
    try:
        yield
    except SystemExit as stop:
        if isinstance(stop.__context__, KeyboardInterrupt):
            raise KeyboardInterrupt from None
        raise
    finally:
        if handler is not None:
            signal.signal(signal.SIGINT, handler)


@contextmanager
def _quiet() -> Iterator[None]:
    """Without Lightning's banners and its advice about data loaders that this set does not use."""
    loggers = [logging.getLogger(name) for name in ("pytorch_lightning", "lightning_fabric")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", module="pytorch_lightning|lightning_fabric")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
