"""The enumeration oracle: slow, plain, the definition of right.

It sums over every labelling of a bag: C**K of them under a softmax head, with all classes coupled,
and 2**K a class under a sigmoid head, where classes are independent. What a weak label says about a
labelling stands in `oracle_definitions`. Everything is kept in logs and extended precision, so that
an engine's error of 1e-12 can be measured, also at logits of 1e4 and probabilities of 0 and 1.
Shapes: logits (B, K, C) with a mask (B, K), or flat (N, C) with bag_sizes (B,).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from itertools import product
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, overload

import numpy as np
import numpy.typing as npt

from fastbus.errors import InputError, SupervisionError, choice
from fastbus.oracle_definitions import (
    Array,
    Bag,
    Factor,
    Factors,
    Jeffrey,
    Likelihood,
    Mean,
    as_array,
    factors,
    pair_similarity,
    unlabeled_set,
)

if TYPE_CHECKING:
    import torch

    Predictions: TypeAlias = torch.Tensor | Array | list[Any]


class LabellingTable(NamedTuple):
    """Every labelling of one bag (under a sigmoid head: of one class of it) and its log Q."""

    labellings: npt.NDArray[np.int64]  # (M, K), in lexicographic order
    log_prob: npt.NDArray[np.float64]  # (M,); nan where the weak label is impossible


class EnumeratedPosterior(NamedTuple):
    """The exact posterior Q over the labellings of every bag; flat where the logits were."""

    labels: npt.NDArray[np.float64]  # (B, K, C): P(y_kc = 1 | x, w); 0 if masked, nan if impossible
    log_likelihood: npt.NDArray[np.float64]  # (B,); -inf where impossible
    map_labels: npt.NDArray[np.int64]  # (B, K), sigmoid (B, K, C); -1 where masked or impossible
    map_log_prob: npt.NDArray[np.float64]  # (B,): log Q of that labelling; nan where impossible
    tables: list[list[LabellingTable]]  # for each bag one table, under a sigmoid head one a class
    mask: npt.NDArray[np.bool_]  # (B, K): True for real instances

    def log_posterior_of(self, labels: Any) -> npt.NDArray[np.float64]:
        """Log Q (B,) of a given labelling of every bag, shaped as `map_labels`."""
        labels = as_array(labels)
        rows = labels if self.labels.ndim == 2 else labels[self.mask]  # (N,) or (N, C)
        bags = np.split(rows, np.cumsum(self.mask.sum(axis=1))[:-1])
        return np.array([_look_up(*pair) for pair in zip(self.tables, bags, strict=True)])


def _look_up(tables: list[LabellingTable], labels: Array) -> float:
    """Log Q of one bag's labelling: (K,), or (K, C) with one table a class."""
    columns = labels.reshape(len(labels), len(tables)).T
    found = 0.0
    for table, column in zip(tables, columns, strict=True):
        same = (table.labellings == column).all(axis=1)
        found += float(table.log_prob[same].sum()) if same.any() else -np.inf
    return found


@overload
def enumerate_posterior(
    supervision: Any,
    logits: Predictions,
    weak: Any,
    mask: Any = None,
    *,
    bag_sizes: Any = None,
    head: str = "softmax",
    inputs: str = "logits",
) -> EnumeratedPosterior: ...


@overload
def enumerate_posterior(
    supervision: Any,
    logits: tuple[Predictions, Predictions],
    weak: Any,
    mask: Any = None,
    *,
    bag_sizes: Any = None,
    head: str = "softmax",
    inputs: str = "logits",
) -> tuple[EnumeratedPosterior, EnumeratedPosterior]: ...


def enumerate_posterior(
    supervision: Any,
    logits: Any,
    weak: Any,
    mask: Any = None,
    *,
    bag_sizes: Any = None,
    head: str = "softmax",
    inputs: str = "logits",
) -> EnumeratedPosterior | tuple[EnumeratedPosterior, EnumeratedPosterior]:
    """The posterior of the instance labels given weak labels, by summing over all labellings.

    Arguments are those of `infer`. A sum of losses over differently grouped bags (similar,
    dissimilar, unlabelled) takes tuples (pairs, sets) and returns one posterior for each.
    """
    choice(head, ("softmax", "sigmoid"), "head", InputError)
    choice(inputs, ("logits", "probs", "log_probs"), "inputs", InputError)
    weak = _arrays(weak)
    if type(supervision).__name__ != "SimilarDissimilarUnlabeled":
        return _enumerate(lambda bag: factors(supervision, bag, weak), logits, mask, bag_sizes, head, inputs)
    masks = mask if mask is not None else (None, None)
    sizes = bag_sizes if bag_sizes is not None else (None, None)

    def part(i: int, define: Callable[[Any, Bag, Array], Factors]) -> EnumeratedPosterior:
        return _enumerate(
            lambda bag: define(supervision, bag, weak[i]),
            *(logits[i], masks[i], sizes[i], head, inputs),
        )

    return part(0, pair_similarity), part(1, unlabeled_set)


def _arrays(weak: Any) -> Any:
    """Weak labels as numpy; those of a combination stay a tuple."""
    return tuple(_arrays(part) for part in weak) if isinstance(weak, tuple) else as_array(weak)


def _enumerate(
    define: Callable[[Bag], Factors], logits: Any, mask: Any, bag_sizes: Any, head: str, inputs: str
) -> EnumeratedPosterior:
    """The posterior of every bag, where `define` says what its weak label means."""
    predictions, real = _padded(as_array(logits), mask, bag_sizes)
    log_prob = _log_prob(predictions, head, inputs)  # (B, K, channels, Y)
    B, K, C = predictions.shape
    channels, num_labels = log_prob.shape[2:]
    rows = np.cumsum(real).reshape(B, K) - 1

    labels = np.zeros((B, K, C))
    log_likelihood = np.zeros(B)
    map_labels = np.full((B, K, channels), -1)
    map_log_prob = np.zeros(B)
    tables: list[list[LabellingTable]] = [[] for _ in range(B)]
    for b in range(B):
        slots = np.flatnonzero(real[b])
        every = _labellings(len(slots), num_labels)  # (M, K)
        for c in range(channels):
            bag = Bag(
                labels=every,
                num_classes=C,
                channel=c if head == "sigmoid" else None,
                index=b,
                slots=slots,
                rows=rows[b, slots],
                num_instances=int(real.sum()),
            )
            log_prior = log_prob[b, slots, c][np.arange(len(slots)), every].sum(axis=1)
            log_q, bag_log_likelihood = _condition(log_prior, list(define(bag)))
            best = int(np.argmax(log_q))
            log_likelihood[b] += bag_log_likelihood
            map_labels[b, slots, c] = every[best]
            map_log_prob[b] += log_q[best]
            tables[b].append(LabellingTable(every, log_q.astype(float)))
            q = np.exp(log_q)[:, None]
            if head == "sigmoid":
                labels[b, slots, c] = (q * every).sum(axis=0)
            else:
                for label in range(C):
                    labels[b, slots, label] = (q * (every == label)).sum(axis=0)
        if np.isneginf(log_likelihood[b]):  # one impossible class is enough
            labels[b, slots], map_labels[b, slots], map_log_prob[b] = np.nan, -1, np.nan

    if head == "softmax":
        map_labels = map_labels[:, :, 0]
    if bag_sizes is not None:
        labels, map_labels = labels[real], map_labels[real]
    return EnumeratedPosterior(labels, log_likelihood, map_labels, map_log_prob, tables, real)


def _padded(predictions: Array, mask: Any, bag_sizes: Any) -> tuple[Array, Array]:
    """Predictions (B, K, C) and where instances are real (B, K), from either layout."""
    if bag_sizes is None:
        if predictions.ndim != 3:
            raise InputError(
                f"predictions of shape {predictions.shape}; expected (B, K, C), or (N, C) with "
                "bag_sizes. Pass bag_sizes."
            )
        everything = np.ones(predictions.shape[:2], bool)
        return predictions, everything if mask is None else as_array(mask).astype(bool)
    sizes = as_array(bag_sizes)
    if predictions.ndim != 2 or sizes.sum() != len(predictions) or mask is not None:
        raise InputError(
            f"predictions of shape {predictions.shape} with bag sizes summing to {sizes.sum()}; "
            "expected (N, C), N in all and no mask. Pass either bag_sizes or a mask."
        )
    real = np.arange(sizes.max(initial=0)) < sizes[:, None]
    padded = np.zeros((*real.shape, predictions.shape[1]))
    padded[real] = predictions
    return padded, real


@np.errstate(all="ignore")  # padding may hold anything; log 0 = -inf is meant
def _log_prob(predictions: Array, head: str, inputs: str) -> Array:
    """log p(y): softmax (B, K, 1, C), sigmoid (B, K, C, 2)."""
    x = predictions.astype(np.longdouble)
    if head == "softmax":
        scores = np.log(x) if inputs == "probs" else x
        certain = np.isposinf(scores)
        only = np.where(certain, 0, -np.inf)
        scores = np.where(certain.any(axis=-1, keepdims=True), only, scores)
        return (scores - _logsumexp(scores)[..., None])[:, :, None, :]
    if inputs == "probs":
        no, yes = np.log1p(-x), np.log(x)
    elif inputs == "log_probs":
        no, yes = np.log(-np.expm1(x)), x
    else:
        no, yes = -np.logaddexp(0, x), -np.logaddexp(0, -x)
    return np.stack([no, yes], axis=-1)


@lru_cache(maxsize=256)
def _labellings(size: int, num_labels: int) -> npt.NDArray[np.int64]:
    """All num_labels**size labellings, (M, size), shared and therefore read-only."""
    every = np.array(list(product(range(num_labels), repeat=size)), np.int64)
    every.flags.writeable = False
    return every


@np.errstate(divide="ignore")  # log 0 = -inf is meant
def _logsumexp(values: Array) -> Array:
    """Over the last axis; -inf where nothing has weight."""
    top = values.max(axis=-1, keepdims=True, initial=-np.inf)
    top = np.where(np.isneginf(top), 0, top)
    return np.asarray(np.log(np.exp(values - top).sum(axis=-1)) + top[..., 0])


@np.errstate(divide="ignore")
def _condition(log_prior: Array, said: list[Factor]) -> tuple[Array, float]:
    """log Q over the labellings (M,) and the log-likelihood; nan and -inf where impossible."""
    soft = [factor for factor in said if not isinstance(factor, Likelihood)]
    if len(soft) > 1:
        raise SupervisionError(
            f"{len(soft)} soft labels (Jeffrey's rule or a mean) on one bag; expected at most one, "
            'because two do not commute. Use soft="virtual" for the others.'
        )
    log_joint = log_prior
    for factor in said:
        if isinstance(factor, Likelihood):
            log_joint = log_joint + np.log(factor.chance.astype(np.longdouble))
    log_likelihood = _logsumexp(log_joint)
    if not np.isneginf(log_likelihood):
        log_q = log_joint - log_likelihood
        for factor in soft:
            log_q, gain = _redistribute(log_q, factor)
            log_likelihood = log_likelihood + gain
    if np.isneginf(log_likelihood):
        return np.full(log_prior.shape, np.nan), -np.inf
    return log_q, float(log_likelihood)


@np.errstate(divide="ignore")
def _redistribute(log_q: Array, factor: Jeffrey | Mean) -> tuple[Array, float]:
    """Give the state a new distribution R and keep Q(labelling | state): Jeffrey's rule.

    The log-likelihood gains sum R log Q(state), for a mean constraint -KL(R || Q(state)).
    """
    state, target = factor
    low = min(0, state.min())
    values = np.arange(low, max(state.max() + 1, np.size(target)))
    log_mass = np.array([_logsumexp(log_q[state == value]) for value in values])
    if isinstance(factor, Mean):
        log_new = _nearest_with_mean(values, log_mass, factor.target)
    else:
        new = np.zeros(len(values), np.longdouble)
        new[: np.size(target)] = target
        log_new = np.log(new / new.sum())
    given = ~np.isneginf(log_new)
    if not given.any() or np.isneginf(log_mass[given]).any():
        return log_q, -np.inf
    new = np.exp(log_new[given])
    gain = new @ (log_mass[given] - (log_new[given] if isinstance(factor, Mean) else 0))
    change = np.full(len(values), -np.inf, np.longdouble)
    change[given] = log_new[given] - log_mass[given]
    return log_q + change[state - low], float(gain)


def _nearest_with_mean(values: Array, log_mass: Array, mean: float) -> Array:
    """log of the distribution with that mean nearest in KL: mass * e^(theta value), by bisection.

    At an end of the support all mass is there (theta is infinite); beyond it nothing has any.
    """
    nearest = np.full(len(values), -np.inf, np.longdouble)
    possible = np.flatnonzero(~np.isneginf(log_mass))
    lowest, highest = possible[0], possible[-1]
    for end in (lowest, highest):
        if abs(values[end] - mean) <= 1e-14 * len(values):  # n * prior is rounded
            nearest[end] = 0
            return nearest
    if not values[lowest] < mean < values[highest]:
        return nearest
    distance = values[possible] - np.longdouble(mean)

    def tilted(theta: np.longdouble) -> Array:
        scores = log_mass[possible] + theta * distance
        return np.asarray(scores - _logsumexp(scores))

    low, high = np.longdouble(-1), np.longdouble(1)
    while np.exp(tilted(low)) @ distance > 0:
        low *= 2
    while np.exp(tilted(high)) @ distance < 0:
        high *= 2
    while high - low > 4 * np.finfo(np.longdouble).eps * (1 + abs(low) + abs(high)):
        middle = (low + high) / 2
        if np.exp(tilted(middle)) @ distance < 0:
            low = middle
        else:
            high = middle
    nearest[possible] = tilted((low + high) / 2)
    return nearest
