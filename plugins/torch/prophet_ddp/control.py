"""The cut and the sequence of a job's blocks, the same on every rank in every round.

Rule of this file: carry one rank's wish to all ranks. agent.py makes the wish.

The group's first rank decides. Every RECUT_ROUNDS rounds, and more often at first, the sequence ends with a *page*: a
sum over all ranks. The first rank contributes the number and the length of its next decision, and each rank the time of
its recent backward passes. Every rank reads the page before the first block of the following round, usually long after
it arrived. If the number is new, a broadcast brings the decision, and all ranks take it up at once. So all ranks read
the same page before the same round, and a late rank only delays the others.

The first round under a decision shows if the decision was bad. So that round's page is sent and awaited when the next
round begins, which prevents a second bad round. Each of the next few rounds also ends with a page.
"""

from __future__ import annotations

import itertools
import json
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median

import torch

from prophet_ddp.issuer import Issuer, JointOperation
from prophet_scheduler.core.cut import MOST_BLOCK_BYTES, Cut, PageRounds
from prophet_scheduler.forks import free_in_forks
from prophet_scheduler.policies.algorithms.sequence import LEAST_AT_ONCE

TRIED_ROUNDS = 8
"""Rounds after a decision that each end with a page."""

UNORDERED = "as generated"
"""Way of averaging before anything is known of the job: blocks are all-reduced in the order they are generated."""
WHOLE = ""
"""Usual way of averaging: blocks are all-reduced in a chosen order."""
TWO_PHASES = "two phases"
"""Way of averaging in which each block, or part of one, is summed by one rank and gathered later (phases.py)."""

TORCH = "torch's reducer"
"""Way of averaging while torch's own reducer has its turn (turns.py)."""
TORCH_CUT = Cut.uniform(MOST_BLOCK_BYTES)
"""Cut that stands for the program's own buckets."""
SMALL_CUT = Cut.uniform(1 << 20)
"""Cut that stands for smaller buckets, of a size that is mostly better than the default."""
TORCH_WARM_UP = 1
"""Number of iterations at the start of a turn that do not count: its connections have been idle."""
FOR_GOOD = -1
"""Stands for the number of iterations if torch's reducer stays."""

_PAGE = 5
"""Count of a page's leading numbers: the decision's number and length in bytes; then the number, iterations and bucket
size of the turn of torch's reducer. After them each rank has one: its median backward pass in nanoseconds."""
PACES = 5
"""Number of recent backward passes whose median is a rank's pace."""


def bucket_bytes_of(cut: Cut | None) -> int:
    """Return the bucket size that a cut stands for, in bytes; 0 for the program's own."""
    return 0 if cut is None or cut == TORCH_CUT else cut.block_bytes_at(0)


@dataclass(frozen=True)
class Decision:
    """A cut, and the order in which its blocks are issued, by their places.

    `together`: how many blocks, consecutive in the order, each collective carries; empty if each block travels alone.
    `at_once`: maximum number of collectives in flight. `gathers`: for rounds in two phases (phases.py), the places of
    the blocks in the order in which they are gathered after they were reduced in `order`; empty for all-reduces.
    """

    cut: Cut
    order: tuple[int, ...]
    together: tuple[int, ...] = ()
    at_once: int = LEAST_AT_ONCE
    gathers: tuple[int, ...] = ()
    unordered: bool = False
    """True for the order of generation, used before anything is known of the job. Such a decision is never sent."""

    def __post_init__(self) -> None:
        if sorted(self.order) != list(range(len(self.order))):
            raise ValueError("a decision has no order of blocks")
        if self.together and (sum(self.together) != len(self.order) or min(self.together) < 1):
            raise ValueError("a decision does not say which blocks travel together")
        if self.gathers and (self.together or sorted(self.gathers) != sorted(self.order)):
            raise ValueError("a decision does not say in which order each block is gathered")
        if self.at_once < 1:
            raise ValueError("a decision allows no collective in flight")

    @property
    def way(self) -> str:
        """Way of averaging blocks: UNORDERED, WHOLE or TWO_PHASES."""
        if self.unordered:
            return UNORDERED
        return TWO_PHASES if self.gathers else WHOLE

    @property
    def collectives(self) -> list[tuple[int, ...]]:
        """Places of the blocks of each collective, in the order of issue."""
        order = iter(self.order)
        return [tuple(itertools.islice(order, count)) for count in self.together or (1,) * len(self.order)]

    def encode(self) -> bytes:
        """Return bytes for `decode`."""
        parts = self.cut.encode().hex(), self.order, self.together, self.at_once, self.gathers
        return json.dumps(parts).encode()

    @classmethod
    def decode(cls, data: bytes) -> Decision:
        """Read the bytes of `encode`."""
        encoded, order, together, at_once, gathers = json.loads(data)
        cut = Cut.decode(bytes.fromhex(encoded))
        assert cut is not None  # It is not empty.
        return cls(cut, tuple(order), tuple(together), at_once, tuple(gathers))


class Control:
    """Control of one module, on `rank` of the `ranks` of its group. Only `want` and `want_turn` are thread-safe."""

    def __init__(self, issuer: Issuer, rank: int, ranks: int) -> None:
        self._issuer = issuer
        self.rank = rank
        self._ranks = ranks
        self._backward_s: deque[float] = deque(maxlen=PACES)
        self.pace = 1.0
        """Backward time of the slowest rank divided by this rank's, by the last page."""
        self._lock = free_in_forks(threading.Lock())
        self._wanted: tuple[int, Decision | None] = 0, None
        """Number of the newest wish, counted from 1, and the wish."""
        self._turn = (0, 0, 0)
        self._turn_taken = 0
        self.turn = 0
        """Iterations that torch's reducer gets from the next one on, by the last page; 0 for none."""
        self.bucket_bytes = 0
        """Bucket size of that turn, in bytes; 0 for the program's own."""
        self._sent = b""
        self._taken = 0
        self._rounds = PageRounds(TRIED_ROUNDS)
        self._page: tuple[JointOperation, torch.Tensor] | None = None
        """The last page and its operation, until it is read."""

    def want(self, decision: Decision) -> None:
        """Ask for a decision from some later round on. Only the deciding rank's wish counts."""
        with self._lock:
            number, wanted = self._wanted
            if decision != wanted:
                self._wanted = number + 1, decision

    def want_turn(self, iterations: int, bucket_bytes: int = 0) -> None:
        """Ask for one turn of torch's reducer, of this many iterations, from some later round on. `bucket_bytes` is 0
        for the program's own buckets. Only the deciding rank's wish counts.
        """
        with self._lock:
            self._turn = self._turn[0] + 1, iterations, bucket_bytes

    def round_ends(self, backward_s: float = 0.0) -> list[JointOperation]:
        """Return the operations that end this round. `backward_s` is from this rank's first gradient to its last."""
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

        operation = JointOperation(send, ready=True)
        self._page = operation, page
        return operation

    def round_begins(self, wait: Callable[[JointOperation], None]) -> Decision | None:
        """Return the decision that holds from this round on; None if it is unchanged. Call it before the first block.

        `wait(operation)` returns once the operation has ended.
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
