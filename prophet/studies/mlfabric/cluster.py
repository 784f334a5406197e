"""Training on a virtual clock: workers, a server, aggregators, a replica (MLfabric, sections 2, 6 and 7).

Rule of this file: who does what when. Models are a learner's, transfers the wire's, decisions the scheduler's.

A worker reads the model, computes an update, pushes it and, when the update is applied (or dropped), asks for the
model again. What differs between methods:

- consistency: *asynchronous* servers apply every update on its own; *stale synchronous* ones too, but a worker that is
  more than K iterations ahead of the slowest waits (section 6); *synchronous* ones apply all workers' updates as one
  step;
- transport: *MLfabric* schedules batches of updates and of model requests every 100 ms; *shared* is a parameter
  server on a network that all transfers share fairly; *ring* and *tree* are all-reduces among the workers' machines.

Events are a heap of (time, number, what to do); equal times keep the order in which they were made, so one setting
and seed give one run, bit for bit.
"""

from __future__ import annotations

import enum
import heapq
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

from prophet.core.errors import UserError
from prophet.mlfabric.distribution import distribute
from prophet.mlfabric.network import FREE, end_of
from prophet.mlfabric.ordering import Update
from prophet.mlfabric.scheduler import BatchSchedule, Scheduler
from prophet.simulate.collectives import ring
from prophet.studies.mlfabric.settings import Computations, Rates, Setting
from prophet.studies.mlfabric.sharing import SharedNetwork
from prophet.studies.mlfabric.wire import Sent, Wire

HORIZON_S = 3600.0
"""Jobs are stopped after this if nothing else stops them."""


class Consistency(enum.StrEnum):
    """When a server applies updates, and how far workers may be apart (sections 2 and 6)."""

    ASYNCHRONOUS = "asynchronous"
    STALE = "stale synchronous"
    SYNCHRONOUS = "synchronous"


class Transport(enum.StrEnum):
    """How updates and models travel."""

    MLFABRIC = "mlfabric"
    SHARED = "shared"
    RING = "ring"
    TREE = "tree"


@dataclass(frozen=True)
class Method:
    """How a job is trained. `delay_bound` is tau_max, `staleness` K, `divergence_bound` Div_max with a replica."""

    consistency: Consistency
    transport: Transport
    delay_bound: int | None = None
    staleness: int = 2
    divergence_bound: float | None = None
    momentum: float = 0.0

    def __post_init__(self) -> None:
        scheduled = self.transport is Transport.MLFABRIC
        together = self.consistency is Consistency.SYNCHRONOUS
        if self.transport in (Transport.RING, Transport.TREE) and not together:
            raise UserError(f"a {self.transport} all-reduce is synchronous: choose another transport or consistency")
        if not scheduled and (self.delay_bound is not None or self.divergence_bound is not None):
            raise UserError(f"delay and divergence bounds need MLfabric's transport, not {self.transport}")
        if together and self.delay_bound is not None:
            raise UserError("a synchronous server's updates all have a delay of 1: leave the delay bound out")
        if self.consistency is Consistency.STALE and self.staleness < 0:
            raise UserError(f"staleness {self.staleness}: give 0 or more iterations")
        if not 0 <= self.momentum < 1:
            raise UserError(f"momentum {self.momentum}: give a number from 0 to below 1")


def mlfabric_a(delay_bound: int | None) -> Method:
    """MLfabric-A of section 7.1."""
    return Method(Consistency.ASYNCHRONOUS, Transport.MLFABRIC, delay_bound)


MLFABRIC_S = Method(Consistency.SYNCHRONOUS, Transport.MLFABRIC)
ASYNC = Method(Consistency.ASYNCHRONOUS, Transport.SHARED)
STALE_SYNC = Method(Consistency.STALE, Transport.SHARED)
MLFABRIC_STALE = Method(Consistency.STALE, Transport.MLFABRIC)
RR_SYNC = Method(Consistency.SYNCHRONOUS, Transport.RING)
TR_SYNC = Method(Consistency.SYNCHRONOUS, Transport.TREE)
METHODS: Mapping[str, Method] = {
    "mlfabric-a": mlfabric_a(None),
    "mlfabric-stale": MLFABRIC_STALE,
    "mlfabric-s": MLFABRIC_S,
    "async": ASYNC,
    "stale-sync": STALE_SYNC,
    "rr-sync": RR_SYNC,
    "tr-sync": TR_SYNC,
}
"""Section 7's methods, with the stale synchronous ones of section 6."""


class Trainee(Protocol):
    """What is trained. Models and updates are values that the cluster only passes on."""

    def read(self) -> Any:
        """The server's model as it is now; later steps do not change it."""

    def compute(self, worker: int, model: Any) -> tuple[Any, float]:
        """An update from this model, and its norm."""

    def apply(self, updates: Sequence[Any]) -> None:
        """One step of the server's model by the sum of these updates (Eq. 2)."""

    def replicate(self, updates: Sequence[Any]) -> None:
        """The same step of the replica's model."""

    def observe(self, now_s: float, applied: int) -> None:
        """Called whenever the server or the replica has moved; `applied` counts workers' updates."""


class Counting:
    """A learner without a model, for runs in which only times matter. Every norm is 1."""

    def read(self) -> None:
        return None

    def compute(self, worker: int, model: Any) -> tuple[None, float]:
        return None, 1.0

    def apply(self, updates: Sequence[Any]) -> None:
        pass

    def replicate(self, updates: Sequence[Any]) -> None:
        pass

    def observe(self, now_s: float, applied: int) -> None:
        pass


@dataclass
class Record:
    """What happened in a run.

    One entry for each applied update, in order: `applied_s`, `delays` (Eq. 9's: the version after it is applied less
    the one that it was computed from) and `by_worker`. `sent_to_server`, `sent_to_replica` count transfers that
    reached these, `replicated` the updates in the latter. `dropped_s` has a time for each dropped update.
    """

    applied_s: list[float] = field(default_factory=list)
    delays: list[int] = field(default_factory=list)
    by_worker: list[int] = field(default_factory=list)
    dropped_s: list[float] = field(default_factory=list)
    sent_to_server: int = 0
    sent_to_replica: int = 0
    replicated: int = 0
    end_s: float = 0.0

    @property
    def updates_per_s(self) -> float:
        return len(self.applied_s) / self.end_s

    @property
    def dropped_part(self) -> float:
        """Of all updates that were computed and scheduled."""
        return len(self.dropped_s) / max(1, len(self.dropped_s) + len(self.applied_s))


def run(
    setting: Setting,
    method: Method,
    learner: Trainee | None = None,
    updates: int | None = None,
    horizon_s: float | None = None,
    stop: Callable[[], bool] | None = None,
) -> Record:
    """Trains until so many updates are applied, until `horizon_s` virtual seconds, or until `stop()` says so.

    `stop` is asked after every step of the server. Raises UserError where none of the three is given, and for a
    setting or method that cannot be.
    """
    if horizon_s is not None and not 0 < horizon_s < math.inf:
        raise UserError(f"a job of {horizon_s} seconds: give a number above 0")
    if updates is None and horizon_s is None and stop is None:
        raise UserError("a run without an end: give updates, horizon_s or stop")
    limit = HORIZON_S if horizon_s is None else horizon_s
    return _Cluster(setting, method, learner or Counting(), limit).run(updates, stop)


class _Cluster:
    def __init__(self, setting: Setting, method: Method, learner: Trainee, horizon_s: float) -> None:
        self.setting, self.method, self.learner, self.horizon_s = setting, method, learner, horizon_s
        self.record = Record()
        self.now_s = 0.0
        self.version = 0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._number = 0
        self._computed = 0
        self._stopped = False
        self._updates: int | None = None
        self._stop: Callable[[], bool] | None = None
        self._computations = Computations(setting)
        workers = range(setting.workers)
        self._clocks = [0 for _ in workers]
        self._read_version = [0 for _ in workers]
        self._payloads: dict[int, tuple[int, Any]] = {}
        self._held: list[int] = []
        self._at_server: list[tuple[int, Any]] = []
        self._at_replica: list[tuple[int, Any]] = []
        together = method.consistency is Consistency.SYNCHRONOUS
        self._together = together
        rates = Rates.draw(setting, horizon_s)
        self._transport = _TRANSPORTS[method.transport](self, rates)

    def run(self, updates: int | None, stop: Callable[[], bool] | None) -> Record:
        self._updates, self._stop = updates, stop
        model = self.learner.read()
        for worker in range(self.setting.workers):
            self.has_model(worker, model, 0)
        while self._events and not self._stopped:
            time_s, _, what = heapq.heappop(self._events)
            if time_s > self.horizon_s:
                self.now_s = self.horizon_s
                break
            self.now_s = time_s
            what()
        self.record.end_s = self.now_s
        return self.record

    def at(self, time_s: float, what: Callable[[], None]) -> None:
        heapq.heappush(self._events, (time_s, self._number, what))
        self._number += 1

    # A worker's round: has_model, computed, applied (or dropped), wants_model.

    def has_model(self, worker: int, model: Any, version: int) -> None:
        self._read_version[worker] = version
        takes = self._computations.next_s(worker)

        def computed() -> None:
            payload, norm = self.learner.compute(worker, model)
            identity = self._computed
            self._computed += 1
            self._payloads[identity] = worker, payload
            self._transport.push(worker, self._update(identity, worker, norm), takes)

        self.at(self.now_s + takes, computed)

    def _update(self, identity: int, worker: int, norm: float) -> Update:
        node, size = self.setting.machine_of(worker), self.setting.model_bytes
        return Update(identity, node, size, self._read_version[worker], norm)

    def dropped(self, update: Update) -> None:
        worker, _ = self._payloads.pop(update.id)
        self.record.dropped_s.append(self.now_s)
        self._next_round(worker)

    def applied(self, updates: Sequence[Update]) -> None:
        """These updates are at the server, all earlier ones are applied."""
        arrived = [(update, *self._payloads.pop(update.id)) for update in updates]
        if not self._together:
            for update, worker, payload in arrived:
                self.learner.apply([payload])
                self.version += 1
                self._note(worker, self.version - update.version)
            self._moved()
            for _, worker, _ in arrived:
                self._next_round(worker)
            return
        self._at_server += [(worker, payload) for _, worker, payload in arrived]
        if len(self._at_server) == self.setting.workers:
            step, self._at_server = _by_worker(self._at_server), []
            self.learner.apply([payload for _, payload in step])
            self.version += 1
            for worker, _ in step:
                self._note(worker, 1)
            self._moved()
            for worker, _ in step:
                self._next_round(worker)

    def copied(self, arrived: Sequence[tuple[int, Any]]) -> None:
        """Updates with their workers are at the replica, which steps as the server does."""
        for update in arrived:
            self._at_replica.append(update)
            if len(self._at_replica) == self.updates_per_step:
                step, self._at_replica = _by_worker(self._at_replica), []
                self.learner.replicate([payload for _, payload in step])
        self.record.replicated += len(arrived)
        self.learner.observe(self.now_s, len(self.record.applied_s))

    @property
    def updates_per_step(self) -> int:
        return self.setting.workers if self._together else 1

    def payload(self, update: Update) -> tuple[int, Any]:
        """The worker and what it computed, until the update is applied."""
        return self._payloads[update.id]

    def _note(self, worker: int, delay: int) -> None:
        self.record.applied_s.append(self.now_s)
        self.record.delays.append(delay)
        self.record.by_worker.append(worker)

    def _moved(self) -> None:
        count = len(self.record.applied_s)
        self.learner.observe(self.now_s, count)
        enough = self._updates is not None and count >= self._updates
        self._stopped = self._stopped or enough or (self._stop is not None and self._stop())

    def _next_round(self, worker: int) -> None:
        self._clocks[worker] += 1
        self._held.append(worker)
        slowest = min(self._clocks) if self.method.consistency is Consistency.STALE else math.inf
        held, self._held = self._held, []
        for waiting in held:
            if self._clocks[waiting] - slowest <= self.method.staleness:
                self._transport.pull(waiting)
            else:
                self._held.append(waiting)


def _by_worker(arrived: Sequence[tuple[int, Any]]) -> list[tuple[int, Any]]:
    """In the order of workers, so that no sum depends on who arrived first."""
    return sorted(arrived, key=lambda update: update[0])


class _Transport(Protocol):
    """Updates to the server and models back."""

    def push(self, worker: int, update: Update, computed_in_s: float) -> None: ...

    def pull(self, worker: int) -> None: ...


class _Scheduled:
    """MLfabric: batches of pushes and of model requests."""

    def __init__(self, cluster: _Cluster, rates: Rates) -> None:
        setting, method = cluster.setting, cluster.method
        self._cluster = cluster
        self._wire = Wire(rates)
        machines = list(range(setting.machines))
        replica = None if method.divergence_bound is None else setting.replica
        self._scheduler = Scheduler(
            setting.server,
            machines,
            method.delay_bound,
            replica,
            machines,
            math.inf if method.divergence_bound is None else method.divergence_bound,
            method.momentum,
            cluster.updates_per_step,
            setting.seed,
        )
        self._ready: list[Update] = []
        self._requests: list[int] = []
        self._ticking = False
        self._sending_until_s = 0.0
        self._server_at = [-math.inf]
        self._replica_at = [-math.inf]
        self._copies: dict[int, tuple[int, Any]] = {}

    def push(self, worker: int, update: Update, computed_in_s: float) -> None:
        self._ready.append(update)
        self._tick_soon()

    def pull(self, worker: int) -> None:
        self._requests.append(worker)
        self._tick_soon()

    def _tick_soon(self) -> None:
        if not self._ticking:
            self._ticking = True
            batch_s = self._cluster.setting.batch_s
            # The next multiple of the interval that has not been: a tick asks for the one after it.
            self._cluster.at((math.floor(self._cluster.now_s / batch_s + 1e-9) + 1) * batch_s, self._tick)

    def _tick(self) -> None:
        self._ticking = False
        now, setting = self._cluster.now_s, self._cluster.setting
        network, until = self._wire.believed(now)
        if self._ready:
            ready, self._ready = self._ready, []
            schedule = self._scheduler.schedule(
                ready,
                network,
                now,
                until.get(setting.server, -math.inf),
                until.get(setting.replica, -math.inf),
            )
            for update in schedule.dropped:
                self._cluster.dropped(update)
            self._carry_out(schedule)
            network, _ = self._wire.believed(now)
        # Requests that come while the server still sends models are answered together, with a fresher one.
        if self._requests and self._sending_until_s < now + setting.batch_s:
            workers, self._requests = self._requests, []
            self._distribute(workers, network)
        if self._requests or self._ready:
            self._tick_soon()

    def _carry_out(self, schedule: BatchSchedule) -> None:
        cluster, now = self._cluster, self._cluster.now_s
        sent: list[Sent] = []
        for transfer in schedule.transfers:
            after = [sent[place] for place in transfer.after]
            sent.append(self._wire.send(transfer.source, transfer.destination, transfer.size_bytes, now, after))
        if self._scheduler.replica is not None:
            for arrival in schedule.commits:
                self._copies.update({update.id: cluster.payload(update) for update in arrival.updates})
        cluster.record.sent_to_server += len(schedule.commits)
        cluster.record.sent_to_replica += len(schedule.copies)
        # Server and replica each wait for their own earlier updates and the other's position; one can always go on.
        commits, copies = list(schedule.commits), list(schedule.copies)
        server, replica = self._server_at, self._replica_at
        while commits or copies:
            if commits and commits[0].needs < len(replica):
                arrival = commits.pop(0)
                time_s = max(sent[arrival.transfer].end_s, server[-1], replica[arrival.needs], now)
                server += [time_s] * len(arrival.updates)
                cluster.at(time_s, partial(cluster.applied, arrival.updates))
            else:
                arrival = copies.pop(0)
                time_s = max(sent[arrival.transfer].end_s, replica[-1], server[arrival.needs], now)
                replica += [time_s] * len(arrival.updates)
                copies_of = [self._copies.pop(update.id) for update in arrival.updates]
                cluster.at(time_s, partial(cluster.copied, copies_of))

    def _distribute(self, workers: list[int], network: Any) -> None:
        cluster, now, setting = self._cluster, self._cluster.now_s, self._cluster.setting
        machines = [setting.machine_of(worker) for worker in workers]
        speed = [network.downlinks[node].most_since(now) for node in range(setting.machines)]
        ranked = sorted(range(setting.machines), key=lambda node: -speed[node])
        plan = distribute(machines, setting.model_bytes, network, setting.server, ranked, now)
        model, version = cluster.learner.read(), cluster.version
        sent: list[Sent] = []
        for hop in plan.hops:
            after = () if hop.after is None else (sent[hop.after],)
            sent.append(self._wire.send(hop.source, hop.destination, setting.model_bytes, now, after))
            if hop.source == setting.server:
                self._sending_until_s = max(self._sending_until_s, sent[-1].end_s)
            if hop.reader is not None:
                cluster.at(sent[-1].end_s, partial(cluster.has_model, workers[hop.reader], model, version))


class _Shared:
    """A parameter server on a network without control: updates are applied in the order in which they arrive."""

    def __init__(self, cluster: _Cluster, rates: Rates) -> None:
        self._cluster = cluster
        self._rates = rates
        self._flows = SharedNetwork(*rates.at(0.0))
        self._then: dict[int, Callable[[], None]] = {}
        self._generation = 0
        for change in rates.changes():
            cluster.at(change, self._change)

    def push(self, worker: int, update: Update, computed_in_s: float) -> None:
        self._cluster.record.sent_to_server += 1
        self._start(update.node, self._cluster.setting.server, partial(self._cluster.applied, [update]))

    def pull(self, worker: int) -> None:
        cluster = self._cluster
        model, version = cluster.learner.read(), cluster.version
        node = cluster.setting.machine_of(worker)
        self._start(cluster.setting.server, node, partial(cluster.has_model, worker, model, version))

    def _start(self, source: int, destination: int, then: Callable[[], None]) -> None:
        flow = self._flows.start(source, destination, self._cluster.setting.model_bytes, self._cluster.now_s)
        self._then[flow] = then
        self._look_again()

    def _change(self) -> None:
        self._flows.change(*self._rates.at(self._cluster.now_s), self._cluster.now_s)
        self._look_again()

    def _look_again(self) -> None:
        self._generation += 1
        end = self._flows.next_end_s()
        if end < math.inf:
            self._cluster.at(end, partial(self._ended, self._generation))

    def _ended(self, generation: int) -> None:
        if generation == self._generation:
            for flow in self._flows.ended(self._cluster.now_s):
                self._then.pop(flow)()
            self._look_again()


class _AllReduce:
    """All workers' updates are summed among their machines and are everywhere at once; the server is no machine."""

    def __init__(self, cluster: _Cluster, rates: Rates) -> None:
        self._cluster = cluster
        self._ready: list[tuple[Update, float]] = []

    def push(self, worker: int, update: Update, computed_in_s: float) -> None:
        self._ready.append((update, computed_in_s))
        if len(self._ready) == self._cluster.setting.workers:
            updates = [update for update, _ in self._ready]
            self._ready = []
            self._cluster.at(self.end_s(computed_in_s), partial(self._cluster.applied, updates))

    def pull(self, worker: int) -> None:
        self._cluster.has_model(worker, self._cluster.learner.read(), self._cluster.version)

    def end_s(self, computed_in_s: float) -> float:
        """When a sum ends for which the last update took so long to compute and was ready now."""
        raise NotImplementedError


class _Ring(_AllReduce):
    """Section 2: 2 (n - 1) / n of a model through every NIC at the slowest one's rate, begun beside computing."""

    def __init__(self, cluster: _Cluster, rates: Rates) -> None:
        super().__init__(cluster, rates)
        self._link = rates.narrowest()

    def end_s(self, computed_in_s: float) -> float:
        setting, now = self._cluster.setting, self._cluster.now_s
        # Seconds at one byte a second: the bytes that pass each NIC.
        size = ring(setting.machines, 0.0, 1.0).transfer_s(setting.model_bytes) if setting.machines > 1 else 0.0
        end = end_of(self._link, FREE, size, now - setting.overlap * computed_in_s) if size else now
        return max(now, end)


class _Tree(_AllReduce):
    """Section 7: sums up a binary tree of machines and results down again, each node when it has all it needs."""

    def __init__(self, cluster: _Cluster, rates: Rates) -> None:
        super().__init__(cluster, rates)
        self._wire = Wire(rates)

    def end_s(self, computed_in_s: float) -> float:
        setting, now = self._cluster.setting, self._cluster.now_s
        self._wire.believed(now)
        size = setting.model_bytes
        up: dict[int, list[Sent]] = {}
        for node in range(setting.machines - 1, 0, -1):
            parent = (node - 1) // 2
            up.setdefault(parent, []).append(self._wire.send(node, parent, size, now, up.get(node, ())))
        down: dict[int, list[Sent]] = {0: up.get(0, [])}
        for node in range(1, setting.machines):
            down[node] = [self._wire.send((node - 1) // 2, node, size, now, down[(node - 1) // 2])]
        return max((message.end_s for sent in down.values() for message in sent), default=now)


_TRANSPORTS: dict[Transport, Callable[[_Cluster, Rates], _Transport]] = {
    Transport.MLFABRIC: _Scheduled,
    Transport.SHARED: _Shared,
    Transport.RING: _Ring,
    Transport.TREE: _Tree,
}
