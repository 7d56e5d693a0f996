"""What multi-instance learning is compared with: the larger class, summaries of bags, and attention from torchmil."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fastbus.bags import Bags

Labels = NDArray[np.int64]
PENALTIES: dict[str, Any] = {"candidates": [0.001, 0.01, 0.1, 1.0, 10.0], "folds": 5}
ATTENTION: dict[str, Any] = {
    "att_dim": 128,
    "epochs": [10, 20, 40, 80],
    "batch_bags": 64,
    "learning_rate": 2e-3,
    "weight_decay": 1e-3,
    "folds": 2,
}


def majority(train: Bags, labels: Labels, test: Bags, seed: int) -> NDArray[Any]:
    """The more frequent label of the training bags, always."""
    return np.full(len(test), int(labels.mean() >= 0.5))


def logistic(train: Bags, labels: Labels, test: Bags, seed: int, *, C: float) -> NDArray[Any]:
    """Logistic regression on the mean, the least and the largest value of each feature in a bag."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    model = make_pipeline(StandardScaler(), LogisticRegression(C=C, max_iter=2000))
    return np.asarray(model.fit(_summaries(train), labels).predict(_summaries(test)))


def tuned_logistic(
    train: Bags, labels: Labels, test: Bags, seed: int, *, candidates: list[float], folds: int
) -> NDArray[Any]:
    """The same with the C under which training bags kept apart are most probable."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import GridSearchCV, StratifiedKFold
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    search = GridSearchCV(
        make_pipeline(StandardScaler(), LogisticRegression(max_iter=2000)),
        {"logisticregression__C": candidates},
        scoring="neg_log_loss",
        cv=StratifiedKFold(folds, shuffle=True, random_state=seed),
    )
    return np.asarray(search.fit(_summaries(train), labels).predict(_summaries(test)))


def _summaries(bags: Bags) -> NDArray[np.float64]:
    return np.stack([np.concatenate([rows.mean(0), rows.min(0), rows.max(0)]) for rows in bags])


def attention(train: Bags, labels: Labels, test: Bags, seed: int, **settings: Any) -> NDArray[Any]:
    """torchmil's ABMIL, with the number of epochs under which training bags kept apart are most probable."""
    from sklearn.model_selection import StratifiedKFold

    folds = StratifiedKFold(settings["folds"], shuffle=True, random_state=seed)
    scores = np.zeros(len(settings["epochs"]))  # log likelihood, summed over the bags kept apart
    for seen, apart in folds.split(labels, labels):
        signs = torch.from_numpy(2.0 * labels[apart] - 1)
        path = _logits(train.subset(seen), labels[seen], train.subset(apart), seed, **settings)
        scores += [float(torch.nn.functional.logsigmoid(signs * logits).sum()) for logits in path]
    chosen = settings | {"epochs": settings["epochs"][: int(scores.argmax()) + 1]}
    last = _logits(train, labels, test, seed, **chosen)[-1]
    return np.asarray((last.numpy() > 0).astype(np.int64))


def _logits(train: Bags, labels: Labels, test: Bags, seed: int, **settings: Any) -> list[torch.Tensor]:
    """Logits of the test bags after each number of epochs: standardised features, Adam, padded batches of bags."""
    import importlib

    abmil = importlib.import_module("torchmil.models").ABMIL  # by name: a peer that need not be installed
    mean, scale = train.instances.mean(0), train.instances.std(0)
    scale = np.where(scale > 0, scale, 1.0)
    x, mask = _padded(train, mean, scale)
    unseen = _padded(test, mean, scale)
    targets = torch.from_numpy(labels).float()
    found = []
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = abmil(in_shape=(x.shape[-1],), att_dim=settings["att_dim"])
        optimiser = torch.optim.Adam(
            model.parameters(), lr=settings["learning_rate"], weight_decay=settings["weight_decay"]
        )
        for epoch in range(max(settings["epochs"])):
            model.train()
            for chosen in torch.randperm(len(x)).split(settings["batch_bags"]):
                loss = model.criterion(model(x[chosen], mask[chosen]), targets[chosen])
                optimiser.zero_grad()
                loss.backward()
                optimiser.step()
            if epoch + 1 in settings["epochs"]:
                model.eval()
                with torch.no_grad():
                    found.append(model(*unseen))
    return found


def _padded(bags: Bags, mean: NDArray[Any], scale: NDArray[Any]) -> tuple[torch.Tensor, torch.Tensor]:
    """Scaled bags (B, K, D) and which instances are there (B, K)."""
    rows = [torch.from_numpy((part - mean) / scale).float() for part in bags]
    mask = [torch.ones(len(part)) for part in rows]
    pad = torch.nn.utils.rnn.pad_sequence
    return pad(rows, batch_first=True), pad(mask, batch_first=True)
