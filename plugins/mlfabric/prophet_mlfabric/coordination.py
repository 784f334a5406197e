"""The coordinator of one job: requests in, answers out, the time passed in (MLfabric, section 4).

Rule of this file: answers to workers, and the count of applied updates. scheduler.py decides orders, aggregators and
drops; timetable.py decides starts; connections.py maps connections to workers.

A batch is decided every `batch_s` (section 7: 100 ms), or sooner if the server's NIC would run out of work: more
updates in a batch give a better order, but waiting with an idle NIC costs time.

An update counts as applied, once, when its pusher reports that the server has all of it. Updates without a grant count
too: their workers found the coordinator away or too slow. The delay bound holds as long as there are none of these.

A worker's grants are released if it is silent for `dead_s` or restarts; a single grant if its transfer is `lease_s`
late. The updates in a sum are lost with their aggregator. If the sum has reached the server after all, their workers
find them in the model and report them.

With bounded staleness workers report their progress after each round; leads.py decides who may continue. With a replica
of the model, lag.py decides which updates may go before the replica has another copy.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable
from typing import TypeAlias

from prophet_mlfabric import messages as msg
from prophet_mlfabric.job import CoordinatedJob, Counts, JobWorker, Manner, OpenCollection, OpenUpdate, Terms
from prophet_mlfabric.lag import ReplicaLag
from prophet_mlfabric.leads import LeadBound
from prophet_mlfabric.network import Link, NetworkState, Node
from prophet_mlfabric.ordering import Update
from prophet_mlfabric.scheduler import Kind, PlannedTransfer, Scheduler
from prophet_mlfabric.timetable import LEAD_S, Timetable

Addressed: TypeAlias = tuple[int, msg.Answer]
"""Worker, and a message to it."""

MOST_OPEN = 64
"""Maximum open updates of one worker. More are refused before they cost anything."""
MOST_KEPT = 128
"""Number of a worker's finished updates to remember, so that repeated reports are recognized."""
MOST_BATCH = 64
"""Maximum updates in a batch. The scheduler is quadratic, and everybody waits for it."""
MOST_PLANNED = 32
"""Number of planned transfers from which on no further batch is decided. A later batch has more to choose from."""
CHECK_S = 0.5
"""Seconds between two checks for dead workers."""
MOURNED = 3
"""Multiple of `dead_s` after which the end of a job no longer waits for a silent worker."""
COLLECTIONS = 1 << 20
"""Collection numbers in each epoch, so that a sum from before a restart is never mistaken for another."""


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
        self._job = CoordinatedJob()
        self._nodes: dict[str, Node] = {}
        self._network = NetworkState((), ())
        server = self._node(terms.server)
        most = math.inf if terms.divergence_bound is None else terms.divergence_bound
        self._scheduler = Scheduler(server, (), terms.delay_bound, divergence_bound=most)
        self._timetable = Timetable(server, terms.delay_bound)
        self._open: dict[int, OpenUpdate] = {}
        """Open updates by the scheduler's number."""
        self._ready: list[OpenUpdate] = []
        """Updates for the next batches."""
        self._held: list[OpenUpdate] = []
        """Updates that have to wait until workers have read the model."""
        self._serials = itertools.count()
        self._collections: dict[int, OpenCollection] = {}
        self._first_number = self._next_number = (epoch & 0xFFFFFFFF) * COLLECTIONS
        self.lag = ReplicaLag(most, self._first_number)
        """Lag of the model's replica; its bound is infinite if there is none."""
        self._waits_for_copy = False
        self._check_s = -math.inf
        self._to_say: list[Addressed] = []
        self.next_s = math.inf
        """Time at which to call `turn` if nothing is received before."""

    @property
    def version(self) -> int:
        """Updates applied: the model's version (Eq. 9)."""
        return self._job.version

    @property
    def replicated(self) -> bool:
        """True if a replica's lag is bounded."""
        return self.terms.divergence_bound is not None

    # Requests.

    def join(self, hello: msg.Hello, now_s: float) -> list[Addressed]:
        """Admit a worker whose connection has proved the token. A refusal changes nothing."""
        known = self._job.workers.get(hello.worker)
        anew = known is None or known.incarnation != hello.incarnation
        begins = anew and not any(worker.alive for worker in self._job.workers.values())
        if why := self._other_manner(hello, None if begins else self._job.manner):
            return [self._refusal(hello.worker, why)]
        if known is None and not begins and len(self._job.workers) >= self.terms.most_workers:
            return [self._refusal(hello.worker, f"the limit of {len(self._job.workers)} workers is reached")]
        if hello.node not in self._nodes and len(self._nodes) > 2 * self.terms.most_workers:
            return [self._refusal(hello.worker, f"the limit of {len(self._nodes)} nodes is reached")]
        if begins:
            known = None
            self._begin()
        if known is not None and known.incarnation != hello.incarnation:
            del self._job.workers[hello.worker]  # first, so that no message about its past reaches the new one
            self._forget(known, "its worker restarted")
            known = None
        if known is None:
            known = JobWorker(hello.worker, hello.incarnation, now_s, hello.replicates)
            self._job.workers[known.number] = known
        if self._job.manner is None:
            self._job.manner = Manner.of(hello)
            if hello.staleness is not None and hello.workers is not None:
                self._job.leads, self._job.leads_since_s = LeadBound(hello.staleness, hello.workers), now_s
        known.node, known.sums_at, known.ended = self._node(hello.node), hello.sums_at, False
        self._lives(known, now_s)
        # A restarted coordinator continues from the newest version that its workers know.
        if hello.epoch != self.epoch and hello.version > self._job.base:
            self._job.version += hello.version - self._job.base
            self._job.base = hello.version
        self._say(known, msg.Welcome(epoch=self.epoch, version=self.version))
        return self._said()

    def _begin(self) -> None:
        """Begin another job, with another model. A returning worker of the former job finds a restarted coordinator."""
        self.epoch += bool(self._job.workers)
        self._job = CoordinatedJob()
        self.lag.begin()

    def _other_manner(self, hello: msg.Hello, others: Manner | None) -> str:
        """Return why a worker cannot train with the others; empty if it can."""
        staleness, workers = manner = Manner.of(hello)
        if others not in (None, manner):
            return f"{manner}, but others of this job have {others}: make them alike"
        if staleness is not None and not hello.worker < (workers or 0) <= self.terms.most_workers:
            return f"{manner}: that is no valid number of workers for worker {hello.worker}"
        if hello.replicates and not self.replicated:
            return "PROPHET_REPLICA is set, but the coordinator has no bound: start it with --divergence-bound"
        if staleness == 0 and self.terms.delay_bound is not None:
            return f"{manner}: in step no update is late, so start the coordinator without --delay-bound"
        return ""

    def _lives(self, worker: JobWorker, now_s: float) -> None:
        worker.heard_s, worker.alive = now_s, True
        self._job.leads.lives(worker.number)

    def receive(self, worker: int, request: msg.Request, now_s: float) -> list[Addressed]:
        """Handle a request of `worker`. A refused one changes nothing."""
        known = self._job.workers.get(worker)
        if known is None:
            return [self._refusal(worker, f"worker {worker} has not said hello")]
        leaves = isinstance(request, msg.Bye)
        first, known.ended = leaves and not known.ended, leaves
        self._lives(known, now_s)
        match request:
            case msg.Ask():
                (self._ask_sum if request.sum else self._ask)(known, request, now_s)
            case msg.Done():
                (self._done_sum if request.sum else self._done)(known, request, now_s)
            case msg.Clock():
                self._clock(known, request)
            case msg.Copied():
                self.lag.answered(request.number, worker, request.reason, now_s)
            case msg.Beat():
                if request.up is not None:
                    self._network.uplinks[known.node] = Link.constant(request.up)
            case msg.Bye():
                self._forget(known, "it has ended")
                self._part(known, first, now_s)
        return self._said()

    def _ask(self, worker: JobWorker, ask: msg.Ask, now_s: float) -> None:
        number = ask.update
        if number in worker.finished:
            self._say(worker, worker.finished[number])
        elif number in worker.open:
            grant = worker.open[number].grant
            self._say(worker, grant.model_copy(update={"start_s": 0.0}) if grant else msg.Wait(update=number))
        elif number < worker.forgotten:
            self._refuse(worker, f"update {number} was finished long ago", ask)
        elif ask.version > self.version:
            self._refuse(worker, f"version {ask.version} is newer than the model, which has {self.version}", ask)
        elif len(worker.open) >= MOST_OPEN:
            self._refuse(worker, f"{MOST_OPEN} updates of worker {worker.number} are open, which is the limit", ask)
        elif len(self._ready) + len(self._held) >= self.terms.most_waiting:
            self._refuse(worker, f"{self.terms.most_waiting} updates are waiting, which is the limit", ask)
        else:
            update = Update(next(self._serials), worker.node, float(ask.size_bytes), ask.version, ask.norm)
            entry = worker.open[number] = self._open[update.id] = OpenUpdate(worker, ask, update, now_s)
            (self._ready if self._job.leads.may_send(worker.number) else self._held).append(entry)
            self._say(worker, msg.Wait(update=number))

    def _done(self, worker: JobWorker, done: msg.Done, now_s: float) -> None:
        number, norm, granted = done.update, done.norm, False
        said = worker.finished.get(number)
        if isinstance(said, msg.Applied):
            self._say(worker, said)
            return
        if number < worker.forgotten:
            self._refuse(worker, f"update {number} was finished long ago", done)
            return
        # An update that is not open was never asked for, or it was lost or dropped but sent all the same.
        if (entry := worker.open.get(number)) is not None:
            norm, granted = entry.ask.norm, entry.grant is not None and entry.collection is None
            if granted and entry.transfer is not None:
                self._timetable.ended(entry.transfer, now_s)
            self._close(entry)
        self.counts.applied_bytes += done.size_bytes
        self._apply(worker, number, done.version, norm, granted)

    def _apply(self, worker: JobWorker, number: int, version: int, norm: float, granted: bool) -> None:
        counts = self.counts
        self.lag.changed(norm)
        self._job.version += 1
        delay = max(1, self.version - version)
        counts.applied += 1
        if granted:
            counts.greatest_delay = max(counts.greatest_delay, delay)
        else:
            counts.ungranted += 1
            counts.greatest_ungranted_delay = max(counts.greatest_ungranted_delay, delay)
        self._finish(worker, msg.Applied(update=number, version=self.version, delay=delay))

    def _ask_sum(self, worker: JobWorker, ask: msg.Ask, now_s: float) -> None:
        """Record that all updates of a collection have reached their aggregator."""
        collection = self._collections.get(ask.update)
        if collection is None or collection.aggregator is not worker:
            self._refuse(worker, f"there is no collection {ask.update} of worker {worker.number}", ask)
        elif collection.grant is not None:
            self._say(worker, collection.grant.model_copy(update={"start_s": 0.0}))
        else:
            self._say(worker, msg.Wait(update=ask.update, sum=True))
            collection.transfer.ready = True
            for member in collection.members:
                if member.transfer is not None:
                    self._timetable.withdraw(member.transfer)

    def _done_sum(self, worker: JobWorker, done: msg.Done, now_s: float) -> None:
        number = done.update
        collection = self._collections.get(number)
        known = self._first_number <= number < self._next_number
        if not known or (collection is not None and collection.aggregator is not worker):
            self._refuse(worker, f"there is no collection {number} of worker {worker.number}", done)
            return
        if collection is not None:
            del self._collections[number]
            self._timetable.ended(collection.transfer, now_s)
            self.counts.sums += 1
            self.counts.applied_bytes += done.size_bytes  # the sum is sent to the server once
            for member in collection.members:
                self._close(member)
                asked, granted = member.ask, collection.grant is not None
                self._apply(member.worker, asked.update, asked.version, asked.norm, granted)
        self._say(worker, msg.Applied(update=number, sum=True, version=self.version))

    def _clock(self, worker: JobWorker, clock: msg.Clock) -> None:
        leads = self._job.leads
        if not leads.bounded:
            self._refuse(worker, f"worker {worker.number} joined without a staleness")
            return
        leads.heard(worker.number, clock.rounds, clock.models)
        worker.proceeds_at = clock.rounds if leads.waits(worker.number) else None
        self._look_at_leads()
        if worker.proceeds_at is not None:
            self._say(worker, msg.Proceed(rounds=clock.rounds, now=False))

    def _look_at_leads(self) -> None:
        """Let workers continue once the ones they waited for have progressed or died."""
        leads = self._job.leads
        for worker in self._job.workers.values():
            if worker.proceeds_at is not None and leads.may_read(worker.number):
                self._say(worker, msg.Proceed(rounds=worker.proceeds_at, now=True))
                worker.proceeds_at = None
        held, self._held = self._held, []
        for entry in held:
            (self._ready if leads.may_send(entry.worker.number) else self._held).append(entry)

    def _part(self, worker: JobWorker, first: bool, now_s: float) -> None:
        """Tell a worker that has ended how many others still work, and which have died. Once none works, tell all."""
        workers = self._job.workers.values()
        left = {other.number: other for other in workers if not other.ended}
        working = {number for number, other in left.items() if now_s - other.heard_s <= MOURNED * self.terms.dead_s}
        died = (self._job.left_behind | left.keys()) - working
        if not working:
            self._job.left_behind = died
        for other in [other for other in workers if other.ended] if first and not working else [worker]:
            self._say(other, msg.Parting(working=len(working), died=tuple(sorted(died))))

    # Timed actions.

    def turn(self, now_s: float) -> list[Addressed]:
        """Decide batches, start transfers and release the grants of dead workers."""
        if now_s >= self._check_s:
            self._check(now_s)
        self._timetable.book(self._network, now_s)
        while self._ready and self._batch_due_s() <= now_s:
            self._decide(now_s)
            self._timetable.book(self._network, now_s)
        while self._let_go(now_s):
            self._timetable.book(self._network, now_s)
        self._order_copy(now_s)
        self.next_s = min(self._check_s, self._timetable.next_s, self._batch_due_s())
        return self._said()

    def _batch_due_s(self) -> float:
        if not self._ready or len(self._timetable.planned) >= MOST_PLANNED:
            return math.inf
        opened_s = self._ready[0].asked_s
        return min(opened_s + self.terms.batch_s, max(opened_s, self._timetable.busy_until_s - LEAD_S))

    def _decide(self, now_s: float) -> None:
        """Plan the transfers of one batch, in the scheduler's order."""
        batch, self._ready = self._ready[:MOST_BATCH], self._ready[MOST_BATCH:]
        network = self._timetable.book(self._network, now_s, None)
        scheduler = self._scheduler
        aggregators = self._job.aggregators(scheduler.server)
        # Since the last batch, scheduled updates may have been lost, and others applied without a grant.
        scheduler.version = self.version + self._timetable.outstanding
        scheduler.aggregators = tuple(aggregators)
        schedule = scheduler.schedule([entry.update for entry in batch], network, now_s, self._timetable.busy_until_s)
        self.counts.batches += 1
        self._drop(schedule.dropped)
        for transfer in schedule.transfers:
            members = self._entries(transfer.updates)
            if transfer.kind is Kind.SUM:
                collection = OpenCollection(self._next_number, aggregators[transfer.source], transfer, members)
                self._collections[self._next_number] = collection
                self._next_number += 1
                for member, leg in zip(members, transfer.after, strict=True):
                    member.transfer, member.collection = leg, collection
                self._say_collect(collection)
            elif transfer.kind is Kind.DIRECT:
                members[0].transfer = transfer
        self._timetable.planned += schedule.transfers

    def _let_go(self, now_s: float) -> bool:
        """Grant the transfers that may start. If any must be dropped, only do that and return True: starts change."""
        starting, hopeless = self._timetable.due(self.version, now_s)
        for transfer in hopeless:
            self._drop(transfer.updates)
        if hopeless:
            return True
        self._waits_for_copy = False
        for transfer in starting:
            if transfer.commits and not self._replica_allows(transfer):
                continue
            grant = msg.Grant(update=0, start_s=max(0.0, transfer.begin_s - now_s), version=self.version)
            self._timetable.start(transfer, now_s)
            if transfer.kind is Kind.SUM:
                collection = next(c for c in self._collections.values() if c.transfer is transfer)
                collection.grant = grant.model_copy(update={"update": collection.number, "sum": True})
                self._say(collection.aggregator, collection.grant)
                continue
            (entry,) = self._entries(transfer.updates)
            grant = grant.model_copy(update={"update": entry.ask.update})
            if entry.collection is not None:
                to = entry.collection.aggregator
                grant = grant.model_copy(update={"aggregator": to.number, "address": to.sums_at or ""})
            entry.grant = grant
            self._say(entry.worker, grant)
        return False

    def _replica_allows(self, transfer: PlannedTransfer) -> bool:
        """Return True if the replica's lag allows this transfer; if not, no later one may start either."""
        if not self._job.replicating():
            return True
        under_way = math.fsum(other.norm for other in self._timetable.under_way if other.commits)
        self._waits_for_copy = self._waits_for_copy or not self.lag.admits(transfer.norm, under_way)
        return not self._waits_for_copy

    def _order_copy(self, now_s: float) -> None:
        """Have a worker, preferably one that sends nothing, hand the model to the replica if a copy is due."""
        lag, able = self.lag, self._job.replicating()
        if able and lag.due(self._waits_for_copy, now_s):
            lag.ordered(min(able, key=lambda worker: (worker.sends, *lag.turns(worker.number))).number)
            self._say_copy()

    def _say_copy(self) -> None:
        if (order := self.lag.order) is not None:
            worker = self._job.workers[order.worker]
            self._say(worker, msg.Copy(number=order.number, bound=self.lag.bound))

    def _check(self, now_s: float) -> None:
        self._check_s = now_s + CHECK_S
        self._say_copy()
        if now_s - self._job.leads_since_s > self.terms.dead_s:
            self._job.leads.absent(self._job.workers)
        for worker in self._job.workers.values():
            if worker.alive and now_s - worker.heard_s > self.terms.dead_s:
                self.counts.died += 1
                self._forget(worker, f"nothing was heard from it for {self.terms.dead_s:g} s")
        for transfer in self._timetable.overdue(now_s - self.terms.lease_s):
            for entry in self._entries(transfer.updates):
                self._lose(entry, f"its transfer was {self.terms.lease_s:g} s late")
        self._look_at_leads()

    # Updates that are not applied.

    def _forget(self, worker: JobWorker, reason: str) -> None:
        """Release the grants of a worker. Keep its finished updates: it may return and repeat its reports."""
        worker.alive, worker.proceeds_at = False, None
        self.lag.gone(worker.number)
        self._job.leads.gone(worker.number)
        self._look_at_leads()
        for entry in list(worker.open.values()):
            collection = entry.collection
            if collection is None or not collection.transfer.ready:
                self._lose(entry, reason)
            # Otherwise the update is in the sum already and will be applied with it.
        for collection in [c for c in self._collections.values() if c.aggregator is worker]:
            for member in list(collection.members):
                self._lose(member, f"worker {worker.number} was to sum it: {reason}")

    def _drop(self, updates: Iterable[Update]) -> None:
        """Have workers discard updates that would be too late; those sent to an aggregator already are lost instead."""
        reason = f"its delay would be above {self.terms.delay_bound} versions"
        for entry in self._entries(updates):
            if entry.grant is not None:
                self._lose(entry, reason)
                continue
            self.counts.dropped += 1
            self._close(entry)
            grant = msg.Grant(update=entry.ask.update, dropped=True, reason=reason, version=self.version)
            self._finish(entry.worker, grant)

    def _lose(self, entry: OpenUpdate, reason: str) -> None:
        self.counts.lost += 1
        granted = entry.grant if entry.collection is None else entry.collection.grant
        if granted is not None:  # it may be at the server, unreported
            self.lag.changed(entry.ask.norm)
        self._close(entry)
        self._finish(entry.worker, msg.Lost(update=entry.ask.update, reason=reason))

    def _close(self, entry: OpenUpdate) -> None:
        """Remove an open update from its batch, its transfer and its collection."""
        del entry.worker.open[entry.ask.update]
        del self._open[entry.update.id]
        for waiting in (self._ready, self._held):
            if entry in waiting:
                waiting.remove(entry)
        if entry.transfer is not None:
            self._timetable.withdraw(entry.transfer)
        collection = entry.collection
        if collection is None or collection.number not in self._collections:
            return
        collection.members.remove(entry)
        transfer = collection.transfer
        transfer.updates = tuple(member.update for member in collection.members)
        transfer.after = tuple(leg for leg in transfer.after if leg is not entry.transfer)
        if not collection.members:
            del self._collections[collection.number]
            self._timetable.withdraw(transfer)
        self._say_collect(collection)

    def _finish(self, worker: JobWorker, said: msg.Applied | msg.Grant | msg.Lost) -> None:
        worker.finished[said.update] = said
        if len(worker.finished) > MOST_KEPT:
            oldest = next(iter(worker.finished))
            del worker.finished[oldest]
            worker.forgotten = max(worker.forgotten, oldest + 1)
        self._say(worker, said)

    # Helpers.

    def _node(self, name: str) -> Node:
        if name not in self._nodes:
            self._nodes[name] = len(self._nodes)
            own = self.terms.server_rate if name == self.terms.server else None
            link = Link.constant(self.terms.rate if own is None else own)
            self._network.uplinks.append(link)
            self._network.downlinks.append(link)
        return self._nodes[name]

    def _say_collect(self, collection: OpenCollection) -> None:
        members = tuple((member.worker.number, member.ask.update) for member in collection.members)
        self._say(collection.aggregator, msg.Collect(number=collection.number, members=members))

    def _entries(self, updates: Iterable[Update]) -> list[OpenUpdate]:
        """Return the updates that are still open: closing one may have closed others."""
        return [self._open[update.id] for update in updates if update.id in self._open]

    def _say(self, worker: JobWorker, said: msg.Answer) -> None:
        # Not to a restarted worker, whose updates are others.
        if self._job.workers.get(worker.number) is worker:
            self._to_say.append((worker.number, said))

    def _said(self) -> list[Addressed]:
        said, self._to_say = self._to_say, []
        return said

    def _refuse(self, worker: JobWorker, text: str, about: msg.Ask | msg.Done | None = None) -> None:
        self._to_say.append(self._refusal(worker.number, text, about))

    def _refusal(self, worker: int, text: str, about: msg.Ask | msg.Done | None = None) -> Addressed:
        self.counts.refused += 1
        update, of_sum = (None, False) if about is None else (about.update, about.sum)
        return worker, msg.Denied(text=text, update=update, sum=of_sum)
