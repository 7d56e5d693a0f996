"""Runs that begin with what was learnt without labels: once for all that share it, exactly resumed, counted."""

import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from fastbus.bench.paper import run as run_module
from fastbus.bench.paper.grid import tiny_cells
from fastbus.bench.paper.plan import Job, Pretraining, plan_jobs
from fastbus.bench.paper.pool import run_jobs
from fastbus.bench.paper.pretrained import first_network, pretrained_path
from fastbus.bench.paper.run import work
from fastbus.bench.paper_report.summary import Group
from fastbus.bench.results import Record
from fastbus.training.checkpoint import read_checkpoint
from test_bench_paper import place


def jobs_of(setting: str, *methods: str, **changes: object) -> list[Job]:
    cells = [cell for cell in tiny_cells("digits") if cell.setting == setting]
    return plan_jobs(cells, methods, [0], {"pretrain": 2, "epochs": 1} | changes, 0.0, tiny=True)


def test_methods_share_it_and_records_tell_of_it(tmp_path: Path) -> None:
    jobs = jobs_of("semi_supervised", "fastbus", "fixmatch", "supervised")
    records: dict[str, Record] = {}
    said: list[str] = []
    tally = run_jobs(jobs, place(tmp_path), 1, lambda job, record: records.update({job.method: record}), said.append)
    assert tally.finished == 3 and not tally.failed and not tally.unfinished
    assert sum("without labels" in text for text in said) == 1
    facts = [record["pretraining"] for record in records.values()]
    assert facts[0] == facts[1] == facts[2] and facts[0]["passes"] == 2 and facts[0]["views"] > 0
    group = Group(jobs[0].cell, "fastbus", (records["fastbus"],))
    assert group.spent("views") == records["fastbus"]["views"] + facts[0]["views"]
    assert group.spent("seconds") == pytest.approx(records["fastbus"]["seconds"] + facts[0]["seconds"])


def test_a_run_begins_with_these_weights_and_a_last_layer_of_its_own(tmp_path: Path) -> None:
    (job,) = jobs_of("semi_supervised", "fastbus")
    (before,) = job.groundwork
    assert isinstance(before, Pretraining) and work(before, place(tmp_path)) is not None
    network, facts = first_network(job, tmp_path)
    fresh, none = first_network(replace(job, recipe=job.recipe.replace(pretrain=0)), tmp_path)
    learnt = read_checkpoint(pretrained_path(tmp_path, before))["weights"]
    assert none is None and facts is not None and facts["fingerprint"] == before.fingerprint
    for name, x in network.state_dict().items():
        last = name.startswith("classifier.")
        assert torch.equal(x, fresh.state_dict()[name]) == last and (last or torch.equal(x, learnt[name])), name


def test_it_stops_at_its_deadline_and_goes_on_exactly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_module, "START_MARGIN", 0.0)
    (job,) = jobs_of("semi_supervised", "fastbus")
    (before,) = job.groundwork
    assert work(before, place(tmp_path / "whole")) is not None
    assert work(before, place(tmp_path / "parts", deadline=time.time() + 0.01)) is None
    assert work(before, place(tmp_path / "parts")) is not None
    whole, parts = (read_checkpoint(pretrained_path(tmp_path / name, before))["weights"] for name in ("whole", "parts"))
    assert whole.keys() == parts.keys() and all(torch.equal(x, parts[name]) for name, x in whole.items())
