"""Numbers of a job whose network changes, with made-up times, and the runs of its config."""

from __future__ import annotations

from pathlib import Path

from prophet_scheduler.core.cut import Segment
from prophet_scheduler.core.status import AgentStatus
from prophet_scheduler.lab.config import load_experiment
from prophet_scheduler.lab.jobs.record import Mark, WorkerRecord
from tools import changing
from tools.changing import JobNetwork, Regime, Series, near_after, regimes, rows, series_of

CONFIG = Path(__file__).parents[2] / changing.CONFIG
FAST, SLOW = JobNetwork(2.5e9), JobNetwork(250e6)
CHANGING = (Regime(FAST, 0.0, 20.0), Regime(SLOW, 20.0, 60.0), Regime(FAST, 60.0))


def test_the_networks_of_the_config_follow_one_another_and_each_is_there_by_itself() -> None:
    experiment = load_experiment(CONFIG)
    networks = [regimes(cell.cluster) for cell in experiment.cells]
    assert networks[0] == [Regime(FAST, 0.0, 45.0), Regime(SLOW, 45.0, 90.0), Regime(FAST, 90.0)]
    shared = JobNetwork(500e6, 166e6)
    assert [regime.network for regime in networks[1]] == [JobNetwork(500e6), shared, JobNetwork(500e6)]
    assert str(shared) == "500mbit, 166mbit of it others'"
    alone = {regime.network for of_cell in networks[2:] for regime in of_cell[:1]}
    assert alone == {regime.network for of_cell in networks[:2] for regime in of_cell}
    assert all(job.policies[-1].base == "prophet" for job in experiment.cells)


def test_until_near_is_counted_in_iterations_and_one_that_stalls_does_not_matter() -> None:
    assert near_after([1.0] * 10, 1.0) == 0
    assert near_after([2.0] * 4 + [1.04] * 10, 1.0) == 2, "the median of five"
    assert near_after([1.0, 9.0, 1.0, 1.0, 1.0, 9.0], 1.0) == 0
    assert near_after([1.06] * 10, 1.0) is None
    assert near_after([1.0] * 4, 1.0) is None


def test_a_network_that_no_job_had_by_itself_has_no_comparison() -> None:
    (cell,) = rows([[Series("prophet", CHANGING, [float(second) for second in range(86)])]])
    assert {row["steady_s"] for row in cell} == {None}
    times = {"stock_s": None, "ours_s": 1.0, "steady_s": None, "off": None, "near_after": None}
    assert cell[0] == {"network": FAST, "from_s": 0.0, **times}


def test_time_is_counted_from_when_all_workers_had_trained() -> None:
    cluster = load_experiment(CONFIG).cells[0].cluster
    marks = [[Mark(begin, begin, begin) for begin in moments] for moments in ([5.0, 6.0, 7.5], [5.0, 6.5, 7.5])]
    status = AgentStatus(
        "prophet",
        "",
        3,
        0.1,
        4096,
        None,
        recuts=2,
        last_recut_s=36.5,
        recut_reason="slower",
        cut=(Segment(0, 1 << 20),),
    )
    series = series_of("prophet", cluster, [WorkerRecord([1.0, 1.5], own, start_s=4.0) for own in marks], status)
    assert series.starts_s == [-1.5, -0.5, 1.0]
    assert (series.recuts, series.last_recut_s, series.block_bytes) == (2, 30.0, [1 << 20])
