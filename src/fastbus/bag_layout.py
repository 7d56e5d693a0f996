"""How instances lie in bags: the caller's layout on one side, compact padded bags on the other.

Callers bring padded (B, K, ...) with a mask of any pattern, or flat (N, ...) with bag sizes.
Everything below works on compact bags (B, K, ...) whose real instances come first, in the caller's
order.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fastbus.errors import FastbusError, InputError, reject


def read_tensor(
    value: object,
    what: str,
    error: type[FastbusError],
    *,
    expected: str,
    cure: str,
    device: torch.device | None = None,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """`value` as a dense tensor, or an `error` where it does not hold numbers; frames are read by their `to_numpy`."""
    given = type(value).__name__
    if not isinstance(value, (np.ndarray, Tensor)) and hasattr(value, "to_numpy"):
        value = value.to_numpy()
    if isinstance(value, np.ndarray) and (not value.flags.writeable or any(stride < 0 for stride in value.strides)):
        value = value.copy()  # torch warns of the former and refuses the latter
    try:
        x = torch.as_tensor(value, device=device, dtype=dtype)
        return x if x.layout is torch.strided and not x.is_nested else x.to_dense()
    except (TypeError, ValueError, RuntimeError, LookupError) as problem:  # torch looks for an entry 0
        reason = str(problem).partition("\n")[0].rstrip(".")
        raise error(
            f"{what} of type {given} cannot be read as numbers ({reason}); expected {expected}. {cure}"
        ) from None


@dataclass(frozen=True)
class BagLayout:
    """Maps the caller's instances to compact padded bags and back."""

    sizes: Tensor  # (B,) real instances of each bag
    mask: Tensor  # (B, K) True where a real instance stands; all of them first
    index: Tensor | None  # (B, K) position among the caller's instances, None if they are in place
    shape: tuple[int, ...]  # the caller's instance axes: (B, K) or (N,)

    @property
    def num_bags(self) -> int:
        return int(self.sizes.shape[0])

    @property
    def max_size(self) -> int:
        return int(self.mask.shape[1])

    @property
    def flat(self) -> bool:
        return len(self.shape) == 1

    def compact(self, x: Tensor) -> Tensor:
        """Caller's (B, K, ...) or (N, ...) to compact (B, K, ...); padding holds arbitrary copies."""
        if self.index is None:
            return x
        return x.reshape(-1, *x.shape[len(self.shape) :])[self.index]

    def spread(self, per_bag: Tensor) -> Tensor:
        """A number of each bag (B,) to all its instances, in the caller's layout."""
        if self.flat:
            return per_bag.repeat_interleave(self.sizes)
        return per_bag[:, None].expand(self.shape)

    def restore(self, x: Tensor, fill: float) -> Tensor:
        """Compact (B, K, ...) to the caller's layout, `fill` where no instance stands."""
        trailing = x.shape[2:]
        mask = self.mask.reshape(self.mask.shape + (1,) * len(trailing))
        if self.index is None:
            return x.masked_fill(~mask, fill)
        out = x.new_full((int(torch.Size(self.shape).numel()), *trailing), fill)
        out = out.index_put((self.index[self.mask],), x[self.mask])
        return out.reshape(*self.shape, *trailing)


def layout_of(shape: tuple[int, ...], mask: object, bag_sizes: object, device: torch.device) -> BagLayout:
    """Read the layout off the leading axes of the predictions and the caller's mask or bag sizes."""
    if bag_sizes is not None and mask is not None:
        raise InputError(
            "both mask and bag_sizes were given; expected one of them. Pass mask with padded "
            "(B, K, C) predictions, bag_sizes with flat (N, C) ones."
        )
    if len(shape) == 2:
        return _flat_layout(shape[0], bag_sizes, device)
    if len(shape) != 3:
        raise InputError(
            f"predictions of shape {tuple(shape)}; expected (B, K, C), or (N, C) with bag_sizes. "
            "Add the missing axis, e.g. logits.unsqueeze(1) for bags of one instance."
        )
    if bag_sizes is not None:
        raise InputError(
            f"bag_sizes with predictions of shape {tuple(shape)}; expected flat (N, C). "
            "Pass mask for padded predictions."
        )
    return _padded_layout(shape[0], shape[1], mask, device)


def _padded_layout(B: int, K: int, mask: object, device: torch.device) -> BagLayout:
    if B == 0 or K == 0:
        raise InputError(
            f"predictions hold {B} bags of {K} instances; expected at least one of each. Leave empty batches out."
        )
    if mask is None:
        sizes = torch.full((B,), K, dtype=torch.long, device=device)
        return BagLayout(sizes, torch.ones(B, K, dtype=torch.bool, device=device), None, (B, K))
    flags = read_tensor(
        mask,
        "mask",
        InputError,
        expected=f"bool of shape ({B}, {K}), True where an instance is real",
        cure="Give one flag for each instance.",
        device=device,
    )
    if flags.dtype != torch.bool:
        raise InputError(
            f"mask of dtype {flags.dtype}; expected bool, True where an instance is real. Convert it with mask.bool()."
        )
    if flags.shape != (B, K):
        raise InputError(
            f"mask of shape {tuple(flags.shape)}; expected ({B}, {K}), as the predictions have. "
            "Give one flag for each instance."
        )
    sizes = flags.sum(1)
    if bool((sizes == 0).any()):
        reject(
            InputError,
            sizes == 0,
            got="mask leaves a bag without instances",
            expected="at least one real instance in every bag",
            cure="Drop empty bags before the call.",
        )
    compact = torch.arange(K, device=device) < sizes[:, None]
    longest = int(sizes.max())
    # columns that are padding in every bag are cut, or bags of one would not be known as such
    if longest == K and bool((compact == flags).all()):
        return BagLayout(sizes, compact, None, (B, K))
    order = torch.argsort((~flags).to(torch.int8), dim=1, stable=True)
    index = order + torch.arange(B, device=device)[:, None] * K
    return BagLayout(sizes, compact[:, :longest], index[:, :longest], (B, K))


def _flat_layout(N: int, bag_sizes: object, device: torch.device) -> BagLayout:
    if bag_sizes is None:
        raise InputError(
            "flat predictions (N, C) without bag_sizes; expected bag_sizes (B,), or padded "
            "(B, K, C) predictions. Pass bag_sizes=[1] * N if every instance is its own bag."
        )
    sizes = read_tensor(
        bag_sizes,
        "bag_sizes",
        InputError,
        expected="integers of shape (B,)",
        cure="Give one number a bag.",
        device=device,
    )
    if sizes.dim() != 1 or sizes.numel() == 0:
        raise InputError(f"bag_sizes of shape {tuple(sizes.shape)}; expected (B,) with B >= 1. Give one number a bag.")
    if sizes.is_floating_point() or sizes.is_complex() or sizes.dtype == torch.bool:
        raise InputError(f"bag_sizes of dtype {sizes.dtype}; expected integers. Convert them with .long().")
    sizes = sizes.long()
    if bool((sizes <= 0).any()):
        reject(
            InputError,
            sizes <= 0,
            got="bag_sizes holds a bag without instances",
            expected="sizes of at least 1",
            cure="Drop empty bags before the call.",
        )
    if int(sizes.sum()) != N:
        raise InputError(
            f"bag_sizes sum to {int(sizes.sum())}; expected {N}, the number of rows of the "
            "predictions. Give sizes that cover every row exactly once."
        )
    longest = int(sizes.max())
    steps = torch.arange(longest, device=device)
    mask = steps < sizes[:, None]
    starts = sizes.cumsum(0) - sizes
    index = (starts[:, None] + steps).masked_fill(~mask, 0)
    return BagLayout(sizes, mask, index, (N,))
