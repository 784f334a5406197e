"""BytePS's use of the machine's shared memory: a file for each key, as long as its tensor.

Rule of this file: how much there is, and the descriptors that BytePS leaves open. Linux alone has either; where they
are unavailable nothing is known and nothing is done.

BytePS 0.2.5 opens a key's file, maps it, and never closes the descriptor. Prophet's keys are many, and 1,024
descriptors are what a shell gives a process. A mapped file needs none, and BytePS does not use it any more.
"""

from __future__ import annotations

import os
from pathlib import Path

FOLDER = "/dev/shm"
_FILES = f"{FOLDER}/BytePS_"


def room_bytes() -> int | None:
    """Return the free bytes. If a file finds none when it is written, the process dies."""
    try:
        there = os.statvfs(FOLDER)
    except OSError:
        return None
    return there.f_bavail * there.f_frsize


def close_mapped() -> int:
    """Close the descriptors of BytePS's mapped files. Returns their number. From any thread."""
    try:
        with Path("/proc/self/maps").open(encoding="utf-8", errors="replace") as lines:
            mapped = {line[line.index(_FILES) :].rstrip("\n") for line in lines if _FILES in line}
        descriptors = list(Path("/proc/self/fd").iterdir()) if mapped else []
    except OSError:
        return 0
    closed = 0
    for descriptor in descriptors:
        try:
            if str(descriptor.readlink()) in mapped:
                os.close(int(descriptor.name))
                closed += 1
        except OSError:  # It was that of the listing itself, or another thread's that is gone.
            continue
    return closed
