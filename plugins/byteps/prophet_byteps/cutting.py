"""The cut of a job's gradients, the same on every worker in every round.

Rule of this file: who says what the cut is, and from which round on. How pages of bytes travel is exchange.py's, what a
cut means prophet_scheduler/core/cut.py's, which one is best the policy's.

A key's length is fixed at its first push, so workers that cut differently for one round would break the job
(docs/decisions/agreed-cuts.md). One worker decides: of the first machine's processes the one that talks to the
servers, which is BytePS's last, since only that one sees transfers. After each of the first EARLY_ROUNDS rounds and
every RECUT_ROUNDS later, a worker that has handed over the round's last block sends a page. It has what the worker
measured of its network, and the decider's also has the wanted cut; the sum has all. Before the next round's first block
a worker waits for that sum, which usually came long before, and takes up the cut that it finds: all workers read the
same page before the same round.

The cut is the job's and not the worker's: a worker whose agent or hook has failed sends and follows all the same, and
if that is the decider, the cut stays as it is. How much is in flight under it is the decider's choice as well, and
holds from the same round on: each worker by itself found the credit for a new cut seconds later, when its own events
had told it enough, and until then all others waited for what it had in flight too much.

A page has PAGE_BYTES: the cut in its first half (`Cut.encode`; zeros where nothing is wanted), whose last 8 bytes are
the credit (bytes, 0 where nothing is said), and in the other a row of 16 bytes a worker, by rank: bandwidth, overhead
and acknowledgement delay of its network as 32-bit floats, then the room that its machine has in shared memory, in MiB
as a 32-bit number, 0 where it is not known. Workers beyond the MOST_ROWS-th have none. An optimizer has two pages and
uses them in turn, as a gradient its two keys: a server's sum is overwritten at the next round's first push
(docs/decisions/two-keys-a-gradient.md).
"""

from __future__ import annotations

import logging
import struct
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from prophet_byteps import agreement
from prophet_byteps.agreement import PAGE_BYTES, Answer, PageExchange
from prophet_scheduler.core.cut import EARLY_ROUNDS, RECUT_ROUNDS, UNIT_BYTES, Cut, Refusal, Segment, learning_cut
from prophet_scheduler.core.errors import UserError
from prophet_scheduler.core.network import Network
from prophet_scheduler.core.settings import DEFAULT_PARTITION_BYTES
from prophet_scheduler.forks import free_in_forks

if TYPE_CHECKING:
    from prophet_byteps.tracing import TraceBoard

_ROW = struct.Struct("<3fI")
_CREDIT = struct.Struct("<Q")
_ROWS_AT = PAGE_BYTES // 2
_CREDIT_AT = _ROWS_AT - _CREDIT.size
KEPT_ITERATIONS = 64
"""Newest iterations that wait for the agent."""
MOST_ROWS = (PAGE_BYTES - _ROWS_AT) // _ROW.size

logger = logging.getLogger("prophet_scheduler")


class Wish(NamedTuple):
    """What the decider wants: another cut, and the bytes in flight under it; each None where nothing is to be said.

    A credit without a cut is for the one in force.
    """

    cut: Cut | None = None
    credit: int | None = None


NOTHING = Wish()


class Reason(NamedTuple):
    """Why a cut is wanted, in a few words, and the seconds that an iteration is predicted to take under it."""

    why: str = ""
    predicted_s: float | None = None


NO_REASON = Reason()


def encode_page(rank: int, wish: Wish, network: Network | None, room: int | None = None) -> bytes:
    """What the worker of this rank adds to a page. `wish` is the decider's, NOTHING on all others; `room` is bytes."""
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
    """What a sum says is wanted. Raises ValueError where that is no cut."""
    (credit,) = _CREDIT.unpack_from(page, _CREDIT_AT)
    return Wish(Cut.decode(page[:_CREDIT_AT]), credit or None)


def networks_of_page(page: bytes) -> tuple[Network, ...]:
    """What workers said of their networks, without those that had nothing to say or what is no network."""
    networks = []
    for *row, _ in _ROW.iter_unpack(page[_ROWS_AT:]):
        try:
            networks.append(Network(*row))
        except UserError:
            continue
    return tuple(networks)


def room_of_page(page: bytes) -> int | None:
    """The least room that a worker said its machine has, in bytes."""
    return min((room << 20 for *_, room in _ROW.iter_unpack(page[_ROWS_AT:]) if room), default=None)


def cut_from(cut: Cut, place: int) -> Cut:
    """The cut as it is from `place` (bytes, whole UNIT_BYTES) on, with starts counted from there."""
    later = (Segment(s.start - place, s.block_bytes) for s in cut.segments if s.start > place)
    return Cut((Segment(0, cut.block_bytes_at(place)), *later))


def _learning(sizes: Sequence[int]) -> Cut:
    return learning_cut(sum(sizes))


def decider(local_size: int) -> int:
    """The rank of the worker that decides, where each machine has so many processes: the first one's last."""
    return local_size - 1


class CutBoard:
    """Where the agent's thread and the front ends of one process leave each other notes; safe to use from any thread.

    `fixed` is the cut of a job whose cut never changes: then nothing is sent. It is None where plans say the cut.
    `first_cut(sizes)` is what this worker would begin with, for gradients of these bytes in forward order; that of the
    worker that decides counts.
    """

    def __init__(self, fixed: Cut | None, first_cut: Callable[[Sequence[int]], Cut] = _learning) -> None:
        self.fixed = fixed
        self.trace: TraceBoard | None = None
        """Where what was traced is left; None where no policy plans with it."""
        self._first_cut = first_cut
        self._lock = free_in_forks(threading.Lock())
        self._wanted = NOTHING
        self._credit: int | None = None
        self._reason = self._reason_in_force = NO_REASON
        self._network: Network | None = None
        self._networks: tuple[Network, ...] = ()
        self._in_force = fixed
        self._leader: int | None = None
        self._barrier = self._half = False
        self._recuts = 0
        self._refusals: dict[Cut, Refusal] = {}
        self._refused: dict[Cut, str] = {}
        self._complained = False
        self._measures = False
        self._ended: deque[tuple[Cut, float]] = deque(maxlen=KEPT_ITERATIONS)

    # The agent's.

    def want(self, cut: Cut, reason: Reason = NO_REASON, credit: int | None = None) -> None:
        """From some later round on, if this worker decides; `credit` in bytes."""
        with self._lock:
            self._wanted, self._reason = Wish(cut, credit), reason

    def want_credit(self, credit: int) -> None:
        """The same, of the bytes in flight alone."""
        with self._lock:
            self._wanted = self._wanted._replace(credit=credit)

    def measured(self, network: Network) -> None:
        """What this worker measured, for the others to know."""
        with self._lock:
            self._network = network

    @property
    def networks(self) -> tuple[Network, ...]:
        """What the workers last said of their networks, without those that had nothing to say."""
        with self._lock:
            return self._networks

    @property
    def in_force(self) -> Cut | None:
        """The cut of the latest round of the first optimizer; None before its first, unless it is fixed."""
        with self._lock:
            return self._in_force

    @property
    def credit(self) -> int | None:
        """The bytes in flight that the deciding worker wants of all under the cut in force; None before it has said."""
        with self._lock:
            return self._credit

    @property
    def barrier(self) -> bool:
        """Whether iterations of the first optimizer were seen to wait for all averages (learn/barrier.py)."""
        with self._lock:
            return self._barrier

    @property
    def half(self) -> bool:
        """Whether its gradients travel in half precision."""
        with self._lock:
            return self._half

    @property
    def recuts(self) -> int:
        """How often the cut of the first optimizer has changed since it began."""
        with self._lock:
            return self._recuts

    @property
    def recut_reason(self) -> Reason:
        """Why the last change was wanted; NO_REASON on workers that did not decide."""
        with self._lock:
            return self._reason_in_force

    @property
    def refusals(self) -> tuple[Refusal, ...]:
        """What was wanted and cannot be had, as things are."""
        with self._lock:
            return tuple(self._refusals.values())

    @property
    def refused(self) -> tuple[str, ...]:
        """All that was ever refused, each in words, with the last reason."""
        with self._lock:
            return tuple(self._refused.values())

    def take_ended(self) -> list[tuple[Cut, float]] | None:
        """Cut and seconds of the first optimizer's iterations since the last call; None where nobody measures them."""
        if not self._measures:
            return None
        return [self._ended.popleft() for _ in range(len(self._ended))]

    # The front ends'.

    def iterated(self, number: int, cut: Cut, took_s: float | None) -> None:
        """An iteration of optimizer `number` took so many seconds under this cut; None for one that does not count."""
        with self._lock:
            if number == self._leader:
                self._measures = True
                if took_s is not None:
                    self._ended.append((cut, took_s))

    def first_cut(self, sizes: Sequence[int]) -> Cut:
        """What this worker would begin with, for gradients of these bytes in forward order."""
        try:
            return self._first_cut(sizes)
        except Exception as error:
            self.complain(f"what is kept of earlier runs cannot be used ({type(error).__name__}: {error})")
            return _learning(sizes)

    def goes_on(self, number: int, barrier: bool, half: bool = False) -> None:
        """What was seen so far of optimizer `number`, for the agent to know."""
        with self._lock:
            if self._leader is None:  # where sizes stay, nobody takes up a cut
                self._leader = number
            if number == self._leader:
                self._barrier, self._half = barrier, half

    # CutControl's.

    def said(self) -> tuple[Wish, Network | None]:
        """What this worker has to say: (what it wants, its network)."""
        with self._lock:
            return self._wanted, self._network

    def heard(self, networks: tuple[Network, ...]) -> None:
        with self._lock:
            self._networks = networks

    def begins(self, number: int, cut: Cut) -> None:
        """Optimizer `number` begins so, and not as was agreed on."""
        with self._lock:
            if number == self._leader:
                self._in_force = cut

    def taken_up(self, number: int, cut: Cut, credit: int | None = None) -> None:
        """Optimizer `number` cuts so from its next round on, with so many bytes in flight if that was said."""
        with self._lock:
            if self._leader is None:
                self._leader = number
            if number == self._leader:
                if self._in_force not in (None, cut):
                    self._recuts += 1
                    self._reason_in_force = self._reason if cut == self._wanted.cut else NO_REASON
                self._in_force = cut
                self._credit = credit or self._credit

    def refuse(self, refusal: Refusal) -> None:
        """No worker takes up this cut."""
        sizes = sorted({segment.block_bytes >> 10 for segment in refusal.cut.segments})
        what = f"blocks of {' and '.join(map(str, sizes))} KiB are not to be had: {refusal.why}"
        with self._lock:
            self._refusals[refusal.cut] = refusal
            self._refused[refusal.cut] = what
        self.complain(what)

    def room_again(self) -> None:
        """New cuts can be had, where there was no room for any."""
        with self._lock:
            self._refusals = {cut: refusal for cut, refusal in self._refusals.items() if not refusal.any_new}

    def begin_anew(self) -> None:
        """Nothing that was refused need be refused again."""
        with self._lock:
            self._refusals.clear()

    def complain(self, what: str) -> None:
        """One warning in a process, whatever the matter."""
        with self._lock:
            complained, self._complained = self._complained, True
        if not complained:
            logger.warning("Prophet: %s", what)


class CutControl:
    """The cut of one optimizer. `number` counts the optimizers of the process; alike on all workers, as they are.

    Where there is no `exchange` the workers cannot agree on anything, so all stay with a size that they need not agree
    on. `rank` and `workers` are BytePS's rank and size, `local_size` is how many of them this machine has. Not safe to
    use from several threads at once.
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
        self._exchange = exchange
        self._rank = rank
        self._workers = workers
        self._decider = decider(local_size)
        self._fixed = board.fixed
        if exchange is None and self._fixed is None:
            self._fixed = Cut.uniform(DEFAULT_PARTITION_BYTES)
        from prophet_byteps import shared_memory  # Only a process that sends needs it.

        self._room = shared_memory.room_bytes
        self._memory = shared_memory.FOLDER
        self._least_room: int | None = None
        self._total = 0
        self._had: set[Cut] = set()
        self._place = 0
        self._cut: Cut | None = None
        self._rounds = 0
        self._sent = 0
        self._answer: Answer | None = None

    def declare(self) -> None:
        """Gives the pages their numbers, at the same place of the program on every worker; nothing for a fixed cut."""
        if self._fixed is None:
            assert self._exchange is not None
            for slot in (0, 1):
                self._exchange.declare(self._name(slot))

    def first(self, sizes: Sequence[int], base: int = 0) -> Cut:
        """The cut of the first round: what the decider would begin with. Waits until all workers have asked.

        `sizes` are the bytes of the gradients in forward order, `base` the first id that their blocks may have. To be
        called again after an elastic resume: then it begins anew.
        """
        own = self._board.first_cut(sizes)  # Asked on every worker: it is how one knows what is kept of this job.
        if self._fixed is None:
            self._place = base * UNIT_BYTES
            self._total = sum(sizes)
            self._cut, self._answer = None, None
            self._rounds = self._sent = 0
            wanted, network = self._wanted_and_network()
            if self._rank == self._decider and wanted.cut is None:
                wanted = Wish(own)
            self._send(wanted, network)
            cut = self._receive().cut or Cut.uniform(DEFAULT_PARTITION_BYTES)
        else:
            cut = self._fixed
        self._cut = cut
        self._had = {cut}
        self._board.begin_anew()
        self._board.taken_up(self._number, cut)
        return cut

    def begins_otherwise(self, cut: Cut, why: str) -> None:
        """Another cut holds than what `first` said, for this reason; on all workers, which count alike."""
        if self._fixed is None and self._cut is not None:
            self._board.refuse(Refusal(self._cut, why))
        self._cut = cut
        self._had = {cut}
        self._board.begins(self._number, cut)

    def restart(self, rank: int, workers: int) -> None:
        """After an elastic resume, before `first`: who this worker is now."""
        self._rank, self._workers = rank, workers

    def round_ends(self) -> None:
        """The round's last block has been handed over."""
        if self._fixed is not None:
            return
        self._rounds += 1
        if self._rounds <= EARLY_ROUNDS or self._rounds % RECUT_ROUNDS == 0:
            self._send(*self._wanted_and_network())

    def round_begins(self, why_not: Callable[[Cut], str] = lambda cut: "") -> Cut | None:
        """To be called before a round's first block: the cut from this round on, None where it stays.

        `why_not` says why the front end cannot cut so, "" where it can; the same on all workers.
        """
        if self._answer is None:
            return None
        cut, credit = self._receive()
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
        """Whether every machine has room for a new cut, as all workers read it: a key has a file in shared memory.

        A new cut has two keys for each byte. As much again stays free for others.
        """
        return self._least_room is None or 2 * 2 * self._total <= self._least_room

    def _no_room(self, cut: Cut) -> Refusal | None:
        if cut in self._had or self._room_for_more:
            return None
        why = (
            f"other sizes need {2 * self._total >> 20} MiB of {self._memory}, "
            f"and a worker's machine has {(self._least_room or 0) >> 20} left"
        )
        return Refusal(cut, why, any_new=True)

    def _name(self, slot: int) -> str:
        return f"prophet.cut.{self._number}.{slot}"

    def _wanted_and_network(self) -> tuple[Wish, Network | None]:
        """This worker's part of the next page. Plans count places in the ids of all optimizers, a page in its own."""
        wanted, network = self._board.said()
        if self._rank != self._decider:
            return NOTHING, network
        if wanted.cut is not None:
            wanted = wanted._replace(cut=cut_from(wanted.cut, self._place))
        return wanted, network

    def _send(self, wish: Wish, network: Network | None) -> None:
        assert self._exchange is not None
        if self._answer is not None:
            raise RuntimeError("a round ended that was not begun: a page of the cut is sent before the last is back")
        self._answer = self._exchange.send(
            self._name(self._sent % 2), encode_page(self._rank, wish, network, self._room())
        )
        self._sent += 1

    def _receive(self) -> Wish:
        """Waits for the page that was sent. NOTHING where nothing is wanted, or what came is no cut."""
        answer, pages = self._answer, list[bytes]()
        assert answer is not None

        def done() -> bool:
            page = answer()
            if page is not None:
                pages.append(page)
            return page is not None

        if not done():
            what = f"all workers to end round {self._rounds} of optimizer {self._number}"
            agreement.wait_for_all(done, what, f"this one is worker {self._rank} of {self._workers}")
        self._answer = None
        self._board.heard(networks_of_page(pages[0]))
        self._least_room = room_of_page(pages[0])
        if self._room_for_more:
            self._board.room_again()
        try:
            return wish_of_page(pages[0])
        except ValueError as error:
            # All workers read the same bytes, so the cut stays on all of them.
            self._board.complain(f"blocks stay as they are, since what all workers read is no cut ({error})")
            return NOTHING
