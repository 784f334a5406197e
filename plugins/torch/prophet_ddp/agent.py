"""The agent: learns and plans while the job runs, in one thread beside it.

Rule of this file: the edges (thread, clock, files) around a pure Learner, one for each module whose blocks this rank
decides about. Once a second it drains the module's events and, where there is something better, tells control.py what
is wanted. The first rank of a module's group decides, so the others have no agent.

A failure in here is one warning, and from then on blocks and their sequence stay as they are.
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
import time
import weakref
from typing import Protocol

from prophet.core.arena import generations_at
from prophet.core.choice import Shape
from prophet.core.cut import Block, Cut
from prophet.core.events import DRAIN_S
from prophet.core.network import Network
from prophet.core.profile import GradientProfile, Profile
from prophet.core.settings import Settings
from prophet.learn.judge import MANY_RECUTS
from prophet.learn.learner import Learner
from prophet.learn.serial import SerialMonitor
from prophet.policies.algorithms.collective import CollectivePolicy
from prophet.policies.algorithms.sequence import IssueOrder, iteration_s, make_sequence, play_sequence
from prophet_ddp.control import Decision
from prophet_ddp.rounds import ModuleRounds

BETTER = 0.005
"""A sequence is changed for one that is predicted to save this share of the iteration."""

FIRST_DRAIN_S = 0.25
"""Between two turns until a module has its first decision: it began with blocks that nobody chose."""
END_LIMIT_S = 5.0
"""How long the end of the process waits for a turn under way."""

logger = logging.getLogger("prophet")


class ModuleAgent:
    """One module's. `adapts`: its cut may change. Time comes with the call."""

    def __init__(self, rounds: ModuleRounds, policy: CollectivePolicy, settings: Settings, adapts: bool) -> None:
        self._reference = weakref.ref(rounds)
        self._policy = policy
        self._monitor_s = settings.monitor_s
        self.learner = Learner(
            policy,
            settings.monitor_s,
            shape=Shape(rounds.ranks, 1),
            adapts=adapts,
            recuts=MANY_RECUTS,
            monitor=SerialMonitor(),
        )
        rounds.record.learner = self.learner
        self._judged_at = -float("inf")
        self._seen: tuple[Cut | None, tuple[int, ...]] = None, ()
        self.decided = False

    def end(self) -> None:
        """No more turns will come."""
        rounds = self._reference()
        if rounds is not None:
            rounds.log.close()

    def turn(self, now: float) -> bool:
        """Takes in what happened, and says what is wanted. False where the module is gone."""
        rounds = self._reference()
        if rounds is not None:
            self._turn(rounds, now)
        return rounds is not None

    def _turn(self, rounds: ModuleRounds, now: float) -> None:
        cut, order = rounds.cut, rounds.order
        if self._seen[0] == cut and self._seen[1] != order:
            self.learner.reordered(now)
        self._seen = cut, order
        events = rounds.log.drain()
        rounds.record.keep(events)
        plan = self.learner.turn(now, events, None, cut=cut)
        network = self.learner.monitor.network
        # In the first rounds under another cut that of the former one, which says enough of any blocks of this arena.
        profile = self.learner.profiler.latest
        if cut is None or network is None or profile is None:
            return
        if plan is not None:
            self._judged_at = now
            rounds.record.planned(plan, self.learner.why)
            self.decided = True
            wanted = plan.cut if plan.cut is not None else cut
            rounds.control.want(Decision(wanted, self._sequence(rounds, wanted, profile, network).order))
        elif now - self._judged_at >= self._monitor_s and self.learner.profiler.ready:
            self._judged_at = now
            self._look_again(rounds, cut, profile, network)

    def _sequence(self, rounds: ModuleRounds, cut: Cut, profile: Profile, network: Network) -> IssueOrder:
        blocks = profile_of(rounds.blocks_under(cut), profile)
        return make_sequence(blocks, network, self._policy.plan(blocks, network, self.learner.profiler.jitter_s))

    def _look_again(self, rounds: ModuleRounds, cut: Cut, profile: Profile, network: Network) -> None:
        """Whether another sequence of the same blocks is better by now."""
        blocks = profile_of(rounds.blocks_under(cut), profile)
        order = rounds.order
        if len(order) != len(blocks.gradients):
            return  # It was cut anew meanwhile.
        other = self._sequence(rounds, cut, profile, network)
        present = play_sequence(blocks, network, order)
        if iteration_s(blocks, other) < iteration_s(blocks, present) * (1 - BETTER):
            rounds.control.want(Decision(cut, other.order))


def profile_of(blocks: list[Block], profile: Profile) -> Profile:
    """What is known of these blocks from a profile of others of the same arena.

    A block is generated when the place is at which it begins; forward times go with the bytes.
    """
    generations = generations_at(profile, [block.id for block in blocks])
    forward_s = profile.forward_s / profile.total_bytes
    rows = [
        GradientProfile(f"block{block.id}", block.size_bytes, generation_s, forward_s * block.size_bytes)
        for block, generation_s in zip(blocks, generations, strict=True)
    ]
    return Profile(profile.name, tuple(rows), tuple(block.id for block in blocks))


class Turning(Protocol):
    """What looks after one module."""

    def turn(self, now: float) -> bool:
        """Takes in what happened, and says what is wanted. False where the module is gone."""
        ...

    @property
    def decided(self) -> bool:
        """Whether it has said what is wanted; until then it is looked at more often."""
        ...

    def end(self) -> None:
        """No more turns will come."""
        ...


class Agents:
    """The thread, and the modules it looks after."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._modules: list[Turning] = []
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._pid = 0
        self._over = False
        self.busy_s = 0.0

    def add(self, agent: Turning) -> None:
        """From now on it has its turns."""
        with self._lock:
            if self._over:
                agent.end()
                return
            self._modules.append(agent)
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="prophet-agent", daemon=True)
            self._thread.start()
            self._pid = os.getpid()
            atexit.register(self._end)

    def _end(self) -> None:
        """At the end of the process, which must not take the interpreter away from a thread at work."""
        if self._thread is not None and os.getpid() == self._pid:
            self._stop.set()
            self._thread.join(END_LIMIT_S)

    def _run(self) -> None:
        while not self._stop.wait(self._pause_s()):
            before = time.thread_time()
            try:
                self._turn()
            except Exception as error:
                logger.warning(
                    "Prophet learns no more: %s: %s; blocks and their order stay as they are",
                    type(error).__name__,
                    error,
                )
                with self._lock:
                    self._over = True
                    for agent in self._modules:
                        agent.end()
                return
            finally:
                self.busy_s += time.thread_time() - before

    def _pause_s(self) -> float:
        with self._lock:
            return DRAIN_S if all(agent.decided for agent in self._modules) else FIRST_DRAIN_S

    def _turn(self) -> None:
        with self._lock:
            modules = list(self._modules)
        gone = [agent for agent in modules if not agent.turn(time.monotonic())]
        with self._lock:
            for agent in gone:
                self._modules.remove(agent)
