"""`make bench`: how fast the queue and the planner are, and how that has changed. A benchmark, not a test.

Rule of this file: measurements of pure parts in one process, and their history in docs/results/data/bench.jsonl, a line
each time; whole jobs are measured by `prophet run`. Usage: python -m tools.bench [FILE.json]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from prophet.core import _native
from prophet.core.errors import UserError
from prophet.core.network import Network
from prophet.core.profile import GradientProfile, Profile
from prophet.lab.records import first_error
from prophet.policies import get_policy
from tools import kept
from tools.exit_status import exit_status
from tools.provenance import Provenance, here

PENDING = 10_000
OPERATIONS = 200_000
GRADIENTS = 1_000
BUSY = 0.5
"""A load average above which figures are of more than this process."""
FIGURES: Mapping[str, str] = {
    "queue_ops_per_s": f"get and finish a second, {PENDING:,} tasks waiting",
    "get_p99_us": "microseconds for 99% of gets",
    "bytes_per_pending_task": "bytes a waiting task",
    "plan_1000_gradients_ms": "milliseconds to plan 1,000 gradients",
}


@dataclass(frozen=True)
class Entry:
    """One line of the history: the figures by name, and where they were measured.

    `load` is the machine's load average of the last minute before.
    """

    measured: Provenance
    figures: Mapping[str, float]
    load: float


_ENTRY = TypeAdapter(Entry)


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
    """The figures: operations a second, microseconds, bytes and milliseconds."""
    operations_per_s, gets = _native.measure(PENDING, OPERATIONS)
    gets.sort()
    return {
        "queue_ops_per_s": round(operations_per_s),
        "get_p99_us": round(gets[int(0.99 * len(gets))] * 1e6, 3),
        "bytes_per_pending_task": round(_native.bytes_per_pending(PENDING), 1),
        "plan_1000_gradients_ms": round(plan_seconds() * 1e3, 3),
    }


def history(results: Path) -> list[Entry]:
    """All entries, oldest first. Raises UserError."""
    path = history_file(results)
    if not path.exists():
        return []
    entries = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        try:
            entries.append(_ENTRY.validate_json(line))
        except ValidationError as error:
            raise UserError(f"{path}: line {number} is no entry ({first_error(error)}); remove it") from None
    return entries


def history_file(results: Path) -> Path:
    """Where the history is."""
    return results / "data" / "bench.jsonl"


def last(entries: Sequence[Entry], machine: str | None = None) -> Entry | None:
    """The newest entry, of `machine` where that is said; None where there is none."""
    return next((entry for entry in reversed(entries) if machine in (None, entry.measured.machine)), None)


def change(name: str, value: float, before: Entry | None) -> str:
    """How much a figure has changed, empty where there is nothing to compare it with."""
    old = None if before is None else before.figures.get(name)
    return f"{value / old - 1:+8.1%}" if old else ""


def main(arguments: list[str] | None = None) -> int:
    """Measures, prints figures with their change to the last entry of this machine, and adds an entry."""
    parser = argparse.ArgumentParser(prog="python -m tools.bench", description=__doc__)
    parser.add_argument("file", type=Path, nargs="?", help="where the figures go as JSON, too")
    parser.add_argument("--results", type=Path, default=kept.RESULTS, help="folder of the pages and their data")
    options = parser.parse_args(arguments)
    return exit_status(lambda: run(options.file, options.results))


def run(file: Path | None, results: Path) -> int:
    """Does what `main` says. Raises UserError and OSError; an entry is added only when all was measured."""
    entries = history(results)
    load = os.getloadavg()[0]
    entry = Entry(here(), measure(), load)
    before = last(entries, entry.measured.machine)
    if file is not None:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(entry.figures, indent=2) + "\n", encoding="utf-8")
    path = history_file(results)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as lines:
        lines.write(_ENTRY.dump_json(entry).decode() + "\n")
    from tools import replay  # whose page has these figures, too

    (results / replay.PAGE).write_text(replay.page(results), encoding="utf-8")
    for name, value in entry.figures.items():
        print(f"{name:26} {value:>12} {change(name, value, before)}".rstrip())
    if load > BUSY:
        print(f"the load average was {load:.1f} before: leave the machine idle for figures that can be compared")
    if before is None:
        print(f"no earlier figures of this machine ({entry.measured.machine})")
    else:
        print(f"changes are to {before.measured.date}, commit {before.measured.commit}, on the same machine")
    return 0


if __name__ == "__main__":
    sys.exit(main())
