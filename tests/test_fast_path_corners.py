"""Corners of the express way and of posteriors of fixed shape: what is rare must come out as on the ordinary path."""

import copy
import os
import pickle
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from typing import Any

import numpy as np
import pytest
import torch
from torch.autograd import forward_ad

import fastbus
from express_batches import assert_same, draw, every_kind, kernels, ordinary, quick
from fastbus.errors import FastbusError, InputError
from fastbus.inference.express_posterior import Kept
from fastbus.inference.fixed import Pairs, Step
from fastbus.inference.fixed_build import fixed_posterior
from fastbus.supervision.base import Supervision

CPU = torch.device("cpu")
NAN = float("nan")


# -- infer -------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch loads deprecated parts of its own
def test_forward_derivatives_of_parameters_are_not_lost_either() -> None:
    logits, counts = torch.zeros(2, 3, 2).requires_grad_(), torch.tensor([[1, 2], [3, 0]])
    for on in (True, False):
        with kernels(on), torch.no_grad(), forward_ad.dual_level():
            dual = forward_ad.make_dual(logits, torch.ones(2, 3, 2))
            with pytest.raises((RuntimeError, NotImplementedError)):
                fastbus.infer("label_proportion", dual, counts)


@pytest.mark.parametrize("dtype", [">f8", "longdouble"])
def test_arrays_that_torch_does_not_know_are_complained_about_as_ever(dtype: str) -> None:
    if np.dtype(dtype) == np.float64:
        pytest.skip("no longer numbers on this machine")
    said = []
    for on in (True, False):
        with kernels(on), pytest.raises(FastbusError) as caught:
            fastbus.infer("label_proportion", np.zeros((2, 3, 2), dtype), np.array([[1, 2], [3, 0]]))  # type: ignore[call-overload]
        said.append(str(caught.value))
    assert said[0] == said[1] and said[0].startswith("predictions")


def test_numbers_that_are_stored_with_the_other_sign() -> None:
    counts = torch.tensor([[1]])
    turned = torch.imag(torch.tensor([[[2.0 + 3.0j]]]).conj())
    assert turned.is_neg()
    plain = quick("label_proportion", torch.tensor([[[-3.0]]]), counts, head="sigmoid")
    assert_same(quick("label_proportion", turned, counts, head="sigmoid"), plain)


def test_a_budget_beyond_64_bits_is_a_budget() -> None:
    batch = draw("label_proportion", "softmax", seed=1)
    assert_same(quick(*batch.given, budget=10**30), ordinary(*batch.given, budget=10**30))


@pytest.mark.parametrize("setting", [{"NUMBA_DISABLE_JIT": "1"}, {"FASTBUS_KERNELS": "0"}])
def test_without_compiled_kernels_the_ordinary_path_answers(setting: dict[str, str]) -> None:
    code = (
        "import torch, fastbus\n"
        "post = fastbus.infer('label_proportion', torch.zeros(1, 2, 2), torch.tensor([[1, 1]]))\n"
        "assert type(post) is fastbus.Posterior and bool((post.labels == 0.5).all()), post"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env=os.environ | setting, timeout=300, check=False, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


@every_kind
def test_answers_are_plain_data(kind: str, head: str) -> None:
    batch = draw(kind, head, "masked", missing=0.3, seed=2)
    got, expected = quick(*batch.given, **batch.options), ordinary(*batch.given, **batch.options)
    entries, wanted = asdict(got), asdict(expected)
    assert set(entries) == set(wanted)
    assert torch.equal(entries["informed"], wanted["informed"]) and entries["coupling"] == wanted["coupling"]


@every_kind
def test_threads_do_not_disturb_each_other(kind: str, head: str) -> None:
    batches = [draw(kind, head, "flat", classes=9, seed=seed) for seed in range(8)]
    alone = [quick(*batch.given, **batch.options) for batch in batches]
    with ThreadPoolExecutor(8) as pool:
        together = list(pool.map(lambda batch: fastbus.infer(*batch.given, **batch.options), batches * 10))
    for number, post in enumerate(together):
        assert torch.equal(post.labels, alone[number % 8].labels)
        assert torch.equal(post.log_likelihood, alone[number % 8].log_likelihood)


def test_copies_of_kept_tensors_count_their_own_changes() -> None:
    x = torch.zeros(3)
    x.add_(1.0)  # written into before it is kept
    kept = Kept(x)
    for other in (copy.deepcopy(kept), pickle.loads(pickle.dumps(kept))):
        assert torch.equal(other.tensor(), torch.ones(3))
        other.x.zero_()
        with pytest.raises(InputError, match="written into"):
            other.tensor()
    x.zero_()
    with pytest.raises(InputError, match="written into"):
        copy.deepcopy(kept).tensor()


# -- posteriors of fixed shape -----------------------------------------------------------------


def step_of(rows: int, bags: int) -> Step:
    every = torch.arange(bags)
    return Step(torch.arange(rows), every, 2 * every, torch.full((bags,), 2))


SOFT: dict[str, tuple[Supervision, list[float]]] = {
    "similarity": (fastbus.SimilarityConfidence(), [0.9, NAN, 0.3, NAN]),
    "difference": (fastbus.ConfidenceDifference(), [0.9, NAN, -0.3, -0.9]),
}


@pytest.mark.parametrize("kind", SOFT)
@pytest.mark.parametrize("scale", [1.0, 12.0, 30.0])
def test_soft_pairs_with_missing_labels_and_sure_predictions_equal_infer(kind: str, scale: float) -> None:
    rule, said = SOFT[kind]
    weak, sizes = torch.tensor(said, dtype=torch.float64), torch.full((4,), 2)
    # pairs that are surely alike: the mean that is asked for lies in what is hardly left
    logits = scale * torch.tensor([[0.0, 1], [0, 1], [1, 0], [1, 0.2], [0, 1], [0.1, 1], [1, 0], [1, 0]]).double()
    posterior = fixed_posterior(rule, weak, sizes, 2, CPU)
    assert isinstance(posterior, Pairs)
    expected = fastbus.infer(rule, logits, weak, bag_sizes=sizes).labels
    torch.testing.assert_close(posterior(logits, step_of(8, 4)), expected.float(), rtol=0, atol=2e-6)


def test_a_row_left_over_beside_pairs_gets_anything() -> None:
    logits = torch.randn(7, 2, generator=torch.Generator().manual_seed(0))
    weak, sizes = torch.tensor([1, 0, 1]), torch.full((3,), 2)
    found = fixed_posterior(fastbus.PairSimilarity(), weak, sizes, 2, CPU)(logits, step_of(7, 4))
    assert found.shape == (7, 2) and bool(found.isfinite().all())
    expected = fastbus.infer("pair_similarity", logits[:6], weak, bag_sizes=sizes).labels
    torch.testing.assert_close(found[:6], expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("missing", [-1, NAN])
def test_rows_of_no_known_set_keep_their_predictions(missing: float) -> None:
    logits = torch.randn(30, 2, generator=torch.Generator().manual_seed(1)).double()
    sets = torch.tensor([0, 1, missing]).repeat(10)
    rule: Any = fastbus.UnlabeledUnlabeled((0.2, 0.7), constraint="mean")
    one = torch.ones(30, dtype=torch.long)
    every = torch.arange(30)
    found = fixed_posterior(rule, sets, one, 2, CPU)(logits, Step(every, every, every, one))
    unknown = every % 3 == 2
    torch.testing.assert_close(found[unknown], logits[unknown].softmax(1).float())
    assert abs(float(found[every % 3 == 1, 1].mean()) - 0.7) < 1e-6


def test_sets_that_are_not_there_are_complained_about() -> None:
    one = torch.ones(4, dtype=torch.long)
    with pytest.raises(FastbusError, match="unlabeled_unlabeled"):
        fixed_posterior(fastbus.UnlabeledUnlabeled((0.2, 0.7)), torch.tensor([0, 1, 2, 0]), one, 2, CPU)
    with pytest.raises(FastbusError, match="positive_unlabeled"):
        fixed_posterior(fastbus.PositiveUnlabeled(0.3), torch.tensor([1, 0, -1, -1]), one, 2, CPU)
