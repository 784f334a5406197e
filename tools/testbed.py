"""Measurements of the testbed's links: round trip and rate by delay and bandwidth, and the cost of a relay.

Rule of this file: which links are looked at. One link at a time, with nothing else in the testbed.
"""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from prophet_scheduler.lab.testbed import NodeSpec, RelayReport, Testbed, reexec_in_user_namespace
from prophet_scheduler.lab.testbed.testbed import RAMP_ROUND_TRIPS

BANDWIDTHS = (250e6, 1e9, 2.5e9, None)
DELAYS_S = (None, 0.0, 0.001, 0.005, 0.02)
NODE, OTHER = "worker0", "server0"
MEASURE_S = 1.5


@dataclass(frozen=True)
class MeasuredLink:
    """One link: what was asked for, and what it did. Bits per second and seconds; `relay` while data went up."""

    bandwidth_bps: float | None
    delay_s: float | None
    round_trip_s: float
    up_bps: float
    down_bps: float
    relay: RelayReport | None


def look(bandwidth_bps: float | None, delay_s: float | None) -> MeasuredLink:
    """Make a testbed of one such link and measure it. Raises UserError."""
    node = NodeSpec(NODE, bandwidth_bps, delay_s=delay_s, measured=True)
    with Testbed([node, NodeSpec(OTHER, None)]) as testbed:
        round_trip_s = testbed.round_trips()[NODE]
        seconds = MEASURE_S + RAMP_ROUND_TRIPS * 2 * (delay_s or 0.0)
        testbed.relays()
        up_bps = testbed.measure(NODE, OTHER, seconds)
        relay = testbed.relays().get(NODE)
        return MeasuredLink(bandwidth_bps, delay_s, round_trip_s, up_bps, testbed.measure(OTHER, NODE, seconds), relay)


def measure(out: Path, results: Path) -> dict[str, Any]:
    """Look at every link; `load` is the load average of the last minute at the end. Raises UserError."""
    reexec_in_user_namespace()
    links = []
    for bandwidth_bps in BANDWIDTHS:
        for delay_s in DELAYS_S:
            links.append(link := look(bandwidth_bps, delay_s))
            print(link, flush=True)
    return {"links": [asdict(link) for link in links], "load": os.getloadavg()[0]}
