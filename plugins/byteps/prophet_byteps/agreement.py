"""Settings that all workers must share, compared through the engine before anything depends on them.

Rule of this file: rows, topics, and the line that reports who has what. `PageExchange` (exchange.py) moves a page of
bytes; only `wait` reads the clock.

Each worker's text is a row in a tensor of bytes, and BytePS's sum of these tensors contains all rows
(docs/decisions/agreement-through-the-engine.md).

    agreement.propose(topic, text)   sends this worker's text; returns at once
    agreement.settle(topic)          waits until all have answered; the process exits if they differ

Every worker must propose the same topics in the same order; `reserve` fixes a topic's place before its text is known.
The agent also polls once a second, so a worker that never calls `settle` exits too.

This must work whatever else differs. ROW_BYTES, PAGE_BYTES, SLOTS, MAGIC and the names never change between releases,
so that a worker can read another release's rows. A topic travels in a slot. A slot is used only once, so a topic that
is proposed again with another text takes the next slot. Slots are declared before the program declares any tensor.
A slot has 16 pages whatever the number of workers (more for more than 256); only pages with rows are sent.
"""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from prophet_scheduler.forks import free_in_forks
from prophet_scheduler.frontends.ending import STALLED, WRONG, end_process
from prophet_scheduler.frontends.notices import logger

ROW_BYTES = 256
PAGE_BYTES = 4096
MAGIC = b"PRO1"
_DIGEST_BYTES = 16
_TEXT_BYTES = ROW_BYTES - len(MAGIC) - _DIGEST_BYTES
_ROWS = PAGE_BYTES // ROW_BYTES
_PAGES = 16
SLOTS = 32
"""Slots declared at the start. Each further topic declares one more, so workers' tensor numbers must agree by then."""

START = "start"
"""First topic of every job."""
START_LIMIT_S = 30.0
"""Seconds to wait for all answers once all workers have connected. A worker answers as soon as it connects."""
WARN_S = 30.0
"""Seconds without an answer before one warning names what is awaited."""
POLL_S = 0.002
_LEAVING = "prophet.leaving"
"""Page that each worker sends when it is at its end."""

Answer = Callable[[], bytes | None]
"""Function that returns the summed page, as often as it is called, or None while the page is in flight."""


class PageExchange(Protocol):
    """Sums pages of bytes over all workers, in one framework."""

    def declare(self, name: str) -> None:
        """Declare the tensor, which gives it its number. All workers must declare in the same order."""
        ...

    def send(self, name: str, page: bytes) -> Answer:
        """Hand the page to the engine, ahead of every gradient, and return at once."""
        ...

    def under_way(self) -> bool:
        """True if a tensor of the program is in flight, as far as that is visible. Thread-safe.

        Pages do not count: waiting for a page has its own time limit, and a worker that waits for none may be far
        ahead of the others.
        """
        ...

    def pages_under_way(self) -> bool:
        """True if a page is in flight, even one that nobody waits for."""
        ...

    def begin_anew(self) -> None:
        """Forget everything in flight when the engine was suspended: it never arrives."""
        ...


class Pages:
    """Pages with these names, used in turn. The sum of each must be received before the next is sent."""

    def __init__(self, exchange: PageExchange, *names: str) -> None:
        self._exchange = exchange
        self._names = names
        self._sent = 0
        self._answer: Answer | None = None

    def declare(self) -> None:
        """Declare the pages, at the same point of the program on every worker."""
        for name in self._names:
            self._exchange.declare(name)

    def begin_anew(self) -> None:
        """Forget a page that was in flight when the engine was suspended."""
        self._sent, self._answer = 0, None

    @property
    def sent(self) -> bool:
        """True if a page was sent and its sum has not been received."""
        return self._answer is not None

    def send(self, page: bytes) -> None:
        """Send the next page, and return at once."""
        if self._answer is not None:
            raise RuntimeError("a round ended that never began: a page is sent before the last sum was received")
        self._answer = self._exchange.send(self._names[self._sent % len(self._names)], page)
        self._sent += 1

    def receive(self, what: str, here: str) -> bytes:
        """Wait until all workers have sent this page, and return the sum. `what` and `here`: see wait_for_all."""
        answer = self._answer
        assert answer is not None
        if answer() is None:
            wait_for_all(lambda: answer() is not None, what, here)
        self._answer = None
        page = answer()
        assert page is not None
        return page


def encode_row(text: str) -> bytes:
    """Return a worker's text as ROW_BYTES bytes. A long text is truncated, but its digest covers all of it."""
    body = text.encode()
    return MAGIC + hashlib.sha256(body).digest()[:_DIGEST_BYTES] + body[:_TEXT_BYTES].ljust(_TEXT_BYTES, b"\0")


def page_count(workers: int) -> int:
    """Return the number of pages that hold a row for each worker."""
    return -(-workers // _ROWS)


def make_page(rank: int, text: str) -> tuple[int, bytes]:
    """Return (number of the page that holds worker `rank`'s row, that page with only this row)."""
    page, place = divmod(rank, _ROWS)
    return page, (bytes(place * ROW_BYTES) + encode_row(text)).ljust(PAGE_BYTES, b"\0")


def rows_of(pages: Sequence[bytes], workers: int) -> list[bytes]:
    """Return the workers' rows, by rank."""
    whole = b"".join(pages)
    return [whole[rank * ROW_BYTES : (rank + 1) * ROW_BYTES] for rank in range(workers)]


def difference(rows: Sequence[bytes]) -> str:
    """Return a line that reports which workers have what; "" if all have the same."""
    who: dict[bytes, list[int]] = {}
    for rank, row in enumerate(rows):
        who.setdefault(row if row.startswith(MAGIC) else b"", []).append(rank)
    if len(who) == 1 and b"" not in who:
        return ""
    shown = "; ".join(f"{_workers(ranks)}: {_words(row)}" for row, ranks in who.items())
    return f"the workers of this job differ, and must be alike: {shown}"


def _words(row: bytes) -> str:
    """Return the text in a row that Prophet wrote; of a text that was truncated, also the digest."""
    if not row:
        return "not running this Prophet"
    digest, text = row[len(MAGIC) : -_TEXT_BYTES], row[-_TEXT_BYTES:].rstrip(b"\0")
    said = text.decode(errors="replace")
    return said if len(text) < _TEXT_BYTES else f"{said}... ({digest.hex()[:6]})"


def _workers(ranks: list[int]) -> str:
    """Return "worker 3" or "workers 0-2, 5"."""
    runs: list[list[int]] = []
    for rank in ranks:
        if runs and rank == runs[-1][-1] + 1:
            runs[-1].append(rank)
        else:
            runs.append([rank])
    text = ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)
    return f"worker{'s' if len(ranks) > 1 else ''} {text}"


@dataclass
class _Topic:
    slot: int
    text: str | None = None
    answers: list[Answer] = field(default_factory=list)
    settled: bool = True


class Agreement:
    """Topics of one worker. `end(line, status)` is called if workers differ.

    `rank` and `workers` are BytePS's rank and size, as of the last `renew`: each process has a row, even if several
    share a machine. Create it before the program declares a tensor.
    """

    def __init__(
        self, exchange: PageExchange, rank: int, workers: int, end: Callable[[str, int], None] = end_process
    ) -> None:
        self.end = end
        self.exchange = exchange
        self.rank = rank
        self.workers = workers
        self._topics: dict[str, _Topic] = {}
        self._next_slot = 0
        self._lock = free_in_forks(threading.RLock())
        self._left: Answer | None = None
        """None until this worker is at its end."""
        for slot in range(SLOTS):
            self._declare(slot)
        exchange.declare(_LEAVING)

    def _declare(self, slot: int) -> None:
        for page in range(max(_PAGES, page_count(self.workers))):
            self.exchange.declare(_name(slot, page))

    def reserve(self, topic: str) -> None:
        """Give the topic its place in the order of topics, if it has none yet."""
        with self._lock:
            if topic not in self._topics:
                self._topics[topic] = _Topic(self._take_slot())

    def _take_slot(self) -> int:
        slot = self._next_slot
        self._next_slot += 1
        if slot >= SLOTS:
            self._declare(slot)
        return slot

    def propose(self, topic: str, text: str) -> None:
        """Send this worker's text. Proposing the same text again sends nothing."""
        with self._lock:
            self.reserve(topic)
            state = self._topics[topic]
            if state.text != text:
                self._send(topic, text, state.slot if state.text is None else self._take_slot())

    def _send(self, topic: str, text: str, slot: int) -> None:
        self._topics[topic] = state = _Topic(slot, text, settled=False)
        own, page = make_page(self.rank, text if topic == START else f"{topic}: {text}")
        for number in range(page_count(self.workers)):
            content = page if number == own else bytes(PAGE_BYTES)
            state.answers.append(self.exchange.send(_name(slot, number), content))

    def poll(self) -> bool:
        """Collect answers, and return True if none is missing. The process exits if workers differ."""
        with self._lock:
            for state in self._topics.values():
                if state.settled:
                    continue
                pages = [page for answer in state.answers if (page := answer()) is not None]
                if len(pages) == len(state.answers):
                    state.settled = True
                    line = difference(rows_of(pages, self.workers))
                    if line:
                        self.end(line, WRONG)
            return all(state.settled for state in self._topics.values())

    def settled(self, topic: str) -> bool:
        """Return True if all workers have answered."""
        with self._lock:
            self.poll()
            return self._topics[topic].settled

    def text(self, topic: str) -> str:
        """Return the text that this worker proposed; "" if it has proposed none."""
        return self._topics[topic].text or ""

    def leave(self) -> None:
        """Tell the other workers that this one is at its end, and return at once."""
        with self._lock:
            if self._left is None:
                self._left = self.exchange.send(_LEAVING, bytes(PAGE_BYTES))

    def all_leave(self) -> bool:
        """Return True if all workers are at their end, so that none sends anything more."""
        with self._lock:
            return self._left is not None and self._left() is not None

    def ended(self) -> None:
        """Expect nothing more from the others: the engine was shut down or suspended."""
        with self._lock:
            self.exchange.begin_anew()
            self._left = lambda: b""

    def renew(self, rank: int, workers: int) -> None:
        """Propose all topics again after the engine has restarted, when nothing is in flight."""
        with self._lock:
            self._left = None
            self.rank, self.workers = rank, workers
            self._next_slot = 0
            for topic, state in list(self._topics.items()):
                slot = self._take_slot()
                self._topics[topic] = _Topic(slot)
                if state.text is not None:
                    self._send(topic, state.text, slot)


def _name(slot: int, page: int) -> str:
    return f"prophet.agreement.{slot}.{page}"


def wait(done: Callable[[], bool], what: str, limit_s: float | None = None) -> bool:
    """Wait until `done()`. Return False if `limit_s` seconds pass first. Warn once after WARN_S, naming `what`."""
    began = time.monotonic()
    warned = False
    while not done():
        waited = time.monotonic() - began
        if limit_s is not None and waited >= limit_s:
            return False
        if waited >= WARN_S and not warned:
            warned = True
            logger.warning("Prophet has waited %.0f s for %s; see what the other processes print", waited, what)
        time.sleep(POLL_S)
    return True


_active: Agreement | None = None
_stall_s: float | None = None


def activate(agreement: Agreement | None, stall_s: float | None = None) -> None:
    """Make the functions below use this agreement. None: there is nothing to agree on (a job of one worker)."""
    global _active, _stall_s
    _active, _stall_s = agreement, stall_s


def active() -> Agreement | None:
    """Return the agreement of this process; None before bps.init() and in a job of one worker."""
    return _active


def reserve(topic: str) -> None:
    """Give a topic its place in the order of topics, for a text that is known only later."""
    if _active is not None:
        _active.reserve(topic)


def propose(topic: str, text: str) -> None:
    """Send this worker's text for a topic, and return at once. `settle` or the agent detects differences."""
    if _active is not None:
        _active.propose(topic, text)


def settle(topic: str) -> None:
    """Wait until all workers have answered. The process exits with status 2 if they differ.

    Another worker may need a long time to prepare, so PROPHET_STALL_S is the only limit.
    """
    current = _active
    if current is not None:
        what = f"all workers to say what they have for {topic}"
        wait_for_all(lambda: current.settled(topic), what, f"this worker has {current.text(topic)}")


def wait_for_all(done: Callable[[], bool], what: str, here: str) -> None:
    """Wait until `done()`, which depends on other workers. For messages, `what` names it, and `here` is what this
    worker has. The process exits with status 75 if that takes longer than PROPHET_STALL_S.
    """
    current, stall_s = _active, _stall_s
    if not wait(done, what, stall_s) and current is not None:
        current.end(f"Prophet has waited {stall_s:g} s (PROPHET_STALL_S) for {what}; {here}", STALLED)


def poll() -> bool:
    """Call Agreement.poll. Return True if no answer is missing."""
    return _active is None or _active.poll()


def under_way() -> bool:
    """Return True if a tensor of the program is in flight. False if this process has no agreement."""
    return _active is not None and _active.exchange.under_way()


def at_rest() -> bool:
    """Return True if all workers have answered every page that this one has sent, even if nobody waits for it."""
    return _active is None or (_active.poll() and not _active.exchange.pages_under_way())
