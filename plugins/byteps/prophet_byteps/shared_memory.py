"""BytePS's use of the machine's shared memory: a file for each key, as long as its tensor.

Rule of this file: how much is free, and the descriptors that BytePS leaves open. Both need Linux; elsewhere the free
memory is unknown and nothing is closed.

BytePS 0.2.5 opens a key's file, maps it, and never closes the descriptor. Prophet uses many keys, and a shell usually
allows a process 1,024 descriptors. A mapped file needs none, and BytePS does not use it again.
"""

from __future__ import annotations

import os
from pathlib import Path

FOLDER = "/dev/shm"
_FILES = f"{FOLDER}/BytePS_"


def room_bytes() -> int | None:
    """Return the free bytes; None if unknown. A process that writes to a file when none are left dies."""
    try:
        there = os.statvfs(FOLDER)
    except OSError:
        return None
    return there.f_bavail * there.f_frsize


def close_mapped() -> int:
    """Close the descriptors of BytePS's mapped files, and return their number. Thread-safe."""
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
        except OSError:  # The descriptor of the listing itself, or one that another thread has closed.
            continue
    return closed
