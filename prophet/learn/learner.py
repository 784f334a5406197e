"""Learning and planning as one pure step: events in, now and then a plan out.

Rule of this file: no clock, thread or file. The agent in a job calls it on the steady clock, the
simulator on its virtual one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from prophet.core.plan import Plan
from prophet.learn.bandwidth import BandwidthMonitor, NicSample
from prophet.learn.profiler import JobProfiler
from prophet.learn.replan import plan_changed

if TYPE_CHECKING:
    from prophet.core.cut import Cut
    from prophet.core.network import Network
    from prophet.core.policy import Policy


class Learner:
    """Profile, network and plan of one job, from its events. Pure: time comes with the call.

    `forward_ids`: see JobProfiler. `arena`: whether ids are places in the arena, in UNIT_BYTES (prophet/core/cut.py);
    otherwise they count gradients.
    """

    def __init__(self, policy: Policy, monitor_s: float, forward_ids: bool = False, arena: bool = True) -> None:
        self.policy = policy
        self.profiler = JobProfiler(forward_ids=forward_ids)
        self.monitor = BandwidthMonitor()
        self.plan = policy.plan(None, None)
        self._monitor_s = monitor_s
        self._judged_at = -float("inf")
        self._knows_network = False

    def turn(
        self,
        now: float,
        events: NDArray[Any],
        nic: NicSample | None,
        cut: Cut | None = None,
        networks: tuple[Network, ...] = (),
    ) -> Plan | None:
        """Takes in what happened since the last turn; a new plan where one is due.

        `cut` is the cut in force, None before the first; `networks` are what all workers say of theirs.
        """
        self.profiler.observe(events)
        self.monitor.observe(events)
        if nic is not None:
            self.monitor.observe_nic(nic)
        due = now - self._judged_at >= self._monitor_s
        if not self.profiler.ready or (not due and self._knows_network):
            return None
        network = self.monitor.network
        if not due and network is None:
            return None
        self._judged_at = now
        self._knows_network = network is not None
        plan = self.policy.plan(self.profiler.profile, network, jitter_s=self.profiler.jitter_s)
        if not plan_changed(self.plan, plan):
            return None
        self.plan = plan
        return plan
