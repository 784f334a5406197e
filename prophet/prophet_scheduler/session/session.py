"""The decisions of one job as a pure state machine: events in, instructions out.

Rule of this file: it decides when a plan is due and who makes it. No clock, thread or file. The agents of all engines
pass in times of the monotonic clock, the simulator times of its virtual clock.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from prophet_scheduler.core.choice import ChoosingPolicy, IterationEnd
from prophet_scheduler.core.events import DRAIN_S, SEEKING_S
from prophet_scheduler.core.plan import plan_changed
from prophet_scheduler.session.estimates import Estimates, Monitor
from prophet_scheduler.session.messages import (
    Basis,
    Event,
    ForwardTraced,
    Instruction,
    Remembered,
    SessionTerms,
    TakeUp,
    Turn,
    Want,
)

if TYPE_CHECKING:
    from prophet_scheduler.core.choice import Choice
    from prophet_scheduler.core.cut import Cut
    from prophet_scheduler.core.network import Network
    from prophet_scheduler.core.plan import Plan
    from prophet_scheduler.core.policy import Policy
    from prophet_scheduler.core.status import ArmStatus
    from prophet_scheduler.learn.profiler import JobProfiler
    from prophet_scheduler.learn.ranks import BlockOrder
    from prophet_scheduler.session.choosing import Choosing
    from prophet_scheduler.session.kept import Kept
    from prophet_scheduler.session.messages import WaysOf
    from prophet_scheduler.session.tuner import Look


class Session:
    """Profile, network and plan of one job, derived from its events. `monitor` defaults to BandwidthMonitor. `ways_of`
    predicts the engine's own ways; without it none are predicted.
    """

    def __init__(
        self, policy: Policy, terms: SessionTerms, monitor: Monitor | None = None, ways_of: WaysOf | None = None
    ) -> None:
        self.policy = policy
        self.plan = policy.plan(None, None)
        self.estimates = Estimates(terms, monitor)
        self._terms = terms
        self._judged_at = -float("inf")
        self._knows_network = False
        self._barrier = False
        self._cut: Cut | None = None
        self._look: Look | None = None
        self._order: BlockOrder | None = None
        self.choosing: Choosing | None = None
        """Choices of the job; None if nothing is predicted."""
        chooses = terms.shape is not None and not terms.follows
        if not isinstance(policy, ChoosingPolicy):
            return
        if terms.learns_order:  # Imported here because few policies need it.
            from prophet_scheduler.learn.ranks import BlockOrder

            self._order = BlockOrder()
        if chooses:
            from prophet_scheduler.session.choosing import Choosing

            self.choosing = Choosing(policy, terms, self.plan.push.credit, ways_of)

    def on(self, event: Event) -> Sequence[Instruction]:
        """Handle an event; return the resulting instructions, in the order to carry them out."""
        match event:
            case Turn():
                return self._turn(event)
            case Remembered(kept):
                self.estimates.begin_with(kept)
                if self.choosing is not None:
                    self.choosing.recall(kept.believed)
            case ForwardTraced(forward_s, policy):
                self.profiler.traced(forward_s)
                self.policy = policy
        self._judged_at = -float("inf")
        return ()

    def _turn(self, turn: Turn) -> Sequence[Instruction]:
        recut = self._cut is not None and turn.cut != self._cut
        self.estimates.take_in(turn, recut)
        if recut and self._order is not None:
            self._order.recut(turn.cut, self.profiler.latest)
        self._cut = turn.cut
        plan = self._plan(turn)
        if self._order is not None and turn.cut is not None:
            plan = self._order.of_plan(plan or self.plan)
        instructions: list[Instruction] = []
        if plan is not None and plan_changed(self.plan, plan):
            self.plan = plan
            instructions.append(TakeUp(plan))
        former, self._look = self._look, self.look
        if instructions or (self._look is not None and self._look is not former):
            instructions.append(self._want(plan if instructions else None))
        return instructions

    def _want(self, plan: Plan | None) -> Want:
        """Return the request that belongs to a new plan, or to another trial under the same plan."""
        wanted, look = self.wanted, self._look
        iterations = look.iterations if look is not None else 0
        if wanted is None:
            return Want(plan.cut if plan else None, self.credit, why=self.why)
        cut = plan.cut if plan is not None else wanted.cut
        return Want(cut, wanted.credit, wanted.way, self.why, wanted.iteration_s, iterations)

    def _plan(self, turn: Turn) -> Plan | None:
        """Return the plan that is due, if any."""
        now, cut, estimates = turn.now, turn.cut, self.estimates
        job_changed = turn.barrier != self._barrier
        due = now - self._judged_at >= self._terms.monitor_s or job_changed
        if self._order is not None and cut is not None and self.profiler.ready and (due or not self._order.known):
            self._order.learn(cut, self.profiler.profile)
        choosing = self.choosing if cut is not None else None
        if choosing is not None and cut is not None:
            choosing.refused(turn.refusals)
            choosing.in_force(cut, turn.way, self._ended(turn, cut), turn.ways)
            job_changed |= choosing.lacks_ways
            due = (due or job_changed) and choosing.may_ask(job_changed)
        unsure = estimates.unsure
        # Estimates take milliseconds, so compute them only where used.
        looks = due or unsure or (choosing is None and not self._knows_network)
        profile, network = estimates.to_plan_from() if looks else (None, None)
        if due and job_changed and self._terms.arena and choosing is not None:
            # The predictions were for another job. The profile of any cut of this arena will do until they are right.
            profile, network = estimates.newest()
        if unsure and estimates.kept_was_dropped:
            due = True
            if choosing is not None:
                choosing.forget()
        if choosing is not None:
            if due and profile is not None and network is not None:
                self._judged_at, self._barrier = now, turn.barrier
                slowest = _waited_for(network, turn.networks)
                choosing.ask(Basis(profile, slowest, self.profiler.jitter_s, turn.barrier))
            # Changing the cut now would only delay the job's own measurements.
            return choosing.turn(may_move=not estimates.unsure)
        if self._terms.follows and cut is not None:
            self._judged_at, self._barrier = now if due else self._judged_at, turn.barrier
            return self._following(network if due else None, turn.credit)
        if profile is None or not (due or (not self._knows_network and network is not None)):
            return None
        self._judged_at, self._barrier, self._knows_network = now, turn.barrier, network is not None
        slowest_if_any = _waited_for(network, turn.networks) if network is not None else None
        return self.policy.plan(profile, slowest_if_any, jitter_s=self.profiler.jitter_s)

    def _ended(self, turn: Turn, cut: Cut) -> Sequence[IterationEnd]:
        """Return the iterations of a turn, without those that ran before their blocks were in order."""
        seen_s = self.profiler.take_took_s()
        ended = turn.ended
        if ended is None:
            ended = [IterationEnd(cut, "", each_s) for each_s in seen_s]
        return ended if self._order is None else self._order.counted(cut, ended)

    def _following(self, network: Network | None, credit: int | None) -> Plan:
        """Return the plan of a following worker: its block ids are ranks, so only the credit may change."""
        plan = self.policy.plan(None, network or self.plan.network)
        return replace(plan, push=replace(plan.push, credit=credit or self.plan.push.credit))

    # Results.

    @property
    def profiler(self) -> JobProfiler:
        return self.estimates.profiler

    @property
    def network(self) -> Network | None:
        """Measured network; None before enough iterations."""
        return self.estimates.network

    @property
    def kept_was_dropped(self) -> str:
        """Reason for dropping the kept results; empty if they are in use or there are none."""
        return self.estimates.kept_was_dropped

    def learned(self, cut: Cut | None) -> Kept | None:
        """Return the results to keep for the job's next start, with the cut in force; None before the first profile."""
        profile = self.profiler.latest
        if profile is None:
            return None
        from prophet_scheduler.session.kept import Kept

        return Kept(profile, self.network, cut, self.choosing.known if self.choosing is not None else ())

    @property
    def why(self) -> str:
        """Reason for the cut that the last plan asks for, in a few words; empty if it asks for none."""
        return self.choosing.why if self.choosing is not None else ""

    @property
    def wanted(self) -> Choice | None:
        """Wanted blocks and their prediction; None if nothing is predicted."""
        return self.choosing.wanted if self.choosing is not None else None

    @property
    def arms(self) -> tuple[ArmStatus, ...]:
        """Arms of the job, fastest first; empty before the first prediction."""
        return self.choosing.arms if self.choosing is not None else ()

    @property
    def tuner_in_words(self) -> str:
        """The tuner's present action and its reason; empty before its first decision."""
        if not self.arms:
            return ""
        return f"tries another: {self.why}" if self.look is not None else "rests: nothing else is worth a try"

    @property
    def look(self) -> Look | None:
        """Arm on trial and the trial's gain; None at rest."""
        return self.choosing.look if self.choosing is not None else None

    @property
    def pause_s(self) -> float:
        """Seconds until the next turn; fewer while the job is searching for something better."""
        return DRAIN_S if self.choosing is None or self.choosing.at_rest else SEEKING_S

    @property
    def credit(self) -> int | None:
        """Credit (bytes in flight) of the cut that the last plan asks for; None for no limit."""
        wanted = self.wanted
        return wanted.credit if wanted is not None else self.plan.push.credit


def _waited_for(own: Network, networks: Sequence[Network]) -> Network:
    """Return the lowest bandwidth with the longest delay: too little in flight for it would slow that worker most."""
    everywhere = [own, *networks]
    slowest = min(everywhere, key=lambda network: network.bandwidth)
    return replace(slowest, ack_delay_s=max(network.ack_delay_s for network in everywhere))
