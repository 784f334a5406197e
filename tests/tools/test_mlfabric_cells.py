"""The page of MLfabric on real transfers: what its configs compare, what is counted, and what is simulated beside."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from prophet_mlfabric.studies.settings import COMPUTE, GBIT, NETWORK
from prophet_mlfabric.studies.tables import RingComparison
from prophet_scheduler.lab.config import load_experiment
from prophet_scheduler.lab.job_config import AsynchronousJob
from prophet_scheduler.lab.records import ConvergenceResult
from support.results import Session, cell, policy
from tools import kept, measure, mlfabric_cells, studies
from tools.mlfabric_cells import (
    CELLS,
    IN_STEP,
    OURS,
    RELEASED,
    RING,
    MlfabricSimulated,
    PaperCell,
    RealCells,
    SimulatedCell,
)

CONFIGS = Path(__file__).parents[2] / mlfabric_cells.CONFIGS


def came_to(time_s: float | None, **more: Any) -> dict[str, Any]:
    return {"convergence": {"target_loss": 0.5, "time_to_loss_s": time_s, "least_loss": 0.4, "update_s": 0.2, **more}}


APART = {"sent": 40, "dropped": 2, "uncoordinated": 0, "applied_otherwise": 0, "greatest_delay": 7}
POINT = cell(
    **{
        OURS: policy(1.0, **came_to(20.0, **APART)),
        RELEASED: policy(1.2, **came_to(25.0, sent=None)),
        IN_STEP: policy(1.1, **came_to(30.0)),
        RING: policy(0.6, **came_to(15.0)),
    }
)


@pytest.mark.parametrize("name", CELLS)
def test_each_config_is_the_papers_cell(name: str) -> None:
    compute, network = name.split("-")
    experiment = load_experiment(CONFIGS / f"{name}.yaml")
    (place,) = experiment.cells
    job, mix = place.job, place.cluster.rate_mix
    assert isinstance(job, AsynchronousJob) and mix is not None
    stragglers, traffic = COMPUTE[compute.upper()], NETWORK[network.upper()]
    assert (job.slow_chance, job.slow_factor) == (stragglers.chance, stragglers.factor)
    wanted = {rate / (10 * GBIT): chance for rate, chance in zip(traffic.rates, traffic.chances, strict=True) if chance}
    assert dict(zip(mix.shares, mix.chances, strict=True)) == pytest.approx(
        {min(mix.shares, key=lambda share: abs(share - wanted_share)): c for wanted_share, c in wanted.items()}
    )
    assert sorted(mix.shares) == pytest.approx(sorted(wanted))
    assert mix.period_s == traffic.period_s
    assert [contender.name for contender in place.policies] == [RELEASED, OURS, IN_STEP, RING]
    engines = [contender.engine.name for contender in place.policies]
    assert engines[0] == engines[1] and len(set(engines)) == 3


COMPARISON = RingComparison(0.8, 0.5, 0.3, 1.0, 1.2, 0.9)
SIMULATED = SimulatedCell(
    {
        name: ConvergenceResult(target_loss=0.5, time_to_loss_s=time_s, update_s=0.21, least_loss=0.4)
        for name, time_s in {OURS: 16.0, RELEASED: 24.0, IN_STEP: 20.0, RING: 12.0}.items()
    },
    COMPARISON,
    compute_s=0.26,
    update_s=0.21,
    workers=5,
)


@pytest.fixture
def simulation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mlfabric_cells, "simulate_cell", lambda cell: SIMULATED)
    paper = PaperCell([0.5, 0.6, 0.7], replace(COMPARISON, ring_s=0.6))
    monkeypatch.setattr(mlfabric_cells, "paper_cell", lambda compute, network: paper)
    monkeypatch.setattr(mlfabric_cells, "CONFIGS", CONFIGS)


@pytest.mark.usefixtures("simulation")
@pytest.mark.parametrize("name", ["mlfabric", "mlfabric-simulated"])
def test_a_cell_is_kept_beside_the_others(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    session = Session(POINT)
    monkeypatch.setattr(studies, "run_session", session.run)
    for cells in ("c1-n2", "c1-n1"):
        assert measure.main([name, f"cells={cells}", "--out", str(tmp_path / "out"), "--results", str(tmp_path)]) == 0
    kind: Any = RealCells if name == "mlfabric" else MlfabricSimulated
    stored = kept.kept(tmp_path, name, kind)
    assert stored is not None and list(stored.data.cells) == ["c1-n1", "c1-n2"]
    if name == "mlfabric":
        assert stored.data.cells["c1-n1"].cells[0].policies == POINT.policies
    else:
        assert list(stored.data.paper) == ["c1-n1", "c1-n2"]
    assert session.ran == (["cell0", "cell0"] if name == "mlfabric" else [])


def test_an_unknown_cell_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert measure.main(["mlfabric", "cells=c9-n1"]) == 2
    assert "c9-n1 is no cell; they are c1-n1, " in capsys.readouterr().err
