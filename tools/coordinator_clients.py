"""Synthetic workers for tools.coordinator: many in one process, each with a connection of its own.

Rule of this file: when workers ask and what they see, in seconds of the steady clock. The talk itself is that of a
real worker (prophet/mlfabric/conversation.py); what is left out is the update, which takes as long as it is told to.
"""

from __future__ import annotations

import math
import os
import time
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import zmq

from prophet.core.errors import UserError
from prophet.mlfabric.conversation import Conversation, Result
from prophet.mlfabric.messages import Ask, Hello, decode_answer, encode
from prophet.mlfabric.ports import Outcome, Permission
from prophet.studies.agenda import Agenda

TENANT = "load"
BOUND_S = 5.0
"""Nothing is to go in arrival order here: what did is counted and shown."""
START_S = 60.0
"""All workers have to be welcome by then."""


@dataclass(frozen=True)
class WorkerLoad:
    """What one process of workers does. Sizes in bytes, times in seconds, `rate` in updates a second of all of them.

    `rate` 0: every worker asks as soon as its last update is applied. An update takes `takes` times `push_s` from its
    start to its end, drawn evenly.
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
    """What the workers of a process saw: how long each Ask took to its start, how long the wire was idle between the
    end of an update and the start of the next, and how many went without a grant. Seconds."""

    waits_s: list[float] = field(default_factory=list)
    idle_s: list[float] = field(default_factory=list)
    updates: int = 0
    ungranted: int = 0


class _Worker:
    def __init__(self, load: WorkerLoad, number: int, context: Any, now_s: float) -> None:
        self.socket = context.socket(zmq.DEALER)
        self.socket.setsockopt(zmq.LINGER, 0)
        self.socket.connect(load.address)
        hello = Hello(tenant=TENANT, worker=number, incarnation=os.getpid(), node=f"machine{number}")
        self.conversation = Conversation(hello, load.token, BOUND_S, now_s)
        self.updates = 0
        self.asked_s = math.inf


def drive(load: WorkerLoad) -> Seen:
    """Runs the workers for `load.seconds` after all are welcome. Raises UserError where they are not in START_S."""
    os.nice(load.nice)
    context = zmq.Context()
    context.set(zmq.MAX_SOCKETS, max(1024, 2 * load.workers))
    try:
        return _Process(load, context).run()
    finally:
        context.destroy(linger=0)


class _Process:
    def __init__(self, load: WorkerLoad, context: Any) -> None:
        self._load = load
        self._seen = Seen()
        self._random = np.random.default_rng(load.first)
        now = time.monotonic()
        self._workers = [_Worker(load, load.first + place, context, now) for place in range(load.workers)]
        self._agenda = Agenda()
        self._poller = zmq.Poller()
        self._by_socket = {worker.socket: worker for worker in self._workers}
        for worker in self._workers:
            self._poller.register(worker.socket, zmq.POLLIN)
        self._idle_since_s: float | None = None
        self._stop_s = math.inf

    def run(self) -> Seen:
        began = time.monotonic()
        for worker in self._workers:
            self._wake(worker)
        while not all(worker.conversation.welcomed for worker in self._workers):
            self._once()
            if time.monotonic() > began + START_S:
                raise UserError(f"only some of {len(self._workers)} workers were welcome within {START_S:g} s")
        now = time.monotonic()
        self._stop_s = now + self._load.seconds
        for place, worker in enumerate(self._workers):
            rate = self._load.rate
            self._agenda.at(now + (place / rate if rate else 0.0), partial(self._ask, worker))
        while time.monotonic() < self._stop_s:
            self._once()
        return self._seen

    def _once(self) -> None:
        """Waits for the next event or message, and does what is to be done."""
        left_s = self._agenda.next_s - time.monotonic()
        # ZeroMQ waits whole milliseconds; what is nearer is waited for by looking again and again.
        for socket, _ in self._poller.poll(max(0, math.floor(min(left_s, 0.1) * 1e3))):
            worker = self._by_socket[socket]
            while True:
                try:
                    data = socket.recv(zmq.NOBLOCK)
                except zmq.Again:
                    break
                worker.conversation.receive(decode_answer(data), time.monotonic())
            self._look(worker)
        while self._agenda.next_s <= time.monotonic():
            _, action = self._agenda.take()
            action()

    def _wake(self, worker: _Worker) -> None:
        """For what is due without anything being received; a beat a second, as a rule."""
        self._look(worker)
        self._agenda.at(max(worker.conversation.next_s, time.monotonic() + 0.2), partial(self._wake, worker))

    def _look(self, worker: _Worker) -> None:
        talk = worker.conversation
        talk.turn(time.monotonic())
        messages, results = talk.take()
        for message in messages:
            worker.socket.send(encode(message))
        if math.isfinite(talk.next_s) and talk.next_s < time.monotonic() + 0.2:
            self._agenda.at(talk.next_s, partial(self._look, worker))
        for result in results:
            self._take(worker, result)

    def _ask(self, worker: _Worker) -> None:
        now = time.monotonic()
        if worker.asked_s < math.inf:  # its last update is still open: it asks when that is through
            self._agenda.at(now + 0.01, partial(self._ask, worker))
            return
        worker.asked_s = now
        talk = worker.conversation
        talk.ask(worker.updates, self._load.size_bytes, talk.version, 1.0, now)
        worker.updates += 1
        self._look(worker)

    def _take(self, worker: _Worker, result: Result) -> None:
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
            worker.asked_s = math.inf
            self._agenda.at(next_s, partial(self._ask, worker))

    def _pushed(self, worker: _Worker, update: int) -> None:
        now = time.monotonic()
        self._idle_since_s = now
        worker.conversation.done(update, self._load.size_bytes, now)
        self._look(worker)


@dataclass
class Flood:
    """What came of a flood: requests sent, and how long it took until the last was answered, in seconds."""

    sent: int
    seconds: float


def flood(address: str, token: str, worker: int, requests: int) -> Flood:
    """One worker with the token, and a stranger without, send `requests` each as fast as they can.

    They read what is left of the answers when all is sent.
    """
    context = zmq.Context()
    try:
        talk = Conversation(
            Hello(tenant=TENANT, worker=worker, incarnation=os.getpid(), node="flood"), token, BOUND_S, time.monotonic()
        )
        sockets = [context.socket(zmq.DEALER) for _ in range(2)]
        for socket in sockets:
            socket.setsockopt(zmq.LINGER, 0)
            socket.connect(address)
        welcome, stranger = sockets
        until_s = time.monotonic() + START_S
        while not talk.welcomed:
            talk.turn(time.monotonic())
            for message in talk.take()[0]:
                welcome.send(encode(message))
            if welcome.poll(100):
                talk.receive(decode_answer(welcome.recv()), time.monotonic())
            if time.monotonic() > until_s:
                raise UserError(f"the flood was not welcome within {START_S:g} s")
        began = time.monotonic()
        for number in range(requests):
            welcome.send(encode(Ask(update=number, size_bytes=1, version=0)))
            stranger.send(b'{"kind": "ask", "update": 0, "size_bytes": -1, "version": 0}')
        # A connection that is closed with answers unread takes with it what the coordinator has yet to read.
        ended = time.monotonic()
        for socket in sockets:
            while socket.poll(1000):
                socket.recv()
                ended = time.monotonic()
        return Flood(2 * requests, ended - began)
    finally:
        context.destroy(linger=0)
