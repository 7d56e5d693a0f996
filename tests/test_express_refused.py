"""The express way through `infer` steps aside for whatever is not plain, and complaints stay those they were."""

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import forward_ad

import fastbus
from express_batches import kernels
from fastbus.errors import FastbusError
from fastbus.inference.express_posterior import QuickPosterior

NAN, INF = float("nan"), float("inf")

TWO = torch.zeros(2, 3, 2)
COUNTS = torch.tensor([[1, 2], [3, 0]])
MALFORMED: dict[str, Callable[[], Any]] = {
    "NaN": lambda: fastbus.infer("label_proportion", TWO + NAN, COUNTS),
    "NaN under sigmoid": lambda: fastbus.infer("multi_instance", TWO + NAN, COUNTS.clamp(max=1), head="sigmoid"),
    "several certain classes": lambda: fastbus.infer("label_proportion", TWO + INF, COUNTS),
    "sum of counts": lambda: fastbus.infer("label_proportion", TWO, torch.tensor([[1, 1], [3, 0]])),
    "count beyond": lambda: fastbus.infer("label_proportion", TWO, torch.tensor([[4, 1], [3, 0]]), head="sigmoid"),
    "negative count": lambda: fastbus.infer("label_proportion", TWO, torch.tensor([[-2, 1], [3, 0]]), head="sigmoid"),
    "no class": lambda: fastbus.infer("multi_instance", TWO, torch.tensor([[0, 0], [1, 1]])),
    "too many classes": lambda: fastbus.infer("multi_instance", TWO[:, :1], torch.tensor([[1, 1], [1, 0]])),
    "two": lambda: fastbus.infer("multi_instance", TWO, COUNTS, head="sigmoid"),
    "shape of weak": lambda: fastbus.infer("label_proportion", TWO, COUNTS[:, :1], head="sigmoid"),
    "binary weak": lambda: fastbus.infer("label_proportion", TWO, COUNTS[:, 0], head="sigmoid"),
    "no weak": lambda: fastbus.infer("label_proportion", TWO, None),
    "empty bag": lambda: fastbus.infer("label_proportion", TWO, COUNTS, torch.tensor([[True] * 3, [False] * 3])),
    "mask of numbers": lambda: fastbus.infer("label_proportion", TWO, COUNTS, torch.ones(2, 3)),
    "shape of mask": lambda: fastbus.infer("label_proportion", TWO, COUNTS, torch.ones(2, 2, dtype=torch.bool)),
    "sizes": lambda: fastbus.infer("label_proportion", TWO[0], COUNTS, bag_sizes=[1, 1]),
    "size of zero": lambda: fastbus.infer("label_proportion", TWO[0], COUNTS, bag_sizes=[3, 0]),
    "sizes and padding": lambda: fastbus.infer("label_proportion", TWO, COUNTS, bag_sizes=[3, 3]),
    "flat without sizes": lambda: fastbus.infer("label_proportion", TWO[0], COUNTS),
    "sizes and a mask": lambda: fastbus.infer("label_proportion", TWO[0], COUNTS, TWO[0] > 0, bag_sizes=[1, 2]),
    "no bags": lambda: fastbus.infer("label_proportion", TWO[:0], COUNTS[:0]),
    "no classes": lambda: fastbus.infer("label_proportion", TWO[..., :0], COUNTS[:, :0], head="sigmoid"),
    "one class": lambda: fastbus.infer("label_proportion", TWO[..., :1], COUNTS[:, :1]),
    "whole numbers as logits": lambda: fastbus.infer("label_proportion", TWO.long(), COUNTS),
    "four axes": lambda: fastbus.infer("label_proportion", TWO[None], COUNTS),
    "head": lambda: fastbus.infer("label_proportion", TWO, COUNTS, head="relu"),  # type: ignore[call-overload]
    "coupling": lambda: fastbus.infer("label_proportion", TWO, COUNTS, coupling="x"),  # type: ignore[call-overload]
    "tilted": lambda: fastbus.infer("label_proportion", TWO, COUNTS, coupling="tilted", head="sigmoid"),
    "inputs": lambda: fastbus.infer("label_proportion", TWO, COUNTS, inputs="odds"),  # type: ignore[call-overload]
    "on_impossible": lambda: fastbus.infer("label_proportion", TWO, COUNTS, on_impossible="x"),  # type: ignore[call-overload]
    "budget": lambda: fastbus.infer("label_proportion", TWO, COUNTS, budget=0),
    "beyond the budget": lambda: fastbus.infer("label_proportion", TWO, COUNTS, coupling="joint", budget=1),
    "rank": lambda: fastbus.infer("label_proportion", TWO, COUNTS, rank=0),
    "certain and impossible": lambda: fastbus.infer("label_proportion", TWO - INF, COUNTS, head="sigmoid"),
}


@pytest.mark.parametrize("name", MALFORMED)
def test_complaints_are_those_of_the_ordinary_path(name: str) -> None:
    messages = []
    for on in (True, False):
        with kernels(on), pytest.raises(FastbusError) as caught:
            MALFORMED[name]()
        messages.append((type(caught.value), str(caught.value)))
    assert messages[0] == messages[1]


def test_impossible_bags_are_dropped_all_the_same() -> None:
    weak = torch.tensor([[4, 1], [3, 0]])
    for on in (True, False):
        with kernels(on), pytest.warns(fastbus.ImpossibleEvidenceWarning):
            post = fastbus.infer("label_proportion", TWO, weak, head="sigmoid", on_impossible="ignore")
        assert post.ignored.tolist() == [True, False]


def test_other_cases_take_the_ordinary_path() -> None:
    scattered = torch.tensor([[False, True, True], [True, True, True]])
    odd = torch.tensor([[1, 1], [3, 0]])
    cases: list[fastbus.Posterior] = [
        fastbus.infer(fastbus.LabelProportion(noise={0: 0.9, 1: 0.1}), TWO, COUNTS),
        fastbus.infer(fastbus.LabelProportion(unit="fraction"), TWO, COUNTS / 3),
        fastbus.infer(fastbus.MultiInstance(noise=(0.1, 0.1)), TWO, COUNTS.clamp(max=1)),
        fastbus.infer("label_proportion", TWO, COUNTS, coupling="independent"),
        fastbus.infer("label_proportion", TWO, COUNTS, budget=1),
        fastbus.infer("label_proportion", TWO, odd, scattered),
        fastbus.infer("label_proportion", TWO.bfloat16(), COUNTS),
        fastbus.infer("label_proportion", TWO.softmax(-1), COUNTS, inputs="probs"),
        fastbus.infer("label_proportion", TWO, torch.tensor([2, 0])),
        fastbus.infer("label_proportion", TWO, COUNTS, rank=4),
    ]
    for number, post in enumerate(cases):
        assert not isinstance(post, QuickPosterior), number
        assert bool(post.labels.isfinite().all())


def test_a_kind_of_ones_own_is_not_mistaken() -> None:
    class AtLeast(fastbus.LabelProportion):
        def evidence(self, state: Tensor, weak: Tensor) -> Tensor:
            return state >= weak

    assert not isinstance(fastbus.infer(AtLeast(), TWO, COUNTS), QuickPosterior)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch loads deprecated parts of its own
def test_forward_derivatives_are_not_lost() -> None:
    """They are refused, as ever, instead of being dropped without a word."""
    for on in (True, False):
        with kernels(on), forward_ad.dual_level(), pytest.raises((RuntimeError, NotImplementedError)):
            fastbus.infer("label_proportion", forward_ad.make_dual(TWO, torch.ones_like(TWO)), COUNTS)


def test_compiler_is_loaded_on_the_first_call_only() -> None:
    code = (
        "import sys, torch, fastbus\n"
        "fastbus.infer('partial_label', torch.zeros(1, 1, 2), torch.tensor([[1, 0]]))\n"
        "before = 'numba' in sys.modules\n"
        "fastbus.infer('label_proportion', torch.zeros(1, 2, 2), torch.tensor([[1, 1]]))\n"
        "sys.exit(before or 'numba' not in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=300, check=False).returncode == 0
