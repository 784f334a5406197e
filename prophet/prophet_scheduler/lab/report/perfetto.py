"""Trace of a run for Perfetto, in Chrome's JSON format.

Rule of this file: turn a story into trace events, with times in microseconds. Each chapter is a process. Its threads
are the iterations, compute, and lanes of transfers that do not overlap.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from prophet_scheduler.core.events import QueueKind
from prophet_scheduler.core.transfer import Transfer
from prophet_scheduler.core.units import format_size
from prophet_scheduler.lab.report.stories import Chapter, Story

Event = dict[str, Any]
ITERATIONS, COMPUTE, FIRST_LANE = 0, 1, 2
"""Thread ids."""
MOST_LANES = 1000
"""Difference between the thread ids of the first push lane and the first pull lane."""


def trace(story: Story) -> dict[str, list[Event]]:
    """Return the trace of all chapters, in their order."""
    return {"traceEvents": [event for pid, chapter in enumerate(story.chapters) for event in _events(pid, chapter)]}


def _events(pid: int, chapter: Chapter) -> Iterator[Event]:
    yield {"ph": "M", "pid": pid, "name": "process_name", "args": {"name": chapter.name}}
    names = {ITERATIONS: "iterations", COMPUTE: "compute"}

    def span(thread: int, name: str, from_s: float, until_s: float, **more: object) -> Event:
        span = {"ph": "X", "pid": pid, "tid": thread, "name": name, "ts": from_s * 1e6, "dur": (until_s - from_s) * 1e6}
        return span | {"args": more}

    for number, lap in enumerate(chapter.laps, 1):
        yield span(ITERATIONS, f"iteration {number}", lap.began_s, lap.end_s)
    for moment in chapter.moments:
        for what, from_s, until_s in moment.computing:
            yield span(COMPUTE, what, from_s, until_s)
        for queue, words in zip(QueueKind, ("all-reduce" if chapter.all_reduce else "push", "pull"), strict=True):
            for lane, transfer in _lanes(each for each in moment.transfers if each.queue is queue):
                thread = FIRST_LANE + MOST_LANES * queue + lane
                names[thread] = f"{words}, lane {lane + 1}"
                size = format_size(transfer.size_bytes)
                name = f"{'block at' if chapter.arena else 'gradient'} {transfer.gradient}, {size}"
                about = {"partition": transfer.partition, "waited_s": transfer.start_s - transfer.added_s}
                yield span(thread, name, transfer.start_s, transfer.finish_s, **about)
    for cut in chapter.cuts:
        name = f"blocks of {format_size(cut.sizes[1])}"
        at = {"pid": pid, "tid": ITERATIONS, "ts": cut.from_s * 1e6}
        yield {"ph": "i", "s": "p", "name": name, "args": {"why": cut.reason}} | at
    for moved in chapter.traffic:
        took_s = max(moved.until_s - moved.from_s, 1e-9)
        rates = {"sent": moved.sent_bytes / took_s, "received": moved.received_bytes / took_s}
        yield {"ph": "C", "pid": pid, "name": "bytes per second", "ts": moved.from_s * 1e6, "args": rates}
    for thread, name in names.items():
        yield {"ph": "M", "pid": pid, "tid": thread, "name": "thread_name", "args": {"name": name}}


def _lanes(transfers: Iterable[Transfer]) -> Iterator[tuple[int, Transfer]]:
    """Yield the transfers by start time, each with the first free lane."""
    free_s: list[float] = []
    for transfer in sorted(transfers, key=lambda each: each.start_s):
        lane = next((lane for lane, until_s in enumerate(free_s) if until_s <= transfer.start_s), len(free_s))
        free_s[lane : lane + 1] = [transfer.finish_s]
        yield lane, transfer
