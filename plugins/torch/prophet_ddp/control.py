"""The cut and the sequence of a job's blocks, the same on every rank in every round.

Rule of this file: what one rank wants, and how all come to hold it. Why it wants it is agent.py's.

The group's first rank decides. Every RECUT_ROUNDS rounds, and more often at first, the last operation of the sequence
is a *page*: a sum over all ranks, to which the first one adds the number and the length of what it wants next, and each
rank what its last backward pass took. Before the following round's first block every rank reads it, which is there long
before as a rule; where the number is new, a broadcast brings the decision itself, and all take it up at once. So all
read the same before the same round, and one that is late delays the others and no more.

The first round under a decision shows whether it was a bad one. So the page of that round is sent when the next one
begins, and waited for: then nobody has to bear a second. For some rounds after that each ends with a page.
"""

from __future__ import annotations

import itertools
import struct
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median

import torch

from prophet_ddp.issuer import Issuer, JointOperation
from prophet_scheduler.core.cut import EARLY_ROUNDS, RECUT_ROUNDS, Cut
from prophet_scheduler.forks import free_in_forks
from prophet_scheduler.policies.algorithms.sequence import LEAST_AT_ONCE

TRIED_ROUNDS = 8
"""Rounds after a decision that end with a page."""

MOST_OWNERS = 2
"""More ranks have no rounds in two phases, in which each sends to each owner by itself, over connections of its own.
With four on two cores nothing was gained by that, and no other machine was at hand."""

_HEADER = struct.Struct("<IIIII")
_PAGE = 4
"""Numbers that a page begins with: of the decision, and how many bytes it has; of the turn of torch's reducer, and its
length. After them comes one for each rank: nanoseconds of its backward pass."""
PACES = 5
"""Backward passes of which the median is a rank's pace."""


@dataclass(frozen=True)
class Decision:
    """A cut, and the places of its blocks in the order in which they are issued.

    `together`: how many of them, one after another in the order, travel as one collective each time; empty for each by
    itself. `at_once`: how many collectives are under way at most. `gathers`: rounds have two phases (phases.py), and in
    this order of their places blocks are gathered that were reduced in `order`; empty for all-reduces.
    """

    cut: Cut
    order: tuple[int, ...]
    together: tuple[int, ...] = ()
    at_once: int = LEAST_AT_ONCE
    gathers: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if sorted(self.order) != list(range(len(self.order))):
            raise ValueError("a decision has no order of blocks")
        if self.together and (sum(self.together) != len(self.order) or min(self.together) < 1):
            raise ValueError("a decision does not say which blocks travel together")
        if self.gathers and (self.together or sorted(self.gathers) != sorted(self.order)):
            raise ValueError("a decision does not say in which order each block is gathered")
        if self.at_once < 1:
            raise ValueError("a decision lets nothing travel")

    @property
    def collectives(self) -> list[tuple[int, ...]]:
        """Places of the blocks of each, in the order in which they are issued."""
        order = iter(self.order)
        return [tuple(itertools.islice(order, count)) for count in self.together or (1,) * len(self.order)]

    def encode(self) -> bytes:
        """For `decode`."""
        cut = self.cut.encode()
        numbers = (*self.order, *self.together, *self.gathers)
        header = _HEADER.pack(len(cut), len(self.order), len(self.together), len(self.gathers), self.at_once)
        return header + cut + struct.pack(f"<{len(numbers)}I", *numbers)

    @classmethod
    def decode(cls, data: bytes) -> Decision:
        """Raises ValueError for what `encode` did not write."""
        try:
            length, count, joined, gathered, at_once = _HEADER.unpack_from(data)
            cut = Cut.decode(data[_HEADER.size : _HEADER.size + length])
            numbers = struct.unpack_from(f"<{count + joined + gathered}I", data, _HEADER.size + length)
        except struct.error:
            raise ValueError("a decision is cut short") from None
        if cut is None:
            raise ValueError("a decision has no cut")
        together, gathers = numbers[count : count + joined], numbers[count + joined :]
        return cls(cut, numbers[:count], together, at_once, gathers)


class Control:
    """One module's part. `rank` is that in the group, of `ranks`; only `want` may be called from any thread."""

    def __init__(self, issuer: Issuer, rank: int, ranks: int) -> None:
        self._issuer = issuer
        self.rank = rank
        self._ranks = ranks
        self._backward_s: deque[float] = deque(maxlen=PACES)
        self.pace = 1.0
        """How many times as long as this rank the slowest one takes for a backward pass, by the last page."""
        self._decides = rank == 0
        self._lock = free_in_forks(threading.Lock())
        self._wanted: Decision | None = None
        self._number = 0
        self._turn = (0, 0)
        self._turn_taken = 0
        self.turn = 0
        """How many iterations torch's reducer has from the next one on, as the last page said it; 0 for none."""
        self._sent = (0, b"")
        self._taken = 0
        self._rounds = 0
        self._since = TRIED_ROUNDS
        """Rounds since a decision was taken up, that one too."""
        self._page: torch.Tensor | None = None
        self._operation: JointOperation | None = None

    def want(self, decision: Decision) -> None:
        """From some later round on; counts on the rank that decides alone."""
        with self._lock:
            if decision != self._wanted:
                self._wanted = decision
                self._number += 1

    def want_turn(self, iterations: int) -> None:
        """torch's reducer is to have so many, once, from some later round on. Counts as `want` does."""
        with self._lock:
            self._turn = self._turn[0] + 1, iterations

    def round_ends(self, backward_s: float = 0.0) -> list[JointOperation]:
        """What this round's sequence ends with; from its first gradient to its last this rank took `backward_s`."""
        self._backward_s.append(backward_s)
        self._rounds += 1
        self._since += 1
        if self._since == 1:
            return []
        early = self._rounds <= EARLY_ROUNDS or self._since <= TRIED_ROUNDS
        return [self._send_page()] if early or self._rounds % RECUT_ROUNDS == 0 else []

    def _send_page(self) -> JointOperation:
        page = self._page = torch.zeros(_PAGE + self._ranks, dtype=torch.int64, device="cpu")
        page[_PAGE + self.rank] = int(median(self._backward_s or [0.0]) * 1e9)

        def send() -> object:
            if self._decides:
                with self._lock:
                    wanted, number, turn = self._wanted, self._number, self._turn
                self._sent = (number, b"" if wanted is None else wanted.encode())
                page[:_PAGE] = torch.tensor([number, len(self._sent[1]), *turn])
            return self._issuer.all_reduce(page)

        self._operation = JointOperation(send)
        self._operation.ready = True
        return self._operation

    def round_begins(self, wait: Callable[[JointOperation], None]) -> Decision | None:
        """Before a round's first block: what holds from this round on, None where nothing has changed.

        `wait(operation)` returns when it has ended.
        """
        if self._since == 1:
            self._issuer.append([self._send_page()])
        if self._operation is None or self._page is None:
            return None
        wait(self._operation)
        self._operation = None
        number, length, turn, iterations, *paces = self._page.tolist()
        own = paces[self.rank]
        self.pace = max(paces) / own if own > 0 else 1.0
        self.turn = iterations if turn != self._turn_taken else 0
        self._turn_taken = turn
        if number == self._taken:
            return None
        self._taken, self._since = number, 0
        data = torch.zeros(length, dtype=torch.uint8, device="cpu")
        if self._decides:
            data.copy_(torch.frombuffer(bytearray(self._sent[1]), dtype=torch.uint8))
        wait(self._issuer.put(lambda: self._issuer.broadcast(data)))
        return Decision.decode(bytes(data.tolist()))
