"""The page of MLfabric on real transfers: what its configs compare, what is counted, and what is simulated beside."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from prophet.lab.config import load_experiment
from prophet.lab.job_config import AsynchronousJob
from prophet.studies.mlfabric.settings import COMPUTE, GBIT, NETWORK
from support.results import Session, cell, failed, policy
from tools import cells, mlfabric_real
from tools.mlfabric_real import IN_STEP, OURS, PLACES, RELEASED, RING, Simulated, ratio, said, simulate

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


def test_the_same_cluster_is_simulated() -> None:
    (place,) = load_experiment(CONFIGS / "c2-n1.yaml").cells
    simulated = simulate(place)
    transfer_s = 655_360 / (25e6 / 8)
    assert 0.9 * transfer_s < simulated.released < 3 * transfer_s
    assert 0 < simulated.ours < 3 * transfer_s
    assert simulated.ring > 0.26 / 5


def test_where_it_stands_is_said() -> None:
    assert ratio(POINT, RELEASED) == 1.25
    assert ratio(POINT, RING) == 0.75
    words = said({"c1-n1": POINT})
    assert "**Of 1 cells MLfabric is more than 2% behind BytePS's own asynchronous mode in 0 (" in words
    assert "in 1 of these cells; here it is ahead in 0 of them." in words
    behind = cell(**{OURS: policy(1.0, **came_to(30.0)), RELEASED: policy(1.0, **came_to(27.0))})
    assert "in 1; C1-N2: 0.90" in said({"c1-n1": POINT, "c1-n2": behind})


def test_a_contender_that_did_not_get_there_has_no_time() -> None:
    short = cell(**{OURS: policy(1.0, **came_to(None)), RELEASED: failed("hung")})
    assert ratio(short, RELEASED) is None
    assert "No cell was measured" in said({"c1-n1": short})
    assert "| C1-N1 | - | - | - | - | - | - | 1.74 |" in mlfabric_real.times_table({"c1-n1": short})


def test_a_run_is_kept_and_makes_the_page(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    session = Session(POINT)
    monkeypatch.setattr(cells, "run_session", session.run)
    monkeypatch.setattr(mlfabric_real, "simulate", lambda cell: Simulated(0.25, 0.21, 0.12))
    raw = yaml.safe_load((CONFIGS / "c1-n1.yaml").read_text(encoding="utf-8"))
    (tmp_path / "c1-n1.yaml").write_text(yaml.safe_dump(raw), encoding="utf-8")
    assert mlfabric_real.write_page(["c1-n1"], tmp_path, tmp_path / "out", tmp_path, None) == 0
    text = (tmp_path / mlfabric_real.PAGE).read_text(encoding="utf-8")
    assert text == mlfabric_real.page(tmp_path)
    assert "| C1-N1 | 20.0 | 25.0 | 30.0 | 15.0 | 1.25 | 0.75 | 1.74 |" in text
    assert "| C1-N1 | 0.200 (0.210) | 0.200 (0.250) | 0.200 | 0.200 (0.120) |" in text
    assert "| C1-N1 | 7 | 40 | 2 | 0 | 0 |" in text


def test_nothing_measured_yet_is_said(tmp_path: Path) -> None:
    assert "Not measured yet: `make mlfabric`." in mlfabric_real.page(tmp_path)


def test_an_unknown_cell_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        mlfabric_real.main(["c9-n1"])
    assert ended.value.code == 2 and "c9-n1" in capsys.readouterr().err
