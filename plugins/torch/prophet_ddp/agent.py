"""The agent: it learns and plans while the job runs, in one thread beside it.

Rule of this file: the edges (thread, clock, files) around a pure Learner, one for each module whose blocks this rank
decides about. Once a second it drains the module's events. If there is something better, it tells control.py. The first
rank of a module's group decides; the agents of the others only report.

A failure in here is one warning, and from then on blocks and their sequence stay as they are.
"""

from __future__ import annotations

import functools
import itertools
import logging
import threading
import time
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

from prophet_ddp.control import Decision
from prophet_ddp.rounds import ModuleRounds
from prophet_ddp.terms import FOR_GOOD, TORCH, TORCH_WARM_UP, TWO_PHASES
from prophet_scheduler.core.arena import completions_at, generations_at
from prophet_scheduler.core.cut import Block, Cut
from prophet_scheduler.core.events import DRAIN_S, SEEKING_S, EventKind
from prophet_scheduler.core.network import Network, Probe
from prophet_scheduler.core.profile import GradientProfile, Profile
from prophet_scheduler.core.settings import Settings
from prophet_scheduler.forks import free_in_forks
from prophet_scheduler.frontends.ending import at_end
from prophet_scheduler.frontends.turning import TurningThread
from prophet_scheduler.policies.algorithms.sequence import (
    MOST_AT_ONCE,
    IssueOrder,
    iteration_s,
    make_sequence,
    operations_at_once,
    play_sequence,
)
from prophet_scheduler.watch.status import predicted_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from prophet_scheduler.core.choice import Choice, Question
    from prophet_scheduler.frontends.warm import WarmStart
    from prophet_scheduler.learn.choosing import MoreChoices
    from prophet_scheduler.learn.kept import Kept
    from prophet_scheduler.learn.tuner import Look
    from prophet_scheduler.policies.algorithms.collective import CollectivePolicy

TORCH_AFTER = 20
"""Rounds before torch's reducer may have a turn, since a job's first rounds differ from the rest."""
BETTER = 0.005
"""Minimum predicted saving of another sequence, as a share of the iteration."""
END_LIMIT_S = 5.0
"""Maximum wait for a turn under way at the end of the process, in seconds."""

logger = logging.getLogger("prophet_scheduler")


class WatchingAgent:
    """Agent of a module about whose blocks another rank decides: it only records the module's events."""

    decided = True

    def __init__(self, rounds: ModuleRounds) -> None:
        self._reference = weakref.ref(rounds)

    def turn(self, now: float) -> bool:
        """Take in the module's events and say what is wanted. Return False if the module is gone."""
        rounds = self._reference()
        if rounds is None:
            return False
        try:
            self._turn(rounds, now)
        except Exception:
            if rounds.slots:
                raise
            return False  # The program dropped the module meanwhile, and the arena with it.
        return True

    def _turn(self, rounds: ModuleRounds, now: float) -> None:
        rounds.record.keep(rounds.log.drain())

    def end(self) -> None:
        """Stop: no more turns will come."""
        rounds = self._reference()
        if rounds is not None:
            rounds.log.close()

    def leave(self) -> None:
        """Do nothing at the end of the module or the process."""


class ModuleAgent(WatchingAgent):
    """Agent of a module about whose blocks this rank decides. Time comes with the call.

    `adapts`: its cut may change. `warm`: results kept of the job's last run. `alone`: time of one operation by itself.
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
        # Only one of all ranks needs it, and it delays the start.
        from prophet_ddp import ways  # noqa: F401
        from prophet_scheduler.core.choice import Shape
        from prophet_scheduler.learn.choosing import NOTHING_NEW
        from prophet_scheduler.learn.learner import Learner
        from prophet_scheduler.learn.serial import SerialMonitor
        from prophet_scheduler.policies.algorithms import merging  # noqa: F401  Its thread is to import nothing.

        super().__init__(rounds)
        self._record = rounds.record
        self._warm = warm
        self._kept: Kept | None = None
        self._policy = policy
        self._monitor_s = settings.monitor_s
        self._adapts = adapts
        self._operations = SerialMonitor(alone)
        self.learner = Learner(
            policy,
            settings.monitor_s,
            shape=Shape(rounds.ranks, 1),
            adapts=adapts,
            changes=NOTHING_NEW,
            monitor=self._operations,
        )
        rounds.record.learner = self.learner
        self._judged_at = -float("inf")
        self._looked_at: Cut | None = None
        """The cut whose sequence was checked since it came into force."""
        self._barrier = False
        self._ways: tuple[str, ...] = ()
        """Ways besides the usual one that are possible now; `_more` predicts their times."""
        self._more: MoreChoices | None = None
        self._look: Look | None = None
        """The last look taken up."""
        self._divided_before = False
        self._ranks: tuple[Cut | None, Mapping[int, int]] = None, {}
        self.decided = False
        self.hurry: Callable[[], None] | None = None
        """Call it to have the next turn at once."""

    def turn(self, now: float) -> bool:
        """Take a turn as any agent. While something better is looked for, the next turn comes with the next round."""
        alive = super().turn(now)
        rounds = self._reference()
        if rounds is not None:
            rounds.on_round = None if self.learner.at_rest else self.hurry
        return alive

    def leave(self) -> None:
        """Keep the learned values for the next start, at the end of the module or the process."""
        if self._warm is not None:
            learner = self.learner
            self._warm.keep(self._record.cut, learner.profiler.latest, learner.network, learner.known)

    def _begin_warm(self, rounds: ModuleRounds, warm: WarmStart) -> None:
        """Begin where the last run of the job ended, once the gradients are known."""
        sizes, _ = rounds.layout
        warm.first_cut(sizes)
        kept = self._kept = warm.take()
        if kept is None:
            return
        self.learner.begin_with(kept)
        self._record.began_warm = True
        if kept.cut is not None and kept.network is not None:
            sequence = self._sequence(rounds, kept.cut, kept.profile, kept.network)
            rounds.control.want(sequence.decision(kept.network))

    def _turn(self, rounds: ModuleRounds, now: float) -> None:
        cut, way = rounds.cut, rounds.way
        if rounds.divided != self._divided_before:
            self._divided_before = rounds.divided
            self.learner.profiler.restart()  # Its blocks have other ids from here on.
        warm = self._warm
        if warm is not None and cut is not None:
            if not warm.asked:
                self._begin_warm(rounds, warm)
            learner = self.learner
            warm.turn(now, cut, lambda: (learner.profiler.latest, learner.network, learner.known))
        events = rounds.log.drain()
        rounds.record.keep(events)
        self.learner.profiler.forward_ended(rounds.log.drain_forward_ends())
        self._barrier = rounds.waits.holds or rounds.asks_norms.holds
        if rounds.divided:
            # Times of operations measure the network only if these are all-reduces.
            events = events[events["kind"] != EventKind.START]
        ways = self._other_ways(rounds) if self._adapts else ()
        if ways != self._ways:
            self._ways, self._more = ways, functools.partial(self._choices_of, ways)
        plan = self.learner.turn(
            now,
            events,
            None,
            cut=cut,
            barrier=self._barrier,
            way=way,
            pace=rounds.control.pace,
            # During a turn of torch's reducer nothing else can take effect: a look has its whole length.
            ended=() if rounds.resting else rounds.take_ended(),
            more=self._more,
        )
        if self._kept is not None:
            rounds.record.kept_was_dropped = self.learner.kept_was_dropped
        step, self._look = self._look, self.learner.look
        anew = plan is not None or (self._look is not None and self._look is not step)
        if cut is None or not (anew or (self.learner.profiler.ready and self._due(cut, now))):
            return  # Estimates take milliseconds of a core that computes, so they are made only where used.
        network = self.learner.network
        # In the first rounds of a cut this is the former cut's profile, good enough for any blocks of this arena.
        profile = self.learner.profile
        if self._kept is not None:
            network, profile = network or self._kept.network, profile or self._kept.profile
        if network is None or profile is None:
            return
        self._judged_at = now
        if not anew:
            self._looked_at = cut
            self._look_again(rounds, cut, profile, network)
            return
        from prophet_scheduler.policies.algorithms.stock import stock_iteration_s  # Of all ranks one needs it.

        wanted = self.learner.wanted
        stock_s = stock_iteration_s(profile, network, collectives=True)
        rounds.record.planned(self.learner.plan, self.learner.why, predicted_of(wanted, stock_s))
        rounds.record.planned_from = profile
        self.decided = True
        if wanted is not None and wanted.way == TORCH:
            if self._look is not None and rounds.turns is not None and rounds.turns.possible:
                for_good = self.learner.proved
                if for_good:
                    rounds.turns.believed = self.learner.believed()
                rounds.control.want_turn(FOR_GOOD if for_good else TORCH_WARM_UP + self._look.iterations)
            return
        divides = wanted is not None and wanted.way == TWO_PHASES
        held = wanted.cut if wanted is not None else cut
        rounds.control.want(self._decision(rounds, held, profile, network, divides))

    def _other_ways(self, rounds: ModuleRounds) -> tuple[str, ...]:
        """Return the ways that are possible now besides all-reduces of blocks."""
        two_phases = rounds.asks_norms.holds and rounds.divisible
        torch = rounds.ended >= TORCH_AFTER and rounds.turns is not None and rounds.turns.possible
        return (TWO_PHASES,) * two_phases + (TORCH,) * torch

    def _choices_of(self, ways: Sequence[str], question: Question) -> Sequence[Choice]:
        """Return the choices of these ways, with their predicted times."""
        from prophet_ddp.ways import torch_reducer, two_phases

        rounds = self._reference()
        if rounds is None or not rounds.slots:
            return ()
        phases = two_phases(question, rounds.division) if TWO_PHASES in ways else ()
        return [*phases, *([torch_reducer(question)] if TORCH in ways else ())]

    def _decision(self, rounds: ModuleRounds, cut: Cut, profile: Profile, network: Network, divides: bool) -> Decision:
        """Return the decision for blocks of this cut, on a network with their recent pace."""
        if divides:
            return self._divided(rounds, cut, profile, network)
        return self._sequence(rounds, cut, profile, self._as_paced(cut, network)).decision(network)

    def _divided(self, rounds: ModuleRounds, cut: Cut, profile: Profile, network: Network) -> Decision:
        from prophet_ddp.phases import AT_ONCE, in_gaps, orders_of

        division = rounds.division(cut)
        sequence = self._blocks(rounds, division.cut, profile)
        rows = zip(sequence.profile.gradient_ids, sequence.profile.gradients, strict=True)
        ready_s = {id_: gradient.generation_s for id_, gradient in rows}
        blocks = rounds.blocks_under(division.cut)
        ready = [ready_s[block.id] for block in blocks]
        rate, ranks = network.bandwidth, rounds.ranks
        order, gathers = orders_of(blocks, division.owners, ready, sequence.as_needed, rate, ranks, AT_ONCE)
        at_once = AT_ONCE * ranks
        if not division.owners:  # A step is to its part what an all-reduce is to its block.
            size_bytes = sequence.profile.total_bytes / len(blocks)
            at_once = max(ranks - 1, operations_at_once(network, size_bytes, MOST_AT_ONCE))
            gathers, early = in_gaps(blocks, order, ready, gathers, 2 * rate)
            return Decision(cut, order, at_once=at_once, gathers=gathers, early=early)
        return Decision(cut, order, at_once=at_once, gathers=gathers)

    def _due(self, cut: Cut, now: float) -> bool:
        """Return True if it is time to check the sequence again: once when the pace of another cut's blocks is known,
        and then now and then.

        It is not while another arm is wanted, since the ranks would take up the sequence instead. It is not before the
        last sequence is measured either: a cut whose sequence changed every few iterations would never be measured, and
        never be left.
        """
        if self._look is not None:
            return False
        later = now - self._judged_at >= self._monitor_s
        if cut == self._looked_at:
            return later and self.learner.at_rest
        return later or self._pace_s(cut) is not None

    def _pace_s(self, cut: Cut) -> float | None:
        """Return seconds from one block to the next, if they have one size and enough have come lately; else None."""
        return self._operations.pace_s(cut.block_bytes_at(0)) if len(cut.segments) == 1 else None

    def _as_paced(self, cut: Cut, network: Network) -> Network:
        """Return the network with the bandwidth that matches the recent pace of this cut's blocks."""
        pace_s, size_bytes = self._pace_s(cut), cut.block_bytes_at(0)
        if pace_s is None or pace_s <= network.overhead_s:
            return network
        return replace(network, bandwidth=size_bytes / (pace_s - network.overhead_s))

    def _sequence(self, rounds: ModuleRounds, cut: Cut, profile: Profile, network: Network) -> BlockSequence:
        sequence = self._blocks(rounds, cut, profile)
        jitter_s = self.learner.profiler.jitter_s
        plan = self._policy.ordered(sequence.profile, network, jitter_s, barrier=self._barrier)
        return replace(sequence, issued=make_sequence(sequence.profile, network, plan))

    def _blocks(self, rounds: ModuleRounds, cut: Cut, profile: Profile) -> BlockSequence:
        blocks = rounds.blocks_under(cut)
        if self._policy.learns_order:
            from prophet_scheduler.learn.ranks import ranks_under

            before = self._ranks[1] if self._ranks[0] == cut else {}
            self._ranks = cut, ranks_under(blocks, profile, before)
        return BlockSequence(cut, tuple(block.id for block in blocks), profile_of(blocks, profile, self._ranks[1]))

    def _look_again(self, rounds: ModuleRounds, cut: Cut, profile: Profile, network: Network) -> None:
        """Want another sequence of the same blocks if it is better by now, or if the delay has changed."""
        held = rounds.decision
        if held is None or held.cut != cut:
            return  # It was cut anew meanwhile.
        if held.gathers:
            return  # In two phases both orders depend on owners more than on times.
        paced = self._as_paced(cut, network)
        other = self._sequence(rounds, cut, profile, paced)
        present = other.as_issued(held.order, paced)
        present_s, other_s = (each.iteration_s(self._barrier) for each in (present, other))
        if other_s < present_s * (1 - BETTER):
            rounds.control.want(other.decision(network))
            return
        wanted = present.decision(network)
        if abs(wanted.at_once - held.at_once) > 1:
            rounds.control.want(wanted)


@dataclass(frozen=True)
class BlockSequence:
    """A cut's blocks: `ids` by place, `profile` in the order in which forward needs them, and the order in which they
    are `issued`, by their places in that order.
    """

    cut: Cut
    ids: tuple[int, ...]
    profile: Profile
    issued: IssueOrder | None = None

    def as_issued(self, order: Sequence[int], network: Network) -> BlockSequence:
        """Return the same blocks in this `order` of their places in the arena."""
        ranks = self.profile.rank_by_id
        return replace(self, issued=play_sequence(self.profile, network, [ranks[self.ids[place]] for place in order]))

    def iteration_s(self, barrier: bool) -> float:
        """Return the predicted time of an iteration."""
        assert self.issued is not None
        return iteration_s(self.profile, self.issued, barrier)

    @property
    def as_needed(self) -> tuple[int, ...]:
        """Places of the blocks in the order in which forward needs them."""
        places = {id_: place for place, id_ in enumerate(self.ids)}
        return tuple(places[id_] for id_ in self.profile.gradient_ids)

    def decision(self, network: Network) -> Decision:
        """Return a decision with enough operations under way to keep the wire busy."""
        assert self.issued is not None
        needed = self.as_needed
        order = tuple(needed[rank] for rank in self.issued.order)
        size_bytes = self.profile.total_bytes / len(self.ids)
        return Decision(self.cut, order, at_once=operations_at_once(network, size_bytes, MOST_AT_ONCE))


def profile_of(blocks: Sequence[Block], profile: Profile, ranks: Mapping[int, int] | None = None) -> Profile:
    """Return a profile of these blocks from one of other blocks of the same arena, in the order of `ranks` (by id), or
    without ranks in that of their places.

    A block is generated when the place where it begins is; if places are not in forward order, when all of it is.
    Forward times are in proportion to bytes.
    """
    ids = [block.id for block in blocks]
    if not ranks:
        generations = generations_at(profile, ids)
    else:
        completed = dict(zip(ids, completions_at(profile, ids), strict=True))
        blocks = sorted(blocks, key=lambda block: ranks[block.id])
        times = [completed[block.id] for block in blocks]
        # Ranks were learned once, and noise must not make a less urgent block later.
        generations = list(itertools.accumulate(reversed(times), max))[::-1]
    forward_s = profile.forward_s / profile.total_bytes
    rows = [
        GradientProfile(f"block{block.id}", block.size_bytes, generation_s, forward_s * block.size_bytes)
        for block, generation_s in zip(blocks, generations, strict=True)
    ]
    return Profile(profile.name, tuple(rows), tuple(block.id for block in blocks))


class Turning(Protocol):
    """Agent of one module."""

    def turn(self, now: float) -> bool:
        """Take in the module's events and say what is wanted. Return False if the module is gone."""
        ...

    @property
    def decided(self) -> bool:
        """True once it has said what is wanted; until then its turns come more often."""
        ...

    def end(self) -> None:
        """Stop: no more turns will come."""
        ...

    def leave(self) -> None:
        """Clean up at the end of the module or the process."""
        ...


class Agents:
    """The agents of all modules, and their thread."""

    def __init__(self) -> None:
        self._lock = free_in_forks(threading.Lock())
        self._modules: list[Turning] = []
        self._thread = TurningThread(self._turn, self._pause_s, self._failed)
        self._over = False

    @property
    def busy_s(self) -> float:
        """Seconds of processor time of the agents so far."""
        return self._thread.busy_s

    def wake(self) -> None:
        """Have the next turn at once. Call it from any thread."""
        self._thread.wake()

    def add(self, agent: Turning) -> None:
        """Give this agent turns from now on."""
        with self._lock:
            if self._over:
                agent.end()
                return
            self._modules.append(agent)
        if not self._thread.started:
            self._thread.start()
            at_end(self._end)

    def _end(self) -> None:
        """End the thread at the end of the process, which must not take the interpreter from a thread at work."""
        if self._thread.end(END_LIMIT_S) and not self._over:
            for agent in self._modules:
                agent.leave()

    def _failed(self, error: Exception) -> None:
        logger.warning(
            "Prophet learns no more: %s: %s; blocks and their order stay as they are", type(error).__name__, error
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
