"""Report from a job's own record (PROPHET_RECORD).

Rule of this file: reading and checking lines (watch/rows.py), and from them to chapters, one a worker. A killed job
leaves an incomplete last line; any other unreadable line is an error.
"""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from prophet_scheduler.core.cut import Segment
from prophet_scheduler.core.errors import UserError
from prophet_scheduler.core.events import QueueKind
from prophet_scheduler.core.files import read_bytes
from prophet_scheduler.core.status import ArmStatus
from prophet_scheduler.core.transfer import Transfer
from prophet_scheduler.engines.registry import engines
from prophet_scheduler.lab.records import RECORD_FILES, first_error, record_row
from prophet_scheduler.lab.report.stories import Chapter, CutInForce, Lap, Moment, Moved, Story
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
"""Maximum gap between two lines of transfers of one moment."""
MEASURED_S = 2.0
"""Time after the start of a cut within which nothing can have been measured of it."""
ANOTHER = 0.01
"""Relative change above which a prediction counts as a new one."""


def read_rows(path: Path) -> list[RecordRow]:
    """Return the rows of one worker. Raises UserError naming the file, the line and the key."""
    try:
        lines = read_bytes(path).split(b"\n")
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror})") from None
    rows = []
    for number, line in enumerate(lines[:-1], 1):  # the text after the last newline is empty or incomplete
        try:
            rows.append(record_row(line))
        except (ValueError, UserError) as error:
            raise UserError(f"{path}:{number}: is no line of a record ({first_error(error)})") from None
        if isinstance(rows[-1], TransfersRow) and not _fits(rows[-1]):
            raise UserError(f"{path}:{number}: is no line of a record (its transfers do not fit together)")
        if _is_absurd(rows[-1]):
            raise UserError(f"{path}:{number}: is no line of a record (it has a number that cannot be)")
    if not rows or not isinstance(rows[0], BeginRow):
        raise UserError(f"{path}: is no record, as PROPHET_RECORD leaves it: it has no first line")
    return rows


def _is_absurd(row: RecordRow) -> bool:
    if isinstance(row, BeginRow):
        return not 0 <= row.unix_s + row.began_s < MOST_UNIX_S
    return isinstance(row, IterationsRow) and row.count > MOST_COUNT


def _fits(row: TransfersRow) -> bool:
    columns = (row.gradient, row.partition, row.bytes, row.queue, row.added_s, row.start_s, row.finish_s)
    return len({len(column) for column in columns}) == 1 and set(row.queue) <= set(QueueKind)


def read_workers(folder: Path) -> list[list[RecordRow]]:
    """Return the rows of each worker in the folder, by rank. Raises UserError as `read_rows` does."""
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
    facts = [
        f"{engine} under Prophet {first.version}, {len(workers)} of {first.worker.workers or len(workers)} workers on "
        f"record; it began at {began:%Y-%m-%d %H:%M:%S} UTC",
    ]
    if first.command:
        facts.append(f"command: {' '.join(first.command)}")
    return Story(first.worker.job, facts, chapters, first.settings or {})


def begin_of(rows: Sequence[RecordRow]) -> BeginRow:
    """Return the first of the rows from `read_rows`."""
    assert isinstance(rows[0], BeginRow)
    return rows[0]


@dataclass
class _Reading:
    """Data read of a worker so far."""

    laps: list[Lap] = field(default_factory=list)
    last_s: float | None = None
    moments: list[Moment] = field(default_factory=list)
    cuts: list[CutInForce] = field(default_factory=list)
    predicted_s: dict[tuple[Segment, ...], float] = field(default_factory=dict)
    """Newest predicted iteration time by cut."""
    stock_s: float | None = None
    waited_s: dict[str, float] = field(default_factory=dict)


def chapter_of(rows: Sequence[RecordRow], zero: float) -> Chapter:
    """Return the chapter of one worker; `zero` is the Unix time when the job began."""
    begin = begin_of(rows)
    shift = begin.unix_s - zero  # from the worker's steady clock to seconds of the job
    read = _Reading()
    notes = []
    arms: Sequence[ArmStatus] = ()
    arena = True
    for row in rows:
        if isinstance(row, IterationsRow):
            _add_laps(read, row, shift)
        elif isinstance(row, TransfersRow):
            arena = row.arena
            _add_moment(read.moments, row, shift)
        elif isinstance(row, PlanRow):
            _add_plan(read, row, row.time_s + shift)
        elif isinstance(row, CutRow):
            read.cuts.append(
                CutInForce(row.time_s + shift, row.segments, row.reason, read.predicted_s.get(row.segments))
            )
        elif isinstance(row, WaitsRow):
            for name, seconds in {**row.waited_s, "all others": row.others_s}.items():
                read.waited_s[name] = read.waited_s.get(name, 0.0) + seconds
        elif isinstance(row, EndRow):
            agent = row.agent
            arms = agent.arms
            said = (
                ("Prophet stepped aside", agent.stepped_aside),
                ("torch's reducer was given the module back", agent.given_back),
                ("what was kept of an earlier run was not used", agent.kept_was_dropped),
            )
            notes += [f"{what}: {why}" for what, why in said if why]
            notes += [f"a size of blocks was refused: {why}" for why in agent.refused]
            if row.dropped:
                notes.append(f"{row.dropped} lines were left out for want of room")
    if not isinstance(rows[-1], EndRow):
        notes.append("the record has no end: the job still ran, or was killed")
    iterations = max(1, len(read.laps))
    return Chapter(
        name=f"worker {begin.worker.rank}",
        laps=read.laps,
        moments=read.moments,
        cuts=read.cuts,
        traffic=[_traffic(row, shift) for row in rows if isinstance(row, RatesRow)],
        networks=[(row.time_s + shift, row.network) for row in rows if isinstance(row, NetworkRow)],
        waited_s={name: seconds / iterations for name, seconds in read.waited_s.items() if seconds > 0},
        stock_s=read.stock_s,
        arena=arena,
        all_reduce=begin.all_reduce,
        arms=arms,
        notes=notes,
    )


def _add_laps(read: _Reading, row: IterationsRow, shift: float) -> None:
    ends = [None if end_s is None else end_s + shift for end_s in row.ends_s]
    known = [end_s for end_s in ends if end_s is not None]
    if row.count > len(known) >= 2:  # of very many, only the number is known
        period_s = (known[-1] - known[0]) / (row.count - 1)
        read.laps += [Lap(known[0] + period_s * place, period_s) for place in range(1, row.count)]
        read.last_s = known[-1]
        return
    for end_s in ends:
        if end_s is not None and read.last_s is not None:
            read.laps.append(Lap(end_s, end_s - read.last_s))
        read.last_s = end_s


def _add_plan(read: _Reading, row: PlanRow, time_s: float) -> None:
    read.stock_s = row.stock_s if row.stock_s is not None else read.stock_s
    if row.predicted_s is None:
        return
    read.predicted_s[row.cut] = row.predicted_s
    if not read.cuts or read.cuts[-1].segments != row.cut:
        return
    present = read.cuts[-1]
    if present.predicted_s is None or time_s - present.from_s < MEASURED_S:
        read.cuts[-1] = replace(present, predicted_s=row.predicted_s)
    elif abs(row.predicted_s - present.predicted_s) > ANOTHER * present.predicted_s:
        read.cuts.append(CutInForce(time_s, row.cut, "planned anew", row.predicted_s))


def _add_moment(moments: list[Moment], row: TransfersRow, shift: float) -> None:
    """Add a line's transfers to the moments; consecutive lines become one moment."""
    from_s = row.from_s + shift
    columns = (row.gradient, row.partition, row.bytes, row.queue, row.added_s, row.start_s, row.finish_s)
    transfers = tuple(
        Transfer(gradient, partition, size, QueueKind(queue), from_s + added, from_s + start, from_s + finish)
        for gradient, partition, size, queue, added, start, finish in zip(*columns, strict=True)
    )
    left_out = row.left_out
    before = moments[-1] if moments else None
    if before is not None and from_s - before.until_s < NEXT_S and row.until_s + shift - before.from_s < MOST_MOMENT_S:
        moments.pop()
        from_s, transfers = before.from_s, before.transfers + transfers
        left_out += before.left_out
    name = f"from {from_s:.1f} s to {row.until_s + shift:.1f} s"
    moments.append(Moment(name, from_s, row.until_s + shift, transfers, left_out))


def _traffic(row: RatesRow, shift: float) -> Moved:
    moved = row.sent_bytes, row.received_bytes, row.sending_s, row.receiving_s
    return Moved(row.from_s + shift, row.until_s + shift, *moved)
