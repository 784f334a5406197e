"""Record of a job's transfers: its events, and the plans that the queue followed.

Rule of this file: the record in memory and its file (.npz). core/events.py defines the events; simulate/replay.py
repeats the recorded decisions. Times are seconds, sizes bytes.
"""

from __future__ import annotations

import io
import itertools
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from prophet_scheduler.core.errors import UserError
from prophet_scheduler.core.events import BOTH_LANES, EVENT_DTYPE, EVENT_VERSION, NO_PLAN, QueueEvent
from prophet_scheduler.core.files import MOST_READ_BYTES, OWNER, read_bytes, whole_file

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass(frozen=True)
class EventRecord:
    """Events (EVENT_DTYPE) in the order of calls to the queue, with everything else that its decisions depend on.

    `plans` has the encoded plans that the events name, by number (core/plan_codec.py). `watchdog_s` and
    `most_in_flight` (None: no limit) are the queue's. `agreed` is True if no queue decided: all ranks of an engine of
    collectives followed an agreed sequence.
    """

    events: NDArray[Any]
    plans: Mapping[int, bytes] = field(default_factory=dict)
    watchdog_s: float = 1.0
    most_in_flight: int | None = None
    agreed: bool = False


class RecordBuffer:
    """Buffer of the newest `most_events` events, and the plans that they may name."""

    def __init__(self, most_events: int) -> None:
        self._most = most_events
        self._pieces: deque[NDArray[Any]] = deque()
        self._count = 0
        self._lost = 0
        self._plans: dict[int, bytes] = {}

    def keep(self, events: NDArray[Any]) -> None:
        """Append events, in order. Beyond the maximum, drop the oldest, one earlier call's events at a time."""
        if not len(events):
            return
        self._pieces.append(events)
        self._count += len(events)
        while self._count > self._most:
            self._drop(self._pieces.popleft())

    def keep_plan(self, number: int, encoded: bytes) -> None:
        """Keep a plan that has taken effect in the queue."""
        self._plans[number] = encoded

    def record(self, watchdog_s: float, most_in_flight: int | None, agreed: bool = False) -> EventRecord:
        """Return the kept events. If older ones were dropped, the first has a gap, as in the hook's own log."""
        events = np.concatenate([np.zeros(0, EVENT_DTYPE), *self._pieces])
        if self._lost and len(events):
            events["gap"][0] = min(int(events["gap"][0]) + self._lost, NO_PLAN)
        return EventRecord(events, dict(self._plans), watchdog_s, most_in_flight, agreed)

    def _drop(self, piece: NDArray[Any]) -> None:
        self._count -= len(piece)
        self._lost += len(piece) + int(piece["gap"].sum())
        numbers = piece["gradient"][piece["kind"] >= QueueEvent.PLAN]
        numbers = numbers[numbers != NO_PLAN]
        if len(numbers):
            # Plan numbers rise. The remaining events may still refer to the newest plan among the dropped events.
            newest = int(numbers[-1])
            self._plans = {number: plan for number, plan in self._plans.items() if number >= newest}


def save_record(record: EventRecord, path: Path) -> None:
    """Write the file whole or not at all, readable by its owner only. Raises OSError."""
    numbers = sorted(record.plans)
    packed = io.BytesIO()  # on a full disk, zipfile writing directly would report a second error
    np.savez(
        packed,
        version=np.uint32(EVENT_VERSION),
        events=record.events,
        plan_numbers=np.array(numbers, np.uint32),
        plan_bytes=np.array([len(record.plans[number]) for number in numbers], np.uint64),
        plans=np.frombuffer(b"".join(record.plans[number] for number in numbers), np.uint8),
        watchdog_s=np.float64(record.watchdog_s),
        most_in_flight=np.uint64(record.most_in_flight or 0),
        agreed=np.bool_(record.agreed),
    )
    with whole_file(path, OWNER) as file:
        file.write(packed.getbuffer())


def load_record(path: Path) -> EventRecord:
    """Read a file written by `save_record`. Raises UserError, with one line, for any other."""
    loaded = _load(path)
    if isinstance(loaded, np.ndarray):
        raise UserError(f"{path} has events but no plans: an older Prophet wrote it, so it cannot be replayed")
    try:
        with loaded:
            return _record_of(loaded)
    except _OtherVersion as error:
        raise UserError(f"{path} is {error}") from None
    except Exception as error:  # on a damaged file, NumPy and zipfile may raise almost anything
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise UserError(f"{path} is not a record of events: {reason}") from None


class _OtherVersion(Exception):
    pass


def _record_of(loaded: Any) -> EventRecord:
    """Return the record in a loaded file. Raises any error if it is damaged, or another program's."""
    if sum(part.file_size for part in loaded.zip.infolist()) > MOST_READ_BYTES:
        raise ValueError("it unpacks to more than a record can have")
    version = int(loaded["version"])
    if version != EVENT_VERSION:
        raise _OtherVersion(f"a record of version {version}; this Prophet reads version {EVENT_VERSION}")
    events, plans = loaded["events"], loaded["plans"].tobytes()
    numbers, sizes = ([int(number) for number in loaded[name]] for name in ("plan_numbers", "plan_bytes"))
    watchdog_s, most = float(loaded["watchdog_s"]), int(loaded["most_in_flight"])
    agreed = "agreed" in loaded and bool(loaded["agreed"])  # older files have none
    _check_events(events)
    if len(plans) != sum(sizes) or len(numbers) != len(sizes) or min(sizes, default=0) < 0:
        raise ValueError("its parts do not fit together")
    if not watchdog_s >= 0 or not 0 <= most < 1 << 64:
        raise ValueError(f"its queue has a watchdog of {watchdog_s} s and {most} places")
    ends = itertools.accumulate(sizes, initial=0)
    kept = {number: plans[start:end] for number, (start, end) in zip(numbers, itertools.pairwise(ends), strict=True)}
    return EventRecord(events, kept, watchdog_s, most or None, agreed)


def _check_events(events: Any) -> None:
    if events.ndim != 1 or events.dtype != EVENT_DTYPE:
        raise ValueError("its parts do not fit together")
    of_queue = events["kind"] >= QueueEvent.PLAN
    if (events["kind"] > max(QueueEvent)).any() or ((events["queue"] >= BOTH_LANES) != of_queue).any():
        raise ValueError("it has events of an unknown kind")
    if not np.isfinite(events["time_s"]).all():
        raise ValueError("it has events without a valid time")


def load_events(path: Path) -> NDArray[Any]:
    """Return the events of a record, or of an older file with events only (.npy). Raises UserError."""
    loaded = _load(path)
    if not isinstance(loaded, np.ndarray):
        return load_record(path).events
    try:
        _check_events(loaded)
    except ValueError as error:
        raise UserError(f"{path} is not a record of events: {error}") from None
    return loaded


def _load(path: Path) -> NDArray[Any] | Any:
    try:
        content = read_bytes(path)
    except FileNotFoundError:
        raise UserError(f"{path} does not exist") from None
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror or error})") from None
    try:
        return np.load(io.BytesIO(content), allow_pickle=False)
    except Exception:  # as above
        raise UserError(f"{path} is not a record of events such as PROPHET_EVENTS_OUT writes") from None
