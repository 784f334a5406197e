"""Transfers out of events, waits and ways of gradients computed by hand, and that the figures are drawn."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from prophet_scheduler.core.event_record import EventRecord, save_record
from prophet_scheduler.core.events import EVENT_DTYPE, EventKind, QueueKind
from prophet_scheduler.core.transfer import Transfer
from prophet_scheduler.engines.byteps.trace import read_trace
from prophet_scheduler.lab.figures import draw_gantt, draw_iteration_times, draw_throughput, draw_turnarounds
from prophet_scheduler.lab.jobs.record import Mark
from prophet_scheduler.lab.results import summarize
from prophet_scheduler.lab.runs import CellRuns, Run
from prophet_scheduler.lab.transfers import RecordedRun, Turnaround, mean_s, one_run_each, pair_events, turnarounds
from support.configs import REPLAY, loaded
from support.fakes import agent_status, recorded_events, worker_record

WORKER = worker_record([1.0] * 5)
PNG = b"\x89PNG"


@pytest.fixture
def recorded() -> RecordedRun:
    return RecordedRun("prophet", pair_events(recorded_events(WORKER.marks)), tuple(WORKER.marks))


def test_events_of_a_task_become_one_transfer(recorded: RecordedRun) -> None:
    assert len(recorded.transfers) == 6 * 3 * 2, "each gradient once each way an iteration; no broadcast"
    first = recorded.transfers[0]
    assert (first.gradient, first.queue, first.size_bytes) == (2, QueueKind.PUSH, 1000)
    assert 0 < first.added_s < first.start_s < first.finish_s


@pytest.mark.parametrize(
    "events",
    [
        [(1.0, 0, EventKind.FINISH, 0)],  # it began before the record
        [(2.0, 1, EventKind.ADD, 0), (2.5, 2, EventKind.ADD, 0), (2.6, 2, EventKind.START, 0)],  # they never ended
        [(1.0, 1, EventKind.ADD, 0), (1.5, 1, EventKind.START, 0), (9.0, 1, EventKind.FINISH, 50)],  # events were lost
    ],
)
def test_tasks_of_which_a_part_is_unknown_are_left_out(events: list[tuple[float, int, int, int]]) -> None:
    rows = [(time_s, gradient, 8, 0, QueueKind.PUSH, kind, gap) for time_s, gradient, kind, gap in events]
    assert pair_events(np.array(rows, EVENT_DTYPE)) == ()


def byteps_trace(folder: Path) -> Path:
    """A trace as BytePS writes it: two parameters in alphabetical order of key, and a broadcast."""
    events = [
        {"pid": f"Comm.byteps.{name}", "name": f"Comm.byteps.{name}{stage}", "ts": ts, "dur": 500_000, "tid": str(key)}
        for name, key in (("Gradient.a", 5 << 16 | 1), ("Gradient.b", 6 << 16), ("Parameter.a", 7 << 16))
        for stage, ts in ((".COPYD2H", 1_001_000_000), (".PUSH", 1_002_000_000), (".PULL", 1_003_000_000))
    ]
    whole = [("a", 1_000_500_000), ("b", 1_001_500_000), ("a", 1_900_000_000)]
    for name, ts in whole:
        pid = f"Comm.byteps.Gradient.{name}"
        events.append({"pid": pid, "name": pid, "ts": ts, "dur": 900_000, "tid": "total"})
    path = folder / "worker0.trace" / "0" / "comm.json"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps({"traceEvents": events}))
    return path


def test_byteps_own_trace_is_read_on_the_steady_clock(tmp_path: Path) -> None:
    worker = replace(WORKER, parameters=["b", "a"], wall_minus_steady_s=900.0)
    transfers = read_trace(byteps_trace(tmp_path), worker)
    assert [(t.gradient, t.partition, t.queue, t.added_s, t.start_s, t.finish_s) for t in transfers] == [
        (1, 1, QueueKind.PUSH, 100.5, 102.0, 102.5),
        (1, 1, QueueKind.PULL, 103.0, 103.0, 103.5),
        (0, 0, QueueKind.PUSH, 101.5, 102.0, 102.5),
        (0, 0, QueueKind.PULL, 103.0, 103.0, 103.5),
    ]


def test_stock_is_drawn_from_its_recording(tmp_path: Path) -> None:
    byteps_trace(tmp_path)
    worker = replace(WORKER, parameters=["b", "a"], wall_minus_steady_s=900.0)
    runs = {"stock": [Run(Path("nowhere"), (WORKER, WORKER))]}
    cell = loaded(REPLAY, tmp_path).cells[0]
    (drawn,) = one_run_each(CellRuns(cell, {}, runs, {"stock": Run(tmp_path, (worker, worker))}))
    assert (drawn.policy, len(drawn.transfers)) == ("stock", 4)
    assert one_run_each(CellRuns(cell, {}, runs, {"stock": Run(tmp_path, error="hung")})) == []


def test_figures_are_drawn(recorded: RecordedRun, tmp_path: Path) -> None:
    experiment = loaded({**REPLAY, "policies": ["stock", "p3", "prophet"]}, tmp_path)
    good = Run(tmp_path, (WORKER, WORKER))
    done = CellRuns(experiment.cells[0], {}, {"stock": [good], "p3": [Run(tmp_path, error="hung")], "prophet": [good]})
    draw_iteration_times(summarize(experiment, [done, done]), tmp_path / "times.png")
    draw_gantt([recorded, recorded], tmp_path / "gantt.png")
    draw_turnarounds({"prophet": turnarounds(recorded, 1)}, tmp_path / "gradients.png")
    draw_throughput([recorded], tmp_path / "throughput.png")
    draw_throughput([replace(recorded, marks=recorded.marks[-3:])], tmp_path / "short.png")  # two whole iterations
    draw_throughput([], tmp_path / "none.png")
    drawn = {path.stem for path in tmp_path.glob("*.png") if path.read_bytes()[:4] == PNG}
    assert drawn == {"times", "gantt", "gradients", "throughput", "short"}


def test_a_run_on_an_engine_of_collectives_knows_that_a_push_is_the_way_back(tmp_path: Path) -> None:
    save_record(EventRecord(recorded_events(WORKER.marks)), tmp_path / "worker0.events.npz")
    good = Run(tmp_path, (WORKER, WORKER), (agent_status(arena=True), agent_status()))
    cell = loaded({**REPLAY, "policies": ["ddp-prophet"]}, tmp_path).cells[0]
    (drawn,) = one_run_each(CellRuns(cell, {}, {"ddp-prophet": [good]}))
    assert drawn.all_reduce and drawn.arena


def test_the_first_good_run_of_each_policy_with_records_is_drawn(tmp_path: Path) -> None:
    folder = tmp_path / "prophet-1"
    folder.mkdir()
    save_record(EventRecord(recorded_events(WORKER.marks)), folder / "worker0.events.npz")
    good = Run(folder, (WORKER, WORKER), (agent_status(), agent_status()))
    runs = {"stock": [Run(tmp_path, (WORKER, WORKER))], "prophet": [Run(tmp_path, error="hung"), good]}
    (drawn,) = one_run_each(CellRuns(loaded(REPLAY, tmp_path).cells[0], {}, runs))
    assert (drawn.policy, len(drawn.transfers)) == ("prophet", 36)


PUSH, PULL = QueueKind.PUSH, QueueKind.PULL
MARKS = tuple(Mark(s, s, s + 1.0) for s in (10.0, 12.0, 14.0, 16.0))


def transfers(late_s: float, began: float) -> list[Transfer]:
    """Gradient 1 in two partitions, then gradient 0; `late_s` is how long both wait."""
    return [
        Transfer(1, 0, 10, PUSH, began + 0.5, began + 0.5 + late_s, began + 0.8),
        Transfer(1, 1, 10, PUSH, began + 0.5, began + 0.8 + late_s, began + 1.0),
        Transfer(0, 0, 10, PUSH, began + 1.0, began + 1.0 + late_s, began + 1.2),
        Transfer(1, 0, 10, PULL, began + 0.9, began + 0.9, began + 1.1),
        Transfer(0, 0, 10, PULL, began + 1.2, began + 1.2, began + 1.4),
        Transfer(1, 1, 10, PULL, began + 1.1, began + 1.1, began + 1.3),
    ]


def close(ours: Turnaround, generated: float, starts: float, back: float) -> bool:
    pairs = ((ours.generated_s, generated), (ours.starts_s, starts), (ours.back_s, back))
    return all(abs(a - b) < 1e-9 for a, b in pairs)


def test_a_gradient_is_back_with_its_last_partition_and_waits_until_its_first_starts() -> None:
    run = RecordedRun("p", tuple(t for mark in MARKS for t in transfers(0.1, mark.backward)), MARKS)
    first, second = turnarounds(run, warmup=1)
    assert close(first, 1.0, 1.1, 1.4)
    assert close(second, 0.5, 0.6, 1.3)
    means = mean_s([first, second])
    assert abs(means.wait_s - 0.1) < 1e-9
    assert abs(means.total_s - 0.6) < 1e-9


def test_iterations_of_the_warm_up_and_the_last_are_not_counted() -> None:
    late = (5.0, 0.1, 0.3, 7.0)
    run = RecordedRun(
        "p", tuple(t for mark, wait in zip(MARKS, late, strict=True) for t in transfers(wait, mark.backward)), MARKS
    )
    first, _ = turnarounds(run, warmup=1)
    assert close(first, 1.0, 1.2, 1.4), "the median of 1.1 and 1.3"


def test_a_gradient_that_is_never_pulled_is_left_out() -> None:
    run = RecordedRun("p", (Transfer(3, 0, 10, PUSH, 10.5, 10.6, 10.7),), MARKS)
    assert turnarounds(run, warmup=0) == []


def test_an_all_reduce_is_back_when_it_ends() -> None:
    pushes = tuple(Transfer(3, 0, 10, PUSH, m.backward + 0.5, m.backward + 0.6, m.backward + 0.8) for m in MARKS)
    (only,) = turnarounds(RecordedRun("p", pushes, MARKS, all_reduce=True), warmup=0)
    assert close(only, 0.5, 0.6, 0.8)


def test_a_recording_shorter_than_the_warm_up_still_shows_its_last_iteration() -> None:
    run = RecordedRun("p", tuple(transfers(0.1, MARKS[2].backward)), MARKS)
    assert len(turnarounds(run, warmup=10)) == 2


def test_after_a_recut_the_blocks_of_the_last_iteration_are_counted_where_they_were_the_same() -> None:
    def blocks(size: int, late_s: float, began: float) -> list[Transfer]:
        return [
            Transfer(place, 0, size, queue, began + 0.1, began + 0.1 + late_s, began + 0.9)
            for place in range(0, 40, size)
            for queue in (PUSH, PULL)
        ]

    sizes = ((20, 7.0), (10, 0.1), (10, 0.3), (10, 9.0))
    transfers = tuple(t for mark, cut in zip(MARKS, sizes, strict=True) for t in blocks(*cut, mark.backward))
    ways = turnarounds(RecordedRun("p", transfers, MARKS, arena=True), warmup=0)
    assert [(way.gradient, way.size_bytes) for way in ways] == [(0, 10), (10, 10), (20, 10), (30, 10)]
    assert all(abs(way.wait_s - 0.2) < 1e-9 for way in ways), "the median of 0.1 and 0.3"
