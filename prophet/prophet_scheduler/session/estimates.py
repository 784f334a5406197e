"""Estimates of one job: its profile and its network, measured or kept from its last run.

Rule of this file: it decides when a measurement counts and which estimate to use. The estimators are in
prophet_scheduler/learn. No clock, thread or file.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Protocol

from prophet_scheduler.core.arena import at_pace
from prophet_scheduler.core.events import EventKind
from prophet_scheduler.learn.bandwidth import BandwidthMonitor, NicSample
from prophet_scheduler.learn.profiler import JobProfiler

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from prophet_scheduler.core.network import Network
    from prophet_scheduler.core.profile import Profile
    from prophet_scheduler.session.kept import Kept, Prior
    from prophet_scheduler.session.messages import SessionTerms, Turn

WORTH_PACING = 1.02
"""Minimum ratio of the slowest worker's compute time to this worker's before the profile is adjusted."""


class Monitor(Protocol):
    """Estimator of the network, from events and the counters of a network interface."""

    def observe(self, events: NDArray[Any]) -> None: ...
    def observe_nic(self, sample: NicSample) -> None: ...
    def disregard(self, before_s: float) -> None: ...
    def expect(self, network: Network) -> None: ...
    @property
    def network(self) -> Network | None: ...


class Estimates:
    """Estimates of one job. `monitor` defaults to BandwidthMonitor."""

    def __init__(self, terms: SessionTerms, monitor: Monitor | None = None) -> None:
        self.profiler = JobProfiler(terms.forward_ids, terms.changes.lasts, terms.sees_rounds)
        self.monitor: Monitor = monitor if monitor is not None else BandwidthMonitor()
        self._watches = False
        self._watched = 0  # whole iterations under earlier cuts
        self._divided = False
        self._pace = 1.0
        self._prior: Prior | None = None

    def begin_with(self, kept: Kept) -> None:
        """Use these results from the job's last run until it has measured its own."""
        from prophet_scheduler.session.kept import Prior  # Few jobs need it.

        self._prior = Prior(kept)
        if kept.network is not None:
            self.monitor.expect(kept.network)

    def take_in(self, turn: Turn, recut: bool) -> None:
        """Record the measurements of a turn; `recut` if its cut differs from the last turn's."""
        events = turn.events
        self.profiler.forward_ended(turn.forward_ends)
        self._pace = turn.pace
        if recut or turn.divided != self._divided:
            # Ids change here, and these events contain old and new ones.
            self._divided = turn.divided
            self._watched += self._now_watched
            self.profiler.restart(events, turn.round_ends)
        else:
            self.profiler.observe(events, turn.round_ends)
        if turn.divided:
            # Operation times measure the network only if the operations are all-reduces.
            events = events[events["kind"] != EventKind.START]
        self._watch(events, turn.nic)

    @property
    def _now_watched(self) -> int:
        return max(0, self.profiler.iterations - self.profiler.warm_up)

    def _watch(self, events: NDArray[Any], nic: NicSample | None) -> None:
        """Measure the network, except in the first iterations, which set up connections and register memory.

        The first iterations under a new cut do the same, but their bytes still count as the job's own traffic.
        """
        since_s = self.profiler.warmed_up_s
        if not self._watches:
            if since_s is None:
                return
            self._watches = True
            events = events[events["time_s"] >= since_s]
        self.monitor.disregard(math.inf if since_s is None else since_s)
        self.monitor.observe(events)
        if nic is not None:
            self.monitor.observe_nic(nic)

    @property
    def network(self) -> Network | None:
        """Measured network; None until enough whole iterations were watched, besides the first ones under each cut.

        Over part of an iteration, a fast link with a long delay can look like a slow link without delay. With blocks
        and credit chosen for such a slow link, iterations took four times as long.
        """
        return self.monitor.network if self._watched + self._now_watched >= self.profiler.warm_up else None

    @property
    def unsure(self) -> bool:
        """True while kept results stand in for missing measurements."""
        return self._prior is not None and not self._prior.over

    @property
    def kept_was_dropped(self) -> str:
        """Reason for dropping the kept results; empty if they are in use or there are none."""
        return self._prior.dropped if self._prior else ""

    def to_plan_from(self) -> tuple[Profile | None, Network | None]:
        """Return profile and network for a plan, each None if unknown. This takes milliseconds."""
        profile, network = self.profiler.profile, self.network
        if self._prior is not None:
            profile, network = self._prior.fill(profile, network)
        return self._paced(profile), network

    def newest(self) -> tuple[Profile | None, Network | None]:
        """Return the newest profile and network, from any cut or run of the job; each None if there never was one."""
        profile, network = self._paced(self.profiler.latest), self.network
        if self._prior is not None:
            profile, network = profile or self._prior.kept.profile, network or self._prior.kept.network
        return profile, network

    def _paced(self, profile: Profile | None) -> Profile | None:
        """Return the profile, scaled to the pace of the slowest worker."""
        return profile if profile is None or self._pace < WORTH_PACING else at_pace(profile, self._pace)
