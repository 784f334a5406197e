"""Starts and ends of real jobs whose workers differ or die.

Every worker ends with a line that says who has what, or all train. Who waits for the dead ends if that is asked for.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import pytest

from prophet_byteps.agreement import START_LIMIT_S
from prophet_scheduler import __version__
from prophet_scheduler.lab.testbed import Testbed
from support.roles import WORKERS, Ended, run_job, side_by_side

pytestmark = [pytest.mark.engine, pytest.mark.netns]

JOBS = Path(__file__).with_name("jobs")
JOB, WHERE = str(JOBS / "small_job.py"), str(JOBS / "where.py")
STEPS = "6"
STALL_S = 20
"""More than a worker may be behind the other on a busy machine."""
PORT = 24100
LINK_BPS = 400e6
ON = {"BYTEPS_SCHEDULER": "prophet"}


def start(testbed: Testbed, folder: Path, port: int, *settings: dict[str, str]) -> list[Ended]:
    return run_job(testbed, folder, port, (JOB, STEPS), dict(zip(WORKERS, settings, strict=True)), forked=True)


def test_a_wrong_setting_on_one_worker_ends_both(testbed: Testbed, tmp_path: Path) -> None:
    ends = start(testbed, tmp_path, PORT, ON, {**ON, "PROPHET_MONITOR_S": "x"})
    assert [end.status for end in ends] == [2, 2], ends
    own = "Prophet: PROPHET_MONITOR_S is 'x'; it must be a number of at least 0.1"
    assert ends[1].lines("Prophet") == [own]
    assert len(ends[0].lines("prophet")) == 1
    assert "worker 1: cannot start: PROPHET_MONITOR_S is 'x'" in ends[0].log
    assert f"worker 0: Prophet {__version__} for torch, policy prophet" in ends[0].log


@pytest.mark.parametrize(
    ("port", "other", "words"),
    [
        (PORT + 1, {"BYTEPS_SCHEDULER": "p3"}, ("policy prophet", "policy p3")),
        (PORT + 2, {**ON, "PROPHET_PARTITION_BYTES": "65536"}, ("blocks that adapt", "65536 bytes")),
    ],
)
def test_workers_that_differ_all_end_and_say_who_has_what(
    testbed: Testbed, tmp_path: Path, port: int, other: dict[str, str], words: tuple[str, str]
) -> None:
    ends = start(testbed, tmp_path, port, ON, other)
    assert [end.status for end in ends] == [2, 2], ends
    for end in ends:
        (line,) = end.lines("Prophet:")
        assert line.startswith("Prophet: the workers of this job differ, and must be alike: worker 0: Prophet")
        first, second = line.split("; worker 1: ")
        assert words[0] in first
        assert words[1] in second
        assert end.after_s < 40


def test_a_worker_beside_stock_byteps_ends_and_says_so(testbed: Testbed, tmp_path: Path) -> None:
    """With the other's keys stock BytePS may wait, or its server may fail."""
    assert START_LIMIT_S <= 30
    settings = dict(zip(WORKERS, (ON, {}), strict=True))
    job = (WHERE, "patience_is_short", JOB, STEPS)
    ends = run_job(testbed, tmp_path, PORT + 3, job, settings, awaited=WORKERS[:1], forked=True)
    assert ends[0].status == 2, ends
    (line,) = ends[0].lines("Prophet:")
    assert "not all workers run this Prophet" in line or "not running this Prophet" in line


def test_a_worker_whose_hook_cannot_act_trains_with_the_others(
    testbed: Testbed, beside: Testbed, tmp_path: Path
) -> None:
    case = (WHERE, "worker_1_has_an_unknown_byteps", JOB, STEPS)
    ends, stock = side_by_side(
        lambda: run_job(testbed, tmp_path, PORT + 4, case, dict.fromkeys(WORKERS, ON), forked=True),
        lambda: start(beside, tmp_path / "stock", PORT + 4, {}, {}),
    )
    assert [end.status for end in ends] == [0, 0], ends
    assert ends[0].lines("Prophet") == []
    (warning,) = ends[1].lines("Prophet")
    assert "has no _ZN6byteps6common7UnknownEv" in warning
    assert [end.status for end in stock] == [0, 0], stock
    assert len({line for end in [*ends, *stock] for line in end.lines("weights")}) == 1


def test_a_worker_that_ends_first_still_sends_what_another_waits_for(
    testbed: Testbed, beside: Testbed, tmp_path: Path
) -> None:
    wide = "16384"  # An iteration's gradients are under way for longer than a process takes to end.
    job, on = (JOB, STEPS, wide, "0"), dict.fromkeys(WORKERS, ON)
    stock, ends = side_by_side(
        lambda: run_job(testbed, tmp_path / "stock", PORT + 9, job, forked=True),
        lambda: run_job(beside, tmp_path / "scheduled", PORT + 9, job, on, limit_s=120.0, forked=True),
    )
    assert [end.status for end in (*stock, *ends)] == [0] * 4, ends
    assert not any(end.lines("Prophet") for end in ends)
    assert ends[0].lines("weights") == stock[0].lines("weights") != []


def test_workers_that_train_other_tensors_end_before_any_is_sent(testbed: Testbed, tmp_path: Path) -> None:
    case = (WHERE, "worker_1_is_wider", JOB, STEPS)
    ends = run_job(testbed, tmp_path, PORT + 7, case, dict.fromkeys(WORKERS, ON), forked=True)
    assert [end.status for end in ends] == [2, 2], ends
    for end in ends:
        (line,) = end.lines("Prophet:")
        assert "worker 0: optimizer 0: " in line
        assert "worker 1: optimizer 0: " in line


DEATHS = {"worker_1_dies": "the pull of ", "worker_1_dies_before_it_sends": "no transfer is under way, "}
"""Cases of where.py, and what the other worker waits for then."""


@pytest.fixture(scope="module")
def after_deaths(
    testbed: Testbed, beside: Testbed, tmp_path_factory: pytest.TempPathFactory
) -> Mapping[str, list[Ended]]:
    """Ends of the jobs of DEATHS. Most of their time is waiting, which they do together."""
    waits = {worker: {**ON, "PROPHET_STALL_S": f"{STALL_S}"} for worker in WORKERS}

    folders = {case: tmp_path_factory.mktemp(case) for case in DEATHS}  # not made by two threads at once

    def job(bed: Testbed, case: str) -> list[Ended]:
        return run_job(bed, folders[case], PORT + 6, (WHERE, case, JOB, "3"), waits, forked=True)

    first, second = DEATHS
    return dict(zip(DEATHS, side_by_side(lambda: job(testbed, first), lambda: job(beside, second)), strict=True))


@pytest.mark.parametrize("case", DEATHS)
def test_waiting_for_a_dead_worker_ends_at_the_limit(after_deaths: Mapping[str, list[Ended]], case: str) -> None:
    ends = after_deaths[case]
    assert [end.status for end in ends] == [75, 7], ends
    (line,) = ends[0].lines("Prophet:")
    # The agent looks once a second, and on a busy machine later.
    stalled = re.fullmatch(r"Prophet: no transfer has finished for (\d+) s: (.*) \(PROPHET_STALL_S\)", line)
    assert stalled is not None and int(stalled[1]) >= STALL_S, line
    assert stalled[2].startswith(DEATHS[case])
