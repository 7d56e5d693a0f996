"""Seconds on a GPU alone: a call captured as a CUDA graph and replayed, so that the host's pace does not show.

One call a graph shows what a training step sees, launch of the graph included. Small graphs end before the host can
launch the next one; several calls in one graph show what the device itself needs for each.
"""

from __future__ import annotations

import warnings

import torch
from torch import Tensor

from fastbus.bench.speed.timing import Call, Timing, summary

BURST = 20  # replays between two readings of the device's clock
SEVERAL = 20  # calls in one graph


def replayed(call: Call, calls: int = 1, samples: int = 30) -> Timing | str:
    """Seconds a call, so many of them in a graph; where the call cannot be captured, the reason in one line."""
    stream = torch.cuda.current_stream()
    try:
        graph = _captured(call, calls)
    except Exception as error:  # whatever the call's code raises when it must not wait for the device
        torch.cuda.set_stream(stream)  # a capture that fails leaves its own one behind
        torch.cuda.synchronize()
        return " ".join(str(error).split())[:160] or type(error).__name__
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    for _ in range(BURST):
        graph.replay()
    seconds = []
    for _ in range(samples):
        torch.cuda.synchronize()
        begin.record()
        for _ in range(BURST):
            graph.replay()
        end.record()
        end.synchronize()
        seconds.append(begin.elapsed_time(end) / 1e3 / BURST / calls)
    return summary(seconds)


def _captured(call: Call, calls: int) -> torch.cuda.CUDAGraph:
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            call()
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with warnings.catch_warnings(), torch.cuda.graph(graph):
        warnings.filterwarnings("ignore", message="The CUDA Graph is empty")  # of a capture that fails
        for _ in range(calls):
            call()
    return graph


def empty_and_copy(logits: Tensor) -> Call:
    """The least an E-step could be: one launch, and predictions read and posteriors written."""
    from fastbus.bench.speed.device_kernels import launch_empty

    answer, place = torch.empty_like(logits), torch.zeros(1, device=logits.device)

    def call() -> None:
        launch_empty(place)
        answer.copy_(logits)

    return call
