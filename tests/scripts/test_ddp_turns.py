"""A job goes on with the reducer that was faster, and ends with plain DDP's bits either way.

The time that a reducer's iterations take is made up (turned.py); all else is as torchrun would start it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from scripts.ranks import Ranks

pytest.importorskip("torch")

SCRIPT = Path(__file__).with_name("ddp_long.py")
COMMON = ("torch", "torch._dynamo", "numpy")
LIMIT_S = 180.0
SLOWER_S = 0.05
ITERATIONS = 300
LOOKS = 12
"""Iterations of a few turns at the most."""


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """Return what each rank of the script reports without Prophet."""
    with Ranks({}, COMMON) as ranks:
        return ranks.run(SCRIPT, tmp_path_factory.mktemp("plain") / "job", LIMIT_S)


@pytest.fixture(scope="module")
def scheduled() -> Iterator[Ranks]:
    settings = {"PROPHET_SCHEDULER": "prophet", "PROPHET_STATUS_OUT": "status.json", "PROPHET_MONITOR_S": "0.1"}
    with Ranks(settings, (*COMMON, "prophet_ddp.takeover", "turned")) as ranks:
        yield ranks


class Job:
    """The script under Prophet, with `slow` ("PROPHET" or "TORCH") as the slower one, and `more` in its environment."""

    def __init__(self, ranks: Ranks, folder: Path, slow: str, **more: str) -> None:
        settings = {f"SLOW_{slow}_S": str(SLOWER_S), **more}
        self.reports = ranks.run(SCRIPT, folder / "job", LIMIT_S, settings=settings)
        places = [folder / "job" / f"rank{rank}" for rank in range(2)]
        self.counts = [json.loads((place / "turned.json").read_text()) for place in places]
        self.logs = [(place / "log").read_text() for place in places]
        files = [places[0] / "status.json", places[1] / "status.1.json"]
        self.statuses = [json.loads(file.read_text()) for file in files]


def test_where_torchs_reducer_is_faster_it_has_the_rest_of_the_job(
    plain: list[dict[str, Any]], scheduled: Ranks, tmp_path: Path
) -> None:
    job = Job(scheduled, tmp_path, "PROPHET")
    assert job.reports == plain
    for count, status in zip(job.counts, job.statuses, strict=True):
        assert count["given back"] == 1
        assert count["torch"] > 0, "it was seen before"
        assert count["prophet"] + count["torch"] < ITERATIONS - 10, "and it was not only at the end"
        assert count["slots"] == 0, "nothing is watched any more, and no memory kept"
        assert status["given_back"] and not status["stepped_aside"]
    assert re.search(r"ms with torch's reducer( in buckets of \S+)? and", job.statuses[0]["given_back"])
    assert [log.count("has torch's reducer from now on") for log in job.logs] == [1, 0]


def test_where_the_program_has_parts_of_gradients_it_keeps_its_turn(
    plain: list[dict[str, Any]], scheduled: Ranks, tmp_path: Path
) -> None:
    job = Job(scheduled, tmp_path, "PROPHET", LENDS="1")
    assert job.reports == plain
    for count in job.counts:
        assert count["torch"] > LOOKS and count["given back"] == 0


def test_where_it_is_slower_prophet_is_kept_after_a_look(
    plain: list[dict[str, Any]], scheduled: Ranks, tmp_path: Path
) -> None:
    job = Job(scheduled, tmp_path, "TORCH")
    assert job.reports == plain
    for count in job.counts:
        assert count["prophet"] + count["torch"] == ITERATIONS
        assert 0 < count["torch"] <= LOOKS and count["given back"] == 0
    assert [status["given_back"] for status in job.statuses] == ["", ""]
    assert not any("torch's reducer" in log for log in job.logs)
