"""Does it pay to tie the classes' weak labels together? Mean average precision on real multi-label bags.

Rows of yeast (14 classes) and scene (6) are put into bags of 3 to 5; a bag says for each class whether a row has it.
Some of these bag labels are missing, or flipped at known rates. A small network is trained on the bags of the training
rows with -log P(w | x); a fifth of the bags is held out, and their weak likelihood alone chooses the epoch and the
strength of the frozen factors. True labels are used for the score only: that of single rows of the test set (the
network's own predictions), and that of the posterior of the training rows given their bag labels.

    python -m fastbus.bench.class_loop_map --data ../shared/data --out results/class_loop.jsonl
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from fastbus.bench.results import circumstances
from fastbus.inference.class_coupling import ClassCoupling
from fastbus.inference.class_loop import ClassLoop
from fastbus.inference.class_transition import ClassTransition
from fastbus.inference.infer import infer
from fastbus.inference.posterior import Posterior
from fastbus.objective import WeakLoss
from fastbus.supervision import MultiInstance

METHODS = ("independent", "loop of labels", "loop of labels, em", "loop learned", "transition learned")
STRENGTHS = (0.25, 1.0)
EPOCHS, BATCH, RATE, FACTOR_RATE = 15, 64, 1e-2, 2e-2


class Bagged(NamedTuple):
    """Rows in bags (B, 5, E) with a mask, bag labels (B, C) as they are seen, true labels (B, 5, C)."""

    rows: Tensor
    mask: Tensor
    weak: Tensor
    truth: Tensor

    def take(self, bags: Tensor) -> Bagged:
        return Bagged(*(part[bags] for part in self))


class Setting(NamedTuple):
    """How bag labels suffer, and how many training bags there are (0: all)."""

    name: str
    missing: float = 0.0
    flipped: float = 0.0
    bags: int = 0

    @property
    def noise(self) -> tuple[float, float] | None:
        return (self.flipped, self.flipped) if self.flipped else None


SETTINGS = (Setting("30 % missing", missing=0.3), Setting("30 % flipped", flipped=0.3))


def bagged(x: np.ndarray, y: np.ndarray, setting: Setting, rng: np.random.Generator) -> Bagged:
    """Random bags of 3 to 5 rows."""
    order, parts = rng.permutation(len(x)), []
    while len(order) >= 5:
        size = int(rng.integers(3, 6))
        parts.append(order[:size])
        order = order[size:]
    parts = parts[: setting.bags or None]
    rows = np.zeros((len(parts), 5, x.shape[1]), np.float32)
    truth = np.zeros((len(parts), 5, y.shape[1]), np.int64)
    mask = np.zeros((len(parts), 5), bool)
    for bag, part in enumerate(parts):
        rows[bag, : len(part)], truth[bag, : len(part)], mask[bag, : len(part)] = x[part], y[part], True
    weak = truth.max(1)
    weak = np.where(rng.random(weak.shape) < setting.flipped, 1 - weak, weak)
    weak = np.where(rng.random(weak.shape) < setting.missing, -1, weak)
    return Bagged(*(torch.from_numpy(part) for part in (rows, mask, weak, truth)))


def average_precision(truth: np.ndarray, score: np.ndarray) -> float:
    """Mean over the classes that occur of the area under precision and recall, rows (N, C)."""
    order = np.argsort(-score, axis=0, kind="stable")
    hit = np.take_along_axis(truth, order, 0)
    precision = hit.cumsum(0) / np.arange(1, len(hit) + 1)[:, None]
    seen = hit.sum(0) > 0
    return float(((precision * hit).sum(0)[seen] / hit.sum(0)[seen]).mean())


class Trained(NamedTuple):
    network: nn.Module
    module: ClassCoupling | None
    held_out: float  # mean -log P(w | x) of a held-out bag, at the epoch where it was best


def answer(network: nn.Module, module: ClassCoupling | None, data: Bagged, setting: Setting) -> Posterior:
    rule = MultiInstance(noise=setting.noise)
    return infer(rule, network(data.rows), data.weak, data.mask, head="sigmoid", class_loop=module)


def train(
    train_bags: Bagged, held_out: Bagged, setting: Setting, module: ClassCoupling | None, em: bool, seed: int
) -> Trained:
    """The network, and the module where it is to be learned, at the epoch with the best held-out likelihood."""
    torch.manual_seed(seed)
    E, C = train_bags.rows.shape[-1], train_bags.weak.shape[-1]
    network = nn.Sequential(nn.Linear(E, 64), nn.ReLU(), nn.Dropout(0.3), nn.Linear(64, C))
    groups = [{"params": list(network.parameters()), "lr": RATE}]
    learned = [p for p in module.parameters() if p.requires_grad] if module is not None else []
    if learned:
        groups.append({"params": learned, "lr": FACTOR_RATE})
    optimizer = torch.optim.AdamW(groups, weight_decay=1e-3)
    loss = WeakLoss(MultiInstance(noise=setting.noise), head="sigmoid", class_loop=module) if em else None
    best, kept = float("inf"), {}
    both = nn.ModuleList([network, *([module] if module is not None else [])])
    for _ in range(EPOCHS):
        network.train()
        for bags in torch.randperm(len(train_bags.rows)).split(BATCH):
            batch = train_bags.take(bags)
            optimizer.zero_grad()
            if loss is not None:
                value = loss(network(batch.rows), batch.weak, batch.mask)
            else:
                value = -answer(network, module, batch, setting).log_likelihood.mean()
            value.backward()
            optimizer.step()
        network.eval()
        with torch.no_grad():
            now = -float(answer(network, module, held_out, setting).log_likelihood.mean())
        if now < best:
            best, kept = now, {name: x.clone() for name, x in both.state_dict().items()}
    both.load_state_dict(kept)
    return Trained(network.eval(), module, best)


def candidates(method: str, weak: Tensor, setting: Setting) -> list[ClassCoupling | None]:
    """The modules among which the held-out likelihood chooses."""
    C = weak.shape[1]
    # all 2^14 configurations of yeast can be visited, so no approximation stands between factors and findings
    quick: dict[str, Any] = {"method": "exact", "max_configurations": 2**14}
    if method == "independent":
        return [None]
    if method == "transition learned":
        return [ClassTransition.near_identity(C, 0.05)]
    if method == "loop learned":
        near = ClassLoop.from_labels(weak, strength=STRENGTHS[0], noise=setting.noise, **quick)
        return [ClassLoop.ones(C, **quick), near]
    return [
        ClassLoop.from_labels(weak, strength=strength, noise=setting.noise, learn=False, **quick)
        for strength in STRENGTHS
    ]


def measure(folder: Path, name: str, setting: Setting, seed: int) -> list[dict[str, object]]:
    """All methods on the same bags."""
    with np.load(folder / f"multilabel_{name}.npz", allow_pickle=False) as arrays:
        x, y, x_test, y_test = (arrays[key] for key in ("x_train", "y_train", "x_test", "y_test"))
    mean, deviation = x.mean(0), x.std(0) + 1e-6
    x, x_test = (x - mean) / deviation, (x_test - mean) / deviation
    rng = np.random.default_rng(seed)
    data = bagged(x, y.astype(np.int64), setting, rng)
    order = torch.from_numpy(rng.permutation(len(data.rows)))
    cut = len(order) // 5
    held_out, train_bags = data.take(order[:cut]), data.take(order[cut:])
    lines: list[dict[str, object]] = []
    config = {"epochs": EPOCHS, "batch": BATCH, "rate": RATE, "factor_rate": FACTOR_RATE, "strengths": STRENGTHS}
    for method in METHODS:
        start = time.perf_counter()
        em = method.endswith("em")
        runs = [
            train(train_bags, held_out, setting, module, em, seed)
            for module in candidates(method, train_bags.weak, setting)
        ]
        run = min(runs, key=lambda trained: trained.held_out)
        with torch.no_grad():
            test = torch.sigmoid(run.network(torch.from_numpy(x_test.astype(np.float32)))).numpy()
            post = answer(run.network, run.module, train_bags, setting).labels
        real = train_bags.mask
        lines.append(
            {
                "data": name,
                "setting": setting.name,
                "seed": seed,
                "method": method,
                "test": 100 * average_precision(y_test.astype(np.int64), test),
                "posterior": 100 * average_precision(train_bags.truth[real].numpy(), post[real].numpy()),
                "held_out": run.held_out,
                "bags": len(train_bags.rows),
                "config": config,
                "seconds": time.perf_counter() - start,
            }
        )
    return lines


def table(lines: list[dict[str, object]]) -> str:
    """Mean and deviation over the seeds, and paired differences from independent chains."""
    text = []
    for name, setting in dict.fromkeys((line["data"], line["setting"]) for line in lines):
        mine = [line for line in lines if (line["data"], line["setting"]) == (name, setting)]
        text.append(f"{name}, {setting}, {mine[0]['bags']} bags: mean average precision in %, and the difference made")
        for method in METHODS:
            cells = []
            for what in ("test", "posterior", "held_out"):
                of = {m: np.array([line[what] for line in mine if line["method"] == m], float) for m in METHODS}
                gain = of[method] - of["independent"]
                cells.append(
                    f"{of[method].mean():6.2f} ± {of[method].std():4.2f} ({gain.mean():+5.2f} ± {gain.std():4.2f})"
                )
            text.append(f"  {method:20s} test {cells[0]}   posterior {cells[1]}   held-out -log P {cells[2]}")
    return "\n".join(text)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path("../shared/data"), help="folder with multilabel_*.npz")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--show", type=Path, nargs="+", help="files of earlier runs to put into one table, no new runs")
    parser.add_argument("--only", nargs="+", choices=("scene", "yeast"), default=["scene", "yeast"])
    parser.add_argument("--bags", type=int, default=0, help="use only so many bags; 0 for all")
    parser.add_argument("--out", type=Path, help="file for one JSON line a run")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    start, lines = time.perf_counter(), []
    if asked.show:
        kept = [json.loads(line) for path in asked.show for line in path.read_text(encoding="utf-8").splitlines()]
        print(table(kept))
        return
    for name in asked.only:
        if not (asked.data / f"multilabel_{name}.npz").is_file():
            parser.error(
                f"no multilabel_{name}.npz in {asked.data}; expected the multi-label set. Pass its folder, --data"
            )
    about = circumstances()
    if asked.out is not None:
        asked.out.parent.mkdir(parents=True, exist_ok=True)
        asked.out.write_text("", encoding="utf-8")
    for seed in range(asked.first_seed, asked.first_seed + asked.seeds):
        for name in asked.only:
            for setting in SETTINGS:
                found = measure(asked.data, name, setting._replace(bags=asked.bags), seed)
                lines += found
                if asked.out is not None:  # at once, so that a run that is cut short leaves what it has
                    with asked.out.open("a", encoding="utf-8") as file:
                        file.writelines(json.dumps(line | about) + "\n" for line in found)
    print(table(lines))
    print(f"{asked.seeds} seeds, {time.perf_counter() - start:.0f} s")


if __name__ == "__main__":
    main()
