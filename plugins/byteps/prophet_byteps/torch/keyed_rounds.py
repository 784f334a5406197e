"""Rounds of keyed blocks: what an optimizer's rounds and a module's have alike on BytePS.

Rule of this file: from gradients that are due to averages that are back, in the cut that all workers hold. When a
gradient is due, and what waits for its average, is rounds.py's and modules.py's; blocks and names are keyed_arena.py's.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterable, Sequence

import torch

from prophet.core.cut import Cut
from prophet.frontends.torch.arena import Slot
from prophet.frontends.torch.streams import Streams, streams_of
from prophet.learn.barrier import BarrierWatch
from prophet.watch import training
from prophet_byteps.cutting import CutControl
from prophet_byteps.torch.keyed_arena import KeyedArena
from prophet_byteps.torch.keys import Engine


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
        self._streams: dict[torch.device, Streams] = {}
        self._planned = False

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
            cut = self._control.round_begins(self.arena.why_not)
            if cut is not None:
                self._recut(self.arena, cut)
        self.arena.stage(slot)
        self.staged += 1
        if self.whole:
            training.iteration_ended(self._number, time.monotonic())
            self._control.round_ends()

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

    def arrived(self, slot: Slot) -> bool:
        """Whether its average is back."""
        assert self.arena is not None
        return self.arena.arrived(slot)

    def restart(self, passes: int = 1) -> None:
        """Forgets rounds: after a suspend all workers, of which some may be new, begin with the same keys."""
        self._planned = False
        self.staged = 0
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
