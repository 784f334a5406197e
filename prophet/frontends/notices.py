"""Warnings to the people who train: each once in a process.

What belongs here: saying it. What is said is the caller's.
"""

from __future__ import annotations

import logging

logger = logging.getLogger("prophet")
_warned: set[str] = set()


def warn_once(message: str) -> None:
    """The same warning only once in a process."""
    if message not in _warned:
        _warned.add(message)
        logger.warning("%s", message)
