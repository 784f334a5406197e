"""Rounds of keyed blocks on BytePS: the part that optimizers' rounds and modules' rounds have in common.

Rule of this file: from the moment a gradient is due until its average has arrived, in the cut of all workers. rounds.py
and modules.py decide when a gradient is due, and wait for its average; blocks and names are in keyed_arena.py.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Hashable, Sequence

import torch

from prophet_byteps import hook
from prophet_byteps.cutting import CutControl
from prophet_byteps.iterations import OptimizerIterations
from prophet_byteps.torch.keyed_arena import KeyedArena, declare_names
from prophet_byteps.torch.keys import Engine
from prophet_scheduler.core.cut import Block, Cut, blocks_of, ids_taken
from prophet_scheduler.frontends.torch.arena import kinds_of, travelling_bytes
from prophet_scheduler.frontends.torch.life import STAGE, Transition
from prophet_scheduler.frontends.torch.slot import Slot
from prophet_scheduler.frontends.torch.streams import streams_of
from prophet_scheduler.frontends.torch.updates import WAIT_LIMIT_S, AverageSource

SIGHT = "its parameters are used out of sight"
"""Reason for giving up a trace."""


class KeyedRounds:
    """Rounds of `slots`, in forward order. `number` is from `engine.take_number`, `what` describes the rounds to other
    workers, and `half` is as an Arena's. `flush()` waits for everything in flight, before blocks are recut.

    What must happen at the same point of the program on all workers happens when the program wraps an optimizer, as in
    BytePS, and without waiting. Later, threads may train several models at once, and workers may begin with different
    ones.
    """

    def __init__(
        self,
        slots: Sequence[Slot],
        fusion: bool,
        engine: Engine,
        number: int,
        what: str,
        half: torch.dtype | None,
        flush: Callable[[], object],
    ) -> None:
        self.arena: KeyedArena | None = None
        self.staged = 0
        """Number of gradients staged in this round."""
        self.tracing = False
        """True if forward passes are traced, so that no update may outlast step()."""
        self._slots = slots
        self._engine = engine
        self._number = number
        self._what = what
        self._fusion = fusion
        self._half = half
        self._flush = flush
        self._iterations = OptimizerIterations(engine.board, number, half is not None)
        sizes, kinds = self._layout()
        first_id = engine.take_ids(ids_taken(sizes))
        self._control: CutControl = engine.cuts(number)
        self._control.declare()
        names = declare_names(engine, number, sizes, kinds, engine.board.fixed)
        streams = functools.cache(streams_of)
        self._make_arena = functools.partial(KeyedArena, slots, fusion, engine, names, first_id, streams, half)
        self._first_id = first_id
        self._announced = ""
        """Text that was announced; empty if none was since the start or a resume."""
        self._announce()

    @property
    def ranks(self) -> int:
        """Number of workers."""
        return int(self._engine.bps.size())

    @property
    def whole(self) -> bool:
        """True if all gradients of this round have been staged."""
        return self.staged == len(self._slots)

    def _layout(self) -> tuple[list[int], list[Hashable | None]]:
        """Return (bytes on the wire, kind) of the gradients."""
        return travelling_bytes(self._slots, self._half), kinds_of(self._slots, self._fusion, self._half)

    def _words(self) -> str:
        """Return what all workers must have alike."""
        sizes, kinds = self._layout()
        # Blocks depend on sizes and on which kinds are equal. Device names may differ between workers.
        numbers = {kind: number for number, kind in enumerate(dict.fromkeys(kinds))}
        layout = [
            (slot.name, str(slot.param.dtype), size, None if kind is None else numbers[kind])
            for slot, size, kind in zip(self._slots, sizes, kinds, strict=True)
        ]
        travel = "" if self._half is None else f" as {self._half}"
        digest = hashlib.sha256(repr(layout).encode()).hexdigest()
        return f"{self._what}, {len(layout)} gradients of {sum(sizes)} bytes{travel}, layout {digest[:8]}"

    def _announce(self) -> None:
        """Tell the other workers what will travel, and ask for the first cut, without waiting for them."""
        self._announced = self._words()
        self._engine.announce(self._number, self._announced)
        self._control.ask(self._layout()[0], self._first_id)

    def plan(self) -> None:
        """Create the arena and its first blocks, before the first gradient leaves. Until then the program may move the
        model, or give its parameters another type.
        """
        if self.arena is not None and self.arena.cut is not None:
            return
        if self._words() != self._announced:
            self._announce()
        self._engine.settle(self._number)
        first, board = self.arena is None, self._engine.board
        if self.arena is None:
            self.arena = self._make_arena()
        if not self.arena.begin(self._control.first()):
            assert self.arena.cut is not None
            # All workers decide alike, since they count the same names.
            self._control.begins_otherwise(self.arena.cut, "it takes more names than a job declares in BytePS")
        self._iterations.tell()
        if first and board.trace is not None:
            self.tracing = board.trace.begin(self._slots, self._number)

    def give_up_trace(self, why: str) -> None:
        """Stop tracing forward passes, for this reason."""
        trace = self._engine.board.trace
        if self.tracing and trace is not None:
            self.tracing = False
            trace.give_up(why)

    def iterated(self, waited: bool) -> None:
        """Record the end of an iteration. `waited`: all its averages had arrived when the program went on."""
        self._iterations.ended(waited)

    def stage(self, slot: Slot, how: Transition = STAGE) -> bool:
        """Send one gradient of this round, as `Arena.stage` does. Before the first one, blocks may be recut."""
        assert self.arena is not None
        if self.staged == 0:
            assert self.arena.cut is not None
            self._iterations.begins(self.arena.cut)
            cut = self._control.round_begins(self.arena.why_not)
            if cut is not None:
                self._recut(self.arena, cut)
        in_graph = self.arena.stage(slot, how)
        self.staged += 1
        if self.whole:
            self._iterations.sent()
            self._control.round_ends()
        return in_graph

    def missing(self) -> list[Slot]:
        """Return what this round still lacks: every worker must push every block in every round."""
        return [] if self.whole else [slot for slot in self._slots if not slot.life.staged]

    def next_round(self) -> None:
        """End this round, and open the next one."""
        assert self.arena is not None
        self.staged = 0
        self.arena.next_round()
        trace = self._engine.board.trace
        if self.tracing and trace is not None:
            self.tracing = trace.next_round(self._blocks)

    def _blocks(self) -> list[Block]:
        assert self.arena is not None and self.arena.cut is not None
        return blocks_of(self.arena.sizes, self.arena.kinds, self.arena.cut)

    def restart(self) -> None:
        """Forget rounds: after a suspend all workers, some of them new, start with the same keys."""
        self._announced = ""
        self.staged = 0
        self._iterations.restart()
        self._engine.restart()
        self._control.restart(self._engine.bps.rank(), self._engine.bps.size())
        if self.arena is not None:
            self.arena.restart()

    def _recut(self, arena: KeyedArena, cut: Cut) -> None:
        """Finish everything in flight, and go on with other blocks."""
        for slot in self._slots:
            slot.comes()
        self._flush()
        if not arena.recut(cut):
            raise RuntimeError("the workers agreed on a cut for which there are too few names")


class KeyedWire(AverageSource):
    """Averages of keyed rounds, for updates. Only the servers know which worker is late, and they do not say."""

    _keyed: KeyedRounds

    @property
    def ranks(self) -> int:
        return self._keyed.ranks

    def before_compilation(self) -> None:
        """Give up the trace, whose hooks are on modules. All other hooks are on parameters and may stay."""
        self._keyed.give_up_trace("it is compiled")

    def arrived(self, slot: Slot) -> bool:
        assert self._keyed.arena is not None
        return self._keyed.arena.arrived(slot)

    def may_forget(self, slot: Slot) -> bool:
        return self.arrived(slot)  # BytePS keeps a block's memory until its handle is given back.

    def wait_activity(self, limit_s: float) -> None:
        # Limited, since a wake-up may be missed.
        hook.wait_activity(min(limit_s, WAIT_LIMIT_S))

    def progress(self) -> object:
        return hook.progress()
