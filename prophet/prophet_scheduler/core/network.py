"""A worker's link, as far as a plan needs to know it.

Rule of this file: immutable values and their validation, in bytes, seconds and bytes per second.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from prophet_scheduler.core.errors import UserError
from prophet_scheduler.core.units import MOST_S


@dataclass(frozen=True)
class Network:
    """A worker's link: `E(s) = overhead_s + s / bandwidth` seconds for s bytes.

    `bandwidth` is the available rate in bytes per second, `ack_delay_s` the time from the last byte
    of a push leaving to its acknowledgement being seen.
    """

    bandwidth: float
    overhead_s: float = 0.0
    ack_delay_s: float = 0.0

    def __post_init__(self) -> None:
        if not (math.isfinite(self.bandwidth) and self.bandwidth > 0):
            raise UserError(f"bandwidth is {self.bandwidth} bytes per second; it must be above 0")
        if not (0 <= self.overhead_s <= MOST_S and 0 <= self.ack_delay_s <= MOST_S):
            raise UserError(f"overhead_s and ack_delay_s must be 0 or more seconds, and at most {MOST_S:g}")

    def transfer_s(self, size_bytes: float) -> float:
        """The paper's E(i) with Eq. 10's f fitted as a fixed overhead and a rate."""
        return self.overhead_s + size_bytes / self.bandwidth

    def to_cover_delay(self, size_bytes: float) -> float:
        """Return the number of messages of this size that keep the wire busy: one that leaves is replaced when its
        acknowledgement comes, and the others take at least that long.
        """
        return 1 + self.ack_delay_s / self.transfer_s(size_bytes)

    @property
    def one_at_a_time(self) -> Network:
        """The network of a sender that waits for each acknowledgement: each message pays for the delay."""
        return replace(self, overhead_s=self.overhead_s + self.ack_delay_s, ack_delay_s=0.0)


@dataclass(frozen=True)
class Probe:
    """Seconds of an operation of `size_bytes` with nothing else under way."""

    size_bytes: int
    seconds: float
