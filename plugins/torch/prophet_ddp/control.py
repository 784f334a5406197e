"""The cut and the sequence of a job's blocks, the same on every rank in every round.

Rule of this file: it carries one rank's wish to all ranks; agent.py makes the wish.

The group's first rank decides. Every RECUT_ROUNDS rounds, and more often at first, the last operation of the sequence
is a *page*: a sum over all ranks. The first rank adds the number and the length of its next decision, and each rank the
time of its last backward pass. Every rank reads the page before the first block of the following round, usually long
after it arrived. If the number is new, a broadcast brings the decision itself, and all take it up at once. So all read
the same before the same round, and a late rank only delays the others.

The first round under a decision shows if it was bad. So the page of that round is sent and awaited at the begin of the
next one: then there is no second bad round. For some rounds after that each ends with a page.
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
from prophet_scheduler.core.cut import Cut, PageRounds
from prophet_scheduler.forks import free_in_forks
from prophet_scheduler.policies.algorithms.sequence import LEAST_AT_ONCE

TRIED_ROUNDS = 8
"""Rounds after a decision that end with a page."""

UNORDERED = "as generated"
"""Blocks are all-reduced in the order in which they come, before anything is known of the job."""
WHOLE = ""
"""Usual way of averaging: blocks are all-reduced in a chosen order."""
TWO_PHASES = "two phases"
"""Blocks are summed, each part by one rank, and gathered later (phases.py)."""

_HEADER = struct.Struct("<IIIII")
_PAGE = 5
"""Count of a page's first numbers: the decision's number and bytes, and the number, length and bytes of buckets of the
turn of torch's reducer. After them comes one for each rank: nanoseconds of its backward pass."""
PACES = 5
"""Number of backward passes whose median is a rank's pace."""


@dataclass(frozen=True)
class Decision:
    """A cut, and the places of its blocks in the order in which they are issued.

    `together`: numbers of blocks, consecutive in the order, that travel as one collective; empty for each block by
    itself. `at_once`: maximum number of collectives under way. `gathers`: for rounds in two phases (phases.py), the
    places of blocks in the order in which they are gathered after they were reduced in `order`; empty for all-reduces.
    """

    cut: Cut
    order: tuple[int, ...]
    together: tuple[int, ...] = ()
    at_once: int = LEAST_AT_ONCE
    gathers: tuple[int, ...] = ()
    unordered: bool = False
    """True for the order in which blocks are generated, before anything is known of the job. It is never sent."""

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
    def way(self) -> str:
        """Way of averaging blocks."""
        if self.unordered:
            return UNORDERED
        return TWO_PHASES if self.gathers else WHOLE

    @property
    def collectives(self) -> list[tuple[int, ...]]:
        """Places of the blocks of each collective, in the order in which they are issued."""
        order = iter(self.order)
        return [tuple(itertools.islice(order, count)) for count in self.together or (1,) * len(self.order)]

    def encode(self) -> bytes:
        """Return bytes for `decode`."""
        cut = self.cut.encode()
        parts = self.order, self.together, self.gathers
        numbers = tuple(itertools.chain(*parts))
        header = _HEADER.pack(len(cut), *map(len, parts), self.at_once)
        return header + cut + struct.pack(f"<{len(numbers)}I", *numbers)

    @classmethod
    def decode(cls, data: bytes) -> Decision:
        """Read the bytes of `encode`; raise ValueError for any others."""
        try:
            length, *counts, at_once = _HEADER.unpack_from(data)
            cut = Cut.decode(data[_HEADER.size : _HEADER.size + length])
            numbers = iter(struct.unpack_from(f"<{sum(counts)}I", data, _HEADER.size + length))
        except struct.error:
            raise ValueError("a decision is cut short") from None
        if cut is None:
            raise ValueError("a decision has no cut")
        order, together, gathers = (tuple(itertools.islice(numbers, count)) for count in counts)
        return cls(cut, order, together, at_once, gathers)


class Control:
    """Control of one module. `rank` is this rank in the group of `ranks`; only `want` may be called from any thread."""

    def __init__(self, issuer: Issuer, rank: int, ranks: int) -> None:
        self._issuer = issuer
        self.rank = rank
        self._ranks = ranks
        self._backward_s: deque[float] = deque(maxlen=PACES)
        self.pace = 1.0
        """The slowest rank's backward time over this rank's, by the last page."""
        self._lock = free_in_forks(threading.Lock())
        self._wanted: tuple[int, Decision | None] = 0, None
        """The newest wish and its number, counted from 1."""
        self._turn = (0, 0, 0)
        self._turn_taken = 0
        self.turn = 0
        """Number of iterations torch's reducer has from the next one on, by the last page; 0 for none."""
        self.bucket_bytes = 0
        """Size of its buckets then; 0 for the program's own."""
        self._sent = b""
        self._taken = 0
        self._rounds = PageRounds(TRIED_ROUNDS)
        self._page: tuple[JointOperation, torch.Tensor] | None = None
        """The last page, until it is read."""

    def want(self, decision: Decision) -> None:
        """Ask for a decision from some later round on; only the deciding rank's wish counts."""
        with self._lock:
            number, wanted = self._wanted
            if decision != wanted:
                self._wanted = number + 1, decision

    def want_turn(self, iterations: int, bucket_bytes: int = 0) -> None:
        """Ask for so many iterations of torch's reducer, once, from some later round on. Its buckets have that size; 0
        for the program's own. Counts as `want` does.
        """
        with self._lock:
            self._turn = self._turn[0] + 1, iterations, bucket_bytes

    def round_ends(self, backward_s: float = 0.0) -> list[JointOperation]:
        """Return the operations that end this round; `backward_s` is this rank's time from first gradient to last."""
        self._backward_s.append(backward_s)
        return [self._send_page()] if self._rounds.round_ends() else []

    def _send_page(self) -> JointOperation:
        page = torch.zeros(_PAGE + self._ranks, dtype=torch.int64, device="cpu")
        page[_PAGE + self.rank] = int(median(self._backward_s or [0.0]) * 1e9)

        def send() -> object:
            if self.rank == 0:
                with self._lock:
                    (number, wanted), turn = self._wanted, self._turn
                self._sent = b"" if wanted is None else wanted.encode()
                page[:_PAGE] = torch.tensor([number, len(self._sent), *turn])
            return self._issuer.groups.all_reduce(page)

        operation = JointOperation(send)
        operation.ready = True
        self._page = operation, page
        return operation

    def round_begins(self, wait: Callable[[JointOperation], None]) -> Decision | None:
        """Return the decision that holds from this round on, None if unchanged. Call it before the round's first block.

        `wait(operation)` returns when it has ended.
        """
        if self._rounds.late:
            self._issuer.append([self._send_page()])
        if self._page is None:
            return None
        (operation, page), self._page = self._page, None
        wait(operation)
        number, length, turn, iterations, self.bucket_bytes, *paces = page.tolist()
        own = paces[self.rank]
        self.pace = max(paces) / own if own > 0 else 1.0
        self.turn = iterations if turn != self._turn_taken else 0
        self._turn_taken = turn
        if number == self._taken:
            return None
        self._taken = number
        self._rounds.taken_up()
        data = torch.zeros(length, dtype=torch.uint8, device="cpu")
        if self.rank == 0:
            data.copy_(torch.frombuffer(bytearray(self._sent), dtype=torch.uint8))
        wait(self._issuer.put(lambda: self._issuer.groups.broadcast(data)))
        return Decision.decode(bytes(data.tolist()))
