"""The record of a job: what is kept of it while it runs, and its file."""

from __future__ import annotations

import struct
import zipfile
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from prophet_scheduler.core import _native
from prophet_scheduler.core.errors import UserError
from prophet_scheduler.core.event_record import EventRecord, RecordBuffer, load_events, load_record, save_record
from prophet_scheduler.core.events import BOTH_LANES, EVENT_DTYPE, EVENT_VERSION, NO_PLAN, EventKind, QueueEvent


def adds(first: int, count: int) -> NDArray[np.void]:
    return np.array([(float(n), n, 8, 0, 0, EventKind.ADD, 0) for n in range(first, first + count)], EVENT_DTYPE)


def plan_event(number: int) -> NDArray[np.void]:
    return np.array([(0.0, number, 0, 0, BOTH_LANES, QueueEvent.PLAN, 0)], EVENT_DTYPE)


def test_the_native_log_and_python_mean_the_same() -> None:
    assert (EVENT_VERSION, NO_PLAN) == (_native.EVENT_VERSION, _native.NO_PLAN)
    assert EVENT_DTYPE.itemsize == 24
    assert not {int(kind) for kind in QueueEvent} & {int(kind) for kind in EventKind}


def test_a_record_is_read_as_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "a name without an end"
    for record in (
        EventRecord(adds(0, 3), {4: b"four", 7: b"", 9: b"nine!"}, 0.5, 256),
        EventRecord(adds(0, 0)),
        EventRecord(adds(0, 2), agreed=True),
    ):
        save_record(record, path)
        loaded = load_record(path)
        assert loaded.events.tobytes() == record.events.tobytes()
        assert (loaded.plans, loaded.watchdog_s, loaded.most_in_flight) == (
            record.plans,
            record.watchdog_s,
            record.most_in_flight,
        )
        assert load_events(path).tobytes() == record.events.tobytes()
    assert [entry.name for entry in tmp_path.iterdir()] == [path.name]


def test_the_events_of_an_older_release_are_read_and_have_no_plans(tmp_path: Path) -> None:
    path = tmp_path / "worker0.events.npy"
    np.save(path, adds(0, 3))
    assert load_events(path).tobytes() == adds(0, 3).tobytes()
    with pytest.raises(UserError, match=r"worker0\.events\.npy has events but no plans"):
        load_record(path)


def test_what_is_no_record_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "e.npz"
    with pytest.raises(UserError, match=r"e\.npz does not exist$"):
        load_record(path)
    np.savez(path, version=np.uint32(99))
    with pytest.raises(UserError, match="a record of version 99; this Prophet reads version 2"):
        load_record(path)
    for field, value in (("kind", 6), ("kind", QueueEvent.EMPTY), ("queue", BOTH_LANES), ("queue", 3)):
        events = adds(0, 3)
        events[field][1] = value
        save_record(EventRecord(events), path)
        with pytest.raises(UserError, match="it has events of an unknown kind"):
            load_record(path)


def test_the_newest_events_are_kept_and_the_first_says_how_many_are_lost() -> None:
    buffer = RecordBuffer(most_events=6)
    pieces = [adds(first, 3) for first in (0, 3, 6)]
    pieces[0]["gap"][1] = 5
    for piece in pieces:
        buffer.keep(piece)
    record = buffer.record(1.0, None)
    assert record.events["gradient"].tolist() == [3, 4, 5, 6, 7, 8]
    assert record.events["gap"].tolist() == [3 + 5, 0, 0, 0, 0, 0]
    assert buffer.record(1.0, None).events["gap"][0] == 3 + 5, "and asking again changes nothing"


def test_a_plan_is_kept_as_long_as_an_event_may_name_it() -> None:
    buffer = RecordBuffer(most_events=6)
    for number in range(4):
        buffer.keep_plan(number, b"%d" % number)
        buffer.keep(plan_event(number))
        buffer.keep(adds(0, 2))
    # The pieces of plan 2 and 3 are left, and one before them; plan 1 may have been in force at their beginning.
    assert set(buffer.record(1.0, None).plans) == {1, 2, 3}


def test_nothing_kept_is_an_empty_record() -> None:
    assert len(RecordBuffer(10).record(1.0, 256).events) == 0


def test_a_record_whose_packed_bytes_are_broken_is_one_line(tmp_path: Path) -> None:
    """As where somebody has packed it anew, and the disk was full."""
    path = tmp_path / "e.npz"
    save_record(EventRecord(adds(0, 3)), path)
    np.savez_compressed(path, **dict(np.load(path)))
    assert len(load_record(path).events) == 3
    with zipfile.ZipFile(path) as packed:
        start = packed.getinfo("events.npy").header_offset
    content = bytearray(path.read_bytes())
    name_bytes, extra_bytes = struct.unpack_from("<HH", content, start + 26)
    begins = start + 30 + name_bytes + extra_bytes
    content[begins : begins + 8] = b"\xff" * 8
    path.write_bytes(content)
    with pytest.raises(UserError, match=r"e\.npz is not a record of events: Error -3 while decompressing") as error:
        load_record(path)
    assert "\n" not in str(error.value)
    path.write_bytes(content[:-30])
    with pytest.raises(UserError, match=r"e\.npz is not a record of events"):
        load_record(path)
