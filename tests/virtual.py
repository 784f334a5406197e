"""Synthetic event streams on a virtual clock, for the profiler and the monitor."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from prophet.model import EVENT_DTYPE, EventKind, QueueKind


def events(rows: Iterable[tuple[float, int, int, int, EventKind]]) -> np.ndarray:
    """Push events from (time_s, gradient, partition, bytes, kind), in order of time."""
    records = [(t, g, size, p, QueueKind.PUSH, kind, 0) for t, g, p, size, kind in rows]
    return np.sort(np.array(records, EVENT_DTYPE), order="time_s", kind="stable")


def iteration(
    began: float, generation_s: Mapping[int, float], partitions: int = 1, size: int = 1000
) -> list[tuple[float, int, int, int, EventKind]]:
    """The generation of every gradient of one iteration whose backward began at `began`."""
    return [
        (began + time_s, gradient, partition, size, EventKind.ADD)
        for gradient, time_s in generation_s.items()
        for partition in range(partitions)
    ]


def transfers(
    sizes: Iterable[int], bandwidth: float, overhead_s: float, ack_delay_s: float = 0.0, began: float = 0.0
) -> np.ndarray:
    """Pushes that follow one another without a pause over a link, two in flight."""
    rows = []
    free = began
    finishes = [began]
    for number, size in enumerate(sizes):
        start = finishes[max(0, number - 1)] if number > 1 else began
        free = max(free, start) + overhead_s + size / bandwidth
        rows.append((start, number, 0, size, EventKind.START))
        rows.append((free + ack_delay_s, number, 0, size, EventKind.FINISH))
        finishes.append(free + ack_delay_s)
    return events(rows)
