"""Stalls: when transfers have stopped, and what is known about who waits for whom.

Rule of this file: pure; time is passed in. Once a second the agent reports whether a transfer has finished and whether
any is under way, and logs a warning or exits.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

WARN_S = 45.0
"""Seconds without a finished transfer before one warning. The agent checks once a second: it warns within a minute."""


class Verdict(enum.Enum):
    """Action to take now."""

    NOTHING = enum.auto()
    WARN = enum.auto()
    END = enum.auto()


class StallDetector:
    """Tells a stall from idleness. `limit_s`: seconds of a stall after which the process exits; None for never."""

    def __init__(self, limit_s: float | None = None) -> None:
        self._limit_s = limit_s
        self._moved_at: float | None = None
        self._warned = False
        self.stalled_s = 0.0

    def turn(self, now: float, finished: bool, under_way: bool) -> Verdict:
        """Return the action to take. `finished`: a transfer has finished since the last turn. Warns once a stall."""
        if finished or not under_way or self._moved_at is None:
            self._moved_at = now
            self._warned = False
        self.stalled_s = now - self._moved_at
        if self._limit_s is not None and self.stalled_s >= self._limit_s:
            return Verdict.END
        if self.stalled_s >= WARN_S and not self._warned:
            self._warned = True
            return Verdict.WARN
        return Verdict.NOTHING


@dataclass(frozen=True)
class Oldest:
    """Oldest push or pull in flight: its age in seconds, and its tensor in words."""

    age_s: float
    what: str = "a tensor"


def story(stalled_s: float, push: Oldest | None, pull: Oldest | None, ending: bool = False) -> str:
    """Return one line on who waits for whom. `ending`: BytePS is shutting down.

    A server acknowledges a push as soon as it arrives, and answers a pull when every worker has pushed that key.
    """
    parts = []
    if push is not None:
        what = f"the push of {push.what} is not acknowledged after {push.age_s:.0f} s"
        parts.append(f"{what}, so its server or the link to it is gone")
    if pull is not None:
        why = (
            "so another worker has not sent it, or its server is gone"
            if push is None
            else "perhaps for the same reason"
        )
        parts.append(f"the pull of {pull.what} is not answered after {pull.age_s:.0f} s, {why}")
    if ending and not parts:
        parts.append("BytePS's end waits for all workers and servers and for its scheduler, and one is late or gone")
    if not parts:
        first = "no transfer is under way, and the first one of a tensor waits until all workers have it"
        parts.append(f"{first}; a server, a link or another worker may be gone")
    return f"no transfer has finished for {stalled_s:.0f} s: {'; '.join(parts)}"
