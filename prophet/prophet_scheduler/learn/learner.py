"""Learning and planning as one pure step: events in, now and then a plan out.

Rule of this file: no clock, thread or file. The agent in a job calls it on the steady clock, the simulator on its
virtual one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol

from prophet_scheduler.core.arena import at_pace
from prophet_scheduler.core.cut import blocks_of
from prophet_scheduler.core.events import DRAIN_S, SEEKING_S
from prophet_scheduler.core.plan import Plan
from prophet_scheduler.learn.bandwidth import BandwidthMonitor, NicSample
from prophet_scheduler.learn.profiler import WARM_UP, JobProfiler
from prophet_scheduler.learn.ranks import ranks_of, ranks_under
from prophet_scheduler.learn.replan import plan_changed

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from prophet_scheduler.core.choice import Choice, IterationEnd, Shape
    from prophet_scheduler.core.cut import Cut, Refusal
    from prophet_scheduler.core.network import Network
    from prophet_scheduler.core.policy import Policy
    from prophet_scheduler.core.profile import Profile
    from prophet_scheduler.core.status import ArmStatus
    from prophet_scheduler.learn.choosing import Changes, Choosing, MoreChoices
    from prophet_scheduler.learn.kept import Believed, Kept, Prior
    from prophet_scheduler.learn.tuner import Belief, Look


WORTH_PACING = 1.02
"""Minimum ratio of the slowest worker's pace that changes a profile."""
WATCHED = 2
"""Whole iterations to watch before the measured network counts."""


class Monitor(Protocol):
    """Estimator of the network, from events and an interface's counters."""

    def observe(self, events: NDArray[Any]) -> None: ...
    def observe_nic(self, sample: NicSample) -> None: ...
    def disregard(self, before_s: float) -> None: ...
    def expect(self, network: Network) -> None: ...
    @property
    def network(self) -> Network | None: ...


class Learner:
    """Profile, network and plan of one job, from its events. Pure: time comes with the call.

    `forward_ids`: see JobProfiler. `arena`: ids are places in the arena, in UNIT_BYTES (core/cut.py); otherwise they
    count gradients. `shape`: of the cluster; None if unknown, and then nothing is predicted. `adapts`: plans may ask
    for another cut; only for the deciding worker of a job whose blocks adapt. `changes`: cost of another cut, by
    default that on parameter servers. `follows`: another worker chooses the cut and the credit, and this one only
    measures. `learns_order`: blocks are ranked anew if their places are not in forward order (ranks.py); each worker
    may do so alone. `monitor`: defaults to BandwidthMonitor.
    """

    def __init__(
        self,
        policy: Policy,
        monitor_s: float,
        forward_ids: bool = False,
        arena: bool = True,
        shape: Shape | None = None,
        adapts: bool = False,
        follows: bool = False,
        changes: Changes | None = None,
        learns_order: bool = False,
        monitor: Monitor | None = None,
    ) -> None:
        self.policy = policy
        self.profiler = JobProfiler(forward_ids, changes.lasts if changes is not None else WARM_UP)
        self.monitor: Monitor = monitor if monitor is not None else BandwidthMonitor()
        self.plan = policy.plan(None, None)
        self._monitor_s = monitor_s
        self._follows = follows
        self._judged_at = -float("inf")
        self._knows_network = False
        self._barrier = False
        self._watches = self._has_watched = False
        self._pace = 1.0
        self._prior: Prior | None = None
        self._cut: Cut | None = None
        self._learns_order = False
        self._ranks: Mapping[int, int] = {}
        self._ranks_of: dict[Cut, Mapping[int, int]] = {}
        self._ranked = False
        self._reordered = False
        self._held: list[IterationEnd] = []
        """The job's first iterations, held until the order of blocks is known."""
        self._choosing: Choosing | None = None
        if learns_order or (shape is not None and not follows):
            # Few policies need it.
            from prophet_scheduler.core.choice import ChoosingPolicy

            if not isinstance(policy, ChoosingPolicy):
                return
            self._learns_order = learns_order
            if shape is not None and not follows:
                from prophet_scheduler.learn.choosing import NEW_KEYS, Choosing

                self._choosing = Choosing(policy, shape, adapts, arena, self.plan.push.credit, changes or NEW_KEYS)

    def begin_with(self, kept: Kept) -> None:
        """Make the next plan from the results kept of this job's last run, until it has measured its own."""
        from prophet_scheduler.learn.kept import Prior  # Few jobs need it.

        self._prior = Prior(kept)
        if kept.network is not None:
            self.monitor.expect(kept.network)
        if self._choosing is not None:
            self._choosing.recall(kept.believed)
        self._judged_at = -float("inf")

    def traced(self, forward_s: Mapping[int, float], policy: Policy) -> None:
        """Make the next plan with these traced times of forward (seconds, by id), and by this policy.

        The policy replaces the same one with less knowledge. Call this again when the times hold no more.
        """
        self.profiler.traced(forward_s)
        self.policy = policy
        self._judged_at = -float("inf")

    @property
    def network(self) -> Network | None:
        """Measured network, once whole iterations have been watched; None before.

        In part of an iteration, a fast wire behind a long delay may look like a slow wire without delay. With the
        blocks and the credit for the slow wire, iterations took four times as long.
        """
        return self.monitor.network if self._has_watched else None

    @property
    def profile(self) -> Profile | None:
        """Newest profile, at the pace of the slowest worker; None before the first."""
        return self._paced(self.profiler.latest)

    def _paced(self, profile: Profile | None) -> Profile | None:
        return profile if profile is None or self._pace < WORTH_PACING else at_pace(profile, self._pace)

    @property
    def kept_was_dropped(self) -> str:
        """Reason for dropping the kept results; empty if they are in use, or if there are none."""
        return self._prior.dropped if self._prior else ""

    @property
    def why(self) -> str:
        """Reason for wanting the last plan's cut, in a few words; empty if it wants none."""
        return self._choosing.why if self._choosing is not None else ""

    @property
    def wanted(self) -> Choice | None:
        """Wanted blocks and their prediction; None if nothing predicts."""
        return self._choosing.wanted if self._choosing is not None else None

    @property
    def at_rest(self) -> bool:
        """True if blocks were chosen, and nothing better is looked for."""
        return self._choosing is not None and self._choosing.at_rest

    @property
    def known(self) -> tuple[Believed, ...]:
        """Beliefs about the arms that the job has had, for its next start."""
        return self._choosing.known if self._choosing is not None else ()

    @property
    def arms(self) -> tuple[ArmStatus, ...]:
        """Arms of the job, the fastest first; empty before anything is predicted."""
        return self._choosing.arms if self._choosing is not None else ()

    @property
    def tuner_in_words(self) -> str:
        """Present action of the tuner and its reason; empty before it has decided anything."""
        if not self.arms:
            return ""
        return f"tries another: {self.why}" if self.look is not None else "rests: nothing else is worth a try"

    @property
    def look(self) -> Look | None:
        """Arm being looked at, and the gain of this; None at rest."""
        return self._choosing.look if self._choosing is not None else None

    @property
    def proved(self) -> bool:
        """True if the wanted way of averaging is better than all others beyond doubt, by measurements of this run."""
        measured = self._prior is None or self._prior.over
        return self._choosing is not None and measured and self._choosing.proved

    def believed(self) -> dict[str, Belief]:
        """Return the belief about the best arm of each way of averaging; empty before anything is predicted."""
        return self._choosing.believed() if self._choosing is not None else {}

    @property
    def pause_s(self) -> float:
        """Seconds until the next turn: fewer while the job looks for something better."""
        return DRAIN_S if self._choosing is None or self._choosing.at_rest else SEEKING_S

    @property
    def credit(self) -> int | None:
        """Credit (bytes in flight) of the cut that the last plan wants; None for no limit."""
        wanted = self.wanted
        return wanted.credit if wanted is not None else self.plan.push.credit

    def turn(
        self,
        now: float,
        events: NDArray[Any],
        nic: NicSample | None,
        cut: Cut | None = None,
        networks: Sequence[Network] = (),
        refusals: Sequence[Refusal] = (),
        credit: int | None = None,
        barrier: bool = False,
        way: str = "",
        ended: Sequence[IterationEnd] | None = None,
        more: MoreChoices | None = None,
        pace: float = 1.0,
    ) -> Plan | None:
        """Take in events and measurements since the last turn; return a new plan if one is due.

        `cut` is the cut in force, None before the first. `networks` are the measurements of all workers; plans use the
        one that every iteration waits for. `refusals` are cuts that the engine cannot give the job now. `credit`
        (bytes) is the wish of the deciding worker; None before its first. `barrier`: iterations seem to wait for all
        averages. `way` is the present way of averaging blocks. `ended` are the iterations since the last turn; if None,
        they come from the events. `more` predicts the engine's own choices. `pace` is the slowest worker's time to
        compute over this worker's.
        """
        self._pace = pace
        if cut != self._cut and self._cut is not None:
            # Ids change here, and these events contain both kinds.
            self.profiler.restart()
            self._held.clear()
            self._ranks, self._ranked = self._ranks_under(cut) if cut is not None else {}, False
        else:
            self.profiler.observe(events)
        self._cut = cut
        self._watch(events, nic)
        due = now - self._judged_at >= self._monitor_s or barrier != self._barrier
        if self._learns_order and cut is not None:
            self._learn_order(cut, due)
        choosing = self._choosing if cut is not None else None
        if choosing is not None and cut is not None:
            choosing.refused(refusals)
            choosing.in_force(cut, way, self._ended(cut, ended))
            due = due and choosing.may_ask()
        unsure = self._prior is not None and not self._prior.over
        # Estimates take milliseconds, so they are made only where used.
        looked_at = due or unsure or (choosing is None and not self._knows_network)
        profile = self.profiler.profile if looked_at and self.profiler.ready else None
        network = self.network if looked_at else None
        if self._prior is not None and unsure:
            profile, network = self._prior.fill(profile, network)
            due = due or bool(self._prior.dropped)
            if choosing is not None and self._prior.dropped:
                choosing.forget()
        profile = self._paced(profile)
        plan = None
        if choosing is not None:
            if due and profile is not None and network is not None:
                self._judged_at, self._barrier = now, barrier
                choosing.ask(profile, _waited_for(network, networks), self.profiler.jitter_s, barrier, more)
            # Another cut now would only delay the job's own measurements.
            plan = choosing.turn(may_move=self._prior is None or self._prior.over)
        elif self._follows and cut is not None:
            plan = self._following(network if due else None, credit)
            self._judged_at, self._barrier = now if due else self._judged_at, barrier
        elif profile is not None and (due or (not self._knows_network and network is not None)):
            self._barrier = barrier
            plan = self._plan(now, profile, _waited_for(network, networks) if network is not None else None)
        if self._learns_order and cut is not None:
            plan = self._in_order(plan or self.plan)
        if plan is None or not plan_changed(self.plan, plan):
            return None
        self.plan = plan
        return plan

    def _learn_order(self, cut: Cut, due: bool) -> None:
        """Learn the order of the blocks in force as soon as possible, and when due."""
        if self.profiler.ready and (due or not self._ranked):
            profile = self.profiler.profile
            if profile is not None:
                before, self._ranks = self._ranks, ranks_of(profile, self._ranks)
                self._ranks_of[cut] = self._ranks
                self._ranked = True
                self._reordered = self._reordered or self._ranks != before

    def _ranks_under(self, cut: Cut) -> Mapping[int, int]:
        """Return ranks of the blocks of another cut than the one in force, by what is known of their places."""
        profile = self.profiler.latest
        if cut in self._ranks_of or profile is None or not any(self._ranks_of.values()):
            return self._ranks_of.get(cut, {})
        return ranks_under(blocks_of([profile.total_bytes], [""], cut), profile)

    def _in_order(self, plan: Plan) -> Plan:
        """Return the plan with the ranks of the blocks in force."""
        push, pull = (replace(lane, order=self._ranks) for lane in (plan.push, plan.pull))
        return replace(plan, push=push, pull=pull)

    def _ended(self, cut: Cut, ended: Sequence[IterationEnd] | None) -> Sequence[IterationEnd]:
        """Return these iterations, by default those of the events, without those before their blocks were in order."""
        from prophet_scheduler.core.choice import IterationEnd

        seen_s = self.profiler.take_took_s()
        if ended is None:
            ended = [IterationEnd(cut, "", each_s) for each_s in seen_s]
        if not self._learns_order:
            return ended
        if not self._ranks_of:
            self._held += ended
            return ()
        before = [one for one in ended if one.cut != cut]
        under = [one for one in ended if one.cut == cut]
        if self._reordered:
            self._held.clear()
            if under:
                under, self._reordered = under[1:], False  # The first one began in the former order.
        ended = [*before, *self._held, *under]
        self._held.clear()
        return ended

    def _watch(self, events: NDArray[Any], nic: NicSample | None) -> None:
        """Measure the network, except in the first iterations, which make connections and register memory.

        Iterations under another cut do so as well, but their bytes count as the job's own traffic all the same.
        """
        since_s = self.profiler.warmed_up_s
        if not self._watches:
            if since_s is None:
                return
            self._watches = True
            events = events[events["time_s"] >= since_s]
        self._has_watched = self._has_watched or self.profiler.iterations >= self.profiler.warm_up + WATCHED
        self.monitor.disregard(math.inf if since_s is None else since_s)
        self.monitor.observe(events)
        if nic is not None:
            self.monitor.observe_nic(nic)

    def _following(self, network: Network | None, credit: int | None) -> Plan:
        """Return the plan of a worker that follows: its blocks' ids are ranks, so only the credit may change."""
        plan = self.policy.plan(None, network or self.plan.network)
        return replace(plan, push=replace(plan.push, credit=credit or self.plan.push.credit))

    def _plan(self, now: float, profile: Profile, network: Network | None) -> Plan:
        self._judged_at = now
        self._knows_network = network is not None
        return self.policy.plan(profile, network, jitter_s=self.profiler.jitter_s)


def _waited_for(own: Network, networks: Sequence[Network]) -> Network:
    """Return the slowest network with the longest delay: a worker with too little in flight for it is the slowest."""
    everywhere = [own, *networks]
    slowest = min(everywhere, key=lambda network: network.bandwidth)
    return replace(slowest, ack_delay_s=max(network.ack_delay_s for network in everywhere))
