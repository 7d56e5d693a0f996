"""Methods of the grid by name: which there are, what the paper calls them, and how each is trained.

"fastbus" minimises posterior-weighted risk, "supervised" is the ceiling: true labels of the same images. A further
method is an objective of `ImageRun`, entered in OBJECTIVES under the name that PAPER_NAMES has for it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from fastbus.bench.paper.grid import Cell, read_grid
from fastbus.errors import InputError

if TYPE_CHECKING:
    from fastbus.training.image_run import ImageRun
    from fastbus.training.step_objective import StepObjective

PAPER_NAMES = {
    "FastBUS": "fastbus",
    "Count Loss": "count_loss",
    "UUM": "uum",
    "GLWS": "glws",
    "LLP VAT": "llp_vat",
    "PcABS": "pc_abs",
    "PcReLU": "pc_relu",
    "PcTeacher": "pc_teacher",
    "PcUnbias": "pc_unbiased",
    "Rank Pruning": "rank_pruning",
    "RiskSD": "risk_sd",
    "ScABS": "sc_abs",
    "SCReLU": "sc_relu",
    "ScNNABS": "sc_nn_abs",
    "ScUnbias": "sc_unbiased",
    "CdABS": "cd_abs",
    "CdReLU": "cd_relu",
    "CdUnbias": "cd_unbiased",
    "CC": "cc",
    "PRODEN": "proden",
    "PiCO": "pico",
    "RCR": "rcr",
    "DivideMix": "dividemix",
    "ELR": "elr",
    "SOP": "sop",
    "CVIR": "cvir",
    "DIST PU": "dist_pu",
    "NN PU": "nnpu",
    "U PU": "upu",
    "Var PU": "var_pu",
    "Pseudo Label": "pseudo_label",
    "VAT": "vat",
    "Mean Teacher": "mean_teacher",
    "MixMatch": "mixmatch",
}
"""The paper's names of methods, and the names under which they are run."""

SUPERVISED = "supervised"
Objective = Callable[["ImageRun"], "StepObjective"]
OBJECTIVES: dict[str, Objective | None] = {"fastbus": None, SUPERVISED: None}  # None: posterior-weighted risk


def applies(method: str, cell: Cell) -> bool:
    """Whether the tables of the cell's setting have the method."""
    if method in ("fastbus", SUPERVISED):
        return True
    names = {PAPER_NAMES[name] for other in read_grid() if other.setting == cell.setting for name in other.paper}
    return method in names


def choose(names: Sequence[str] | None) -> list[str]:
    """Methods by name: fastbus if none is given, all that can be run for "all"."""
    if names is None:
        return ["fastbus"]
    if list(names) == ["all"]:
        return list(OBJECTIVES)
    for name in names:
        if name not in OBJECTIVES:
            raise InputError(
                f"--methods {name!r}; expected all, or some of {', '.join(OBJECTIVES)}. Check the spelling."
            )
    return list(dict.fromkeys(names))
