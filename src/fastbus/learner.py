"""WeakClassifier: the scikit-learn estimator. Rows and weak labels in, an instance-level classifier out.

clf = WeakClassifier("label_proportion", random_state=0).fit(X, counts, bags=bag_ids)
clf.predict(X_new); clf.predict_proba(X_new); clf.posterior(X, counts, bags=bag_ids); clf.save("run")
"""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor, nn

from fastbus.bags import Bags
from fastbus.errors import InputError, choice
from fastbus.inference.predict_weak import expected_weak
from fastbus.learner_export import export_onnx, export_torch
from fastbus.learner_files import load_classifier, save_classifier
from fastbus.models.build import build_backbone
from fastbus.objective import WeakLoss
from fastbus.supervision.base import Supervision, resolve
from fastbus.training.bag_set import BagSet
from fastbus.training.calibrate import fit_temperature
from fastbus.training.config import TrainConfig
from fastbus.training.fit import CHECKPOINT, TrainResult, train
from fastbus.training.inputs import as_bags, is_sequence, missing, parts_of, read_inputs, read_weights, weak_columns
from fastbus.training.noise import with_known_noise
from fastbus.training.whole_set import SetPosterior, forward_rows, infer_set, split_bags, supervised_by

ACCELERATORS = {"cpu": "cpu", "cuda": "gpu", "mps": "mps", "auto": "auto"}
STEPS = 1500  # optimiser steps of a fit whose epochs are left open


class WeakClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """Trains an instance-level classifier from weak labels.

    supervision: a Supervision or its registry name. noisy_label and crowd_label without rates estimate their
        confusion matrices out of fold first (`supervision_` holds them), at about the cost of a second fit.
    head: "softmax", one class an instance; "sigmoid", any number of classes, a single output where there are two.
    classes, n_classes: where the weak labels do not show them. -1 marks missing labels unless it is in classes.
    backbone: "auto" (linear below 100 rows, else an MLP as wide as the rows can feed), a name of
        `fastbus.models`, or an nn.Module.
    dropout: of an MLP; None picks 0.5 where labels may be wrong (noisy, crowd), since a network without it learns
        wrong labels by heart, and 0.2 elsewhere.
    epochs, batch_bags, learning_rate: None picks them by the size of the set, about 1,500 steps in all.
    held_out: share of bags kept apart; 0.2 where patience or calibrate need some and it is 0.
    patience: epochs without a better likelihood of held-out bags before training stops; no true labels needed.
    calibrate: divide logits by the temperature that makes the weak labels of held-out bags most probable.
    queue: detached predictions that join sets of known prior; None picks 128 for these and 0 for others.
    standardize: subtract the (weighted) mean of each feature and divide by its deviation.
    random_state: an integer makes every fit bit-identical on one machine.
    folder: keep the checkpoint and the metrics of the run there. resume: go on from a checkpoint in it, if any.
    """

    def __init__(
        self,
        supervision: Supervision | str = "semi_supervised",
        *,
        head: Literal["softmax", "sigmoid"] = "softmax",
        classes: Any = None,
        n_classes: int | None = None,
        backbone: str | nn.Module = "auto",
        dropout: float | None = None,
        coupling: str = "auto",
        likelihood: float = 0.0,
        epochs: int | None = None,
        batch_bags: int | None = None,
        learning_rate: float | None = None,
        weight_decay: float = 1e-3,
        ema: float = 0.0,
        held_out: float = 0.0,
        patience: int = 0,
        calibrate: bool = False,
        queue: int | None = None,
        standardize: bool = True,
        on_impossible: str = "error",
        random_state: Any = None,
        device: str = "cpu",
        verbose: int = 0,
        folder: str | None = None,
        resume: bool = False,
    ) -> None:
        self.supervision = supervision
        self.head = head
        self.classes = classes
        self.n_classes = n_classes
        self.backbone = backbone
        self.dropout = dropout
        self.coupling = coupling
        self.likelihood = likelihood
        self.epochs = epochs
        self.batch_bags = batch_bags
        self.learning_rate = learning_rate
        self.weight_decay = weight_decay
        self.ema = ema
        self.held_out = held_out
        self.patience = patience
        self.calibrate = calibrate
        self.queue = queue
        self.standardize = standardize
        self.on_impossible = on_impossible
        self.random_state = random_state
        self.device = device
        self.verbose = verbose
        self.folder = folder
        self.resume = resume

    # -- fitting -------------------------------------------------------------------------------

    def fit(
        self, X: Any, y: Any, bags: Any = None, *, sample_weight: Any = None, bag_weight: Any = None
    ) -> WeakClassifier:
        """Train on rows X (N, ...) with bag ids, or on a sequence of bags (K_i, ...).

        y: weak labels keyed by bag id, a plain array (B, ...) where bag ids are 0..B-1, or one a row, the same on
            all rows of a bag; one a row for kinds that speak about instances; a tuple for combinations.
        sample_weight: one a row. bag_weight: one a bag, keyed like the weak labels.
        """
        supervision = resolve(self.supervision)
        choice(self.head, ("softmax", "sigmoid"), "head", InputError)
        choice(self.device, ACCELERATORS, "device", InputError)
        if y is None:
            raise InputError("WeakClassifier requires y to be passed, but the target y is None: give weak labels.")
        grouped = as_bags(X, bags, self._check_new)
        given = read_inputs(supervision, grouped, y, self.head, self.classes, self.n_classes)
        rows = _tensor(grouped.instances)
        self.classes_ = given.classes
        single = self.head == "sigmoid" and len(self.classes_) == 2 and not given.columns
        self.n_outputs_ = 1 if single else len(self.classes_)
        self.weak_columns_ = weak_columns(supervision, given.weak)
        self.input_shape_ = tuple(rows.shape[1:])
        weights = read_weights(grouped, sample_weight, bag_weight)
        self._learn_scale(rows, weights)
        whole = BagSet(supervision, self._scaled(rows), torch.from_numpy(grouped.sizes), given.weak, *weights)
        seed = self._seed()
        config = self._config(whole, seed)
        self.supervision_ = supervision
        self.supervision_ = with_known_noise(whole, len(self.classes_), seed, self._out_of_fold(config))
        whole = supervised_by(whole, self.supervision_)
        # every weak label is read once before training, so that a complaint names the caller's bag
        infer_set(whole, torch.zeros(len(rows), self.n_outputs_), grouped.ids, **self._inference())
        training, held_out = split_bags(whole, config.held_out, seed)
        result = self._train(training, config, held_out, self.folder)
        self.network_ = result.network
        self.history_ = result.history
        self.n_iter_ = result.epochs
        self.temperature_ = 1.0
        if self.calibrate and held_out is not None:
            self.temperature_ = self._temperature(held_out)
        return self

    def _check_new(self, rows: Any) -> NDArray[Any]:
        return np.asarray(validate_data(self, rows, allow_nd=True, dtype=[np.float64, np.float32]))

    def _seed(self) -> int:
        if self.random_state is None:  # scikit-learn would draw from, and move, the global random numbers
            return int(np.random.SeedSequence().generate_state(1)[0] % 2**31)
        return int(check_random_state(self.random_state).randint(2**31 - 1))

    def _config(self, data: BagSet, seed: int) -> TrainConfig:
        """About 1,500 steps of some 64 instances: more passes for small sets, larger batches for large ones."""
        count, largest = len(data), int(data.sizes.max())
        batch = self.batch_bags
        if batch is None and largest == 1:
            batch = min(256, max(16, count // 20))
        elif batch is None:
            typical = max(1, round(len(data.instances) / count))
            batch = max(1, min(max(8, 64 // typical), max(4, count // 10)))
        steps = max(1, count // max(1, batch or 1))
        needs_held_out = bool(self.patience or self.calibrate)
        return TrainConfig(
            epochs=int(np.clip(STEPS // steps, 10, 200)) if self.epochs is None else self.epochs,
            max_bags=batch or 1,
            max_instances=max(4096, largest),
            learning_rate=3e-3 if self.learning_rate is None else self.learning_rate,
            weight_decay=self.weight_decay,
            ema=self.ema,
            held_out=0.2 if needs_held_out and self.held_out == 0 else self.held_out,
            patience=self.patience,
            seed=seed,
        )

    def _train(self, data: BagSet, config: TrainConfig, held_out: BagSet | None, folder: str | None) -> TrainResult:
        queue = self.queue if self.queue is not None else (128 if data.is_set else 0)
        loss = WeakLoss(
            data.supervision,
            head=self.head,
            coupling=self.coupling,  # type: ignore[arg-type]
            likelihood=self.likelihood,
            on_impossible=self.on_impossible,  # type: ignore[arg-type]
            queue=queue,
        )
        return train(
            self._network(len(data.instances), config.seed),
            loss,
            data,
            config,
            held_out=held_out,
            folder=folder,
            resume=self.resume and folder is not None and (Path(folder) / CHECKPOINT).is_file(),
            progress=self.verbose > 0,
            trainer_options={"accelerator": ACCELERATORS[self.device]},
        )

    def _network(self, num_rows: int, seed: int) -> nn.Module:
        if isinstance(self.backbone, nn.Module):
            return copy.deepcopy(self.backbone)
        name = ("linear" if num_rows < 100 else "mlp") if self.backbone == "auto" else self.backbone
        options: dict[str, Any] = {}
        if name == "mlp":
            noisy = any(part.title in ("noisy_label", "crowd_label") for part in parts_of(self.supervision_))
            rate = (0.5 if noisy else 0.2) if self.dropout is None else self.dropout
            options = {"num_samples": num_rows, "dropout": rate}
        return build_backbone(name, self.input_shape_, self.n_outputs_, seed=seed, **options)

    def _out_of_fold(self, config: TrainConfig) -> Any:
        """Trains on some bags and predicts others; a third of the epochs, before noise is learnt by heart."""
        short = TrainConfig(**config.as_dict() | {"epochs": max(1, config.epochs // 3), "patience": 0, "held_out": 0.0})

        def predict(data: BagSet, rows: Tensor) -> Tensor:
            network = self._train(data, short, None, None).network
            logits = forward_rows(network, rows)
            return logits if logits.shape[1] > 1 else torch.cat([torch.zeros_like(logits), logits], 1)

        return predict

    def _temperature(self, held_out: BagSet) -> float:
        def log_likelihood(logits: Tensor) -> Tensor:
            return infer_set(held_out, logits, None, **self._inference()).log_likelihood

        return fit_temperature(log_likelihood, forward_rows(self.network_, held_out.instances).double())

    def _inference(self) -> dict[str, Any]:
        return {"head": self.head, "coupling": self.coupling, "on_impossible": self.on_impossible}

    # -- inputs --------------------------------------------------------------------------------

    def _learn_scale(self, rows: Tensor, weights: tuple[Tensor | None, Tensor | None]) -> None:
        self.mean_ = torch.zeros(rows.shape[1:], dtype=rows.dtype)
        self.scale_ = torch.ones(rows.shape[1:], dtype=rows.dtype)
        if not self.standardize:
            return
        weight = torch.ones(len(rows), dtype=rows.dtype) if weights[1] is None else weights[1]
        share = (weight / weight.sum()).reshape(-1, *[1] * (rows.dim() - 1))
        self.mean_ = (share * rows).sum(0)
        scale = (share * (rows - self.mean_) ** 2).sum(0).sqrt()
        # a constant column has a deviation of rounding errors only
        flat = scale <= 1e-12 * rows.abs().amax(0)
        self.scale_ = scale.masked_fill(flat, 1.0)

    def _scaled(self, rows: Tensor) -> Tensor:
        return ((rows - self.mean_) / self.scale_).float()

    def _grouped(self, X: Any, bags: Any) -> Bags:
        """Bags of new rows, which must have the features that were fitted."""
        check_is_fitted(self, "network_")

        def check(rows: Any) -> NDArray[Any]:
            known = validate_data(self, rows, reset=False, allow_nd=True, dtype=[np.float64, np.float32])
            if known.shape[1:] != self.input_shape_:
                raise InputError(
                    f"X with rows of shape {known.shape[1:]}; expected {self.input_shape_}, as fitted. Reshape them."
                )
            return np.asarray(known)

        return as_bags(X, bags, check)

    def _logits(self, grouped: Bags) -> Tensor:
        """Calibrated logits (N, outputs) in the order of the bags."""
        rows = _tensor(grouped.instances)
        return forward_rows(self.network_, self._scaled(rows)).double() / self.temperature_

    def _probs(self, logits: Tensor) -> Tensor:
        if self.head == "softmax":
            return torch.softmax(logits, -1)
        probs = torch.sigmoid(logits)
        return probs if self.n_outputs_ > 1 else torch.cat([1 - probs, probs], -1)

    # -- answers -------------------------------------------------------------------------------

    def decision_function(self, X: Any) -> NDArray[np.float64]:
        """Logits of every row (N, C); with two classes (N,), the log-odds of the second."""
        grouped = self._grouped(X, None)
        logits = self._logits(grouped)
        if self.n_outputs_ == 1 and self.head == "sigmoid":
            logits = logits[:, 0]
        elif self.n_outputs_ == 2 and self.head == "softmax":
            logits = logits[:, 1] - logits[:, 0]
        return np.asarray(grouped.restore(logits.numpy()))

    def predict_proba(self, X: Any) -> NDArray[np.float64]:
        """P(class) of every row, (N, C); binary classifiers too return two columns."""
        grouped = self._grouped(X, None)
        return np.asarray(grouped.restore(self._probs(self._logits(grouped)).numpy()))

    def predict(self, X: Any) -> NDArray[Any]:
        """The most probable class of every row; 0/1 (N, C) for sigmoid heads with several classes."""
        probs = self.predict_proba(X)
        if self.head == "sigmoid" and self.n_outputs_ > 1:
            return np.asarray((probs >= 0.5).astype(np.int64))
        return np.asarray(self.classes_[probs.argmax(1)])

    def posterior(self, X: Any, y: Any, bags: Any = None) -> NDArray[np.float64]:
        """P(class | row, weak labels) in the order of the rows, (N, C)."""
        grouped = self._grouped(X, bags)
        labels = np.asarray(grouped.restore(self._infer(grouped, y).labels.numpy()))
        return np.concatenate([1 - labels, labels], 1) if labels.shape[1] == 1 and self.head == "sigmoid" else labels

    def _infer(self, grouped: Bags, weak: Any) -> SetPosterior:
        given = read_inputs(self.supervision_, grouped, weak, self.head, self.classes_, None)
        logits = self._logits(grouped)
        data = BagSet(self.supervision_, logits, torch.from_numpy(grouped.sizes), given.weak)
        return infer_set(data, logits, grouped.ids, **self._inference())

    def predict_weak(self, X: Any, bags: Any = None) -> Any:
        """The weak label predicted for each bag, in the order of first appearance, in the form of those fitted.

        Kinds that speak about instances return the class of every row; combinations return a tuple.
        """
        grouped = self._grouped(X, bags)
        wanted = self.supervision_.bag_size
        if wanted is not None and (grouped.sizes != wanted).any():
            bag = grouped.ids[grouped.sizes != wanted][0].item()
            raise InputError(
                f"{self.supervision_.title}: bags of other sizes; expected {wanted} instances in each; bag {bag!r}. "
                "Pass bags= with the bag of every row."
            )
        probs = self._probs(self._logits(grouped))
        probs = probs[:, 1:] if self.n_outputs_ == 1 and self.head == "sigmoid" else probs
        sizes = torch.from_numpy(grouped.sizes)
        answers = []
        for part, columns in zip(parts_of(self.supervision_), self.weak_columns_, strict=True):
            weak = expected_weak(part, probs, sizes, columns).numpy()
            answers.append(weak if part.level == "bag" else np.asarray(self.classes_[grouped.restore(weak)]))
        return tuple(answers) if len(answers) > 1 else answers[0]

    def score(self, X: Any, y: Any, sample_weight: Any = None, bags: Any = None) -> float:
        """Accuracy where y holds a true class for every row, else the mean log-likelihood of weak labels y.

        Weak labels are those of bags (X is a sequence of bags, or bags= is given), candidate sets, answers of
        crowds, and labels of which some are missing.
        """
        check_is_fitted(self, "network_")
        if not self._are_classes(X, y, bags):
            return self.weak_log_likelihood(X, y, bags)
        from sklearn.metrics import accuracy_score

        return float(accuracy_score(y, self.predict(X), sample_weight=sample_weight))

    def _are_classes(self, X: Any, y: Any, bags: Any) -> bool:
        if isinstance(y, (tuple, dict)) or (hasattr(y, "columns") and "bag" in list(y.columns)):
            return False
        by_bag = any(part.level == "bag" and part.bag_size != 1 for part in parts_of(self.supervision_))
        if by_bag and (bags is not None or (is_sequence(X) and len(y) == len(X))):
            return False
        values = np.asarray(y)
        several = self.head == "sigmoid" and self.n_outputs_ > 1
        return values.ndim == 1 + several and not missing(values, self.classes_).any()

    def weak_log_likelihood(self, X: Any, y: Any, bags: Any = None) -> float:
        """Mean log P(w | x) of a bag: how well the weak labels of bags are predicted, without true labels."""
        return float(self._infer(self._grouped(X, bags), y).log_likelihood.mean())

    # -- files ---------------------------------------------------------------------------------

    def save(self, folder: str | Path) -> None:
        """Write the fitted classifier to a folder, as safetensors and JSON; no pickle."""
        check_is_fitted(self, "network_")
        save_classifier(self, Path(folder))

    @classmethod
    def load(
        cls, folder: str | Path, *, supervision: Supervision | None = None, backbone: nn.Module | None = None
    ) -> WeakClassifier:
        """Read a classifier that `save` wrote; rules and networks of your own are passed in again."""
        return load_classifier(cls(), Path(folder), supervision, backbone)

    def export_torch(self, path: str | Path) -> None:
        """Write rows -> probabilities as a torch.export program, scaling and temperature included."""
        check_is_fitted(self, "network_")
        export_torch(self, Path(path))

    def export_onnx(self, path: str | Path) -> None:
        """Write rows -> probabilities as an ONNX model, scaling and temperature included."""
        check_is_fitted(self, "network_")
        export_onnx(self, Path(path))


def _tensor(rows: NDArray[Any]) -> Tensor:
    return torch.from_numpy(np.require(rows, np.float64, ("C", "W")))  # torch warns about arrays it must not write to
