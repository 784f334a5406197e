"""A worker's side of its conversation with the coordinator: messages to send, and how long to wait for answers.

Rule of this file: calls, answers and the time in; messages and results out. client.py has the socket and the thread,
and sets the futures' results.

A question is repeated every quarter of the bound until it is answered, which covers a lost message, a lost connection
and a restarted coordinator. If an answer takes longer than the bound, the coordinator is *away*: all waiting and new
updates go in arrival order until it is heard from again. The worker then reports the updates it pushed meanwhile, so
that the version count stays true.

A sum of others' updates is treated like one of this worker's own. A restarted coordinator, which does not know the sum,
is not told of it: its members report their updates.

An answer may be late because this worker's own link is full, for instance while a model is read. So time in which the
link was busy does not count as silence (`excuse`), up to a limit. Times called `heard_s` exclude it.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Sequence
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
class _Waiting:
    """A question that is repeated until it is answered. `heard_s` is the time of the last answer, or at first the start
    of the wait, less excused time. `said_s` is when the question was last sent.
    """

    heard_s: float
    said_s: float = -math.inf


@dataclass(kw_only=True)
class _Open(_Waiting):
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


class _Patience:
    """Limits on waiting for answers, in seconds without excused time. Questions are repeated every `again_s`."""

    def __init__(self, bound_s: float, longest_s: float) -> None:
        self.bound_s = bound_s
        self.longest_s = max(longest_s, bound_s)
        self.again_s = bound_s / 4
        self._excused_s = 0.0
        self.answered()

    def answered(self) -> None:
        """Record an answer: the full time may be excused again."""
        self._excusable_s = MOST_EXCUSED * self.bound_s

    def excuse(self, length_s: float) -> None:
        """Excuse `length_s` seconds of silence, up to the limit."""
        length_s = min(length_s, self._excusable_s)
        self._excusable_s -= length_s
        self._excused_s += length_s

    def time(self, now_s: float) -> float:
        """Return the time less excused time."""
        return now_s - self._excused_s

    def ends_s(self, waiting: _Waiting) -> float:
        """Return the time at which the wait for an answer times out."""
        return waiting.heard_s + self._excused_s + self.bound_s


class Conversation:
    """One worker's conversation with one coordinator. Not thread-safe.

    Call `turn` after every call and at `next_s`. `take` then returns the messages to send and the results. `version` is
    the newest known version.
    """

    def __init__(
        self, hello: msg.Hello, token: str, bound_s: float, now_s: float, longest_s: float = LONGEST_S
    ) -> None:
        """`hello` identifies this worker."""
        self.patience = _Patience(bound_s, longest_s)
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
        self._passing: _Waiting | None = None
        self._passed = Future[bool]()
        self._leaving: _Waiting | None = None
        self.died: tuple[int, ...] | None = None
        """Workers that died; None until all others have ended or died."""
        self._rates: msg.NicRates | None = None
        self._said_s = -math.inf
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
        entry = _Open(self.patience.time(now_s), ask=ask, asking=Asking(ask.update), asked_s=now_s)
        self._open[entry.key] = entry
        if self.away:
            self._go(entry, self.refused or AWAY)
        elif self.welcomed:
            self._insist(entry, [ask], now_s)
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
        entry.done = _done(entry.ask, size_bytes)
        entry.stage, entry.heard_s = _Stage.DONE, self.patience.time(now_s)
        if self.away:
            self._not_heard(entry, entry.done)
        elif self.welcomed:
            entry.said_s = -math.inf
            self._insist(entry, [entry.done], now_s)

    def copied(self, number: int, reason: str) -> None:
        """Report that the replica stored copy `number`, or why not. If this is lost, the coordinator asks again."""
        self._say(msg.Copied(number=number, reason=reason[: msg.MOST_REASON]))

    def report(self, up: float) -> None:
        """Report the rate of the NIC's uplink in bytes per second."""
        self._rates = msg.NicRates(up=up)
        self._say(self._rates)

    def clock(self, rounds: int, models: int, now_s: float) -> Future[bool]:
        """Report finished rounds and read models. If the two are equal, the future completes when the next model may be
        read: True if the bound on leads allows it, False if the coordinator is away.
        """
        self._clock = msg.Clock(rounds=rounds, models=models)
        self._passing = _Waiting(self.patience.time(now_s)) if rounds == models else None
        passed = self._passed = Future[bool]()
        if rounds != models:
            passed.set_result(True)
        self._say(self._clock)
        if self.away:
            self._pass(False)
        elif self.welcomed and self._passing is not None:
            self._passing.said_s = now_s
        return passed

    def leave(self, now_s: float) -> None:
        """Start leaving: say Bye until `died` is known."""
        self._leaving = _Waiting(self.patience.time(now_s))

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
        entries = any(entry.stage not in (_Stage.GRANTED, _Stage.GONE) for entry in self._open.values())
        return entries or self._passing is not None or self._leaving is not None

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
        self.patience.answered()
        about = (answer.sum, answer.update) if isinstance(answer, msg.Wait | msg.Grant | msg.Applied) else None
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
            case msg.Wait() if entry is not None:
                entry.heard_s = self.patience.time(now_s)
            case msg.Grant():
                self.version = max(self.version, answer.version)
                if entry is not None:
                    entry.heard_s = self.patience.time(now_s)
                    if entry.stage is _Stage.WAITING:
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
            case msg.Proceed() if self._passing and self._clock and self._clock.rounds == answer.rounds:
                self._passing.heard_s = self.patience.time(now_s)
                if answer.now:
                    self._pass(True)
            case msg.Parting() if self._leaving:
                self._leaving.heard_s = self.patience.time(now_s)
                self.died = None if answer.working else answer.died

    def _welcome(self, welcome: msg.Welcome, now_s: float) -> None:
        if self._proved.sums_at != self._hello.sums_at:
            return  # it answers a hello from before `aggregates`; the newer one follows
        anew = self._hello.epoch not in (None, welcome.epoch)
        self._hello = self._hello.model_copy(update={"epoch": welcome.epoch})
        self.version = max(self.version, welcome.version)
        self.welcomed, self.away, self.refused = True, False, ""
        self._messages += filter(None, (self._rates, self._clock))
        self._messages += self._unheard.values()
        for waiting in filter(None, (self._passing, self._leaving, *self._open.values())):
            waiting.heard_s, waiting.said_s = self.patience.time(now_s), -math.inf
        for entry in list(self._open.values()) if anew else ():
            if entry.stage is _Stage.SENT:
                self._end(entry, False, ANEW)
            elif entry.ask.sum and entry.stage is _Stage.DONE:
                self._end(entry, True, ANEW)
            elif entry.ask.sum and entry.stage is not _Stage.GONE:
                self._go(entry, ANEW)

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
            knock_s = self.patience.bound_s if self.away else min(self.patience.again_s, KNOCK_S)
            if now_s - self._knocked_s >= knock_s:
                self._knocked_s = now_s
                self._messages.append(self._hello.model_copy(update={"version": self.version}))
            self._later(self._knocked_s + knock_s)
        for entry in list(self._open.values()):
            self._turn_entry(entry, now_s)
        for waiting, message in ((self._passing, self._clock), (self._leaving, msg.Bye())):
            if waiting is not None and message is not None:
                self._insist_or_give_up(waiting, [message], now_s)
        if self.welcomed:
            if self._messages:
                self._said_s = now_s
            elif now_s - self._said_s >= BEAT_S and self._leaving is None:
                self._messages.append(msg.Beat())
                self._said_s = now_s
            if self._leaving is None:
                self._later(self._said_s + BEAT_S)

    def _turn_entry(self, entry: _Open, now_s: float) -> None:
        longest_s, silent = self.patience.longest_s, now_s >= self.patience.ends_s(entry)
        if entry.stage is _Stage.GRANTED:
            if now_s < entry.starts_s:
                self._later(entry.starts_s)
            else:
                self._go(entry)
        elif entry.stage is _Stage.WAITING and now_s - entry.asked_s >= longest_s and not silent:
            self._go(entry, f"it has waited for {longest_s:g} s")
        elif entry.stage is not _Stage.GONE:
            messages: list[msg.Request] = [entry.done or entry.ask]
            if entry.done is None and self._clock is not None and entry.said_s > -math.inf:
                messages.insert(0, self._clock)  # the coordinator may have missed it, and hold the update for that
            self._insist_or_give_up(entry, messages, now_s)
            if entry.stage is _Stage.WAITING:
                self._later(entry.asked_s + longest_s)

    def _insist_or_give_up(self, waiting: _Waiting, messages: Sequence[msg.Request], now_s: float) -> None:
        if now_s < self.patience.ends_s(waiting):
            self._insist(waiting, messages, now_s)
        elif not self.away:
            self._be_away(now_s)

    def _insist(self, waiting: _Waiting, messages: Sequence[msg.Request], now_s: float) -> None:
        """Repeat a question if that is due, and schedule the next repetition."""
        if self.welcomed and now_s - waiting.said_s >= self.patience.again_s:
            waiting.said_s = now_s
            self._messages += messages
        self._later(self.patience.ends_s(waiting))
        self._later(waiting.said_s + self.patience.again_s if self.welcomed else math.inf)

    def _later(self, time_s: float) -> None:
        self.next_s = min(self.next_s, time_s)

    def _be_away(self, now_s: float) -> None:
        """Stop waiting: let all waiting updates go in arrival order."""
        self.welcomed, self.away = False, True
        self._knocked_s = now_s
        self._later(now_s + self.patience.bound_s)
        self._pass(False)
        for entry in list(self._open.values()):
            if entry.stage is _Stage.WAITING or (entry.ask.sum and entry.stage is _Stage.GRANTED):
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
        if self._passing is not None:
            self._results.append((self._passed, coordinated))
        self._passing = None

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
