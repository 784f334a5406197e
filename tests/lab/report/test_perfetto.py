"""The trace for Perfetto: what was recorded, at its time, and nothing that overlaps on one thread."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest

from prophet_scheduler.core.errors import UserError
from prophet_scheduler.lab.report import story_of, write_trace
from support.job_records import write_experiment, write_job_record


def traced(folder: Path, out: Path) -> list[dict[str, Any]]:
    write_trace(folder, out)
    events: list[dict[str, Any]] = json.loads(out.read_text())["traceEvents"]
    return events


def test_trace_of_record(tmp_path: Path) -> None:
    write_job_record(tmp_path)
    events, chapters = traced(tmp_path, tmp_path / "trace.json"), story_of(tmp_path).chapters
    for pid, chapter in enumerate(chapters):
        spans = [event for event in events if event["ph"] == "X" and event["pid"] == pid]
        laps = [event for event in spans if event["tid"] == 0]
        ends = [lap.end_s * 1e6 for lap in chapter.laps]
        assert [lap["ts"] + lap["dur"] for lap in laps] == pytest.approx(ends)
        sent = [event["ts"] for event in spans if event["tid"] > 1]
        starts = [each.start_s * 1e6 for moment in chapter.moments for each in moment.transfers]
        assert sent and sorted(sent) == pytest.approx(sorted(starts))
    names = [event["args"]["name"] for event in events if event["name"] == "process_name"]
    assert names == ["worker 0", "worker 1"]
    assert "all-reduce, lane 1" in {event["args"]["name"] for event in events if event["name"] == "thread_name"}


def test_trace_of_experiment_puts_overlapping_transfers_on_lanes(tmp_path: Path) -> None:
    write_experiment(tmp_path)
    spans = [event for event in traced(tmp_path, tmp_path / "trace.json") if event["ph"] == "X"]
    lanes = {(event["pid"], event["tid"]) for event in spans if event["tid"] > 1}
    assert len(lanes) == 6, "three gradients at a time, pushed and pulled"
    for lane in lanes:
        ours = [event for event in spans if (event["pid"], event["tid"]) == lane]
        for before, after in itertools.pairwise(ours):
            assert before["ts"] + before["dur"] <= after["ts"] + 1e-3


def test_unwritable_trace_is_one_line(tmp_path: Path) -> None:
    write_job_record(tmp_path)
    with pytest.raises(UserError, match="--perfetto"):
        write_trace(tmp_path, tmp_path)
