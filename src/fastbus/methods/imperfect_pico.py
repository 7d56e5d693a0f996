"""PiCO: partial labels with contrastive learning and prototypes of the classes.

Embeddings of instances that seem to share a class attract each other; a class is where its embeddings gather; the
prototype nearest to an instance, among those of its candidates, slowly takes over its confidences.
Shapes: N instances, M rows, Q queued, C classes, D dimensions of an embedding.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import linear, normalize

from fastbus.methods.imperfect_partial import SETTINGS, uniform_over
from fastbus.methods.registry import Method, MethodOptions, register
from fastbus.methods.rows import blend, candidates_of, indicator, mean_where, remember, soft_cross_entropy
from fastbus.methods.second_network import averaging_share
from fastbus.training.image_run import ImageRun
from fastbus.training.step_objective import StepInputs, StepObjective

DIMENSIONS = 128
QUEUE = 8192
TEMPERATURE = 0.07
CONTRAST = 0.5  # weight of the contrastive loss
PROTOTYPE_KEEP = 0.99
# Of all passes, those before prototypes are trusted, one at least. The authors take 1 of 800. 1,200 digits, 40 passes,
# 3 draws, likelihood of 200 held-out sets: with .7 of the wrong classes in a set -.44 after 1 pass, -.42 after a tenth,
# -.33 after a fifth; with .3 of them -.035, -.035, -.032.
START = 0.2
CONFIDENCE_KEEP = (0.95, 0.8)  # at the first and at the last step
# The authors' 800 passes forget where confidences began; fewer than these take longer steps, as if they were so many.
LEAST_PASSES, LONGEST_STEP = 40, 4.0


def contrastive_loss(query: Tensor, bank: Tensor, positive: Tensor, allowed: Tensor, temperature: float) -> Tensor:
    """-mean over the positives of log softmax over all allowed members of the bank, of each row (M,).

    query (M, D) and bank (K, D) of length 1; positive, allowed (M, K) of booleans, each row with a positive.
    """
    similar = (query @ bank.T / temperature).masked_fill(~allowed, float("-inf"))
    log_prob = similar - torch.logsumexp(similar, 1, keepdim=True)
    positive = positive & allowed
    return -log_prob.masked_fill(~positive, 0.0).sum(1) / positive.sum(1).clamp(min=1)


def moved_prototypes(prototypes: Tensor, embeddings: Tensor, labels: Tensor, real: Tensor, keep: float) -> Tensor:
    """Prototypes (C, D) after keep * old + (1 - keep) * embedding for one row after the other, of length 1."""
    member = indicator(labels, len(prototypes)).to(embeddings.dtype) * real[:, None]
    later = member.flip(0).cumsum(0).flip(0) - member  # rows of the same class still to come
    weight = member * (1 - keep) * keep**later
    moved = prototypes * (keep ** member.sum(0))[:, None] + weight.T @ embeddings
    return normalize(moved, dim=1)


class PrototypeContrast(StepObjective):
    """Cross-entropy of both views with the confidences, and the contrastive loss of the weak view's embedding."""

    def __init__(self, run: ImageRun, candidates: Tensor, start: float) -> None:
        """start: passes before prototypes are trusted."""
        super().__init__()
        self.recipe, self.candidates = run.recipe, candidates
        self.steps = run.steps_per_epoch * run.recipe.epochs
        self.start = start / run.recipe.epochs
        self.step_length = min(max(1.0, LEAST_PASSES / run.recipe.epochs), LONGEST_STEP)
        features = run.num_features or run.num_classes  # a network without features of its own is seen by its logits
        source = torch.Generator().manual_seed(run.seed)

        def drawn(*shape: int) -> Tensor:
            return torch.randn(*shape, generator=source)

        shapes = {"hidden": (features, features), "embedding": (DIMENSIONS, features)}
        for name, shape in shapes.items():
            self.learned[f"{name}.weight"] = drawn(*shape) * (2 / features) ** 0.5
            self.learned[f"{name}.bias"] = torch.zeros(shape[0])
        self.learned = {name: x.to(run.device).requires_grad_() for name, x in self.learned.items()}
        # the trainer gives learned tensors no momentum, which would multiply their steps in the long run
        self.rates = dict.fromkeys(self.learned, 1 / (1 - run.recipe.momentum))
        self.head = {name: x.detach().clone() for name, x in self.learned.items()}
        self.confidence = uniform_over(candidates)
        self.prototypes = torch.zeros(run.num_classes, DIMENSIONS, device=run.device)
        size = max(run.recipe.rows, int(run.sizes.max()), min(QUEUE, len(candidates)))
        self.queue = normalize(drawn(size, DIMENSIONS), dim=1).to(run.device)
        self.queue_labels = torch.full((size,), -1, device=run.device)
        self.position = torch.zeros((), dtype=torch.long, device=run.device)

    def state(self) -> dict[str, Tensor]:
        own = {"confidence": self.confidence, "prototypes": self.prototypes, "queue": self.queue}
        own |= {"queue_labels": self.queue_labels, "position": self.position}
        return own | {f"head.{name}": x for name, x in self.head.items()}

    def __call__(self, inputs: StepInputs) -> Tensor:
        rows, real = inputs.step.rows, inputs.real
        candidates, confidence = self.candidates.index_select(0, rows), self.confidence.index_select(0, rows)
        features = inputs.features(torch.cat([inputs.weak, inputs.strong]))
        M = len(inputs.weak)
        both = inputs.classify(features)
        weak, strong = both[:M], both[M:]
        query = _embedded(features[:M], self.learned)
        with torch.no_grad():
            key = _embedded(inputs.teacher_features(inputs.strong), self.head)
            labels = weak.masked_fill(~candidates, float("-inf")).argmax(1)
            trusted = inputs.progress >= self.start
            near = (query.detach() @ self.prototypes.T).masked_fill(~candidates, float("-inf")).argmax(1)
            first, last = CONFIDENCE_KEEP
            keep = (first + (last - first) * inputs.progress).float() ** self.step_length
            moved = keep * confidence + (1 - keep) * indicator(near, confidence.shape[1])
            confidence = torch.where(trusted, moved, confidence)
            remember(self.confidence, rows, confidence)
        loss = blend(self.recipe, *(mean_where(soft_cross_entropy(x, confidence), real) for x in (weak, strong)))
        contrast = self._contrast(query, key, labels, trusted, real)
        with torch.no_grad():
            self._move(inputs, query.detach(), key, labels)
        return loss + CONTRAST * contrast

    def _contrast(self, query: Tensor, key: Tensor, labels: Tensor, trusted: Tensor, real: Tensor) -> Tensor:
        """Over the other queries, all keys and the queue; before prototypes are trusted only one's own key attracts."""
        bank = torch.cat([query, key, self.queue.clone()])  # the queue itself is written before the gradient is taken
        named = torch.cat([labels, labels, self.queue_labels])
        own = torch.eye(len(query), dtype=torch.bool, device=query.device)
        rest = own.new_zeros(len(query), len(bank) - 2 * len(query))
        own_key = torch.cat([torch.zeros_like(own), own, rest], 1)
        itself = torch.cat([own, torch.zeros_like(own), rest], 1)
        positive = own_key | ((labels[:, None] == named) & trusted)
        return mean_where(contrastive_loss(query, bank, positive, ~itself, TEMPERATURE), real)

    def _move(self, inputs: StepInputs, query: Tensor, key: Tensor, labels: Tensor) -> None:
        """Prototypes, queue and the averaged head, after the step has used them."""
        self.prototypes.copy_(moved_prototypes(self.prototypes, query, labels, inputs.real, PROTOTYPE_KEEP))
        place = (self.position + torch.arange(len(key), device=key.device)) % len(self.queue)
        self.queue.index_copy_(0, place, key)
        self.queue_labels.index_copy_(0, place, labels)
        self.position.copy_((self.position + len(key)) % len(self.queue))
        keep = averaging_share(self.recipe, inputs.progress, self.steps)
        for name, mine in self.head.items():
            mine.mul_(keep).add_(self.learned[name].detach() * (1 - keep))


def _embedded(features: Tensor, head: dict[str, Tensor]) -> Tensor:
    """Embeddings (M, D) of length 1."""
    hidden = torch.relu(linear(features, head["hidden.weight"], head["hidden.bias"]))
    return normalize(linear(hidden, head["embedding.weight"], head["embedding.bias"]), dim=1)


def _pico(run: ImageRun, options: MethodOptions) -> StepObjective:
    start = options.number("start", max(1.0, START * run.recipe.epochs))
    return PrototypeContrast(run, candidates_of(run), start)


register(
    Method(
        name="pico",
        title="PiCO",
        settings=SETTINGS,
        reference="Wang et al., PiCO: contrastive label disambiguation for partial label learning, ICLR 2022",
        differs="Keys come from the trainer's averaged network, without shuffled "
        "batches; the projection learns without momentum or weight decay, at the rate that makes up for it. The strong "
        "view is classified, too: the authors' weak view, with cropping to a fifth and colour changes, is nearly as "
        "strong. Prototypes are trusted after a fifth of the passes (start= sets how many), with the authors after one "
        "of 800; until then the batch counts as negative, too, since a queue that is still random lets embeddings fall "
        "together, as seen on digits. Confidences move up to four times as far in runs of fewer than 40 passes.",
        make=_pico,
        extra=("start",),
    )
)
