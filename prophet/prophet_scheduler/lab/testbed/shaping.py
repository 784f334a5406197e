"""Shaping of a link: the parameters of the token bucket at each end, and the allowed rates."""

from __future__ import annotations

import math
from dataclasses import dataclass

from prophet_scheduler.core.errors import UserError

LARGEST_PACKET_BYTES = 65_536 + 256  # largest piece that segmentation offload hands a virtual link, with its headers
MIN_BANDWIDTH_BPS = 1e6  # below this, one such packet takes half a second
MAX_BANDWIDTH_BPS = 2.5e9  # above this, two cores may fail to carry a job and its traffic

# Jumbo frames, as in the networks of cloud machines: payload is 99% of the rate (at 1500 bytes it is 95.6%), so a job
# can get the nominal rate. The cost in CPU is that of large packets either way.
MTU_BYTES = 9000

# A late timer loses the tokens that no longer fit, so the bucket holds those that arrive while the machine is busy
# elsewhere. With a larger bucket, the first part of a transfer after a pause would go at the speed of memory.
BURST_S = 0.001
QUEUE_S = 0.02
MIN_QUEUE_BYTES = 262_144


@dataclass(frozen=True)
class TokenBucket:
    """Parameters of Linux's tbf: `rate` in bytes per second, `burst` and `limit` (of its queue) in bytes."""

    rate: int
    burst: int
    limit: int


def token_bucket(bandwidth_bps: float, round_trip_s: float = 0.0) -> TokenBucket:
    """Return the token bucket for one direction of a link at this rate in bits per second.

    The link adds `round_trip_s` to a connection's round trip. The burst is one largest packet and BURST_S of traffic:
    with less, tbf cuts packets up, and at 1 Gbit/s on busy cores carries half the rate. The queue is short (QUEUE_S),
    so that the order of sending is decided above it. On a long wire it holds a round trip's bytes, or TCP would not
    fill the link after a loss.
    """
    rate = bandwidth_bps / 8
    return TokenBucket(
        rate=round(rate),
        burst=LARGEST_PACKET_BYTES + round(rate * BURST_S),
        limit=max(MIN_QUEUE_BYTES, round(rate * max(QUEUE_S, round_trip_s))),
    )


def check_bandwidth(node: str, bandwidth_bps: float | None) -> None:
    """Raise UserError unless the bandwidth is None (not shaped) or a rate that this testbed can make."""
    if bandwidth_bps is None:
        return
    if not (math.isfinite(bandwidth_bps) and MIN_BANDWIDTH_BPS <= bandwidth_bps <= MAX_BANDWIDTH_BPS):
        raise UserError(
            f"bandwidth of {node}: {bandwidth_bps / 1e6:g} Mbit/s cannot be emulated here;"
            f" give {MIN_BANDWIDTH_BPS / 1e6:g} to {MAX_BANDWIDTH_BPS / 1e6:g} Mbit/s, or none for an unshaped link"
        )
