"""`make bench`: how fast the queue and the planner are, written as JSON. A benchmark, not a test.

Rule of this file: measurements of pure parts in one process; whole jobs are measured by
`prophet run`. Usage: python -m tools.bench FILE.json
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from pathlib import Path

from prophet.core import _native
from prophet.core.network import Network
from prophet.core.profile import GradientProfile, Profile
from prophet.policies import get_policy

PENDING = 10_000
OPERATIONS = 200_000
GRADIENTS = 1_000


def plan_seconds(repeats: int = 15) -> float:
    """Median seconds of one `prophet` plan for 1,000 gradients in 50 steps."""
    gradients = tuple(
        GradientProfile(f"g{i}", 4096 + 997 * (i % 50), 0.6 * (1 - (i // 20) / 50), 0.3 / GRADIENTS)
        for i in range(GRADIENTS)
    )
    profile = Profile("bench", gradients)
    policy = get_policy("prophet")
    network = Network(bandwidth=31.25e6, overhead_s=0.0005, ack_delay_s=0.002)
    times = []
    for _ in range(repeats):
        before = time.perf_counter()
        policy.plan(profile, network)
        times.append(time.perf_counter() - before)
    return statistics.median(times)


def measure() -> dict[str, float]:
    """The four figures: operations a second, microseconds, bytes and milliseconds."""
    operations_per_s, gets = _native.measure(PENDING, OPERATIONS)
    gets.sort()
    return {
        "queue_ops_per_s": round(operations_per_s),
        "get_p99_us": round(gets[int(0.99 * len(gets))] * 1e6, 3),
        "bytes_per_pending_task": round(_native.bytes_per_pending(PENDING), 1),
        "plan_1000_gradients_ms": round(plan_seconds() * 1e3, 3),
    }


def main(path: str) -> None:
    figures = measure()
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(path).write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")
    for name, value in figures.items():
        print(f"{name:26} {value}")


if __name__ == "__main__":
    main(sys.argv[1])
