"""A job of DistributedDataParallel on a virtual clock, as far as an agent sees it.

Rule of this file: rounds that take what the wire's model says, and a control that takes up what is wanted at once.
"""

from __future__ import annotations

import heapq
import math
import random
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from prophet_ddp.agent import ModuleAgent
from prophet_ddp.control import FOR_GOOD, SMALL_CUT, TORCH, TORCH_CUT, Decision
from prophet_ddp.dividing import WHOLE, Division, divide
from prophet_ddp.events import EventLog, Phase
from prophet_ddp.records import ModuleRecord
from prophet_scheduler.core.arena import at_pace, profile_under
from prophet_scheduler.core.choice import ChoosingPolicy, IterationEnd
from prophet_scheduler.core.cut import Block, Cut, blocks_of, learning_cut
from prophet_scheduler.core.network import Network, Probe
from prophet_scheduler.core.profile import Profile
from prophet_scheduler.core.settings import Settings
from prophet_scheduler.frontends.warm import WarmStart
from prophet_scheduler.policies.algorithms.collective import ArrivalOrder, CollectivePolicy, ForwardOrder
from prophet_scheduler.policies.algorithms.sequence import MOST_AT_ONCE, backward_order, iteration_s, learning_sizes
from support.plain_wire import played
from support.profiles import resnet50

TOTAL = 25_600_000
PROFILE = resnet50(TOTAL, backward_s=0.6, forward_s=0.3)
NETWORK = Network(31.25e6, 1e-3)
SETTINGS = Settings("prophet")


TUTORIAL = resnet50(9_000_000, backward_s=0.2, forward_s=0.1)
"""Model of the tutorial's size, computed as slowly as by four ranks on two cores."""


class Wanted:
    """Record of the agent's wishes, in place of control.py."""

    pace = 1.0

    def __init__(self) -> None:
        self.decisions: list[Decision] = []
        self.turns: list[int] = []
        self.cut = TORCH_CUT
        """Cut that stands for the buckets of the last of them."""

    def want_turn(self, iterations: int, bucket_bytes: int = 0) -> None:
        self.turns.append(iterations)
        self.cut = Cut.uniform(bucket_bytes) if bucket_bytes else TORCH_CUT

    def want(self, decision: Decision) -> None:
        if self.decisions[-1:] != [decision]:
            self.decisions.append(decision)


class Job:
    """Job on a virtual clock, in place of ModuleRounds; it takes up each wish at once."""

    def __init__(self, network: Network = NETWORK, cut: Cut | None = None, profile: Profile = PROFILE) -> None:
        self.network = network
        self.profile = profile
        self.sizes = [gradient.size_bytes for gradient in profile.gradients]
        self.ranks = 2
        self.log = EventLog(open=True)
        self.record = ModuleRecord()
        self.control = Wanted()
        self.channel = SimpleNamespace(control=self.control)
        self.waits = self.record.waits
        self.divisible = self.divided = self.resting = False
        self.turns = self.buckets = cast(Any, None)
        self.slots = (None,)
        self.pace = SimpleNamespace(ended=100, on_round=None, take_iterations=self._take_iterations)
        self.iterations: list[IterationEnd] = []
        self.clips = False
        """True if its iterations wait for all averages."""
        self.now_s = 100.0
        self._take(cut or learning_cut(profile.total_bytes, learning_sizes(profile.total_bytes)), None)

    @property
    def decision(self) -> Decision:
        return self.control.decisions[-1] if self.control.decisions else Decision(self.cut, self.order, unordered=True)

    @property
    def in_force(self) -> Decision:
        return self.decision

    @property
    def way(self) -> str:
        return self.decision.way

    def _take_iterations(self) -> list[IterationEnd]:
        ended, self.iterations = self.iterations, []
        return ended

    def _take(self, cut: Cut, order: tuple[int, ...] | None) -> None:
        self.cut = cut
        self.record.took_up(cut)
        self.order = order or backward_order(len(self.blocks_under(cut)))

    def blocks_under(self, cut: Cut) -> list[Block]:
        return blocks_of(self.sizes, [0] * len(self.sizes), cut)

    @property
    def layout(self) -> Job:
        return self

    def iterate(self, count: int = 1) -> float:
        """Run iterations; return the seconds of one."""
        took_s = 0.0
        for _ in range(count):
            if self.control.decisions:
                last = self.control.decisions[-1]
                self._take(last.cut, last.order)
            blocks = profile_under(self.profile, self.cut)
            times = played(blocks, self.network, self.order)
            for place, gradient in enumerate(blocks.gradients):
                id_, size, end_s = blocks.ids[place], gradient.size_bytes, times.ends_s[place]
                self.log.added(id_, size, self.now_s + gradient.generation_s)
                self.log.started(id_, size, self.now_s + end_s - self.network.transfer_s(size))
                self.log.finished(id_, size, self.now_s + end_s)
            self.log.round_ended(self.now_s + self.profile.backward_s)
            took_s = iteration_s(blocks, times, self.clips)
            self.waits.iteration(self.clips)
            self.now_s += took_s
            self.iterations.append(IterationEnd(self.cut, self.way, took_s))
        return took_s


class Clipping(Job):
    """Job that asks for norms in every iteration. In two phases each block is a push and a pull of half the bytes, or
    both at once if it has no owner.
    """

    def __init__(self, network: Network = NETWORK, profile: Profile = PROFILE) -> None:
        super().__init__(network, None, profile)
        self.divisible = self.asks = True

    @property
    def divided(self) -> bool:  # type: ignore[override]
        return bool(self.control.decisions and self.control.decisions[-1].gathers)

    @divided.setter
    def divided(self, _value: bool) -> None:
        """Ignore the value with which a job begins."""

    def division(self, cut: Cut) -> Division:
        return divide(cut, self.sizes, self.ranks)

    def iterate(self, count: int = 1) -> float:
        self.clips = not self.divided
        self.record.asks.iteration(self.asks)
        return super().iterate(count) if self.clips else self.in_two_phases()

    def in_two_phases(self) -> float:
        self.waits.iteration(False)
        decision = self.control.decisions[-1]
        self.cut, self.order = decision.cut, (*decision.order, *decision.gathers)
        division = self.division(decision.cut)
        blocks = profile_under(self.profile, division.cut)
        pieces = self.blocks_under(division.cut)
        assert sorted(decision.order) == sorted(decision.gathers) == list(range(len(blocks.gradients)))
        start_s = end_s = self.now_s
        arrives_s = [start_s + self.profile.backward_s] * len(pieces)
        for phase, order in ((Phase.REDUCE, decision.order), (Phase.GATHER, decision.gathers)):
            for place in order:
                id_, gradient = blocks.ids[place], blocks.gradients[place]
                whole = division.owner(pieces[place]) == WHOLE
                if phase is Phase.REDUCE:
                    ready_s = start_s + gradient.generation_s
                    self.log.added(id_, gradient.size_bytes, ready_s)
                    end_s = max(end_s, ready_s)
                elif whole:
                    continue
                part, size_bytes = (Phase.BOTH, gradient.size_bytes) if whole else (phase, gradient.size_bytes // 2)
                self.log.started(id_, size_bytes, end_s, part)
                end_s += self.network.transfer_s(size_bytes)
                self.log.finished(id_, size_bytes, end_s, part)
                if phase is Phase.GATHER:
                    arrives_s[place] = end_s
            self.now_s = max(self.now_s, end_s if phase is Phase.REDUCE else 0.0)
        self.log.round_ended(start_s + self.profile.backward_s)
        for gradient, arrived_s in zip(blocks.gradients, arrives_s, strict=True):
            self.now_s = max(self.now_s, arrived_s) + gradient.forward_s
        took_s = self.now_s - start_s
        self.iterations.append(IterationEnd(self.cut, self.way, took_s))
        return took_s


def module_agent(
    job: Any,
    policy: ChoosingPolicy | None = None,
    adapts: bool = True,
    warm: WarmStart | None = None,
    alone: Probe | None = None,
) -> ModuleAgent:
    chosen: Any = policy or CollectivePolicy(ForwardOrder(), ArrivalOrder())
    return ModuleAgent(job, chosen, SETTINGS, adapts, warm, alone)


def trained(job: Job, agent: ModuleAgent, iterations: int) -> float:
    """Train with a turn of the agent after each iteration."""
    took_s = 0.0
    for _ in range(iterations):
        took_s = job.iterate()
        assert agent.turn(job.now_s)
    return took_s


def warm_start(folder: Path, profile: Profile | None = None) -> WarmStart:
    return WarmStart(
        folder, {"ranks": "[0, 1]"}, lambda sizes: learning_cut(sum(sizes), learning_sizes(sum(sizes))), profile
    )


class Restless(Job):
    """A job of milliseconds on a machine with other work: computing and sending take different times in each iteration,
    and the times drift."""

    def __init__(self, seed: int) -> None:
        profile = resnet50(1_600_000, backward_s=3e-3, forward_s=1.5e-3)
        super().__init__(Network(1e9, 0.3e-3), profile=profile)
        self.chance = random.Random(seed)
        self.usual = profile
        self.torch_s = {TORCH_CUT: 5e-3, SMALL_CUT: 5e-3}

    def iterate(self, count: int = 1) -> float:
        drift = 1 + 0.08 * math.sin(self.now_s / 7)
        pace = drift * self.chance.lognormvariate(0.0, 0.12)
        self.profile = at_pace(self.usual, pace)
        self.network = Network(1e9 / drift, 0.3e-3 * self.chance.lognormvariate(0.0, 0.3))
        took_s = super().iterate(count)
        pause_s = 0.8e-3 * len(self.order) * self.chance.lognormvariate(0.0, 0.3)  # of the processor
        self.now_s += pause_s
        return took_s + pause_s

    def of_torch(self) -> float:
        """Return the seconds of an iteration with torch's reducer."""
        took_s = self.torch_s[self.control.cut] * self.chance.lognormvariate(0.0, 0.12)
        self.now_s += took_s
        return took_s


def trained_with_turns(job: Restless, agent: ModuleAgent, until_s: float) -> None:
    """Train with four turns of the agent a second, until torch's reducer has the module for good or time is over."""
    turn_s, taken = job.now_s, 0
    while job.control.turns[-1:] != [FOR_GOOD] and job.now_s < until_s:
        if len(job.control.turns) > taken:
            taken += 1
            ends = [IterationEnd(job.control.cut, TORCH, job.of_torch()) for _ in range(job.control.turns[-1])]
            job.iterations += ends
        job.iterate()
        if job.now_s >= turn_s:
            turn_s += 0.25
            assert agent.turn(job.now_s)


class Distant(Job):
    """Job whose operations are delayed, and then take up the wire one after another.

    `message_s` is what each costs the processor besides, which nothing measures. `registered`: which gradient of the
    profile is at each place of the arena, where that is not its own.
    """

    def __init__(
        self, network: Network, profile: Profile, message_s: float = 0.0, registered: Sequence[int] | None = None
    ) -> None:
        total = profile.total_bytes
        super().__init__(network, learning_cut(total, learning_sizes(total, network.ack_delay_s)), profile)
        self.message_s = message_s
        self.registered = registered or range(len(self.sizes))
        self.sizes = [profile.gradients[number].size_bytes for number in self.registered]
        order = backward_order(len(self.blocks_under(self.cut)))
        self.held = Decision(self.cut, order, at_once=MOST_AT_ONCE, unordered=True)
        self.had: list[tuple[Cut, float]] = []
        """The cut of each iteration, and the seconds it took."""

    @property
    def decision(self) -> Decision:
        return self.held

    def carried(self, there_s: Sequence[float], sizes: Sequence[int]) -> tuple[list[float], list[float]]:
        """Return by place the seconds at which each block is issued and is back. `there_s`: when it is there."""
        issued_s, back_s = [0.0] * len(sizes), [0.0] * len(sizes)
        ends_s, issue_s = [0.0] * self.held.at_once, 0.0
        for place in self.held.order:
            issue_s = issued_s[place] = max(issue_s, there_s[place], ends_s[-self.held.at_once])
            begin_s = max(issue_s + self.network.ack_delay_s, ends_s[-1])
            ends_s.append(begin_s + self.network.transfer_s(sizes[place]))
            back_s[place] = ends_s[-1]
        return issued_s, back_s

    def iterate(self, count: int = 1) -> float:
        if self.control.decisions and self.control.decisions[-1] != self.held:
            self.held = self.control.decisions[-1]
            self._take(self.held.cut, self.held.order)
        blocks = self.blocks_under(self.cut)
        owners = [[self.registered[piece.gradient] for piece in block.pieces] for block in blocks]
        there_s = [max(self.profile.gradients[number].generation_s for number in each) for each in owners]
        issued_s, back_s = self.carried(there_s, [block.size_bytes for block in blocks])
        for place in self.held.order:
            block = blocks[place]
            self.log.added(block.id, block.size_bytes, self.now_s + there_s[place])
            self.log.started(block.id, block.size_bytes, self.now_s + issued_s[place])
            self.log.finished(block.id, block.size_bytes, self.now_s + back_s[place])
        whole_s = [0.0] * len(self.sizes)
        for own, end_s in zip(owners, back_s, strict=True):
            for number in own:
                whole_s[number] = max(whole_s[number], end_s)
        took_s = self.profile.backward_s
        self.log.round_ended(self.now_s + took_s)
        for gradient, end_s in zip(self.profile.gradients, whole_s, strict=True):
            took_s = max(took_s, end_s) + gradient.forward_s
        took_s += self.message_s * len(blocks)
        self.waits.iteration(False)
        self.now_s += took_s
        self.iterations.append(IterationEnd(self.cut, self.way, took_s))
        self.had.append((self.cut, took_s))
        return took_s


class Bursts(Distant):
    """Job whose operations send halves, the first after most of the delay: those under way wait for it together."""

    late_s = 0.0
    """Seconds that the block generated last waited for its turn, in the newest iteration."""

    def carried(self, there_s: Sequence[float], sizes: Sequence[int]) -> tuple[list[float], list[float]]:
        first_s, second_s = 0.8 * self.network.ack_delay_s, 0.2 * self.network.ack_delay_s
        issued_s, back_s = [0.0] * len(sizes), [0.0] * len(sizes)
        halves: list[tuple[float, int, int]] = []
        order, under_way, now, free_s = list(self.held.order), 0, 0.0, 0.0
        while order or halves:
            issue_s = max(now, there_s[order[0]]) if order and under_way < self.held.at_once else math.inf
            if not halves or issue_s < halves[0][0]:
                now = issued_s[order[0]] = issue_s
                heapq.heappush(halves, (now + first_s, 0, order.pop(0)))
                under_way += 1
                continue
            now, half, place = heapq.heappop(halves)
            if half == 2:
                back_s[place] = now
                under_way -= 1
                continue
            free_s = max(free_s, now) + self.network.transfer_s(sizes[place]) / 2
            heapq.heappush(halves, (free_s + (0.0 if half else second_s), half + 1, place))
        last = max(range(len(sizes)), key=there_s.__getitem__)
        self.late_s = issued_s[last] - there_s[last]
        return issued_s, back_s
