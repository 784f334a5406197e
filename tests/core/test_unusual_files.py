"""No file to read, or one larger than it looks, and disks that are full: one line each, and nothing half-written."""

from __future__ import annotations

import errno
import io
import os
import stat
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from prophet_scheduler.core import files
from prophet_scheduler.core.errors import UserError
from prophet_scheduler.core.event_record import EventRecord, load_events, load_record, save_record
from prophet_scheduler.core.events import EVENT_DTYPE
from prophet_scheduler.core.files import OWNER, write_whole
from prophet_scheduler.lab.config import load_experiment
from prophet_scheduler.lab.records import read_results, read_status, read_worker
from prophet_scheduler.lab.report.from_record import read_rows
from prophet_scheduler.models.profiles import load_profile, save_profile
from support.profiles import resnet50

READERS = [load_record, load_events, load_profile, load_experiment, read_results, read_status, read_worker, read_rows]


@pytest.mark.parametrize("read", READERS)
def test_a_pipe_a_device_and_a_folder_are_one_line(read: Callable[[Path], Any], tmp_path: Path) -> None:
    """And are not waited for, nor read without end."""
    os.mkfifo(pipe := tmp_path / "pipe")
    (linked := tmp_path / "linked").symlink_to("/dev/zero")
    for path in (pipe, linked, tmp_path, Path("/dev/null"), tmp_path / "none", tmp_path / ("n" * 300)):
        with pytest.raises(UserError) as error:
            read(path)
        assert str(path) in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize("read", READERS)
def test_a_file_that_is_too_large_is_not_read(
    read: Callable[[Path], Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "large"
    with path.open("wb") as file:
        file.truncate(files.MOST_READ_BYTES + 1)  # which takes no room
    with pytest.raises(UserError, match=r"large.*File too large"):
        read(path)


class Runs:
    """As a pickle makes something run."""

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, ("it has run",)


def npz(**parts: Any) -> bytes:
    file = io.BytesIO()
    np.savez_compressed(file, **parts)
    return file.getvalue()


def claims(shape: str) -> bytes:
    """A record whose events say that they have another shape."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as packed:
        header = f"{{'descr': {EVENT_DTYPE.descr!r}, 'fortran_order': False, 'shape': {shape}, }}\n".encode()
        packed.writestr("version.npy", npy(np.uint32(2)))
        packed.writestr("events.npy", b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header)
    return file.getvalue()


def npy(value: Any) -> bytes:
    file = io.BytesIO()
    np.save(file, value)
    return file.getvalue()


def bomb() -> bytes:
    """Two bytes in a thousand of what it unpacks to."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as packed:
        packed.writestr("version.npy", npy(np.uint32(2)))
        packed.writestr("events.npy", bytes(1 << 20))
    content = bytearray(file.getvalue())
    # Its directory says that it has 4 GB.
    at = content.rindex(b"PK\1\2")
    content[at + 24 : at + 28] = b"\xff\xff\xff\xfe"
    return bytes(content)


@pytest.mark.parametrize(
    "content",
    [
        npz(version=np.array([Runs()], object)),
        npz(version=np.uint32(2), events=np.array([Runs()], object)),
        bomb(),
        claims("(1000000000000,)"),
        claims("(99999999999999999999,)"),
        claims("(-1,)"),
        claims("(" * 500),
        npz(version=np.uint32(2), events=np.zeros(1, EVENT_DTYPE), plans=np.zeros(1)),
        b"\x93NUMPY\x01\x00" + b"\xff" * 100,
        npy(np.array([Runs()], object)),
        b"",
        b"hello",
        b"PK\3\4 cut short",
    ],
    ids=[
        *("pickle", "pickle of events", "bomb", "huge", "overflow", "negative", "nested", "lacks", "header", "npy"),
        *("nothing", "text", "cut short"),
    ],
)
def test_what_a_record_must_not_do(content: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "odd.npz"
    path.write_bytes(content)
    for read in (load_record, load_events):
        with pytest.raises(UserError, match=r"odd\.npz") as error:
            read(path)
        assert "\n" not in str(error.value)
    assert [entry.name for entry in tmp_path.iterdir()] == ["odd.npz"]


@pytest.mark.parametrize(
    ("part", "value", "why"),
    [
        ("events", np.zeros((2, 2), EVENT_DTYPE), ""),
        ("events", np.zeros(2), ""),
        ("plan_numbers", np.uint32(3), ""),
        ("plan_bytes", np.zeros(1), ""),
        ("plan_bytes", np.array([3, 2], np.uint64), "do not fit together"),
        ("watchdog_s", np.zeros(2), ""),
        ("most_in_flight", np.array("many"), ""),
        ("watchdog_s", np.float64("nan"), "watchdog of nan"),
        ("watchdog_s", np.float64(-1), "watchdog of -1"),
        ("most_in_flight", np.int64(-5), "-5 places"),
        ("most_in_flight", np.float64(1e300), "places"),
        ("most_in_flight", np.float64("inf"), "cannot convert"),
        ("plan_bytes", np.array([-4, 8]), "do not fit together"),
        ("events", np.array([(float("nan"), 1, 1, 0, 0, 0, 0)], EVENT_DTYPE), "without a valid time"),
        ("events", np.array([(float("inf"), 1, 1, 0, 0, 0, 0)], EVENT_DTYPE), "without a valid time"),
    ],
)
def test_a_record_with_an_absurd_part_is_one_line(part: str, value: Any, why: str, tmp_path: Path) -> None:
    path = tmp_path / "odd.npz"
    save_record(EventRecord(np.zeros(0, EVENT_DTYPE), {0: b"ab", 1: b"cd"}), path)
    np.savez(path, **{**dict(np.load(path)), part: value})
    with pytest.raises(UserError, match=rf"odd\.npz is not a record of events: .*{why}") as error:
        load_record(path)
    assert "\n" not in str(error.value)


@pytest.fixture
def full(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A disk that takes the first bytes of a file, and then no more."""

    class Full(io.FileIO):
        def write(self, data: Any) -> int:
            if self.tell() + len(data) > 100:
                super().write(bytes(data)[: max(0, 100 - self.tell())])
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return super().write(data)

    def opened(path: Any, mode: str = "r", opener: Any = None, **more: Any) -> Any:
        return io.BufferedWriter(Full(path, mode.replace("b", ""), opener=opener))

    monkeypatch.setattr(files, "open", opened, raising=False)
    yield


@pytest.mark.parametrize(
    "write",
    [
        lambda path: write_whole("x" * 1000, path),
        lambda path: save_record(EventRecord(np.zeros(100, EVENT_DTYPE)), path),
        lambda path: save_profile(resnet50(), path, "a test"),
    ],
    ids=["text", "record", "profile"],
)
@pytest.mark.parametrize("before", [None, "what was there"])
def test_a_full_disk_leaves_nothing_half_written(
    write: Callable[[Path], None], before: str | None, full: None, tmp_path: Path
) -> None:
    path = tmp_path / "a.png"
    if before is not None:
        path.write_text(before)
    with pytest.raises(OSError, match="No space left on device") as error:
        write(path)
    assert error.value.filename == str(path), "for the one line that is said of it"
    assert {entry.name for entry in tmp_path.iterdir()} == ({"a.png"} if before is not None else set())
    assert before is None or path.read_text() == before


def test_a_record_is_for_its_owner(tmp_path: Path) -> None:
    path = tmp_path / "e.npz"
    path.write_bytes(b"")
    path.chmod(0o644)
    save_record(EventRecord(np.zeros(0, EVENT_DTYPE)), path)
    assert stat.S_IMODE(path.stat().st_mode) == OWNER
    write_whole("", path := tmp_path / "other")
    assert stat.S_IMODE(path.stat().st_mode) & 0o044, "what others may read stays so"


def test_a_device_is_written_to_and_stays_one(tmp_path: Path) -> None:
    write_whole("gone", Path("/dev/null"))
    os.mkfifo(path := tmp_path / "pipe")
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    write_whole("through", path)
    assert os.read(reader, 100) == b"through"
    os.close(reader)
    assert path.is_fifo()
