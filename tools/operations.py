"""Times of gloo's all-reduces on the testbed, from which the simulator has its numbers.

Rule of this file: which operations on which links are looked at. Nothing computes meanwhile, so no iteration of any job
is in it.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from prophet_scheduler.core.errors import UserError
from prophet_scheduler.lab.launchers import without_jobs
from prophet_scheduler.lab.own_script import run_ranks
from prophet_scheduler.lab.testbed import NodeSpec, Testbed, reexec_in_user_namespace
from prophet_scheduler.policies.algorithms.sequence import MOST_AT_ONCE

JOB = Path(__file__).with_name("operations_job.py")
SIZES = (4 << 10, 128 << 10, 1 << 20, 16 << 20)
AT_ONCE = (1, 2, MOST_AT_ONCE)
ISSUED = SIZES[:3]
"""Sizes of operations that Prophet issues."""


@dataclass(frozen=True)
class Way:
    """Ranks, and the link of each: bits per second, None for no limit, and seconds each way."""

    ranks: int
    bandwidth_bps: float | None = None
    delay_s: float | None = None


WAYS = (
    Way(2),
    Way(4),
    Way(2, None, 0.001),
    Way(2, None, 0.005),
    Way(4, None, 0.005),
    Way(2, 250e6),
    Way(2, 250e6, 0.005),
    Way(4, 250e6, 0.005),
    Way(2, 1e9),
    Way(2, 1e9, 0.005),
    Way(2, 2.5e9),
)


def look(way: Way) -> dict[str, Any]:
    """Make a testbed of such links and time every size on it. Raises UserError.

    Seconds of an operation: `bare_s` of gloo's, by bytes and operations under way; `issued_s` of those that Prophet
    issues, by bytes. Bytes per second that the fastest rank copies, copies to new memory, and updates, while the others
    do as well.
    """
    nodes = [f"worker{rank}" for rank in range(way.ranks)]
    pairs = [(size, at_once) for size in SIZES for at_once in AT_ONCE]
    command = [sys.executable, str(JOB), json.dumps(pairs), json.dumps(ISSUED)]
    said: list[str] = []
    with Testbed([NodeSpec(node, way.bandwidth_bps, delay_s=way.delay_s) for node in nodes]) as testbed:
        if run_ranks(command, nodes, testbed, said.append, shell=without_jobs(os.environ)) != 0:
            raise UserError("; ".join(said[-2:]))
    found = json.loads(next(line for line in said if line.startswith("{")))
    return {"way": asdict(way), **found}


def measure(out: Path, results: Path) -> list[dict[str, Any]]:
    """Time every operation. Raises UserError."""
    reexec_in_user_namespace()
    found = []
    for way in WAYS:
        print(way, flush=True)
        found.append(look(way))
    return found
