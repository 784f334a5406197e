"""What BytePS has of the machine's shared memory: a file for each key, as long as its tensor.

Rule of this file: how much there is, and the descriptors that BytePS leaves open. Linux alone has either; where they
cannot be had nothing is known and nothing is done.

BytePS 0.2.5 opens a key's file, maps it, and never closes the descriptor. Prophet's keys are many, and 1,024
descriptors are what a shell gives a process. A file that is mapped needs none, and BytePS uses it no more.
"""

from __future__ import annotations

import os
from pathlib import Path

FOLDER = "/dev/shm"
_FILES = f"{FOLDER}/BytePS_"


def room_bytes() -> int | None:
    """How much more fits. Where a file finds none when it is written, the process dies."""
    try:
        there = os.statvfs(FOLDER)
    except OSError:
        return None
    return there.f_bavail * there.f_frsize


def close_mapped() -> int:
    """Closes the descriptors of BytePS's files that are mapped; how many those were. From any thread."""
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
