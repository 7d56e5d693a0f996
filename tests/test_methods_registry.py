"""The registry of competing methods: complete, lazy, clear about what does not fit, and never waiting for a device."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

import fastbus
from digit_runs import method_run
from fastbus.errors import InputError
from fastbus.methods import MODULES, Method, get_method, method_names, methods_for, objective_of, register
from fastbus.methods.registry import METHODS, NEEDS
from fastbus.methods.table import END, START, methods_table, renewed
from fastbus.supervision.base import REGISTRY
from fastbus.training.image_run import ImageRun
from fastbus.training.step_objective import StepObjective
from pair_digits import PRIOR, pair_digits, pair_run
from test_image_run import QUICK, digits

ROOT = Path(__file__).resolve().parent.parent
WAITS = ("_local_scalar_dense", "nonzero", "masked_select", "unique", "equal", "bincount", "is_nonzero")


@pytest.mark.parametrize("name", method_names())
def test_every_method_says_what_it_is(name: str) -> None:
    method = get_method(name)
    assert method.name == name
    assert method.settings and set(method.settings) <= set(REGISTRY)
    assert set(method.needs).union(*method.needs_on.values()) <= set(NEEDS)
    assert set(method.needs_on) <= set(method.settings)
    assert method.title and method.differs.endswith(".")
    assert re.search(r"(19|20)\d\d", method.reference) or "baseline" in method.reference


def unknowing_run(setting: str) -> ImageRun:
    """Two classes of some digits; the supervision holds no fact that could be left out."""
    images = digits()[0][:40]
    rng = np.random.default_rng(0)
    truth = rng.integers(0, 2, 40)
    pairs, fours, one = torch.full((20,), 2), torch.full((10,), 4), torch.ones(40, dtype=torch.long)
    share = torch.from_numpy(rng.random(20))
    few = torch.where(torch.arange(40) < 20, torch.from_numpy(truth), -1)
    rule: Any = REGISTRY[setting](**({"priors": (0.2, 0.7)} if setting == "unlabeled_unlabeled" else {}))
    sizes, weak = {
        "multi_instance": (fours, torch.from_numpy(truth.reshape(10, 4).max(1))),
        "label_proportion": (fours, torch.from_numpy(truth.reshape(10, 4).sum(1))),
        "similarity_confidence": (pairs, share),
        "confidence_difference": (pairs, share - 0.5),
        "partial_label": (one, torch.ones(40, 2, dtype=torch.long)),
        "crowd_label": (one, torch.from_numpy(truth[:, None] * np.ones((1, 3), dtype=int))),
        "semi_supervised": (one, few),
        "positive_unlabeled": (one, torch.where(few == 1, 1, -1)),
    }.get(setting, (pairs, (share > 0.5).long()) if setting in PAIR_KINDS else (one, torch.from_numpy(truth)))
    recipe = QUICK.replace(rows=20, labelled_rows=4)
    return ImageRun(rule, images, sizes, weak, num_classes=2, recipe=recipe, objective=lambda run: StepObjective())


@pytest.mark.parametrize(
    "setting", sorted({setting for name in method_names() for setting in get_method(name).settings})
)
def test_every_method_needs_what_it_says_and_no_more(setting: str) -> None:
    run = unknowing_run(setting)
    facts = {"prior": 0.4, "noise_rate": 0.2}
    for name in methods_for(setting):
        needed = get_method(name).needed(setting)
        assert isinstance(objective_of(name, **{need: facts[need] for need in needed})(run), StepObjective), name
        for need in needed:
            less = {other: facts[other] for other in needed if other != need}
            with pytest.raises(InputError, match=rf"^{name} needs {NEEDS[need][0]}; expected {need}="):
                objective_of(name, **less)(run)


def test_a_supervision_may_tell_what_is_needed() -> None:
    run = unknowing_run("noisy_label")
    for rule in (fastbus.NoisyLabel(rate=0.2), fastbus.NoisyLabel([[0.9, 0.1], [0.4, 0.6]])):
        run.supervision = rule
        for name in ("forward", "cege"):
            assert isinstance(objective_of(name)(run), StepObjective)
    page = methods_table()
    assert "`prior`: the share of positives (`positive_unlabeled`, `multi_instance`), `noise_rate`: the sh" in page
    assert "| any | `noise_rate`: the share of wrong labels |" in page  # needed wherever the method serves


def test_names_are_told_without_importing_any_method() -> None:
    code = (
        "import sys; from fastbus.methods.registry import method_names; method_names()\n"
        "print([name for name in sys.modules if name.startswith('fastbus.methods.')], 'torch' in sys.modules)"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert result.stdout.strip().startswith("['fastbus.methods.registry']")


def test_every_name_stands_once() -> None:
    names = method_names()
    assert len(names) == len(set(names)) == sum(map(len, MODULES.values()))
    assert "fastbus" not in names and "supervised" not in names
    for setting in ("label_proportion", "pair_comparison", "confidence_difference"):
        assert "glws" in methods_for(setting)
    assert set(methods_for("similarity_confidence")) >= {"sc_unbiased", "sc_relu", "sc_abs", "sc_nn_abs"}


def test_settings_that_do_not_exist_are_refused() -> None:
    with pytest.raises(InputError, match=r"^setting 'pair_comparisn'; expected .* pair_comparison,.*\. Check the"):
        methods_for("pair_comparisn")


def test_the_page_holds_the_table_of_the_registry() -> None:
    page = (ROOT / "docs" / "methods.md").read_text(encoding="utf-8")
    assert page == renewed(page), "run python -m fastbus.methods.table docs/methods.md"
    assert methods_table().count("\n") == 2 + len(method_names())
    with pytest.raises(InputError, match="each once"):
        renewed(START + START + END)


def test_the_example_of_the_page_works_as_printed() -> None:
    page = (ROOT / "docs" / "methods.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    assert "epochs=30" in code
    _, images, weak = pair_digits("pair_comparison")
    names: dict[str, Any] = {"images": images, "weak": weak}
    exec(code.replace("epochs=30", "epochs=1"), names)
    assert names["run"].done and names["run"].predict(images[:3]).shape == (3, 2)


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(InputError, match=r"method='nnpuu'; expected one of .*nnpu.*"):
        objective_of("nnpuu")
    with pytest.raises(InputError, match=r"pc_abs: priors=0.4; expected facts among prior, noise_rate"):
        objective_of("pc_abs", priors=0.4)
    with pytest.raises(InputError, match=r"pc_abs: prior=1.5; expected a share in \(0, 1\)"):
        objective_of("pc_abs", prior=1.5)
    with pytest.raises(InputError, match=r"pc_abs: prior='40%'; expected a share"):
        objective_of("pc_abs", prior="40%")
    with pytest.raises(InputError, match=r"pc_abs on label_proportion; expected weak labels of kind pair_comparison"):
        method_run("label_proportion", "pc_abs", prior=0.4)
    with pytest.raises(InputError, match=r"pc_abs needs the share of positives; expected prior=.*prior=0.4"):
        pair_run("pair_comparison", "pc_abs")
    for method in ("nnpu", "count_loss"):
        with pytest.raises(InputError, match=rf"{method} needs the share of positives"):
            known = torch.where(torch.arange(60) < 10, 1, -1)
            images = torch.zeros(60, 1, 8, 8, dtype=torch.uint8)
            ImageRun(fastbus.PositiveUnlabeled(), images, torch.ones(60, dtype=torch.long), known, num_classes=2,
                     recipe=QUICK, objective=objective_of(method))  # fmt: skip
    with pytest.raises(InputError, match=r"cege on 10 classes; expected 2"):
        method_run("label_proportion", "cege")
    _, images, weak = pair_digits("pair_comparison")
    noisy = fastbus.PairComparison(noise=(0.1, 0.1))
    make, sizes = objective_of("pc_abs", prior=0.4), torch.full((len(weak),), 2)
    with pytest.raises(InputError, match=r"noise=\(0.1, 0.1\).*no noise channel"):
        ImageRun(noisy, images, sizes, weak, num_classes=2, recipe=QUICK, objective=make)


def test_a_method_of_ones_own_needs_only_be_registered() -> None:
    class Nothing(StepObjective):
        pass

    own = Method("own", "Own", ("label_proportion",), "me, 2026", "Nothing.", lambda run, options: Nothing())
    try:
        register(own)
        assert isinstance(method_run("label_proportion", "own").objective, Nothing)
    finally:
        METHODS.pop("own", None)


class NoWaiting(TorchDispatchMode):
    """Refuses what makes a GPU's host wait, so that a step could not be captured."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func._schema.name.removeprefix("aten::")
        by_flags = name in ("index", "index_put", "index_put_") and any(
            index is not None and index.dtype == torch.bool for index in args[1]
        )
        assert not name.startswith(WAITS) and not by_flags, f"{func} waits for the device"
        return func(*args, **(kwargs or {}))


class OneHotMay(TorchFunctionMode):
    """`one_hot` looks at its labels' range on the CPU only."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(func, "__name__", "") == "one_hot":
            with _disable_current_modes():
                return func(*args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))


def take_a_step(run: ImageRun) -> None:
    run.objective.start_epoch(run)
    run.training.load(run._pack(0))
    with NoWaiting(), OneHotMay():
        run.training.run(1)
    assert bool(run.training.loss.isfinite())


def some_run(name: str) -> ImageRun:
    """A run of the method on the first kind of weak label that it serves."""
    method = get_method(name)
    setting = method.settings[0]
    facts: dict[str, object] = {"prior": PRIOR} if setting in PAIR_KINDS else {}
    if setting in PAIR_KINDS:
        return pair_run(setting, name, **facts)
    if "noise_rate" in method.needs:
        facts["noise_rate"] = 0.2
    return method_run(setting, name, **facts)


PAIR_KINDS = ("pair_comparison", "pair_similarity", "similarity_confidence", "confidence_difference")


@pytest.mark.parametrize("name", method_names())
def test_a_step_never_waits_for_the_device(name: str) -> None:
    run = some_run(name)
    if not run.objective.capturable:
        pytest.skip("says itself that it cannot be captured here")
    take_a_step(run)


@pytest.mark.parametrize("kind", ["label_proportion", "positive_unlabeled", "partial_label", "semi_supervised"])
def test_no_kind_of_weak_label_makes_glws_wait(kind: str) -> None:
    take_a_step(method_run(kind, "glws"))


def test_waiting_is_caught() -> None:
    x = torch.arange(3.0)
    for wait in (lambda: x.max().item(), lambda: x[x > 1], lambda: torch.nonzero(x)):
        with pytest.raises(AssertionError, match="waits for the device"), NoWaiting():
            wait()
