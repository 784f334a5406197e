"""Transfers out of events, the Perfetto trace, and that the figures are drawn."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from experiment.configs import REPLAY, loaded
from experiment.fakes import recorded_events, status, worker_result

from prophet.experiment.figures import draw_gantt, draw_iteration_times
from prophet.experiment.results import summarize
from prophet.experiment.runner import CellRuns, Run
from prophet.experiment.trace import trace_events, write_trace
from prophet.experiment.transfers import RecordedRun, one_run_each, pair_events
from prophet.model import EVENT_DTYPE, EventKind, QueueKind

WORKER = worker_result([1.0] * 5)
PNG = b"\x89PNG"


@pytest.fixture
def recorded() -> RecordedRun:
    return RecordedRun("prophet", pair_events(recorded_events(WORKER["marks"])), tuple(WORKER["marks"]))


def test_events_of_a_task_become_one_transfer(recorded: RecordedRun) -> None:
    assert len(recorded.transfers) == 6 * 3 * 2, "each gradient once each way an iteration; no broadcast"
    first = recorded.transfers[0]
    assert (first.gradient, first.queue, first.size_bytes) == (2, QueueKind.PUSH, 1000)
    assert 0 < first.added_s < first.start_s < first.finish_s


def test_tasks_that_began_before_the_record_or_never_ended_are_left_out() -> None:
    rows = [
        (1.0, 0, 8, 0, QueueKind.PUSH, EventKind.FINISH, 0),
        (2.0, 1, 8, 0, QueueKind.PUSH, EventKind.ADD, 0),
        (2.5, 2, 8, 0, QueueKind.PUSH, EventKind.ADD, 0),
        (2.6, 2, 8, 0, QueueKind.PUSH, EventKind.START, 0),
    ]
    assert pair_events(np.array(rows, EVENT_DTYPE)) == ()


def test_the_trace_has_each_transfer_as_a_pair_within_the_last_iterations(
    recorded: RecordedRun, tmp_path: Path
) -> None:
    events = trace_events(recorded, process=7)
    begins = [event for event in events if event["ph"] == "b"]
    ends = {event["id"]: event for event in events if event["ph"] == "e"}
    assert len(begins) == 3 * 3 * 2
    assert {event["tid"] for event in begins} == {"push", "pull"}
    assert {event["pid"] for event in events} == {7}
    assert all(ends[event["id"]]["ts"] - event["ts"] == pytest.approx(10_000, abs=1) for event in begins)
    assert [event["name"] for event in events if event["ph"] == "X"][:2] == ["backward 2", "backward 3"]
    write_trace([recorded, recorded], tmp_path / "trace.json")
    assert {e["pid"] for e in json.loads((tmp_path / "trace.json").read_text())["traceEvents"]} == {0, 1}


def test_figures_are_drawn(recorded: RecordedRun, tmp_path: Path) -> None:
    experiment = loaded(REPLAY, tmp_path)
    good = Run(tmp_path, (WORKER, WORKER))
    done = CellRuns(experiment.cells[0], {}, {"stock": [good], "p3": [Run(tmp_path, error="hung")], "prophet": [good]})
    draw_iteration_times(summarize(experiment, [done, done]), tmp_path / "times.png")
    draw_gantt([recorded, recorded], tmp_path / "gantt.png")
    assert (tmp_path / "times.png").read_bytes()[:4] == PNG
    assert (tmp_path / "gantt.png").read_bytes()[:4] == PNG


def test_the_first_good_run_of_each_policy_with_records_is_drawn(tmp_path: Path) -> None:
    folder = tmp_path / "prophet-1"
    folder.mkdir()
    np.save(folder / "worker0.events.npy", recorded_events(WORKER["marks"]))
    good = Run(folder, (WORKER, WORKER), (status(), status()))
    runs = {"stock": [Run(tmp_path, (WORKER, WORKER))], "prophet": [Run(tmp_path, error="hung"), good]}
    (one,) = one_run_each(CellRuns(loaded(REPLAY, tmp_path).cells[0], {}, runs))
    assert (one.policy, len(one.transfers)) == ("prophet", 36)
