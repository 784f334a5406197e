"""A worker's side of its talk with the coordinator: what is said when, and when it is no longer waited for.

Rule of this file: calls, answers and the time in; messages and results out. The socket, the thread and the futures are
client.py's.

Everything that was asked is asked again every quarter of the bound until it is answered; the coordinator knows what it
has heard, so that costs nothing and mends a lost message, a lost connection and a coordinator that was started anew.
Where an answer stays out for the whole bound, the coordinator is *away*: what waits goes in arrival order, and so does
all that comes, at once, until it is heard again. What was pushed meanwhile is told to it then, so that its count of
versions stays true.

An answer may be late because this worker's own link is full: it stands behind a model that is being read. So time in
which the link was busy is no silence (`excuse`), up to a limit. Times called `heard_s` lack it.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from prophet_mlfabric.messages import (
    MOST_REASON,
    Answer,
    Applied,
    Ask,
    Beat,
    Bye,
    Challenge,
    Clock,
    Collect,
    Collected,
    Copied,
    Copy,
    Denied,
    Done,
    Grant,
    Hello,
    Lost,
    NicRates,
    Parting,
    Proceed,
    Request,
    Summed,
    Wait,
    Welcome,
    prove,
)
from prophet_mlfabric.ports import Collection, ModelCopy, Outcome, Permission
from prophet_scheduler.core.errors import UserError

BEAT_S = 1.0
"""A worker that has said nothing for so long says that it lives."""
KNOCK_S = 0.1
"""Seconds between two hellos of a worker that was not let in yet, within its bound."""
LONGEST_S = 60.0
"""No update waits longer, however often the coordinator says that it has to."""
MOST_EXCUSED = 4
"""Most bounds of a busy link that are no silence, from one answer to the next: another job may be the sender."""
MOST_UNHEARD = 1000
"""Updates pushed while the coordinator is away; more are not told to it later."""
MOST_LOST = 64
"""Number of updates said to be lost that are remembered, in case they are in the model after all."""
AWAY = "the coordinator is away"
ANEW = "the coordinator was started anew"


@dataclass(frozen=True)
class SumPermission:
    """Permission for the sum of a collection."""

    number: int
    permission: Permission


@dataclass(frozen=True)
class Pass:
    """The model may be read that follows so many rounds; `coordinated`: the bound on leads allows it."""

    rounds: int
    coordinated: bool


Result: TypeAlias = Permission | Outcome | SumPermission | Collection | Pass | ModelCopy


class _Stage(enum.Enum):
    WAITING = enum.auto()
    """Waiting for a grant."""
    GRANTED = enum.auto()
    """Waiting for the moment of its start."""
    GONE = enum.auto()
    """Under way to the server: nothing is to be said until it is there."""
    SENT = enum.auto()
    """At an aggregator: waiting for the sum to be applied."""
    DONE = enum.auto()
    """Waiting for the coordinator to have heard that it is at the server."""


@dataclass
class _Update:
    ask: Ask
    asked_s: float
    heard_s: float
    """Time of the last answer, or of the beginning of the wait, less what was excused until then."""
    stage: _Stage = _Stage.WAITING
    said_s: float = -math.inf
    starts_s: float = math.inf
    grant: Grant | None = None
    done: Done | None = None


@dataclass
class _Sum:
    """A collection whose updates are all here; `done` once it was pushed."""

    heard_s: float
    said_s: float = -math.inf
    starts_s: float = math.inf
    grant: Grant | None = None
    gone: bool = False
    done: Done | None = None


@dataclass
class _Waiting:
    """A question that is repeated until its answer is there: the times of the last question and answer."""

    heard_s: float
    said_s: float = -math.inf


@dataclass
class _Outbox:
    messages: list[Request] = field(default_factory=list)
    results: list[Result] = field(default_factory=list)


class Conversation:
    """One worker's talk with one coordinator. Not safe for several threads.

    After every call, and at `next_s`, `turn` is due; `take` then has what is to be sent and what has come of things.
    """

    def __init__(self, hello: Hello, token: str, bound_s: float, now_s: float, longest_s: float = LONGEST_S) -> None:
        """`hello` says who this is. Raises UserError for a bound that is no time."""
        if not 0 < bound_s < math.inf:
            raise UserError(f"bound_s {bound_s}: give a number above 0")
        self.bound_s = bound_s
        self.longest_s = max(longest_s, bound_s)
        self.version = hello.version
        """The newest that was heard of."""
        self.away = False
        self.refused = ""
        """Why the coordinator does not let this worker in; empty where it does, or has said nothing."""
        self.welcomed = False
        self._parting: Parting | None = None
        self.next_s = now_s
        self._hello = hello
        self._token = token
        self._proved: Hello | None = None
        self._epoch: int | None = None
        self._updates: dict[int, _Update] = {}
        self._sums: dict[int, _Sum] = {}
        self._unheard: dict[int, Done] = {}
        self._lost_asks: dict[int, Ask] = {}
        self._clock: Clock | None = None
        self._passing: _Waiting | None = None
        self._leaving: _Waiting | None = None
        self._rates: NicRates | None = None
        self._knocked_s = -math.inf
        self._began_s = now_s
        self._said_s = -math.inf
        self._excused_s = 0.0
        self._excusable_s = MOST_EXCUSED * bound_s
        self._out = _Outbox()

    # What the worker wants.

    def ask(self, number: int, size_bytes: int, version: int, norm: float, now_s: float) -> None:
        """An update is ready. Its Permission comes with `take`. Raises UserError for numbers that cannot be."""
        try:
            ask = Ask(update=number, size_bytes=size_bytes, version=version, norm=norm)
        except ValueError:
            raise UserError(
                f"update {number}: {size_bytes} bytes of version {version} with norm {norm}; give numbers of 0 or more"
            ) from None
        update = self._updates[number] = _Update(ask, now_s, self._patience(now_s))
        self.version = max(self.version, version)
        if self.away:
            self._go(update, self.refused or AWAY)
        elif self.welcomed:
            self._insist(update, [ask], now_s)

    def done(self, number: int, size_bytes: int, now_s: float) -> None:
        """The server has all of an update. Its Outcome comes with `take`; a second call does nothing.

        Also for one whose Outcome says that it was lost, and which is in the model after all.
        """
        update = self._updates.get(number)
        if (ask := self._lost_asks.pop(number, None)) is not None:
            self._keep(Done(update=number, version=ask.version, size_bytes=size_bytes, norm=ask.norm))
            if self.welcomed:
                self._out.messages.append(self._unheard[number])
        if update is None or update.stage is _Stage.SENT or update.done is not None:
            return
        ask = update.ask
        update.done = Done(update=number, version=ask.version, size_bytes=size_bytes, norm=ask.norm)
        update.stage, update.heard_s = _Stage.DONE, self._patience(now_s)
        if self.away:
            self._not_heard(update)
        elif self.welcomed:
            update.said_s = -math.inf
            self._insist(update, [update.done], now_s)

    def collected(self, number: int, now_s: float) -> None:
        """Note that all of a collection is here. Its SumPermission comes with `take`."""
        heard_s = self._patience(now_s)
        gathered = self._sums.setdefault(number, _Sum(heard_s))
        gathered.heard_s = heard_s
        if self.away:
            self._go_sum(number, gathered, self.refused or AWAY)

    def done_sum(self, number: int, size_bytes: int, now_s: float) -> None:
        """The server has all of the sum."""
        gathered = self._sums.get(number)
        if gathered is not None and gathered.done is None:
            gathered.done = Done(update=0, version=0, size_bytes=size_bytes, sum=number)
            gathered.heard_s, gathered.said_s = self._patience(now_s), -math.inf

    def copied(self, number: int, reason: str) -> None:
        """The replica keeps the copy of that number, or it did not get there. Said again where it is asked again."""
        if self.welcomed:
            self._out.messages.append(Copied(copy_number=number, reason=reason[:MOST_REASON]))

    def report(self, up: float | None, down: float | None) -> None:
        """The NIC's rates in bytes per second, None for one that is not known. Raises UserError for what cannot be."""
        try:
            self._rates = NicRates(up=up, down=down)
        except ValueError:
            raise UserError(f"rates of {up} and {down} bytes per second; give numbers above 0") from None
        if self.welcomed:
            self._out.messages.append(self._rates)

    def clock(self, rounds: int, models: int, now_s: float) -> None:
        """Say how many rounds are finished and models read; if both are equal, a Pass for the next comes in `take`."""
        self._clock = Clock(rounds=rounds, models=models)
        self._passing = _Waiting(self._patience(now_s)) if rounds == models else None
        if self.away:
            self._pass(False)
        elif self.welcomed:
            self._out.messages.append(self._clock)
            if self._passing is not None:
                self._passing.said_s = now_s

    def leave(self, now_s: float) -> None:
        """Ask for nothing more; `died` is asked for instead."""
        self._leaving = _Waiting(self._patience(now_s))

    @property
    def died(self) -> tuple[int, ...] | None:
        """Once all other workers have ended or died: which have died. None before."""
        return self._parting.died if self._parting is not None and self._parting.working == 0 else None

    @property
    def sending(self) -> bool:
        """True if an update or a sum of this worker is on its way."""
        updates = any(update.stage in (_Stage.GONE, _Stage.SENT) for update in self._updates.values())
        return updates or any(gathered.gone and gathered.done is None for gathered in self._sums.values())

    @property
    def waits(self) -> bool:
        """True if an answer is waited for."""
        updates = any(update.stage not in (_Stage.GRANTED, _Stage.GONE) for update in self._updates.values())
        sums = any(not gathered.gone or gathered.done is not None for gathered in self._sums.values())
        return updates or sums or self._passing is not None or self._leaving is not None

    def excuse(self, length_s: float) -> None:
        """Excuse silence of the coordinator while the worker's own link was busy, in seconds."""
        length_s = min(length_s, self._excusable_s)
        self._excusable_s -= length_s
        self._excused_s += length_s

    def aggregates(self) -> None:
        """This worker can sum from now on, and says so."""
        self._hello = self._hello.model_copy(update={"aggregates": True})
        self.connected()

    def connected(self) -> None:
        """There is a new connection: on it the coordinator does not know who speaks."""
        self.welcomed = False
        self._knocked_s = -math.inf

    # What the coordinator says.

    def receive(self, answer: Answer, now_s: float) -> None:
        """Takes in an answer."""
        self._excusable_s = MOST_EXCUSED * self.bound_s
        match answer:
            case Challenge():
                self.welcomed = False
                hello = self._hello.model_copy(update={"version": self.version, "proof": ""})
                proof = prove(self._token, answer.nonce, hello)
                self._proved = hello.model_copy(update={"proof": proof})
                self._out.messages.append(self._proved)
                self._knocked_s = now_s
            case Welcome():
                self._welcome(answer, now_s)
            case Denied():
                self._denied(answer, now_s)
            case Wait(sum=None) if update := self._updates.get(answer.update):
                update.heard_s = self._patience(now_s)
            case Wait() if answer.sum is not None and (gathered := self._sums.get(answer.sum)):
                gathered.heard_s = self._patience(now_s)
            case Grant(sum=None):
                self._granted(answer, now_s)
            case Grant() if answer.sum is not None:
                self._granted_sum(answer.sum, answer, now_s)
            case Applied():
                self._applied(answer)
            case Lost():
                self._lost(answer)
            case Collect():
                self._collect(answer)
            case Copy():
                self._out.results.append(ModelCopy(answer.copy_number, answer.bound))
            case Proceed() if self._passing and self._clock and self._clock.rounds == answer.rounds:
                self._passing.heard_s = self._patience(now_s)
                if answer.now:
                    self._pass(True)
            case Parting() if self._leaving:
                self._leaving.heard_s, self._parting = self._patience(now_s), answer
            case Summed():
                self.version = max(self.version, answer.version)
                self._sums.pop(answer.sum, None)

    def _welcome(self, welcome: Welcome, now_s: float) -> None:
        if self._proved is not None and self._proved.aggregates != self._hello.aggregates:
            return  # it is for what this worker was before, and the coordinator has yet to hear what it is
        anew = self._epoch is not None and self._epoch != welcome.epoch
        self._epoch = welcome.epoch
        self._hello = self._hello.model_copy(update={"epoch": welcome.epoch})
        self.version = max(self.version, welcome.version)
        self.welcomed, self.away, self.refused = True, False, ""
        if self._rates is not None:
            self._out.messages.append(self._rates)
        if self._clock is not None:
            self._out.messages.append(self._clock)
        for waiting in filter(None, (self._passing, self._leaving)):
            waiting.heard_s, waiting.said_s = self._patience(now_s), -math.inf
        self._out.messages += self._unheard.values()
        for update in list(self._updates.values()):
            update.heard_s, update.said_s = self._patience(now_s), -math.inf
            if anew and update.stage is _Stage.SENT:
                self._end(update, Outcome(update.ask.update, False, self.version, None, ANEW))
        for number, gathered in list(self._sums.items()):
            gathered.heard_s, gathered.said_s = self._patience(now_s), -math.inf
            if anew and not gathered.gone:
                self._go_sum(number, gathered, ANEW)
            elif anew:
                del self._sums[number]  # the new one knows nothing of it; its members say what was applied

    def _denied(self, denied: Denied, now_s: float) -> None:
        if not self.welcomed and denied.update is None:
            self.refused = denied.text
            self._be_away(now_s)
            return
        if denied.sum is not None:
            self._give_sum_up(denied.sum, denied.text)
        if denied.update is None:
            return
        self._unheard.pop(denied.update, None)
        update = self._updates.get(denied.update)
        if update is not None and update.stage is _Stage.WAITING:
            self._go(update, denied.text)
        elif update is not None and update.stage is _Stage.DONE:
            self._end(update, Outcome(denied.update, True, self.version, None, denied.text))
        elif update is not None and update.stage is _Stage.SENT:
            self._end(update, Outcome(denied.update, False, self.version, None, denied.text))

    def _granted(self, grant: Grant, now_s: float) -> None:
        self.version = max(self.version, grant.version)
        update = self._updates.get(grant.update)
        if update is None:
            return
        update.heard_s = self._patience(now_s)
        if update.stage is not _Stage.WAITING:
            return
        update.grant, update.starts_s, update.stage = grant, now_s + grant.start_s, _Stage.GRANTED
        if grant.dropped:
            update.starts_s = now_s

    def _granted_sum(self, number: int, grant: Grant, now_s: float) -> None:
        gathered = self._sums.get(number)
        if gathered is None:
            return
        gathered.heard_s = self._patience(now_s)
        if gathered.grant is None:
            gathered.grant, gathered.starts_s = grant, now_s + grant.start_s

    def _applied(self, applied: Applied) -> None:
        self.version = max(self.version, applied.version)
        self._unheard.pop(applied.update, None)
        update = self._updates.get(applied.update)
        if update is not None and update.stage in (_Stage.SENT, _Stage.DONE):
            self._end(update, Outcome(applied.update, True, applied.version, applied.delay))

    def _lost(self, lost: Lost) -> None:
        update = self._updates.get(lost.update)
        if update is None:
            return
        if update.stage is _Stage.SENT:
            self._end(update, Outcome(lost.update, False, self.version, None, lost.reason))
        elif update.stage in (_Stage.WAITING, _Stage.GRANTED):
            self._go(update, lost.reason)
        # One that is on its way to the server goes on: once it is done, it is counted after all.

    def _collect(self, collect: Collect) -> None:
        self._out.results.append(Collection(collect.sum, collect.members))
        gathered = self._sums.get(collect.sum)
        if not collect.members and gathered is not None and not gathered.gone:
            self._give_sum_up(collect.sum, "nothing is left to sum")

    def _give_sum_up(self, number: int, why: str) -> None:
        gathered = self._sums.pop(number, None)
        if gathered is not None and not gathered.gone:
            self._out.results.append(SumPermission(number, Permission(0, False, why, None, self.version, True)))

    # What time does.

    def turn(self, now_s: float) -> None:
        """Asks again, lets go what may start, and gives up waiting."""
        self.next_s = math.inf
        if not self.welcomed:
            knock_s = self.bound_s if self.away else min(self._again_s, KNOCK_S)
            if now_s - self._knocked_s >= knock_s:
                self._knocked_s = now_s
                self._out.messages.append(self._hello.model_copy(update={"version": self.version}))
            self._later(self._knocked_s + knock_s)
        for update in list(self._updates.values()):
            self._turn_update(update, now_s)
        for number, gathered in list(self._sums.items()):
            self._turn_sum(number, gathered, now_s)
        self._turn_waiting(self._passing, self._clock, now_s)
        self._turn_waiting(self._leaving, Bye(), now_s)
        if self.welcomed:
            if self._out.messages:
                self._said_s = now_s
            elif now_s - self._said_s >= BEAT_S and self._leaving is None:
                self._out.messages.append(Beat())
                self._said_s = now_s
            if self._leaving is None:
                self._later(self._said_s + BEAT_S)

    def _turn_update(self, update: _Update, now_s: float) -> None:
        stage = update.stage
        if stage is _Stage.GRANTED:
            if now_s < update.starts_s:
                self._later(update.starts_s)
                return
            self._go(update, "")
            return
        if stage is _Stage.GONE:
            return
        if self._silent(update.heard_s, now_s):
            self._be_away(now_s)
            return
        if stage is _Stage.WAITING and now_s - update.asked_s >= self.longest_s:
            self._go(update, f"it has waited for {self.longest_s:g} s")
            return
        if update.done is not None:
            self._insist(update, [update.done], now_s)
        elif self._clock is not None and update.said_s > -math.inf:
            # What it waits for may be that this was not heard.
            self._insist(update, [self._clock, update.ask], now_s)
        else:
            self._insist(update, [update.ask], now_s)
        if stage is _Stage.WAITING:
            self._later(update.asked_s + self.longest_s)

    def _turn_sum(self, number: int, gathered: _Sum, now_s: float) -> None:
        if gathered.gone and gathered.done is None:
            return
        if not gathered.gone and gathered.grant is not None:
            if now_s >= gathered.starts_s:
                self._go_sum(number, gathered, "")
            else:
                self._later(gathered.starts_s)
            return
        if self._silent(gathered.heard_s, now_s):
            self._be_away(now_s)
            return
        self._insist(gathered, [gathered.done or Collected(sum=number)], now_s)

    def _turn_waiting(self, waiting: _Waiting | None, message: Clock | Bye | None, now_s: float) -> None:
        """Says a message again for which an answer stays out, or which another answer may follow."""
        if waiting is None or message is None:
            return
        if self._silent(waiting.heard_s, now_s):
            if not self.away:
                self._be_away(now_s)
            return
        self._insist(waiting, [message], now_s)

    def _insist(self, waiting: _Update | _Sum | _Waiting, messages: Sequence[Request], now_s: float) -> None:
        """Says what waits for an answer, where that is due again, and looks after it until it is answered."""
        if self.welcomed and now_s - waiting.said_s >= self._again_s:
            waiting.said_s = now_s
            self._out.messages += messages
        self._later(waiting.heard_s + self._excused_s + self.bound_s)
        self._later(waiting.said_s + self._again_s if self.welcomed else math.inf)

    @property
    def _again_s(self) -> float:
        return self.bound_s / 4

    def _patience(self, now_s: float) -> float:
        """The time without what was excused."""
        return now_s - self._excused_s

    def _silent(self, heard_s: float, now_s: float) -> bool:
        return self._patience(now_s) - heard_s >= self.bound_s

    def _later(self, time_s: float) -> None:
        self.next_s = min(self.next_s, time_s)

    def _be_away(self, now_s: float) -> None:
        """Let all that waits go in arrival order, and wait no longer."""
        self.away, self.welcomed = True, False
        self._knocked_s = now_s
        self._later(now_s + self.bound_s)
        self._pass(False)
        for update in list(self._updates.values()):
            if update.stage is _Stage.WAITING:
                self._go(update, self.refused or AWAY)
            elif update.stage is _Stage.SENT:
                self._end(update, Outcome(update.ask.update, False, self.version, None, AWAY))
            elif update.stage is _Stage.DONE:
                self._not_heard(update)
        for number, gathered in list(self._sums.items()):
            if not gathered.gone:
                self._go_sum(number, gathered, self.refused or AWAY)
            elif gathered.done is not None:
                del self._sums[number]  # its members went in arrival order by now, or were given up

    def _go(self, update: _Update, why: str) -> None:
        """Lets it go: as it was granted, or in arrival order where there is a reason `why`."""
        grant, number = update.grant, update.ask.update
        if why or grant is None:
            update.stage = _Stage.GONE
            self._out.results.append(Permission(number, True, why, None, self.version, False))
            return
        update.stage = _Stage.GONE if grant.aggregator is None else _Stage.SENT
        permission = Permission(number, not grant.dropped, grant.reason, grant.aggregator, grant.version, True)
        self._out.results.append(permission)
        if grant.dropped:
            self._end(update, Outcome(number, False, grant.version, None, grant.reason))

    def _go_sum(self, number: int, gathered: _Sum, why: str) -> None:
        gathered.gone = True
        version = self.version if gathered.grant is None else gathered.grant.version
        permission = Permission(0, True, why, None, version, not why)
        self._out.results.append(SumPermission(number, permission))

    def _not_heard(self, update: _Update) -> None:
        assert update.done is not None
        if len(self._unheard) < MOST_UNHEARD:
            self._keep(update.done)
        self._end(update, Outcome(update.ask.update, True, self.version, None, self.refused or AWAY))

    def _keep(self, done: Done) -> None:
        """It is said after every welcome, until it is answered."""
        self._unheard[done.update] = done

    def _pass(self, coordinated: bool) -> None:
        if self._passing is not None and self._clock is not None:
            self._out.results.append(Pass(self._clock.rounds, coordinated))
        self._passing = None

    def _end(self, update: _Update, outcome: Outcome) -> None:
        del self._updates[update.ask.update]
        if update.stage is _Stage.SENT and not outcome.applied:
            self._lost_asks[update.ask.update] = update.ask
            if len(self._lost_asks) > MOST_LOST:
                del self._lost_asks[next(iter(self._lost_asks))]
        self._out.results.append(outcome)

    def take(self) -> tuple[list[Request], list[Result]]:
        """Return what is to be sent and all results, each in its order and once."""
        out, self._out = self._out, _Outbox()
        return out.messages, out.results
