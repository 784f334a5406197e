"""A job with a coordinator on a virtual clock: real state machines at both ends, and an unreliable wire.

Rule of this file: workers compute, push and pull in the times they draw; messages are late or lost; updates take longer
or shorter than expected; workers die when a test wants it. `at_server` has the updates that really reached the server,
and `at_replica` those of its replica. All updates have norm 1.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from prophet_mlfabric.connections import Connections, Outgoing
from prophet_mlfabric.conversation import Conversation, Outcome, Permission
from prophet_mlfabric.coordination import Coordination
from prophet_mlfabric.job import Terms
from prophet_mlfabric.messages import Collect, Copy, Hello, decode_answer, encode
from prophet_mlfabric.studies.agenda import Agenda

TENANT, TOKEN = "job", "a token of the tests"


def open_updates(job: Coordination) -> list[tuple[int, int]]:
    """Return pairs of worker and update that were asked for and are not finished."""
    return [(entry.worker.number, entry.ask.update) for entry in job._open.values()]


@dataclass(frozen=True)
class Habits:
    """Behaviour of a virtual job: pairs are bounds of a uniform draw; times are in seconds.

    `takes` multiplies an update's expected time at the rate that the coordinator believes; `loss` is the chance that a
    message vanishes. With a `staleness` workers wait for each other after each round.
    """

    computes_s: tuple[float, float] = (0.05, 0.5)
    message_s: tuple[float, float] = (1e-4, 2e-3)
    takes: tuple[float, float] = (0.3, 4.0)
    size_bytes: tuple[int, int] = (100_000, 2_000_000)
    rate: float = 10e6
    loss: float = 0.0
    bound_s: float = 2.0
    aggregates: bool = False
    staleness: int | None = None
    copies_s: tuple[float, float] = (0.05, 1.0)
    """Time to read a copy, and again to bring it to the replica."""


class VirtualWorker:
    """A worker that computes, asks, pushes, says done, and begins again."""

    def __init__(self, job: VirtualJob, number: int, incarnation: int) -> None:
        self.job, self.number, self.alive = job, number, True
        self.incarnation = incarnation
        self.connection = f"{number}/{incarnation}/0".encode()
        hello = Hello(
            tenant=TENANT,
            worker=number,
            incarnation=incarnation,
            node=f"machine{number // 2}",
            sums_at=f"machine{number // 2}:{number}" if job.habits.aggregates else None,
            workers=job.workers_count,
            staleness=job.habits.staleness,
            replicates=job.terms.divergence_bound is not None,
        )
        self.conversation = Conversation(hello, TOKEN, job.habits.bound_s, job.now_s)
        self.updates = self.rounds = 0
        self.first_number = 10_000 * incarnation
        self.version = 0
        self.sizes: dict[int, int] = {}
        self.permissions: list[Permission] = []
        self.outcomes: list[Outcome] = []
        self.collections: dict[int, Collect] = {}
        self.here: set[tuple[int, int]] = set()
        self.asked: set[int] = set()
        self.copied: dict[int, str] = {}
        self.wakes_s = float("inf")
        if job.habits.staleness is not None:
            self.conversation.clock(0, 1, job.now_s)

    def compute(self) -> None:
        self.job.at(self.job.now_s + self.job.draw(self.job.habits.computes_s), self.if_alive(self.ask))

    def if_alive(self, what: Callable[[], None]) -> Callable[[], None]:
        return lambda: what() if self.alive else None

    def ask(self) -> None:
        low, high = self.job.habits.size_bytes
        size = int(self.job.random.integers(low, high + 1))
        number = self.first_number + self.updates
        self.updates += 1
        self.sizes[number] = size
        self.conversation.ask(number, size, self.version, 1.0, self.job.now_s)
        self.look()

    def look(self) -> None:
        """Act as the client's thread does when it wakes."""
        job = self.job
        while True:
            self.conversation.turn(job.now_s)
            messages, results = self.conversation.take()
            for message in messages:
                job.to_coordinator(self, encode(message))
            for _, result in results:
                self.take(result)
            if not results:
                break
        if self.conversation.next_s < self.wakes_s or self.wakes_s <= job.now_s:
            self.wakes_s = max(self.conversation.next_s, job.now_s + 1e-6)
            job.at(self.wakes_s, self.if_alive(self.look))

    def take(self, result: object) -> None:
        match result:
            case Copy():
                self.copy(result.number)
            case Permission(sum=True):
                collection = self.collections.pop(result.update)
                if result.goes:
                    self.push_sum(collection)
            case Permission():
                self.permissions.append(result)
                if result.goes:
                    self.push(result)
            case Outcome(sum=False):
                self.outcomes.append(result)
                self.version = max(self.version, result.version)
                self.rounds += 1
                if self.job.habits.staleness is None:
                    self.compute()
                else:
                    self.conversation.clock(self.rounds, self.rounds, self.job.now_s)
            case bool():
                self.job.notice_lead(self)
                self.conversation.clock(self.rounds, self.rounds + 1, self.job.now_s)
                self.compute()
            case Collect():
                self.collections[result.number] = result
                self.gather(result.number)

    def copy(self, number: int) -> None:
        """Read the model a while later, and hand it over a while after that; once for each number."""
        job = self.job
        if number in self.copied:
            if (reason := self.copied[number]) != "not yet":
                self.conversation.copied(number, reason)
            return
        self.copied[number] = "not yet"

        def read() -> None:
            model = set(job.at_server)
            job.at(job.now_s + job.draw(job.habits.copies_s), self.if_alive(partial(there, model)))

        def there(model: set[tuple[int, int]]) -> None:
            if job.replica_lives and len(model) >= len(job.at_replica):
                job.at_replica = model
            self.copied[number] = "" if job.replica_lives else "it is gone"
            self.conversation.copied(number, self.copied[number])
            self.look()

        job.at(job.now_s + job.draw(job.habits.copies_s), self.if_alive(read))

    def push(self, permission: Permission) -> None:
        job, number = self.job, permission.update
        took_s = job.took_s(self.sizes[number])
        if permission.aggregator is None:
            job.at(job.now_s + took_s, self.if_alive(partial(self.pushed, number)))
        elif permission.aggregator in job.workers:
            aggregator = job.workers[permission.aggregator]
            arrived = partial(aggregator.arrived, (self.number, number))
            job.at(job.now_s + took_s, aggregator.if_alive(arrived))

    def pushed(self, number: int) -> None:
        self.job.reach_server([(self.number, number)])
        self.conversation.done(number, self.sizes[number], self.job.now_s)
        self.look()

    def arrived(self, member: tuple[int, int]) -> None:
        self.here.add(member)
        for number in list(self.collections):
            self.gather(number)
        self.look()

    def gather(self, number: int) -> None:
        collection = self.collections[number]
        if collection.members and number not in self.asked and self.here.issuperset(collection.members):
            self.asked.add(number)
            self.conversation.collected(number, self.job.now_s)

    def push_sum(self, collection: Collect) -> None:
        def pushed() -> None:
            self.job.reach_server(collection.members)
            self.conversation.done(collection.number, 1_000_000, self.job.now_s, sum=True)
            self.look()

        self.job.at(self.job.now_s + self.job.took_s(1_000_000), self.if_alive(pushed))


@dataclass
class VirtualJob:
    """Workers, their coordinator, and time."""

    workers_count: int
    terms: Terms
    habits: Habits = Habits()
    seed: int = 0
    now_s: float = 0.0
    at_server: Counter[tuple[int, int]] = field(default_factory=Counter)
    greatest_lead: int = 0
    """Maximum rounds by which a worker that read the model led the slowest living one."""
    mixed: int = 0
    """Number of models read with updates of different rounds in them, lost updates aside."""
    workers: dict[int, VirtualWorker] = field(default_factory=dict)
    at_replica: set[tuple[int, int]] = field(default_factory=set)
    replica_lives: bool = True
    greatest_lacking: int = 0
    """Maximum number of updates that the server had and the replica lacked."""

    def __post_init__(self) -> None:
        self.random = np.random.default_rng(self.seed)
        self._agenda = Agenda()
        self._epoch = 0
        self._turn_s = float("inf")
        self.start_coordinator()
        for number in range(self.workers_count):
            self.start_worker(number)

    def start_coordinator(self) -> None:
        """Start a new coordinator, which knows nothing."""
        self._epoch += 1
        self.coordination = Coordination(self.terms, self._epoch)
        jobs = {TENANT: self.coordination}
        self.connections: Connections[bytes] | None = Connections({TENANT: TOKEN}, jobs)

    def reach_server(self, members: Iterable[tuple[int, int]]) -> None:
        """Apply an update, or a sum of these."""
        self.at_server.update(members)
        self.greatest_lacking = max(self.greatest_lacking, len(self.at_server.keys() - self.at_replica))

    def notice_lead(self, reader: VirtualWorker) -> None:
        """Note that `reader` reads the model now."""
        alive = [worker for worker in self.workers.values() if worker.alive]
        self.greatest_lead = max(self.greatest_lead, reader.rounds - min(worker.rounds for worker in alive))
        ended = {(worker.number, outcome.update) for worker in alive for outcome in worker.outcomes}
        rounds = Counter(number for number, _ in ended.union(self.at_server))
        self.mixed += len({rounds[worker.number] for worker in alive}) > 1

    def kill_coordinator(self) -> None:
        self.connections = None

    def start_worker(self, number: int) -> None:
        incarnation = 1 + (self.workers[number].incarnation if number in self.workers else 0)
        self.workers[number] = VirtualWorker(self, number, incarnation)
        self.workers[number].look()
        self.workers[number].compute()

    def draw(self, between: tuple[float, float]) -> float:
        return float(self.random.uniform(*between))

    def took_s(self, size_bytes: int) -> float:
        return size_bytes / self.habits.rate * self.draw(self.habits.takes)

    def at(self, time_s: float, what: Callable[[], None]) -> None:
        self._agenda.at(time_s, what)

    def run(self, until_s: float) -> None:
        while self._agenda.next_s <= until_s:
            self.now_s, what = self._agenda.take()
            what()
        self.now_s = until_s

    def _travels(self, what: Callable[[], None]) -> None:
        if self.random.random() >= self.habits.loss:
            self.at(self.now_s + self.draw(self.habits.message_s), what)

    def to_coordinator(self, worker: VirtualWorker, data: bytes) -> None:
        def arrived() -> None:
            if self.connections is not None:
                self._answer(self.connections.receive(worker.connection, data, self.now_s))
                self._turn()

        self._travels(arrived)

    def _answer(self, answers: list[Outgoing[bytes]]) -> None:
        for connection, answer in answers:
            if answer is not None:
                self._travels(partial(self._to_worker, connection, encode(answer)))

    def _to_worker(self, connection: bytes, data: bytes) -> None:
        worker = self.workers[int(connection.split(b"/")[0])]
        if worker.alive and worker.connection == connection:
            worker.conversation.receive(decode_answer(data), self.now_s)
            worker.look()

    def _turn(self) -> None:
        if self.connections is None:
            return
        self._answer(self.connections.turn(self.now_s))
        next_s = max(self.connections.next_s, self.now_s + 1e-6)
        if next_s < self._turn_s or self._turn_s <= self.now_s:
            self._turn_s = next_s
            self.at(next_s, self._turn)
