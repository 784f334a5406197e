"""Available rate of a node's NIC, from its counters while updates travel (MLfabric, section 4: the network monitor).

Rule of this file: pure estimates over samples; learn/nic.py reads the counters, client.py asks for them.

A counter says what was sent, which is what is available only while something was there to send all the time: from an
update's start to its end. The scheduler lets one transfer at a time have a NIC, as a rule, so what was sent then is
the rate. The highest of the newest WINDOW_S of such time is believed: a sample in which the sender paused is too low,
and none is too high.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from prophet_scheduler.learn.bandwidth import FRAMING, NicSample

WINDOW_S = 0.3
"""Seconds in which something was sent: older samples do not count."""
LEAST_BYTES = 64 * 1024
"""A period with fewer says more of delays than of rates."""
NEWS = 0.05
"""A rate is worth a report when it has changed by this part."""


@dataclass(frozen=True)
class _Period:
    length_s: float
    rate: float


class NicEstimate:
    """One NIC's uplink. Rates in bytes per second of what is handed to it, headers not counted."""

    def __init__(self) -> None:
        self._last: NicSample | None = None
        self._periods: deque[_Period] = deque()
        self._reported: float | None = None

    @property
    def up(self) -> float | None:
        """The available rate; None before anything was sent."""
        return max((period.rate for period in self._periods), default=None)

    def observe(self, sample: NicSample, sending: bool) -> None:
        """Takes in the counters; `sending`: whether there was something to send ever since the last ones."""
        last, self._last = self._last, sample
        if last is None or not sending or sample.time_s <= last.time_s:
            return
        length_s, sent = sample.time_s - last.time_s, sample.bytes_sent - last.bytes_sent
        if sent < LEAST_BYTES:
            return
        self._periods.append(_Period(length_s, sent / FRAMING / length_s))
        while sum(period.length_s for period in self._periods) - self._periods[0].length_s >= WINDOW_S:
            self._periods.popleft()

    def news(self) -> float | None:
        """The rate where it is worth a report; from then on it counts as reported."""
        up = self.up
        if up is None or (self._reported is not None and abs(up - self._reported) <= NEWS * self._reported):
            return None
        self._reported = up
        return up
