"""Export of a fitted classifier: rows (N, *shape) in float32 to probabilities (N, C), for any N.

The exported model holds everything `predict_proba` does: standardisation, network, temperature, head.
"""

from __future__ import annotations

import io
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from fastbus.errors import InputError
from fastbus.training.checkpoint import write_atomically


class Exported(nn.Module):
    """predict_proba as a module."""

    mean: Tensor
    scale: Tensor

    def __init__(self, classifier: Any) -> None:
        super().__init__()
        self.network = classifier.network_
        self.head = classifier.head
        self.single = classifier.head == "sigmoid" and classifier.n_outputs_ == 1
        self.temperature = float(classifier.temperature_)
        self.register_buffer("mean", classifier.mean_)
        self.register_buffer("scale", classifier.scale_)

    def forward(self, rows: Tensor) -> Tensor:
        # in double precision, as the classifier scales: far from 0, float32 would lose the differences
        scaled = ((rows.double() - self.mean) / self.scale).float()
        logits = self.network(scaled) / self.temperature
        if self.head == "softmax":
            return torch.softmax(logits, -1)
        probs = torch.sigmoid(logits)
        return torch.cat([1 - probs, probs], -1) if self.single else probs


def export_torch(classifier: Any, path: Path) -> None:
    """Write a torch.export program; read it with torch.export.load(path).module()."""
    module, rows, dynamic = _traceable(classifier)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the exporter warns about itself
        program = torch.export.export(module, (rows,), dynamic_shapes=dynamic)
        buffer = io.BytesIO()
        torch.export.save(program, buffer)
    write_atomically(buffer.getvalue(), path)


def export_onnx(classifier: Any, path: Path) -> None:
    """Write one ONNX file with the input "rows" and the output "probabilities"."""
    try:
        import onnx  # noqa: F401
        import onnxscript  # noqa: F401
    except ImportError as problem:
        raise InputError(
            f"ONNX export needs a package that is not installed ({problem.name}); expected onnx and onnxscript. "
            "Run: pip install onnx onnxscript"
        ) from None
    module, rows, dynamic = _traceable(classifier)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = torch.onnx.export(
            module,
            (rows,),
            dynamo=True,
            dynamic_shapes=dynamic,
            input_names=["rows"],
            output_names=["probabilities"],
            verbose=False,
        )
    assert program is not None
    write_atomically(program.model_proto.SerializeToString(), path)


def _traceable(classifier: Any) -> tuple[Exported, Tensor, tuple[dict[int, Any]]]:
    """The module, an example and the free axis; two rows, since a batch of one would be taken for a constant."""
    module = Exported(classifier).eval()
    rows = torch.zeros(2, *classifier.input_shape_)
    return module, rows, ({0: torch.export.Dim("rows")},)
