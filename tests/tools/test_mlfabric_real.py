"""The page of MLfabric on real transfers: what its configs compare, what is counted, and what is simulated beside."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from prophet_scheduler.lab.config import load_experiment
from prophet_scheduler.lab.job_config import AsynchronousJob
from prophet_scheduler.lab.records import ConvergenceResult
from prophet_scheduler.studies.mlfabric.settings import COMPUTE, GBIT, NETWORK
from prophet_scheduler.studies.mlfabric.tables import RingComparison
from support.results import Session, cell, policy
from tools import kept, mlfabric_real, studies
from tools.mlfabric_real import CELLS, RealCells
from tools.mlfabric_simulated import (
    IN_STEP,
    OURS,
    RELEASED,
    RING,
    MlfabricSimulated,
    PaperCell,
    SimulatedCell,
)

CONFIGS = Path(__file__).parents[2] / mlfabric_real.CONFIGS


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
    monkeypatch.setattr(mlfabric_real, "simulate", lambda cell: SIMULATED)
    paper = PaperCell([0.5, 0.6, 0.7], replace(COMPARISON, ring_s=0.6))
    monkeypatch.setattr(mlfabric_real, "paper_cell", lambda compute, network: paper)


@pytest.mark.usefixtures("simulation")
def test_a_cell_is_run_simulated_and_kept_beside_the_others(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    session = Session(POINT)
    monkeypatch.setattr(studies, "run_session", session.run)
    folders = ["--configs", str(CONFIGS), "--out", str(tmp_path / "out"), "--results", str(tmp_path)]
    for name in ("c1-n2", "c1-n1"):
        assert mlfabric_real.main([name, *folders]) == 0
    real = kept.kept(tmp_path, mlfabric_real.NAME, RealCells)
    simulated = kept.kept(tmp_path, mlfabric_real.SIMULATED_NAME, MlfabricSimulated)
    assert real is not None and simulated is not None
    assert list(real[1].cells) == list(simulated[1].cells) == list(simulated[1].paper) == ["c1-n1", "c1-n2"]
    assert real[1].cells["c1-n1"].cells[0].policies == POINT.policies
    assert session.ran == ["cell0", "cell0"]


@pytest.mark.usefixtures("simulation")
def test_what_is_simulated_needs_no_real_run(tmp_path: Path) -> None:
    assert mlfabric_real.main(["--simulated", "--configs", str(CONFIGS), "--results", str(tmp_path)]) == 0
    simulated = kept.kept(tmp_path, mlfabric_real.SIMULATED_NAME, MlfabricSimulated)
    assert simulated is not None and len(simulated[1].cells) == 9
    assert not kept.data_file(tmp_path, mlfabric_real.NAME).exists()


def test_an_unknown_cell_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        mlfabric_real.main(["c9-n1"])
    assert ended.value.code == 2 and "c9-n1" in capsys.readouterr().err
