"""Figures of pages, from results that nobody measured."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from prophet_scheduler.lab import simulated
from prophet_scheduler.lab.records import ConvergenceResult, PolicyResult
from support.configs import REPLAY, loaded
from support.results import cell, failed, policy
from tools import figures, kept
from tools.kept import Point, Study

ROOT = Path(__file__).parents[2]
DDP = {"ddp-gloo": 1.6, "ddp-gloo-1": 1.3, "ddp-gloo-5": 1.2, "ddp-horovod": 1.0, "ddp-prophet": 0.96}


def of(times: dict[str, float], **more: Any) -> dict[str, PolicyResult]:
    return {name: policy(seconds, **more) for name, seconds in times.items()}


@pytest.mark.parametrize(("values", "said"), [([], "-"), ([0.12, 0.46, 0.3], "12% to 46%"), ([0.121, 0.119], "12%")])
def test_a_span_is_one_value_where_both_are_shown_alike(values: list[float], said: str) -> None:
    assert figures.span(values) == said


def test_gains_are_of_cells_with_both_policies() -> None:
    cells = [
        cell(**of({"prophet": 1.0, "p3": 1.5})),
        cell(**of({"prophet": 2.0, "p3": 2.0})),
        cell(prophet=failed("hung"), p3=policy(9.0)),
    ]
    points = [Point(each, 2) for each in cells]
    assert figures.gains(points, "prophet", "p3") == pytest.approx([0.5, 0.0])
    assert figures.policies(cells) == ["prophet", "p3"]


def test_prophet_is_held_against_ddp_as_it_comes_and_its_best_bucket_size() -> None:
    lacks = [cell(**{"ddp-gloo": policy(1.0), "ddp-prophet": failed("hung")}), cell(**{"ddp-prophet": policy(1.0)})]
    (row,) = figures.ddp_standings([*lacks, cell(**of(DDP))])
    assert row["best"] == "ddp-gloo-5" and row["of_bound"] == pytest.approx(1.6)
    assert row["over_stock"] == pytest.approx(1.6 / 0.96)
    assert row["over_best"] == pytest.approx(1.2 / 0.96)


def test_weights_are_those_of_two_ranks_that_were_compared() -> None:
    def point(workers: int, same: bool | None) -> Point:
        ours = policy(0.9, **({} if same is None else {"same_weights_as_stock": same}))
        return Point(cell(**{"ddp-prophet": ours, "stock": policy()}), workers)

    points = [point(2, True), point(2, False), point(2, None), point(4, False)]
    assert figures.same_weights(points, "ddp-prophet") == [True, False]
    assert figures.same_weights(points) == [True, False, False], "what was not compared was not shown"


def test_a_cell_without_prophet_or_a_fixed_size_is_left_out(tmp_path: Path) -> None:
    source: Any = loaded(REPLAY, tmp_path).source
    for lacks in (cell(**{"prophet": failed("hung"), "fixed-1m": policy()}), cell(prophet=policy(), stock=policy())):
        study = Study(source, [Point(lacks, 2)])
        assert not figures.block_standings(study) and not figures.block_gains(study)


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


def test_other_weights_are_told_and_runs_of_another_length_not_compared() -> None:
    run = {"job": "resnet50", "seconds": [1.0] * 9, "digest": "aa"}

    def same(**changed: Any) -> Any:
        return figures.pairs([run, {**run, **changed}])[0]["same_weights"]

    assert [same(), same(digest="bb"), same(digest="bb", seconds=[1.0] * 8)] == ["yes", "**no**", "-"]
    assert figures.pairs([run]) == []
