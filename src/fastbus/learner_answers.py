"""What a fitted WeakClassifier answers: logits, probabilities, classes, posteriors, weak labels, scores."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.utils.validation import check_consistent_length, check_is_fitted, validate_data
from torch import Tensor, nn

from fastbus.bags import Bags
from fastbus.errors import InputError
from fastbus.inference.class_coupling import ClassCoupling
from fastbus.inference.predict_weak import expected_weak
from fastbus.learner_defaults import device_of
from fastbus.learner_inputs import Scale, as_rows, check_range
from fastbus.supervision.base import Supervision
from fastbus.training.bag_set import BagSet
from fastbus.training.class_columns import by_class
from fastbus.training.inputs import as_bags, is_sequence, missing, parts_of, read_inputs
from fastbus.training.views import Views
from fastbus.training.whole_set import SetPosterior, forward_rows, infer_set

ROWS = (np.float64, np.float32, np.uint8)  # types that rows are taken in as they are


class Answers:
    """The half of WeakClassifier that only reads what `fit` learnt."""

    head: Any
    coupling: str
    on_impossible: str
    device: str
    classes_: NDArray[Any]
    n_outputs_: int
    standardize: bool
    input_shape_: tuple[int, ...]
    weak_columns_: list[bool]
    mean_: Tensor
    scale_: Tensor
    temperature_: float
    supervision_: Supervision
    network_: nn.Module
    class_loop_: ClassCoupling | None

    def _forward(self, network: nn.Module, inputs: Tensor, views: Views | None = None) -> Tensor:
        return forward_rows(network, inputs, None if views is None else views.plain, device_of(self.device))

    def _inference(self) -> dict[str, Any]:
        options = {"head": self.head, "coupling": self.coupling, "on_impossible": self.on_impossible}
        return options | {"class_loop": self.class_loop_}

    def _grouped(self, X: Any, bags: Any) -> Bags:
        """Bags of new rows, which must have the features that were fitted."""
        check_is_fitted(self, "network_")

        def check(rows: Any) -> NDArray[Any]:
            if len(getattr(rows, "shape", ())) > 2:  # scikit-learn would only miss "features" along the second axis
                fits(rows)
            known = validate_data(self, rows, reset=False, allow_nd=True, dtype=list(ROWS), ensure_all_finite=False)
            fits(known)
            if self.standardize:
                check_range(np.asarray(known), Scale(self.mean_, self.scale_))
            return np.asarray(known)

        def fits(known: Any) -> None:
            shape = tuple(known.shape[1:])
            if shape != self.input_shape_:
                last = len(shape) == 3 and (shape[2], *shape[:2]) == self.input_shape_
                cure = "Pass X.transpose(0, 3, 1, 2)" if last else "Reshape them"
                raise InputError(f"X with rows of shape {shape}; expected {self.input_shape_}, as fitted. {cure}.")

        return as_bags(X, bags, check)

    def _logits(self, grouped: Bags) -> Tensor:
        """Calibrated logits (N, outputs) in the order of the bags."""
        rows = as_rows(grouped.instances)
        return (
            forward_rows(self.network_, rows, Scale(self.mean_, self.scale_), device_of(self.device)).double()
            / self.temperature_
        )

    def _probs(self, logits: Tensor) -> Tensor:
        if self.head == "softmax":
            return torch.softmax(logits, -1)
        probs = torch.sigmoid(logits)
        return probs if self.n_outputs_ > 1 else torch.cat([1 - probs, probs], -1)

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
        """P(class | row, weak labels) in the order of the rows, (N, C).

        Inferred from the network's predictions as `infer` does by default: a rank or a state evolution of the
        training has no part in it, a class loop has.
        """
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

        Kinds that speak about instances return the class of every row; combinations return a tuple. Under a softmax
        head the counts of a bag sum to its size.
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
            weak = expected_weak(part, probs, sizes, columns, exclusive=self.head == "softmax").numpy()
            answers.append(weak if part.level == "bag" else np.asarray(self.classes_[grouped.restore(weak)]))
        return tuple(answers) if len(answers) > 1 else answers[0]

    def score(self, X: Any, y: Any, sample_weight: Any = None, bags: Any = None) -> float:
        """Accuracy where y holds the classes of rows, else the mean log-likelihood of weak labels y.

        Weak labels are those of bags (X is a sequence of bags, or bags= is given), candidate sets, answers of
        crowds, and positives among unlabelled rows. Rows whose class is missing are left out of an accuracy.
        """
        check_is_fitted(self, "network_")
        if not self._are_classes(X, y, bags):
            return self.weak_log_likelihood(X, y, bags)
        several = self.head == "sigmoid" and self.n_outputs_ > 1
        y = np.asarray(by_class(y, self.classes_, "score", keyed=False) if several else y)
        known, predicted = np.asarray(~missing(y, self.classes_)), self.predict(X)
        check_consistent_length(y, predicted, sample_weight)
        right = np.asarray(predicted == y)
        if several:
            known, right = (np.asarray(flags.all(1)) for flags in (known, right))
        if not known.any():
            raise InputError("score: y without a single class; expected some of them. Pass rows whose class is known.")
        weight = None if sample_weight is None else np.asarray(sample_weight)[known]
        return float(np.average(right[known], weights=weight))

    def _are_classes(self, X: Any, y: Any, bags: Any) -> bool:
        if isinstance(y, (tuple, dict)) or (hasattr(y, "columns") and "bag" in list(y.columns)):
            return False
        by_bag = any(part.level == "bag" and part.bag_size != 1 for part in parts_of(self.supervision_))
        if by_bag and (bags is not None or (is_sequence(X) and len(y) == len(X))):
            return False
        values = np.asarray(y)
        several = self.head == "sigmoid" and self.n_outputs_ > 1
        if values.ndim != 1 + several:
            return False
        # one figure for every fold of a cross-validation, whether or not labels happen to be missing in it
        of_classes = all(part.title in ("semi_supervised", "noisy_label") for part in parts_of(self.supervision_))
        return of_classes or not missing(values, self.classes_).any()

    def weak_log_likelihood(self, X: Any, y: Any, bags: Any = None) -> float:
        """Mean log P(w | x) of a bag: how well the weak labels of bags are predicted, without true labels."""
        return float(self._infer(self._grouped(X, bags), y).log_likelihood.mean())
