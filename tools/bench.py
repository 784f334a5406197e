"""`make bench`: how fast the queue and the planner are, and how that has changed. A benchmark, not a test.

Rule of this file: measurements of pure parts in one process, and their history, a line each time in
docs/results/data/bench.jsonl; whole jobs are measured by `prophet run`. Usage: python -m tools.bench [FILE.json]
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from prophet_scheduler.core import _native
from prophet_scheduler.core.network import Network
from prophet_scheduler.core.profile import GradientProfile, Profile
from prophet_scheduler.policies import get_policy
from tools.command_line import exit_status, page_parser
from tools.kept import Provenance, add_piece, here, read_pieces

PENDING = 10_000
"""Tasks that wait while the queue is measured."""
OPERATIONS = 200_000
GRADIENTS = 1_000
PLANS = 15
BUSY = 0.5
"""Load average above which figures measure more than this process."""


@dataclass(frozen=True)
class Entry:
    """One line of the history: the figures by name, and where they were measured.

    `load` is the machine's load average of the last minute before.
    """

    measured: Provenance
    figures: Mapping[str, float]
    load: float


def history_file(results: Path) -> Path:
    """Return the file of the history."""
    return results / "data" / "bench.jsonl"


def last(entries: Sequence[Entry], machine: str | None = None) -> Entry | None:
    """Return the newest entry, of `machine` if given; None if there is none."""
    return next((entry for entry in reversed(entries) if machine in (None, entry.measured.machine)), None)


def plan_seconds() -> float:
    """Return the median seconds of one `prophet` plan for 1,000 gradients in 50 steps."""
    gradients = tuple(
        GradientProfile(f"g{i}", 4096 + 997 * (i % 50), 0.6 * (1 - (i // 20) / 50), 0.3 / GRADIENTS)
        for i in range(GRADIENTS)
    )
    profile = Profile("bench", gradients)
    policy = get_policy("prophet")
    network = Network(bandwidth=31.25e6, overhead_s=0.0005, ack_delay_s=0.002)
    times = []
    for _ in range(PLANS):
        before = time.perf_counter()
        policy.plan(profile, network)
        times.append(time.perf_counter() - before)
    return statistics.median(times)


def measure() -> dict[str, float]:
    """Return the figures: operations a second, microseconds, bytes and milliseconds."""
    operations_per_s, gets = _native.measure(PENDING, OPERATIONS)
    gets.sort()
    return {
        "queue_ops_per_s": round(operations_per_s),
        "get_p99_us": round(gets[int(0.99 * len(gets))] * 1e6, 3),
        "bytes_per_pending_task": round(_native.bytes_per_pending(PENDING), 1),
        "plan_1000_gradients_ms": round(plan_seconds() * 1e3, 3),
    }


def main(arguments: list[str] | None = None) -> int:
    """Measure, print figures with their change to the last entry of this machine, and add an entry.

    Exit status 2 with one line for an error of the user's; an entry is added only when all was measured.
    """
    parser = page_parser("bench", __doc__)
    parser.add_argument("file", type=Path, nargs="?", help="where the figures go as JSON, too")
    options = parser.parse_args(arguments)
    return exit_status(lambda: run(options.file, options.results))


def run(file: Path | None, results: Path) -> int:
    """Do what `main` says. Raises UserError and OSError."""
    entries = read_pieces(history_file(results), Entry)
    load = os.getloadavg()[0]
    entry = Entry(here(), measure(), load)
    before = last(entries, entry.measured.machine)
    if file is not None:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(entry.figures, indent=2) + "\n", encoding="utf-8")
    add_piece(history_file(results), entry)
    for name, value in entry.figures.items():
        old = None if before is None else before.figures.get(name)
        print(f"{name:26} {value:>12} {f'{value / old - 1:+8.1%}' if old else ''}".rstrip())
    if load > BUSY:
        print(f"the load average was {load:.1f} before: leave the machine idle for figures that can be compared")
    earlier = (
        "no earlier figures of this machine" if before is None else f"changes are to {before.measured.line('those')}"
    )
    print(f"{earlier} ({entry.measured.machine})")
    return 0


if __name__ == "__main__":
    sys.exit(main())
