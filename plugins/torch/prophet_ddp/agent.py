"""The agent: a thread beside the job that learns and plans while the job runs.

Rule of this file: the edges (thread, clock, files) around pure Sessions, one for each module that this rank decides
for. Once a second an agent drains its module's events, and asks control.py for any better decision. The first rank of
a module's group decides; the agents of the other ranks only report.

A failure in here causes one warning. Blocks and their sequence then stay as they are.
"""

from __future__ import annotations

import functools
import logging
import threading
import time
import weakref
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from prophet_ddp.control import FOR_GOOD, TORCH, TORCH_WARM_UP, TWO_PHASES, UNORDERED, bucket_bytes_of
from prophet_ddp.records import Records
from prophet_ddp.rounds import ModuleRounds
from prophet_scheduler.core.events import DRAIN_S, SEEKING_S
from prophet_scheduler.forks import free_in_forks
from prophet_scheduler.frontends.ending import at_end
from prophet_scheduler.frontends.turning import TurningThread
from prophet_scheduler.watch.status import predicted_of

if TYPE_CHECKING:
    from prophet_scheduler.core.choice import Choice, Question
    from prophet_scheduler.core.cut import Cut
    from prophet_scheduler.core.network import Probe
    from prophet_scheduler.core.settings import Settings
    from prophet_scheduler.frontends.warm import WarmStart
    from prophet_scheduler.policies.algorithms.collective import CollectivePolicy
    from prophet_scheduler.session.messages import Basis, SessionTerms, Want

TORCH_AFTER = 20
"""Rounds before torch's reducer may have a turn: a job's first rounds are not typical."""
END_LIMIT_S = 5.0
"""Maximum wait at the end of the process for a turn in progress, in seconds."""

logger = logging.getLogger("prophet_scheduler")


class WatchingAgent:
    """Agent of a module that another rank decides for: it only records the module's events."""

    decided = True
    """True once the agent has requested something; until then its turns are more frequent."""

    def __init__(self, rounds: ModuleRounds) -> None:
        self._reference = weakref.ref(rounds)

    def turn(self, now: float) -> bool:
        """Read the module's events and request what they call for. Return False if the module is gone."""
        rounds = self._reference()
        if rounds is None:
            return False
        try:
            self._turn(rounds, now)
        except Exception:
            if rounds.slots:
                raise
            return False  # The program has dropped the module in the meantime, and the arena with it.
        return True

    def _turn(self, rounds: ModuleRounds, now: float) -> None:
        rounds.record.keep(rounds.log.drain())

    def end(self) -> None:
        """Stop: no turns follow."""
        rounds = self._reference()
        if rounds is not None:
            rounds.log.close()

    def leave(self) -> None:
        """Clean up when the module or the process ends."""


class ModuleAgent(WatchingAgent):
    """Agent of a module that this rank decides for. The caller passes the time.

    `adapts`: the cut may change. `warm`: results kept from the job's last run. `alone`: time of a lone operation.
    """

    def __init__(
        self,
        rounds: ModuleRounds,
        policy: CollectivePolicy,
        settings: Settings,
        adapts: bool,
        warm: WarmStart | None = None,
        alone: Probe | None = None,
    ) -> None:
        # Imported here since only one rank needs them, and they delay the start.
        from prophet_ddp.sequencing import Sequencer
        from prophet_scheduler.core.choice import Shape
        from prophet_scheduler.learn.serial import SerialMonitor
        from prophet_scheduler.policies.algorithms import merging  # noqa: F401  So that its thread imports nothing.
        from prophet_scheduler.session.messages import NOTHING_NEW, SessionTerms
        from prophet_scheduler.session.session import Session

        super().__init__(rounds)
        self._record = rounds.record
        operations = SerialMonitor(alone)
        shape = Shape(rounds.ranks, 1)
        terms = SessionTerms(settings.monitor_s, shape=shape, adapts=adapts, changes=NOTHING_NEW, sees_rounds=True)
        # Holds no reference to the agent, so both are freed with the module, without a garbage collection.
        choices = functools.partial(_choices_of, self._reference)
        self._session_under = functools.partial(Session, policy, monitor=operations, ways_of=choices)
        self._terms, self._warm = terms, warm
        self._learn(terms)
        self._sequencer = Sequencer(policy, operations, settings.monitor_s)
        self.decided = False

    def _learn(self, terms: SessionTerms) -> None:
        """Start learning under these terms."""
        self.session = self._record.learner = self._session_under(terms=terms)
        assert self.session.choosing is not None
        self._choosing = self.session.choosing
        self._adapts = terms.adapts

    def turn(self, now: float) -> bool:
        """Take a turn as any agent does. Each round's start and end have a turn while it looks for something better."""
        alive = super().turn(now)
        rounds = self._reference()
        if rounds is not None:
            rounds.pace.on_round = None if self._choosing.at_rest else agents.thread.wake
        return alive

    def leave(self) -> None:
        """Keep the learned values for the next start, when the module or the process ends."""
        if self._warm is not None:
            self._warm.keep(self.session.learned(self._record.cut))

    def _turn(self, rounds: ModuleRounds, now: float) -> None:
        from prophet_scheduler.session.messages import Basis, Turn, Want

        decision = rounds.layout.in_force  # Read once: another thread swaps it.
        if self._adapts and rounds.layout.buckets is not None:  # The program has since registered a hook.
            self._warm = None
            self._learn(replace(self._terms, adapts=False))
        session = self.session
        if self._warm is not None and decision is not None:
            self._keep(rounds, self._warm, decision.cut, now)
        events = rounds.log.drain()
        rounds.record.keep(events)
        turn = Turn(
            now,
            events,
            cut=decision.cut if decision is not None else None,
            way=decision.way if decision is not None else UNORDERED,
            divided=decision is not None and decision.way == TWO_PHASES,
            # Nothing else can take effect during a turn of torch's reducer: its iterations are reported afterwards.
            ended=() if rounds.resting else rounds.pace.take_iterations(),
            forward_ends=rounds.log.drain_forward_ends(),
            round_ends=rounds.log.round_ends,
            barrier=rounds.record.barrier,
            ways=_other_ways(rounds) if self._adapts else (),
            pace=rounds.channel.control.pace,
        )
        want = next((each for each in session.on(turn) if isinstance(each, Want)), None)
        rounds.record.kept_was_dropped = session.kept_was_dropped
        if decision is None:
            return
        checks = want is None and session.profiler.ready and self._choosing.look is None
        if want is None and not (checks and self._sequencer.is_due(decision.cut, now, self._choosing.at_rest)):
            return  # Estimates cost milliseconds of a busy core, so make them only where they are used.
        # In a cut's first rounds this is the previous cut's profile, which is good enough for any blocks of this arena.
        profile, network = session.estimates.newest()
        if network is None or profile is None:
            return
        basis = Basis(profile, network, session.profiler.jitter_s, turn.barrier)
        self._sequencer.judged_at = now
        if want is not None:
            self._want(rounds, want, decision.cut, basis)
        elif (better := self._sequencer.better(rounds.layout, decision, basis)) is not None:
            rounds.channel.control.want(better)

    def _keep(self, rounds: ModuleRounds, warm: WarmStart, cut: Cut, now: float) -> None:
        """Start where the job's last run ended, once the gradients are known. Keep a cut that has stayed in force."""
        from prophet_scheduler.session.messages import Basis, Remembered

        if not warm.asked:
            warm.first_cut(rounds.layout.sizes)
            kept = warm.take()
            if kept is not None:
                self.session.on(Remembered(kept))
                self._record.began_warm = True
                if kept.cut is not None and kept.network is not None:
                    basis = Basis(kept.profile, kept.network, self.session.profiler.jitter_s)
                    rounds.channel.control.want(self._sequencer.decide(rounds.layout, kept.cut, False, basis))
        warm.turn(now, cut, self.session.learned)

    def _want(self, rounds: ModuleRounds, want: Want, cut: Cut, basis: Basis) -> None:
        """Request this from all ranks, and record why. `cut` is the one in force."""
        from prophet_scheduler.policies.algorithms.stock import stock_iteration_s  # Only one rank needs it.

        session, turns = self.session, rounds.turns
        stock_s = stock_iteration_s(basis.profile, basis.network, rounds.ranks)
        rounds.record.planned(session.plan, session.why, predicted_of(session.wanted, stock_s))
        rounds.record.planned_from = basis.profile
        self.decided = True
        if want.way != TORCH:
            divides = want.way == TWO_PHASES
            rounds.channel.control.want(self._sequencer.decide(rounds.layout, want.cut or cut, divides, basis))
            return
        if want.iterations and turns is not None and turns.possible:
            for_good = self._choosing.proved and not session.estimates.unsure
            if for_good:
                turns.believed = self._choosing.believed()
            iterations = FOR_GOOD if for_good else TORCH_WARM_UP + want.iterations
            rounds.channel.control.want_turn(iterations, bucket_bytes_of(want.cut))


def _other_ways(rounds: ModuleRounds) -> tuple[str, ...]:
    """Return the ways that are possible now, besides all-reduces of blocks in a chosen order.

    torch's reducer gets a turn only after such all-reduces: before, it could only be compared with a prediction.
    """
    two_phases = rounds.record.asks.holds and rounds.divisible
    begun = rounds.layout.way != UNORDERED and rounds.pace.ended >= TORCH_AFTER
    torch = begun and rounds.turns is not None and rounds.turns.possible
    return (TWO_PHASES,) * two_phases + (TORCH,) * torch


def _choices_of(reference: weakref.ref[ModuleRounds], question: Question, ways: Sequence[str]) -> Sequence[Choice]:
    """Return the choices for these ways, with their predicted times; none if the module is gone."""
    from prophet_ddp.sequencing import torch_reducer, two_phases

    rounds = reference()
    if rounds is None or not rounds.slots:
        return ()
    choices = list(torch_reducer(question)) if TORCH in ways else []
    if TWO_PHASES in ways:
        choices += two_phases(question, rounds.layout)
    return choices


class Agents:
    """Agents of all modules, and their thread."""

    def __init__(self) -> None:
        self._lock = free_in_forks(threading.Lock())
        self._modules: list[WatchingAgent] = []
        self.thread = TurningThread(self._turn, self._pause_s, self._failed)
        self._over = False

    def add(self, agent: WatchingAgent) -> None:
        """Give this agent turns from now on; end it at once if learning has failed."""
        with self._lock:
            if self._over:
                agent.end()
                return
            self._modules.append(agent)
        if not self.thread.started:
            self.thread.start()
            at_end(self._end)

    def _end(self) -> None:
        """Stop the thread when the process ends: the interpreter must not go away while the thread runs."""
        if self.thread.end(END_LIMIT_S) and not self._over:
            for agent in self._modules:
                agent.leave()

    def _failed(self, error: Exception) -> None:
        logger.warning(
            "Prophet has stopped learning: %s: %s; blocks and their order stay as they are", type(error).__name__, error
        )
        with self._lock:
            self._over = True
            for agent in self._modules:
                agent.end()

    def _pause_s(self) -> float:
        with self._lock:
            return DRAIN_S if all(agent.decided for agent in self._modules) else SEEKING_S

    def _turn(self) -> None:
        with self._lock:
            modules = list(self._modules)
        gone = [agent for agent in modules if not agent.turn(time.monotonic())]
        for agent in gone:
            agent.leave()
        with self._lock:
            for agent in gone:
                self._modules.remove(agent)


agents = Agents()
"""Agents of this process."""
records = Records(agents.thread)
"""Records of this process."""
