"""The page of MLfabric on real transfers: what its configs compare, what is counted, and what is simulated beside."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from prophet_mlfabric.studies.settings import COMPUTE, GBIT, NETWORK
from prophet_mlfabric.studies.tables import RingComparison
from prophet_scheduler.lab.config import load_experiment
from prophet_scheduler.lab.job_config import AsynchronousJob
from prophet_scheduler.lab.records import ConvergenceResult
from support.results import Session, cell, policy
from tools import cells, mlfabric_real
from tools.mlfabric_real import PLACES
from tools.mlfabric_reasons import CameTo, ratio, said
from tools.mlfabric_simulated import IN_STEP, OURS, RELEASED, RING, PaperCell, SimulatedCell

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


@pytest.mark.parametrize("network", PLACES[1])
@pytest.mark.parametrize("compute", PLACES[0])
def test_each_config_is_the_papers_cell(compute: str, network: str) -> None:
    experiment = load_experiment(CONFIGS / f"{compute}-{network}.yaml")
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


def came(**contenders: tuple[float | None, float | None]) -> CameTo:
    """Times to the loss of one cell, c1-n1, real and simulated."""

    def result(time_s: float | None) -> ConvergenceResult:
        return ConvergenceResult(target_loss=0.5, time_to_loss_s=time_s, update_s=0.2)

    return {
        name.replace("_", "-"): {"c1-n1": (result(real), result(simulated))}
        for name, (real, simulated) in contenders.items()
    }


def test_where_it_stands_is_said() -> None:
    four = came(mlfabric=(20.0, 16.0), released=(25.0, 24.0), in_step=(30.0, 20.0), ring=(15.0, 12.0))
    assert ratio(four, "c1-n1", RELEASED) == (1.25, 1.5)
    assert ratio(four, "c1-n1", RING) == (0.75, 0.75)
    words = said(four)
    assert "**Of 1 cells MLfabric is more than 2% behind BytePS's own asynchronous mode in 0 (" in words
    assert "in 1 of these cells; here it is ahead in 0 of them." in words
    behind = came(mlfabric=(30.0, None), released=(27.0, None), ring=(None, None))
    assert "in 1; C1-N1: 0.90" in said(behind)


def test_a_contender_that_did_not_get_there_has_no_time() -> None:
    short = came(mlfabric=(None, 16.0), released=(None, None), in_step=(None, None), ring=(9.0, 8.0))
    assert ratio(short, "c1-n1", RELEASED) == (None, None)
    assert "No cell was measured" in said(short)
    table = mlfabric_real.times_table(short)
    assert "| C1-N1 | - (16.0) | - (-) | - (-) | 9.0 (8.0) | - (-) | - (0.50) | 1.74 |" in table


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
def test_a_run_is_kept_and_makes_the_page(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    session = Session(POINT)
    monkeypatch.setattr(cells, "run_session", session.run)
    raw = yaml.safe_load((CONFIGS / "c1-n1.yaml").read_text(encoding="utf-8"))
    (tmp_path / "c1-n1.yaml").write_text(yaml.safe_dump(raw), encoding="utf-8")
    folders = ["--configs", str(tmp_path), "--out", str(tmp_path / "out"), "--results", str(tmp_path)]
    assert mlfabric_real.main(["c1-n1", *folders]) == 0
    text = (tmp_path / mlfabric_real.PAGE).read_text(encoding="utf-8")
    assert text == mlfabric_real.page(tmp_path)
    assert (
        "| C1-N1 | 20.0 (16.0) | 25.0 (24.0) | 30.0 (20.0) | 15.0 (12.0) | 1.25 (1.50) | 0.75 (0.75) | 1.74 |" in text
    )
    assert "| C1-N1 | 0.200 (0.210) | 0.200 (0.210) | 0.200 (0.210) | 0.200 (0.210) |" in text
    assert "| C1-N1 | 7 (-) | 40 (-) | 2 (-) | 0 | 0 |" in text
    assert "in 1 of 1 cells" in text
    assert session.ran == ["cell0"]


@pytest.mark.usefixtures("simulation")
def test_what_is_simulated_needs_no_real_run(tmp_path: Path) -> None:
    assert mlfabric_real.main(["--simulated", "--configs", str(CONFIGS), "--results", str(tmp_path)]) == 0
    text = (tmp_path / mlfabric_real.PAGE).read_text(encoding="utf-8")
    assert text == mlfabric_real.page(tmp_path)
    assert "Not measured yet: `make mlfabric`." in text and "Simulated on " in text
    assert text.count("- (16.0)") == 9
    assert "| C2-N1 | 0.80 = 0.50 + 0.30 | 1.00 | 1.2 | 90% | 0.80 |" in text
    assert "| C2-N1 | 0.60 = 0.50 + 0.30 | 1.00 | 1.2 | 90% | 0.60 (0.50 to 0.70) | 2.96 |" in text
    assert "ahead nowhere, where" in text
    # Waiting 0.4 s of 0.6, and of the paper's 1.6.
    assert "for 67% here" in text and "idle for 25% of 1.6 s" in text
    assert "would be 1.6 times as fast." in text


def test_an_unknown_cell_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        mlfabric_real.main(["c9-n1"])
    assert ended.value.code == 2 and "c9-n1" in capsys.readouterr().err
