"""Agents of policies that decide once, or only after the forward pass has been traced.

Rule of this file: when such a policy is asked. prophet_scheduler/policies/algorithms/collective_groups.py forms its
groups from the events of one module, once. Nothing is learned after that.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from prophet_ddp.agent import WatchingAgent
from prophet_ddp.control import Decision
from prophet_scheduler.frontends.notices import warn_of_untraced
from prophet_scheduler.policies.algorithms.sequence import TORCH_AT_ONCE

if TYPE_CHECKING:
    from prophet_ddp.rounds import ModuleRounds
    from prophet_scheduler.core.network import Network, Probe
    from prophet_scheduler.core.policy import Policy
    from prophet_scheduler.core.status import ArmStatus
    from prophet_scheduler.frontends.torch.trace import ForwardTrace

logger = logging.getLogger("prophet_scheduler")


class GroupingAgent(WatchingAgent):
    """Agent of one module, whose blocks are whole gradients at first. The caller passes the time.

    It waits for `trace` where the policy plans with forward times. `alone`: duration of a lone operation.
    """

    arms: tuple[ArmStatus, ...] = ()
    tuner_in_words = ""

    def __init__(
        self, rounds: ModuleRounds, policy: Policy, trace: ForwardTrace | None = None, alone: Probe | None = None
    ) -> None:
        from prophet_scheduler.learn.profiler import JobProfiler
        from prophet_scheduler.learn.serial import SerialMonitor
        from prophet_scheduler.policies.algorithms import collective_groups

        super().__init__(rounds)
        self._groups = collective_groups
        self._policy = policy
        # These systems group neighbours in the order of generation, which is the reverse of the arena's.
        self.profiler = JobProfiler(forward_ids=True)
        self._monitor = SerialMonitor(alone)
        self._trace = trace
        self.decided = False
        rounds.record.learner = self

    @property
    def network(self) -> Network | None:
        """Measurements of the network; None before there are any."""
        return self._monitor.network

    def _turn(self, rounds: ModuleRounds, now: float) -> None:
        events = rounds.log.drain()
        rounds.record.keep(events)
        layout = rounds.layout
        cut = layout.cut
        if self.decided or cut is None:
            return
        self.profiler.forward_ended(rounds.log.drain_forward_ends())
        self.profiler.observe(events)
        if self.profiler.warmed_up_s is not None:
            self._monitor.observe(events[events["time_s"] >= self.profiler.warmed_up_s])
        profile = self.profiler.profile
        network = self.network
        if self.profiler.iterations < self._groups.LEARNING_ITERATIONS or profile is None or network is None:
            return
        if self._trace is not None:
            if not self._trace.done:
                return
            forward_s = self._trace.forward_of(layout.blocks_under(cut))
            if forward_s is not None:
                profile = profile.with_forward(forward_s)
            else:
                warn_of_untraced(self._policy.name, self._trace.why_not)
        made = self._groups.make_grouping(
            self._policy, profile, network.one_at_a_time, self.profiler.jitter_s, layout.sizes, layout.kinds
        )
        together = tuple(len(places) for places in made.collectives)
        order = tuple(itertools.chain(*made.collectives))
        # As many at once as torch's group had for the policy's authors.
        rounds.channel.control.want(Decision(made.cut, order, together, TORCH_AT_ONCE))
        self.decided = True
        logger.info("%s: %d gradients travel in %d messages", self._policy.name, len(layout.sizes), len(together))


class WaitingAgent(WatchingAgent):
    """Agent of one module that `make` creates once the trace is done. Until then its events accumulate."""

    def __init__(
        self, rounds: ModuleRounds, trace: ForwardTrace, make: Callable[[ModuleRounds], WatchingAgent]
    ) -> None:
        # Imported for `make`, which runs in another thread: a fork of the program must not meet an import there.
        from prophet_scheduler.learn import serial  # noqa: F401
        from prophet_scheduler.session import choosing, session  # noqa: F401

        super().__init__(rounds)
        self._trace = trace
        self._make = make
        self._agent: WatchingAgent | None = None
        self.decided = False

    def _turn(self, rounds: ModuleRounds, now: float) -> None:
        if self._trace.done:
            if self._agent is None:
                self._agent = self._make(rounds)
            self._agent.turn(now)
            self.decided = self._agent.decided

    def leave(self) -> None:
        if self._agent is not None:
            self._agent.leave()
