"""Lines that an FSDP2 job prints: what is scheduled, after its first iteration, and iteration times, at its end.

Rule of this file: counting on the first rank of a sharding group. Times are seconds of the steady clock, sizes bytes.
"""

from __future__ import annotations

from prophet_fsdp.turns import OwnTurns
from prophet_scheduler.frontends import lines
from prophet_scheduler.frontends.ending import at_end
from prophet_scheduler.watch.meter import Periods


class Iterations:
    """Iterations of a sharding group of `ranks` ranks under this policy: each is a forward pass and the backward pass
    that follows.
    """

    def __init__(self, ranks: int, policy: str) -> None:
        self._ranks = ranks
        self._policy = policy
        self._periods = Periods()
        self._forward = False
        self._moved_bytes = self._count = 0
        self.turns: OwnTurns | None = None
        """Turns of FSDP2's own collectives, of the group's first model."""

    def moves(self, size_bytes: int, backward: bool) -> None:
        """Record a collective of this size, in a forward or a backward pass."""
        self._forward |= not backward
        if not self._count:
            self._moved_bytes += size_bytes

    def backward_ends(self, now: float) -> None:
        """Record the end of a model's part of a backward pass; only the first end after a forward pass counts."""
        if not self._forward:
            return
        self._forward = False
        self._count += 1
        self._periods.add([now])
        if self._count == 1:
            lines.begins("FSDP2 over gloo", f"{self._ranks} ranks", self._moved_bytes, self._policy)
            at_end(self._ends)

    def _ends(self) -> None:
        assert self.turns is not None
        lines.ends(self._count, self._periods.spread(), self.turns.words)
