"""The bandwidth monitor: what the network gives this job, from its own transfers and the NIC's counters.

Rule of this file: pure estimates over events and counter samples, and at the end the two thin edges that
read counters and routes.

Pushes are acknowledged at once, so they measure the network. While pushes follow one another without a
pause, the time between two acknowledgements is what the later one took: overhead + bytes / rate. A robust
line through (bytes, time) gives both. What a push that found the wire idle took beyond that is the
acknowledgement delay.
"""

from __future__ import annotations

import socket
from collections import deque
from dataclasses import dataclass

import numpy as np
import psutil

from prophet.model import EventKind, Network, QueueKind

WINDOW_S = 15.0
"""How far back transfers count."""
LEAST_SAMPLES = 20
STEP_CHANGE = 1.25
"""The last STEP_SAMPLES transfers faster or slower than the rest by this are a new network."""
STEP_SAMPLES = 30
HUBER_ROUNDS = 5
FRAMING = 1.05
"""Bytes on the interface for each byte handed to it: headers of Ethernet, IP, TCP and the engine."""
OTHER_TRAFFIC_SHARE = 0.03
"""Less than this share of the rate is not told from framing."""


@dataclass(frozen=True)
class NicSample:
    """Counters of an interface, in bytes since it came up, at `time_s` on the steady clock."""

    time_s: float
    bytes_sent: int
    bytes_received: int


class TransferFit:
    """Fits `E(s) = overhead + s / bandwidth` to the pushes of the last seconds."""

    def __init__(self, window_s: float = WINDOW_S) -> None:
        self._window_s = window_s
        self._flying: dict[tuple[int, int], tuple[float, int, bool]] = {}  # -> (start, bytes, wire was idle)
        self._last_finish = -np.inf
        self._gaps: deque[tuple[float, int, float]] = deque()  # (time, bytes, seconds)
        self._alone: deque[tuple[float, int, float]] = deque()

    def observe(self, events: np.ndarray) -> None:
        """Takes in events (EVENT_DTYPE), in order of time; pulls wait for other workers and are passed over."""
        pushes = events[(events["queue"] == QueueKind.PUSH) & (events["kind"] != EventKind.ADD)]
        columns = (pushes[name].tolist() for name in ("gradient", "partition", "time_s", "bytes", "kind"))
        for gradient, partition, time_s, size, kind in zip(*columns, strict=True):
            key = (gradient, partition)
            if kind == EventKind.START:
                self._flying[key] = (time_s, size, not self._flying)
                continue
            started = self._flying.pop(key, None)
            if started is None:
                continue
            start_s, _, was_idle = started
            if start_s <= self._last_finish:
                self._gaps.append((time_s, size, time_s - self._last_finish))
            if was_idle:
                self._alone.append((time_s, size, time_s - start_s))
            self._last_finish = time_s
        for samples in (self._gaps, self._alone):
            while samples and samples[0][0] < self._last_finish - self._window_s:
                samples.popleft()

    def fit(self) -> Network | None:
        """The network as these transfers saw it, or None while there are too few."""
        self._forget_before_step_change()
        if len(self._gaps) < LEAST_SAMPLES:
            return None
        _, sizes, seconds = np.array(self._gaps).T
        overhead_s, per_byte = _robust_line(sizes, seconds)
        if per_byte <= 0:
            return None
        network = Network(1.0 / per_byte, overhead_s)
        delays = [took - network.transfer_s(size) for _, size, took in self._alone]
        ack_delay_s = max(0.0, float(np.median(delays))) if delays else 0.0
        return Network(network.bandwidth, overhead_s, ack_delay_s)

    def _forget_before_step_change(self) -> None:
        if len(self._gaps) < 2 * STEP_SAMPLES:
            return
        _, sizes, seconds = np.array(self._gaps).T
        recent = sizes[-STEP_SAMPLES:].sum() / seconds[-STEP_SAMPLES:].sum()
        rest = sizes[:-STEP_SAMPLES].sum() / seconds[:-STEP_SAMPLES].sum()
        before = sizes[-2 * STEP_SAMPLES : -STEP_SAMPLES].sum() / seconds[-2 * STEP_SAMPLES : -STEP_SAMPLES].sum()
        ratio = recent / rest
        # Both of the last two batches must agree, or one burst would throw the history away.
        if not 1 / STEP_CHANGE <= ratio <= STEP_CHANGE and abs(recent / before - 1) < STEP_CHANGE - 1:
            self._gaps = deque(list(self._gaps)[-2 * STEP_SAMPLES :])


def _robust_line(sizes: np.ndarray, seconds: np.ndarray) -> tuple[float, float]:
    """(overhead in seconds, seconds a byte) by Huber-weighted least squares, neither below 0.

    With sizes that hardly differ, the two cannot be told apart: everything is rate then.
    """
    if sizes.std() < 0.05 * sizes.mean():
        return 0.0, float(np.median(seconds / sizes))
    weights = np.ones(len(sizes))
    overhead_s, per_byte = 0.0, 0.0
    for _ in range(HUBER_ROUNDS):
        mean_size, mean_time = np.average(sizes, weights=weights), np.average(seconds, weights=weights)
        spread = np.average((sizes - mean_size) ** 2, weights=weights)
        per_byte = float(np.average((sizes - mean_size) * (seconds - mean_time), weights=weights) / spread)
        overhead_s = float(mean_time - per_byte * mean_size)
        if overhead_s < 0:
            overhead_s, per_byte = 0.0, float(np.average(seconds, weights=weights) / mean_size)
        residual = np.abs(seconds - overhead_s - per_byte * sizes)
        scale = 1.5 * 1.4826 * float(np.median(residual)) + 1e-9
        weights = np.minimum(1.0, scale / np.maximum(residual, 1e-12))
    return overhead_s, per_byte


class BandwidthMonitor:
    """What is available to this job: its own transfers' rate, corrected at once for other traffic on the NIC."""

    def __init__(self) -> None:
        self._fit = TransferFit()
        self._own_bytes = 0
        self._last: tuple[NicSample, int] | None = None
        self._other = 0.0
        self._fitted: tuple[Network, float] | None = None  # with the other traffic at the time

    def observe(self, events: np.ndarray) -> None:
        """Takes in the hook's events."""
        self._fit.observe(events)
        finished = (events["queue"] == QueueKind.PUSH) & (events["kind"] == EventKind.FINISH)
        self._own_bytes += int(events["bytes"][finished].sum())
        fitted = self._fit.fit() if finished.any() else None
        if fitted is not None:
            self._fitted = (fitted, self._other)

    def observe_nic(self, sample: NicSample) -> None:
        """Takes in the interface's counters; what the job did not send is other traffic."""
        if self._last is not None:
            last, own_then = self._last
            seconds = sample.time_s - last.time_s
            if seconds <= 0:
                return
            sent = sample.bytes_sent - last.bytes_sent
            other = max(0.0, sent - FRAMING * (self._own_bytes - own_then)) / seconds
            self._other = 0.5 * self._other + 0.5 * other
        self._last = (sample, self._own_bytes)

    @property
    def other_traffic(self) -> float:
        """Bytes per second that others send over this interface; 0 where it is lost in framing."""
        if self._fitted is None or self._other < OTHER_TRAFFIC_SHARE * self._fitted[0].bandwidth:
            return 0.0
        return self._other

    @property
    def network(self) -> Network | None:
        """The network for the next plan.

        The fit already lives with the traffic there was when it was made; what has come or gone since is
        subtracted or given back now, before new transfers show it.
        """
        if self._fitted is None:
            return None
        fitted, other_then = self._fitted
        change = self._other - other_then
        if abs(change) < OTHER_TRAFFIC_SHARE * fitted.bandwidth:
            return fitted
        # Never less than a tenth: what a shared link gives is measured again as soon as something is sent.
        bandwidth = max(0.1 * fitted.bandwidth, fitted.bandwidth - change)
        return Network(bandwidth, fitted.overhead_s, fitted.ack_delay_s)


def sample_nic(interface: str, time_s: float) -> NicSample | None:
    """The counters of `interface` now, or None where it is gone."""
    counters = psutil.net_io_counters(pernic=True).get(interface)
    return NicSample(time_s, counters.bytes_sent, counters.bytes_recv) if counters else None


def interface_towards(host: str) -> str | None:
    """The interface through which this machine reaches `host`, or None where that cannot be told."""
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((host, 9))  # no packet is sent: connecting a datagram socket only picks the route
            address = probe.getsockname()[0]
    except OSError:
        return None
    for name, addresses in psutil.net_if_addrs().items():
        if any(entry.address == address for entry in addresses):
            return name
    return None
