"""The coordinator of one job: requests in, answers out, the time passed in (MLfabric, section 4).

Rule of this file: answers to workers, and the count of applied updates. ordering.py decides orders and drops;
timetable.py decides starts; connections.py maps connections to workers.

A batch is decided every `batch_s` (section 7: 100 ms), or sooner if the server's NIC would run out of work: more
updates in a batch give a better order, but waiting with an idle NIC costs time.

An update counts as applied, once, when its worker reports that the server has all of it. Updates without a grant count
too: their workers found the coordinator away or too slow. The delay bound holds as long as there are none of these.

The rates of workers' NICs (section 4: network monitor) are learned from their pushes.

A worker's grants are released if it has no connection for `dead_s` or restarts; a single grant if its push is `lease_s`
late. The worker is not told: if it asks again, its update waits again, and if it reports the update, that counts. With
a replica of the model, lag.py decides which updates may go before the replica has another copy.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TypeAlias

from prophet_mlfabric import messages as msg
from prophet_mlfabric.lag import ReplicaLag
from prophet_mlfabric.network import Link, NetworkState, Node
from prophet_mlfabric.ordering import Update, order_updates
from prophet_mlfabric.timetable import LEAD_S, Push, Timetable
from prophet_scheduler.core.errors import UserError

Addressed: TypeAlias = tuple[int, msg.Answer]
"""Worker, and a message to it."""

SERVER: Node = 0
MOST_OPEN = 64
"""Maximum open updates of one worker. More are refused before they cost anything."""
MOST_KEPT = 128
"""Number of a worker's finished updates to remember, so that repeated reports are recognized."""
MOST_BATCH = 64
"""Maximum updates in a batch. The scheduler is quadratic, and everybody waits for it."""
MOST_PLANNED = 32
"""Number of planned pushes from which on no further batch is decided. A later batch has more to choose from."""
CHECK_S = 0.5
"""Seconds between two checks for dead workers."""
COPIES = 1 << 20
"""Copy numbers in each epoch, so that a copy from before a restart is never mistaken for another."""


@dataclass(frozen=True)
class Terms:
    """Terms of a job's coordinator. Times in seconds, rates in bytes per second.

    `delay_bound` is tau_max, None for none. `divergence_bound` is Div_max, None without a replica. `server_rate` is the
    rate of the parameter server's NIC (None: `rate`). A worker's NIC has `rate` until its pushes show another. Raises
    UserError for impossible values.
    """

    delay_bound: int | None = None
    rate: float = 1.25e9
    server_rate: float | None = None
    batch_s: float = 0.1
    dead_s: float = 10.0
    lease_s: float = 30.0
    most_workers: int = 4096
    most_waiting: int = 16384
    divergence_bound: float | None = None

    def __post_init__(self) -> None:
        if self.delay_bound is not None and self.delay_bound < 1:
            raise UserError(f"--delay-bound {self.delay_bound}: an update has a delay of 1 even alone; give 1 or more")
        if self.divergence_bound is not None and not 0 < self.divergence_bound < math.inf:
            raise UserError(f"--divergence-bound {self.divergence_bound:g}: it is a norm; give a number above 0")


@dataclass
class Counts:
    """Outcomes of a job's updates so far. `greatest_delay` is that of Eq. 9, of the updates with a grant."""

    applied: int = 0
    dropped: int = 0
    lost: int = 0
    """Updates that were asked for and not reported; a late report counts as applied."""
    ungranted: int = 0
    """Applied updates that went without a grant."""
    refused: int = 0
    died: int = 0
    greatest_delay: int = 0


@dataclass
class JobWorker:
    """A worker that has joined."""

    number: int
    incarnation: int
    heard_s: float
    replicates: bool
    node: Node = -1
    connected: bool = True
    alive: bool = True
    ended: bool = False
    open: dict[int, Push] = field(default_factory=dict)
    finished: dict[int, msg.Applied | msg.Grant] = field(default_factory=dict)
    """Last answers about the newest finished updates."""
    forgotten: int = 0
    """Updates below this number are finished, and their outcomes are no longer known."""


class Coordination:
    """One job's coordinator. Not thread-safe.

    `receive` takes a request of a worker that `join` has admitted; `turn` does what is due. Each returns the messages
    to send. Call `turn` after requests and at `next_s`.
    """

    def __init__(self, terms: Terms, epoch: int) -> None:
        """`epoch` must differ between two starts."""
        self.terms = terms
        self.counts = Counts()
        self._start(epoch)

    def reset(self) -> None:
        """Restart; only the counts are kept."""
        self._start(self.epoch + 1)

    def _start(self, epoch: int) -> None:
        terms = self.terms
        self.epoch = epoch
        self._nodes: dict[str, Node] = {}
        """Workers' NICs by name; node 0 is the server's."""
        self._network = NetworkState((), ())
        self._add_link(terms.rate if terms.server_rate is None else terms.server_rate)
        self._timetable = Timetable(SERVER, terms.delay_bound)
        self._ready: list[Push] = []
        """Updates for the next batches."""
        self._serials = itertools.count()
        most = math.inf if terms.divergence_bound is None else terms.divergence_bound
        self.lag = ReplicaLag(most, (epoch & 0xFFFFFFFF) * COPIES)
        """Lag of the model's replica; its bound is infinite if there is none."""
        self._check_s = -math.inf
        """Time of the next check."""
        self._outgoing: list[Addressed] = []
        self._begin()

    def _begin(self) -> None:
        """Begin a job. A returning worker of a former one, with another model, finds a restarted coordinator."""
        self._workers: dict[int, JobWorker] = {}
        self.version = 0
        """Updates applied: the model's version (Eq. 9)."""
        self._base = 0
        """Newest version that workers know from earlier coordinators."""
        self._left_behind: set[int] = set()
        """Dead workers that the others were told not to wait for."""
        self.lag.begin()

    # Requests.

    def join(self, hello: msg.Hello, now_s: float) -> list[Addressed]:
        """Admit a worker whose connection has proved the token. A refusal changes nothing."""
        known = self._workers.get(hello.worker)
        anew = known is None or known.incarnation != hello.incarnation
        begins = anew and not any(worker.alive for worker in self._workers.values())
        why = ""
        if hello.replicates and not self.lag.bounded:
            why = "PROPHET_REPLICA is set, but the coordinator has no bound: start it with --divergence-bound"
        elif known is None and not begins and len(self._workers) >= self.terms.most_workers:
            why = f"the limit of {len(self._workers)} workers is reached"
        elif hello.node not in self._nodes and len(self._nodes) > 2 * self.terms.most_workers:
            why = f"the limit of {len(self._nodes)} nodes is reached"
        if why:
            self._refuse(hello.worker, why)
            return self._take_outgoing()
        if begins:
            self.epoch += bool(self._workers)
            self._begin()
        elif known is not None and anew:
            self._forget(known)
        if anew or known is None:
            known = JobWorker(hello.worker, hello.incarnation, now_s, hello.replicates)
            self._workers[known.number] = known
        known.node, known.ended = self._node(hello.node), False
        known.heard_s, known.alive, known.connected = now_s, True, True
        # A restarted coordinator continues from the newest version that its workers know.
        if hello.epoch != self.epoch and hello.version > self._base:
            self.version += hello.version - self._base
            self._base = hello.version
        self._say(known.number, msg.Welcome(epoch=self.epoch, version=self.version))
        return self._take_outgoing()

    def disconnected(self, worker: int) -> None:
        """Record that a worker has no connection; it may reconnect."""
        if worker in self._workers:
            self._workers[worker].connected = False

    def receive(self, worker: int, request: msg.Request, now_s: float) -> list[Addressed]:
        """Handle a request of `worker`. A refused one changes nothing."""
        known = self._workers.get(worker)
        if known is None:
            self._refuse(worker, f"worker {worker} has not said hello")
            return self._take_outgoing()
        leaves = isinstance(request, msg.Bye)
        first, known.ended = leaves and not known.ended, leaves
        known.heard_s, known.alive = now_s, True
        match request:
            case msg.Ask():
                self._ask(known, request, now_s)
            case msg.Done():
                self._done(known, request, now_s)
            case msg.Copied():
                self.lag.answered(request.number, worker, request.reason, now_s)
            case msg.Bye():
                self._forget(known)
                self._part(known, first)
        return self._take_outgoing()

    def _ask(self, worker: JobWorker, ask: msg.Ask, now_s: float) -> None:
        number, known = ask.update, worker.open.get(ask.update)
        why = ""
        if number in worker.finished:
            self._say(worker.number, worker.finished[number])
        elif known is not None and known.started_s is not None:
            self._say(worker.number, msg.Grant(update=number, version=self.version))
        elif known is not None:
            self._say(worker.number, msg.Wait(update=number))
        elif number < worker.forgotten:
            why = f"update {number} was finished long ago"
        elif ask.version > self.version:
            why = f"version {ask.version} is newer than the model, which has {self.version}"
        elif len(worker.open) >= MOST_OPEN:
            why = f"{MOST_OPEN} updates of worker {worker.number} are open, which is the limit"
        elif len(self._ready) >= self.terms.most_waiting:
            why = f"{self.terms.most_waiting} updates are waiting, which is the limit"
        else:
            update = Update(next(self._serials), worker.node, float(ask.size_bytes), ask.version, ask.norm)
            worker.open[number] = push = Push(worker.number, number, update, now_s)
            self._ready.append(push)
            self._say(worker.number, msg.Wait(update=number))
        if why:
            self._refuse(worker.number, why, number)

    def _done(self, worker: JobWorker, done: msg.Done, now_s: float) -> None:
        number, norm, granted, counts = done.update, done.norm, False, self.counts
        answer = worker.finished.get(number)
        if isinstance(answer, msg.Applied):
            self._say(worker.number, answer)
            return
        if number < worker.forgotten:
            self._refuse(worker.number, f"update {number} was finished long ago", number)
            return
        # An update that is not open was never asked for, or it was lost or dropped but sent all the same.
        if (push := worker.open.get(number)) is not None:
            norm, granted = push.update.norm, push.started_s is not None
            node, uplinks = push.update.node, self._network.uplinks
            uplinks[node] = Link.constant(self._timetable.learned(push, now_s, uplinks[node].rates[0]))
            self._close(push)
        self.lag.changed(norm)
        self.version += 1
        delay = max(1, self.version - done.version)
        counts.applied += 1
        if granted:
            counts.greatest_delay = max(counts.greatest_delay, delay)
        else:
            counts.ungranted += 1
        self._finish(worker, msg.Applied(update=number, version=self.version, delay=delay))

    def _part(self, worker: JobWorker, first: bool) -> None:
        """Tell a worker that has ended how many others still work, and which have died. Once none works, tell all."""
        workers = self._workers.values()
        working = sum(other.alive for other in workers)
        died = self._left_behind | {other.number for other in workers if not (other.alive or other.ended)}
        if not working:
            self._left_behind = died
        for other in [other for other in workers if other.ended] if first and not working else [worker]:
            self._say(other.number, msg.Parting(working=working, died=tuple(sorted(died))))

    # Timed actions.

    def turn(self, now_s: float) -> list[Addressed]:
        """Decide batches, start pushes and release the grants of dead workers."""
        if now_s >= self._check_s:
            self._check(now_s)
        self._timetable.book(self._network, now_s)
        while self._ready and self._batch_due_s() <= now_s:
            self._decide(now_s)
            self._timetable.book(self._network, now_s)
        while self._let_go(now_s):
            self._timetable.book(self._network, now_s)
        self._order_copy(now_s)
        return self._take_outgoing()

    @property
    def next_s(self) -> float:
        """Time at which to call `turn` if nothing is received before."""
        return min(self._check_s, self._timetable.next_s, self._batch_due_s())

    def _batch_due_s(self) -> float:
        if not self._ready or len(self._timetable.planned) >= MOST_PLANNED:
            return math.inf
        opened_s = self._ready[0].asked_s
        return min(opened_s + self.terms.batch_s, max(opened_s, self._timetable.busy_until_s - LEAD_S))

    def _decide(self, now_s: float) -> None:
        """Plan the pushes of one batch, in the scheduler's order."""
        batch, self._ready = self._ready[:MOST_BATCH], self._ready[MOST_BATCH:]
        table, pushes = self._timetable, {push.update.id: push for push in batch}
        network = table.book(self._network, now_s, None)
        version = self.version + len(table.under_way) + len(table.planned)
        updates = [push.update for push in batch]
        order, dropped = order_updates(updates, network, SERVER, now_s, self.terms.delay_bound, version)
        table.planned += [pushes[update.id] for update in order]
        self._drop(pushes[update.id] for update in dropped)

    def _let_go(self, now_s: float) -> bool:
        """Grant the pushes that may start. If any must be dropped, only do that and return True: starts change."""
        starting, hopeless = self._timetable.due(self.version, now_s)
        if hopeless:
            self._drop(hopeless)
            return True
        for push in starting:
            if self._replicas():
                under_way = math.fsum(other.update.norm for other in self._timetable.under_way)
                if not self.lag.admits(push.update.norm, under_way):
                    break  # no later one may start either
            start_s = max(0.0, push.begin_s - now_s)
            self._timetable.start(push, now_s)
            self._say(push.worker, msg.Grant(update=push.number, start_s=start_s, version=self.version))
        return False

    def _replicas(self) -> list[int]:
        """Return the live workers that keep a replica."""
        return [worker.number for worker in self._workers.values() if worker.alive and worker.replicates]

    def _order_copy(self, now_s: float) -> None:
        """Have a worker copy the model if the replica needs that."""
        if (able := self._replicas()) and self.lag.due(now_s):
            self.lag.ordered(able[0])
            self._say_copy()

    def _say_copy(self) -> None:
        if (order := self.lag.order) is not None:
            self._say(order.worker, msg.Copy(number=order.number, bound=self.lag.bound))

    def _check(self, now_s: float) -> None:
        self._check_s = now_s + CHECK_S
        self._say_copy()
        for worker in self._workers.values():
            if worker.connected:
                worker.heard_s = now_s
            elif worker.alive and now_s - worker.heard_s > self.terms.dead_s:
                self.counts.died += 1
                self._forget(worker)
        for push in list(self._timetable.under_way):
            if push.end_s < now_s - self.terms.lease_s:
                self._lose(push)

    # Updates that are not applied.

    def _forget(self, worker: JobWorker) -> None:
        """Release the grants of a worker. Keep its finished updates: it may return and repeat its reports."""
        worker.alive = False
        self.lag.gone(worker.number)
        for push in list(worker.open.values()):
            self._lose(push)

    def _drop(self, pushes: Iterable[Push]) -> None:
        """Have workers discard updates that would be too late."""
        for push in pushes:
            self.counts.dropped += 1
            self._close(push)
            grant = msg.Grant(update=push.number, dropped=True, version=self.version)
            self._finish(self._workers[push.worker], grant)

    def _lose(self, push: Push) -> None:
        self.counts.lost += 1
        if push.started_s is not None:  # it may be at the server, unreported
            self.lag.changed(push.update.norm)
        self._close(push)

    def _close(self, push: Push) -> None:
        del self._workers[push.worker].open[push.number]
        if push in self._ready:
            self._ready.remove(push)
        self._timetable.withdraw(push)

    def _finish(self, worker: JobWorker, answer: msg.Applied | msg.Grant) -> None:
        worker.finished[answer.update] = answer
        if len(worker.finished) > MOST_KEPT:
            oldest = next(iter(worker.finished))
            del worker.finished[oldest]
            worker.forgotten = max(worker.forgotten, oldest + 1)
        self._say(worker.number, answer)

    def _node(self, name: str) -> Node:
        if name not in self._nodes:
            self._nodes[name] = len(self._network)
            self._add_link(self.terms.rate)
        return self._nodes[name]

    def _add_link(self, rate: float) -> None:
        self._network.uplinks.append(Link.constant(rate))
        self._network.downlinks.append(Link.constant(rate))

    def _say(self, worker: int, answer: msg.Answer) -> None:
        self._outgoing.append((worker, answer))

    def _take_outgoing(self) -> list[Addressed]:
        outgoing, self._outgoing = self._outgoing, []
        return outgoing

    def _refuse(self, worker: int, text: str, update: int | None = None) -> None:
        self.counts.refused += 1
        self._say(worker, msg.Denied(text=text, update=update))
