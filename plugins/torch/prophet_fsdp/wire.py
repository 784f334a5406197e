"""Blocks between the ranks of a sharding group, the most urgent first.

Rule of this file: from tensors to blocks that travel, and back. It knows no module and no parameter. collectives.py
decides what is urgent.

A collective here is made of sends and receives, so a reduce-scatter costs half the bytes of gloo's, which is an
all-reduce inside. Each rank sends part r to rank r, and adds up what it gets in the order of ranks. Where ranks share
hosts, others pass parts on, or sums of them (routes.py).

The receiver decides the order. Gloo sends a block when its receiver has said that it waits for it. So a rank hands over
what it sends at once, and asks for a few blocks of each other rank at a time: those of the most urgent collective.
Data from a lower rank to a higher one has connections of its own, since the receiver's word would queue behind data.

Why this cannot end in a deadlock. All ranks begin the same collectives in the same order, as torch demands. Take the
rank that has begun the fewest: all others have begun those too, and have handed over their data. So all that it has
asked for comes, then what it asks for next, and whatever it waits for ends. It goes on until another has begun fewer.
Where others pass parts on, one of them may have asked for blocks of a collective that their sender has not begun. So
there each block that was asked for is waited for by itself, and one of them is the oldest. The oldest collective of all
that have not ended then comes on each rank, and after it the next.
The second stage of a reduction begins when its first has come, whatever the program does. So its blocks come as well,
if blocks of first stages never wait behind them: each stage asks for blocks of its own.
"""

from __future__ import annotations

import datetime
import functools
import heapq
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import torch

from prophet_ddp.events import EventLog
from prophet_fsdp.routes import routes_of
from prophet_scheduler.forks import free_in_forks
from prophet_scheduler.frontends.torch.recording import unrecorded
from prophet_scheduler.frontends.torch.threads import OWN

AT_ONCE = 4
"""Most blocks that a rank has asked another one for: some leave while the word for others is under way."""
SENDERS = 8
"""Collectives whose blocks may leave in any order: each has a thread that lets go of their memory. More than a rank has
under way but for one that is far ahead.
"""
MOST_TAG = 2**30
"""Numbers of blocks begin anew from here on: gloo's have 31 bits."""
SERIAL = 1 << 15
"""Elements that torch adds up in the calling thread alone (at::internal::GRAIN_SIZE). With more, each of our threads
would have a team of threads of its own, and they take the processors from the program's.
"""


@dataclass(frozen=True)
class ShardGroups:
    """Connections of rank `rank` with all others of `ranks`: gloo's groups for data to higher and to lower ranks.
    `timeout` holds for each block.
    """

    upward: Any
    downward: Any
    rank: int
    ranks: int
    timeout: datetime.timedelta
    """Without it gloo takes the timeout with which a group was connected."""
    hosts: Sequence[str] = ()
    """Host of each rank; empty if no two share one."""

    def send(self, block: torch.Tensor, other: int, tag: int) -> Any:
        """Return torch's Work of handing a block over to another rank."""
        return (self.upward if other > self.rank else self.downward).send([block], other, tag)

    def receive(self, block: torch.Tensor, other: int, tag: int) -> Any:
        """Return torch's Work of asking another rank for a block."""
        return (self.upward if other < self.rank else self.downward).recv([block], other, tag)


class ShardTransfer:
    """A collective of this rank, which may begin later. `first` is the number of its first block, and `number` its own
    in the order of the program. `stage` counts the collectives of its reduction that come before it on its wire.
    """

    def __init__(self, first: int, number: int, stage: int = 0) -> None:
        self.first, self.number, self.stage = first, number, stage
        self.then: Callable[[], object] = _nothing
        """Begins what follows, in a thread of the wire's."""
        self.there = False
        """True when all blocks have arrived, and what follows has begun."""
        self.coming = 0
        """Blocks that have not arrived."""
        self.place = 0
        """Its module's place in forward."""
        self.size_bytes = 0
        """Its size as an all-reduce."""
        self.sends: list[tuple[Any, torch.Tensor]] = []
        """torch's Work of each block that leaves, and its memory."""


class PartBlock(NamedTuple):
    """Block of the part that rank `part` owns: the `number`th."""

    part: int
    number: int


Goes = list[tuple[int, PartBlock, torch.Tensor]]
"""Blocks that leave, each with the rank that gets it."""
Comes = list[tuple[int, PartBlock, Callable[[], torch.Tensor], Callable[[torch.Tensor], Goes]]]
"""Blocks to come, each with the rank that sends it, a function that returns where it goes, and one that is called when
it is there and returns what leaves then."""


@dataclass(order=True)
class _Wanted:
    """Block to come from another rank. `place()` returns where to; `arrived(block)` is called in a thread of ours."""

    urgency: tuple[int, int]
    tag: int
    transfer: ShardTransfer = field(compare=False)
    place: Callable[[], torch.Tensor] = field(compare=False)
    arrived: Callable[[torch.Tensor], Goes] = field(compare=False)


@dataclass
class _Asked:
    """Blocks asked for that are waited for in their order: at most `most`. `oldest`: those of the oldest collective."""

    most: int
    oldest: bool = False
    blocks: deque[tuple[_Wanted, torch.Tensor, Any]] = field(default_factory=deque)


class _Lane:
    """Blocks to come from one rank, for one stage of reductions. `apart`: each that is asked for is waited for by
    itself.
    """

    def __init__(self, apart: bool) -> None:
        self.wanted: list[_Wanted] = []
        """Blocks not asked for yet: a heap."""
        self.asked = [_Asked(1, oldest=not place) for place in range(AT_ONCE)] if apart else [_Asked(AT_ONCE)]

    def next(self, oldest: bool) -> _Wanted:
        """Take the most urgent wanted block, or the first of the oldest collective."""
        if not oldest:
            return heapq.heappop(self.wanted)
        wanted = min(self.wanted, key=lambda each: (each.transfer.number, each.tag))
        self.wanted.remove(wanted)
        heapq.heapify(self.wanted)
        return wanted


class ShardWire:
    """Collectives of this rank with all others of a group. Safe to use from any thread.

    The first error ends it: all that wait get it, and nothing more begins.
    """

    def __init__(self, links: ShardGroups, block_bytes: int) -> None:
        self._links = links
        routes = routes_of(links.hosts or [str(rank) for rank in range(links.ranks)])
        self._routes = [(route.before[links.rank], route.after(links.rank)) for route in routes]
        """By owner of a part: the rank that this one has it from, and those that it passes it on to."""
        self._relays = any(before != owner for owner, route in enumerate(routes) for before in route.before)
        self._block_bytes = block_bytes
        self._moved = free_in_forks(threading.Condition())
        self._tag = self._reserved = 0
        self._begun = 0
        self._lanes: dict[tuple[int, int], _Lane] = {}
        """By the other rank and the stage."""
        self._handed_over: deque[ShardTransfer] = deque()
        self._leaving = 0
        """Collectives with blocks that have not left."""
        self.error: BaseException | None = None
        """First error, which ended it."""
        self.ended = 0
        """Number of collectives that have arrived here."""
        self._seen = 0
        self.log = EventLog(open=False)
        """Log of its collectives."""
        self._closed = False
        self._threads: list[threading.Thread] = []
        for number in range(SENDERS):
            self._start(self._send, f"sends-{number}")

    def _start(self, step: Callable[[], bool], name: str) -> None:
        thread = threading.Thread(target=self._run, args=(step,), name=f"{OWN}{name}", daemon=True)
        self._threads.append(thread)
        thread.start()

    def reserve(self, part: torch.Tensor, stage: int = 0) -> ShardTransfer:
        """Return a collective with such parts, which may begin later. All ranks reserve in the same order."""
        with self._moved:
            first, self._tag = self._tag, self._tag + len(self._blocks(part)) * self._links.ranks
            if self._tag > MOST_TAG:
                self._tag = 0
            self._reserved += 1
            return ShardTransfer(first, self._reserved, stage)

    def gather(
        self, output: torch.Tensor, urgency: int, place: int, reserved: ShardTransfer | None = None
    ) -> ShardTransfer:
        """Begin to fill each rank's part of `output`, a flat tensor in which this rank's own is there.

        A collective of lower `urgency` goes first, and an earlier one of the same. `place` is its module's.
        """
        rank, goes, comes = self._links.rank, Goes(), Comes()
        rows = output.view(self._links.ranks, -1)
        for owner, (before, after) in enumerate(self._routes):
            for number, block in enumerate(self._blocks(rows[owner])):
                passed = [(other, PartBlock(owner, number), block) for other in after]
                if owner == rank:
                    goes += passed
                else:
                    where, arrived = functools.partial(_same, block), functools.partial(_passed, passed)
                    comes.append((before, PartBlock(owner, number), where, arrived))
        return self._begin(urgency, place, reserved or self.reserve(rows[0]), rows.nbytes, goes, comes)

    def reduce(
        self,
        output: torch.Tensor,
        input: torch.Tensor,
        average: bool,
        urgency: int,
        place: int,
        reserved: ShardTransfer | None = None,
        whole: bool = False,
    ) -> ShardTransfer:
        """Begin to add up all ranks' parts of `input` that are this rank's, into `output`; over their number for an
        average. With `whole` all of it is each rank's. Both are flat tensors, and stay as they are until it has ended.
        """
        rank, ranks, goes, comes = self._links.rank, self._links.ranks, Goes(), Comes()
        rows = input.expand(ranks, -1) if whole else input.view(ranks, -1)
        to = self._blocks(output)
        for owner, (before, adds) in enumerate(self._routes):
            for number, own in enumerate(self._blocks(rows[owner])):
                block = PartBlock(owner, number)
                if not adds:
                    goes.append((before, block, own))
                    continue
                if owner == rank:
                    total = _Sum(to[number], own, rank, adds, ranks if average else 1, _passes_nothing)
                else:
                    passes = functools.partial(_passes_to, before, block)
                    total = _Sum(None, own, rank, adds, 1, passes)
                where = functools.partial(torch.empty_like, own)
                comes += [(other, block, where, functools.partial(total.add, other)) for other in adds]
        return self._begin(urgency, place, reserved or self.reserve(output), rows.nbytes, goes, comes)

    def wait(self, transfer: ShardTransfer) -> None:
        """Return when it is there. Raises the first error."""
        with self._moved:
            self._moved.wait_for(lambda: self.error or transfer.there)
            if self.error is not None and not transfer.there:
                raise self.error

    def wait_activity(self, limit_s: float) -> None:
        """Return when a collective has arrived since the last call, and after `limit_s` seconds at the latest. Raises
        the first error.
        """
        with self._moved:
            self._moved.wait_for(lambda: self.error or self.ended != self._seen, limit_s)
            if self.error is not None:
                raise self.error
            self._seen = self.ended

    def quiet(self, patience_s: float | None) -> bool:
        """Return True when all has left that other ranks may wait for, and all has come, since they would take an end
        before that for an error. False after `patience_s` seconds or an error.
        """
        with self._moved:
            self._moved.wait_for(lambda: self.error or self._is_quiet(), patience_s)
            return self._is_quiet()

    def _is_quiet(self) -> bool:
        return not self._leaving and self.ended == self._begun

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
            self._links = replace(self._links, upward=None, downward=None)

    def _blocks(self, part: torch.Tensor) -> Sequence[torch.Tensor]:
        blocks: Sequence[torch.Tensor] = part.split(max(1, self._block_bytes // part.element_size()))
        return blocks

    def _begin(
        self,
        urgency: int,
        place: int,
        transfer: ShardTransfer,
        whole_bytes: int,
        goes: Goes,
        comes: Comes,
    ) -> ShardTransfer:
        """Hand over blocks to other ranks, and want those of theirs."""
        as_bytes = whole_bytes // 2
        transfer.coming, transfer.place, transfer.size_bytes = len(comes), place, as_bytes
        goes.sort(key=lambda row: row[1].number)  # the first ones of all parts first
        with self._moved:
            if self.error is not None:
                raise self.error
            try:
                self._begun += 1
                now = time.monotonic()
                self.log.added(place, as_bytes, now)
                self.log.started(place, as_bytes, now)
                with unrecorded():
                    self._leaving += 1
                    self._hand_over(transfer, goes)
                    for other, block, where, arrived in comes:
                        lane = self._lane(other, transfer.stage)
                        tag = self._tag_of(transfer, block)
                        heapq.heappush(lane.wanted, _Wanted((urgency, self._begun), tag, transfer, where, arrived))
                    for other in sorted({row[0] for row in comes}, key=self._distance):
                        self._ask(other, self._lane(other, transfer.stage))
            except BaseException as error:
                # Also where the program is interrupted: nobody knows what other ranks will see of this collective.
                self._fail(error)
                raise
            self._moved.notify_all()
        return transfer

    def _hand_over(self, transfer: ShardTransfer, goes: Goes) -> None:
        for other, block, data in goes:
            transfer.sends.append((self._links.send(data, other, self._tag_of(transfer, block)), data))

    def _tag_of(self, transfer: ShardTransfer, block: PartBlock) -> int:
        return transfer.first + block.number * self._links.ranks + block.part

    def _distance(self, other: int) -> int:
        return (other - self._links.rank) % self._links.ranks

    def _lane(self, other: int, stage: int) -> _Lane:
        lane = self._lanes.get((other, stage))
        if lane is None:
            lane = self._lanes[other, stage] = _Lane(self._relays)
            for place, asked in enumerate(lane.asked):
                self._start(functools.partial(self._receive, other, lane, asked), f"receives-{other}-{stage}-{place}")
        return lane

    def _ask(self, other: int, lane: _Lane) -> None:
        """Ask for the most urgent blocks of another rank, as many as may be under way."""
        for asked in lane.asked:
            while lane.wanted and len(asked.blocks) < asked.most:
                coming = lane.next(asked.oldest)
                block = coming.place()
                asked.blocks.append((coming, block, self._links.receive(block, other, coming.tag)))

    def _run(self, step: Callable[[], bool]) -> None:
        """Take steps until there are no more, in a thread of ours."""
        with torch.no_grad(), unrecorded():
            try:
                while step():
                    pass
            except BaseException as error:
                with self._moved:
                    self._fail(error)

    def _receive(self, other: int, lane: _Lane, asked: _Asked) -> bool:
        with self._moved:
            self._moved.wait_for(lambda: asked.blocks or self._closed or self.error)
            if not asked.blocks or self.error is not None:
                return False
            coming, block, work = asked.blocks[0]
        work.wait(self._links.timeout)
        goes = coming.arrived(block)
        transfer = coming.transfer
        with self._moved:
            asked.blocks.popleft()
            self._hand_over(transfer, goes)
            self._ask(other, lane)
            transfer.coming -= 1
            if len(lane.asked) > 1:  # Another thread may wait for what was asked for.
                self._moved.notify_all()
            if transfer.coming > 0:
                return True
            self._handed_over.append(transfer)
        then, transfer.then = transfer.then, _nothing
        then()
        with self._moved:
            transfer.there = True
            self.ended += 1
            self.log.finished(transfer.place, transfer.size_bytes, time.monotonic())
            self._moved.notify_all()
        return True

    def _send(self) -> bool:
        with self._moved:
            self._moved.wait_for(lambda: self._handed_over or self._closed or self.error)
            if not self._handed_over or self.error is not None:
                return False
            transfer = self._handed_over.popleft()
        sends, transfer.sends = transfer.sends, []
        for work, _ in sends:
            work.wait(self._links.timeout)
        sends.clear()
        with self._moved:
            self._leaving -= 1
            self._moved.notify_all()
        return True

    def _fail(self, error: BaseException) -> None:
        if self.error is None:
            self.error = error
        self._moved.notify_all()


class _Sum:
    """Block of a sum over this rank and the ranks `adds`, added up in their order when the last part is there, and
    divided by `by`. `place` is where it goes, None for memory of its own; `passes` returns what leaves then.
    """

    def __init__(
        self,
        place: torch.Tensor | None,
        own: torch.Tensor,
        rank: int,
        adds: Sequence[int],
        by: int,
        passes: Callable[[torch.Tensor], Goes],
    ) -> None:
        self._place = place
        self._parts: dict[int, torch.Tensor] = {rank: own}
        self._count = 1 + len(adds)
        self._by = by
        self._passes = passes
        self._lock = free_in_forks(threading.Lock())

    def add(self, rank: int, part: torch.Tensor) -> Goes:
        """Take in the part of a rank. Returns what leaves now."""
        with self._lock:
            self._parts[rank] = part
            if len(self._parts) < self._count:
                return []
        whole = torch.empty_like(part) if self._place is None else self._place
        parts = (self._parts[rank].split(SERIAL) for rank in sorted(self._parts))
        for place, first, second, *others in zip(whole.split(SERIAL), *parts, strict=True):
            torch.add(first, second, out=place)
            for other in others:
                place.add_(other)
            if self._by > 1:
                place.div_(self._by)
        self._parts.clear()
        return self._passes(whole)


def _passes_nothing(whole: torch.Tensor) -> Goes:
    return []


def _passes_to(rank: int, block: PartBlock, whole: torch.Tensor) -> Goes:
    return [(rank, block, whole)]


def _passed(goes: Goes, block: torch.Tensor) -> Goes:
    return goes


def _same(block: torch.Tensor) -> torch.Tensor:
    return block


def _nothing() -> None:
    pass
