"""Networks that compute in bfloat16 on a CPU: the same steps within its rounding, nothing else in low precision."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

import fastbus
from baselines import better_than_majority
from fastbus.errors import InputError
from fastbus.methods.registry import objective_of
from fastbus.training.image_run import ImageRun
from fastbus.training.recipes import Recipe

RECIPE = Recipe(backbone="small_cnn", epochs=6, rows=64, learning_rate=0.1, warmup=5)
DATA = load_digits()
IMAGES = torch.from_numpy((DATA.images * 15.9).astype(np.uint8))[:, None]


def noisy_run(recipe: Recipe, **settings: object) -> ImageRun:
    rng = np.random.default_rng(0)
    truth = DATA.target[:1400]
    noisy = np.where(rng.random(1400) < 0.2, (truth + rng.integers(1, 10, 1400)) % 10, truth)
    weak = torch.from_numpy(noisy).long()
    return ImageRun(
        fastbus.NoisyLabel(rate=0.2), IMAGES[:1400], torch.ones(1400, dtype=torch.long), weak, num_classes=10,
        recipe=recipe, flip=False, **settings,
    )  # fmt: skip


def weights(run: ImageRun) -> Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in run.training.network.parameters()])


def test_one_pass_differs_by_rounding_alone() -> None:
    fine, coarse = (noisy_run(RECIPE.replace(learning_rate=0.01, bf16=bf16)) for bf16 in (False, True))
    start = weights(fine)
    assert torch.equal(start, weights(coarse))
    fine.run_epoch()
    coarse.run_epoch()
    way, gap = weights(fine) - start, weights(coarse) - weights(fine)
    assert 0 < gap.norm() < 0.05 * way.norm()  # a number of bfloat16 has 8 bits: .4 %, and 22 steps add up


def test_only_networks_compute_in_bfloat16() -> None:
    seen: dict[str, torch.dtype] = {}
    run = noisy_run(RECIPE.replace(bf16=True, epochs=1))
    inner = run.training.objective

    def watched(inputs: object) -> Tensor:
        logits = inputs.network(inputs.weak)  # type: ignore[attr-defined]
        seen["logits"] = logits.dtype
        return inner(inputs)

    convolution = next(m for m in run.training.network.modules() if isinstance(m, nn.Conv2d))
    convolution.register_forward_hook(lambda module, given, out: seen.__setitem__("convolution", out.dtype))
    watched.learned, watched.rates, watched.state = inner.learned, inner.rates, inner.state  # type: ignore[attr-defined]
    run.training.objective = watched  # type: ignore[assignment]
    run.run_epoch()
    assert seen == {"logits": torch.float32, "convolution": torch.bfloat16}
    assert {p.dtype for p in run.training.network.parameters()} == {torch.float32}
    assert run.predict(IMAGES[:5]).dtype == torch.float32


@pytest.mark.parametrize("method", [None, "dividemix"])
def test_it_learns_and_goes_on_as_if_it_had_never_stopped(method: str | None) -> None:
    make: Callable[..., object] | None = None if method is None else objective_of(method)
    recipe = RECIPE.replace(bf16=True)
    whole, first, second = (noisy_run(recipe, objective=make) for _ in range(3))
    while not whole.done:
        whole.run_epoch()
    for _ in range(2):
        first.run_epoch()
    second.load_state_dict(first.state_dict())
    while not second.done:
        second.run_epoch()
    assert torch.equal(weights(whole), weights(second))
    found = whole.predict(IMAGES[1400:]).argmax(1).numpy()
    assert better_than_majority(found, DATA.target[1400:]) > 0.75


def test_the_estimator_takes_it_as_an_entry_of_the_recipe() -> None:
    images = IMAGES.numpy()
    clf = fastbus.WeakClassifier("partial_label", recipe={"bf16": True}, epochs=3, random_state=0)
    candidates = fastbus.weaken("partial_label", DATA.target[:600], rng=0, ratio=0.3)
    clf.fit(images[:600], candidates)
    assert clf.recipe_["bf16"] is True
    with pytest.raises(InputError, match="bf16='yes'"):
        fastbus.WeakClassifier("partial_label", recipe={"bf16": "yes"}).fit(images[:600], candidates)
