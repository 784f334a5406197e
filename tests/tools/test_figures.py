"""Figures of pages, from results that nobody measured."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from prophet_scheduler.lab import simulated
from prophet_scheduler.lab.records import ConvergenceResult, PolicyResult
from prophet_scheduler.models.profiles import save_profile
from support.configs import REPLAY, loaded
from support.profiles import resnet50
from support.results import cell, failed, policy
from tools import figures, kept
from tools.kept import Point, Study

ROOT = Path(__file__).parents[2]
DDP = {"ddp-gloo": 1.6, "ddp-gloo-1": 1.3, "ddp-gloo-5": 1.2, "ddp-horovod": 1.0, "ddp-prophet": 0.96}
BLOCKS = {"stock": 1.7, "prophet": 0.97, "fixed-128k": 1.5, "fixed-1m": 1.0, "ddp-gloo": 1.1, "mxnet-p3": 0.95}


def of(times: dict[str, float], **more: Any) -> dict[str, PolicyResult]:
    return {name: policy(seconds, **more) for name, seconds in times.items()}


def two() -> list[Point]:
    return [
        Point(cell(prophet=policy(1.0), stock=policy(2.0), p3=policy(0.9)), 2),
        Point(cell(prophet=policy(1.0), stock=policy(1.5), p3=policy(1.1)), 2),
    ]


def test_gains_of_cells_that_have_both() -> None:
    points = [*two(), Point(cell(prophet=policy(1.0)), 2)]
    assert figures.gains(points, "prophet", "stock") == [1.0, 0.5]
    assert figures.speedup(points[2].cell.times_s, "prophet", "stock") is None
    assert figures.fastest_other(points[0].cell, "p3") == ("prophet", 1.0)


@pytest.mark.parametrize(("values", "said"), [([], "-"), ([0.12, 0.46, 0.3], "12% to 46%"), ([0.121, 0.119], "12%")])
def test_a_span_is_one_value_where_both_are_shown_alike(values: list[float], said: str) -> None:
    assert figures.span(values) == said


def test_recorded_patterns_have_their_steps(tmp_path: Path) -> None:
    save_profile(resnet50(), tmp_path / "one.json", "a test")
    ((profile, steps),) = figures.patterns(str(tmp_path))
    assert len(profile.gradients) == 161 and len(steps) == 13 and steps[0].first == 0


def test_a_contender_is_held_against_the_bound_of_its_cell() -> None:
    cells = [
        cell(**of({"prophet": 1.0, "p3": 1.5})),
        cell(**of({"prophet": 2.0, "p3": 2.0})),
        cell(prophet=failed("hung"), p3=policy(9.0)),
    ]
    points = [Point(each, 2) for each in cells]
    assert figures.gains(points, "prophet", "p3") == pytest.approx([0.5, 0.0]), "of cells with both"
    assert figures.policies(cells) == ["prophet", "p3"]
    assert [figures.of_bound(cells[2], name) for name in ("prophet", "p3", "stock")] == ["failed", "15.000", "-"]


def test_prophet_is_held_against_ddp_as_it_comes_and_its_best_bucket_size() -> None:
    lacks = [cell(**{"ddp-gloo": policy(1.0), "ddp-prophet": failed("hung")}), cell(**{"ddp-prophet": policy(1.0)})]
    (row,) = figures.ddp_standings([*lacks, cell(**of(DDP))])
    assert row.best == "ddp-gloo-5" and row.of_bound == pytest.approx(1.6)
    assert row.over_stock == pytest.approx(1.6 / 0.96)
    assert row.over_best == pytest.approx(1.2 / 0.96)


def test_weights_are_those_of_two_ranks_that_were_compared() -> None:
    def point(workers: int, same: bool | None) -> Point:
        ours = policy(0.9, **({} if same is None else {"same_weights_as_stock": same}))
        return Point(cell(**{"ddp-prophet": ours, "stock": policy()}), workers)

    points = [point(2, True), point(2, False), point(2, None), point(4, False)]
    assert figures.same_weights(points, "ddp-prophet") == [True, False]
    assert figures.same_weights(points) == [True, False, False], "what was not compared was not shown"


def test_prophet_is_held_against_the_best_size_stock_and_the_fastest_other(tmp_path: Path) -> None:
    source: Any = loaded(REPLAY, tmp_path).source
    study = Study(source, [Point(cell(**of(BLOCKS, repeats=[1.0])), 2)])
    (row,) = figures.block_standings(study)
    assert (row.best, row.other, row.stock_s) == ("fixed-1m", "mxnet-p3", 1.7)
    assert row.ahead == pytest.approx(0.03)
    assert row.ahead_of_other == pytest.approx(1 - 0.97 / 0.95)
    assert figures.block_standings(Study(source, [Point(cell(prophet=failed("hung")), 2)])) == []


def test_how_exactly_the_difference_is_known_follows_from_the_scatter() -> None:
    rng = np.random.default_rng(0)
    times_s = rng.normal(1.0, 0.1, (4000, 2, 10))
    p10, p90 = np.quantile(times_s, [0.1, 0.9])
    measured = policy(1.0, repeats=[1.0, 1.0], iteration_s={"median": 1.0, "p10": p10, "p90": p90})
    of_median_s = np.median(times_s.reshape(4000, 20), axis=1).std()
    assert figures.error_s(measured, 10) == pytest.approx(of_median_s, rel=0.05)
    every_s = rng.normal(1.0, 0.1, (2, 2, 400)).tolist()  # by repeat and worker; a worker's times are the other's, too
    whole = policy(1.0, iterations=[[tuple(worker) for worker in (repeat[0], repeat[0])] for repeat in every_s])
    assert figures.error_s(whole, 0) == pytest.approx(0.1 / 796**0.5, rel=0.1), "of the mean of all but the first"


def test_a_simulated_cell_is_held_against_what_any_blocks_could_come_to(tmp_path: Path) -> None:
    source: Any = loaded(REPLAY, tmp_path).source
    study = Study(source, [Point(cell(**of(BLOCKS)), 2)])
    (row,) = figures.block_gains(study)
    assert row.over_fixed == pytest.approx(0.03)
    assert row.over_other == pytest.approx(1 - 0.97 / 0.95)
    assert row.of_bound["stock"] == pytest.approx(1.7 / 0.6)
    assert row.any_blocks is not None and row.possible == pytest.approx(1 - row.any_blocks * 0.6)
    assert figures.block_gains(Study(study.config, [Point(cell(prophet=policy()), 2)])) == []


def test_a_simulated_time_is_near_within_a_tenth() -> None:
    real, simulated = cell(**of({"p3": 1.0, "fifo": 1.0})), cell(**of({"p3": 1.15, "fifo": 0.95}))
    rows = figures.compared([Point(real, 2, simulated), Point(real, 2)])
    assert [(row.policy, row.setting, row.near) for row in rows] == [
        ("p3", "250mbit", False),
        ("fifo", "250mbit", True),
    ]
    assert rows[0].error == pytest.approx(0.15)


def test_mlfabric_is_ahead_where_its_time_to_the_loss_is_shorter() -> None:
    def came(ours_s: float | None, ring_s: float | None) -> dict[str, ConvergenceResult | None]:
        times = {"mlfabric": ours_s, "ring": ring_s}
        return {
            name: ConvergenceResult(target_loss=0.5, time_to_loss_s=time_s, update_s=0.2)
            for name, time_s in times.items()
        }

    real, simulated = came(20.0, 15.0), came(16.0, None)
    pairs = {name: (real[name], simulated[name]) for name in real}
    assert figures.ratios(pairs, "ring", "mlfabric") == [0.75, None]
    assert figures.ratios({**pairs, "ring": (None, None)}, "ring", "mlfabric") == [None, None]
    assert figures.nearness({"c1-n1": pairs}, "ring") == [1.0]
    assert figures.of_paper("c2-n1") == 2.96


def run_that_grows(worker: int, server: int, last: int = 10_000) -> dict[str, Any]:
    """30 MB at the start, more by so many bytes an iteration, and 50 MB made once in the first iterations."""
    iterations = list(range(20, last + 1, 20))
    resident = {
        role: [30_000_000 + growth * n + (50_000_000 if n > 40 else 0) for n in iterations]
        for role, growth in (("worker", worker), ("server", server))
    }
    return {"iterations": iterations, "resident": resident}


def test_growth_is_counted_a_message_and_after_the_start() -> None:
    run = run_that_grows(16 * 700, 32 * 900)
    assert figures.message_bytes(run, "worker", 16) == pytest.approx(700)
    assert figures.message_bytes(run, "server", 32) == pytest.approx(900)
    assert figures.message_bytes(run_that_grows(0, 0), "worker", 16) == pytest.approx(0, abs=1e-6)
    assert figures.message_bytes(run_that_grows(1, 1, last=60), "worker", 16) is None


def test_a_run_that_ended_early_has_no_later_samples() -> None:
    run = run_that_grows(1000, 1000, last=1_200)
    assert figures.megabytes_at(run, "worker", 1_000) == 81.0
    assert figures.megabytes_at(run, "worker", 2_500) is None
    assert figures.megabytes_at({"iterations": [], "resident": {"worker": []}}, "worker", 100) is None


def operations(delay_s: float | None, small_s: float, large_s: float) -> dict[str, Any]:
    sizes = (4096, 1 << 24)
    bare = [[size, count, small_s if size == 4096 else large_s] for size in sizes for count in (1, 8)]
    rates = {"copied_rate": 9e9, "renewed_rate": 3e9, "updated_rate": 8e9}
    way = {"ranks": 2, "bandwidth_bps": None, "delay_s": delay_s}
    return {"way": way, "bare_s": bare, "issued_s": [[4096, 0.001]], **rates}


def test_the_simulators_numbers_follow_from_operations_alone() -> None:
    so = figures.follows([operations(None, 0.0004, 0.0088), operations(0.005, 0.0404, 0.17)])
    assert so["ways_a_message"] == pytest.approx(2.0), "40 ms are two messages of two ways of 10 ms each"
    assert so["message_s"] == pytest.approx(0.0001), "two ranks send two messages each"
    assert so["moved_rate"] == pytest.approx(2 * (1 << 24) / 0.0084)
    assert so["issue_s"] == pytest.approx(0.0006)


def test_the_simulator_has_what_was_measured() -> None:
    stored = kept.kept(ROOT / kept.RESULTS, "operations", list[dict[str, Any]])
    assert stored is not None
    so = figures.follows(stored.data)
    assert so["ways_a_message"] == pytest.approx(simulated.WAYS_A_MESSAGE, rel=0.05)
    assert so["message_s"] == pytest.approx(simulated.MESSAGE_S, rel=0.02)
    assert so["moved_rate"] == pytest.approx(simulated.MOVED_RATE, rel=0.02)
    assert so["issue_s"] == pytest.approx(simulated.ISSUE_S, rel=0.05)
    assert so["copied_rate"] == pytest.approx(simulated.COPIED_RATE, rel=0.02)
    assert so["renewed_rate"] == pytest.approx(simulated.RENEWED_RATE, rel=0.02)
    assert so["updated_rate"] == pytest.approx(simulated.UPDATED_RATE, rel=0.02)


GPU_RUN: dict[str, Any] = {
    "job": {"engine": "ddp", "model": "resnet50", "bandwidth": "2.5gbit", "iterations": 40, "how": ["clips"]},
    "gradient_bytes": 102_000_000,
    "seconds": [9.0] * 2 + [0.5] * 38,
    "digest": "aa",
    "device_bytes": 3_100_000_000,
}
UNDER = {**GPU_RUN, "seconds": [9.0] * 2 + [0.6] * 19 + [0.4] * 19, "device_bytes": 3_200_000_000}


def test_a_gpu_job_that_ran_both_ways_is_compared() -> None:
    alone = {**GPU_RUN, "job": {**GPU_RUN["job"], "bandwidth": "none"}}
    (pair,) = figures.pairs([GPU_RUN, UNDER, alone])
    assert [times.headline for times in pair.times] == pytest.approx([0.5, 0.5])
    assert [times.rest for times in pair.times] == pytest.approx([0.5, 0.41], rel=0.01)
    assert pair.same_weights == "yes"


def test_other_weights_are_told_and_runs_of_another_length_not_compared() -> None:
    def same(**changed: Any) -> str:
        return figures.pairs([GPU_RUN, {**UNDER, **changed}])[0].same_weights

    assert same(digest="bb") == "**no**"
    assert same(digest="bb", seconds=[1.0] * 9) == "-"


def watched() -> dict[str, Any]:
    """Two ranks and four cycles in which all takes a hundredth more, and the machine gets slower. Prophet's threads
    take a thousandth more of an iteration for it on the first rank, and two on the other; of that one watches.
    """
    turns = [
        {
            **{"rank": rank, "cycle": cycle, "variant": variant, "cpu_s": 0.5},
            "iteration_s": (1 + cycle) * (1.01 if variant == "all" else 1.0),
            "threads_s": (1 + cycle) * (0.02 + (0.001 * (1 + rank) if variant == "all" else 0.0)),
            "watching_s": (1 + cycle) * (0.001 if variant == "all" else 0.0),
        }
        for rank in range(2)
        for cycle in range(4)
        for variant in ("nothing", "status", "all")
    ]
    return {"turns": turns, "calls": [{"rank": 1, "call": "_write", "count": 2.0, "call_s": 0.0001}]}


def test_a_turn_is_compared_with_that_of_its_own_cycle_and_rank() -> None:
    assert figures.delayed(watched(), "all", "iteration_s") == pytest.approx([0.01] * 8)
    assert figures.delayed(watched(), "status", "cpu_s") == [0.0] * 8
    assert figures.scattered([0.01] * 8) == "+1.00% (0.00%)"
    assert figures.scattered([0.0, 0.02, 0.04]) == "+2.00% (2.14%)"


def test_what_watching_takes_is_counted_in_its_own_code_and_in_the_threads_of_training() -> None:
    called = [0.0002 / (1 + cycle) for cycle in range(4)]
    assert figures.watching_share(watched(), "all", 0, counted=True) == pytest.approx([0.001] * 4)
    assert figures.watching_share(watched(), "all", 1, counted=True) == pytest.approx([0.001 + each for each in called])
    assert figures.watching_share(watched(), "all", 0, counted=False) == pytest.approx([0.001] * 4)
    assert figures.watching_share(watched(), "all", 1, counted=False) == pytest.approx(
        [0.002 + each for each in called]
    )
    assert figures.watching_share(watched(), "status", 0, counted=False) == pytest.approx([0.0] * 4)
