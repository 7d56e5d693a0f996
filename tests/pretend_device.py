"""A device that is not there, for machines without a GPU: what would lie on it is marked, and mixing it is refused.

Numbers are computed on the CPU all the same. Within `PretendDevice`, tensors that are moved to "cuda" or made there,
and what is computed of them, count as lying there; operations on tensors of both places raise, as they would on a GPU,
and within `PretendDevice.step` copies from one to the other do, too, for a captured step must not wait for them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

THERE = torch.device("cuda")
COPIES = (torch.ops.aten.copy_.default, torch.ops.aten._to_copy.default)
CHOSEN_INSIDE = (torch.quantile, Tensor.quantile)  # make tensors where their input lies, below what is seen here
NumberSource = torch.Generator


class Numbers(NumberSource):
    """A generator that says it belongs to a device."""

    def __new__(cls, device: Any = "cpu") -> Numbers:
        made = NumberSource.__new__(cls)
        made.place = torch.device(device)
        return made

    def __init__(self, device: Any = "cpu") -> None:
        super().__init__()

    @property
    def device(self) -> torch.device:
        return self.place


class PretendDevice(TorchDispatchMode):
    """Follows tensors through every operation."""

    def __init__(self) -> None:
        super().__init__()
        self.marked: dict[int, Any] = {}  # storages, kept so that no other one gets their number
        self.stepping = False

    @contextmanager
    def here(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[PretendDevice]:
        """As long as it lasts, "cuda" is a device like any other."""

        def move(module: nn.Module, *args: Any, **kwargs: Any) -> nn.Module:
            for x in (*module.parameters(), *module.buffers()):
                self.mark(x)
            return module

        with monkeypatch.context() as patch, ExitStack() as modes:
            patch.setattr(torch, "Generator", Numbers)
            patch.setattr(nn.Module, "to", move)
            modes.enter_context(_Moves(self))
            modes.enter_context(self)
            yield self

    @contextmanager
    def step(self) -> Iterator[None]:
        self.stepping = True
        yield
        self.stepping = False

    def mark(self, x: Tensor) -> Tensor:
        storage = x.untyped_storage()
        self.marked[storage._cdata] = storage
        return x

    def holds(self, x: Tensor) -> bool:
        return x.untyped_storage()._cdata in self.marked

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        tensors = [x for x in tree_leaves((args, kwargs or {})) if isinstance(x, Tensor)]
        there = [x for x in tensors if self.holds(x)]
        # a number from the host may join, but not an array
        left = [tuple(x.shape) for x in tensors if x.dim() and not self.holds(x)]
        if there and left and (self.stepping or func not in COPIES):
            raise AssertionError(f"{func} mixes devices: tensors {left} were left on the host")
        out = func(*args, **(kwargs or {}))
        if there and func is not torch.ops.aten.copy_.default:
            for x in tree_leaves(out):
                if isinstance(x, Tensor):
                    self.mark(x)
        return out


class _Moves(TorchFunctionMode):
    """What names a device, or asks for it."""

    def __init__(self, device: PretendDevice) -> None:
        super().__init__()
        self.device = device

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if func is Tensor.to:
            return self._moved(*args, **kwargs)
        if func is Tensor.cpu:
            return self._moved(args[0], "cpu")
        if func == Tensor.device.__get__:
            return THERE if self.device.holds(args[0]) else torch.device("cpu")
        if func in CHOSEN_INSIDE:
            return self._moved(func(self._moved(args[0], "cpu"), *args[1:], **kwargs), args[0])
        wanted = kwargs.get("device")
        if wanted is None or torch.device(wanted).type != THERE.type:
            return func(*args, **kwargs)
        return self.device.mark(func(*args, **kwargs | {"device": "cpu"}))

    def _moved(self, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        place, dtype = kwargs.pop("device", None), kwargs.pop("dtype", None)
        for arg in args:
            if isinstance(arg, Tensor):
                place, dtype = THERE if self.device.holds(arg) else "cpu", arg.dtype
            elif isinstance(arg, torch.dtype):
                dtype = arg
            else:
                place = arg
        with torch._C.DisableTorchFunction():
            held = self.device.holds(x)
            if place is None or (torch.device(place).type == THERE.type) == held:
                return x.to(dtype=dtype or x.dtype, **kwargs)
            if self.device.stepping:
                raise AssertionError(f"a tensor {tuple(x.shape)} is moved to {place} within a step")
            if not held:
                return self.device.mark(x.to(dtype or x.dtype, copy=True))
            storage = self.device.marked.pop(x.untyped_storage()._cdata)
            out = x.to(dtype or x.dtype, copy=True)
            self.device.marked[storage._cdata] = storage
            return out
