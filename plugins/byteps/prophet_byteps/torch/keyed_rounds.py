"""Rounds of keyed blocks: what an optimizer's rounds and a module's have alike on BytePS.

Rule of this file: from gradients that are due to averages that are back, in the cut that all workers hold. When a
gradient is due, and what waits for its average, is rounds.py's and modules.py's; blocks and names are keyed_arena.py's.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

import torch

from prophet_byteps.cutting import CutControl
from prophet_byteps.torch.keyed_arena import KeyedArena
from prophet_byteps.torch.keys import Engine
from prophet_scheduler.core.cut import Block, Cut, blocks_of
from prophet_scheduler.frontends.torch.arena import Slot
from prophet_scheduler.frontends.torch.streams import Streams, streams_of
from prophet_scheduler.learn.barrier import BarrierWatch
from prophet_scheduler.watch import training

if TYPE_CHECKING:
    from prophet_byteps.torch.tracing import RoundsTrace

WARM_UP = 2
"""First rounds of a job, which say nothing of what iterations take."""
COMPILED, SIGHT = "it is compiled", "its parameters are used out of sight"
"""Why a trace is given up."""


def described(kind: str, names: Iterable[str], half: torch.dtype | None) -> str:
    """What must be alike on all workers before the program has used anything, in a few words."""
    named = list(names)
    digest = hashlib.sha256("\n".join(named).encode()).hexdigest()
    travels = "" if half is None else f" as {half}"
    return f"{kind}, {len(named)} parameters{travels}, names {digest[:8]}"


class KeyedRounds:
    """Those of `slots`, in forward order. `number` is what `engine.announce` gave, `half` as an Arena's.

    `flush()` brings home all that is under way, before blocks are cut anew.
    """

    def __init__(
        self,
        slots: Sequence[Slot],
        fusion: bool,
        engine: Engine,
        number: int,
        half: torch.dtype | None,
        flush: Callable[[], object],
    ) -> None:
        self.arena: KeyedArena | None = None
        self.staged = 0
        """Gradients of this round."""
        self._slots = slots
        self._fusion = fusion
        self._engine = engine
        self._number = number
        self._half = half
        self._flush = flush
        self._waits = BarrierWatch()
        self._control: CutControl | None = None
        self._began_s: float | None = None
        self._rounds = 0
        self._streams: dict[torch.device, Streams] = {}
        self._planned = False
        self._may_trace = engine.board.trace is not None
        self._trace: RoundsTrace | None = None

    @property
    def tracing(self) -> bool:
        """Whether forward passes are traced, so that no update may outlast step()."""
        return self._trace is not None

    @property
    def whole(self) -> bool:
        """Whether all gradients of this round were staged."""
        return self.staged == len(self._slots)

    def plan(self) -> None:
        """Makes the arena and its first blocks, before the first gradient leaves, as all other workers do.

        Not sooner, because the program may move the model until then. Every worker comes here at the same point of the
        same program, so BytePS numbers the tensors alike on all of them.
        """
        if self._planned:
            return
        if self.arena is None:
            self.arena = KeyedArena(self._slots, self._fusion, self._engine, self._number, self._streams_of, self._half)
        arena = self.arena
        # Blocks follow from sizes and from which gradients are of one kind; devices may be called otherwise elsewhere.
        numbers = {kind: number for number, kind in enumerate(dict.fromkeys(arena.kinds))}
        layout = [
            (slot.name, str(slot.param.dtype), size, None if kind is None else numbers[kind])
            for slot, size, kind in zip(self._slots, arena.sizes, arena.kinds, strict=True)
        ]
        digest = hashlib.sha256(repr(layout).encode()).hexdigest()
        self._engine.agree(
            f"layout of optimizer {self._number}",
            f"{len(layout)} gradients of {sum(arena.sizes)} bytes, layout {digest[:8]}",
        )
        if self._control is None:
            self._control = self._engine.cuts(self._number)
        else:
            self._control.restart(self._engine.bps.rank(), self._engine.bps.size())
        self._control.declare()
        board = self._engine.board
        if not arena.begin(self._control.first(arena.sizes, arena.first_id), may_change=board.fixed is None):
            assert arena.cut is not None
            # On all workers, which count alike.
            self._control.begins_otherwise(arena.cut, "it takes more names than a job declares in BytePS")
        self._planned = True
        self._say()
        if self._may_trace:
            self._may_trace = False
            self._begin_trace()

    def _begin_trace(self) -> None:
        board = self._engine.board.trace
        assert board is not None
        try:
            from prophet_byteps.torch.tracing import trace_of  # Few policies need it.

            self._trace = trace_of(self._slots, self._number, board)
        except Exception as error:
            board.close(f"{type(error).__name__}: {error}")

    def give_up_trace(self, why: str) -> None:
        """Forward passes are traced no more, for this reason."""
        trace, self._trace = self._trace, None
        if trace is not None:
            trace.give_up(why)

    def iterated(self, waited: bool) -> None:
        """An iteration is over; `waited` where nothing of it was still to come when the program went on."""
        self._waits.iteration(waited)
        self._say()

    def _say(self) -> None:
        self._engine.board.goes_on(self._number, barrier=self._waits.holds, half=self._half is not None)

    def stage(self, slot: Slot) -> None:
        """Sends one gradient of this round; before the first one, blocks may be cut anew."""
        assert self.arena is not None and self._control is not None
        if self.staged == 0:
            self._round_begins(self.arena)
            cut = self._control.round_begins(self.arena.why_not)
            if cut is not None:
                self._recut(self.arena, cut)
        self.arena.stage(slot)
        self.staged += 1
        if self.whole:
            training.iteration_ended(self._number, time.monotonic())
            self._control.round_ends()

    def _round_begins(self, arena: KeyedArena) -> None:
        """The first gradient of a round ends the iteration before; a job's first ones set up what they need."""
        now, before_s = time.monotonic(), self._began_s
        self._began_s = now
        self._rounds += 1
        took_s = now - before_s if before_s is not None and self._rounds > WARM_UP + 1 else None
        assert arena.cut is not None
        self._engine.board.iterated(self._number, arena.cut, took_s)

    def stage_missing(self) -> None:
        """Sends what this round still lacks: every worker must push every block in every round."""
        self.plan()
        if not self.whole:
            for slot in self._slots:
                if not slot.staged:
                    self.stage(slot)

    def next_round(self, passes: int = 1) -> None:
        """Opens the next round: each gradient is due after `passes` backward passes."""
        assert self.arena is not None
        self.staged = 0
        self.arena.next_round(passes)
        if self._trace is not None:
            self._trace.next_round(self._blocks)
            if not self._trace.under_way:
                self._trace = None

    def _blocks(self) -> list[Block]:
        assert self.arena is not None and self.arena.cut is not None
        return blocks_of(self.arena.sizes, self.arena.kinds, self.arena.cut)

    def arrived(self, slot: Slot) -> bool:
        """Whether its average is back."""
        assert self.arena is not None
        return self.arena.arrived(slot)

    def restart(self, passes: int = 1) -> None:
        """Forgets rounds: after a suspend all workers, of which some may be new, begin with the same keys."""
        self._planned = False
        self.staged = 0
        self._began_s, self._rounds = None, 0
        self._engine.restart()
        if self.arena is not None:
            self.arena.restart(passes)

    def _recut(self, arena: KeyedArena, cut: Cut) -> None:
        """Finishes what is on its way, and goes on in other blocks."""
        for slot in self._slots:
            # As for a gradient that comes before its update: nothing that is watched has used the parameter so far.
            slot.late |= slot.pending
        self._flush()
        if not arena.recut(cut):
            raise RuntimeError("a cut was agreed on for which the names do not suffice")

    def _streams_of(self, device: torch.device) -> Streams:
        if device not in self._streams:
            self._streams[device] = streams_of(device)
        return self._streams[device]
