"""The bandwidth monitor: what the network gives this job, from its own transfers and the NIC's counters.

Rule of this file: pure estimates over events and counter samples; nic.py reads the counters.

Pushes are acknowledged at once, so they measure the network; a pull also waits for other workers. Each
push costs overhead + bytes / rate on the wire, so while pushes follow one another without a pause, their
acknowledgements lie on a line in (pushes, bytes) so far, and its slopes are the overhead and the rate. The
line is fitted to the times themselves, not to the gaps between them: acknowledgements come in bunches,
which makes gaps of nothing and gaps of two transfers, but moves a line through many of them very little.
What a push that found the wire idle took beyond its own cost is the acknowledgement delay.

A wire that runs dry while it waits for acknowledgements looks slower than it is. The policy's credit has
a margin for that, so the error shrinks with the next plan and cannot feed itself.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from prophet.core.events import EVENT_DTYPE, EventKind, QueueKind, unbroken
from prophet.core.network import Network

WINDOW_S = 15.0
"""Transfers older than this do not count."""
MOST_TRANSFERS = 20_000
"""At most so many of them count, so that a fit is cheap on a fast network."""
LEAST_TRANSFERS = 20
STRETCH = 32
"""The line is fitted in stretches of so many pushes, each with an offset of its own. A stall delays all pushes after
it, and so it spoils one stretch and not the rest."""
LEAST_STRETCH = 4
LIKELY_OVERHEAD_S = 0.25e-3
"""About the most that the overhead is taken to be where sizes are too much alike to separate it from the rate."""
FIT_ROUNDS = 6
STEP_CHANGE = 1.2
"""The network has changed where the newest STEP_STRETCHES stretches are slower or faster by this factor than the ones
before."""
STEP_STRETCHES = 6
DELAY_QUANTILE = 0.1
"""The acknowledgement delay is this quantile of those seen. Acknowledgements queue behind pulls on the downlink, the
more the more is in flight; a credit must cover the delay without that queue, which is nearly the least one."""

FRAMING = 1.05
"""Bytes on the interface for each byte handed to it: headers of Ethernet, IP, TCP and the engine."""
TRAFFIC_WINDOW_S = 5.0
"""NIC counters are compared over this time, so long that what is in flight at either end does not matter."""
OTHER_TRAFFIC_SHARE = 0.05
"""Other traffic below this share of the rate cannot be distinguished from framing, and counts as none."""
LEAST_SHARE = 0.5
"""Others may fill the link while this job is silent. Once it sends, it gets at least this share of the link."""

_TRANSFER = np.dtype([("start_s", "<f8"), ("finish_s", "<f8"), ("bytes", "<f8")])


class TransferFit:
    """Fits `E(s) = overhead + s / bandwidth` and the acknowledgement delay to the pushes of the last seconds."""

    def __init__(self, window_s: float = WINDOW_S) -> None:
        self._window_s = window_s
        self._open = np.zeros(0, EVENT_DTYPE)  # starts without a finish yet
        self._transfers = np.zeros(0, _TRANSFER)  # by finish

    def observe(self, events: NDArray[Any]) -> None:
        """Takes in events (EVENT_DTYPE), in order of time; only the pushes' starts and finishes matter."""
        for after_gap, piece in unbroken(events):
            if after_gap:
                self._open = self._open[:0]
            self._observe(piece)

    def _observe(self, events: NDArray[Any]) -> None:
        pushes = events[(events["queue"] == QueueKind.PUSH) & (events["kind"] != EventKind.ADD)]
        if not len(pushes):
            return
        rows = np.concatenate([self._open, pushes])
        keys = rows["gradient"].astype(np.int64) << 16 | rows["partition"]
        order = np.argsort(keys, kind="stable")  # by partition, and in order of time within one
        keys, kinds = keys[order], rows["kind"][order]
        last_of_key = np.append(keys[:-1] != keys[1:], True)
        pairs = np.flatnonzero(~last_of_key[:-1] & (kinds[:-1] == EventKind.START) & (kinds[1:] == EventKind.FINISH))
        finished = np.zeros(len(pairs), _TRANSFER)
        finished["start_s"] = rows["time_s"][order[pairs]]
        finished["finish_s"] = rows["time_s"][order[pairs + 1]]
        finished["bytes"] = rows["bytes"][order[pairs + 1]]
        self._open = rows[np.sort(order[last_of_key & (kinds == EventKind.START)])]
        transfers = np.concatenate([self._transfers, finished])[-MOST_TRANSFERS:]
        transfers.sort(order="finish_s", kind="stable")
        since = rows["time_s"][-1] - self._window_s
        self._transfers = transfers[np.searchsorted(transfers["finish_s"], since) :]

    def fit(self) -> Network | None:
        """The network as these transfers saw it, or None while there are too few."""
        line = _line(self._transfers)
        if line is None:
            return None
        recent = line.stretch_start[-STEP_STRETCHES] if line.changed() else 0
        if recent > 0:
            self._transfers = self._transfers[recent:]
            line = _line(self._transfers) or line
        costs = line.overhead_s + line.seconds_per_byte * self._transfers["bytes"]
        delays = (self._transfers["finish_s"] - self._transfers["start_s"] - costs)[_found_idle(self._transfers)]
        ack_delay_s = max(0.0, float(np.quantile(delays, DELAY_QUANTILE))) if len(delays) else 0.0
        return Network(1.0 / line.seconds_per_byte, line.overhead_s, ack_delay_s)


@dataclass(frozen=True)
class _Line:
    """A fit. Of each stretch: the place of its first transfer, and its time divided by the fitted time."""

    overhead_s: float
    seconds_per_byte: float
    stretch_start: NDArray[Any]
    slowness: NDArray[Any]

    def changed(self) -> bool:
        """Whether the newest stretches (one of them may have stalled) agree on another rate than those before."""
        if len(self.slowness) < 2 * STEP_STRETCHES:
            return False
        before = float(np.median(self.slowness[:-STEP_STRETCHES]))
        newest = np.sort(self.slowness[-STEP_STRETCHES:])
        return bool(newest[1] > before * STEP_CHANGE or newest[-2] < before / STEP_CHANGE)


def _found_idle(transfers: NDArray[Any]) -> NDArray[Any]:
    """Which transfers (sorted by finish) started after all before them were acknowledged."""
    return np.append(True, transfers["start_s"][1:] > transfers["finish_s"][:-1])[: len(transfers)]


def _line(transfers: NDArray[Any]) -> _Line | None:
    """Least squares of finish times on (pushes, bytes) so far, each stretch with an offset of its own.

    Stretches far from the line weigh less: a stall is no property of the link. The fit is a ridge regression that
    draws the overhead towards 0, the harder the more the times scatter compared with LIKELY_OVERHEAD_S. So where all
    sizes are equal, the whole time is put down to the rate. Neither result is below 0.
    """
    numbers = np.arange(len(transfers))
    position = numbers - np.maximum.accumulate(np.where(_found_idle(transfers), numbers, 0))
    stretch = np.cumsum(position % STRETCH == 0) - 1
    kept = np.flatnonzero(np.bincount(stretch)[stretch] >= LEAST_STRETCH) if len(transfers) else numbers
    if len(kept) < LEAST_TRANSFERS:
        return None
    _, first, stretch = np.unique(stretch[kept], return_index=True, return_inverse=True)
    lengths = np.bincount(stretch)
    scale = transfers["bytes"][kept].mean()
    columns = np.column_stack([numbers[kept], np.cumsum(transfers["bytes"][kept]) / scale, transfers["finish_s"][kept]])
    spans = columns[np.append(first[1:], len(kept)) - 1] - columns[first]
    columns -= (np.column_stack([np.bincount(stretch, column) for column in columns.T]) / lengths[:, None])[stretch]
    weights = np.ones(len(lengths))
    ridge = 0.0
    overhead_s = per_scale = 0.0
    for _ in range(FIT_ROUNDS):
        moments = columns.T @ (columns * weights[stretch, None])
        normal = moments[:2, :2] + np.diag([max(ridge, 1e-9 * moments[0, 0]), 0.0])
        overhead_s, per_scale = np.linalg.solve(normal, moments[:2, 2])
        if overhead_s < 0 or per_scale <= 0:
            overhead_s, per_scale = 0.0, moments[1, 2] / moments[1, 1]
        off = np.bincount(stretch, np.abs(columns @ [-overhead_s, -per_scale, 1.0])) / lengths
        usual = float(np.median(off))
        ridge = STRETCH * (usual / LIKELY_OVERHEAD_S) ** 2
        weights = np.maximum(1.0, off / (1.5 * usual + 1e-9)) ** -2.0
    if per_scale <= 0:
        return None
    slowness = spans[:, 2] / (spans[:, :2] @ [overhead_s, per_scale])
    return _Line(float(overhead_s), float(per_scale / scale), kept[first], slowness)


@dataclass(frozen=True)
class NicSample:
    """Counters of an interface, in bytes since it came up, at `time_s` on the steady clock."""

    time_s: float
    bytes_sent: int
    bytes_received: int


@dataclass(frozen=True)
class _Reading:
    sample: NicSample
    own_sent: int
    own_received: int


class BandwidthMonitor:
    """What is available to this job: its own transfers' rate, corrected at once for other traffic on the NIC."""

    def __init__(self) -> None:
        self._fit = TransferFit()
        self._own = {QueueKind.PUSH: 0, QueueKind.PULL: 0}
        self._readings: deque[_Reading] = deque()
        self._fitted: Network | None = None
        self._fit_is_old = False
        self._other_then = 0.0  # while the newest transfers were made

    def observe(self, events: NDArray[Any]) -> None:
        """Takes in the hook's events (EVENT_DTYPE), in order of time."""
        self._fit.observe(events)
        if events["gap"].any():
            # What the job itself sent is not known over this time, so what others did is not either.
            self._readings.clear()
            self._other_then = 0.0
        finished = events[events["kind"] == EventKind.FINISH]
        for queue in self._own:
            self._own[queue] += int(finished["bytes"][finished["queue"] == queue].sum())
        if len(finished):
            self._fit_is_old = True
            self._other_then = self._other()

    def observe_nic(self, sample: NicSample) -> None:
        """Takes in the interface's counters; what the job did not send or receive is other traffic."""
        if self._readings and sample.time_s <= self._readings[-1].sample.time_s:
            return
        self._readings.append(_Reading(sample, self._own[QueueKind.PUSH], self._own[QueueKind.PULL]))
        while len(self._readings) > 2 and self._readings[1].sample.time_s <= sample.time_s - TRAFFIC_WINDOW_S:
            self._readings.popleft()

    @property
    def other_traffic(self) -> float:
        """Bytes per second of others, in the busier direction of this interface; 0 where it is lost in framing."""
        other = self._other()
        fitted = self._fit_now()
        return other if fitted and other >= OTHER_TRAFFIC_SHARE * fitted.bandwidth else 0.0

    @property
    def network(self) -> Network | None:
        """The network for the next plan.

        A transfer gets what other traffic leaves, so the fit has the traffic of its time subtracted already.
        What has come or gone since is subtracted or given back here, before new transfers show it.
        """
        fitted = self._fit_now()
        if fitted is None:
            return None
        change = self._other() - self._other_then
        if abs(change) < OTHER_TRAFFIC_SHARE * fitted.bandwidth:
            return fitted
        bandwidth = max(LEAST_SHARE * fitted.bandwidth, fitted.bandwidth - change)
        return Network(bandwidth, fitted.overhead_s, fitted.ack_delay_s)

    def _fit_now(self) -> Network | None:
        if self._fit_is_old:
            self._fitted = self._fit.fit() or self._fitted
            self._fit_is_old = False
        return self._fitted

    def _other(self) -> float:
        if len(self._readings) < 2:
            return 0.0
        old, new = self._readings[0], self._readings[-1]
        sent = new.sample.bytes_sent - old.sample.bytes_sent
        received = new.sample.bytes_received - old.sample.bytes_received
        others_sent = sent - FRAMING * (new.own_sent - old.own_sent)
        others_received = received - FRAMING * (new.own_received - old.own_received)
        return max(0.0, others_sent, others_received) / (new.sample.time_s - old.sample.time_s)
