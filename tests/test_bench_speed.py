"""The speed benchmark: rivals give the posterior of `infer`, powers are found, files are written, flags refused."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch

from fastbus.bench.speed.cells import QUICK, Cell, grid, make_inputs
from fastbus.bench.speed.growth import fit_power
from fastbus.bench.speed.inner import infer_call, inner_call, posterior_of, solves
from fastbus.bench.speed.measure import Patience
from fastbus.bench.speed.peers import PEERS
from fastbus.bench.speed.plain import load_yardstick, plain_call
from fastbus.bench.speed.render import as_markdown, busy_text, floor_text, work_text
from fastbus.bench.speed.timing import interleaved, summary
from fastbus.bench.speed.units import range_text, rate, seconds_text
from fastbus.bench.speed.work import Work, share_of, work_of
from fastbus.cli import main
from fastbus.errors import InputError
from fastbus.oracle import enumerate_posterior

YARDSTICK = Path(__file__).resolve().parents[2] / "shared" / "bench" / "yardstick.py"
CELLS = {cell.name: cell for cell in grid()}
SMALL = [
    Cell(kind, kind, 3, K, 4, "sigmoid", std)
    for kind in ("label_proportion", "multi_instance")
    for K, std in ((6, 2.0), (5, 0.0))
]
FAST = ["--quick", "--only", "multi_instance/B4-K5-C10", "growth/C"]


def sizes_in(text: str) -> int:
    return len(text.strip().splitlines())


@pytest.mark.parametrize("cell", SMALL, ids=lambda cell: cell.name)
@pytest.mark.parametrize("peer", PEERS)
def test_the_peers_are_right(cell: Cell, peer: str) -> None:
    inputs = make_inputs(cell)
    found = PEERS[peer].solve(inputs.logits, inputs.weak, inputs.sizes.tolist(), cell.kind == "multi_instance")
    expected = infer_call(inputs)().labels
    assert torch.allclose(found, expected, atol=2e-6)
    assert float((torch.sigmoid(inputs.logits) - expected)[0].abs().max()) > 0.01  # the prior would not do


@pytest.mark.parametrize("name", QUICK)
def test_plain_torch_and_kernels_equal_infer(name: str) -> None:
    inputs = make_inputs(CELLS[name])
    expected = posterior_of(infer_call(inputs)(), inputs)
    for call, _ in (plain_call(inputs, None), inner_call(inputs)):
        assert torch.allclose(posterior_of(call(), inputs), expected, atol=5e-6)


@pytest.mark.parametrize("kind", ["multi_instance", "label_proportion"])
def test_plain_lattices_equal_enumeration(kind: str) -> None:
    inputs = make_inputs(Cell("lattice", kind, 4, 4, 3, "softmax", 1.0))
    expected = enumerate_posterior(inputs.rule, inputs.logits, inputs.weak, inputs.mask, head="softmax")
    posterior, likelihood = plain_call(inputs, None)[0]()
    assert torch.allclose(posterior_of(posterior, inputs).double(), torch.from_numpy(expected.labels), atol=1e-5)
    assert torch.allclose(likelihood.double(), torch.from_numpy(expected.log_likelihood), atol=1e-5)


@pytest.mark.skipif(not YARDSTICK.is_file(), reason="the folder shared/bench with the yardstick is absent")
@pytest.mark.parametrize("name", ["label_proportion/B4-K20-C10", "multi_instance/B4-K20-C100"])
def test_our_own_code_stands_in_for_the_yardstick(name: str) -> None:
    inputs = make_inputs(CELLS[name])
    (theirs, whose), (ours, own) = plain_call(inputs, load_yardstick(YARDSTICK)), plain_call(inputs, None)
    assert (whose, own) == ("yardstick file", "our own")
    assert all(torch.allclose(a, b, atol=1e-5) for a, b in zip(theirs(), ours(), strict=True))


def test_inputs_depend_on_the_seed_and_the_cell() -> None:
    cell = CELLS["label_proportion/B16-K10-C10-ragged"]
    first, again, other = make_inputs(cell), make_inputs(cell), make_inputs(cell, seed=1)
    assert first.logits.equal(again.logits) and first.weak.equal(again.weak)
    assert first.mask is not None and not first.mask.all() and int(first.mask.sum()) == int(first.sizes.sum())
    assert not first.logits[:, :5].equal(other.logits[:, :5])


@pytest.mark.parametrize("power", [0.5, 1.0, 2.0])
def test_powers_are_found_where_work_dominates(power: float) -> None:
    sizes = [4**e for e in range(8)]
    found = fit_power(sizes, [1e-7 * size**power for size in sizes])
    assert found.slope == pytest.approx(power)
    flat = [1e-3 + 1e-7 * size for size in (10**e for e in range(8))]
    bent = fit_power([10**e for e in range(8)], flat)
    assert bent.first == 10**5 and bent.last == 10**7 and 0.9 < bent.slope <= 1.0
    assert math.isnan(fit_power(sizes, [1e-3] * 8).slope)


def test_work_is_counted_by_the_formula() -> None:
    inputs = make_inputs(Cell("label_proportion", "label_proportion", 2, 6, 3, "sigmoid"))
    by_hand = sum(2 * 2 * 6 * (w + 1) for w in inputs.weak.flatten().tolist())
    assert work_of(inputs) == Work(by_hand, 2 * 36 * 4 + 6 * 8 + 2 * 4)
    ceilings: dict[str, Any] = {
        "operations_per_second": {"float64": 1e9},
        "copy_bytes_per_second": {"large": 1e9},
        "call_seconds": 1e-6,
        "messages": "float64",
    }
    assert share_of(Work(1e6, 1e3), 2e-3, ceilings) == (5e8, 5e5, "operations", pytest.approx(0.5))
    assert share_of(Work(1e3, 1e6), 4e-3, ceilings)[2:] == ("bytes", pytest.approx(0.25))
    assert share_of(Work(1, 1), 1e-5, ceilings)[2:] == ("call", pytest.approx(0.1))


def test_lattice_work_has_a_point_for_every_count_but_the_largest() -> None:
    inputs = make_inputs(Cell("lattice", "label_proportion", 1, 6, 3, "softmax"))
    inputs = inputs._replace(weak=torch.tensor([[3, 2, 1]]))
    assert work_of(inputs).operations == 2 * 2 * 6 * (3 * 2) * 3


def test_a_kernel_that_gave_up_is_not_timed() -> None:
    x = torch.zeros(1)
    assert solves((x, x)) and solves((x, x, 0)) and solves((x, x, torch.zeros(3)))
    assert not solves((x, x, 2)) and not solves((x, x, torch.tensor([0, 1])))


def test_rivals_take_turns() -> None:
    order: list[str] = []
    found = interleaved({name: lambda name=name: order.append(name) for name in "ab"}, 4, lambda: None, warm_up=1)
    assert order == [*"ab", *"ab", *"ba", *"ab", *"ba"]
    assert {timing.runs for timing in found.values()} == {4}
    assert summary([4.0, 1.0, 3.0, 2.0, 5.0]) == (3.0, 2.0, 4.0, 5, None)
    order.clear()
    found = interleaved({name: lambda name=name: order.append(name) for name in "ab"}, 2, lambda: None, 0, burst=2)
    assert order == [*"aabb", *"bbaa"] and all(timing.runs == 4 and timing.first for timing in found.values())


def test_a_peer_is_left_out_where_it_would_take_too_long() -> None:
    patience = Patience(1.0)
    assert patience.allows("loop", 100)
    patience.learn("loop", 100, 0.5)
    assert patience.allows("loop", 200) and not patience.allows("loop", 201)


def test_numbers_are_readable() -> None:
    assert [seconds_text(x) for x in (2.5e-8, 1.234e-5, 0.0999, 12.3)] == ["25.0 ns", "12.3 µs", "99.9 ms", "12.3 s"]
    assert range_text(9.5e-4, 1.2e-3) == "950–1200 µs"
    assert rate(4.8e12) == "4.80 T" and rate(123.4e9) == "123 G"


def test_a_quick_run_writes_all_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["bench", "speed", "--out", str(tmp_path)]
    assert main([*words, *FAST, "--json"]) == 0
    ceilings, cell, growth = json.loads(capsys.readouterr().out)
    assert cell["seconds"]["infer"]["runs"] >= 30 and cell["commit"] is not None and cell["versions"]["torch"]
    for timing in cell["seconds"].values():
        assert 0 < timing["low"] <= timing["median"] <= timing["high"]
    assert {"inner", "plain", "GLWS loops", "Count Loss loops", "Count Loss, vectors"} <= set(cell["seconds"])
    assert max(cell["differences"].values()) < 1e-5
    assert 0 < cell["undisturbed"] <= 1
    assert cell["share"]["share"] > 0 and cell["share"]["operations_per_second"] > 0
    assert min(ceilings["operations_per_second"].values()) > 1e8
    assert min(ceilings["copy_bytes_per_second"].values()) > 1e8
    assert all(taken > 0 for series in growth["seconds"].values() for taken in series if taken is not None)
    assert main([*words, "--quick", "--only", "multi_instance/B4-K20-C100"]) == 0
    assert "multi_instance/B4-K20-C100" in capsys.readouterr().out
    names = [json.loads(line)["name"] for line in (tmp_path / "speed-cpu.jsonl").read_text().splitlines()]
    assert names == ["ceilings", "multi_instance/B4-K5-C10", "multi_instance/B4-K20-C100", "growth/C"]
    page = (tmp_path / "speed-cpu.md").read_text(encoding="utf-8")
    assert "| multi_instance/B4-K5-C10 |" in page and "Ceilings:" in page and "(speed-cpu.png)" in page
    assert (tmp_path / "speed-cpu.png").read_bytes().startswith(b"\x89PNG")


def test_training_steps_are_measured(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["bench", "speed", "--quick", "--only", "training", "--json"]
    assert main([*words, "--out", str(tmp_path)]) == 0
    found = [record for record in json.loads(capsys.readouterr().out) if record["part"] == "training"]
    assert [record["kind"] for record in found] == ["label_proportion", "multi_instance"]
    for record in found:
        weak, supervised, alone = (record["seconds"][name]["median"] for name in ("weak", "supervised", "posterior"))
        assert 0 < alone < weak and supervised > 0
    assert "## A training step" in (tmp_path / "speed-cpu.md").read_text(encoding="utf-8")


def test_the_page_of_a_gpu_holds_replays_against_an_empty_kernel() -> None:
    timing = {"median": 2e-5, "low": 1e-5, "high": 3e-5, "runs": 30}
    record: dict[str, Any] = {
        "part": "cell",
        "name": "label_proportion/B16-K20-C100",
        "head": "sigmoid",
        "seconds": dict.fromkeys(("infer", "inner", "plain"), timing),
        "sources": {"inner": "gpu_counts.solve_counts", "plain": "our own"},
        "differences": {"plain": 1e-7, "inner": 1.0},
        "skipped": ["GLWS loops"],
        "undisturbed": 0.6,
        "times_plain": 1.0,
        "share": {"operations_per_second": 1e9, "bytes_per_second": 1e9, "binds": "call", "share": 0.3},
        "device_seconds": {"infer": timing, "empty + copy": timing | {"median": 8e-6}},
        "times_floor": 2.5,
        "times_floor_of_several": 3.5,
        "not_captured": {"plain": "it waits"},
        "device": "a GPU",
        "commit": "",
    }
    page = as_markdown([record], "cuda", None)
    assert "so 2.50 times as long" in floor_text([record]) and floor_text([record]) in page
    assert "| 20.0 µs | 8.00 µs | 2.50 | 3.50 |" in page and "plain: it waits" in page
    assert "busy with other work during 1 of 1 cells" in page
    assert busy_text([record | {"undisturbed": 1.0}]) == ""
    assert work_text([record]) == ""
    several = {"device_seconds_of_several": {"infer": timing}, "work": {"operations": 3e9, "formula": "K (w + 1)"}}
    large = record | several | {"name": "label_proportion/B1024-K100-C100"}
    assert "20.0 µs in a row of graphs, 3e+09 operations at least (K (w + 1)), 30.0 % of" in work_text([large])
    assert work_text([large]) in as_markdown([large], "cuda", None)
    assert "20.0 µs!" in page  # a kernel that is wrong does not pass unmarked


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--only", "label_proportion/B5-K5-C5"], "B5-K5-C5"),
        (["--device", "abacus"], "abacus"),
        (["--patience", "-1"], "-1"),
        (["--yardstick", str(Path(__file__))], "lprop"),
        pytest.param(
            ["--device", "cuda"], "GPU", marks=pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
        ),
    ],
)
def test_malformed_flags(flags: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "speed", "--quick", "--out", str(tmp_path), *flags]) == 2
    error = capsys.readouterr().err
    assert sizes_in(error) == 1 and said in error
    assert not list(tmp_path.iterdir())


def test_training_on_a_gpu_asks_for_images(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from fastbus.bench.speed.command import add_options
    from fastbus.bench.speed.run import make_plan
    from fastbus.commands.parser import Parser

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    parser = Parser()
    add_options(parser)
    with pytest.raises(InputError, match="--images"):
        make_plan(parser.parse_args(["--device", "cuda", "--train"]))
