"""The bandwidth monitor: what the network gives this job, from its own transfers and the NIC's counters.

Rule of this file: pure estimates over events and counter samples; nic.py reads the counters.

Pushes are acknowledged at once, so they measure the network; a pull also waits for other workers. What a push costs,
and what its acknowledgement takes, wire.py finds out from the times of many.

The network changes. Pushes count for some seconds only, unless there are too few, and where the newest are slower or
faster than those before, only those.
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
"""Transfers older than this do not count, but for the newest LEAST_TRANSFERS."""
MOST_TRANSFERS = 20_000
"""At most so many of them count, so that a fit is cheap on a fast network."""
LEAST_TRANSFERS = 20
"""Of fewer nothing is concluded. On a link where these take longer than the window the network would never be known."""
MOST_FITTED = 2000
"""The newest of them are fitted, which takes some 10 ms, and 30 where cores are busy."""
REFIT_S = 2.5
"""A fit holds for so long, however often it is asked for."""
SETTLED_S = 10.0
"""And for so long where the last ones were alike, unless pushes have become slower or faster."""
ALIKE = 0.1
"""They were where a push of the usual size took the same by all, but for this share."""
DELAYS = 3
"""The acknowledgement delay is the median of so many fits: where the wire is hardly ever idle, as with much in flight,
a single fit may find none at all."""
RIGHT_AFTER_S = 50e-6
"""A message seen so soon after another came with it: about what a receiving thread takes for each."""
STRETCH = 32
"""Pushes in a row that are compared with others, to see a change. A stall spoils one stretch and not the rest."""
LEAST_STRETCH = 4
STEP_CHANGE = 1.2
"""The network has changed where the newest STEP_STRETCHES stretches are slower or faster by this factor than the ones
before."""
STEP_STRETCHES = 6
OUT_OF_LINE = 0.2
"""So many of them may disagree: one of six may have stalled."""
STEP_S = 1.0
"""And those must be spread over so long, or the end of an iteration would be compared with whole ones."""

FRAMING = 1.05
"""Bytes on the interface for each byte handed to it: headers of Ethernet, IP, TCP and the engine."""
TRAFFIC_WINDOW_S = 5.0
"""NIC counters are compared over this time, so long that what is in flight at either end does not matter."""
OTHER_TRAFFIC_SHARE = 0.05
"""Other traffic below this share of the rate cannot be distinguished from framing, and counts as none."""
LEAST_SHARE = 0.5
"""Others may fill the link while this job is silent. Once it sends, it gets at least this share of the link."""

_TRANSFER = np.dtype([("start_s", "<f8"), ("finish_s", "<f8"), ("bytes", "<f8"), ("clear", "?")])
"""A push; `clear` where no answer to a pull was seen right before its acknowledgement."""


class TransferFit:
    """Fits `E(s) = overhead + s / bandwidth` and the acknowledgement delay to the pushes of the last seconds."""

    def __init__(self, window_s: float = WINDOW_S) -> None:
        self._window_s = window_s
        self._open = np.zeros(0, EVENT_DTYPE)  # starts without a finish yet
        self._transfers = np.zeros(0, _TRANSFER)  # by finish
        self.since_s = -np.inf
        """Transfers that began before this time do not count."""
        self.likely: PushCosts | None = None
        """What was found before; its overhead is from when sizes differed enough to tell."""
        self._answered_s = np.full(1, -np.inf)  # when the last answer to a pull was seen

    def observe(self, events: NDArray[Any]) -> None:
        """Takes in events (EVENT_DTYPE), in order of time; adding does not matter."""
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
        order = np.argsort(keys, kind="stable")  # by partition, and in order of time within one
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
            # All of these may have been in flight at once. They had the wire when those before them were through.
            transfers["start_s"] = np.maximum(transfers["start_s"], transfers["finish_s"][first - 1])
        self._transfers = transfers[first:]

    @property
    def usual_bytes(self) -> float:
        """What a push has, of those that count; 0 where none does."""
        return float(self._transfers["bytes"].mean()) if len(self._transfers) else 0.0

    @property
    def changed(self) -> bool:
        """Whether the newest pushes are slower or faster than those before, by what was found last: a glance at what
        `fit` looks into.
        """
        return self.likely is not None and _change(self._transfers, self.likely) > 0

    def fit(self) -> Network | None:
        """The network as these transfers saw it, or None while there are too few."""
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
    """The place of the first transfer (sorted by finish) from which on another rate holds; 0 where none has come.

    Stretches are compared, each within a time in which something was always unacknowledged: what it took, divided by
    what it should cost. The newest (one of them may have stalled) must agree.
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
    # The first of them may be of the time before in part.
    ratio = newest / np.median(newest)
    in_line = np.flatnonzero((ratio < STEP_CHANGE) & (ratio > 1 / STEP_CHANGE))
    # None is where two rates take turns, and then neither of them holds.
    return int(first[-count:][in_line[0]]) if len(in_line) else 0


@dataclass(frozen=True)
class NicSample:
    """Counters of an interface, in bytes since it came up, at `time_s` on the steady clock."""

    time_s: float
    bytes_sent: int
    bytes_received: int


class _Reading(NamedTuple):
    """A sample, and what of it was the job's own."""

    time_s: float
    sent: float
    received: float
    own_sent: float
    own_received: float


class BandwidthMonitor:
    """What is available to this job: its own transfers' rate, corrected at once for other traffic on the NIC."""

    def __init__(self) -> None:
        self._fit = TransferFit()
        self._own = {QueueKind.PUSH: 0, QueueKind.PULL: 0}
        self._readings: deque[_Reading] = deque()
        self._fitted: Network | None = None
        self._fits: deque[Network] = deque(maxlen=DELAYS)
        self._newest_s = -np.inf  # when the newest transfer ended
        self._fitted_s = -np.inf  # and the newest of those that were fitted
        self._looked_s = -np.inf  # before this one there is nothing new
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
            self._newest_s = float(finished["time_s"][-1])
            self._other_then = self._other()

    def disregard(self, before_s: float) -> None:
        """Of what is observed from here on, transfers that began before this time say nothing of the network.

        Those of new keys are none: a server makes room for each, and at its first push all workers meet there.
        """
        self._fit.since_s = before_s

    def expect(self, network: Network) -> None:
        """What was measured before: what a message costs there is believed until it is measured here."""
        self._fit.likely = PushCosts(network.overhead_s, 1.0 / network.bandwidth, network.ack_delay_s)

    def observe_nic(self, sample: NicSample) -> None:
        """Takes in the interface's counters; what the job did not send or receive is other traffic."""
        if self._readings and sample.time_s <= self._readings[-1].time_s:
            return
        counts = sample.time_s, sample.bytes_sent, sample.bytes_received
        reading = _Reading(*counts, self._own[QueueKind.PUSH], self._own[QueueKind.PULL])
        if self._readings and self._readings[-1].time_s < self._fit.since_s:
            # First pushes of keys are no events. The others are taken to have sent meanwhile what they did before.
            passed = [now - before for now, before in zip(reading, self._readings[-1], strict=True)]
            self._readings = deque(_Reading(*map(operator.add, each, passed)) for each in self._readings)
            return
        self._readings.append(reading)
        while len(self._readings) > 2 and self._readings[1].time_s <= sample.time_s - TRAFFIC_WINDOW_S:
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
        if self._newest_s >= self._looked_s:
            self._looked_s = np.nextafter(self._newest_s, np.inf)
            if self._outdated:
                self._refit()
        return self._fitted

    def _refit(self) -> None:
        self._fitted_s = self._newest_s
        fitted = self._fit.fit()
        if fitted is not None:
            self._fits.append(fitted)
            # Of two the larger: too much in flight costs less than a wire that runs dry.
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
