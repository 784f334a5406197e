"""Synthetic workers for tools.coordinator: many in one process, each with its own connection.

Rule of this file: when workers ask, and what they observe, in seconds of the monotonic clock. They use the real
protocol (prophet_mlfabric/conversation.py), but an update is only a configured wait.
"""

from __future__ import annotations

import contextlib
import math
import os
import socket
import time
from dataclasses import dataclass, field
from functools import partial
from urllib.parse import urlsplit

import numpy as np

from prophet_mlfabric.conversation import Conversation, Outcome, Permission
from prophet_mlfabric.messages import (
    LENGTH_BYTES,
    MOST_ANSWER_BYTES,
    Ask,
    Hello,
    decode_answer,
    framed,
    take_frames,
)
from prophet_mlfabric.studies.agenda import Agenda
from prophet_scheduler.core.errors import UserError
from prophet_scheduler.hub import Connection, Hub, Owner, lives_or_ends

TENANT = "load"
BOUND_S = 5.0
"""Seconds after which an update goes in arrival order. None should: those that do are counted and shown."""
MOST_WAITING = 50
"""Maximum workers that wait to be admitted at once: a coordinator accepts a limited number of strangers."""
START_S = 60.0
"""Maximum seconds until all workers are admitted."""


@dataclass(frozen=True)
class WorkerLoad:
    """Load from one process of workers. Sizes in bytes, times in seconds, `rate` in updates per second of all workers.

    With `rate` 0 a worker asks as soon as its last update is applied. An update takes `push_s` times a factor drawn
    uniformly from the range `takes`.
    """

    address: str
    token: str
    first: int
    workers: int
    seconds: float
    rate: float = 0.0
    size_bytes: int = 1
    push_s: float = 0.0
    takes: tuple[float, float] = (1.0, 1.0)
    nice: int = 0


@dataclass
class Seen:
    """Observations of a process's workers, in seconds: the time from each Ask to its start, and the wire's idle time
    between the end of an update and the start of the next. `ungranted` counts updates without a grant.
    """

    waits_s: list[float] = field(default_factory=list)
    idle_s: list[float] = field(default_factory=list)
    updates: int = 0
    ungranted: int = 0


def _connected(address: str) -> socket.socket:
    place = urlsplit(address)
    own = socket.create_connection((place.hostname or "", place.port or 0), START_S)
    lives_or_ends(own)
    return own


class _Worker:
    def __init__(self, load: WorkerLoad, number: int, process: _Process, now_s: float) -> None:
        owner = Owner(2 * MOST_ANSWER_BYTES, received=lambda connection: process.received(self))
        self.connection = process.hub.adopt(_connected(load.address), owner)
        hello = Hello(tenant=TENANT, worker=number, incarnation=os.getpid(), node=f"machine{number}")
        self.conversation = Conversation(hello, load.token, BOUND_S, now_s)
        self.updates = 0
        self.asked_s = 0.0


def drive(load: WorkerLoad) -> Seen:
    """Run the workers for `load.seconds` once all are admitted. Raises UserError if that takes more than START_S."""
    os.nice(load.nice)
    with contextlib.closing(Hub(load.workers, math.inf)) as hub:
        return _Process(load, hub).run()


class _Process:
    def __init__(self, load: WorkerLoad, hub: Hub) -> None:
        self.hub = hub
        self._load = load
        self._seen = Seen()
        self._random = np.random.default_rng(load.first)
        self._workers: list[_Worker] = []
        self._agenda = Agenda()
        self._idle_since_s: float | None = None

    def run(self) -> Seen:
        until_s, waiting = time.monotonic() + START_S, 0
        while (more := len(self._workers) < self._load.workers) or waiting:
            if more and waiting < MOST_WAITING:
                first = self._load.first + len(self._workers)
                self._workers.append(_Worker(self._load, first, self, time.monotonic()))
                self._wake(self._workers[-1])
            self._once()
            waiting = sum(not worker.conversation.welcomed for worker in self._workers)
            if time.monotonic() > until_s:
                raise UserError(f"only some of {self._load.workers} workers were welcome within {START_S:g} s")
        now = time.monotonic()
        for place, worker in enumerate(self._workers):
            rate = self._load.rate
            self._agenda.at(now + (place / rate if rate else 0.0), partial(self._ask, worker))
        while time.monotonic() < now + self._load.seconds:
            self._once()
        return self._seen

    def _once(self) -> None:
        """Wait for the next event or message, and handle it."""
        self.hub.turn(min(self._agenda.next_s, time.monotonic() + 0.1))
        while self._agenda.next_s <= time.monotonic():
            _, action = self._agenda.take()
            action()

    def received(self, worker: _Worker) -> None:
        """Handle messages to a worker."""
        for data in take_frames(worker.connection.received, MOST_ANSWER_BYTES):
            worker.conversation.receive(decode_answer(data), time.monotonic())
        self._look(worker)

    def _wake(self, worker: _Worker) -> None:
        """Handle what is due without a message; mostly a heartbeat every second."""
        self._look(worker)
        self._agenda.at(max(worker.conversation.next_s, time.monotonic() + 0.2), partial(self._wake, worker))

    def _look(self, worker: _Worker) -> None:
        talk = worker.conversation
        talk.turn(time.monotonic())
        messages, results = talk.take()
        for message in messages:
            worker.connection.send(framed(message))
        if math.isfinite(talk.next_s) and talk.next_s < time.monotonic() + 0.2:
            self._agenda.at(talk.next_s, partial(self._look, worker))
        for _, result in results:
            self._take(worker, result)

    def _ask(self, worker: _Worker) -> None:
        """Ask to send the next update; the last one has been applied."""
        talk, worker.asked_s = worker.conversation, time.monotonic()
        talk.ask(worker.updates, self._load.size_bytes, talk.version, 1.0, worker.asked_s)
        worker.updates += 1
        self._look(worker)

    def _take(self, worker: _Worker, result: object) -> None:
        now, load = time.monotonic(), self._load
        if isinstance(result, Permission):
            self._seen.waits_s.append(now - worker.asked_s)
            self._seen.ungranted += not result.coordinated
            if self._idle_since_s is not None:
                self._seen.idle_s.append(max(0.0, now - self._idle_since_s))
                self._idle_since_s = None
            takes_s = load.push_s * float(self._random.uniform(*load.takes))
            self._agenda.at(now + takes_s, partial(self._pushed, worker, result.update))
        elif isinstance(result, Outcome):
            self._seen.updates += 1
            next_s = now if not load.rate else max(now, worker.asked_s + load.workers / load.rate)
            self._agenda.at(next_s, partial(self._ask, worker))

    def _pushed(self, worker: _Worker, update: int) -> None:
        now = time.monotonic()
        self._idle_since_s = now
        worker.conversation.done(update, self._load.size_bytes, now)
        self._look(worker)


def flood(address: str, token: str, worker: int, requests: int) -> tuple[int, float]:
    """Let a worker with the token and a stranger without send `requests` each, as fast as they can.

    Answers are read and discarded. Return (requests sent, seconds until the last was answered).
    """
    talk = Conversation(
        Hello(tenant=TENANT, worker=worker, incarnation=os.getpid(), node="flood"), token, BOUND_S, time.monotonic()
    )

    def heard(connection: Connection) -> None:
        for data in take_frames(connection.received, MOST_ANSWER_BYTES):
            talk.receive(decode_answer(data), time.monotonic())

    with contextlib.closing(Hub(2, math.inf)) as hub:
        welcome = hub.adopt(_connected(address), Owner(1 << 30, received=heard))
        until_s = time.monotonic() + START_S
        while not talk.welcomed:
            talk.turn(time.monotonic())
            for message in talk.take()[0]:
                welcome.send(framed(message))
            hub.turn(time.monotonic() + 0.1)
            if time.monotonic() > until_s:
                raise UserError(f"the flood was not welcome within {START_S:g} s")
        forgetful = Owner(1 << 30, received=lambda connection: connection.received.clear())
        stranger = hub.adopt(_connected(address), forgetful)
        nonsense = b'{"kind": "ask", "update": 0, "size_bytes": -1, "version": 0}'
        began = time.monotonic()
        for number in range(requests):
            if not stranger.open:  # timed out
                stranger = hub.adopt(_connected(address), forgetful)
            welcome.send(framed(Ask(update=number, size_bytes=1, version=0)))
            stranger.send(len(nonsense).to_bytes(LENGTH_BYTES, "big") + nonsense)
            hub.turn(time.monotonic())
        for connection in (welcome, stranger):
            connection.end()
        while len(hub):
            hub.turn(math.inf)
        return 2 * requests, time.monotonic() - began
