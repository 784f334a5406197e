"""Writer of a job's record, line by line.

Rule of this file: one worker's file, and the sums between two lines. rows.py defines the lines. Lines are written
whole, so a killed job leaves a record up to its last turn. The agent's thread calls this and, at the end, the thread
that exits the process.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import TextIO

from prophet_scheduler.core.cut import Segment
from prophet_scheduler.core.files import OWNER
from prophet_scheduler.core.network import Network
from prophet_scheduler.core.profile import Profile
from prophet_scheduler.core.status import AgentStatus
from prophet_scheduler.forks import free_in_forks
from prophet_scheduler.watch.meter import MeterTurn
from prophet_scheduler.watch.rows import (
    END_BYTES,
    LEAST_LINE_S,
    LINES_BEFORE_SELDOMER,
    MOST_RECORD_BYTES,
    MOST_TRANSFERS_A_LINE,
    MOST_WAITS_A_LINE,
    BeginRow,
    CutRow,
    EndRow,
    IterationsRow,
    Moments,
    NetworkRow,
    PlanRow,
    ProfileRow,
    Rarely,
    RatesRow,
    RecordRow,
    TransfersRow,
    WaitsRow,
)
from prophet_scheduler.watch.status import Predicted

DIGITS = 6
"""Decimal places of times in a record (microseconds)."""
MOST_ENDS_A_LINE = 200
ANOTHER_RATE = 0.02
"""Minimum relative change of the time per megabyte at which the network is written again."""
ANOTHER_PACE = 0.02
"""Minimum change of a profile, as a fraction of an iteration's computing time, at which it is written again."""


class RecordWriter:
    """Thread-safe writer of one worker's record. It writes nothing once closed.

    Each call may raise OSError; then the caller must call `give_up`.
    """

    def __init__(self, folder: Path, begin: BeginRow, most_bytes: int = MOST_RECORD_BYTES) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"worker{begin.worker.rank}.jsonl"
        if path.is_file() and not path.is_symlink():
            path.unlink()  # the mode of an older file may allow others to read it
        path.touch(OWNER)
        self._file: TextIO = path.open("w", encoding="utf-8")
        self._left = most_bytes - END_BYTES
        self._dropped = 0
        self._moments = Moments()
        self._lines = Rarely(LEAST_LINE_S, LINES_BEFORE_SELDOMER)
        self._iterations = 0
        self._ends: list[float | None] = []
        self._sum = [0, 0, 0.0, 0.0]
        self._from_s = begin.began_s
        self._waited_s: dict[str, float] = {}
        self._plans = -1
        self._cut: tuple[Segment, ...] = ()
        self._network: Network | None = None
        self._learned: tuple[Profile, bool, bool] | None = None
        self._lock = free_in_forks(threading.Lock())
        self._write(begin)

    def turn(
        self,
        now: float,
        moved: MeterTurn,
        ends_s: list[float],
        waited_s: Mapping[str, float],
        agent: AgentStatus,
        predicted: Predicted,
        iteration_s: float | None = None,
        profile: Profile | None = None,
    ) -> None:
        """Record one turn. `ends_s` and `waited_s` are from TrainingLog's take_ends and waited_s.

        `iteration_s` is the typical iteration time, if known; `profile` is the learned one, if known.
        """
        with self._lock:
            if self._file.closed:
                return
            another_cut = agent.cut != self._cut
            self._changes(now, agent, predicted)
            if profile is not None:
                self._learns(now, (profile, agent.half, agent.barrier))
            for place, more in enumerate((moved.sent_bytes, moved.received_bytes, *moved.busy_s)):
                self._sum[place] += more
            self._ends += [None if end_s != end_s else round(end_s, DIGITS) for end_s in ends_s]
            if self._moments.due(now, another_cut, iteration_s) and len(moved.ended):
                self._write(transfers_row(now, moved, agent.arena))
            if self._lines.due(now):
                self._summed_up(now, waited_s)
            self._file.flush()

    def close(self, now: float, agent: AgentStatus, waited_s: Mapping[str, float], watch_cpu_s: float) -> None:
        """Write the last line and close the file."""
        with self._lock:
            if self._file.closed:
                return
            self._left += END_BYTES
            with self._file:
                self._summed_up(now, waited_s)
                self._write(EndRow(round(now, DIGITS), self._iterations, agent, watch_cpu_s, self._dropped))

    def give_up(self) -> None:
        """Close the file as it is."""
        with contextlib.suppress(OSError):  # on a full disk, flushing the last line fails again
            self._file.close()

    def _changes(self, now: float, agent: AgentStatus, predicted: Predicted) -> None:
        at = round(now, DIGITS)
        if agent.cut != self._cut:
            self._cut = agent.cut
            self._write(CutRow(at, agent.recuts, agent.cut, agent.recut_reason))
        if agent.plans != self._plans:
            self._plans = agent.plans
            row = PlanRow(
                at,
                agent.plans,
                agent.push_credit,
                agent.pull_credit,
                deadlines=len(agent.deadlines),
                predicted_s=predicted.iteration_s,
                stock_s=predicted.stock_iteration_s,
                cut=predicted.cut,
            )
            self._write(row)
        if agent.network is not None and _another(agent.network, self._network):
            self._network = agent.network
            self._write(NetworkRow(at, agent.network))

    def _learns(self, now: float, learned: tuple[Profile, bool, bool]) -> None:
        before = self._learned
        if before is None or learned[1:] != before[1:] or _another_pace(learned[0], before[0]):
            self._learned = learned
            self._write(profile_row(now, *learned))

    def _summed_up(self, now: float, waited_s: Mapping[str, float]) -> None:
        sent, received, sending_s, receiving_s = self._sum
        times = round(self._from_s, DIGITS), round(now, DIGITS)
        busy = round(sending_s, DIGITS), round(receiving_s, DIGITS)
        self._write(RatesRow(*times, int(sent), int(received), *busy))
        self._sum, self._from_s = [0, 0, 0.0, 0.0], now
        if self._ends:
            count = sum(end_s is not None for end_s in self._ends)
            few = len(self._ends) <= MOST_ENDS_A_LINE or None in self._ends
            ends = self._ends if few else [self._ends[0], self._ends[-1]]
            self._write(IterationsRow(self._iterations, count, tuple(ends)))
            self._iterations += count
            self._ends = []
        more = {name: seconds - self._waited_s.get(name, 0.0) for name, seconds in waited_s.items()}
        longest = sorted((name for name, s in more.items() if s > 0), key=lambda name: -more[name])
        if longest:
            self._waited_s = dict(waited_s)
            kept = {name: round(more[name], DIGITS) for name in longest[:MOST_WAITS_A_LINE]}
            rest = round(sum(more[name] for name in longest[MOST_WAITS_A_LINE:]), DIGITS)
            self._write(WaitsRow(times[1], kept, rest))

    def _write(self, row: RecordRow) -> None:
        line = as_line(row)
        if len(line) > self._left:
            self._dropped += 1
            return
        self._left -= len(line)
        self._file.write(line)


def as_line(row: RecordRow) -> str:
    """Return the row as JSON, its kind first. It does not copy the columns of numbers, which are long."""
    return json.dumps({"kind": row.kind, **vars(row)}, separators=(",", ":"), default=dataclasses.asdict) + "\n"


def transfers_row(now: float, moved: MeterTurn, arena: bool) -> TransfersRow:
    """Return the row with the transfers of one turn, at most MOST_TRANSFERS_A_LINE."""
    ended = moved.ended[:MOST_TRANSFERS_A_LINE]
    from_s = now - moved.seconds

    def column(name: str) -> tuple[int, ...]:
        return tuple(ended[name].tolist())

    def seconds(name: str) -> tuple[float, ...]:
        return tuple((ended[name] - from_s).round(DIGITS).tolist())

    return TransfersRow(
        from_s=round(from_s, DIGITS),
        until_s=round(now, DIGITS),
        gradient=column("gradient"),
        partition=column("partition"),
        queue=column("queue"),
        bytes=column("bytes"),
        added_s=seconds("added_s"),
        start_s=seconds("start_s"),
        finish_s=seconds("finish_s"),
        left_out=len(moved.ended) - len(ended),
        arena=arena,
    )


def profile_row(now: float, profile: Profile, half: bool = False, barrier: bool = False) -> ProfileRow:
    """Return the row with the learned profile, in columns."""
    gradients = profile.gradients
    return ProfileRow(
        time_s=round(now, DIGITS),
        gradient=profile.gradient_ids,
        bytes=tuple(gradient.size_bytes for gradient in gradients),
        generation_s=tuple(round(gradient.generation_s, DIGITS) for gradient in gradients),
        forward_s=tuple(round(gradient.forward_s, DIGITS) for gradient in gradients),
        half=half,
        barrier=barrier,
    )


def _another_pace(profile: Profile, before: Profile) -> bool:
    if profile is before:
        return False
    if profile.size_by_id != before.size_by_id:
        return True
    pairs_s = ((profile.backward_s, before.backward_s), (profile.forward_s, before.forward_s))
    computing_s = before.backward_s + before.forward_s
    return any(abs(now_s - before_s) > ANOTHER_PACE * computing_s for now_s, before_s in pairs_s)


def _another(network: Network, before: Network | None) -> bool:
    if before is None:
        return True
    now_s, before_s = network.transfer_s(1e6), before.transfer_s(1e6)
    return abs(now_s - before_s) > ANOTHER_RATE * before_s
