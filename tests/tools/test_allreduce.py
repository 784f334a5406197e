"""The page of Prophet on DDP: what is counted, and what its config compares."""

from __future__ import annotations

from pathlib import Path

import pytest

from prophet_scheduler.lab.config import load_experiment
from prophet_scheduler.lab.records import AgentCost
from support.configs import REPLAY, written
from support.results import Session, cell, failed, policy
from tools import allreduce, cells
from tools.allreduce import said, standings
from tools.kept import Point

CONFIG = Path(__file__).parents[2] / allreduce.CONFIG
TIMES = {"ddp-gloo": 1.6, "ddp-gloo-1": 1.3, "ddp-gloo-5": 1.2, "ddp-horovod": 1.0, "ddp-prophet": 0.96}


def test_prophet_is_held_against_ddp_as_it_comes_and_its_best_bucket_size() -> None:
    (row,) = standings([cell(**{name: policy(seconds) for name, seconds in TIMES.items()})])
    assert (row.setting, row.best, row.bound_s) == ("250mbit", "ddp-gloo-5", 0.6)
    assert row.over_stock == pytest.approx(1.6 / 0.96)
    assert row.over_best == pytest.approx(1.2 / 0.96)


def test_a_cell_in_which_one_of_the_two_failed_is_left_out() -> None:
    assert standings([cell(**{"ddp-gloo": policy(1.0), "ddp-prophet": failed("hung")})]) == []
    assert standings([cell(**{"ddp-gloo": failed("hung"), "ddp-prophet": policy(1.0)})]) == []
    assert said([]) == "Nothing was measured in which both ran."


def test_cells_in_which_prophet_is_behind_are_named() -> None:
    good = cell(**{"ddp-gloo": policy(1.6), "ddp-gloo-5": policy(1.2), "ddp-prophet": policy(0.96)})
    near = cell(**{"ddp-gloo": policy(1.0), "ddp-prophet": policy(1.009)})
    bad = cell(**{"ddp-gloo": policy(1.0), "ddp-gloo-1": policy(0.9), "ddp-prophet": policy(1.0)})
    assert said(standings([good, near])).startswith("**Of 2 cells Prophet is more than 1% behind the best DDP in 0. It")
    words = said(standings([good, bad]))
    assert "behind the best DDP in 1. It is 1.00 to 1.67 times" in words
    assert words.splitlines()[2:] == ["- 250mbit: -10.0% against ddp-gloo-1"]


def test_weights_are_said_of_two_ranks_that_were_compared() -> None:
    def point(workers: int, same: bool | None) -> Point:
        ours = policy(0.9, **({} if same is None else {"same_weights_as_stock": same}))
        return Point(cell(**{"ddp-prophet": ours}), workers)

    assert "in all 2 cells" in allreduce.weights([point(2, True), point(2, True), point(2, None), point(4, False)])
    assert "in 1 of 2 cells" in allreduce.weights([point(2, True), point(2, False)])
    assert "No final weights were compared" in allreduce.weights([point(4, True), point(2, None)])


def test_the_config_has_two_and_four_ranks_and_prophet_beside_several_bucket_sizes_in_every_cell() -> None:
    experiment = load_experiment(CONFIG)
    assert experiment.engine == "ddp" and experiment.repeats == 3
    assert {place.cluster.workers for place in experiment.cells} == {2, 4}
    assert {str(place.setting.get("job", place.setting.get("profile"))) for place in experiment.cells} >= {
        "replay resnet50",
        "replay vgg19",
        "replay bert-base",
        "digits mlp",
        "synthetic resnet18",
        "transformer medium",
    }
    for place in experiment.cells:
        names = [shown.name for shown in place.policies]
        assert allreduce.STOCK in names and allreduce.OURS in names
        assert sum(name.startswith(f"{allreduce.STOCK}-") for name in names) >= 3
        if place.profile is None:
            assert len({place.job_of(shown).iterations for shown in place.policies}) == 1, "weights can be compared"
        if place.cluster.workers == 4 and place.profile is None:
            raise AssertionError("four ranks that compute have half a core each")
    byteps = [shown for place in experiment.cells for shown in place.policies if shown.name == "byteps-prophet"]
    assert {shown.base for shown in byteps} == {"prophet"} and len(byteps) == 4


COST = AgentCost(cpu_share=0.004, plans=3, watchdog_releases=0)
POINT = cell(
    **{
        "ddp-gloo": policy(1.7),
        "ddp-gloo-5": policy(1.2),
        "byteps-prophet": policy(0.96),
        "ddp-prophet": policy(0.93, agent=COST, processor_s=0.0625, start_s=4.5),
    }
)


@pytest.fixture
def session(monkeypatch: pytest.MonkeyPatch) -> Session:
    made = Session(POINT)
    monkeypatch.setattr(cells, "run_session", made.run)
    return made


def config(folder: Path, *rates: str) -> Path:
    names = ["ddp-gloo", "ddp-gloo-5", "ddp-prophet", {"name": "byteps-prophet", "base": "prophet", "engine": "byteps"}]
    sweep = [{"cluster": {"bandwidth": rate}} for rate in rates]
    return written({**REPLAY, "engine": "ddp", "policies": names, "sweep": sweep}, folder)


def test_a_run_is_kept_and_makes_the_page(session: Session, tmp_path: Path) -> None:
    assert allreduce.write_page(config(tmp_path, "250mbit", "1gbit"), tmp_path / "out", tmp_path, None) == 0
    assert session.ran == ["cell0", "cell1"]
    text = (tmp_path / allreduce.PAGE).read_text(encoding="utf-8")
    assert text == allreduce.page(tmp_path)
    assert "| 250mbit | 0.600 | 1.700 | 1.200 (ddp-gloo-5) | 0.930 | 1.55 | 1.83 | 1.29 |" in text
    assert "| 1gbit | - | 0.062 | - | 0.40% | 4.5 | 1.03 |" in text
    assert "times as fast as ddp-gloo" in text
