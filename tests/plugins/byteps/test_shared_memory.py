"""Descriptors that BytePS leaves open, and the room that there is for its keys."""

from __future__ import annotations

import mmap
import os
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from prophet_byteps import shared_memory


@pytest.fixture
def files() -> Iterator[list[int]]:
    """Two open files as BytePS makes them, of which the first is mapped."""
    paths = [f"{shared_memory.FOLDER}/BytePS_ShM_{uuid.uuid4().hex}" for _ in range(2)]
    descriptors = [os.open(path, os.O_CREAT | os.O_RDWR) for path in paths]
    for descriptor in descriptors:
        os.ftruncate(descriptor, mmap.PAGESIZE)
    yield descriptors
    for path in paths:
        Path(path).unlink()


def test_only_descriptors_of_mapped_files_are_closed(files: list[int]) -> None:
    memory = mmap.mmap(os.dup(files[0]), mmap.PAGESIZE)  # Python keeps one of its own.
    memory[:5] = b"there"
    assert shared_memory.close_mapped() >= 1
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(files[0])
    assert os.fstat(files[1]).st_size == mmap.PAGESIZE
    assert memory[:5] == b"there"
    os.close(files[1])


def test_room_is_counted_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    room = shared_memory.room_bytes()
    assert room is not None
    assert room > 0
    monkeypatch.setattr(shared_memory, "FOLDER", "/nowhere")
    assert shared_memory.room_bytes() is None
