"""Report from a folder of `prophet run` or `prophet simulate`.

Rule of this file: find the files and turn them into chapters, one per policy and cell. A chapter shows one finished
run; the table has the numbers of results.json, which cover all runs.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from prophet_scheduler.core.event_record import load_events
from prophet_scheduler.core.events import QueueKind
from prophet_scheduler.core.transfer import Transfer
from prophet_scheduler.lab.jobs.record import Mark
from prophet_scheduler.lab.records import RESULTS_FILE, CellResult, read_results, read_status, read_worker
from prophet_scheduler.lab.report.stories import Chapter, CutInForce, Lap, Moment, Story
from prophet_scheduler.lab.results_view import describe_narrow_link, describe_setting
from prophet_scheduler.lab.runs import EVENTS_FILE, STATUS_FILE, WORKER
from prophet_scheduler.watch.meter import Meter
from prophet_scheduler.watch.rows import RatesRow

SHOWN_ITERATIONS = 3
"""Number of iterations, the last ones, whose transfers are shown."""
BIN_S = 0.1
"""Minimum interval for which a rate is computed."""
MOST_BINS = 2000


def story_of_run(folder: Path) -> Story:
    """Return the story of the experiment. Raises UserError."""
    results = read_results(folder / RESULTS_FILE)
    chapters = []
    facts = []
    for number, cell in enumerate(results.cells):
        setting = describe_setting(cell.setting)
        facts.append(f"{setting or 'one cell'}: {describe_narrow_link(cell.narrow_link)}. {cell.emulated}".strip())
        for name in cell.policies:
            repeats = (folder / "runs" / f"cell{number}").glob(f"{name}-repeat*")
            finished = [path for path in repeats if (path / f"{WORKER}.json").is_file()]
            if run := min(finished, key=lambda path: (len(path.name), path.name), default=None):
                label = name if len(results.cells) == 1 or not setting else f"{name}, {setting}"
                chapters.append(_chapter(label, run, cell, name))
    named = results.config.get("name")
    title = named if isinstance(named, str) else folder.resolve().name
    return Story(title, facts, chapters, dict(_flat(results.config)), results)


def _flat(value: Any, key: str = "") -> Iterable[tuple[str, str]]:
    """Yield a config's settings as (full key, value)."""
    if isinstance(value, Mapping):
        for name, inner in value.items():
            yield from _flat(inner, f"{key}.{name}" if key else str(name))
    else:
        yield key, value if isinstance(value, str) else json.dumps(value)


def _chapter(label: str, run: Path, cell: CellResult, policy: str) -> Chapter:
    worker = read_worker(run / f"{WORKER}.json")
    status_file, events_file = run / f"{WORKER}.{STATUS_FILE}", run / f"{WORKER}.{EVENTS_FILE}"
    status = read_status(status_file) if status_file.is_file() else None
    zero = worker.marks[0].start if worker.marks else 0.0
    laps = [Lap(after.start - zero, after.start - before.start) for before, after in itertools.pairwise(worker.marks)]
    if status is None or not events_file.is_file() or len(worker.marks) < 2:
        return Chapter(label, laps)
    transfers = pair_events(load_events(events_file))
    agent = cell.policies[policy].agent
    networks = [(laps[-1].end_s, status.network)] if status.network is not None and agent is not None and laps else []
    since_s = 0.0 if status.last_recut_s is None else max(0.0, status.last_recut_s - zero)  # earlier cuts are unknown
    # Engines that use collectives have only pushes.
    all_reduce = not any(transfer.queue is QueueKind.PULL for transfer in transfers)
    return Chapter(
        label,
        laps,
        moments=_moments(transfers, worker.marks, zero),
        cuts=[CutInForce(since_s, status.cut, status.recut_reason, status.recut_predicted_s)] if status.cut else [],
        traffic=list(_traffic(transfers, zero, all_reduce)),
        networks=networks,
        arena=status.arena,
        all_reduce=all_reduce,
        arms=status.arms,
        notes=[f"a block size was refused: {why}" for why in status.refused],
    )


def pair_events(events: NDArray[Any]) -> tuple[Transfer, ...]:
    """Pair the events of each task (EVENT_DTYPE, by time) into transfers, leaving out unfinished tasks."""
    return tuple(
        Transfer(gradient, partition, size, QueueKind(queue), *times_s)
        for gradient, partition, queue, size, *times_s in Meter().pair(events).tolist()
    )


def _moments(transfers: Iterable[Transfer], marks: list[Mark], zero: float) -> list[Moment]:
    first = max(0, len(marks) - 1 - SHOWN_ITERATIONS)
    from_s, until_s = marks[first].backward, marks[-1].backward
    shown = [
        replace(each, added_s=each.added_s - zero, start_s=each.start_s - zero, finish_s=each.finish_s - zero)
        for each in transfers
        if each.finish_s > from_s and each.start_s < until_s
    ]
    computing = []
    for number, mark in enumerate(marks[first:]):
        if number:
            computing.append(("forward and waiting", mark.start - zero, mark.backward - zero))
        computing.append(("backward", mark.backward - zero, mark.backward_end - zero))
    return [Moment("the last iterations", from_s - zero, until_s - zero, tuple(shown), 0, tuple(computing))]


def _traffic(transfers: Iterable[Transfer], zero: float, all_reduce: bool) -> Iterable[RatesRow]:
    """Yield the traffic over the run. Bytes count when their transfer finishes; the wire's busy time is left out."""
    ended: dict[int, list[int]] = {}
    ends_s = [transfer.finish_s for transfer in transfers] or [zero]
    width_s = max(BIN_S, (max(ends_s) - min(zero, *ends_s)) / MOST_BINS)
    for transfer in transfers:
        moved = ended.setdefault(int((transfer.finish_s - zero) // width_s), [0, 0])
        moved[transfer.queue] += transfer.size_bytes
    for place in range(min(ended, default=0), max(ended, default=-1) + 1):
        sent, received = ended.get(place, (0, 0))
        yield RatesRow(place * width_s, (place + 1) * width_s, sent, sent if all_reduce else received, 0.0, 0.0)
