"""Speed of the queue and the planner, and the change since the last run. A benchmark, not a test.

Rule of this file: measurements of pure parts in one process; `prophet run` measures whole jobs.
"""

from __future__ import annotations

import os
import statistics
import timeit
from pathlib import Path
from typing import Any

from prophet_scheduler.core import _native
from prophet_scheduler.core.network import Network
from prophet_scheduler.core.profile import GradientProfile, Profile
from prophet_scheduler.policies import get_policy
from tools import kept

PENDING, OPERATIONS = 10_000, 200_000
"""Number of waiting tasks while the queue is measured, and of measured operations."""
GRADIENTS, PLANS = 1_000, 15


def measured() -> dict[str, float]:
    """Return the figures; names end in their units: operations per second, microseconds, bytes, milliseconds."""
    rows = ((4096 + 997 * (i % 50), 0.6 * (1 - (i // 20) / 50), 0.3 / GRADIENTS) for i in range(GRADIENTS))
    profile = Profile("bench", tuple(GradientProfile(f"g{i}", *row) for i, row in enumerate(rows)))
    policy, network = get_policy("prophet"), Network(bandwidth=31.25e6, overhead_s=0.0005, ack_delay_s=0.002)
    plans_s = timeit.repeat(lambda: policy.plan(profile, network), number=1, repeat=PLANS)
    operations_per_s, gets = _native.measure(PENDING, OPERATIONS)
    return {
        "queue_ops_per_s": round(operations_per_s),
        "get_p99_us": round(sorted(gets)[int(0.99 * len(gets))] * 1e6, 3),
        "bytes_per_pending_task": round(_native.bytes_per_pending(PENDING), 1),
        "plan_1000_gradients_ms": round(statistics.median(plans_s) * 1e3, 3),
    }


def measure(out: Path, results: Path) -> dict[str, Any]:
    """Measure, and print the figures with their change from the kept ones, if any.

    `load` is the machine's load average of the minute before.
    """
    before, load = kept.kept(results, "bench", dict[str, Any]), os.getloadavg()[0]
    found = measured()
    for name, value in found.items():
        old = before.data["figures"].get(name) if before else None
        print(f"{name:26} {value:>12} {f'{value / old - 1:+8.1%}' if old else ''}".rstrip())
    print(f"load average before: {load:.1f}", f"changes are from {before.measured.line('those')}" if before else "")
    return {"figures": found, "load": load}
