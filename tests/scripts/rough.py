"""A rough ride for a script under Prophet over DistributedDataParallel: a slow network, and decisions all the time.

Rule of this file: what makes a missing wait show, put in from outside. It is imported before a script starts, in its
process. Averages take longer than the compute beside them, by a different time on each rank; every other round all
ranks are given another cut and another order of blocks, by chance, in two phases where they can be; and now and then
torch's own reducer has a turn of a few iterations. rough_counts.py says what Prophet did.
"""

from __future__ import annotations

import os
import queue
import random
import threading
import time
from collections.abc import Callable
from typing import Any

import torch
from rough_counts import count

from prophet_ddp import agent, control
from prophet_ddp.comm_hooks import HeldGroup
from prophet_ddp.control import Decision
from prophet_ddp.issuer import RankGroups
from prophet_ddp.rounds import ModuleRounds
from prophet_ddp.turns import Turns
from prophet_scheduler.core.cut import Cut
from prophet_scheduler.frontends.torch.slot import Slot
from prophet_scheduler.frontends.torch.updates import Updates

OPERATION_S = 0.001
BYTES_PER_S = 20e6
SIZES = (512, 4096, 20_000, 1 << 20)
"""Sizes of the largest block, in bytes; a decision takes one of them."""

TWO_PHASES = 0.5
"""Probability that a decision has two phases, where rounds may have them."""
TURNS = 0.2
"""Probability, in a round, that a turn of torch's reducer is wanted."""
BUCKET_BYTES = 4096
"""Size of its buckets in half of the turns."""
MOST_TURN = 3


class _SlowWork:
    """torch's Work of an operation that waits for the wire."""

    def __init__(self) -> None:
        self.future: torch.futures.Future[Any] = torch.futures.Future()

    def get_future(self) -> torch.futures.Future[Any]:
        return self.future


class _Wire:
    """Wire of one group: one operation at a time, each after some time of this rank's own."""

    def __init__(self) -> None:
        self._waiting: queue.SimpleQueue[tuple[Callable[[], Any], int, _SlowWork] | None] = queue.SimpleQueue()
        self._chance = random.Random(int(os.environ.get("RANK", "0")))
        threading.Thread(target=self._run, daemon=True).start()

    def put(self, start: Callable[[], Any], size_bytes: int) -> _SlowWork:
        work = _SlowWork()
        self._waiting.put((start, size_bytes, work))
        return work

    def end(self) -> None:
        self._waiting.put(None)

    def _run(self) -> None:
        while (taken := self._waiting.get()) is not None:
            start, size_bytes, work = taken
            time.sleep((OPERATION_S + size_bytes / BYTES_PER_S) * self._chance.random())
            try:
                start().wait()
            except Exception as error:
                work.future.set_exception(error)
            else:
                count("operations")
                work.future.set_result(None)
            del taken, start, work


def _slow(name: str) -> None:
    original = getattr(RankGroups, name)

    def slow(self: Any, *args: Any) -> _SlowWork:
        wire: _Wire = vars(self).setdefault("wire", None) or _Wire()
        self.wire = wire
        return wire.put(lambda: original(self, *args), args[0].nbytes)

    setattr(RankGroups, name, slow)


def _slow_buckets() -> None:
    """Slow down the collectives of hooks, which have lanes of their own."""
    original, chance = HeldGroup.begin, random.Random(int(os.environ.get("RANK", "0")))

    def begin(self: Any) -> None:
        time.sleep(4 * OPERATION_S * chance.random())
        original(self)

    HeldGroup.begin = begin  # type: ignore[method-assign]


def _end_wires() -> None:
    original: Any = vars(RankGroups)["close"]

    def close(self: Any) -> None:
        if "wire" in vars(self):
            self.wire.end()
        original(self)

    RankGroups.close = close  # type: ignore[method-assign]


def _by_chance(rounds: ModuleRounds, chance: random.Random) -> Decision:
    layout = rounds.layout
    cut = layout.cut if layout.buckets is not None else Cut.uniform(chance.choice(SIZES))
    assert cut is not None
    two = rounds.divisible and chance.random() < TWO_PHASES
    count = len(layout.blocks_under(layout.division(cut).cut if two else cut))
    order, gathers = (tuple(chance.sample(range(count), count)) for _ in range(2))
    return Decision(cut, order, gathers=gathers if two else ())


def _decide_often() -> None:
    vars(control)["RECUT_ROUNDS"] = 2
    original: Any = vars(ModuleRounds)["_end"]
    chance, turns = random.Random(1), random.Random(2)

    def end(self: Any) -> None:
        if self.channel.control.rank == 0 and self.layout.cut is not None:
            self.channel.control.want(_by_chance(self, chance))
            if turns.random() < TURNS and self.turns is not None and self.turns.possible:
                self.channel.control.want_turn(turns.randint(1, MOST_TURN), turns.choice((0, BUCKET_BYTES)))
        original(self)

    take_up: Any = vars(ModuleRounds)["_take_up"]

    def counted(self: Any, decision: Decision) -> None:
        take_up(self, decision)
        count("decisions")
        count("in two phases", self.layout.phases is not None)

    ModuleRounds._end = end  # type: ignore[method-assign]
    ModuleRounds._take_up = counted  # type: ignore[method-assign]


def _count_turns() -> None:
    # Chance decides when there is a turn, and not the time that iterations take.
    vars(agent)["_other_ways"] = lambda *_: ()
    original: Any = vars(Turns)["_begin"]

    def begin(self: Any, *args: Any) -> None:
        original(self, *args)
        count("turns")

    turns: Any = Turns
    turns._begin = begin


def _count_late() -> None:
    original: Any = vars(Updates)["_defer"]

    def defer(self: Any, slots: list[Slot], *args: Any, **kwargs: Any) -> None:
        original(self, slots, *args, **kwargs)
        count("late", sum(slot.life.pending for slot in slots))

    Updates._defer = defer  # type: ignore[method-assign]


_slow("all_reduce")
_slow("broadcast")
_slow("all_to_all")
_slow("all_gather")
_slow_buckets()
_end_wires()
_decide_often()
_count_turns()
_count_late()
