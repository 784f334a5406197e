"""Model of a worker's link, with the values that plans need.

Rule of this file: immutable values and their validation, in bytes, seconds and bytes per second.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from prophet_scheduler.core.errors import UserError
from prophet_scheduler.core.units import MOST_S


@dataclass(frozen=True)
class Network:
    """A worker's link, on which s bytes take `E(s) = overhead_s + s / bandwidth` seconds.

    `bandwidth` is the available rate in bytes per second. `ack_delay_s` is the time from sending a push's last byte
    until its acknowledgement is seen.
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
        """Return the paper's E(i), with f of Eq. 10 fitted as a fixed overhead and a rate."""
        return self.overhead_s + size_bytes / self.bandwidth

    def to_cover_delay(self, size_bytes: float) -> float:
        """Return the number of messages of this size in flight that keeps the wire busy: while one waits for its
        acknowledgement, the others occupy the wire.
        """
        return 1 + self.ack_delay_s / self.transfer_s(size_bytes)

    @property
    def one_at_a_time(self) -> Network:
        """The network for a sender that waits for each acknowledgement: each message pays the delay."""
        return replace(self, overhead_s=self.overhead_s + self.ack_delay_s, ack_delay_s=0.0)


@dataclass(frozen=True)
class Probe:
    """Seconds of an operation of `size_bytes` with nothing else in flight."""

    size_bytes: int
    seconds: float
