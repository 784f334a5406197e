"""Content of a report from a job's own record, and from a folder of an experiment."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from prophet_scheduler.core.cut import Cut, Segment
from prophet_scheduler.core.errors import UserError
from prophet_scheduler.core.events import EVENT_DTYPE, EventKind, QueueKind
from prophet_scheduler.lab.records import Results, write_results
from prophet_scheduler.lab.report import story_of
from prophet_scheduler.lab.report.from_record import chapter_of, read_rows
from prophet_scheduler.lab.report.from_run import pair_events
from prophet_scheduler.lab.report.stories import Chapter, CutInForce, Lap
from prophet_scheduler.watch.rows import BeginRow, CutRow, IterationsRow, PlanRow, RecordRow
from prophet_scheduler.watch.status import WorkerName
from support.fakes import recorded_events, worker_record
from support.job_records import write_experiment, write_job_record
from support.results import cell, policy

BEGIN = BeginRow(WorkerName("train-1", 0, "ddp"), unix_s=5000.0, began_s=100.0, version="1")


def test_story_of_record(tmp_path: Path) -> None:
    took_s = write_job_record(tmp_path)
    story = story_of(tmp_path)
    assert story.title == "train-29500" and [chapter.name for chapter in story.chapters] == ["worker 0", "worker 1"]
    first, second = story.chapters
    assert len(first.laps) == 11 and first.all_reduce and first.arena
    assert [len(chapter.cuts) for chapter in story.chapters] == [2, 2]
    learning, chosen = first.compared()
    assert learning.predicted_s is None and learning.error is None
    assert chosen.measured_s == pytest.approx(took_s, rel=1e-5) and chosen.reason.startswith("predicted")
    assert chosen.error == pytest.approx(1.2 / took_s - 1, rel=1e-4)
    assert first.stock_s is not None and first.stock_s > 1.2
    assert first.waited_s["layer5.weight"] == pytest.approx(0.12 * 12 / 11)
    assert sum(row.sent_bytes for row in first.traffic) == 12 * 25_600_000
    assert first.moments and all(m.from_s <= t.finish_s <= m.until_s + 1e-5 for m in first.moments for t in m.transfers)
    assert abs(second.laps[0].end_s - first.laps[0].end_s) == pytest.approx(0.0, abs=5.0), "on one clock"


def test_only_the_last_line_may_be_incomplete(tmp_path: Path) -> None:
    write_job_record(tmp_path, iterations=1)
    file = tmp_path / "worker0.jsonl"
    whole = file.read_bytes()
    lines = whole.splitlines(keepends=True)
    file.write_bytes(b"".join(lines[:-1]) + lines[-1][:40])
    (note,) = story_of(tmp_path).chapters[0].notes
    assert note.startswith("the record has no end")
    file.write_bytes(lines[0] + b'{"kind":"cut","time_s":"x"}\n' + b"".join(lines[1:]))
    with pytest.raises(UserError, match=r"worker0.jsonl:2: is not a line of a record \(cut.time_s: "):
        story_of(tmp_path)
    place, transfers = next((i, line) for i, line in enumerate(lines) if b'"kind":"transfers"' in line)
    others: list[dict[str, list[int]]] = [{"queue": [2]}, {"bytes": []}]
    names = ("gradient", "partition", "queue", "bytes", "added_s", "start_s", "finish_s")
    for wrong in others:
        columns = {name: [0] for name in names}
        line = json.dumps({**json.loads(transfers), **columns, **wrong}).encode() + b"\n"
        file.write_bytes(b"".join([*lines[:place], line, *lines[place + 1 :]]))
        with pytest.raises(UserError, match=f"worker0.jsonl:{place + 1}: .+its transfers do not fit together"):
            story_of(tmp_path)
    file.write_bytes(b"".join(lines[1:]))
    with pytest.raises(UserError, match="its first line is missing"):
        read_rows(file)


def test_newest_prediction_of_each_cut() -> None:
    small, large = Cut.uniform(1 << 17).segments, Cut.uniform(1 << 20).segments
    rows: list[RecordRow] = [
        BEGIN,
        CutRow(101.0, 0, small),
        PlanRow(102.0, 1, None, None, 0, 0.8, 1.5, large),
        CutRow(103.0, 1, large, "predicted 0.8 s"),
        PlanRow(104.0, 2, None, None, 0, 0.804, 1.5, large),
        PlanRow(105.0, 3, None, None, 0, 0.9, 1.6, large),
    ]
    chapter = chapter_of(rows, zero=5100.0)
    assert [(cut.from_s, cut.segments, cut.predicted_s) for cut in chapter.cuts] == [
        (1.0, small, None),
        (3.0, large, 0.9),
    ], "the newest prediction"
    assert chapter.stock_s == 1.6


def test_laps_from_pauses_and_counts() -> None:
    rows: list[RecordRow] = [
        BEGIN,
        IterationsRow(0, 2, (101.0, 102.0)),
        IterationsRow(2, 1, (None, 110.0)),
        IterationsRow(3, 5, (111.0, 112.0)),
        IterationsRow(8, 1, (112.5,)),
    ]
    chapter = chapter_of(rows, zero=5100.0)
    assert [round(lap.period_s, 6) for lap in chapter.laps] == [1.0, 0.25, 0.25, 0.25, 0.25, 0.5]


def test_iteration_across_a_new_cut_does_not_count() -> None:
    cuts = [CutInForce(0.0, (Segment(0, 4096),)), CutInForce(5.5, (Segment(0, 8192),), "", 0.5)]
    laps = [Lap(float(end), 1.0) for end in range(1, 6)] + [Lap(6.0 + n / 2, 0.5 if n else 1.0) for n in range(5)]
    before, after = Chapter("w", laps=laps, cuts=cuts).compared()
    assert (before.measured_s, before.count) == (1.0, 4)
    assert (after.measured_s, after.count, after.error) == (0.5, 4, 0.0)


def test_events_of_a_task_become_one_transfer() -> None:
    transfers = pair_events(recorded_events(worker_record([1.0] * 5).marks))
    assert len(transfers) == 6 * 3 * 2, "each gradient once each way an iteration; no broadcast"
    first = transfers[0]
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
def test_incomplete_tasks_are_left_out(events: list[tuple[float, int, int, int]]) -> None:
    rows = [(time_s, gradient, 8, 0, QueueKind.PUSH, kind, gap) for time_s, gradient, kind, gap in events]
    assert pair_events(np.array(rows, EVENT_DTYPE)) == ()


def test_story_of_experiment(tmp_path: Path) -> None:
    write_experiment(tmp_path)
    story = story_of(tmp_path)
    assert story.title == "small" and story.settings["job.kind"] == "replay"
    stock, prophet = story.chapters
    assert (stock.name, len(stock.laps), stock.moments) == ("stock", 4, ())
    assert prophet.name == "prophet" and not prophet.all_reduce
    (moment,) = prophet.moments
    assert moment.transfers and {what for what, _, _ in moment.computing} == {"backward", "forward and waiting"}
    assert all(0 <= transfer.start_s < 6 for transfer in moment.transfers)
    (row,) = prophet.compared()
    assert (row.from_s, row.predicted_s, row.measured_s) == (2.0, 0.95, None)
    assert sum(row.sent_bytes for row in prophet.traffic) == 5 * 3 * 4096
    assert prophet.notes == ["a block size was refused: 128KiB: no names"]


def test_story_without_runs(tmp_path: Path) -> None:
    write_results(Results(schema=1, config={}, repeats=1, cells=[cell(prophet=policy())]), tmp_path / "results.json")
    story = story_of(tmp_path)
    assert story.chapters == [] and story.title == tmp_path.name


def test_other_folder_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="has neither a results"):
        story_of(tmp_path)
    with pytest.raises(UserError, match="none: no such folder; give one that `prophet run` or PROPHET_RECORD has left"):
        story_of(tmp_path / "none")
