"""Measurements on the testbed: what its links do, and what gloo's all-reduces take on them.

Rule of this file: which links and operations are looked at. Nothing else is in the testbed, and nothing computes
meanwhile: the simulator has its numbers from the operations, and no iteration of any job is in them.
"""

from __future__ import annotations

import itertools
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from prophet_scheduler.lab.launchers import without_jobs
from prophet_scheduler.lab.testbed import NodeSpec, Testbed, reexec_in_user_namespace
from prophet_scheduler.lab.testbed.testbed import RAMP_ROUND_TRIPS
from prophet_scheduler.policies.algorithms.sequence import MOST_AT_ONCE
from tools.jobs import said_by_ranks

BANDWIDTHS = (250e6, 1e9, 2.5e9, None)
DELAYS_S = (None, 0.0, 0.001, 0.005, 0.02)
NODE, OTHER = "worker0", "server0"
MEASURE_S = 1.5
JOB = Path(__file__).with_name("operations_job.py")
SIZES = (4 << 10, 128 << 10, 1 << 20, 16 << 20)
AT_ONCE = (1, 2, MOST_AT_ONCE)
ISSUED = SIZES[:3]
"""Sizes of operations that Prophet issues."""
WAYS: Sequence[tuple[int, float | None, float | None]] = (
    (2, None, None),
    (4, None, None),
    (2, None, 0.001),
    (2, None, 0.005),
    (4, None, 0.005),
    (2, 250e6, None),
    (2, 250e6, 0.005),
    (4, 250e6, 0.005),
    (2, 1e9, None),
    (2, 1e9, 0.005),
    (2, 2.5e9, None),
)
"""Ranks, and the link of each: bits per second, None for no limit, and seconds each way."""


def link(bandwidth_bps: float | None, delay_s: float | None) -> dict[str, Any]:
    """Make a testbed of one such link, and return what was asked for and what it did. Raises UserError.

    Rates are bits per second; `relay` has its report while data went up.
    """
    asked = {"bandwidth_bps": bandwidth_bps, "delay_s": delay_s}
    node = NodeSpec(NODE, bandwidth_bps, delay_s=delay_s, measured=True)
    with Testbed([node, NodeSpec(OTHER, None)]) as testbed:
        round_trip_s = testbed.round_trips()[NODE]
        seconds = MEASURE_S + RAMP_ROUND_TRIPS * 2 * (delay_s or 0.0)
        testbed.relays()
        up_bps = testbed.measure(NODE, OTHER, seconds)
        relay = testbed.relays().get(NODE)
        down_bps = testbed.measure(OTHER, NODE, seconds)
    return {**asked, "round_trip_s": round_trip_s, "up_bps": up_bps, "down_bps": down_bps, "relay": relay}


def links(out: Path, results: Path) -> dict[str, Any]:
    """Look at every link, one at a time; `load` is the load average of the last minute at the end. Raises UserError."""
    reexec_in_user_namespace()
    seen = []
    for asked in itertools.product(BANDWIDTHS, DELAYS_S):
        seen.append(link(*asked))
        print(seen[-1], flush=True)
    return {"links": seen, "load": os.getloadavg()[0]}


def timed(ranks: int, bandwidth_bps: float | None, delay_s: float | None) -> dict[str, Any]:
    """Make a testbed of such links and time every size on it. Raises UserError.

    Seconds of an operation: `bare_s` of gloo's, by bytes and operations under way; `issued_s` of those that Prophet
    issues, by bytes. Bytes per second that the fastest rank copies, copies to new memory, and updates, while the others
    do as well.
    """
    nodes = [f"worker{rank}" for rank in range(ranks)]
    command = [sys.executable, str(JOB), json.dumps(list(itertools.product(SIZES, AT_ONCE))), json.dumps(ISSUED)]
    with Testbed([NodeSpec(node, bandwidth_bps, delay_s=delay_s) for node in nodes]) as testbed:
        found = said_by_ranks(command, nodes, testbed, without_jobs(os.environ))
    return {"way": {"ranks": ranks, "bandwidth_bps": bandwidth_bps, "delay_s": delay_s}, **found}


def operations(out: Path, results: Path) -> list[dict[str, Any]]:
    reexec_in_user_namespace()
    found = []
    for way in WAYS:
        print(*way, flush=True)
        found.append(timed(*way))
    return found
