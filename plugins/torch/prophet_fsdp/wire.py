"""Blocks between the ranks of a sharding group, the most urgent first.

Rule of this file: from tensors to blocks that travel, and back. It knows no modules and no parameters. collectives.py
decides what is urgent.

Collectives here are made of sends and receives, so a reduce-scatter costs half the bytes of gloo's, which is an
all-reduce inside. Each rank sends part r to rank r, and sums what it receives in the order of ranks. If ranks share
hosts, each part crosses a host's link once (`route_of`): one rank of each other host, the relay, passes it on there. A
part that is summed goes the same way back, so each host's ranks are summed first.

A reduction between replicas may have several *stages*, each a collective. On each rank a stage starts once the one
before it has arrived there, so a program may read a gradient on one rank alone. All ranks reserve the numbers of all
blocks when the reduction starts, in the order of the program. Two replicas send each other everything. More replicas
reduce one part each and gather them, which sends fewer bytes.

The receiver decides the order. Gloo sends a block once its receiver has announced that it waits for the block. So a
rank hands over all its outgoing blocks at once, and requests a few blocks at a time from each other rank: those of the
most urgent collective. Data from lower to higher ranks has connections of its own, since announcements would otherwise
queue behind data.

Why this cannot deadlock. All ranks begin the same collectives in the same order, as torch demands. The other ranks have
begun, and handed over the data of, all that the rank which has begun the fewest may wait for. So whatever it waits for
ends, and it goes on until another rank has begun fewer. A relay may have requested blocks of a collective that their
sender has not begun. So each requested block is then waited for separately, and one of them is the oldest collective's.
The second stage of a reduction begins once its first has arrived, whatever the program does. Blocks of first stages
must never wait behind its blocks: so each stage has requests of its own.
"""

from __future__ import annotations

import datetime
import functools
import heapq
import itertools
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from prophet_ddp.events import EventLog
from prophet_scheduler.forks import free_in_forks
from prophet_scheduler.frontends.threads import OWN
from prophet_scheduler.frontends.torch.recording import unrecorded

AT_ONCE = 4
"""Maximum number of blocks requested from another rank at a time: some travel while requests are on their way."""
SENDERS = 8
"""Number of collectives whose blocks may leave in any order: each has a thread that releases their memory. A rank has
fewer in flight, unless it is far ahead.
"""
TAGS = 2**30
"""Number of different tags of blocks: gloo's have 31 bits."""
FEW = 2
"""Maximum number of replicas that send each other everything."""
SERIAL = 1 << 15
"""Number of elements that torch sums in the calling thread alone (at::internal::GRAIN_SIZE). With more, each of our
threads would have its own team of threads, which would take processors from the program's.
"""


def route_of(hosts: Sequence[str], owner: int) -> list[int]:
    """Return, by rank, the rank that it gets the part of rank `owner` from; the owner gets it from itself. `hosts` has
    each rank's host. Without shared hosts, or with a single one, each part goes straight to everybody. Parts of one
    host's ranks have different relays, as far as there are enough ranks.
    """
    members: dict[str, list[int]] = {}
    for rank, host in enumerate(hosts):
        members.setdefault(host, []).append(rank)
    number = members[hosts[owner]].index(owner)
    relays = {host: ranks[number % len(ranks)] for host, ranks in members.items()} | {hosts[owner]: owner}
    return [owner if rank == relays[host] else relays[host] for rank, host in enumerate(hosts)]


def passes_on(route: Sequence[int], rank: int) -> list[int]:
    """Return the ranks that this one passes the route's part on to, the next one first."""
    following = ((rank + step) % len(route) for step in range(1, len(route)))
    return [other for other in following if route[other] == rank]


@dataclass(frozen=True)
class ShardGroups:
    """Connections of rank `rank` with all others of `ranks`: gloo's groups for data to higher and to lower ranks.
    `timeout` applies to each block.
    """

    upward: Any
    downward: Any
    rank: int
    ranks: int
    timeout: datetime.timedelta
    """Without it gloo uses the timeout with which a group was connected."""
    hosts: Sequence[str] = ()
    """Host of each rank; empty if no two share one."""

    @property
    def relays(self) -> bool:
        """True if some ranks pass parts on: there are several hosts, and ranks that share one."""
        return 1 < len(set(self.hosts)) < self.ranks

    def send(self, block: torch.Tensor, other: int, number: int) -> Any:
        """Hand the block of this number over to another rank. Return torch's Work."""
        return (self.upward if other > self.rank else self.downward).send([block], other, number % TAGS)

    def receive(self, block: torch.Tensor, other: int, number: int) -> Any:
        """Request the block of this number from another rank. Return torch's Work."""
        return (self.upward if other < self.rank else self.downward).recv([block], other, number % TAGS)


@dataclass(eq=False)
class ShardTransfer:
    """A collective of this rank, which may begin later. `first` is the number of its first block, in the program's
    order. `stage` is the number of collectives of its reduction that precede it on its `wire`.
    """

    wire: ShardWire
    first: int
    stage: int
    then: Callable[[], object] | None = None
    """Function that starts the next stage, in a thread of the wire's; None if there is none."""
    there: bool = False
    """True once all blocks have arrived, and the next stage has begun."""
    coming: int = 0
    """Number of blocks that have not arrived."""
    place: int = 0
    """Its module's place in forward."""
    size_bytes: int = 0
    """Bytes of the all-reduce that it counts as."""
    sends: list[tuple[Any, torch.Tensor]] = field(default_factory=list)
    """torch's Work of each outgoing block, and the block's memory."""


Goes = list[tuple[int, int, torch.Tensor]]
"""Outgoing blocks, each with the rank that gets it, and its number among the collective's."""
Comes = list[tuple[int, int, Callable[[], torch.Tensor], Callable[[torch.Tensor], Goes]]]
"""Incoming blocks, each with the rank that sends it, its number, a function that returns the memory for it, and one to
call when it has arrived, which returns the blocks to send next."""


@dataclass(order=True)
class _Wanted:
    """Block to come from another rank. `place()` returns its memory; `arrived(block)` is called in a thread of ours."""

    urgency: tuple[int, int]
    number: int
    transfer: ShardTransfer = field(compare=False)
    place: Callable[[], torch.Tensor] = field(compare=False)
    arrived: Callable[[torch.Tensor], Goes] = field(compare=False)


@dataclass
class _Asked:
    """Requested blocks, `most` at most, that are waited for in order. `oldest`: those of the oldest collective."""

    most: int
    oldest: bool = False
    blocks: deque[tuple[_Wanted, torch.Tensor, Any]] = field(default_factory=deque)


class _Lane:
    """Blocks to come from one rank, for one stage of reductions. `apart`: requests are waited for separately."""

    def __init__(self, apart: bool) -> None:
        self.wanted: list[_Wanted] = []
        """Heap of blocks not requested yet."""
        self.asked = [_Asked(1, oldest=not place) for place in range(AT_ONCE)] if apart else [_Asked(AT_ONCE)]

    def next(self, oldest: bool) -> _Wanted:
        """Take the most urgent wanted block, or with `oldest` the first of the oldest collective."""
        if not oldest:
            return heapq.heappop(self.wanted)
        wanted = min(self.wanted, key=lambda each: each.number)
        self.wanted.remove(wanted)
        heapq.heapify(self.wanted)
        return wanted


class ShardWire:
    """Collectives of this rank with all others of a group. Thread-safe.

    The first error stops it: all waiting threads get that error, and nothing more begins.
    """

    def __init__(self, links: ShardGroups, block_bytes: int) -> None:
        self._links = links
        hosts = links.hosts or [str(rank) for rank in range(links.ranks)]
        routes = [route_of(hosts, owner) for owner in range(links.ranks)]
        self._routes = [(route[links.rank], passes_on(route, links.rank)) for route in routes]
        """By owner of a part: the rank that this one gets it from, and those that this one passes it on to."""
        self._block_bytes = block_bytes
        self._moved = free_in_forks(threading.Condition())
        self._reserved = 0
        """Number of blocks of all collectives so far."""
        self._begun = 0
        self._lanes: dict[tuple[int, int], _Lane] = {}
        """By other rank and stage."""
        self._handed_over: deque[ShardTransfer] = deque()
        self._leaving = 0
        """Number of collectives with blocks that have not left."""
        self.error: BaseException | None = None
        """The first error, which stopped it; None if there is none."""
        self.ended = 0
        """Number of collectives that have arrived here."""
        self._seen = 0
        self.log = EventLog(open=False)
        self._closed = False
        self._threads: list[threading.Thread] = []
        for number in range(SENDERS):
            self._start(self._send, f"sends-{number}")

    def _start(self, step: Callable[[], bool], name: str) -> None:
        thread = threading.Thread(target=self._run, args=(step,), name=f"{OWN}{name}", daemon=True)
        self._threads.append(thread)
        thread.start()

    def reserve(self, part: torch.Tensor, stage: int = 0) -> ShardTransfer:
        """Return a collective for parts of this size, to begin later. All ranks reserve in the same order."""
        with self._moved:
            first = self._reserved
            self._reserved += len(self._blocks(part)) * self._links.ranks
            return ShardTransfer(self, first, stage)

    def gather(
        self, output: torch.Tensor, urgency: int, place: int, reserved: ShardTransfer | None = None
    ) -> ShardTransfer:
        """Start to fill the other ranks' parts of `output`, a flat tensor that already has this rank's own.

        A collective of lower `urgency` goes first, and of equal ones the older. `place` is the module's.
        """
        rank, goes, comes = self._links.rank, Goes(), Comes()
        rows = output.view(self._links.ranks, -1)
        for owner, (before, after) in enumerate(self._routes):
            for number, block in self._numbered(rows[owner], owner):
                passed = [(other, number, block) for other in after]
                if owner == rank:
                    goes += passed
                else:
                    where, arrived = functools.partial(_itself, block), functools.partial(_itself, passed)
                    comes.append((before, number, where, arrived))
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
        """Start to sum this rank's part of all ranks' `input` into `output`; for an average, divide by their number.
        With `whole` each rank's part is all of it. Both are flat tensors: do not change them before the sum arrives.
        """
        rank, ranks, goes, comes = self._links.rank, self._links.ranks, Goes(), Comes()
        rows = input.expand(ranks, -1) if whole else input.view(ranks, -1)
        to = self._blocks(output)
        for owner, (before, adds) in enumerate(self._routes):
            for number, own in self._numbered(rows[owner], owner):
                if not adds:
                    goes.append((before, number, own))
                    continue
                if owner == rank:
                    total = _Sum(own, rank, adds, place=to[number // ranks], by=ranks if average else 1)
                else:
                    total = _Sum(own, rank, adds, to=(before, number))
                where = functools.partial(torch.empty_like, own)
                comes += [(other, number, where, functools.partial(total.add, other)) for other in adds]
        return self._begin(urgency, place, reserved or self.reserve(output), rows.nbytes, goes, comes)

    def wait(self, transfer: ShardTransfer) -> None:
        """Return once the collective has arrived. Raises the first error unless it has arrived by then."""
        with self._moved:
            self._moved.wait_for(lambda: self.error or transfer.there)
            if self.error is not None and not transfer.there:
                raise self.error

    def wait_activity(self, limit_s: float) -> None:
        """Return once a collective has arrived since the last call, or after `limit_s`. Raises the first error."""
        with self._moved:
            self._moved.wait_for(lambda: self.error or self.ended != self._seen, limit_s)
            if self.error is not None:
                raise self.error
            self._seen = self.ended

    def quiet(self, patience_s: float | None) -> bool:
        """Return True once everything has left that other ranks may wait for, and everything has arrived: other ranks
        would take an earlier end for an error. False after `patience_s` seconds or an error.
        """
        with self._moved:
            self._moved.wait_for(lambda: self.error or self._is_quiet(), patience_s)
            return self._is_quiet()

    def _is_quiet(self) -> bool:
        return not self._leaving and self.ended == self._begun

    def close(self, limit_s: float) -> None:
        """End the threads and connections. Wait up to `limit_s` seconds for operations in flight to finish or fail: a
        thread of gloo's must not call into a Python that is gone.
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

    def _numbered(self, part: torch.Tensor, owner: int) -> Iterator[tuple[int, torch.Tensor]]:
        """Yield the blocks of an owner's part, each with its number among those of all parts."""
        return zip(itertools.count(owner, self._links.ranks), self._blocks(part), strict=False)

    def _begin(
        self,
        urgency: int,
        place: int,
        transfer: ShardTransfer,
        whole_bytes: int,
        goes: Goes,
        comes: Comes,
    ) -> ShardTransfer:
        """Hand over blocks for other ranks, and request theirs."""
        as_bytes = whole_bytes // 2
        transfer.coming, transfer.place, transfer.size_bytes = len(comes), place, as_bytes
        goes.sort(key=lambda row: row[1])  # The first blocks of all parts go first.
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
                    for other, number, where, arrived in comes:
                        wanted = _Wanted((urgency, self._begun), transfer.first + number, transfer, where, arrived)
                        heapq.heappush(self._lane(other, transfer.stage).wanted, wanted)
                    rank, ranks = self._links.rank, self._links.ranks
                    for other in sorted({row[0] for row in comes}, key=lambda other: (other - rank) % ranks):
                        self._ask(other, self._lane(other, transfer.stage))
            except BaseException as error:
                # Also where the program is interrupted: nobody knows what other ranks will see of this collective.
                self._fail(error)
                raise
            self._moved.notify_all()
        return transfer

    def _hand_over(self, transfer: ShardTransfer, goes: Goes) -> None:
        for other, number, data in goes:
            transfer.sends.append((self._links.send(data, other, transfer.first + number), data))

    def _lane(self, other: int, stage: int) -> _Lane:
        lane = self._lanes.get((other, stage))
        if lane is None:
            lane = self._lanes[other, stage] = _Lane(self._links.relays)
            for place, asked in enumerate(lane.asked):
                self._start(functools.partial(self._receive, other, lane, asked), f"receives-{other}-{stage}-{place}")
        return lane

    def _ask(self, other: int, lane: _Lane) -> None:
        """Request the most urgent blocks of another rank, as many as may be in flight."""
        for asked in lane.asked:
            while lane.wanted and len(asked.blocks) < asked.most:
                coming = lane.next(asked.oldest)
                block = coming.place()
                asked.blocks.append((coming, block, self._links.receive(block, other, coming.number)))

    def _run(self, step: Callable[[], bool]) -> None:
        """Take steps until there are none left, in a thread of ours."""
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
            if len(lane.asked) > 1:  # Another thread may wait for what was just requested.
                self._moved.notify_all()
            if transfer.coming > 0:
                return True
            self._handed_over.append(transfer)
        then, transfer.then = transfer.then, None
        if then is not None:
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
    """Sum of one block over this rank and the ranks `adds`. It is computed in the order of ranks once the last part has
    arrived, and divided by `by`. `place` is its memory, None for new memory. `to`: the rank that gets it next, and the
    block's number; None if it stays here.
    """

    def __init__(
        self,
        own: torch.Tensor,
        rank: int,
        adds: Sequence[int],
        place: torch.Tensor | None = None,
        by: int = 1,
        to: tuple[int, int] | None = None,
    ) -> None:
        self._place = place
        self._parts: dict[int, torch.Tensor] = {rank: own}
        self._count = 1 + len(adds)
        self._by = by
        self._to = to
        self._lock = free_in_forks(threading.Lock())

    def add(self, rank: int, part: torch.Tensor) -> Goes:
        """Add the part of a rank. Return the blocks to send next."""
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
        return [] if self._to is None else [(*self._to, whole)]


def _itself(what: Any, *_: object) -> Any:
    return what


@dataclass(frozen=True)
class Stage:
    """A collective of a reduction, and the function that starts it."""

    begin: Callable[[], object]
    transfer: ShardTransfer


class Reduction:
    """Reduction in progress."""

    def __init__(self, stages: Sequence[Stage]) -> None:
        # Keeps no functions that start stages: they hold whole gradients.
        self._transfers = [stage.transfer for stage in stages]
        for stage, following in itertools.pairwise(stages):
            stage.transfer.then = following.begin
        stages[0].begin()

    @property
    def there(self) -> bool:
        """True once the last stage has arrived."""
        return self._transfers[-1].there

    def wait(self) -> None:
        """Wait for the last stage. Raises a wire's error."""
        for transfer in self._transfers:
            transfer.wire.wait(transfer)


def between_replicas(
    wire: ShardWire, rank: int, ranks: int, source: torch.Tensor, average: bool, urgency: int, place: int
) -> tuple[torch.Tensor, list[Stage]]:
    """Return the future sum (or average) of a flat tensor over all replicas, and the stages that compute it."""
    if ranks <= FEW:
        result = torch.empty_like(source)
        only = wire.reserve(result)
        return result, [Stage(lambda: wire.reduce(result, source, average, urgency, place, only, whole=True), only)]
    part = -(-source.numel() // ranks)
    whole = source.new_empty(part * ranks)
    first, second = (wire.reserve(whole[:part], stage) for stage in range(2))

    def reduce() -> None:
        padded = source.new_zeros(part * ranks)
        for to, of in zip(padded.split(SERIAL), source.split(SERIAL), strict=False):
            to[: of.numel()].copy_(of)
        wire.reduce(whole.view(ranks, -1)[rank], padded, average, urgency, place, first)

    return whole[: source.numel()], [
        Stage(reduce, first),
        Stage(lambda: wire.gather(whole, urgency, place, second), second),
    ]
