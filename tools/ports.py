"""A port for a job on this machine.

Rule of this file: finding one, and no more.
"""

from __future__ import annotations

import socket


def free_port() -> int:
    """A port of this machine that nobody has at the moment."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])
