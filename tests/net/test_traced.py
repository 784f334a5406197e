"""A real job that traces its first iterations: its plan is of the model's own graph, and the weights are stock's."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from prophet_scheduler.core.cut import MOST_BLOCK_BYTES, Cut, blocks_of
from prophet_scheduler.lab.testbed import Testbed
from support.roles import WORKERS, Ended, run_job, side_by_side

pytestmark = [pytest.mark.engine, pytest.mark.netns]

JOBS = Path(__file__).with_name("jobs")
JOB = [str(JOBS / "branches.py"), "40"]
KEPT = [str(JOBS / "last_plan.py"), *JOB]
PORT = 24450
LINK_BPS = 20e6
"""An iteration takes a tenth of a second, so that the agent has its turns."""
BRANCH, TOGETHER, FIRST = 4 * 64 * 256, 4 * 768 * 16, 4 * 32 * 64
SIZES = [BRANCH, BRANCH, BRANCH, TOGETHER, FIRST]
RANKS = [0, 0, 0, 4, 0]
"""Order by structure alone: each branch is held up by itself and by the first layer."""


def ended(folder: Path, ends: list[Ended]) -> set[str]:
    """The digests of the weights; no worker had a word to say."""
    for worker, end in zip(WORKERS, ends, strict=True):
        assert end.status == 0 and not end.lines("Prophet"), end.log[-2000:]
        if (status := folder / worker / "status.json").exists():
            assert json.loads(status.read_text())["stepped_aside"] == ""
    return {line for end in ends for line in end.lines("weights ")}


def test_the_order_is_that_of_the_models_graph_on_every_worker(
    testbed: Testbed, beside: Testbed, tmp_path: Path
) -> None:
    def under(bed: Testbed, number: int, policy: str) -> list[Ended]:
        settings = {"BYTEPS_SCHEDULER": policy, "PROPHET_STATUS_OUT": "status.json"}
        return run_job(bed, tmp_path / policy, PORT + number, KEPT, dict.fromkeys(WORKERS, settings), forked=True)

    runs = side_by_side(
        lambda: run_job(testbed, tmp_path / "stock", PORT, JOB, forked=True), lambda: under(beside, 1, "tictac-tio")
    ) + side_by_side(lambda: under(testbed, 2, "tictac"), lambda: under(beside, 3, "caramel"))
    names = ("stock", "tictac-tio", "tictac", "caramel")
    weights = {name: ended(tmp_path / name, ends) for name, ends in zip(names, runs, strict=True)}
    assert len(weights["stock"]) == 1
    assert all(digests == weights["stock"] for digests in weights.values()), weights
    ids = [block.id for block in blocks_of(SIZES, [None] * len(SIZES), Cut.uniform(MOST_BLOCK_BYTES))]
    for end in runs[1]:
        (line,) = end.lines("order ")
        order = dict(json.loads(line.removeprefix("order ")))
        assert [order[id_] for id_ in ids] == RANKS, "of layers one after another no three are equal"
    for end in runs[2]:
        (line,) = end.lines("order ")
        order = dict(json.loads(line.removeprefix("order ")))
        assert sorted(order.values()) == list(range(len(SIZES)))
        assert order[ids[4]] == 0 and order[ids[3]] == 4
