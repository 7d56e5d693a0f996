"""Methods of the grid by name: which there are, what the paper calls them, and how each is trained.

"fastbus" minimises posterior-weighted risk, "supervised" is the ceiling: true labels of the same images. All others
are the competing methods of `fastbus.methods`, told the same facts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fastbus.bench.paper.draw import num_classes
from fastbus.bench.paper.grid import Cell
from fastbus.bench.paper.sets import SETS
from fastbus.errors import InputError
from fastbus.methods.imperfect_dividemix import published_weight
from fastbus.methods.registry import get_method, method_names
from fastbus.methods.uum import LARGEST_BAG

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

EQUAL = {"sc_nn_abs": "sc_abs", "uum": "gbm"}
"""Methods that are others by another way or name: the same gradients, so that one run speaks for both."""
# Of GLWS's learned confusion, for images on which its authors have none: 10,000 clothes, a LeNet, 25 passes, held-out
# noisy labels -2.01 with 1, -1.60 with 2, -1.55 with 2.5, -1.50 with 4.
GLWS_SCALE, SMALL_SETS = 4.0, ("mnist", "fashion_mnist", "digits")
SUPERVISED = "supervised"
OWN = ("fastbus", SUPERVISED)


def applies(method: str, cell: Cell) -> bool:
    """Whether the method serves the cell's setting, and as many classes as it has."""
    if method in OWN:
        return True
    known = get_method(method)
    if cell.draw.get("prior") == 0.5 and (method.startswith("sc_") or method == "risk_sd"):
        return False  # they divide by 2 prior - 1
    if method == "uum" and cell.setting == "label_proportion":  # it lists all orders of a bag's labels
        return bool(cell.draw["mean"] + 3 * cell.draw["std"] <= LARGEST_BAG)
    return cell.setting in known.settings and not (known.binary and num_classes(cell) > 2)


def facts_for(method: str, cell: Cell) -> dict[str, Any]:
    """What a competing method is told beside the weak labels: the share of positives of pairs, settings of its own."""
    if method in OWN:
        return {}
    known: dict[str, Any] = {}
    if method == "cvir":
        known = {"known_prior": True}  # it would estimate what all others are told
    if method == "cege" and "positives" in cell.draw:
        known = {"prior": len(cell.draw["positives"]) / SETS[cell.data].num_classes}
    if method == "glws" and cell.setting == "noisy_label":  # its authors learn what is estimated for others
        known = {"learn_transition": True} | ({"scale": GLWS_SCALE} if cell.data in SMALL_SETS else {})
    if method == "lws":
        known = {"loss": "cross_entropy", "beta": 2.0}  # of the published losses the one that learns in short runs
    if method == "dividemix" and "ratio" in cell.draw:  # by an estimate it would miss what its authors tuned
        known = {"unlabelled_weight": published_weight(cell.draw["ratio"], False, num_classes(cell))}
    return known | ({"prior": cell.draw["prior"]} if "prior" in cell.draw else {})


def choose(names: Sequence[str] | None) -> list[str]:
    """Methods by name: fastbus if none is given, for "all" every one there is, of equal ones one."""
    if names is None:
        return ["fastbus"]
    known = (*OWN, *method_names())
    if "all" in names:
        return [name for name in known if name not in EQUAL]
    for name in names:
        if name not in known:
            raise InputError(f"--methods {name!r}; expected all, or some of {', '.join(known)}. Check the spelling.")
    return list(dict.fromkeys(names))
