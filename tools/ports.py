"""A port for a job on this machine.

Rule of this file: only finding one.
"""

from __future__ import annotations

import contextlib
import random
import socket
from pathlib import Path

RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
FIRST = 20000
TRIES = 1000


def free_port() -> int:
    """Return a free port of this machine that no other program gets by chance.

    It is not reserved. The kernel assigns ports from its own range to connections, so this one is below that range.
    Raises OSError if there is none.
    """
    before = range(FIRST, int(RANGE.read_text().split()[0]))
    for port in (*random.SystemRandom().sample(before, min(TRIES, len(before))), 0):
        with contextlib.suppress(OSError), socket.socket() as free:
            free.bind(("127.0.0.1", port))
            return int(free.getsockname()[1])
    raise OSError("no port of this machine is free")
