"""Transports of updates to the server and of models back: MLfabric's, and those it is compared with.

Rule of this file: what is sent when, over which links. The cluster decides who computes, and applies updates.

`Scheduled` is MLfabric. `Shared` has no scheduler (figure 1a): rates are max-min fair. All flows' rates grow together
until a link is full; its flows stop there and the others grow on. `Ring` and `Tree` are all-reduces.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from prophet_mlfabric.aggregation import distribute
from prophet_mlfabric.network import NetworkState, Node, bytes_after, end_of
from prophet_mlfabric.ordering import Update
from prophet_mlfabric.scheduler import BatchSchedule, PlannedTransfer, Scheduler
from prophet_mlfabric.studies.settings import Rates

if TYPE_CHECKING:
    from prophet_mlfabric.studies.cluster import StudiedCluster

ROUNDING_S = 1e-9
"""A flow has ended if its remaining bytes take less than this, in seconds at its rate."""


class Carrier(Protocol):
    """Transport of updates to the server and of models back."""

    def __init__(self, cluster: StudiedCluster, rates: Rates) -> None: ...

    def push(self, worker: int, update: Update) -> None:
        """Send an update that the worker has computed; tell the cluster when it is applied or dropped."""

    def pull(self, worker: int) -> None:
        """Send a worker the model after its update; tell the cluster when the worker has it."""


class Wire:
    """True network of a job, scheduled transfers on it, and what the scheduler may know of them (section 4).

    Transfers are reserved, in order, in the true network: each gets the bandwidth that earlier ones leave. The
    scheduler plans with the rates that the monitor has reported, less the rest of the transfers in flight.
    """

    def __init__(self, rates: Rates) -> None:
        self._rates = rates
        self._true = rates.network()
        self._under_way: list[PlannedTransfer] = []

    def send(self, transfer: PlannedTransfer, now_s: float) -> PlannedTransfer:
        """Send a transfer once those in `after` have ended, with lower priority than all sent before it. Return it with
        its true end and pieces.
        """
        start = max((earlier.end_s for earlier in transfer.after), default=now_s)
        source, destination = transfer.source, transfer.destination
        end, pieces = self._true.pieces(source, destination, transfer.size_bytes, max(now_s, start))
        self._true.take(source, destination, pieces)
        transfer.end_s, transfer.pieces = end, pieces
        self._under_way.append(transfer)
        return transfer

    def believed(self, now_s: float) -> tuple[NetworkState, dict[Node, float]]:
        """Return the network that the scheduler plans with, and when it expects all transfers in flight to each node to
        end; minus infinity if there are none.
        """
        self._true.forget(now_s)
        self._under_way = [transfer for transfer in self._under_way if transfer.end_s > now_s]
        network = self._rates.reported(now_s)
        ends: dict[PlannedTransfer, float] = {}
        until: dict[Node, float] = defaultdict(lambda: -math.inf)
        for transfer in self._under_way:
            start = max((ends.get(earlier, now_s) for earlier in transfer.after), default=now_s)
            left = bytes_after(transfer.pieces, now_s)
            end = network.reserve(transfer.source, transfer.destination, left, start)
            ends[transfer], until[transfer.destination] = end, max(until[transfer.destination], end)
        return network, until


class Scheduled:
    """MLfabric: batches of pushes and of model requests."""

    def __init__(self, cluster: StudiedCluster, rates: Rates) -> None:
        setting, method = cluster.setting, cluster.method
        self._cluster, self._wire = cluster, Wire(rates)
        bound = method.divergence_bound
        self._scheduler = Scheduler(
            setting.server,
            range(setting.machines),
            method.delay_bound,
            None if bound is None else setting.replica,
            math.inf if bound is None else bound,
            method.momentum,
            setting.seed,
        )
        self._ready: list[Update] = []
        self._requests: list[int] = []
        self._closes_s = self._tick_s = math.inf
        """Latest time at which the batch of ready updates is ordered, and the time of the next decision."""
        self._server_at, self._replica_at = [-math.inf], [-math.inf]
        self._copies: dict[int, Any] = {}

    def push(self, worker: int, update: Update) -> None:
        if not self._ready:
            self._closes_s = self._next_multiple_s()
        self._ready.append(update)
        self._tick_soon()

    def pull(self, worker: int) -> None:
        self._requests.append(worker)
        self._tick_soon()

    def _next_multiple_s(self) -> float:
        """Return the next future multiple of `batch_s`: at a tick, the one after it."""
        batch_s = self._cluster.setting.batch_s
        return (math.floor(self._cluster.now_s / batch_s + 1e-9) + 1) * batch_s

    def _tick_soon(self) -> None:
        due_s = self._due_s()
        if due_s < self._tick_s:
            self._tick_s = due_s
            self._cluster.agenda.at(due_s, partial(self._tick, due_s))

    def _due_s(self) -> float:
        """Return the time at which there is something to decide."""
        now, setting = self._cluster.now_s, self._cluster.setting
        if not setting.eager:
            return self._next_multiple_s()
        network, until = self._wire.believed(now)
        due_s = math.inf
        if self._ready:
            due_s = max(now, min(self._closes_s, until[setting.server]))
        if self._requests:
            due_s = min(due_s, network.uplinks[setting.server].first_free(now))
        return due_s

    def _tick(self, time_s: float) -> None:
        if time_s != self._tick_s:
            return  # an earlier tick replaced it
        self._tick_s = math.inf
        now, setting = self._cluster.now_s, self._cluster.setting
        network, until = self._wire.believed(now)
        idle = until[setting.server] <= now
        if self._ready and (self._closes_s <= now or not setting.eager or idle):
            ready, self._ready = self._ready, []
            schedule = self._scheduler.schedule(ready, network, now, until[setting.server], until[setting.replica])
            for update in schedule.dropped:
                self._cluster.dropped(update)
            self._carry_out(schedule)
            network, _ = self._wire.believed(now)
        # Requests that arrive while the server's NIC is fully used are answered together, with a fresher model.
        patience_s = 0.0 if setting.eager else setting.batch_s
        if self._requests and network.uplinks[setting.server].first_free(now) <= now + patience_s:
            workers, self._requests = self._requests, []
            self._distribute(workers, network)
        if self._requests or self._ready:
            self._tick_soon()

    def _carry_out(self, schedule: BatchSchedule) -> None:
        cluster, now = self._cluster, self._cluster.now_s
        for transfer in schedule.transfers:
            self._wire.send(transfer, now)
        if self._scheduler.replica is not None:
            for commit in schedule.commits:
                self._copies.update({update.id: cluster.payload(update) for update in commit.updates})
        cluster.record.sent_to_server += len(schedule.commits)
        cluster.record.sent_to_replica += len(schedule.copies)
        # Server and replica each wait for their own earlier updates and the other's position; one can always proceed.
        commits, copies = list(schedule.commits), list(schedule.copies)
        server, replica = self._server_at, self._replica_at
        while commits or copies:
            commits_next = bool(commits) and commits[0].needs < len(replica)
            own, other, last = (server, replica, commits.pop(0)) if commits_next else (replica, server, copies.pop(0))
            time_s = max(last.end_s, own[-1], other[last.needs], now)
            own += [time_s] * len(last.updates)
            if commits_next:
                cluster.agenda.at(time_s, partial(cluster.applied, last.updates))
            else:
                values = [self._copies.pop(update.id) for update in last.updates]
                cluster.agenda.at(time_s, partial(cluster.copied, values))

    def _distribute(self, workers: list[int], network: NetworkState) -> None:
        cluster, now, setting = self._cluster, self._cluster.now_s, self._cluster.setting
        machines = [setting.machine_of(worker) for worker in workers]
        speed = [network.downlinks[node].most_since(now) for node in range(setting.machines)]
        ranked = sorted(range(setting.machines), key=lambda node: -speed[node])
        hops = distribute(machines, setting.model_bytes, network, setting.server, ranked, now)
        model, version = cluster.learner.read(), cluster.version
        sent: list[PlannedTransfer] = []
        for hop in hops:
            after = () if hop.after is None else (sent[hop.after],)
            transfer = PlannedTransfer(hop.source, hop.destination, setting.model_bytes, after=after)
            sent.append(self._wire.send(transfer, now))
            if hop.reader is not None:
                cluster.agenda.at(sent[-1].end_s, partial(cluster.has_model, workers[hop.reader], model, version))


def fair_rates(paths: NDArray[np.intp], capacities: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return max-min fair rates (bytes per second). `paths`: shape (flows, links of a flow); `capacities`: by link."""
    rates = np.full(len(paths), np.inf)
    left, open_flows = capacities.astype(float), np.ones(len(paths), bool)
    while open_flows.any():
        users = np.bincount(paths[open_flows].ravel(), minlength=len(left))
        share = np.where(users > 0, left / np.maximum(users, 1), np.inf)
        level = share.min()
        full = open_flows & (share[paths] <= level * (1 + 1e-12)).any(axis=1)
        rates[full] = level
        left -= level * np.bincount(paths[full].ravel(), minlength=len(left))
        left = np.maximum(left, 0.0)
        open_flows &= ~full
    return rates


@dataclass(eq=False)
class SharedFlow:
    """A transfer: uplink and downlink as indices, bytes left, what to do at its end, and its rate."""

    path: tuple[int, int]
    left: float
    then: Callable[[], None]
    rate: float = 0.0


class Shared:
    """A parameter server: updates are applied in order of arrival, and models are sent at once."""

    def __init__(self, cluster: StudiedCluster, rates: Rates) -> None:
        self._cluster, self._rates = cluster, rates
        self._nodes = cluster.setting.machines + 2
        self._flows: list[SharedFlow] = []
        self._now_s = 0.0
        self._generation = 0
        for change in rates.changes():
            cluster.agenda.at(change, self._share)

    def push(self, worker: int, update: Update) -> None:
        self._cluster.record.sent_to_server += 1
        self._start(update.node, self._cluster.setting.server, partial(self._cluster.applied, [update]))

    def pull(self, worker: int) -> None:
        cluster, setting = self._cluster, self._cluster.setting
        model = cluster.learner.read()
        then = partial(cluster.has_model, worker, model, cluster.version)
        self._start(setting.server, setting.machine_of(worker), then)

    def _start(self, source: Node, destination: Node, then: Callable[[], None]) -> None:
        self._advance()
        self._flows.append(SharedFlow((source, self._nodes + destination), self._cluster.setting.model_bytes, then))
        self._share()

    def _advance(self) -> None:
        for flow in self._flows:
            flow.left -= flow.rate * (self._cluster.now_s - self._now_s)
        self._now_s = self._cluster.now_s

    def _share(self) -> None:
        """Compute all rates from now on, and the next end."""
        self._advance()
        up, down = self._rates.at(self._now_s)
        paths = np.array([flow.path for flow in self._flows], np.intp).reshape(-1, 2)
        for flow, rate in zip(self._flows, fair_rates(paths, np.array([*up, *down])).tolist(), strict=True):
            flow.rate = rate
        self._generation += 1
        if self._flows:
            end_s = self._now_s + min(flow.left / flow.rate for flow in self._flows)
            self._cluster.agenda.at(end_s, partial(self._ended, self._generation))

    def _ended(self, generation: int) -> None:
        if generation != self._generation:
            return
        self._advance()
        ended = [flow for flow in self._flows if flow.left <= flow.rate * ROUNDING_S]
        self._flows = [flow for flow in self._flows if flow not in ended]
        self._share()
        for flow in ended:
            flow.then()


class _AllReduce:
    """All workers' updates are summed among their machines and arrive everywhere at once; no machine is the server."""

    def __init__(self, cluster: StudiedCluster, rates: Rates) -> None:
        self._cluster = cluster
        self._updates: list[Update] = []
        self._ready_s = [-math.inf] * cluster.setting.machines
        """Time at which each machine had all its workers' updates."""

    def push(self, worker: int, update: Update) -> None:
        cluster = self._cluster
        self._updates.append(update)
        self._ready_s[update.node] = cluster.now_s
        if len(self._updates) == cluster.setting.workers:
            updates, self._updates = self._updates, []
            cluster.record.ready_s.append(cluster.now_s)
            cluster.agenda.at(self.end_s(self._ready_s), partial(cluster.applied, updates))

    def pull(self, worker: int) -> None:
        self._cluster.has_model(worker, self._cluster.learner.read(), self._cluster.version)

    def end_s(self, ready_s: Sequence[float]) -> float:
        """Return the end of an all-reduce whose inputs the machines have at these times, the last of them now."""
        raise NotImplementedError


class Ring(_AllReduce):
    """Ring all-reduce of section 2: 2 (n - 1) steps, in each of which every machine sends the next 1/n of the model.

    Each step waits for the previous step at the neighbor, for transfers still in flight on the link, and for the
    receiver to have computed. So a slow link or computation anywhere delays all machines within a few steps.

    The first part of an update can be sent while the last is computed (`Setting.overlap`); a straggler overlaps no more
    than others.
    """

    def __init__(self, cluster: StudiedCluster, rates: Rates) -> None:
        super().__init__(cluster, rates)
        self._network = rates.network()

    def end_s(self, ready_s: Sequence[float]) -> float:
        setting, machines = self._cluster.setting, len(ready_s)
        begin_s = [time_s - setting.overlap * setting.compute_s for time_s in ready_s]
        part_bytes = setting.model_bytes / machines
        got_s, sent_s = begin_s, [-math.inf] * machines
        for _ in range(2 * (machines - 1)):
            for node in range(machines):
                after = (node + 1) % machines
                start_s = max(got_s[node], sent_s[node], begin_s[after])
                up, down = self._network.uplinks[node], self._network.downlinks[after]
                sent_s[node] = end_of(up, down, part_bytes, start_s)
            got_s = [sent_s[node - 1] for node in range(machines)]
        return max(self._cluster.now_s, *got_s)


class Tree(_AllReduce):
    """Tree all-reduce of section 7: sums go up a binary tree of machines and results go down, each as soon as ready."""

    def __init__(self, cluster: StudiedCluster, rates: Rates) -> None:
        super().__init__(cluster, rates)
        self._wire = Wire(rates)

    def end_s(self, ready_s: Sequence[float]) -> float:
        setting, now = self._cluster.setting, self._cluster.now_s
        self._wire.believed(now)

        def send(source: Node, destination: Node, after: Sequence[PlannedTransfer]) -> PlannedTransfer:
            return self._wire.send(PlannedTransfer(source, destination, setting.model_bytes, after=tuple(after)), now)

        up: defaultdict[Node, list[PlannedTransfer]] = defaultdict(list)
        for node in range(setting.machines - 1, 0, -1):
            parent = (node - 1) // 2
            up[parent].append(send(node, parent, up[node]))
        down: dict[Node, list[PlannedTransfer]] = {0: up[0]}
        for node in range(1, setting.machines):
            parent = (node - 1) // 2
            down[node] = [send(parent, node, down[parent])]
        return max((transfer.end_s for sent in down.values() for transfer in sent), default=now)
