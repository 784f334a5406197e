"""History of `make bench`: docs/results/data/bench.jsonl, a line each time.

Rule of this file: the existing figures and what is kept of each time; bench.py measures.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tools.pieces import read_pieces
from tools.provenance import Provenance

PENDING = 10_000
"""Tasks that wait while the queue is measured."""
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


def history_file(results: Path) -> Path:
    """Return the file of the history."""
    return results / "data" / "bench.jsonl"


def history(results: Path) -> list[Entry]:
    """Return all entries, oldest first. Raises UserError."""
    return read_pieces(history_file(results), Entry)


def last(entries: Sequence[Entry], machine: str | None = None) -> Entry | None:
    """Return the newest entry, of `machine` if given; None if there is none."""
    return next((entry for entry in reversed(entries) if machine in (None, entry.measured.machine)), None)
