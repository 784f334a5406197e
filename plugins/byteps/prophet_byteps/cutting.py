"""The cut of a job's gradients, the same on every worker in every round (docs/decisions/agreed-cuts.md).

Rule of this file: whose cut holds, and from which round on. exchange.py sends pages of bytes,
prophet_scheduler/core/cut.py defines a cut, and the policy chooses the best one.

A page has PAGE_BYTES. Its first half has the cut (`Cut.encode`; zeros if none is wanted) and ends with 8 bytes for the
credit (bytes, 0 for none). The second half has a row of 16 bytes for each worker, by rank: bandwidth, overhead and
acknowledgement delay of its network as 32-bit floats, then its machine's free shared memory in MiB as a 32-bit integer,
0 if unknown. Only the first MOST_ROWS workers have a row. An optimizer has two pages and uses them in turn
(docs/decisions/two-keys-a-gradient.md).
"""

from __future__ import annotations

import struct
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from prophet_byteps.agreement import PAGE_BYTES, PageExchange, Pages
from prophet_scheduler.core.cut import UNIT_BYTES, Cut, PageRounds, Refusal, Segment, learning_cut
from prophet_scheduler.core.errors import UserError
from prophet_scheduler.core.network import Network
from prophet_scheduler.core.settings import DEFAULT_PARTITION_BYTES
from prophet_scheduler.forks import free_in_forks
from prophet_scheduler.frontends.notices import logger

if TYPE_CHECKING:
    from prophet_byteps.tracing import TraceBoard
    from prophet_scheduler.core.choice import IterationEnd

_ROW = struct.Struct("<3fI")
_CREDIT = struct.Struct("<Q")
_ROWS_AT = PAGE_BYTES // 2
_CREDIT_AT = _ROWS_AT - _CREDIT.size
KEPT_ITERATIONS = 64
"""Maximum iterations kept for the agent; older ones are dropped."""
MOST_ROWS = (PAGE_BYTES - _ROWS_AT) // _ROW.size


class Wish(NamedTuple):
    """The decider's wish: another cut, and the credit (bytes) to use with it; each may be None.

    A credit without a cut applies to the cut in force.
    """

    cut: Cut | None = None
    credit: int | None = None


NOTHING = Wish()


class Reason(NamedTuple):
    """Why a cut is wanted, in a few words, and the predicted time of an iteration under it, in seconds."""

    why: str = ""
    predicted_s: float | None = None


NO_REASON = Reason()


class InForce(NamedTuple):
    """The first optimizer's cut, replaced as a whole. `cut` is None before its first round, unless it is fixed.

    `credit` (bytes) is the decider's wish for all workers under this cut; None before its first wish. `recuts`
    is the number of changes so far, `reason` is the last change's; NO_REASON on workers that did not decide.
    """

    cut: Cut | None = None
    credit: int | None = None
    recuts: int = 0
    reason: Reason = NO_REASON


def described(refusal: Refusal) -> str:
    """Return a refusal in words."""
    sizes = sorted({segment.block_bytes >> 10 for segment in refusal.cut.segments})
    return f"blocks of {' and '.join(map(str, sizes))} KiB cannot be used: {refusal.why}"


def encode_page(rank: int, wish: Wish, network: Network | None, room: int | None = None) -> bytes:
    """Return the page of the worker with this rank. `wish` is NOTHING except on the decider; `room` is in bytes."""
    page = bytearray(PAGE_BYTES)
    if wish.cut is not None:
        encoded = wish.cut.encode()
        page[: len(encoded)] = encoded
    _CREDIT.pack_into(page, _CREDIT_AT, wish.credit or 0)
    if rank < MOST_ROWS:
        speed = (network.bandwidth, network.overhead_s, network.ack_delay_s) if network is not None else (0.0, 0.0, 0.0)
        mebibytes = 0 if room is None else min(max(1, room >> 20), (1 << 32) - 1)
        _ROW.pack_into(page, _ROWS_AT + rank * _ROW.size, *speed, mebibytes)
    return bytes(page)


def wish_of_page(page: bytes) -> Wish:
    """Return the wish in a sum of pages. Raises ValueError if its cut is invalid."""
    (credit,) = _CREDIT.unpack_from(page, _CREDIT_AT)
    return Wish(Cut.decode(page[:_CREDIT_AT]), credit or None)


def networks_of_page(page: bytes) -> tuple[Network, ...]:
    """Return the networks in a sum of pages, except missing and invalid ones."""
    networks = []
    for *row, _ in _ROW.iter_unpack(page[_ROWS_AT:]):
        try:
            networks.append(Network(*row))
        except UserError:
            continue
    return tuple(networks)


def room_of_page(page: bytes) -> int | None:
    """Return the least free shared memory of any worker's machine, in bytes; None if unknown."""
    return min((room << 20 for *_, room in _ROW.iter_unpack(page[_ROWS_AT:]) if room), default=None)


def cut_from(cut: Cut, place: int) -> Cut:
    """Return the part of the cut from `place` (bytes, a multiple of UNIT_BYTES) on, with starts relative to `place`."""
    later = (Segment(s.start - place, s.block_bytes) for s in cut.segments if s.start > place)
    return Cut((Segment(0, cut.block_bytes_at(place)), *later))


def decider(local_size: int) -> int:
    """Return the rank of the deciding worker: the last of the `local_size` processes on the first machine. On each
    machine only the last one talks to the servers.
    """
    return local_size - 1


class CutBoard:
    """Notes between the agent's thread and the front ends of one process. Thread-safe.

    `fixed` is the cut of a job whose cut never changes, so that no pages are sent; None if plans decide the cut.
    `first_cut(sizes)` returns this worker's first cut, for gradients of these bytes in forward order, and never raises.
    """

    def __init__(
        self, fixed: Cut | None, first_cut: Callable[[Sequence[int]], Cut] = lambda sizes: learning_cut(sum(sizes))
    ) -> None:
        self.fixed = fixed
        self.first_cut = first_cut
        self.trace: TraceBoard | None = None
        """Board for traced times; None if the policy does not plan with them."""
        self._lock = free_in_forks(threading.Lock())
        self._wanted = NOTHING
        self._reason = NO_REASON
        self._network: Network | None = None
        self.networks: tuple[Network, ...] = ()
        """Latest network of each worker that has measured one."""
        self.in_force = InForce(fixed)
        self.barrier = self.half = False
        """`barrier`: the first optimizer's iterations were seen to wait for all averages (learn/barrier.py). `half`:
        its gradients travel in half precision."""
        self._leader: int | None = None
        self._refusals: dict[Cut, tuple[Refusal, bool]] = {}
        """All refusals so far, each with True if it still holds."""
        self._complained = False
        self._ended: deque[IterationEnd] | None = None
        """Iterations that the agent has not taken yet; None until iterations are measured."""

    # Called by the agent.

    def want(self, cut: Cut | None, reason: Reason = NO_REASON, credit: int | None = None) -> None:
        """Ask for a cut from a later round on, with this credit in bytes, or for another credit only. Has an effect
        only on the decider.
        """
        with self._lock:
            if cut is not None:
                self._wanted, self._reason = Wish(cut, credit), reason
            elif credit is not None:
                self._wanted = self._wanted._replace(credit=credit)

    def measured(self, network: Network) -> None:
        """Record this worker's measured network, for the other workers."""
        with self._lock:
            self._network = network

    @property
    def refusals(self) -> tuple[Refusal, ...]:
        """Refusals that still hold."""
        with self._lock:
            return tuple(refusal for refusal, holds in self._refusals.values() if holds)

    @property
    def refused(self) -> tuple[str, ...]:
        """All refusals so far in words, each with its last reason."""
        with self._lock:
            return tuple(described(refusal) for refusal, _ in self._refusals.values())

    def take_ended(self) -> list[IterationEnd] | None:
        """Return the first optimizer's iterations since the last call; None if they are not measured."""
        ended = self._ended
        return None if ended is None else [ended.popleft() for _ in range(len(ended))]

    # Called by the front ends.

    def iterated(self, number: int, ended: IterationEnd | None) -> None:
        """Record an iteration of optimizer `number`; None if it does not count."""
        with self._lock:
            if number == self._leader:
                if self._ended is None:
                    self._ended = deque(maxlen=KEPT_ITERATIONS)
                if ended is not None:
                    self._ended.append(ended)

    def goes_on(self, number: int, barrier: bool, half: bool = False) -> None:
        """Record observations of optimizer `number` so far, for the agent."""
        with self._lock:
            if self._leader is None:  # with a fixed cut, taken_up may never be called
                self._leader = number
            if number == self._leader:
                self.barrier, self.half = barrier, half

    # Called by CutControl.

    def said(self) -> tuple[Wish, Network | None]:
        """Return (wish, network) of this worker."""
        with self._lock:
            return self._wanted, self._network

    def begins(self, number: int, cut: Cut) -> None:
        """Record that optimizer `number` starts with this cut instead of the agreed one."""
        with self._lock:
            if number == self._leader:
                self.in_force = self.in_force._replace(cut=cut)

    def taken_up(self, number: int, cut: Cut, credit: int | None = None) -> None:
        """Record that optimizer `number` has this cut from its next round on, with this credit (bytes) if given."""
        with self._lock:
            if self._leader is None:
                self._leader = number
            if number == self._leader:
                before = self.in_force
                after = before._replace(cut=cut, credit=credit or before.credit)
                if before.cut not in (None, cut):
                    reason = self._reason if cut == self._wanted.cut else NO_REASON
                    after = after._replace(recuts=before.recuts + 1, reason=reason)
                self.in_force = after

    def refuse(self, refusal: Refusal) -> None:
        """Record a cut that no worker takes up."""
        with self._lock:
            self._refusals[refusal.cut] = refusal, True
        self.complain(described(refusal))

    def drop_refusals(self, any_new: bool = False) -> None:
        """Drop all refusals; with `any_new`, only those for lack of room."""
        with self._lock:
            for refusal, holds in list(self._refusals.values()):
                self._refusals[refusal.cut] = refusal, holds and any_new and not refusal.any_new

    def complain(self, what: str) -> None:
        """Warn of `what`. Only the first warning of a process is logged, whatever it is about."""
        with self._lock:
            complained, self._complained = self._complained, True
        if not complained:
            logger.warning("Prophet: %s", what)


class CutControl:
    """The cut of one optimizer. `number` is its number in the process, the same on all workers.

    Without an `exchange` the workers cannot agree on anything, so all keep the default size. `rank` and `workers` are
    BytePS's rank and size, `local_size` is the number of workers on this machine. Not thread-safe.
    """

    def __init__(
        self,
        board: CutBoard,
        number: int,
        exchange: PageExchange | None,
        rank: int,
        workers: int,
        local_size: int = 1,
    ) -> None:
        self._board = board
        self._number = number
        self._rank = rank
        self._workers = workers
        self._decider = decider(local_size)
        self._pages: Pages | None = None
        """Pages for the agreement; None if the cut is fixed or there is no exchange."""
        if board.fixed is None and exchange is not None:
            self._pages = Pages(exchange, *(f"prophet.cut.{number}.{slot}" for slot in (0, 1)))
        from prophet_byteps import shared_memory  # Only a sending process needs it.

        self._room = shared_memory.room_bytes
        self._least_room: int | None = None
        self._total = 0
        self._had: set[Cut] = set()
        self._place = 0
        self._cut: Cut | None = None
        self._rounds = PageRounds()

    def declare(self) -> None:
        """Declare the pages, if any, at the same point of the program on every worker."""
        if self._pages is not None:
            self._pages.declare()

    def ask(self, sizes: Sequence[int], base: int = 0) -> None:
        """Ask for the cut of the first round, and return at once. `sizes` are the bytes of the gradients in forward
        order, `base` the first id that their blocks may have. Ask again after an elastic resume, or if sizes change.
        """
        own = self._board.first_cut(sizes)  # Called on every worker: it also loads results kept from earlier runs.
        if self._pages is not None:
            if self._pages.sent:
                self._receive(self._pages)
            self._place = base * UNIT_BYTES
            self._total = sum(sizes)
            self._cut, self._rounds = None, PageRounds()
            self._send(self._pages, first=own)

    def first(self) -> Cut:
        """Return the cut of the first round: the decider's first cut, once all workers have asked, or the fixed one."""
        wish = self._board.fixed if self._pages is None else self._receive(self._pages).cut
        cut = wish or Cut.uniform(DEFAULT_PARTITION_BYTES)
        self._cut = cut
        self._had = {cut}
        self._board.drop_refusals()
        self._board.taken_up(self._number, cut)
        return cut

    def begins_otherwise(self, cut: Cut, why: str) -> None:
        """Start with another cut than `first` returned, for this reason. All workers decide alike."""
        if self._pages is not None and self._cut is not None:
            self._board.refuse(Refusal(self._cut, why))
        self._cut = cut
        self._had = {cut}
        self._board.begins(self._number, cut)

    def restart(self, rank: int, workers: int) -> None:
        """Set the new rank and size after an elastic resume, before `ask`."""
        self._rank, self._workers = rank, workers
        if self._pages is not None:
            self._pages.begin_anew()

    def round_ends(self) -> None:
        """Record that the round's last block was handed over; send a page if one is due."""
        if self._pages is not None and self._rounds.round_ends():
            self._send(self._pages)

    def round_begins(self, why_not: Callable[[Cut], str] = lambda cut: "") -> Cut | None:
        """Return the new cut from this round on; None if the cut stays. Call it before the round's first block.

        `why_not` returns why the front end cannot use a cut, "" if it can; it must return the same on all workers.
        """
        if self._pages is None or not self._pages.sent:
            return None
        cut, credit = self._receive(self._pages)
        if cut is None or cut == self._cut:
            if self._cut is not None and credit is not None:
                self._board.taken_up(self._number, self._cut, credit)
            return None
        why = why_not(cut)
        refusal = Refusal(cut, why) if why else self._no_room(cut)
        if refusal is not None:
            self._board.refuse(refusal)
            return None
        self._cut = cut
        self._had.add(cut)
        self._board.taken_up(self._number, cut, credit)
        return cut

    @property
    def _room_for_more(self) -> bool:
        """True if every machine has room for a new cut's keys, each a file in shared memory. The same on all workers.

        A new cut stores each byte under two keys. As much memory again must stay free for others.
        """
        return self._least_room is None or 2 * 2 * self._total <= self._least_room

    def _no_room(self, cut: Cut) -> Refusal | None:
        if cut in self._had or self._room_for_more:
            return None
        from prophet_byteps.shared_memory import FOLDER

        why = (
            f"other sizes need {2 * self._total >> 20} MiB of {FOLDER}, "
            f"and a worker's machine has {(self._least_room or 0) >> 20} MiB left"
        )
        return Refusal(cut, why, any_new=True)

    def _send(self, pages: Pages, first: Cut | None = None) -> None:
        """Send this worker's page; the decider sends its cut `first` if it wants no other yet.

        Plans count places across all optimizers, a page only within its own.
        """
        wanted, network = self._board.said()
        if self._rank != self._decider:
            wanted = NOTHING
        elif wanted.cut is not None:
            wanted = wanted._replace(cut=cut_from(wanted.cut, self._place))
        elif first is not None:
            wanted = Wish(first)
        pages.send(encode_page(self._rank, wanted, network, self._room()))

    def _receive(self, pages: Pages) -> Wish:
        """Wait for the sum of the page sent, and return the wish in it; NOTHING if its cut is invalid."""
        what = f"all workers to finish round {self._rounds.ended} of optimizer {self._number}"
        page = pages.receive(what, f"this one is worker {self._rank} of {self._workers}")
        self._board.networks = networks_of_page(page)
        self._least_room = room_of_page(page)
        if self._room_for_more:
            self._board.drop_refusals(any_new=True)
        try:
            return wish_of_page(page)
        except ValueError as error:
            # All workers read the same bytes, so all of them keep the cut.
            self._board.complain(f"blocks stay as they are, since all workers read an invalid cut ({error})")
            return NOTHING
