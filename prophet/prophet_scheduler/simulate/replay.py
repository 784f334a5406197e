"""Replay of a recorded schedule: a queue decides again on the events in a job's record.

Rule of this file: the replay as a pure function of a record, and its result in words. No file. Times are seconds of the
record's clock.

A record has the calls to the queue in order, each with its time. The replay feeds the same additions, finishes and
plans to a queue of the same kind. At each recorded start, this queue must allow a start in that lane at that time, and
choose that task. It may have allowed the start earlier: a host asks only when its thread gets there.

The record does not have the calls in which a host asked in vain. They matter in two ways. First, from such a call on,
the watchdog counts the time of a held task. So the replay asks without starting anything (`look`) after each event, and
at each time at which the queue said to ask again. The host asked a little later, so the replay allows whatever the host
was allowed. Second, pushes may go again once the pull lane was asked in vain. So the replay keeps all possible times
until which pushes may have had to wait, and allows a push if any of them does.

After lost events, or after a different decision, the state of the queue is unknown. The replay restarts at the next
event at which the queue was empty. It does not know when that iteration's backward pass began, so its deadlines in the
rest of that iteration may differ slightly.
"""

from __future__ import annotations

from collections import defaultdict, deque
from dataclasses import dataclass
from typing import NamedTuple

from prophet_scheduler.core._native import NO_REQUEST, UNBOUNDED, TwoLaneQueue
from prophet_scheduler.core.errors import UserError
from prophet_scheduler.core.event_record import EventRecord
from prophet_scheduler.core.events import NO_PLAN, EventKind, QueueEvent, QueueKind

OVER = 0.0
"""A time in the past, for pushes that need not wait. Unlike NO_REQUEST, the next pull does not make them wait."""


class Task(NamedTuple):
    """One partition of one gradient."""

    gradient: int
    partition: int
    size_bytes: int


@dataclass(frozen=True)
class Difference:
    """Difference between the record and the replay at event `index` (from 0).

    In the record, task `recorded` started in lane `kind` at `time_s`. The replay's queue would start `decided` then, or
    nothing before `retry_at`. `unknown` is True if the event finishes a task that was not in flight.
    """

    index: int
    time_s: float
    kind: QueueKind
    recorded: Task
    decided: Task | None
    retry_at: float
    unknown: bool = False


@dataclass(frozen=True)
class Unchecked:
    """Events `first` to `end` (exclusive), with `decisions` unchecked in an unknown state, after `lost` lost events."""

    first: int
    end: int
    decisions: int
    lost: int


@dataclass(frozen=True)
class Replay:
    """Result of a replay. `same` is the number of decisions equal to the record."""

    same: int
    differences: tuple[Difference, ...]
    unchecked: tuple[Unchecked, ...]
    plans: int

    @property
    def decisions(self) -> int:
        """Number of checked decisions."""
        return self.same + len(self.differences)


def replay(record: EventRecord) -> Replay:
    """Replay a record. Raises UserError if a plan is missing, or has the format of another version of Prophet."""
    return _Replayer(record).run()


class _Replayer:
    """Replay in progress. `_queue` is None while its state is unknown; nothing is checked then."""

    def __init__(self, record: EventRecord) -> None:
        self._record = record
        self._queue: TwoLaneQueue | None = None
        self._tasks: dict[int, Task] = {}
        self._flying: dict[tuple[QueueKind, Task], deque[int]] = defaultdict(deque)
        self._retry_at: dict[QueueKind, float] = {}
        self._waits = {NO_REQUEST}  # possible times until which pushes let requests go first
        self._next_id = 0
        self._same = 0
        self._plans = 0
        self._differences: list[Difference] = []
        self._unchecked: list[Unchecked] = []
        self._unknown_since = 0
        self._passed_over = 0
        self._lost = 0

    def run(self) -> Replay:
        events = self._record.events
        names = ("time_s", "gradient", "bytes", "partition", "queue", "kind", "gap")
        columns = [events[name].tolist() for name in names]
        self._begin(0, NO_PLAN)
        forgotten = False
        for index, (time_s, gradient, size, partition, lane, kind, gap) in enumerate(zip(*columns, strict=True)):
            # After FORGOTTEN, the next event has a gap of 1 without any loss.
            if gap > forgotten:
                self._lose(index, gap - forgotten)
            forgotten = kind == QueueEvent.FORGOTTEN
            if kind in (QueueEvent.FORGOTTEN, QueueEvent.EMPTY):
                self._known_empty(index, QueueEvent(kind), gradient)
            elif kind == QueueEvent.PLAN:
                self._plans += gradient != NO_PLAN
                if self._queue is not None:
                    self._take_up(self._queue, gradient)
            elif self._queue is None:
                self._passed_over += kind == EventKind.START
            else:
                self._ask_again(self._queue, time_s)
                task = Task(gradient, partition, size)
                self._happen(self._queue, index, EventKind(kind), QueueKind(lane), task, time_s)
            self._ask(time_s)
        self._end_of_unknown(len(events))
        return Replay(self._same, tuple(self._differences), tuple(self._unchecked), self._plans)

    def _happen(
        self, queue: TwoLaneQueue, index: int, kind: EventKind, lane: QueueKind, task: Task, time_s: float
    ) -> None:
        if kind is EventKind.ADD:
            queue.requests_first_until = NO_REQUEST
            queue.add(lane, self._next_id, task.gradient, task.size_bytes, time_s)
            if NO_REQUEST in self._waits:
                self._waits = self._waits - {NO_REQUEST} | {queue.requests_first_until}
            self._tasks[self._next_id] = task
            self._next_id += 1
        elif kind is EventKind.START:
            if lane is QueueKind.PUSH:
                allowed = {until for until in self._waits if until <= time_s}
                queue.requests_first_until = NO_REQUEST if allowed else min(self._waits)
                self._waits = allowed or self._waits
            decided, retry_at = queue.get(lane, time_s)
            choice = None if decided is None else self._tasks.pop(decided)
            if decided is None or choice != task:
                self._differs(Difference(index, time_s, lane, task, choice, retry_at))
                return
            self._same += 1
            self._flying[lane, task].append(decided)
        else:
            flying = self._flying[lane, task]
            if not flying:
                self._differs(Difference(index, time_s, lane, task, None, time_s, unknown=True))
                return
            queue.finish(lane, flying.popleft(), time_s)

    def _ask(self, now: float) -> None:
        """Ask both lanes, as a host's loops do after an event, without starting anything."""
        if self._queue is None:
            return
        self._waits = {OVER if NO_REQUEST < until <= now else until for until in self._waits}
        for lane in QueueKind:
            self._look(self._queue, lane, now)

    def _look(self, queue: TwoLaneQueue, lane: QueueKind, now: float) -> int | None:
        queue.requests_first_until = NO_REQUEST
        task, self._retry_at[lane] = queue.look(lane, now)
        if lane is QueueKind.PULL and task is None:
            self._waits.add(NO_REQUEST)
        return task

    def _ask_again(self, queue: TwoLaneQueue, now: float) -> None:
        """Ask at all times before `now` at which the queue said to ask again."""
        for lane in QueueKind:
            while (at := self._retry_at.get(lane, now)) < now:
                if self._look(queue, lane, at) is not None or self._retry_at[lane] <= at:
                    break

    def _take_up(self, queue: TwoLaneQueue, number: int) -> None:
        if number != NO_PLAN and number not in self._record.plans:
            raise UserError(f"the record names plan {number} but does not contain it")
        try:
            queue.set_plan(None if number == NO_PLAN else self._record.plans[number])
        except ValueError as error:
            raise UserError(f"plan {number} of the record cannot be read: {error}") from None

    def _begin(self, index: int, plan: int) -> None:
        """Start at event `index` with an empty queue."""
        self._end_of_unknown(index)
        self._forget()
        if index > 0:
            self._waits.add(OVER)
        self._queue = TwoLaneQueue(self._record.watchdog_s, self._record.most_in_flight or UNBOUNDED)
        self._take_up(self._queue, plan)

    def _forget(self) -> None:
        self._tasks.clear()
        self._flying.clear()
        self._retry_at.clear()
        self._waits = {NO_REQUEST}

    def _end_of_unknown(self, index: int) -> None:
        if self._queue is None and index > self._unknown_since:
            self._unchecked.append(Unchecked(self._unknown_since, index, self._passed_over, self._lost))
        self._passed_over = self._lost = 0

    def _known_empty(self, index: int, kind: QueueEvent, plan: int) -> None:
        if self._queue is None:
            self._begin(index, plan)
        elif kind is QueueEvent.FORGOTTEN:
            self._queue.clear()
            self._forget()
        elif not self._queue.empty:
            raise UserError(f"event {index} says that the queue is empty, but it is not")

    def _differs(self, difference: Difference) -> None:
        self._differences.append(difference)
        self._lose(difference.index + 1, 0)

    def _lose(self, index: int, lost: int) -> None:
        if self._queue is not None:
            self._queue = None
            self._unknown_since = index
        self._lost += lost


def story(result: Replay) -> list[str]:
    """Return the result as lines of text: the decisions, the differences, and the unchecked parts."""
    count = len(result.differences)
    same = "all the same" if result.same else "none that could be checked"
    what = f"{_number(result.decisions, 'decision')} under {_number(result.plans, 'plan')}"
    lines = [f"{what}, {f'{count:,} different' if count else same}"]
    lines += [_difference_line(difference) for difference in result.differences]
    lines += [_unchecked_line(piece) for piece in result.unchecked]
    return lines


def _number(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def _difference_line(difference: Difference) -> str:
    where = f"event {difference.index} at {difference.time_s:.6f} s"
    task = f"the {difference.kind.name.lower()} of {_name(difference.recorded)}"
    if difference.unknown:
        return f"{where}: {task} finished without having started"
    if difference.decided is not None:
        return f"{where}: {task} started, but the queue would start {_name(difference.decided)}"
    retry = "the next event" if difference.retry_at == float("inf") else f"{difference.retry_at:.6f} s"
    return f"{where}: {task} started, but the queue would start nothing before {retry}"


def _name(task: Task) -> str:
    return f"gradient {task.gradient}, partition {task.partition}"


def _unchecked_line(piece: Unchecked) -> str:
    why = f"after {piece.lost:,} lost events" if piece.lost else "after a difference"
    return f"events {piece.first} to {piece.end - 1}: {piece.decisions:,} decisions not checked, {why}"
