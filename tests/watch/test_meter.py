"""Rates, busy time and blocks by urgency, from events."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from prophet_scheduler.core.events import EVENT_DTYPE, UNPROFILED_GRADIENT, EventKind, QueueEvent, QueueKind
from prophet_scheduler.watch.meter import BANDS, Meter, Periods, covered_s

PUSH, PULL = QueueKind.PUSH, QueueKind.PULL
ADD, START, FINISH = EventKind.ADD, EventKind.START, EventKind.FINISH
Row = tuple[float, int, QueueKind, EventKind]


def events(*rows: Row, size: int = 1000, gap_before: int | None = None) -> NDArray[Any]:
    made = np.array([(at, id_, size, 0, queue, kind, 0) for at, id_, queue, kind in rows], EVENT_DTYPE)
    if gap_before is not None:
        made["gap"][gap_before] = 1
    return made


def test_transfer_over_several_turns() -> None:
    meter = Meter()
    assert len(meter.turn(1.0, events((0.5, 3, PUSH, ADD))).ended) == 0
    assert (meter.urgency()[-1].waiting, meter.urgency()[-1].waiting_bytes) == (1, 1000)
    assert meter.where([3]) == "waiting"
    meter.turn(2.0, events((1.5, 3, PUSH, START)))
    assert (meter.urgency()[-1].waiting, meter.urgency()[-1].in_flight) == (0, 1)
    assert meter.where([3, 4]) == "push" and meter.where([4]) is None
    (transfer,) = meter.turn(3.0, events((2.5, 3, PUSH, FINISH))).ended.tolist()
    assert transfer == (3, 0, PUSH, 1000, 0.5, 1.5, 2.5)
    assert meter.urgency()[-1].wait_s == 1.0
    assert meter.where([3]) is None


def test_both_directions_are_counted() -> None:
    meter = Meter()
    rows: list[Row] = [(0.0, 0, PUSH, ADD), (0.0, 0, PUSH, START), (0.5, 0, PUSH, FINISH)]
    rows += [(0.5, 0, PULL, ADD), (0.5, 0, PULL, START)]
    meter.turn(1.0, events(*rows))
    sent, received = meter.flows()
    assert (sent.total_bytes, sent.bytes_per_s, sent.busy) == (1000, 1000.0, 0.5)
    assert (received.total_bytes, received.busy) == (0, 0.5), "it is asked for, and nothing has come"
    assert meter.where([0]) == "pull"


@pytest.mark.parametrize(("ranks", "factor"), [(2, 1.0), (4, 1.5)])
def test_all_reduce_counts_both_ways(ranks: int, factor: float) -> None:
    meter = Meter(all_reduce_ranks=ranks)
    rows: list[Row] = [(0.0, 0, PUSH, ADD), (0.0, 0, PUSH, START), (1.0, 0, PUSH, FINISH), (1.0, 0, PULL, FINISH)]
    moved = meter.turn(1.0, events(*rows))
    assert len(moved.ended) == 1
    assert [flow.total_bytes for flow in meter.flows()] == [1000 * factor] * 2
    assert [flow.busy for flow in meter.flows()] == [1.0, 1.0]


def test_rates_cover_last_seconds() -> None:
    meter = Meter()
    for second in range(20):
        rows: list[Row] = [(float(second), 0, PUSH, kind) for kind in (ADD, START, FINISH)] if second < 10 else []
        meter.turn(second + 1.0, events(*rows))
    sent, _ = meter.flows()
    assert (sent.total_bytes, sent.bytes_per_s) == (10_000, 0.0)


def test_other_events_are_ignored() -> None:
    meter = Meter()
    broadcast = events((0.0, UNPROFILED_GRADIENT | 1, PUSH, ADD))
    plan = np.array([(0.0, 7, 0, 0, 2, QueueEvent.PLAN, 0)], EVENT_DTYPE)
    meter.turn(1.0, np.concatenate([broadcast, plan]))
    assert all(band.waiting == 0 for band in meter.urgency())


def test_gap_clears_transfers() -> None:
    meter = Meter()
    meter.turn(1.0, events((0.1, 1, PUSH, ADD), (0.2, 1, PUSH, START)))
    meter.turn(2.0, events((1.5, 0, PUSH, ADD), gap_before=0))
    assert [sum(getattr(band, key) for band in meter.urgency()) for key in ("waiting", "in_flight")] == [1, 0]


def test_bands_are_in_forward_order() -> None:
    meter = Meter()
    meter.turn(1.0, events(*((0.0, id_, PUSH, ADD) for id_ in range(100))))
    bands = meter.urgency()
    assert len(bands) == BANDS and [band.first_id for band in bands] == sorted({band.first_id for band in bands})
    assert sum(band.waiting for band in bands) == 100 and bands[0].first_id == 0
    assert all(12 <= band.waiting <= 13 for band in bands)
    few = Meter(arena=False)
    few.turn(1.0, events((0.0, 0, PUSH, ADD), (0.0, 2, PUSH, ADD)))
    assert [(band.name, band.waiting) for band in few.urgency()] == [
        ("gradient 0", 1),
        ("gradient 1", 0),
        ("gradient 2", 1),
    ]


transfers = st.lists(
    st.tuples(
        st.integers(0, 5),
        st.sampled_from([PUSH, PULL]),
        st.floats(0, 10),
        st.floats(0, 1),
        st.floats(0, 1),
    ),
    max_size=30,
)


@given(transfers, st.integers(1, 5))
def test_pairing_does_not_depend_on_turns(rows: list[tuple[int, QueueKind, float, float, float]], turns: int) -> None:
    free_s: dict[tuple[int, QueueKind], float] = {}
    made: list[Row] = []
    expected = []
    for id_, queue, added, waits, takes in sorted(rows, key=lambda row: row[2]):
        begins = max(added, free_s.get((id_, queue), 0.0) + 0.001)  # a key is in the queue once at a time
        starts = begins + 0.001 + waits
        free_s[id_, queue] = starts + 0.001 + takes
        made += [(begins, id_, queue, ADD), (starts, id_, queue, START), (free_s[id_, queue], id_, queue, FINISH)]
        expected.append((id_, 0, queue, 1000, begins, starts, free_s[id_, queue]))
    whole = events(*sorted(made))
    whole = whole[np.argsort(whole["time_s"], kind="stable")]
    meter = Meter()
    ended = []
    for piece in np.array_split(whole, turns):
        ended += meter.turn(float(piece["time_s"][-1]) if len(piece) else 0.0, piece).ended.tolist()
    assert sorted(ended) == sorted(expected)
    assert all(band.waiting == band.in_flight == 0 for band in meter.urgency())


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 50)).map(sorted), max_size=20))
def test_union_of_intervals(pairs: list[list[int]]) -> None:
    covered = {tick for begin, end in pairs for tick in range(begin, end)}
    starts, stops = (np.array([pair[place] for pair in pairs], float) for place in (0, 1))
    assert covered_s(starts, stops) == len(covered)


def test_periods_exclude_pauses() -> None:
    periods = Periods()
    assert periods.spread() is None
    periods.add([1.0, 2.0, 4.0, math.nan, 100.0, 101.0])
    spread = periods.spread()
    assert spread is not None and (spread.median_s, spread.last_s, spread.count) == (1.0, 1.0, 3)
