"""The bandwidth monitor: the network available to this job, from its own transfers and the NIC's counters.

Rule of this file: pure estimates from events and counter samples; nic.py reads the counters.

Servers acknowledge pushes at once, so pushes measure the network; a pull also waits for other workers. wire.py
estimates the cost of a push and the delay of its acknowledgement from the times of many pushes.

The network changes, so a push counts for a few seconds only, unless there are too few. If the newest pushes are slower
or faster than the earlier ones, only the newest count.
"""

from __future__ import annotations

import operator
from collections import deque
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from prophet_scheduler.core.events import EVENT_DTYPE, EventKind, QueueKind, unbroken
from prophet_scheduler.core.network import Network
from prophet_scheduler.learn.wire import PushCosts, fit_wire

if TYPE_CHECKING:
    from numpy.typing import NDArray

WINDOW_S = 15.0
"""Maximum age of transfers that count, except for the newest LEAST_TRANSFERS."""
MOST_TRANSFERS = 20_000
"""Maximum number of transfers that count, so that a fit stays cheap on a fast network."""
LEAST_TRANSFERS = 20
"""Minimum transfers for a fit. They count even beyond the window; otherwise a slow link would never be measured."""
MOST_FITTED = 2000
"""Maximum number of transfers in one fit: the newest. A fit takes about 10 ms, or 30 ms on busy cores."""
REFIT_S = 2.5
"""Minimum seconds between two fits."""
SETTLED_S = 10.0
"""Seconds between two fits if the last ones agreed, unless pushes have become slower or faster."""
ALIKE = 0.1
"""Fits agree if their times for a push of the usual size differ by at most this share."""
DELAYS = 3
"""Number of fits whose median is the acknowledgement delay. With much in flight the wire is rarely idle, and a single
fit may find no delay at all."""
RIGHT_AFTER_S = 50e-6
"""Two messages seen within this time arrived together: a receiving thread takes about this long for each."""
STRETCH = 32
"""Pushes per stretch, the unit of comparison when detecting a change. A stall spoils only one stretch."""
LEAST_STRETCH = 4
STEP_CHANGE = 1.2
"""The network has changed if the newest STEP_STRETCHES stretches are slower or faster than the earlier ones by this
factor."""
STEP_STRETCHES = 6
OUT_OF_LINE = 0.2
"""Share of the newest stretches that may disagree: one of six may have stalled."""
STEP_S = 1.0
"""Minimum time that the newest stretches cover, lest the end of an iteration be compared with whole iterations."""

FRAMING = 1.05
"""Bytes on the interface per payload byte: headers of Ethernet, IP, TCP and the engine."""
TRAFFIC_WINDOW_S = 5.0
"""Time over which NIC counters are compared, long enough that the bytes in flight at either end do not matter."""
OTHER_TRAFFIC_SHARE = 0.05
"""Other traffic below this share of the rate cannot be told from framing, and counts as none."""
LEAST_SHARE = 0.5
"""Minimum share of the link that this job gets once it sends. Others may fill the link while this job is silent."""

_TRANSFER = np.dtype([("start_s", "<f8"), ("finish_s", "<f8"), ("bytes", "<f8"), ("clear", "?")])
"""A push; `clear` is True if no answer to a pull was seen right before its acknowledgement."""


class TransferFit:
    """Fit of `E(s) = overhead + s / bandwidth` and of the acknowledgement delay to recent pushes."""

    def __init__(self, window_s: float = WINDOW_S) -> None:
        self._window_s = window_s
        self._open = np.zeros(0, EVENT_DTYPE)  # starts without a finish so far
        self._transfers = np.zeros(0, _TRANSFER)  # sorted by finish
        self.since_s = -np.inf
        """Transfers that started before this time do not count."""
        self.likely: PushCosts | None = None
        """Result of the last fit; its overhead comes from the last fit whose sizes differed enough to measure it."""
        self._answered_s = np.full(1, -np.inf)  # time of the last answer to a pull

    def observe(self, events: NDArray[Any]) -> None:
        """Record events (EVENT_DTYPE) in time order; ADD events are ignored."""
        for after_gap, piece in unbroken(events):
            if after_gap:
                self._open = self._open[:0]
            self._observe(piece)

    def _observe(self, events: NDArray[Any]) -> None:
        finishes = events["kind"] == EventKind.FINISH
        answers = np.append(self._answered_s, events["time_s"][finishes & (events["queue"] == QueueKind.PULL)])
        self._answered_s = answers[-1:]
        pushes = events[(events["queue"] == QueueKind.PUSH) & (events["kind"] != EventKind.ADD)]
        if not len(pushes):
            return
        rows = np.concatenate([self._open, pushes])
        keys = rows["gradient"].astype(np.int64) << 16 | rows["partition"]
        order = np.argsort(keys, kind="stable")  # by partition, then by time
        keys, kinds = keys[order], rows["kind"][order]
        last_of_key = np.append(keys[:-1] != keys[1:], True)
        pairs = np.flatnonzero(~last_of_key[:-1] & (kinds[:-1] == EventKind.START) & (kinds[1:] == EventKind.FINISH))
        finished = np.zeros(len(pairs), _TRANSFER)
        finished["start_s"] = rows["time_s"][order[pairs]]
        finished["finish_s"] = rows["time_s"][order[pairs + 1]]
        finished["bytes"] = rows["bytes"][order[pairs + 1]]
        finished = finished[finished["start_s"] >= self.since_s]
        before = answers[np.searchsorted(answers, finished["finish_s"], side="right") - 1]
        finished["clear"] = finished["finish_s"] - before > RIGHT_AFTER_S
        self._open = rows[np.sort(order[last_of_key & (kinds == EventKind.START)])]
        transfers = np.concatenate([self._transfers, finished])[-MOST_TRANSFERS:]
        transfers.sort(order="finish_s", kind="stable")
        recent = int(np.searchsorted(transfers["finish_s"], rows["time_s"][-1] - self._window_s))
        first = min(recent, max(0, len(transfers) - LEAST_TRANSFERS))
        if first < recent and first > 0:
            # These may all have been in flight together. They got the wire only after the transfers before them.
            transfers["start_s"] = np.maximum(transfers["start_s"], transfers["finish_s"][first - 1])
        self._transfers = transfers[first:]

    @property
    def usual_bytes(self) -> float:
        """Mean bytes of the pushes that count; 0 if there are none."""
        return float(self._transfers["bytes"].mean()) if len(self._transfers) else 0.0

    @property
    def changed(self) -> bool:
        """True if the newest pushes are slower or faster than earlier ones by the last fit: a cheap check."""
        return self.likely is not None and _change(self._transfers, self.likely) > 0

    def fit(self) -> Network | None:
        """Return the network as seen by these transfers; None while there are too few."""
        wire = _fit(self._transfers, self.likely)
        if wire is None:
            return None
        since = _change(self._transfers, wire)
        if since > 0:
            self._transfers = self._transfers[since:]
            wire = _fit(self._transfers, self.likely) or wire
        known_s = wire.overhead_s if wire.told_apart else self.likely.overhead_s if self.likely else 0.0
        self.likely = replace(wire, overhead_s=known_s)
        return Network(1.0 / wire.seconds_per_byte, wire.overhead_s, wire.ack_delay_s)


def _fit(transfers: NDArray[Any], likely: PushCosts | None) -> PushCosts | None:
    if len(transfers) < LEAST_TRANSFERS:
        return None
    newest = transfers[-MOST_FITTED:]
    newest = newest[np.argsort(newest["start_s"], kind="stable")]
    return fit_wire(newest["start_s"], newest["finish_s"], newest["bytes"], newest["clear"], likely)


def _change(transfers: NDArray[Any], wire: PushCosts) -> int:
    """Return the index of the first transfer (sorted by finish) at a new rate; 0 if the rate has not changed.

    Throughout a stretch, something was unacknowledged. The slowness of a stretch is its duration divided by its
    expected cost. The newest stretches must agree, except for one that may have stalled.
    """
    numbers = np.arange(len(transfers))
    found_idle = np.append(True, transfers["start_s"][1:] > transfers["finish_s"][:-1])
    position = numbers - np.maximum.accumulate(np.where(found_idle, numbers, 0))
    first = np.flatnonzero(position % STRETCH == 0)
    last = np.append(first[1:], len(transfers)) - 1
    first, last = first[last - first + 1 >= LEAST_STRETCH], last[last - first + 1 >= LEAST_STRETCH]
    ends_s = transfers["finish_s"][last]
    count = max(STEP_STRETCHES, int(np.count_nonzero(ends_s > ends_s[-1] - STEP_S))) if len(ends_s) else 0
    if len(first) < count + STEP_STRETCHES:
        return 0
    spent = np.cumsum(wire.overhead_s + wire.seconds_per_byte * transfers["bytes"])
    slowness = (transfers["finish_s"][last] - transfers["finish_s"][first]) / (spent[last] - spent[first])
    before = float(np.median(slowness[:-count]))
    newest = slowness[-count:]
    least, most = np.quantile(newest, [OUT_OF_LINE, 1 - OUT_OF_LINE])
    if before / STEP_CHANGE <= most and least <= before * STEP_CHANGE:
        return 0
    # The first of the newest stretches may begin before the change.
    ratio = newest / np.median(newest)
    in_line = np.flatnonzero((ratio < STEP_CHANGE) & (ratio > 1 / STEP_CHANGE))
    # If two rates alternate, no stretch is in line, and neither rate holds.
    return int(first[-count:][in_line[0]]) if len(in_line) else 0


@dataclass(frozen=True)
class NicSample:
    """Counters of an interface, in bytes since it came up, at `time_s` on the monotonic clock."""

    time_s: float
    bytes_sent: int
    bytes_received: int


class _Reading(NamedTuple):
    """Counters of a NicSample, and the job's own bytes at that time."""

    time_s: float
    sent: float
    received: float
    own_sent: float
    own_received: float


class BandwidthMonitor:
    """Bandwidth available to this job: the rate of its own transfers, corrected for changes in other traffic."""

    def __init__(self) -> None:
        self._fit = TransferFit()
        self._own = {QueueKind.PUSH: 0, QueueKind.PULL: 0}
        self._readings: deque[_Reading] = deque()
        self._fitted: Network | None = None
        self._fits: deque[Network] = deque(maxlen=DELAYS)
        self._newest_s = -np.inf  # end of the newest transfer
        self._fitted_s = -np.inf  # end of the newest transfer at the last fit
        self._looked_s = -np.inf  # transfers that ended before this have been considered for a fit
        self._other_then = 0.0  # other traffic during the newest transfers

    def observe(self, events: NDArray[Any]) -> None:
        """Record the hook's events (EVENT_DTYPE) in time order."""
        self._fit.observe(events)
        if events["gap"].any():
            # The job's own bytes during the gap are unknown, and so is the other traffic.
            self._readings.clear()
            self._other_then = 0.0
        finished = events[events["kind"] == EventKind.FINISH]
        for queue in self._own:
            self._own[queue] += int(finished["bytes"][finished["queue"] == queue].sum())
        if len(finished):
            self._newest_s = float(finished["time_s"][-1])
            self._other_then = self._other()

    def disregard(self, before_s: float) -> None:
        """Ignore transfers that started before this time, in all events observed from here on.

        First pushes of new keys do not measure the network: a server allocates memory and waits for all workers.
        """
        self._fit.since_s = before_s

    def expect(self, network: Network) -> None:
        """Start from a network measured earlier: its cost per message holds until this job has measured its own."""
        self._fit.likely = PushCosts(network.overhead_s, 1.0 / network.bandwidth, network.ack_delay_s)

    def observe_nic(self, sample: NicSample) -> None:
        """Record the interface's counters; bytes that the job did not send or receive are other traffic."""
        if self._readings and sample.time_s <= self._readings[-1].time_s:
            return
        counts = sample.time_s, sample.bytes_sent, sample.bytes_received
        reading = _Reading(*counts, self._own[QueueKind.PUSH], self._own[QueueKind.PULL])
        if self._readings and self._readings[-1].time_s < self._fit.since_s:
            # First pushes of keys make no events, so assume that other traffic has continued as before.
            passed = [now - before for now, before in zip(reading, self._readings[-1], strict=True)]
            self._readings = deque(_Reading(*map(operator.add, each, passed)) for each in self._readings)
            return
        self._readings.append(reading)
        while len(self._readings) > 2 and self._readings[1].time_s <= sample.time_s - TRAFFIC_WINDOW_S:
            self._readings.popleft()

    @property
    def network(self) -> Network | None:
        """The network for the next plan.

        The fitted transfers ran alongside other traffic, so the fit already accounts for it. Any change of that traffic
        since then is corrected here, before new transfers show it.
        """
        if self._newest_s >= self._looked_s:
            self._looked_s = np.nextafter(self._newest_s, np.inf)
            if self._outdated:
                self._refit()
        fitted = self._fitted
        if fitted is None:
            return None
        change = self._other() - self._other_then
        if abs(change) < OTHER_TRAFFIC_SHARE * fitted.bandwidth:
            return fitted
        bandwidth = max(LEAST_SHARE * fitted.bandwidth, fitted.bandwidth - change)
        return Network(bandwidth, fitted.overhead_s, fitted.ack_delay_s)

    def _refit(self) -> None:
        self._fitted_s = self._newest_s
        fitted = self._fit.fit()
        if fitted is not None:
            self._fits.append(fitted)
            # Of two, take the larger: too much in flight costs less than an idle wire.
            usual_s = sorted(each.ack_delay_s for each in self._fits)[len(self._fits) // 2]
            self._fitted = replace(fitted, ack_delay_s=usual_s)

    @property
    def _outdated(self) -> bool:
        if self._fitted is None:
            return True
        age_s = self._newest_s - self._fitted_s
        return age_s >= SETTLED_S or (age_s >= REFIT_S and (not self._alike or self._fit.changed))

    @property
    def _alike(self) -> bool:
        if len(self._fits) < DELAYS:
            return False
        size = self._fit.usual_bytes
        takes_s = [each.transfer_s(size) + each.ack_delay_s for each in self._fits]
        return max(takes_s) - min(takes_s) <= ALIKE * min(takes_s)

    def _other(self) -> float:
        if len(self._readings) < 2:
            return 0.0
        old, new = self._readings[0], self._readings[-1]
        others_sent = new.sent - old.sent - FRAMING * (new.own_sent - old.own_sent)
        others_received = new.received - old.received - FRAMING * (new.own_received - old.own_received)
        return max(0.0, others_sent, others_received) / (new.time_s - old.time_s)
