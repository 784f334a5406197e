"""Synthetic event streams on a virtual clock, for the profiler and the monitor."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from prophet_scheduler.core.events import EVENT_DTYPE, EventKind, QueueKind


def events(rows: Iterable[tuple[float, int, int, int, EventKind]]) -> NDArray[Any]:
    """Return push events from (time_s, gradient, partition, bytes, kind), in order of time."""
    records = [(t, g, size, p, QueueKind.PUSH, kind, 0) for t, g, p, size, kind in sorted(rows, key=lambda row: row[0])]
    return np.array(records, EVENT_DTYPE)


def iteration(
    began: float, generation_s: Mapping[int, float], partitions: int = 1, size: int = 1000
) -> list[tuple[float, int, int, int, EventKind]]:
    """Return the generation of every gradient of one iteration whose backward began at `began`."""
    return [
        (began + time_s, gradient, partition, size, EventKind.ADD)
        for gradient, time_s in generation_s.items()
        for partition in range(partitions)
    ]


def transfers(
    sizes: Iterable[int],
    bandwidth: float,
    overhead_s: float,
    ack_delay_s: float = 0.0,
    began: float = 0.0,
    in_flight: int = 4,
    ack_jitter_s: float = 0.0,
) -> NDArray[Any]:
    """Return pushes of partitions over a link, `in_flight` at a time; acknowledgements come in order.

    With `ack_jitter_s`, they are late by that on average. One that overtakes waits, so they come in bunches.
    """
    rng = np.random.default_rng(7)
    rows = []
    free = began
    finishes: list[float] = []
    for number, size in enumerate(sizes):
        start = finishes[-in_flight] if len(finishes) >= in_flight else began
        free = max(free, start) + overhead_s + size / bandwidth
        finish = free + ack_delay_s + (rng.exponential(ack_jitter_s) if ack_jitter_s else 0.0)
        finishes.append(max([finish, *finishes[-1:]]))
        rows.append((start, number % 1000, number // 1000, size, EventKind.START))
        rows.append((finishes[-1], number % 1000, number // 1000, size, EventKind.FINISH))
    return events(rows)
