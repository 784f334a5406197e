"""Trace of a few iterations for Perfetto or Chrome's tracing page.

Rule of this file: the Trace Event format (microseconds); no statistics.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from prophet_scheduler.core.events import name_of
from prophet_scheduler.core.files import write_whole
from prophet_scheduler.lab.transfers import WORKER, RecordedRun

ITERATIONS = 3
Event = dict[str, Any]
"""One event of the format; its keys depend on its kind."""


def trace_events(run: RecordedRun, process: int) -> list[Event]:
    """Return one policy's process with threads for compute, push and pull; times start at the first iteration shown."""
    first = max(0, len(run.marks) - 1 - ITERATIONS)
    began, ended = run.iterations(first, min(ITERATIONS, len(run.marks) - 1 - first))
    events: list[Event] = [
        {"ph": "M", "name": "process_name", "pid": process, "args": {"name": f"{run.policy} ({WORKER})"}}
    ]

    def complete(thread: str, name: str, start_s: float, end_s: float, **args: object) -> None:
        times = {"ts": round((start_s - began) * 1e6, 1), "dur": round((end_s - start_s) * 1e6, 1)}
        events.append({"ph": "X", "pid": process, "tid": thread, "name": name, **times, "args": args})

    for number, mark in enumerate(run.marks):
        if began <= mark.backward < ended:
            complete("compute", f"backward {number}", mark.backward, mark.backward_end)
        if began <= mark.start < ended:
            complete("compute", f"forward {number}", mark.start, mark.backward)
    for number, transfer in enumerate(run.transfers):
        if began <= transfer.start_s < ended:
            # Transfers overlap, so these are asynchronous events.
            common = {
                "pid": process,
                "tid": transfer.queue.name.lower(),
                "cat": transfer.queue.name.lower(),
                "name": f"{name_of(transfer.gradient, run.arena)}{f'.{transfer.partition}' * (not run.arena)}",
                "id": number,
            }
            waited_ms = round((transfer.start_s - transfer.added_s) * 1e3, 3)
            args = {"bytes": transfer.size_bytes, "waited_ms": waited_ms}
            events.append({"ph": "b", "ts": round((transfer.start_s - began) * 1e6, 1), **common, "args": args})
            events.append({"ph": "e", "ts": round((transfer.finish_s - began) * 1e6, 1), **common})
    return events


def write_trace(runs: Sequence[RecordedRun], path: Path) -> None:
    """Write all policies into one file, each as a process."""
    events = [event for process, run in enumerate(runs) for event in trace_events(run, process)]
    write_whole(json.dumps({"traceEvents": events, "displayTimeUnit": "ms"}) + "\n", path)
