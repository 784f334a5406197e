"""A job on BytePS on a virtual clock, as far as its agent sees it.

Rule of this file: a hook whose events follow from the cut in force and the wire's model, and a round that takes up what
the board says. A block's sum comes back right behind it.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np

from prophet_byteps.agent import Agent
from prophet_scheduler.core.arena import profile_under
from prophet_scheduler.core.choice import IterationEnd
from prophet_scheduler.core.cut import Cut, Refusal
from prophet_scheduler.core.events import EVENT_DTYPE, EventKind, QueueKind
from prophet_scheduler.core.network import Network
from prophet_scheduler.core.plan import Plan
from prophet_scheduler.core.plan_codec import encode_plan
from prophet_scheduler.core.profile import Profile
from prophet_scheduler.core.status import LaneStatus


class VirtualHook:
    """A hook that reports the blocks of a job's iterations, and keeps the plans it is given."""

    most_in_flight = None

    def __init__(self) -> None:
        self.rows: list[tuple[float, int, int, int, int, int, int]] = []
        self.plans: list[Plan] = []
        self.state = SimpleNamespace(
            why_aside="",
            watchdog_releases=0,
            unanswered_releases=0,
            in_flight_bytes=0,
            pushes=LaneStatus(),
            pulls=LaneStatus(),
        )

    def drain(self) -> Any:
        rows, self.rows = sorted(self.rows), []
        return np.array(rows, EVENT_DTYPE)

    def status(self) -> Any:
        return self.state

    def set_plan(self, plan: Plan) -> Any:
        self.plans.append(plan)
        return len(self.plans), encode_plan(plan)

    def step_aside(self, why: str) -> None:
        raise AssertionError(why)


class VirtualBytePS:
    """Job of one worker. `clock` has the time."""

    def __init__(self, agent: Agent, hook: VirtualHook, clock: list[float], profile: Profile, network: Network) -> None:
        self.agent, self.hook, self.clock = agent, hook, clock
        self.profile, self.network = profile, network
        self.refused: Sequence[Cut] = ()
        self.follows = False
        """True if another worker decides: this one's wishes count for nothing."""
        self.barrier = False
        self.reverses = False
        """True if gradients come in the order of their places."""
        agent._board.taken_up(0, agent._board.first_cut([gradient.size_bytes for gradient in profile.gradients]))

    def iterate(self) -> None:
        """Run an iteration, and take up at its end what is wanted."""
        board, now = self.agent._board, self.clock[0]
        cut = board.in_force.cut
        assert cut is not None
        blocks, free = profile_under(self.profile, cut), now
        ids = list(blocks.gradient_ids) if self.reverses else list(reversed(blocks.gradient_ids))
        by_id = dict(zip(blocks.gradient_ids, blocks.gradients, strict=True))
        for id_, generated in zip(ids, reversed(blocks.gradients), strict=True):
            size, added = by_id[id_].size_bytes, now + generated.generation_s
            start = max(free, added)
            free = start + self.network.transfer_s(size)
            end = free + self.network.ack_delay_s
            push, pull = QueueKind.PUSH, QueueKind.PULL
            self.hook.rows += [
                (added, id_, size, 0, push, EventKind.ADD, 0),
                (start, id_, size, 0, push, EventKind.START, 0),
                (end, id_, size, 0, push, EventKind.FINISH, 0),
                (end, id_, size, 0, pull, EventKind.ADD, 0),
                (end, id_, size, 0, pull, EventKind.START, 0),
                (end + self.network.transfer_s(size), id_, size, 0, pull, EventKind.FINISH, 0),
            ]
        took_s = max(free + 2 * self.network.ack_delay_s - now, self.profile.backward_s) + self.profile.forward_s
        self.clock[0] = now + took_s
        board.iterated(0, IterationEnd(cut, "", took_s))
        board.goes_on(0, self.barrier)
        wish, _ = board.said()
        if self.follows:
            return
        if wish.cut is not None and wish.cut in self.refused:
            board.refuse(Refusal(wish.cut, "no names"))
        elif wish.cut is not None or wish.credit is not None:
            board.taken_up(0, wish.cut or cut, wish.credit)
