"""What a reader must know of the figures: how they were come by, and what each draw came out as."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fastbus.bench.paper_report.summary import FORMERLY, SINGLE, UNLIKE, Row

NOTES = (
    "Percent on the official test images, mean ± standard deviation (n − 1) over seeds; a seed draws the weak labels "
    "and the first weights. Averaged (EMA) weights after the last epoch.",
    "Within a run nothing is chosen on test images: no epoch, no seed. Learning curves are drawn, not used.",
    "Balanced accuracy is the mean over classes. Matched accuracy names the classes after training in the way that "
    "fits the test labels best (Hungarian method): similar pairs tell classes apart, not which is which.",
    "Ceiling: the same images, or as many random ones, with their true labels, the same network, views and schedule; "
    f"{UNLIKE} where views or schedule are others.",
    f"{FORMERLY}: by an earlier recipe, earlier weak labels or in fewer epochs; the remarks of a setting say which. "
    f"{SINGLE}: a run ended with one class for all images.",
    "Paper: figures as printed; its networks, views and schedules are not known in full and differ from ours. Data "
    "rules of other code that give wrong rates are put right here: cells agree in name and size, not in every detail.",
    "Confidences of pairs come from a network of ours, trained on images in no pair and calibrated; the paper takes "
    "CLIP's. Those rows say how well a method reads such labels, and are not comparable with the paper's.",
    "A ceiling of pairs with confidences is none for these: their scorer has seen 17,000 further true labels.",
    "Views: augmented images drawn for training, two an image and pass, the same for all methods of a budget. Most "
    "pass each through the network once; with gradient and without, DivideMix passes it 2 and 3 times (two networks), "
    "LLP-VAT 2 and .5, VAT 1.6, VarPU 1.4, teachers, PiCO and CVIR up to 1 more without. Seconds: training alone, "
    "beside other runs on the same device. Both count the passes without labels that a recipe begins with, although "
    "runs on the same images share them; one budget for all methods has none.",
    "The confusion matrix of noisy labels is estimated once a cell, by 10 passes at most over four fifths of the "
    "images, whose views are not counted. FastBUS and forward correction train by it; ELR and SOP only look whether it "
    "is one-sided, GLWS learns one of its own, whose scale is its authors' on CIFAR-10 and chosen by held-out labels "
    "on Fashion-MNIST, and DivideMix has the weight that its authors chose for the true share.",
    "At one budget, learning rates marked * are the method's own, FastBUS's too: of the rates tried the one by which a "
    "trial foretold weak labels best that were kept back from it (its predictions made as hard or soft as suited it "
    "best). All else, and rates that are not marked, are those of our recipes, chosen for FastBUS by such labels. Of "
    "its published losses LWS has the cross-entropy, which learns in short runs, too. ELR and DivideMix take "
    "labels of clothes that look like others for wrong ones and give up shirts, or half of them; on digits ELR is "
    "level with the rest and DivideMix half a point behind. MixMatch has FixMatch's seven unlabelled images to one "
    "with a label.",
    "UUM goes through all orders of a bag's labels, which bags of more than 6 do not allow: it has no row on "
    "proportions. Methods for crowds and for two unlabelled sets have no cell in the paper.",
    "Made by fastbus bench paper and fastbus bench report; every run is a line of paper.jsonl.",
)


def remarks_of(rows: Sequence[Row]) -> list[str]:
    """What is to be known of the cells of a setting."""
    told = [text for say in (_facts, _recipe, _scorer) for row in rows if (text := say(row))]
    return [*told, *dict.fromkeys(f"{row.cell.data}: {row.cell.without}" for row in rows if row.cell.without)]


def _facts(row: Row) -> str:
    """What the first draw of a cell came out as."""
    if row.ours is None:
        return ""
    facts = row.ours.runs[0].get("facts", {})
    return f"{row.cell.data} {row.cell.name}, first draw: " + ", ".join(
        f"{name} {_short(x)}" for name, x in facts.items()
    )


def _recipe(row: Row) -> str:
    """That a figure is due to be measured again."""
    if row.ours is None or row.ours.current:
        return ""
    if whole := row.ours.shortened:
        return f"{row.cell.data} {row.cell.name}: {row.ours.config['epochs']} epochs, of which the recipe has {whole}"
    return f"{row.cell.data} {row.cell.name}: by an earlier recipe or earlier weak labels, not yet run anew"


def _scorer(row: Row) -> str:
    """How good the scorer behind a cell's confidences is."""
    found = None if row.ours is None else row.ours.runs[0].get("scorer")
    if not found:
        return ""
    told = ", ".join(f"{name} {_short(x)}" for name, x in found.items() if name != "fingerprint")
    return f"{row.cell.data} {row.cell.name}, scorer: {told}"


def _short(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return " to ".join(map(str, value))
    return f"{value:.4g}" if isinstance(value, float) else str(value)
