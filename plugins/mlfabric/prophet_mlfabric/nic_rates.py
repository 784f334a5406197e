"""Available rate of a node's NIC, from its counters while updates are sent (MLfabric, section 4: network monitor).

Rule of this file: when to sample, and how to interpret samples; learn/nic.py reads the counters.

A counter shows the available rate only while there is always something to send: from an update's start to its end. The
highest rate in the newest WINDOW_S of such time is used: a sample with a pause is too low, but none is too high.
"""

from __future__ import annotations

import math
from collections import deque

from prophet_mlfabric.conversation import Conversation
from prophet_scheduler.learn.bandwidth import FRAMING, NicSample
from prophet_scheduler.learn.nic import sample_nic

WINDOW_S = 0.3
"""Seconds of sending over which the rate is estimated; older samples are dropped."""
LEAST_BYTES = 64 * 1024
"""Minimum bytes of a sample: smaller ones depend on delays more than on rates."""
NEWS = 0.05
"""Relative change of the rate above which it is reported."""
SAMPLE_S = 0.1
"""Seconds between two samples while an update is sent or an answer awaited."""
BUSY_BYTES_PER_S = 64 * 1024
"""Bytes per second from which a NIC counts as busy. Heartbeats and a coordinator's messages are fewer."""


class NicWatch:
    """Samples a NIC while an update is sent or has just been sent, and while an answer is awaited.

    `next_s` is the time of the next sample; infinity if none is due. Without an `interface` there are no samples. The
    rate is that of the uplink, in bytes per second of payload, without headers.
    """

    def __init__(self, interface: str | None) -> None:
        self._interface = interface
        self._last: NicSample | None = None
        self._was_sending = False
        self._periods: deque[tuple[float, float]] = deque()
        """Length in seconds and rate of each sample."""
        self._reported = 0.0

    @property
    def next_s(self) -> float:
        return math.inf if self._last is None else self._last.time_s + SAMPLE_S

    def look(self, talk: Conversation, now_s: float) -> None:
        """Report the NIC's rate to the coordinator if it is news, and excuse its silence while the NIC is busy."""
        sending, last = talk.sending, self._last
        if self._interface is None or not (sending or self._was_sending or talk.waits):
            self._last = None
            return
        if last is not None and sending == self._was_sending and now_s < self.next_s:
            return
        sample = sample_nic(self._interface, now_s)
        if sample is None:
            self._interface = self._last = None
            return
        if talk.waits and last is not None:
            moved = max(sample.bytes_sent - last.bytes_sent, sample.bytes_received - last.bytes_received)
            if moved >= BUSY_BYTES_PER_S * (now_s - last.time_s):
                talk.excuse(now_s - last.time_s)
        self.observe(sample, self._was_sending)
        self._was_sending = sending
        if (news := self.news()) is not None:
            talk.report(news)

    def observe(self, sample: NicSample, sending: bool) -> None:
        """Take a sample; `sending` is True if there was always something to send since the last one."""
        last, self._last = self._last, sample
        if last is None or not sending or sample.time_s <= last.time_s:
            return
        length_s, sent = sample.time_s - last.time_s, sample.bytes_sent - last.bytes_sent
        if sent < LEAST_BYTES:
            return
        self._periods.append((length_s, sent / FRAMING / length_s))
        while sum(length_s for length_s, _ in self._periods) - self._periods[0][0] >= WINDOW_S:
            self._periods.popleft()

    def news(self) -> float | None:
        """Return the rate if it has changed enough to be reported, else None. A returned rate counts as reported."""
        up = max((rate for _, rate in self._periods), default=0.0)
        if abs(up - self._reported) <= NEWS * self._reported:
            return None
        self._reported = up
        return up
