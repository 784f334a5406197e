"""A job with a coordinator on a virtual clock: the real coordinator, simulated workers, and an unreliable wire.

Rule of this file: workers compute, push and pull in the times they draw; connections break; updates take longer or
shorter than expected; workers die when a test wants it. `at_server` has the updates that really reached the server, and
`at_replica` those of its replica, which worker 0 keeps. All updates have norm 1.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from prophet_mlfabric import messages as msg
from prophet_mlfabric.connections import Connections, Outgoing
from prophet_mlfabric.coordination import Coordination, Terms
from prophet_mlfabric.studies.agenda import Agenda

TENANT, TOKEN = "job", "a token of the tests"
RECONNECT_S = 0.1


@dataclass(frozen=True)
class Habits:
    """Behaviour of a virtual job: pairs are bounds of a uniform draw; times are in seconds.

    `takes` multiplies an update's time at `rate`; `breaks` is the chance that a message is lost with its connection.
    """

    computes_s: tuple[float, float] = (0.05, 0.5)
    message_s: tuple[float, float] = (1e-4, 2e-3)
    takes: tuple[float, float] = (0.3, 4.0)
    size_bytes: tuple[int, int] = (100_000, 2_000_000)
    rate: float = 10e6
    breaks: float = 0.0
    bound_s: float = 2.0
    copies_s: tuple[float, float] = (0.05, 1.0)
    """Time to read a copy, and again to write it."""


class VirtualWorker:
    """A worker that computes, asks, pushes, says done, and begins again."""

    def __init__(self, job: VirtualJob, number: int, incarnation: int) -> None:
        self.job, self.number, self.incarnation, self.alive = job, number, incarnation, True
        self.hello = msg.Hello(
            tenant=TENANT,
            worker=number,
            incarnation=incarnation,
            node=f"machine{number // 2}",
            replicates=number == 0 and job.terms.divergence_bound is not None,
        )
        self.connection, self.connects, self.arrives_s = b"", 0, 0.0
        self.admitted = False
        self.version = 0
        self.updates = self.dropped = self.ungranted = 0
        self.waiting: msg.Ask | None = None
        self.unheard: dict[int, msg.Done] = {}
        self.delays: list[int] = []
        self.copies: dict[int, str | None] = {}
        """Answers to copies; None until known."""
        self.connect()
        self.compute()

    def later(self, length_s: float, what: Callable[[], None]) -> None:
        self.job.at(self.job.now_s + length_s, lambda: what() if self.alive else None)

    def connect(self) -> None:
        if self.job.connections is None:
            self.later(RECONNECT_S, self.connect)
            return
        self.connects += 1
        self.connection = f"{self.number}/{self.incarnation}/{self.connects}".encode()
        self.say(self.hello)

    def say(self, message: msg.Request) -> None:
        if self.admitted or isinstance(message, msg.Hello):
            self.job.to_coordinator(self, message)

    def compute(self) -> None:
        self.later(self.job.draw(self.job.habits.computes_s), partial(self.ask, len(self.job.at_server)))

    def ask(self, read: int) -> None:
        low, high = self.job.habits.size_bytes
        size = int(self.job.random.integers(low, high + 1))
        number = 10_000 * self.incarnation + self.updates
        self.updates += 1
        self.waiting = ask = msg.Ask(update=number, size_bytes=size, version=min(read, self.version))
        self.say(ask)
        self.later(self.job.habits.bound_s, lambda: self.go(ask) if not self.admitted else None)

    def go(self, ask: msg.Ask, granted: bool = False) -> None:
        if self.waiting is ask:
            self.waiting = None
            self.ungranted += not granted
            took_s = ask.size_bytes / self.job.habits.rate * self.job.draw(self.job.habits.takes)
            self.later(took_s, partial(self.pushed, ask))

    def pushed(self, ask: msg.Ask) -> None:
        self.job.reach_server((self.number, ask.update))
        self.unheard[ask.update] = msg.Done(**ask.model_dump(exclude={"kind"}))
        self.say(self.unheard[ask.update])
        self.compute()

    def hear(self, answer: msg.Answer) -> None:
        match answer:
            case msg.Challenge():
                hello = self.hello.model_copy(update={"version": self.version})
                self.say(hello.model_copy(update={"proof": msg.prove(TOKEN, answer.nonce, hello)}))
            case msg.Welcome():
                self.admitted = True
                self.hello = self.hello.model_copy(update={"epoch": answer.epoch})
                self.version = max(self.version, answer.version)
                for done in self.unheard.values():
                    self.say(done)
                if self.waiting is not None:
                    self.say(self.waiting)
            case msg.Grant():
                self.version = max(self.version, answer.version)
                ask = self.waiting
                if ask is not None and ask.update == answer.update and answer.dropped:
                    self.waiting, self.dropped = None, self.dropped + 1
                    self.compute()
                elif ask is not None and ask.update == answer.update:
                    self.later(answer.start_s, partial(self.go, ask, True))
            case msg.Applied():
                self.version = max(self.version, answer.version)
                if self.unheard.pop(answer.update, None) is not None:
                    self.delays.append(answer.delay)
            case msg.Copy():
                self.copy(answer.number)

    def copy(self, number: int) -> None:
        """Read the model a while later, and write it a while after that; once for each number."""
        job = self.job
        if number in self.copies:
            if (known := self.copies[number]) is not None:
                self.say(msg.Copied(number=number, reason=known))
            return
        self.copies[number] = None

        def read() -> None:
            self.later(job.draw(job.habits.copies_s), partial(written, set(job.at_server)))

        def written(model: set[tuple[int, int]]) -> None:
            if job.replica_lives:
                job.at_replica = model
            self.copies[number] = reason = "" if job.replica_lives else "the disk is full"
            self.say(msg.Copied(number=number, reason=reason))

        self.later(job.draw(job.habits.copies_s), read)


@dataclass
class VirtualJob:
    """Workers, their coordinator, and time."""

    workers_count: int
    terms: Terms
    habits: Habits = Habits()
    seed: int = 0
    now_s: float = 0.0
    at_server: Counter[tuple[int, int]] = field(default_factory=Counter)
    workers: dict[int, VirtualWorker] = field(default_factory=dict)
    at_replica: set[tuple[int, int]] = field(default_factory=set)
    replica_lives: bool = True
    greatest_lacking: int = 0
    """Maximum number of updates that the server had and the replica lacked."""

    def __post_init__(self) -> None:
        self.random = np.random.default_rng(self.seed)
        self._agenda = Agenda()
        self.at = self._agenda.at
        self._epoch = 0
        self._turn_s = float("inf")
        self.start_coordinator()
        for number in range(self.workers_count):
            self.start_worker(number)

    def start_coordinator(self) -> None:
        """Start a new coordinator, which knows nothing."""
        self._epoch += 1
        self.coordination = Coordination(self.terms, self._epoch)
        self.connections: Connections[bytes] | None = Connections({TENANT: TOKEN}, {TENANT: self.coordination})

    def kill_coordinator(self) -> None:
        self.connections = None
        for worker in self.workers.values():
            self.disconnect(worker)

    def start_worker(self, number: int) -> None:
        incarnation = 1 + (self.workers[number].incarnation if number in self.workers else 0)
        self.workers[number] = VirtualWorker(self, number, incarnation)

    def kill_worker(self, number: int) -> None:
        self.workers[number].alive = False
        self.disconnect(self.workers[number])

    def disconnect(self, worker: VirtualWorker) -> None:
        if self.connections is not None:
            self.connections.closed(worker.connection)
        worker.connection, worker.admitted = b"", False
        worker.later(RECONNECT_S, worker.connect)

    def reach_server(self, update: tuple[int, int]) -> None:
        self.at_server[update] += 1
        self.greatest_lacking = max(self.greatest_lacking, len(self.at_server.keys() - self.at_replica))

    def draw(self, between: tuple[float, float]) -> float:
        return float(self.random.uniform(*between))

    def run(self, until_s: float) -> None:
        while self._agenda.next_s <= until_s:
            self.now_s, what = self._agenda.take()
            what()
        self.now_s = until_s

    def _travels(self, worker: VirtualWorker, arrives: Callable[[], None]) -> None:
        """Have a message of a worker's connection arrive, after those before it, unless the connection breaks."""
        connection = worker.connection
        if self.random.random() < self.habits.breaks:
            self.disconnect(worker)
            return
        worker.arrives_s = max(worker.arrives_s, self.now_s + self.draw(self.habits.message_s))
        self.at(worker.arrives_s, lambda: arrives() if worker.connection == connection and worker.alive else None)

    def to_coordinator(self, worker: VirtualWorker, message: msg.Request) -> None:
        def arrived() -> None:
            if self.connections is not None:
                self._answer(self.connections.receive(worker.connection, msg.encode(message), self.now_s))
                self._turn()

        self._travels(worker, arrived)

    def _answer(self, answers: list[Outgoing[bytes]]) -> None:
        for connection, answer in answers:
            worker = next((each for each in self.workers.values() if each.connection == connection), None)
            if answer is not None and worker is not None:
                self._travels(worker, partial(worker.hear, msg.decode_answer(msg.encode(answer))))

    def _turn(self) -> None:
        if self.connections is None:
            return
        self._answer(self.connections.turn(self.now_s))
        next_s = max(self.connections.next_s, self.now_s + 1e-6)
        if next_s < self._turn_s or self._turn_s <= self.now_s:
            self._turn_s = next_s
            self.at(next_s, self._turn)
