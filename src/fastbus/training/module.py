"""The training step on Lightning: whole bags in, posterior-weighted risk out.

Every epoch is a pure function of (seed, epoch): its batches, views and dropout are seeded anew, so that a run
that resumes at an epoch's end walks the very same path as one that never stopped. A gradient is a sum over all
bags of a step, wherever they were processed, divided by their terms: several processes or accumulated batches
give what one large batch gives. Only sets of known prior are not split without loss: each process and each
batch constrains the count of its own share, joined with a queue of its own.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytorch_lightning as pl
import torch
from torch import Tensor, nn

from fastbus.data.batches import BagBatches
from fastbus.data.batches import Batch as BagIndices
from fastbus.errors import InputError
from fastbus.inference.infer import infer
from fastbus.inference.posterior import Posterior
from fastbus.objective import LossSums, WeakLoss
from fastbus.training.bag_set import BagSet, Batch
from fastbus.training.config import TrainConfig
from fastbus.training.consistency import Consistency
from fastbus.training.ema import FactorAverages, MovingAverage
from fastbus.training.fingerprint import describe_run
from fastbus.training.views import Views


class Steps:
    """The batches of one epoch; Lightning would take a plain list for several loaders."""

    def __init__(self, batches: list[BagIndices]) -> None:
        self.batches = batches

    def __len__(self) -> int:
        return len(self.batches)

    def __iter__(self) -> Iterator[BagIndices]:
        return iter(self.batches)


class WeakModule(pl.LightningModule):
    """A backbone, its loss, and the sets it is trained and watched on."""

    def __init__(
        self,
        network: nn.Module,
        loss: WeakLoss,
        train_set: BagSet,
        config: TrainConfig,
        views: Views | None = None,
        held_out: BagSet | None = None,
    ) -> None:
        super().__init__()
        self.network = network
        self.loss = loss
        self.average = MovingAverage(network, config.ema) if config.ema else None
        self.factors = FactorAverages(loss, config.ema)
        self.consistency = None
        if config.consistency:
            self.consistency = Consistency(config.confidence, config.alignment, loss.head)
        self.config = config
        self.views = views
        self.train_set = train_set
        self.held_out = held_out
        self.history: list[dict[str, float]] = []
        self.best: dict[str, Any] | None = None  # weights with the best likelihood of held-out bags
        self.finished = False
        self._generator = torch.Generator()
        self._epoch_sums: list[tuple[Tensor, Tensor]] = []
        self._step_terms: list[Tensor] = []  # of the batches since the last step

    # -- data ----------------------------------------------------------------------------------

    def _batches(self, data: BagSet, *, shuffle: bool = True) -> BagBatches:
        return BagBatches(
            data.sizes.cpu().numpy(),
            max_instances=self.config.max_instances,
            max_bags=self.config.max_bags,
            seed=self.config.seed,
            rank=self.global_rank,
            world=self.trainer.world_size,
            shuffle=shuffle,
        )

    def train_dataloader(self) -> Steps:
        """The batches of this epoch, this process's share of them."""
        batches = self._batches(self.train_set)
        count = len(batches.global_batches(self.current_epoch))
        return Steps([batches.batch(self.current_epoch, position) for position in range(count)])

    def on_fit_start(self) -> None:
        self.train_set = self.train_set.to(self.device)
        if self.held_out is not None:
            self.held_out = self.held_out.to(self.device)
        self._generator = torch.Generator(self.device)

    def on_train_epoch_start(self) -> None:
        seeds = np.random.SeedSequence([self.config.seed, self.current_epoch, self.global_rank])
        dropout, views = (int(seed) for seed in seeds.generate_state(2, np.uint32))
        torch.manual_seed(dropout)
        self._generator.manual_seed(views)
        self._epoch_sums = []
        self._step_terms = []

    # -- the step ------------------------------------------------------------------------------

    def training_step(self, batch: tuple[Any, Any], index: int) -> Tensor:
        self._set_learning_rate(index)
        bags, weights = (torch.as_tensor(part, device=self.device) for part in batch)
        sums = self._sums(self.train_set.batch(bags, weights))
        terms = sums.terms.detach()
        self._epoch_sums.append((sums.per_bag.detach().sum(), terms))
        self._step_terms.append(terms)
        # Lightning divides by the batches it accumulates, and averages over processes; `_typical` only keeps
        # the numbers near 1 until the sum over all terms of the step is known
        return sums.per_bag.sum() * (self.config.accumulate * self.trainer.world_size / self._typical)

    @property
    def _typical(self) -> float:
        """Instances of a batch, on average: the same number on every process."""
        return len(self.train_set.instances) / max(1, int(self.trainer.num_training_batches))

    def on_before_optimizer_step(self, optimizer: torch.optim.Optimizer) -> None:
        """Divide the gradient by the terms of the whole step, before it is clipped."""
        terms = self._over_processes(torch.stack(self._step_terms).sum())
        self._step_terms = []
        factor = self._typical / terms.masked_fill(terms == 0, self._typical)
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    parameter.grad.mul_(factor.to(parameter.grad.dtype))

    def _over_processes(self, value: Tensor) -> Tensor:
        """The sum of a tensor over all processes."""
        if self.trainer.world_size > 1:
            torch.distributed.all_reduce(value := value.clone())
        return value

    def _of_all_processes(self, value: Tensor) -> Tensor:
        """The tensors of all processes, one behind the other: (processes, ...)."""
        found = [torch.empty_like(value) for _ in range(self.trainer.world_size)]
        torch.distributed.all_gather(found, value)
        return torch.stack(found)

    def optimizer_step(self, *args: Any, **kwargs: Any) -> None:
        super().optimizer_step(*args, **kwargs)
        if self.average is not None:
            self.average.update(self.network)
        self.factors.update_from(self.loss)

    def _sums(self, batch: Batch) -> LossSums:
        given: dict[str, Any] = {
            "bag_sizes": batch.sizes,
            "bag_weights": batch.bag_weights,
            "sample_weights": batch.sample_weights,
        }
        two_views = self.views is not None and self.config.views
        weak_view, strong_view = batch.instances, None
        if self.views is not None:
            weak_view = self.views.weak(batch.instances, self._generator)
        if self.views is not None and (two_views or self.consistency is not None):
            strong_view = self.views.strong(batch.instances, self._generator)
        logits, features = self._predict(weak_view)
        strong = None if strong_view is None else self.network(strong_view)
        taught = self.average is not None and self.config.teacher == "average"
        teacher = self.average(weak_view) if self.average is not None and taught else logits
        # networks run in low precision, inference and losses never do
        with torch.autocast(self.device.type, enabled=False):
            posterior = None
            if taught or strong is not None:
                read: dict[str, Any] = {"bag_sizes": batch.sizes, "features": features}
                posterior = self.loss.posterior(_full(teacher), batch.weak, **read)
            sums = self.loss.sums(_full(logits), batch.weak, posterior=posterior, features=features, **given)
            if strong is not None and two_views:
                more = self.loss.sums(_full(strong), batch.weak, posterior=posterior, **given)
                sums = LossSums(sums.per_bag + more.per_bag, sums.terms + more.terms)
            if strong is not None and posterior is not None and self.consistency is not None:
                sums = self._consistent(sums, batch, _full(teacher), _full(strong), posterior)
            return sums

    def _predict(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        """Logits, and the features they were made from where the loss learns from these too."""
        if self.loss.evolution is None:
            return self.network(x), None
        network: Any = self.network
        features: Tensor = network.features(x)
        return network.classify(features), _full(features)

    def _consistent(
        self, sums: LossSums, batch: Batch, teacher: Tensor, strong: Tensor, posterior: Posterior
    ) -> LossSums:
        """Add what instances without evidence learn from their own weak views."""
        assert self.consistency is not None
        weights = batch.sample_weights * batch.bag_weights.repeat_interleave(batch.sizes)
        found = self.consistency(
            teacher.detach(), strong, posterior.labels.detach(), posterior.informed, weights, self._over_processes
        )
        first = torch.zeros_like(sums.per_bag)
        first[0] = 1  # which bag a term is written to does not matter: only their sum is used
        return LossSums(sums.per_bag + first * (self.config.consistency * found.total), sums.terms + found.terms)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        config = self.config
        # a loss may have something to learn too, e.g. the factors of a class loop
        learned = (*self.network.parameters(), *self.loss.parameters())
        parameters = [p for p in learned if p.requires_grad]
        if config.optimizer == "sgd":
            return torch.optim.SGD(
                parameters,
                lr=config.learning_rate,
                momentum=config.momentum,
                nesterov=config.momentum > 0,
                weight_decay=config.weight_decay,
            )
        return torch.optim.AdamW(parameters, lr=config.learning_rate, weight_decay=config.weight_decay)

    def learning_rate(self, index: int) -> float:
        """At a batch of this epoch: a function of progress alone, so that there is no state to lose."""
        batches = max(1, int(self.trainer.num_training_batches))
        first = index - index % self.config.accumulate  # of the batches that make one step
        progress = (self.current_epoch + first / batches) / self.config.epochs
        factor = {
            "cosine": 0.5 * (1 + math.cos(math.pi * progress)),
            "linear": 1 - progress,
            "constant": 1.0,
        }[self.config.schedule]
        if self.config.warmup:
            factor *= min(1.0, (self.global_step + 1) / self.config.warmup)
        return self.config.learning_rate * factor

    def _set_learning_rate(self, index: int) -> None:
        rate = self.learning_rate(index)
        for optimizer in self.trainer.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = rate

    # -- watching ------------------------------------------------------------------------------

    @property
    def predictor(self) -> nn.Module:
        """The network that predictions are made with: the average where there is one."""
        return self.network if self.average is None else self.average.network

    def on_train_epoch_end(self) -> None:
        sums = torch.stack([torch.stack([total, terms.to(total.dtype)]) for total, terms in self._epoch_sums])
        total, terms = self._over_processes(sums.double().sum(0)).tolist()
        row = {"epoch": float(self.current_epoch), "loss": total / (terms or 1.0)}
        if self.held_out is not None and len(self.held_out):
            row["held_out"] = self._held_out_loss()
            better = self.best is None or row["held_out"] < self.best["held_out"]
            if better and math.isfinite(row["held_out"]):
                weights = {name: x.detach().cpu().clone() for name, x in self.predictor.state_dict().items()}
                learned = self.factors.parameters_of(self.loss)
                self.best = {"held_out": row["held_out"], "epoch": self.current_epoch, "weights": weights}
                self.best["loss"] = {name: x.detach().cpu().clone() for name, x in learned.items()}
        self.history.append(row)
        for name, value in row.items():
            if name != "epoch":
                self.log(name, value, prog_bar=True, sync_dist=False, batch_size=1)
        since = self.current_epoch - (-1 if self.best is None else self.best["epoch"])
        if self.config.patience and since >= self.config.patience:
            self.trainer.should_stop = True
        self.finished = self.trainer.should_stop or self.current_epoch + 1 >= self.config.epochs

    @torch.no_grad()
    def _held_out_loss(self) -> float:
        """Mean -log P(w | x) of a held-out bag: no true labels are needed."""
        assert self.held_out is not None
        predictor, batches = self.predictor, self._batches(self.held_out, shuffle=False)
        was_training = predictor.training
        predictor.eval()
        # total and weight; Jeffrey's rule and sets of known prior have likelihoods as well
        sums = torch.zeros(2, dtype=torch.float64, device=self.device)
        for position in range(len(batches.global_batches(0))):
            bags, weights = (torch.as_tensor(part, device=self.device) for part in batches.batch(0, position))
            batch = self.held_out.batch(bags, weights)
            x = batch.instances if self.views is None else self.views.plain(batch.instances)
            post = infer(
                self.loss.supervision,
                _full(predictor(x)),
                batch.weak,
                bag_sizes=batch.sizes,
                head=self.loss.head,
                coupling=self.loss.coupling,
                on_impossible=self.loss.on_impossible,
                budget=self.loss.budget,
                class_loop=self.factors.of(self.loss, "class_loop"),
            )
            sums[0] -= (post.log_likelihood.double() * batch.bag_weights).sum()
            sums[1] += batch.bag_weights.sum()
        predictor.train(was_training)
        total, weight = self._over_processes(sums).tolist()
        return float(total / (weight or 1.0))

    # -- checkpoints ---------------------------------------------------------------------------

    def fingerprint(self) -> dict[str, Any]:
        """What a run must share with the one it resumes."""
        found = describe_run(self.config, self.network, self.loss, tuple(self.factors))
        for name, data in (("training set", self.train_set), ("held-out set", self.held_out)):
            found[name] = None if data is None else data.fingerprint()
        return found

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        checkpoint["fastbus"] = {
            "history": self.history,
            "best": self.best,
            "finished": self.finished,
            "fingerprint": self.fingerprint(),
            # all that random numbers and batches of the next epoch depend on
            "random": {"seed": self.config.seed, "epoch": len(self.history)},
        }
        if self.loss.queue is not None and self.trainer.world_size > 1:
            checkpoint["fastbus"]["queues"] = {
                name: self._of_all_processes(x) for name, x in self.loss.queue.state_dict().items()
            }

    def check_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Refuse the checkpoint of another run."""
        kept = checkpoint.get("fastbus", {}).get("fingerprint", {})
        for name, mine in self.fingerprint().items():
            if name not in kept or kept[name] != mine:
                raise InputError(
                    f"resume with {name} = {mine!r}; expected {kept.get(name)!r}, as the checkpoint has it. Resume "
                    "with the same data and options, or start a new run in another folder."
                )

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        mine = checkpoint["fastbus"]
        self.history, self.best, self.finished = mine["history"], mine["best"], mine["finished"]
        # the state is that of the process that wrote it; queues differ from process to process
        for name, queues in mine.get("queues", {}).items():
            checkpoint["state_dict"][f"loss.queue.{name}"] = queues[self.global_rank % len(queues)]


def _full(logits: Tensor) -> Tensor:
    """Logits in the precision that inference works with."""
    return logits if logits.dtype == torch.float64 else logits.float()
