"""WeakClassifier: the scikit-learn estimator. Rows and weak labels in, an instance-level classifier out.

clf = WeakClassifier("label_proportion", random_state=0).fit(X, counts, bags=bag_ids)
clf.predict(X_new); clf.predict_proba(X_new); clf.posterior(X, counts, bags=bag_ids); clf.save("run")
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor, nn

from fastbus.errors import InputError, choice
from fastbus.learner_answers import ROWS, Answers
from fastbus.learner_check import warn_of_chance
from fastbus.learner_defaults import (
    ACCELERATORS,
    LOOSE_LABELS,
    backbone_options,
    check_device,
    consistency_weight,
    device_of,
    queue_size,
    train_config,
    wants_views,
)
from fastbus.learner_estimates import kept_or_estimated
from fastbus.learner_export import export_onnx, export_torch
from fastbus.learner_files import load_classifier, save_classifier
from fastbus.learner_images import OWN_METHOD, image_recipe, method_objective, told_supervision
from fastbus.learner_inputs import as_rows, in_known_layout, learn_scale, training_inputs
from fastbus.learner_plugs import make_class_loop, make_evolution, to_be_learned
from fastbus.models.backbone import Backbone
from fastbus.models.build import build_backbone
from fastbus.objective import WeakLoss
from fastbus.supervision.base import Supervision, resolve
from fastbus.training.bag_set import BagSet
from fastbus.training.calibrate import fit_temperature
from fastbus.training.config import TrainConfig
from fastbus.training.fit import CHECKPOINT, TrainResult, train
from fastbus.training.image_fit import train_images
from fastbus.training.image_noise import with_known_confusions
from fastbus.training.image_prior import with_known_prior
from fastbus.training.inputs import as_bags, parts_of, read_inputs, read_weights, weak_columns
from fastbus.training.noise import readable, with_known_noise
from fastbus.training.pretrain_fit import pretrain_images
from fastbus.training.recipes import Recipe
from fastbus.training.views import Views
from fastbus.training.whole_set import infer_set, split_bags, supervised_by


class WeakClassifier(Answers, ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """Trains an instance-level classifier from weak labels.

    supervision: a Supervision or its registry name. noisy_label and crowd_label without rates estimate their
        confusion matrices out of fold first, positive_unlabeled without a prior the share of positives
        (`supervision_` holds them), at about the cost of a second fit.
    head: "softmax", one class an instance; "sigmoid", any number of classes, a single output where there are two.
    classes, n_classes: where the weak labels do not show them. -1 marks missing labels unless it is in classes.
    backbone: "auto" (tables: linear below 100 rows, else an MLP as wide as the rows can feed; images: lenet5 for
        grey 28x28 or 32x32, wrn_28_2 for colour from 24x24, else small_cnn), a name of `fastbus.models`, or an
        nn.Module.
    dropout: of an MLP; None picks 0.5 where labels may be wrong or say little (noisy, crowd, complementary, pairs in
        order), since a network without it learns them by heart, and 0.2 elsewhere.
    epochs, batch_bags, learning_rate: None picks them by the size of the set, about 1,500 steps in all.
    held_out: share of bags kept apart; 0.2 where patience or calibrate need some and it is 0.
    patience: epochs without a better likelihood of held-out bags before training stops; no true labels needed.
    calibrate: divide logits by the temperature that makes the weak labels of held-out bags most probable.
    queue: detached predictions that join sets of known prior; None picks 1,024 for these, in small sets an eighth of
        the rows, and 0 for others.
    views: train on a weakly and a strongly changed copy of every row; None: for images, not for tables. A mapping
        holds options of `fastbus.training.views`, e.g. {"flip": False}.
    consistency: weight of the agreement of both views where a row has no evidence at all; None: 1 for
        semi-supervised rows, else 0.
    rank: states that messages keep in training, see `infer`; None for all.
    evolution: None for exact inference; "full", "mlp", "no_attention", "relu" or "gelu" trains the network in joint
        mode with a StateEvolution that reads its features (docs/learned.md). `evolution_` holds it, no file does.
        Sets of known prior then go without a queue, in batches of up to 256 rows of each.
    class_loop: what ties the weak labels of a sigmoid head's classes: "labels", fixed factors from how often they go
        together; "learned", factors learned with the network; a ClassLoop or ClassTransition. `class_loop_` holds it.
    method: "fastbus", or a competing method by name (docs/methods.md), trained on the same network and views.
        method_options: facts it needs, e.g. {"prior": 0.4}.
    recipe: images are trained by the recipe of their kind of weak label (`fastbus.training.recipes`), as CUDA graphs
        on a GPU: True on any device, None on a GPU where nothing asked for stands against it, False never; a mapping
        changes its entries, e.g. {"epochs": 50}; {"pretrain": 100} lets a built-in network learn from the images
        alone first. It has batches, averages and an end of its own: no patience, ema, batch_bags or train_options,
        nor weights or combinations of weak labels.
    train_options: a mapping with further fields of TrainConfig: optimizer, schedule, warmup, teacher, precision, ...
    standardize: subtract the (weighted) mean of each feature and divide by its deviation; of images (N, C, H, W),
        of each channel.
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
        views: bool | dict[str, Any] | None = None,
        consistency: float | None = None,
        rank: int | None = None,
        evolution: str | None = None,
        class_loop: Any = None,
        method: str = "fastbus",
        method_options: dict[str, Any] | None = None,
        recipe: bool | dict[str, Any] | None = None,
        train_options: dict[str, Any] | None = None,
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
        self.views = views
        self.consistency = consistency
        self.rank = rank
        self.evolution = evolution
        self.class_loop = class_loop
        self.method = method
        self.method_options = method_options
        self.recipe = recipe
        self.train_options = train_options
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
            all rows of a bag; one a row for kinds that speak about instances; a tuple for combinations. A frame
            with a column a class names the classes.
        sample_weight: one a row. bag_weight: one a bag, keyed like the weak labels.
        """
        start = time.perf_counter()
        supervision = resolve(self.supervision)
        choice(self.head, ("softmax", "sigmoid"), "head", InputError)
        check_device(self.device)
        if y is None:
            raise InputError("WeakClassifier requires y to be passed, but the target y is None: give weak labels.")
        grouped = as_bags(X, bags, self._check_new)
        given = read_inputs(supervision, grouped, y, self.head, self.classes, self.n_classes)
        rows = as_rows(in_known_layout(grouped.instances, self.backbone))
        self.classes_ = given.classes
        single = self.head == "sigmoid" and len(self.classes_) == 2 and not given.columns
        self.n_outputs_ = 1 if single else len(self.classes_)
        self.weak_columns_ = weak_columns(supervision, given.weak)
        self.input_shape_ = tuple(rows.shape[1:])
        weights = read_weights(grouped, sample_weight, bag_weight)
        scale = learn_scale(rows, weights[1], self.standardize)
        self.mean_, self.scale_ = scale.mean, scale.scale
        whole = BagSet(supervision, rows, torch.from_numpy(grouped.sizes), given.weak, *weights)
        two, consistency = wants_views(self.views, self.input_shape_), consistency_weight(self.consistency, whole)
        rivals = self.method != OWN_METHOD
        inputs, views = training_inputs(rows, scale, self.views, two or rivals or consistency > 0)
        whole = replace(whole, instances=inputs)
        seed = self._seed()
        config = train_config(self.get_params(deep=False), whole, seed, two, consistency)
        self.supervision_ = supervision
        recipe = image_recipe(self.get_params(deep=False), whole, self.n_outputs_)
        self.recipe_ = None if recipe is None else recipe.as_dict()
        training, held_out = split_bags(whole, config.held_out, seed)
        # made when it is asked for: complaints of weak labels should not wait for a long pretraining
        first = cache(partial(self._first_network, recipe, training, views, seed))
        told = told_supervision(supervision, self.get_params(deep=False))
        self.supervision_ = kept_or_estimated(
            told,
            self.folder,
            self._resumes(self.folder),
            partial(self._with_known_noise, whole, recipe, config, views, seed, first),
            optional=rivals,
        )
        # what a rival is not told, it learns in its own way: the estimate is for reading its predictions alone
        whole, training = (supervised_by(part, told if rivals else self.supervision_) for part in (whole, training))
        held_out = None if held_out is None else supervised_by(held_out, self.supervision_)
        largest = int(whole.sizes.max())
        self.class_loop_ = make_class_loop(self.class_loop, training, largest, self.head, self.n_outputs_)
        # every weak label is read once before training, so that a complaint names the caller's bag
        with torch.no_grad():
            zeros = torch.zeros(len(rows), self.n_outputs_)
            read = supervised_by(whole, readable(whole.supervision))  # a rival may do without a prior
            infer_set(read, zeros, grouped.ids, **self._inference(), rank=self.rank)
        if recipe is not None:
            assert views is not None, "a recipe asks for views"
            result, self.evolution_ = self._train_by(recipe, training, views, seed, first), None
        else:
            network = self._network(len(training.instances), seed)
            loss = self._plugged_loss(whole, network, config)
            result = self._train(network, loss, training, config, held_out, views, self.folder)
            self.evolution_ = loss.evolution if loss.evolution is None else loss.evolution.cpu().eval()
        self.network_, self.history_, self.n_iter_ = result[:3]
        if self.class_loop_ is not None:
            self.class_loop_.cpu().requires_grad_(False)
        self.temperature_ = self._temperature(held_out, views) if self.calibrate and held_out is not None else 1.0
        if not rivals:
            predict = partial(self._forward, self.network_, views=views)
            warn_of_chance(whole, predict, self._inference(), self.n_iter_)
        self.seconds_ = time.perf_counter() - start
        return self

    def _check_new(self, rows: Any) -> NDArray[Any]:
        return np.asarray(validate_data(self, rows, allow_nd=True, dtype=list(ROWS), ensure_all_finite=False))

    def _seed(self) -> int:
        if self.random_state is None:  # scikit-learn would draw from, and move, the global random numbers
            return int(np.random.SeedSequence().generate_state(1)[0] % 2**31)
        return int(check_random_state(self.random_state).randint(2**31 - 1))

    def _loss(self, supervision: Supervision, **plugs: Any) -> WeakLoss:
        return WeakLoss(
            supervision,
            head=self.head,
            coupling=self.coupling,  # type: ignore[arg-type]
            on_impossible=self.on_impossible,  # type: ignore[arg-type]
            **{"likelihood": self.likelihood, "queue": self.queue} | plugs,
        )

    def _plugged_loss(self, data: BagSet, network: nn.Module, config: TrainConfig) -> WeakLoss:
        """The loss with all that is plugged in; what is learned gets the terms that it learns from."""
        evolution = make_evolution(self.evolution, data, network, self.head, self.n_outputs_, config)
        plugs: dict[str, Any] = {"rank": self.rank, "evolution": evolution, "class_loop": self.class_loop_}
        if evolution is None:
            plugs["queue"] = queue_size(self.queue, data)
        if evolution is not None:
            plugs |= {"mode": "joint", "likelihood": self.likelihood or None}
        elif to_be_learned(self.class_loop_):
            plugs["likelihood"] = self.likelihood or 1.0
        return self._loss(data.supervision, **plugs)

    def _train(
        self,
        network: nn.Module,
        loss: WeakLoss,
        data: BagSet,
        config: TrainConfig,
        held_out: BagSet | None,
        views: Views | None,
        folder: str | None,
    ) -> TrainResult:
        return train(
            network,
            loss,
            data,
            config,
            held_out=held_out,
            views=views,
            folder=folder,
            resume=self._resumes(folder),
            progress=self.verbose > 0,
            trainer_options={"accelerator": ACCELERATORS[self.device]},
        )

    def _with_known_noise(
        self,
        data: BagSet,
        recipe: Recipe | None,
        config: TrainConfig,
        views: Views | None,
        seed: int,
        first: Callable[[], nn.Module],
    ) -> Supervision:
        """The supervision, its confusion matrices and its share of positives estimated where they are not known."""
        if recipe is None:
            return with_known_noise(data, len(self.classes_), seed, self._out_of_fold(config, views))
        options: dict[str, Any] = {
            "recipe": recipe, "seed": seed, "device": str(device_of(self.device)), "views": views,
        }  # fmt: skip
        rule = with_known_prior(data.supervision, data.instances, data.weak, **options)
        begin = first() if recipe.pretrain else None
        options["network"] = begin if isinstance(begin, Backbone) else None  # others are not pretrained
        return with_known_confusions(rule, data.instances, data.weak, num_classes=self.n_outputs_, **options)

    def _first_network(self, recipe: Recipe | None, data: BagSet, views: Views | None, seed: int) -> nn.Module:
        """What training by a recipe begins with: a new network, pretrained where the recipe says so."""
        assert recipe is not None and views is not None, "a recipe asks for views"
        return pretrain_images(
            self._network(len(data.instances), seed, recipe), data, recipe, views, seed=seed,
            device=str(device_of(self.device)), folder=self.folder, resume=self.resume,
        )  # fmt: skip

    def _train_by(
        self, recipe: Recipe, data: BagSet, views: Views, seed: int, first: Callable[[], nn.Module]
    ) -> TrainResult:
        resumes = self._resumes(self.folder)  # then all weights are those of the checkpoint
        return train_images(
            self._network(len(data.instances), seed, recipe) if resumes else first(),
            data, recipe, views, num_classes=self.n_outputs_, seed=seed, device=str(device_of(self.device)),
            objective=method_objective(self.get_params(deep=False)), folder=self.folder, resume=resumes,
        )  # fmt: skip

    def _resumes(self, folder: str | None) -> bool:
        return bool(self.resume and folder is not None and (Path(folder) / CHECKPOINT).is_file())

    def _network(self, num_rows: int, seed: int, recipe: Recipe | None = None) -> nn.Module:
        if isinstance(self.backbone, nn.Module):
            return copy.deepcopy(self.backbone)
        if recipe is not None and len(self.input_shape_) > 1:
            return recipe.network(self.input_shape_, self.n_outputs_, seed)
        loose = any(part.title in LOOSE_LABELS for part in parts_of(self.supervision_))
        name, options = backbone_options(self.backbone, self.input_shape_, num_rows, loose, self.dropout)
        return build_backbone(name, self.input_shape_, self.n_outputs_, seed=seed, **options)

    def _out_of_fold(self, config: TrainConfig, views: Views | None) -> Any:
        """Trains on some bags and predicts others; a third of the epochs, before noise is learnt by heart."""
        short = TrainConfig(**config.as_dict() | {"epochs": max(1, config.epochs // 3), "patience": 0, "held_out": 0.0})

        def predict(data: BagSet, rows: Tensor) -> Tensor:
            # what is plugged in comes afterwards: here only the noise is looked for
            network = self._network(len(data.instances), short.seed)
            loss = self._loss(data.supervision, queue=None)
            network = self._train(network, loss, data, short, None, views, None).network
            logits = self._forward(network, rows, views)
            return logits if logits.shape[1] > 1 else torch.cat([torch.zeros_like(logits), logits], 1)

        return predict

    def _temperature(self, held_out: BagSet, views: Views | None) -> float:
        def log_likelihood(logits: Tensor) -> Tensor:
            return infer_set(held_out, logits, None, **self._inference()).log_likelihood

        return fit_temperature(log_likelihood, self._forward(self.network_, held_out.instances, views).double())

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
