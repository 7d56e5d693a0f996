"""State evolution: a module that learns U, for every state a distribution over the next label.

    features (B, L, E') -> adaptive pooling to E -> Q (B, L, C, E), K and V (B, L, S, E)
    A = softmax(Q K' / sqrt(E)) (B, L, C, S) -> F + A V (F broadcast over the C chains)
    -> transformer encoder along L, its activation a Gumbel-softmax (temperature 1) over features
    -> Linear, PReLU, Linear -> scores (B, L, C, Z, Y)
    -> log U = log softmax((t * logit + scores + gate * Gumbel noise) / t), t = 0.5, in training; no noise otherwise

The last layer and the gate start at 0, so a fresh module is exact inference, in training mode too. Next states follow
from the rule's step: a softmax over next states could not tell labels apart that lead to the same state. Labels of
probability 0 keep it. Padding is neither attended to nor given noise, so it changes no result (on a GPU the noise of
padding is drawn and dropped, so that a seed gives other noise with other padding).

Memory, in numbers kept for the gradient, for T = B L C tokens: at most
    T (10 E + 5 F + S + 4 H L + 4 Z Y) + B L (E' + E + 4 S E)        (E embed, F hidden, S keys, H heads)
beside the messages of `fastbus.inference.evolved`. Z is that of the batch, not the largest a module knows.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as fn

from fastbus.errors import InputError, choice
from fastbus.numerics import log_softmax

Variant = Literal["full", "mlp", "no_attention", "relu", "gelu"]
VARIANTS = ("full", "mlp", "no_attention", "relu", "gelu")
Along = Literal["instances", "categories"]
TEMPERATURE = 0.5


def gumbel_like(x: Tensor, real: Tensor) -> Tensor:
    """Standard Gumbel noise where `real` (leading axes of x) holds, 0 elsewhere: padding gets none."""
    if x.device.type != "cpu":
        # counting the real ones would wait for the device: draw for all, and take the padding's away
        noise = -torch.empty_like(x).exponential_().log()
        return noise.masked_fill(~real.reshape(real.shape + (1,) * (x.dim() - real.dim())), 0.0)
    drawn = -torch.empty(int(real.sum()), *x.shape[real.dim() :], dtype=x.dtype, device=x.device).exponential_().log()
    return torch.zeros_like(x).index_put((real,), drawn)


class EncoderLayer(nn.Module):
    """Attention along L, then a feed-forward whose activation is a Gumbel-softmax over its features."""

    def __init__(self, embed: int, hidden: int, heads: int, activation: str) -> None:
        super().__init__()
        self.heads = heads
        self.activation = activation
        self.project = nn.Linear(embed, 3 * embed)
        self.join = nn.Linear(embed, embed)
        self.widen = nn.Linear(embed, hidden)
        self.narrow = nn.Linear(hidden, embed)
        self.norms = nn.ModuleList([nn.LayerNorm(embed), nn.LayerNorm(embed)])

    def forward(self, x: Tensor, real: Tensor) -> Tensor:
        """x (N, L, E) with real (N, L)."""
        N, L, E = x.shape
        query, key, value = self.project(x).reshape(N, L, 3, self.heads, E // self.heads).permute(2, 0, 3, 1, 4)
        seen = fn.scaled_dot_product_attention(query, key, value, attn_mask=real[:, None, None, :])
        x = self.norms[0](x + self.join(seen.transpose(1, 2).reshape(N, L, E)))
        y: Tensor = self.norms[1](x + self.narrow(self._activate(self.widen(x), real)))
        return y

    def _activate(self, x: Tensor, real: Tensor) -> Tensor:
        if self.activation == "relu":
            return fn.relu(x)
        if self.activation == "gelu":
            return fn.gelu(x)
        return torch.softmax(x + gumbel_like(x, real) if self.training else x, -1)


class StateEvolution(nn.Module):
    """Scores of the next label for every state of every chain, from the features of a bag.

    num_features: E', of an instance (all axes behind the first two are flattened). num_chains: C, one a class, or 1
        for rules that read class indices. num_states: the most states a batch may need. num_labels: Y.
    along: what a chain runs over: the instances of a bag, or the categories of one instance (num_chains of them),
        which the kinds without a rule need: see `fastbus.inference.evolved`.
    variant: "full"; for ablations "mlp" (no attention, no encoder), "no_attention" (the queries themselves instead of
        what they attend to), "relu" and "gelu" (another activation in the encoder).
    `build_evolution` reads the sizes off a batch.
    """

    def __init__(
        self,
        num_features: int,
        num_chains: int,
        num_states: int,
        num_labels: int = 2,
        *,
        along: Along = "instances",
        variant: Variant = "full",
        embed: int = 64,
        keys: int = 8,
        hidden: int = 128,
        heads: int = 4,
        depth: int = 1,
    ) -> None:
        super().__init__()
        choice(variant, VARIANTS, "variant", InputError)
        choice(along, ("instances", "categories"), "along", InputError)
        sizes = {"num_features": num_features, "num_chains": num_chains, "num_states": num_states}
        sizes |= {"num_labels": num_labels, "embed": embed, "keys": keys, "hidden": hidden, "heads": heads}
        for name, value in sizes.items():
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise InputError(f"{name}={value!r}; expected an integer from 1. Give the size of that axis.")
        if embed % heads:
            raise InputError(f"embed={embed} with heads={heads}; expected a multiple. Pass e.g. embed=64, heads=4.")
        self.num_features, self.num_chains = num_features, num_chains
        self.num_states, self.num_labels = num_states, num_labels
        self.along, self.variant = along, variant
        self.embed, self.keys, self.hidden, self.heads, self.depth = embed, keys, hidden, heads, depth
        self.query = nn.Linear(embed, num_chains * embed)
        attends = variant not in ("mlp", "no_attention")
        self.key = nn.Linear(embed, keys * embed) if attends else None
        self.value = nn.Linear(embed, keys * embed) if attends else None
        activation = variant if variant in ("relu", "gelu") else "gumbel"
        layers = [EncoderLayer(embed, hidden, heads, activation) for _ in range(0 if variant == "mlp" else depth)]
        self.encoder = nn.ModuleList(layers)
        self.head = nn.Sequential(nn.Linear(embed, hidden), nn.PReLU())
        self.last = nn.Linear(hidden, num_states * num_labels)
        nn.init.zeros_(self.last.weight)
        nn.init.zeros_(self.last.bias)
        self.gate = nn.Parameter(torch.zeros(()))

    def extra_repr(self) -> str:
        return (
            f"num_features={self.num_features}, num_chains={self.num_chains}, num_states={self.num_states}, "
            f"num_labels={self.num_labels}, along={self.along!r}, variant={self.variant!r}"
        )

    def forward(self, features: Tensor, real: Tensor, num_states: int | None = None) -> Tensor:
        """Scores (B, L, C, Z, Y) of features (B, L, ...) with real (B, L), for the first `num_states` states."""
        Z = self._checked_states(num_states)
        x = self._classes(self._pooled(features, real))  # (B, L, C, E)
        # the encoder's sequence: the instances of every chain, or the categories of every instance
        swap = self.along == "instances"
        places = x.transpose(1, 2) if swap else x
        open_to = real[:, :, None].expand(x.shape[:3])
        open_to = (open_to.transpose(1, 2) if swap else open_to).flatten(0, 1)
        encoded = places.flatten(0, 1)
        for layer in self.encoder:
            encoded = layer(encoded, open_to)
        encoded = encoded.reshape(places.shape)
        x = encoded.transpose(1, 2) if swap else encoded  # (B, L, C, E)
        used = Z * self.num_labels
        scores = fn.linear(self.head(x), self.last.weight[:used], self.last.bias[:used])
        return scores.reshape(*scores.shape[:3], Z, self.num_labels)

    def log_labels(self, base: Tensor, features: Tensor, real: Tensor) -> Tensor:
        """log U (B, L, C, Z, Y) from the predictions' log probabilities `base`, (B, L, C, Z, Y)."""
        if self.gate.device != base.device:
            self.to(base.device)  # losses are seldom moved by hand
        scores = self(features, real, int(base.shape[3]))
        if scores.shape != base.shape:
            raise InputError(
                f"an evolution of {tuple(scores.shape[2:])} chains, states and labels; expected "
                f"{tuple(base.shape[2:])} for this supervision, head and number of classes. Build it with "
                "build_evolution."
            )
        if self.training:
            scores = scores + self.gate * gumbel_like(scores, real)
        # t * logit / t is the logit itself, and a softmax does not see a row's constant
        return log_softmax(base + scores.to(base.dtype) / TEMPERATURE, -1)

    def numbers_kept(self, B: int, L: int, Z: int) -> int:
        """The bound on memory that this file states."""
        tokens = B * L * self.num_chains
        length = self.num_chains if self.along == "categories" else L
        per_token = 10 * self.embed + 5 * self.hidden + self.keys + 4 * self.heads * length + 4 * Z * self.num_labels
        return tokens * per_token + B * L * (self.num_features + self.embed + 4 * self.keys * self.embed)

    def _pooled(self, features: Tensor, real: Tensor) -> Tensor:
        """(B, L, E), zeros at padding."""
        flat = features.flatten(2).to(self.last.weight.dtype)
        if flat.shape[-1] != self.num_features:
            raise InputError(
                f"{flat.shape[-1]} features an instance; expected {self.num_features}, as the evolution was built "
                "for. Build it for these features."
            )
        flat = flat.masked_fill(~real[..., None], 0.0)
        return fn.adaptive_avg_pool1d(flat, self.embed)

    def _classes(self, pooled: Tensor) -> Tensor:
        """What each chain reads off an instance, (B, L, C, E)."""
        B, L, E = pooled.shape
        query = self.query(pooled).reshape(B, L, self.num_chains, E)
        if self.key is None or self.value is None:
            own: Tensor = pooled.unsqueeze(2) + query
            return own
        key = self.key(pooled).reshape(B, L, self.keys, E)
        value = self.value(pooled).reshape(B, L, self.keys, E)
        attention = torch.softmax(query @ key.transpose(2, 3) / math.sqrt(E), -1)  # (B, L, C, S)
        attended: Tensor = pooled.unsqueeze(2) + attention @ value
        return attended

    def _checked_states(self, num_states: int | None) -> int:
        Z = self.num_states if num_states is None else num_states
        if self.num_states < Z:
            raise InputError(
                f"a batch of {Z} states with an evolution of {self.num_states}; expected at most that many. Build it "
                "for larger bags, e.g. build_evolution(..., max_bag_size=...)."
            )
        return Z
