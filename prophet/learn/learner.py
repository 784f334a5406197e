"""Learning and planning as one pure step: events in, now and then a plan out.

Rule of this file: no clock, thread or file. The agent in a job calls it on the steady clock, the
simulator on its virtual one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from prophet.core.choice import ChoosingPolicy
from prophet.core.plan import Plan
from prophet.learn.bandwidth import BandwidthMonitor, NicSample
from prophet.learn.profiler import JobProfiler
from prophet.learn.replan import plan_changed

if TYPE_CHECKING:
    from prophet.core.choice import Shape
    from prophet.core.cut import Cut
    from prophet.core.network import Network
    from prophet.core.policy import Policy
    from prophet.learn.choosing import Choosing


class Learner:
    """Profile, network and plan of one job, from its events. Pure: time comes with the call.

    `forward_ids`: see JobProfiler. `arena`: ids are places in the arena, and not gradients. `shape`: of the cluster, None
    where it is not known; then nothing is predicted. `adapts`: plans may ask for another cut, as those of the worker
    whose word counts may in a job whose blocks adapt.
    """

    def __init__(
        self,
        policy: Policy,
        monitor_s: float,
        forward_ids: bool = False,
        *,
        arena: bool = True,
        shape: Shape | None = None,
        adapts: bool = False,
    ) -> None:
        self.policy = policy
        self.profiler = JobProfiler(forward_ids=forward_ids)
        self.monitor = BandwidthMonitor()
        self.plan = policy.plan(None, None)
        self._monitor_s = monitor_s
        self._judged_at = -float("inf")
        self._knows_network = False
        self._cut: Cut | None = None
        self._choosing: Choosing | None = None
        if shape is not None and isinstance(policy, ChoosingPolicy):
            from prophet.learn.choosing import Choosing

            self._choosing = Choosing(policy, shape, adapts, arena, self.plan.push.credit)

    @property
    def why(self) -> str:
        """Why the last plan's cut is wanted, in a few words; "" where none was."""
        return self._choosing.why if self._choosing is not None else ""

    def turn(
        self,
        now: float,
        events: NDArray[Any],
        nic: NicSample | None,
        cut: Cut | None = None,
        networks: Sequence[Network] = (),
    ) -> Plan | None:
        """Takes in what happened since the last turn; a new plan where one is due.

        `cut` is the one in force, None where there is none. `networks` are what all workers measured: the slowest is
        planned for, since each iteration waits for it.
        """
        if cut != self._cut and self._cut is not None:
            # Ids are others from here on. These events are of both.
            self.profiler.restart()
        else:
            self.profiler.observe(events)
        self._cut = cut
        self.monitor.observe(events)
        if nic is not None:
            self.monitor.observe_nic(nic)
        if self._choosing is not None and cut is not None:
            plan = self._choose(self._choosing, now, cut, networks)
        else:
            plan = self._plan(now, networks)
        if plan is None or not plan_changed(self.plan, plan):
            return None
        self.plan = plan
        return plan

    def _plan(self, now: float, networks: Sequence[Network]) -> Plan | None:
        """What the policy plans, when it is time for that."""
        due = now - self._judged_at >= self._monitor_s
        if not self.profiler.ready or (not due and self._knows_network):
            return None
        network = self._slowest(networks)
        if not due and network is None:
            return None
        self._judged_at = now
        self._knows_network = network is not None
        return self.policy.plan(self.profiler.profile, network, jitter_s=self.profiler.jitter_s)

    def _choose(self, choosing: Choosing, now: float, cut: Cut, networks: Sequence[Network]) -> Plan | None:
        """What the policy chooses. That takes several turns, and what was chosen is looked at in each."""
        due = now - self._judged_at >= self._monitor_s or not self._knows_network
        network = self._slowest(networks)
        if network is None:
            return None
        choosing.in_force(cut, self.profiler.periods_s)
        profile = self.profiler.profile if due and choosing.may_ask else None
        if profile is not None:
            self._judged_at = now
            self._knows_network = True
            choosing.ask(profile, network, self.profiler.jitter_s)
        return choosing.turn()

    def _slowest(self, networks: Sequence[Network]) -> Network | None:
        """Of what this worker measured and what all did."""
        own = self.monitor.network
        known = [*networks, *([own] if own is not None else [])]
        return min(known, key=lambda network: network.bandwidth, default=None)
