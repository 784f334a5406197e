"""Blocks between the ranks of a sharding group, the most urgent first.

Rule of this file: from tensors to blocks that travel, and back. It knows no module and no parameter. collectives.py
decides what is urgent.

A collective here is made of sends and receives, so a reduce-scatter costs half the bytes of gloo's, which is an
all-reduce inside. Each rank sends part r to rank r, and adds up what it gets in the order of ranks.

The receiver decides the order. Gloo sends a block when its receiver has said that it waits for it. So a rank hands over
all that it sends at once, and asks for a few blocks of each other rank at a time: those of the most urgent collective.
Data from a lower rank to a higher one has connections of its own, since the receiver's word would queue behind data.

Why this cannot end in a deadlock. All ranks begin the same collectives in the same order, as torch demands. Take the
rank that has begun the fewest: all others have begun those too, and have handed over their data. So all that it has
asked for comes, then what it asks for next, and whatever it waits for ends. It goes on until another has begun fewer.
A rank may also wait until old gradients have left it. Ranks that have yet to ask for them have begun no more than it
has, since each waits for the same at that place.
"""

from __future__ import annotations

import functools
import heapq
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from prophet_scheduler.forks import free_in_forks
from prophet_scheduler.frontends.torch.recording import unrecorded
from prophet_scheduler.frontends.torch.threads import OWN

AT_ONCE = 4
"""Most blocks that a rank has asked another one for: some leave while the word for others is under way."""
MOST_TAG = 2**30
"""Numbers of blocks begin anew from here on: gloo's have 31 bits."""
SERIAL = 1 << 15
"""Elements that torch adds up in the calling thread alone (at::internal::GRAIN_SIZE). With more, each of our threads
would have a team of threads of its own, and they take the processors from the program's.
"""


class ShardTransfer:
    """A collective under way on this rank."""

    def __init__(self, coming: int, leaving: int) -> None:
        self.coming = coming
        """Blocks that have not arrived."""
        self.leaving = leaving
        """Blocks that have not left."""


Comes = list[tuple[Callable[[], torch.Tensor], Callable[[torch.Tensor], None]]]
"""Blocks to come: where each goes, and what to do when it is there."""


@dataclass(order=True)
class _Coming:
    """Block to come from another rank. `place()` returns where to; `arrived(block)` is called in a thread of ours."""

    urgency: tuple[int, int]
    tag: int
    transfer: ShardTransfer = field(compare=False)
    place: Callable[[], torch.Tensor] = field(compare=False)
    arrived: Callable[[torch.Tensor], None] = field(compare=False)


class ShardWire:
    """Connections of this rank with all others of a group. Safe to use from any thread.

    `upward` and `downward` are gloo's groups for data to higher and to lower ranks. The first error ends it: all that
    wait get it, and nothing more begins.
    """

    def __init__(self, upward: Any, downward: Any, rank: int, ranks: int, block_bytes: int) -> None:
        self._upward, self._downward = upward, downward
        self._rank, self._ranks = rank, ranks
        self._others = [(rank + step) % ranks for step in range(1, ranks)]
        self._block_bytes = block_bytes
        self._moved = free_in_forks(threading.Condition())
        self._tag = 0
        self._begun = 0
        self._wanted: dict[int, list[_Coming]] = {other: [] for other in self._others}
        """Blocks not asked for yet, by rank: a heap."""
        self._asked: dict[int, deque[tuple[_Coming, torch.Tensor, Any]]] = {other: deque() for other in self._others}
        self._leaving: deque[tuple[Any, ShardTransfer, torch.Tensor]] = deque()
        self._error: BaseException | None = None
        self._closed = False
        self._threads = [
            threading.Thread(target=self._run, args=(step,), name=f"{OWN}{name}", daemon=True)
            for step, name in (
                (self._send, "sends"),
                *((functools.partial(self._receive, other), f"receives-{other}") for other in self._others),
            )
        ]
        for thread in self._threads:
            thread.start()

    def gather(self, output: torch.Tensor, urgency: int) -> ShardTransfer:
        """Begin to fill each rank's part of `output`, a flat tensor in which this rank's own is there.

        A collective of lower `urgency` goes first, and an earlier one of the same.
        """
        parts = [self._blocks(part) for part in output.view(self._ranks, -1)]
        comes: dict[int, Comes] = {
            other: [(functools.partial(_same, block), _nothing) for block in parts[other]] for other in self._others
        }
        return self._begin(urgency, dict.fromkeys(self._others, parts[self._rank]), comes)

    def reduce(self, output: torch.Tensor, input: torch.Tensor, average: bool, urgency: int) -> ShardTransfer:
        """Begin to add up all ranks' parts of `input` that are this rank's, into `output`; over their number for an
        average. Both are flat tensors, and stay as they are until it has ended.
        """
        parts = [self._blocks(part) for part in input.view(self._ranks, -1)]
        sums = [
            _Sum(place, own, self._rank, self._ranks, average)
            for place, own in zip(self._blocks(output), parts[self._rank], strict=True)
        ]
        comes: dict[int, Comes] = {
            other: [(functools.partial(torch.empty_like, to.place), functools.partial(to.add, other)) for to in sums]
            for other in self._others
        }
        return self._begin(urgency, {other: parts[other] for other in self._others}, comes)

    def wait(self, transfer: ShardTransfer, left: bool = False) -> None:
        """Return when all of it has arrived, and with `left` has left this rank too. Raises the first error."""
        with self._moved:
            self._moved.wait_for(lambda: self._error or not (transfer.coming or (left and transfer.leaving)))
            if self._error is not None and (transfer.coming or (left and transfer.leaving)):
                raise self._error

    def quiet(self, patience_s: float | None) -> bool:
        """Return True when all has left that other ranks may wait for, and False after `patience_s` seconds or an
        error.
        """
        with self._moved:
            self._moved.wait_for(lambda: self._error or not self._leaving, patience_s)
            return not self._leaving

    def close(self, limit_s: float) -> None:
        """End its threads and connections. Waits up to `limit_s` seconds for what is under way to end, well or with an
        error: a thread of gloo's must not come back to Python when that is no more.
        """
        with self._moved:
            self._closed = True
            self._moved.notify_all()
        until_s = time.monotonic() + limit_s
        for thread in self._threads:
            thread.join(max(0.0, until_s - time.monotonic()))
        if not any(thread.is_alive() for thread in self._threads):
            self._upward = self._downward = None

    def _blocks(self, part: torch.Tensor) -> Sequence[torch.Tensor]:
        blocks: Sequence[torch.Tensor] = part.split(max(1, self._block_bytes // part.element_size()))
        return blocks

    def _begin(
        self,
        urgency: int,
        goes: dict[int, Sequence[torch.Tensor]],
        comes: dict[int, Comes],
    ) -> ShardTransfer:
        """Hand over blocks to other ranks, and want those of theirs. Each pair of ranks has as many."""
        transfer = ShardTransfer(sum(map(len, comes.values())), sum(map(len, goes.values())))
        with self._moved:
            if self._error is not None:
                raise self._error
            first, self._begun = self._tag, self._begun + 1
            self._tag += max(map(len, goes.values()))
            if self._tag > MOST_TAG:
                self._tag = 0
            try:
                with unrecorded():
                    for place in range(max(map(len, goes.values()))):
                        for other in self._others:
                            self._hand_over(other, first + place, goes[other][place], transfer)
                    for other in self._others:
                        for place, (where, arrived) in enumerate(comes[other]):
                            wanted = _Coming((urgency, self._begun), first + place, transfer, where, arrived)
                            heapq.heappush(self._wanted[other], wanted)
                        self._ask(other)
            except Exception as error:
                self._fail(error)
                raise
            self._moved.notify_all()
        return transfer

    def _hand_over(self, other: int, tag: int, block: torch.Tensor, transfer: ShardTransfer) -> None:
        group = self._upward if other > self._rank else self._downward
        self._leaving.append((group.send([block], other, tag), transfer, block))

    def _ask(self, other: int) -> None:
        """Ask for the most urgent blocks of another rank, as many as may be under way."""
        wanted, asked = self._wanted[other], self._asked[other]
        group = self._upward if other < self._rank else self._downward
        while wanted and len(asked) < AT_ONCE:
            coming = heapq.heappop(wanted)
            block = coming.place()
            asked.append((coming, block, group.recv([block], other, coming.tag)))

    def _run(self, step: Callable[[], bool]) -> None:
        """Take steps until there are no more, in a thread of ours."""
        with torch.no_grad(), unrecorded():
            try:
                while step():
                    pass
            except BaseException as error:
                with self._moved:
                    self._fail(error)

    def _receive(self, other: int) -> bool:
        asked = self._asked[other]
        with self._moved:
            self._moved.wait_for(lambda: asked or self._closed or self._error)
            if not asked or self._error is not None:
                return False
            coming, block, work = asked[0]
        work.wait()
        coming.arrived(block)
        with self._moved:
            asked.popleft()
            coming.transfer.coming -= 1
            self._ask(other)
            self._moved.notify_all()
        return True

    def _send(self) -> bool:
        with self._moved:
            self._moved.wait_for(lambda: self._leaving or self._closed or self._error)
            if not self._leaving or self._error is not None:
                return False
            work, transfer, _ = self._leaving[0]
        work.wait()
        with self._moved:
            self._leaving.popleft()
            transfer.leaving -= 1
            self._moved.notify_all()
        return True

    def _fail(self, error: BaseException) -> None:
        if self._error is None:
            self._error = error
        self._moved.notify_all()


class _Sum:
    """Block of a sum over all ranks, added up in their order when the last part is there."""

    def __init__(self, place: torch.Tensor, own: torch.Tensor, rank: int, ranks: int, average: bool) -> None:
        self.place = place
        self._parts: dict[int, torch.Tensor] = {rank: own}
        self._ranks = ranks
        self._average = average
        self._lock = free_in_forks(threading.Lock())

    def add(self, rank: int, part: torch.Tensor) -> None:
        with self._lock:
            self._parts[rank] = part
            if len(self._parts) < self._ranks:
                return
        parts = (self._parts[rank].split(SERIAL) for rank in range(self._ranks))
        for place, first, second, *others in zip(self.place.split(SERIAL), *parts, strict=True):
            torch.add(first, second, out=place)
            for other in others:
                place.add_(other)
            if self._average:
                place.div_(self._ranks)
        self._parts.clear()


def _same(block: torch.Tensor) -> torch.Tensor:
    return block


def _nothing(block: torch.Tensor) -> None:
    pass
