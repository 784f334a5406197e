"""A worker's side of its conversation with the coordinator: messages to send, and how long to wait for answers.

Rule of this file: calls, answers and the time in; messages and results out. client.py has the socket and the thread,
and sets the futures' results.

Questions are repeated every quarter of the bound until they are answered, which covers a lost message, a lost
connection and a restarted coordinator. If nothing is heard for longer than the bound while an answer is awaited, the
coordinator is *away*: all waiting and new updates go in arrival order until it is heard from again. The worker then
reports the updates it pushed meanwhile, so that the version count stays true.

An answer may be late because this worker's own link is full, for instance while a model is read. So time in which the
link was busy does not count as silence (`excuse`), up to a limit.
"""

from __future__ import annotations

import math
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from prophet_mlfabric import messages as msg
from prophet_scheduler.core.errors import UserError

BEAT_S = 1.0
"""Seconds of silence after which a worker sends a heartbeat."""
KNOCK_S = 0.1
"""Maximum seconds between two hellos of a worker not yet admitted, while the coordinator is not away."""
LONGEST_S = 60.0
"""Maximum seconds to wait, however often the coordinator says to wait."""
MOST_EXCUSED = 4
"""Maximum time excused between two answers, in bounds: the traffic on the link may be another job's."""
MOST_UNHEARD = 1000
"""Maximum number of pushed updates that are reported again and again; another one replaces the oldest."""
AWAY = "the coordinator is away"


@dataclass(frozen=True)
class Permission:
    """Decision about an update. It arrives when the update may start.

    `goes` is False if the update is dropped, for `reason`, before it costs a byte. The server's model had at least
    `version` updates at the decision. `coordinated` is False if the coordinator is away or slow: the update then goes
    in arrival order.
    """

    update: int
    goes: bool
    reason: str
    version: int
    coordinated: bool


@dataclass(frozen=True)
class Outcome:
    """Outcome of an update that was pushed: its `delay` in versions; None if the coordinator did not count it yet."""

    update: int
    delay: int | None


@dataclass(frozen=True)
class Asking:
    """A request to send an update: its `permission`, and its `outcome` once it is pushed.

    Both futures always complete: without a coordinator, `permission` after the client's bound and `outcome` at `done`.
    """

    update: int
    permission: Future[Permission] = field(default_factory=Future)
    outcome: Future[Outcome] = field(default_factory=Future)


Result: TypeAlias = tuple[Future[Any] | None, Permission | Outcome | msg.Copy]
"""A future and its result, or an order to this worker."""


@dataclass
class _Open:
    """An update from its request to its end: it waits for a `grant`, for its start, goes, and is reported `done`."""

    ask: msg.Ask
    asking: Asking
    asked_s: float
    grant: msg.Grant | None = None
    starts_s: float = math.inf
    gone: bool = False
    done: msg.Done | None = None

    @property
    def waits(self) -> bool:
        """True if its permission or an answer to its report is awaited."""
        return self.done is not None or (self.grant is None and not self.gone)


class Conversation:
    """One worker's conversation with one coordinator. Not thread-safe.

    Call `turn` after every call and at `next_s`. `take` then returns the messages to send and the results. `version` is
    the newest known version.
    """

    def __init__(
        self, hello: msg.Hello, token: str, bound_s: float, now_s: float, longest_s: float = LONGEST_S
    ) -> None:
        """`hello` identifies this worker."""
        self.bound_s = bound_s
        self._longest_s = max(longest_s, bound_s)
        self.version = hello.version
        self.next_s = now_s
        self.refused = ""
        """Reason why the coordinator refuses this worker; empty if it does not."""
        self.welcomed = False
        """True if the coordinator has admitted this worker on this connection."""
        self.away = False
        """True if updates do not wait for the coordinator."""
        self._token, self._hello = token, hello
        self._knocked_s = -math.inf
        """Time of the last hello."""
        self._open: dict[int, _Open] = {}
        self._unheard: dict[int, msg.Done] = {}
        """Reports that nobody waits for, repeated after every welcome until they are answered."""
        self._leaving = False
        self.died: tuple[int, ...] | None = None
        """Workers that died; None until all others have ended or died."""
        self._rate: msg.Beat | None = None
        self._said_s = self._asked_s = -math.inf
        """Times of the last message, and of the last questions."""
        self._hear(now_s)
        self._messages: list[msg.Request] = []
        self._results: list[Result] = []

    # Calls of the worker.

    def ask(self, number: int, size_bytes: int, version: int, norm: float, now_s: float) -> Asking:
        """Ask to send an update. Raises UserError for impossible numbers."""
        try:
            ask = msg.Ask(update=number, size_bytes=size_bytes, version=version, norm=norm)
        except ValueError:
            raise UserError(
                f"an update of {size_bytes} bytes from version {version} with the norm {norm}; give numbers of 0 or more"
            ) from None
        self.version = max(self.version, version)
        self._awaits(now_s)
        entry = self._open[number] = _Open(ask, Asking(number), now_s)
        self._say(ask)
        if self.away:
            self._go(entry, self.refused or AWAY)
        return entry.asking

    def done(self, number: int, size_bytes: int, now_s: float) -> None:
        """Record that the server has all of an update. A second call does nothing."""
        entry = self._open.get(number)
        if entry is None or entry.done is not None:
            return
        self._awaits(now_s)
        ask = entry.ask
        entry.done = msg.Done(update=number, version=ask.version, size_bytes=size_bytes, norm=ask.norm)
        self._say(entry.done)
        if self.away:
            self._not_heard(entry)

    def copied(self, number: int, reason: str) -> None:
        """Report that copy `number` is in the replica, or why not. If this is lost, the coordinator asks again."""
        self._say(msg.Copied(number=number, reason=reason[: msg.MOST_REASON]))

    def report(self, up: float) -> None:
        """Report the rate of the NIC's uplink in bytes per second."""
        self._rate = msg.Beat(up=up)
        self._say(self._rate)

    def leave(self, now_s: float) -> None:
        """Start leaving: say Bye until `died` is known."""
        self._awaits(now_s)
        self._leaving = True
        self._say(msg.Bye())

    def end(self, now_s: float) -> None:
        """Let everything go in arrival order, now and later, since no answer will arrive."""
        self._be_away(now_s)
        for entry in list(self._open.values()):
            if not entry.gone:
                self._go(entry, AWAY)

    @property
    def sending(self) -> bool:
        """True if an update of this worker is in flight."""
        return any(entry.gone and entry.done is None for entry in self._open.values())

    @property
    def waits(self) -> bool:
        """True if an answer is awaited."""
        return self._leaving or any(entry.waits for entry in self._open.values())

    def excuse(self, length_s: float) -> None:
        """Excuse `length_s` seconds of silence, up to the limit."""
        length_s = min(length_s, self._excusable_s)
        self._excusable_s -= length_s
        self._ends_s += length_s

    def _hear(self, now_s: float) -> None:
        """Record that silence begins now, and that its full time may be excused."""
        self._ends_s = now_s + self.bound_s
        self._excusable_s = MOST_EXCUSED * self.bound_s

    def _awaits(self, now_s: float) -> None:
        """Record that an answer is awaited from now on."""
        if not self.waits:
            self._hear(now_s)
            self._asked_s = now_s

    def connected(self) -> None:
        """Record a new connection, on which the coordinator does not know this worker yet."""
        self.welcomed = False
        self._knocked_s = -math.inf

    # Answers of the coordinator.

    def receive(self, answer: msg.Answer, now_s: float) -> None:
        """Handle an answer."""
        if self.welcomed:
            self._hear(now_s)
        match answer:
            case msg.Challenge():
                self.welcomed = False
                hello = self._hello.model_copy(update={"version": self.version})
                self._messages.append(hello.model_copy(update={"proof": msg.prove(self._token, answer.nonce, hello)}))
                self._knocked_s = now_s
            case msg.Welcome():
                self._hello = self._hello.model_copy(update={"epoch": answer.epoch})
                self.version = max(self.version, answer.version)
                self.welcomed, self.away, self.refused = True, False, ""
                self._hear(now_s)
                if self._rate is not None:
                    self._messages.append(self._rate)
                self._messages += self._unheard.values()
                self._ask_again(now_s)
            case msg.Denied(update=None):
                if not self.welcomed:
                    self.refused = answer.text
                    self._be_away(now_s)
            case msg.Grant():
                self.version = max(self.version, answer.version)
                entry = self._open.get(answer.update)
                if entry is not None and entry.grant is None and not entry.gone:
                    entry.grant = answer
                    entry.starts_s = now_s if answer.dropped else now_s + answer.start_s
            case msg.Applied():
                self.version = max(self.version, answer.version)
                self._answered(answer.update, answer.delay)
            case msg.Denied():
                entry = self._open.get(answer.update)
                if entry is not None and entry.waits and entry.done is None:
                    self._go(entry, answer.text)
                self._answered(answer.update, None)
            case msg.Copy():
                self._results.append((None, answer))
            case msg.Parting() if self._leaving:
                self.died = None if answer.working else answer.died

    def _answered(self, number: int, delay: int | None) -> None:
        """End the report about an update."""
        self._unheard.pop(number, None)
        entry = self._open.get(number)
        if entry is not None and entry.done is not None:
            self._end(entry, delay)

    # Time.

    def _say(self, message: msg.Request) -> None:
        # Without a welcome it is sent later, if it still matters.
        if self.welcomed:
            self._messages.append(message)

    def turn(self, now_s: float) -> None:
        """Repeat questions, start updates that are due, and time out late answers."""
        self.next_s = math.inf
        if not self.welcomed:
            knock_s = self.bound_s if self.away else min(self.bound_s / 4, KNOCK_S)
            if now_s - self._knocked_s >= knock_s:
                self._knocked_s = now_s
                self._messages.append(self._hello.model_copy(update={"version": self.version}))
            self._later(self._knocked_s + knock_s)
        for entry in list(self._open.values()):
            if entry.grant is not None and not entry.gone and now_s >= entry.starts_s:
                self._go(entry)
        if self.waits and not self.away:
            if now_s >= self._ends_s:
                self._be_away(now_s)
            elif self.welcomed and now_s - self._asked_s >= self.bound_s / 4:
                self._ask_again(now_s)
        for entry in list(self._open.values()):
            if entry.gone:
                continue
            if entry.grant is None and now_s - entry.asked_s >= self._longest_s:
                self._go(entry, f"it has waited for {self._longest_s:g} s")
            else:
                self._later(entry.asked_s + self._longest_s if entry.grant is None else entry.starts_s)
        if self.waits and not self.away:
            self._later(min(self._ends_s, self._asked_s + self.bound_s / 4 if self.welcomed else math.inf))
        if self.welcomed:
            if self._messages:
                self._said_s = now_s
            elif now_s - self._said_s >= BEAT_S and not self._leaving:
                self._messages.append(msg.Beat())
                self._said_s = now_s
            if not self._leaving:
                self._later(self._said_s + BEAT_S)

    def _ask_again(self, now_s: float) -> None:
        """Repeat all questions."""
        self._asked_s = now_s
        self._messages += [entry.done or entry.ask for entry in self._open.values() if entry.waits]
        if self._leaving:
            self._messages.append(msg.Bye())

    def _later(self, time_s: float) -> None:
        self.next_s = min(self.next_s, time_s)

    def _be_away(self, now_s: float) -> None:
        """Stop waiting: let all waiting updates go in arrival order."""
        self.welcomed, self.away = False, True
        self._knocked_s = now_s
        self._later(now_s + self.bound_s)
        for entry in list(self._open.values()):
            if entry.done is not None:
                self._not_heard(entry)
            elif entry.waits:
                self._go(entry, self.refused or AWAY)

    def _go(self, entry: _Open, why: str = "") -> None:
        """Release an update: as granted, or in arrival order for the reason `why`."""
        entry.gone, grant, number = True, entry.grant, entry.ask.update
        if why or grant is None:
            permission = Permission(number, True, why, self.version, False)
        else:
            permission = Permission(number, not grant.dropped, grant.reason, grant.version, True)
        self._results.append((entry.asking.permission, permission))
        if not permission.goes:
            del self._open[number]

    def _not_heard(self, entry: _Open) -> None:
        assert entry.done is not None
        self._unheard[entry.done.update] = entry.done
        if len(self._unheard) > MOST_UNHEARD:
            del self._unheard[next(iter(self._unheard))]
        self._end(entry, None)

    def _end(self, entry: _Open, delay: int | None) -> None:
        del self._open[entry.ask.update]
        self._results.append((entry.asking.outcome, Outcome(entry.ask.update, delay)))

    def take(self) -> tuple[list[msg.Request], list[Result]]:
        """Return, once, the messages to send and the results, each in order."""
        taken = self._messages, self._results
        self._messages, self._results = [], []
        return taken
