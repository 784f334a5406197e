"""Report from a job's own record (PROPHET_RECORD).

Rule of this file: read and check lines (watch/rows.py), and turn them into chapters, one per worker. A killed job
leaves an incomplete last line; any other unreadable line is an error.
"""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from prophet_scheduler.core.cut import Segment
from prophet_scheduler.core.errors import UserError
from prophet_scheduler.core.events import QueueKind
from prophet_scheduler.core.files import read_bytes
from prophet_scheduler.core.status import ArmStatus
from prophet_scheduler.core.transfer import Transfer
from prophet_scheduler.engines.registry import engines
from prophet_scheduler.lab.records import RECORD_FILES, first_error, record_row
from prophet_scheduler.lab.report.stories import Chapter, CutInForce, Lap, Moment, Story
from prophet_scheduler.lab.schema import MOST_COUNT
from prophet_scheduler.watch.rows import (
    MOST_MOMENT_S,
    BeginRow,
    CutRow,
    EndRow,
    IterationsRow,
    NetworkRow,
    PlanRow,
    RatesRow,
    RecordRow,
    TransfersRow,
    WaitsRow,
)

MOST_UNIX_S = 1 << 35
"""Maximum Unix time, in the year 3058."""
NEXT_S = 0.01
"""Maximum gap between two lines of transfers in one moment."""


def read_rows(path: Path) -> list[RecordRow]:
    """Return the rows of one worker. Raises UserError that names the file, the line and the key."""
    try:
        lines = read_bytes(path).split(b"\n")
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror})") from None
    rows = []
    for number, line in enumerate(lines[:-1], 1):  # the text after the last newline is empty or incomplete
        try:
            rows.append(record_row(line))
        except (ValueError, UserError) as error:
            raise UserError(f"{path}:{number}: is not a line of a record ({first_error(error)})") from None
        if wrong := _wrong(rows[-1]):
            raise UserError(f"{path}:{number}: is not a line of a record ({wrong})")
    if not rows or not isinstance(rows[0], BeginRow):
        raise UserError(f"{path}: is not a record from PROPHET_RECORD: its first line is missing")
    return rows


def _wrong(row: RecordRow) -> str:
    """Return the impossible part of a row whose types are right; empty for a good row."""
    if isinstance(row, TransfersRow):
        fits = len(set(map(len, _columns(row)))) == 1 and set(row.queue) <= set(QueueKind)
        return "" if fits else "its transfers do not fit together"
    absurd = isinstance(row, BeginRow) and not 0 <= row.unix_s + row.began_s < MOST_UNIX_S
    absurd |= isinstance(row, IterationsRow) and row.count > MOST_COUNT
    return "it has an impossible number" if absurd else ""


def _columns(row: TransfersRow) -> tuple[Sequence[Any], ...]:
    return row.gradient, row.partition, row.bytes, row.queue, row.added_s, row.start_s, row.finish_s


def read_workers(folder: Path) -> list[list[RecordRow]]:
    """Return the rows of each worker in the folder, by rank. Raises UserError like `read_rows`."""
    workers = [read_rows(path) for path in sorted(folder.glob(RECORD_FILES))]
    return sorted(workers, key=lambda rows: begin_of(rows).worker.rank)


def story_of_record(folder: Path) -> Story:
    """Return the story of the job. Raises UserError."""
    workers = read_workers(folder)
    begins = [begin_of(rows) for rows in workers]
    zero = min(begin.unix_s + begin.began_s for begin in begins)
    chapters = [chapter_of(rows, zero) for rows in workers]
    first = begins[0]
    began = datetime.datetime.fromtimestamp(zero, datetime.timezone.utc)
    engine = engines()[first.worker.engine].words
    recorded = f"{len(workers)} of {first.worker.workers or len(workers)} workers on record"
    facts = [f"{engine} under Prophet {first.version}, {recorded}; it began at {began:%Y-%m-%d %H:%M:%S} UTC"]
    if first.command:
        facts.append(f"command: {' '.join(first.command)}")
    return Story(first.worker.job, facts, chapters, first.settings or {})


def begin_of(rows: Sequence[RecordRow]) -> BeginRow:
    """Return the first row of those from `read_rows`."""
    assert isinstance(rows[0], BeginRow)
    return rows[0]


def chapter_of(rows: Sequence[RecordRow], zero: float) -> Chapter:
    """Return the chapter of one worker; `zero` is the Unix time of the job's start."""
    begin = begin_of(rows)
    shift = begin.unix_s - zero  # from the worker's monotonic clock to seconds since the job's start
    laps, moments, cuts = list[Lap](), list[Moment](), list[CutInForce]()
    waited_s, predicted_s = dict[str, float](), dict[tuple[Segment, ...], float]()
    notes: list[str] = []
    arms: Sequence[ArmStatus] = ()
    last_s = stock_s = None
    arena = True
    for row in rows:
        if isinstance(row, IterationsRow):
            last_s = _add_laps(laps, row, shift, last_s)
        elif isinstance(row, TransfersRow):
            arena = row.arena
            _add_moment(moments, row, shift)
        elif isinstance(row, PlanRow):
            stock_s = stock_s if row.stock_s is None else row.stock_s
            if row.predicted_s is not None:
                predicted_s[row.cut] = row.predicted_s
        elif isinstance(row, CutRow):
            cuts.append(CutInForce(row.time_s + shift, row.segments, row.reason))
        elif isinstance(row, WaitsRow):
            for name, seconds in {**row.waited_s, "all others": row.others_s}.items():
                waited_s[name] = waited_s.get(name, 0.0) + seconds
        elif isinstance(row, EndRow):
            agent = row.agent
            arms = agent.arms
            said = (
                ("Prophet stepped aside", agent.stepped_aside),
                ("the module went back to torch's reducer", agent.given_back),
                ("the results of an earlier run were not used", agent.kept_was_dropped),
                *(("a block size was refused", why) for why in agent.refused),
            )
            notes += [f"{what}: {why}" for what, why in said if why]
            notes += [f"{row.dropped} lines were left out for lack of space"] if row.dropped else []
    if not isinstance(rows[-1], EndRow):
        notes.append("the record has no end: the job was still running, or was killed")
    rates = (row for row in rows if isinstance(row, RatesRow))
    return Chapter(
        name=f"worker {begin.worker.rank}",
        laps=laps,
        moments=moments,
        cuts=[replace(cut, predicted_s=predicted_s.get(cut.segments)) for cut in cuts],
        traffic=[replace(row, from_s=row.from_s + shift, until_s=row.until_s + shift) for row in rates],
        networks=[(row.time_s + shift, row.network) for row in rows if isinstance(row, NetworkRow)],
        waited_s={name: seconds / max(1, len(laps)) for name, seconds in waited_s.items() if seconds > 0},
        stock_s=stock_s,
        arena=arena,
        all_reduce=begin.all_reduce,
        arms=arms,
        notes=notes,
    )


def _add_laps(laps: list[Lap], row: IterationsRow, shift: float, last_s: float | None) -> float | None:
    """Add a line's iterations, the first of which began at `last_s`; return the end of the last, None if unknown."""
    ends = [None if end_s is None else end_s + shift for end_s in row.ends_s]
    known = [end_s for end_s in ends if end_s is not None]
    if row.count > len(known) >= 2:  # too many in one line for the record to have each end
        period_s = (known[-1] - known[0]) / (row.count - 1)
        laps += [Lap(known[0] + period_s * place, period_s) for place in range(1, row.count)]
        return known[-1]
    for end_s in ends:
        if end_s is not None and last_s is not None:
            laps.append(Lap(end_s, end_s - last_s))
        last_s = end_s
    return last_s


def _add_moment(moments: list[Moment], row: TransfersRow, shift: float) -> None:
    """Add a line's transfers to the moments; consecutive lines form one moment."""
    from_s = row.from_s + shift
    transfers = tuple(
        Transfer(gradient, partition, size, QueueKind(queue), from_s + added, from_s + start, from_s + finish)
        for gradient, partition, size, queue, added, start, finish in zip(*_columns(row), strict=True)
    )
    left_out = row.left_out
    before = moments[-1] if moments else None
    if before is not None and from_s - before.until_s < NEXT_S and row.until_s + shift - before.from_s < MOST_MOMENT_S:
        moments.pop()
        from_s, transfers = before.from_s, before.transfers + transfers
        left_out += before.left_out
    name = f"from {from_s:.1f} s to {row.until_s + shift:.1f} s"
    moments.append(Moment(name, from_s, row.until_s + shift, transfers, left_out))
