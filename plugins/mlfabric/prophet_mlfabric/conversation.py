"""A worker's side of its conversation with the coordinator: messages to send, and how long to wait for answers.

Rule of this file: calls, answers and the time in; messages and results out. client.py has the socket and the thread,
and sets the futures' results.

Questions are repeated every quarter of the bound until they are answered, which covers a lost message, a lost
connection and a restarted coordinator. If nothing is heard for longer than the bound while an answer is awaited, the
coordinator is *away*: all waiting and new updates go in arrival order until it is heard from again. The worker then
reports the updates it pushed meanwhile, so that the version count stays true.

A sum of others' updates is treated like one of this worker's own. A restarted coordinator, which does not know the sum,
is not told of it: its members report their updates.

An answer may be late because this worker's own link is full, for instance while a model is read. So time in which the
link was busy does not count as silence (`excuse`), up to a limit.
"""

from __future__ import annotations

import enum
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
"""Maximum number of updates, pushed while the coordinator is away, that are reported to it later."""
MOST_LOST = 64
"""Number of lost updates to remember, in case they are in the model after all."""
AWAY = "the coordinator is away"
ANEW = "the coordinator was restarted"

_Key: TypeAlias = tuple[bool, int]
"""True for a sum, and its number."""


@dataclass(frozen=True)
class Permission:
    """Decision about an update or, with `sum`, about the sum of that number. It arrives when the update may start.

    `goes` is False if the update is dropped, for `reason`, before it costs a byte. `aggregator` is the worker to send
    it to, at `address`; None for the server. The server's model had at least `version` updates at the decision.
    `coordinated` is False if the coordinator is away or slow: the update then goes in arrival order.
    """

    update: int
    goes: bool
    reason: str
    aggregator: int | None
    version: int
    coordinated: bool
    address: str = ""
    sum: bool = False


@dataclass(frozen=True)
class Outcome:
    """Outcome of an update or a sum that was sent.

    `applied` is True if it is in the server's model, which then had `version` updates. `delay` is its delay in
    versions; None if the coordinator was away, since nobody counted. If it was lost with its aggregator, `reason` says
    so: it will never be applied, and may be computed again.
    """

    update: int
    applied: bool
    version: int
    delay: int | None
    reason: str = ""
    sum: bool = False


@dataclass(frozen=True)
class Asking:
    """A request to send an update or a sum: its `permission`, and its `outcome` once it is applied or lost.

    Both futures always complete: without a coordinator, `permission` after the client's bound and `outcome` at `done`.
    """

    update: int
    permission: Future[Permission] = field(default_factory=Future)
    outcome: Future[Outcome] = field(default_factory=Future)


Result: TypeAlias = tuple[Future[Any] | None, Permission | Outcome | bool | msg.Collect | msg.Copy]
"""A future and its result, or an order to this worker."""


class _Stage(enum.Enum):
    WAITING = "for a grant"
    GRANTED = "for the time of its start"
    GONE = "for nothing, until it is at the server"
    SENT = "for the sum to be applied, at an aggregator"
    DONE = "for the coordinator to acknowledge that it is at the server"


@dataclass
class _Open:
    """An open update or sum."""

    ask: msg.Ask
    asking: Asking
    asked_s: float
    stage: _Stage = _Stage.WAITING
    starts_s: float = math.inf
    grant: msg.Grant | None = None
    done: msg.Done | None = None

    @property
    def key(self) -> _Key:
        return self.ask.sum, self.ask.update

    @property
    def waits(self) -> bool:
        """True if an answer is awaited."""
        return self.stage not in (_Stage.GRANTED, _Stage.GONE)


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
        self._token = token
        self._hello = self._proved = hello
        """Identity of this worker, and its last hello with a proof."""
        self._knocked_s = -math.inf
        """Time of the last hello."""
        self._open: dict[_Key, _Open] = {}
        self._unheard: dict[int, msg.Done] = {}
        self._lost_asks: dict[int, msg.Ask] = {}
        self._clock: msg.Clock | None = None
        self._passing = self._leaving = False
        self._passed = Future[bool]()
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
                f"update {number}: {size_bytes} bytes of version {version} with norm {norm}; give numbers of 0 or more"
            ) from None
        self.version = max(self.version, version)
        return self._begin(ask, now_s)

    def collected(self, number: int, now_s: float) -> Asking:
        """Record that all updates of a collection have arrived, and ask to send their sum."""
        known = self._open.get((True, number))
        return self._begin(msg.Ask(update=number, sum=True), now_s) if known is None else known.asking

    def _begin(self, ask: msg.Ask, now_s: float) -> Asking:
        self._awaits(now_s)
        entry = _Open(ask, Asking(ask.update), now_s)
        self._open[entry.key] = entry
        self._say(ask)
        if self.away:
            self._go(entry, self.refused or AWAY)
        return entry.asking

    def done(self, number: int, size_bytes: int, now_s: float, sum: bool = False) -> None:
        """Record that the server has all of an update or a sum. A second call does nothing.

        Call it also for an update that was reported lost but is in the model after all.
        """
        if not sum and (ask := self._lost_asks.pop(number, None)) is not None:
            self._unheard[number] = _done(ask, size_bytes)
            self._say(self._unheard[number])
        entry = self._open.get((sum, number))
        if entry is None or entry.stage is _Stage.SENT or entry.done is not None:
            return
        self._awaits(now_s)
        entry.done, entry.stage = _done(entry.ask, size_bytes), _Stage.DONE
        self._say(entry.done)
        if self.away:
            self._not_heard(entry, entry.done)

    def copied(self, number: int, reason: str) -> None:
        """Report that the replica stored copy `number`, or why not. If this is lost, the coordinator asks again."""
        self._say(msg.Copied(number=number, reason=reason[: msg.MOST_REASON]))

    def report(self, up: float) -> None:
        """Report the rate of the NIC's uplink in bytes per second."""
        self._rate = msg.Beat(up=up)
        self._say(self._rate)

    def clock(self, rounds: int, models: int, now_s: float) -> Future[bool]:
        """Report finished rounds and read models. If the two are equal, the future completes when the next model may be
        read: True if the bound on leads allows it, False if the coordinator is away.
        """
        self._awaits(now_s)
        self._clock = msg.Clock(rounds=rounds, models=models)
        self._passing = rounds == models
        passed = self._passed = Future[bool]()
        if not self._passing:
            passed.set_result(True)
        self._say(self._clock)
        if self.away:
            self._pass(False)
        return passed

    def leave(self, now_s: float) -> None:
        """Start leaving: say Bye until `died` is known."""
        self._awaits(now_s)
        self._leaving = True
        self._say(msg.Bye())

    def end(self, now_s: float) -> None:
        """Let everything go in arrival order, now and later, since no answer will arrive."""
        self._be_away(now_s)
        for entry in [entry for entry in self._open.values() if entry.stage is _Stage.GRANTED]:
            self._go(entry, AWAY)

    @property
    def sending(self) -> bool:
        """True if an update or a sum of this worker is in flight."""
        return any(entry.stage in (_Stage.GONE, _Stage.SENT) for entry in self._open.values())

    @property
    def waits(self) -> bool:
        """True if an answer is awaited."""
        return self._passing or self._leaving or any(entry.waits for entry in self._open.values())

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

    def aggregates(self, address: str) -> None:
        """Announce that this worker sums updates sent to `address`."""
        self._hello = self._hello.model_copy(update={"sums_at": address})
        self.connected()

    def connected(self) -> None:
        """Record a new connection, on which the coordinator does not know this worker yet."""
        self.welcomed = False
        self._knocked_s = -math.inf

    # Answers of the coordinator.

    def receive(self, answer: msg.Answer, now_s: float) -> None:
        """Handle an answer."""
        if self.welcomed:
            self._hear(now_s)
        about = (answer.sum, answer.update) if isinstance(answer, msg.Grant | msg.Applied) else None
        entry = None if about is None else self._open.get(about)
        match answer:
            case msg.Challenge():
                self.welcomed = False
                hello = self._hello.model_copy(update={"version": self.version})
                self._proved = hello.model_copy(update={"proof": msg.prove(self._token, answer.nonce, hello)})
                self._messages.append(self._proved)
                self._knocked_s = now_s
            case msg.Welcome():
                self._welcome(answer, now_s)
            case msg.Denied():
                self._denied(answer, now_s)
            case msg.Grant():
                self.version = max(self.version, answer.version)
                if entry is not None and entry.stage is _Stage.WAITING:
                    entry.grant, entry.stage = answer, _Stage.GRANTED
                    entry.starts_s = now_s if answer.dropped else now_s + answer.start_s
            case msg.Applied():
                self.version = max(self.version, answer.version)
                if not answer.sum:
                    self._unheard.pop(answer.update, None)
                if entry is not None and entry.stage in (_Stage.SENT, _Stage.DONE):
                    self._end(entry, True, delay=answer.delay, version=answer.version)
            case msg.Lost():
                self._lost(answer)
            case msg.Collect():
                self._results.append((None, answer))
                if not answer.members:
                    self._denied(msg.Denied(text="nothing is left to sum", update=answer.number, sum=True), now_s)
            case msg.Copy():
                self._results.append((None, answer))
            case msg.Proceed(now=True) if self._passing and self._clock and self._clock.rounds == answer.rounds:
                self._pass(True)
            case msg.Parting() if self._leaving:
                self.died = None if answer.working else answer.died

    def _welcome(self, welcome: msg.Welcome, now_s: float) -> None:
        if self._proved.sums_at != self._hello.sums_at:
            return  # it answers a hello from before `aggregates`; the newer one follows
        anew = self._hello.epoch not in (None, welcome.epoch)
        self._hello = self._hello.model_copy(update={"epoch": welcome.epoch})
        self.version = max(self.version, welcome.version)
        self.welcomed, self.away, self.refused = True, False, ""
        self._hear(now_s)
        if self._rate is not None:
            self._messages.append(self._rate)
        self._messages += self._unheard.values()
        for entry in list(self._open.values()) if anew else ():
            if entry.stage is _Stage.SENT:
                self._end(entry, False, ANEW)
            elif entry.ask.sum and entry.stage is _Stage.DONE:
                self._end(entry, True, ANEW)
            elif entry.ask.sum and entry.stage is not _Stage.GONE:
                self._go(entry, ANEW)
        self._ask_again(now_s)

    def _denied(self, denied: msg.Denied, now_s: float) -> None:
        if denied.update is None:
            if not self.welcomed:
                self.refused = denied.text
                self._be_away(now_s)
            return
        if not denied.sum:
            self._unheard.pop(denied.update, None)
        entry = self._open.get((denied.sum, denied.update))
        if entry is None:
            return
        if entry.stage in (_Stage.SENT, _Stage.DONE):
            self._end(entry, entry.stage is _Stage.DONE, denied.text)
        elif denied.sum and entry.stage is not _Stage.GONE:
            # Nothing is left to sum.
            version, reason = self.version, denied.text
            entry.grant = msg.Grant(update=denied.update, sum=True, dropped=True, reason=reason, version=version)
            self._go(entry)
        elif entry.stage is _Stage.WAITING:
            self._go(entry, denied.text)

    def _lost(self, lost: msg.Lost) -> None:
        match self._open.get((False, lost.update)):
            case _Open(stage=_Stage.SENT) as entry:
                self._end(entry, False, lost.reason)
            case _Open(stage=_Stage.WAITING | _Stage.GRANTED) as entry:
                self._go(entry, lost.reason)
            # An update in flight to the server continues: once it is done, it counts after all.

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
            if entry.stage is _Stage.GRANTED and now_s >= entry.starts_s:
                self._awaits(now_s)
                self._go(entry)
        if self.waits and not self.away:
            if now_s >= self._ends_s:
                self._be_away(now_s)
            elif self.welcomed and now_s - self._asked_s >= self.bound_s / 4:
                self._ask_again(now_s)
        for entry in list(self._open.values()):
            if entry.stage is _Stage.GRANTED:
                self._later(entry.starts_s)
            elif entry.stage is _Stage.WAITING and now_s - entry.asked_s >= self._longest_s:
                self._go(entry, f"it has waited for {self._longest_s:g} s")
            elif entry.stage is _Stage.WAITING:
                self._later(entry.asked_s + self._longest_s)
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
        """Repeat all questions, after what the coordinator may have missed and hold updates for: the progress."""
        self._asked_s = now_s
        if self._clock is not None and not self._leaving:
            self._messages.append(self._clock)
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
        self._pass(False)
        for entry in list(self._open.values()):
            summed = entry.ask.sum or (entry.grant is not None and entry.grant.aggregator is not None)
            if entry.stage is _Stage.WAITING or (entry.stage is _Stage.GRANTED and summed):
                self._go(entry, self.refused or AWAY)
            elif entry.stage is _Stage.SENT:
                self._end(entry, False, AWAY)
            elif entry.done is not None:
                self._not_heard(entry, entry.done)

    def _go(self, entry: _Open, why: str = "") -> None:
        """Release an update or a sum: as granted, or in arrival order for the reason `why`."""
        grant, (of_sum, number) = entry.grant, entry.key
        entry.stage = _Stage.GONE
        permitted = entry.asking.permission
        if why or grant is None:
            self._results.append((permitted, Permission(number, True, why, None, self.version, False, sum=of_sum)))
            return
        to = grant.aggregator
        if to is not None:
            entry.stage = _Stage.SENT
        goes, address = not grant.dropped, grant.address
        permission = Permission(number, goes, grant.reason, to, grant.version, True, address, of_sum)
        self._results.append((permitted, permission))
        if grant.dropped:
            self._end(entry, False, grant.reason, version=grant.version)

    def _not_heard(self, entry: _Open, done: msg.Done) -> None:
        if not done.sum and len(self._unheard) < MOST_UNHEARD:
            self._unheard[done.update] = done  # repeated after every welcome, until it is answered
        self._end(entry, True, self.refused or AWAY)

    def _pass(self, coordinated: bool) -> None:
        if self._passing:
            self._results.append((self._passed, coordinated))
        self._passing = False

    def _end(
        self, entry: _Open, applied: bool, reason: str = "", delay: int | None = None, version: int | None = None
    ) -> None:
        of_sum, number = entry.key
        del self._open[entry.key]
        if entry.stage is _Stage.SENT and not applied:
            self._lost_asks[number] = entry.ask
            if len(self._lost_asks) > MOST_LOST:
                del self._lost_asks[next(iter(self._lost_asks))]
        outcome = Outcome(number, applied, self.version if version is None else version, delay, reason, of_sum)
        self._results.append((entry.asking.outcome, outcome))

    def take(self) -> tuple[list[msg.Request], list[Result]]:
        """Return, once, the messages to send and the results, each in order."""
        taken = self._messages, self._results
        self._messages, self._results = [], []
        return taken


def _done(ask: msg.Ask, size_bytes: int) -> msg.Done:
    return msg.Done(update=ask.update, sum=ask.sum, version=ask.version, size_bytes=size_bytes, norm=ask.norm)
