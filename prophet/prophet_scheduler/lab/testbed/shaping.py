"""Shaping of a link: the parameters of the token bucket at each end, and the range of rates."""

from __future__ import annotations

import math
from dataclasses import dataclass

from prophet_scheduler.core.errors import UserError

LARGEST_PACKET_BYTES = 65_536 + 256  # largest piece that segmentation offload hands to a virtual link, with headers
MIN_BANDWIDTH_BPS = 1e6  # below this, such a packet takes over half a second
MAX_BANDWIDTH_BPS = 2.5e9  # above this, two cores may be too slow for a job and its traffic

# Jumbo frames, as in cloud networks: the payload is 99% of the rate (95.6% at 1500 bytes), so a job can reach the
# nominal rate. The CPU cost is the same, since packets are large either way.
MTU_BYTES = 9000

# Tokens that no longer fit are lost when a timer is late, so the bucket has room for those that arrive while the CPU is
# busy elsewhere. With a larger bucket, the start of a transfer after a pause would go at memory speed.
BURST_S = 0.001
QUEUE_S = 0.02
MIN_QUEUE_BYTES = 262_144


@dataclass(frozen=True)
class TokenBucket:
    """Parameters of Linux's tbf: `rate` in bytes per second; `burst` and the queue's `limit` in bytes."""

    rate: int
    burst: int
    limit: int


def token_bucket(bandwidth_bps: float, round_trip_s: float = 0.0) -> TokenBucket:
    """Return the token bucket for one direction of a link at this rate in bits per second.

    The link adds `round_trip_s` to a connection's round trip. The burst is the largest packet plus BURST_S of traffic:
    with less, tbf splits packets, and carries half the rate at 1 Gbit/s on busy cores. The queue is short (QUEUE_S), so
    that the sending order is decided above it. On a long wire it holds a round trip's bytes, or TCP could not fill the
    link after a loss.
    """
    rate = bandwidth_bps / 8
    return TokenBucket(
        rate=round(rate),
        burst=LARGEST_PACKET_BYTES + round(rate * BURST_S),
        limit=max(MIN_QUEUE_BYTES, round(rate * max(QUEUE_S, round_trip_s))),
    )


def check_bandwidth(node: str, bandwidth_bps: float | None) -> None:
    """Raise UserError unless the bandwidth is None (not shaped) or a rate that this testbed can emulate."""
    if bandwidth_bps is None:
        return
    if not (math.isfinite(bandwidth_bps) and MIN_BANDWIDTH_BPS <= bandwidth_bps <= MAX_BANDWIDTH_BPS):
        raise UserError(
            f"bandwidth of {node}: {bandwidth_bps / 1e6:g} Mbit/s cannot be emulated here;"
            f" give {MIN_BANDWIDTH_BPS / 1e6:g} to {MAX_BANDWIDTH_BPS / 1e6:g} Mbit/s, or none for an unshaped link"
        )
