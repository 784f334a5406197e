"""Numbers of a job whose network changes, with made-up times, and the runs of its config."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from prophet_scheduler.core.cut import Segment
from prophet_scheduler.core.status import AgentStatus
from prophet_scheduler.lab.config import load_experiment
from prophet_scheduler.lab.jobs.record import Mark, WorkerRecord
from tools import changing
from tools.changing import (
    JobNetwork,
    Regime,
    RegimeRow,
    Series,
    iterations,
    near_after,
    regimes,
    rows,
    series_of,
    settled_s,
    steady,
)

CONFIG = Path(__file__).parents[2] / changing.CONFIG
FAST, SLOW = JobNetwork(2.5e9), JobNetwork(250e6)
CHANGING = (Regime(FAST, 0.0, 20.0), Regime(SLOW, 20.0, 60.0), Regime(FAST, 60.0))


def starts(*parts: tuple[int, float], began: float = 0.0) -> list[float]:
    """Iterations that follow one another: so many, each so long."""
    moments = [began]
    for count, seconds in parts:
        for _ in range(count):
            moments.append(moments[-1] + seconds)
    return moments


def job(*parts: tuple[int, float], policy: str = "prophet", networks: Sequence[Regime] = CHANGING) -> Series:
    return Series(policy, networks, starts(*parts))


def by_itself(network: JobNetwork, seconds: float) -> Series:
    return Series("prophet", [Regime(network, 0.0)], starts((10, 2 * seconds), (30, seconds)))


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


def test_an_iteration_belongs_to_the_network_that_it_began_and_ended_in() -> None:
    series = job((19, 1.0), (3, 1.5), (30, 1.0))
    first, second, third = CHANGING
    assert len(iterations(series, first)) == 19, "the one from 19 s to 20.5 s is neither's"
    assert list(iterations(series, second)[0]) == pytest.approx([0.5, 1.5])
    assert iterations(series, third) == []


def test_what_counts_begins_some_seconds_after_the_network_came() -> None:
    series = job((20, 1.0), (5, 2.0), (30, 1.0))
    assert settled_s(series, CHANGING[1]) == pytest.approx(1.0)
    assert settled_s(job((20, 1.0), (2, 4.5)), CHANGING[1]) is None


def test_until_near_is_counted_in_iterations_and_one_that_stalls_does_not_matter() -> None:
    assert near_after([1.0] * 10, 1.0) == 0
    assert near_after([2.0] * 4 + [1.04] * 10, 1.0) == 2, "the median of five"
    assert near_after([1.0, 9.0, 1.0, 1.0, 1.0, 9.0], 1.0) == 0
    assert near_after([1.06] * 10, 1.0) is None
    assert near_after([1.0] * 4, 1.0) is None


def test_each_network_is_held_against_the_same_by_itself() -> None:
    jobs = [
        [
            job((20, 1.0), (10, 2.0), (10, 2.0), (30, 1.2), policy="stock"),
            job((20, 1.0), (5, 2.0), (30, 1.0), (30, 1.1)),
        ],
        [by_itself(FAST, 1.0)],
        [by_itself(SLOW, 0.9)],
    ]
    assert steady([series for cell in jobs for series in cell]) == {
        FAST: pytest.approx(1.0),
        SLOW: pytest.approx(0.9),
    }
    (cell,) = rows(jobs)
    assert [row.network for row in cell] == [FAST, SLOW, FAST]
    assert [row.off for row in cell] == pytest.approx([0.0, 1 / 0.9 - 1, 0.1])
    assert [row.near_after for row in cell] == [0, None, None]
    assert cell[2].stock_s == pytest.approx(1.2)


def test_a_network_that_no_job_had_by_itself_has_no_comparison() -> None:
    (cell,) = rows([[job((20, 1.0), (35, 1.0), (30, 1.0))]])
    assert {row.steady_s for row in cell} == {None}
    assert cell[0] == RegimeRow(FAST, 0.0, None, 1.0, None, None)


def test_time_is_counted_from_when_all_workers_had_trained_and_in_a_simulation_from_its_beginning() -> None:
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
    simulated = series_of("prophet", cluster, [WorkerRecord([1.0, 1.5], own) for own in marks])
    assert simulated.starts_s == [0.0, 1.0, 2.5]
