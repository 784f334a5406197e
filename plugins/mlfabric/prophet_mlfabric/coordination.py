"""The coordinator of one job: requests in, answers out, the time passed in (MLfabric, section 4).

Rule of this file: who is told what, and what counts as applied. Orders, aggregators and drops are the scheduler's,
starts timetable.py's; whose connection it is, connections.py knows.

An update is asked for, gets its place in a batch, is granted, and is done. Batches are decided every `batch_s`
(section 7: 100 ms), and sooner where the server's NIC would have nothing left to receive before: waiting longer buys
a better order only while there is something to put in order. So small updates, which are through in less, wait less.

The coordinator counts the versions of the model. An update is applied when its pusher says that the server has all of
it; whatever is said twice, by a worker that lost its connection, say, counts once. Updates that go without a grant,
because the coordinator was away or too slow for the worker, are counted as well. The delay bound holds as long as
there are none.

What a worker was granted is released when it dies: nothing is heard from it for `dead_s`, it starts anew, or its
transfer is `lease_s` late. The updates in a sum are lost with their aggregator. Where the sum had reached the server
all the same, their workers see it in the model, and say so: then they count.

Workers that have to stay near each other say after each round how far they are; leads.py says who may go on. Where
there is a replica of the model, lag.py says what may go before it has another copy.
"""

from __future__ import annotations

import math
from typing import TypeAlias

from prophet_mlfabric.lag import ReplicaLag
from prophet_mlfabric.leads import LeadBound
from prophet_mlfabric.messages import (
    Applied,
    Ask,
    Beat,
    Bye,
    Clock,
    Collect,
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
    Wait,
    Welcome,
)
from prophet_mlfabric.network import Link, NetworkState, Node
from prophet_mlfabric.open_updates import (
    Collections,
    CoordinatedJob,
    JobWorker,
    Manner,
    OpenCollection,
    OpenUpdate,
    OpenUpdates,
)
from prophet_mlfabric.scheduler import Kind, PlannedTransfer, Scheduler
from prophet_mlfabric.terms import Counts, Terms
from prophet_mlfabric.timetable import LEAD_S, Timetable, alone

Said: TypeAlias = Applied | Collect | Copy | Denied | Grant | Lost | Parting | Proceed | Wait | Welcome
Addressed: TypeAlias = tuple[int, Said]
"""Worker, and the message to it."""

MOST_OPEN = 64
"""Updates that one worker may have open: a worker that asks on and on is refused before it costs anything."""
MOST_KEPT = 128
"""Number of a worker's finished updates that are remembered, to know what is said twice."""
MOST_BATCH = 64
"""Updates decided at once: with more the scheduler, which is quadratic, would keep everybody waiting."""
MOST_PLANNED = 32
"""While so many transfers wait for their start, nothing more is decided: later there is more to choose from."""
CHECK_S = 0.5
"""Seconds between two looks for the dead."""
MOURNED = 3
"""A worker that was silent for so many times `dead_s` is not waited for at the end of a job either."""
COLLECTIONS = 1 << 20
"""Numbers of collections that each epoch has for itself: a sum of before a new start is never taken for another."""


class Coordination:
    """One job's coordinator. Not safe for several threads.

    `receive` takes a request of a worker that `join` let in, `turn` does what is due; both return what is to be said.
    `turn` is to be called after requests and at `next_s`.
    """

    def __init__(self, terms: Terms, epoch: int) -> None:
        """`epoch` differs between two starts of a coordinator."""
        self.terms = terms
        self.counts = Counts()
        self._start(epoch)

    def reset(self) -> None:
        """Begins anew, as after a new start; only the counts stay."""
        self._start(self.epoch + 1)

    def _start(self, epoch: int) -> None:
        terms = self.terms
        self.epoch = epoch
        self._job = CoordinatedJob()
        self._nodes: dict[str, Node] = {}
        self._network = NetworkState((), ())
        server = self._node(terms.server)
        most = math.inf if terms.divergence_bound is None else terms.divergence_bound
        self._scheduler = Scheduler(server, (), terms.delay_bound, seed=terms.seed, most_summed=most)
        self._timetable = Timetable(server, terms.delay_bound)
        self._updates = OpenUpdates()
        self._collections = Collections((epoch & 0xFFFFFFFF) * COLLECTIONS)
        self.lag = None if terms.divergence_bound is None else ReplicaLag(most, self._collections.first)
        """Lag of the replica of the model; None without one."""
        self._waits_for_copy = False
        self._check_s = -math.inf
        self._to_say: list[Addressed] = []
        self.next_s = math.inf
        """Time at which `turn` has something to do, if nothing is received until then."""

    @property
    def version(self) -> int:
        """Updates applied: the model's version (Eq. 9)."""
        return self._job.version

    # What is received.

    def join(self, hello: Hello, now_s: float) -> list[Addressed]:
        """Lets a worker in whose connection has proved that it may speak. A refusal changes nothing."""
        known = self._job.workers.get(hello.worker)
        anew = known is None or known.incarnation != hello.incarnation
        if anew and not any(worker.alive for worker in self._job.workers.values()):
            known = None
            self._begin()
        if why := self._other_manner(hello):
            return [self._refusal(hello.worker, why)]
        new_node = hello.node not in self._nodes
        if known is None and len(self._job.workers) >= self.terms.most_workers:
            return [self._refusal(hello.worker, f"{len(self._job.workers)} workers are the most here")]
        if new_node and len(self._nodes) > 2 * self.terms.most_workers:
            return [self._refusal(hello.worker, f"{len(self._nodes)} nodes are the most here")]
        if known is not None and known.incarnation != hello.incarnation:
            del self._job.workers[hello.worker]  # first, so that nothing of its past is said to the new one
            self._forget(known, "its worker started anew")
            known = None
        node = self._node(hello.node)
        if known is None:
            known = JobWorker(hello.worker, hello.incarnation, node, hello.sums_at, now_s, hello.replicates)
            self._job.workers[hello.worker] = known
        if self._job.manner is None:
            self._job.manner = Manner.of(hello)
            if hello.staleness is not None and hello.workers is not None:
                self._job.leads, self._job.leads_since_s = LeadBound(hello.staleness, hello.workers), now_s
        known.node, known.sums_at, known.ended = node, hello.sums_at, False
        self._lives(known, now_s)
        # A coordinator that was started anew goes on where its workers know that the last one was.
        if hello.epoch != self.epoch and hello.version > self._job.base:
            self._job.version += hello.version - self._job.base
            self._job.base = hello.version
        self._say(known, Welcome(epoch=self.epoch, version=self.version))
        return self._said()

    def _begin(self) -> None:
        """Nobody is left of the workers that there were: who comes now is of another job, with another model.

        Should one of them come back after all, it is as if the coordinator had been started anew.
        """
        self.epoch += bool(self._job.workers)
        self._job = CoordinatedJob()
        if self.lag is not None:
            self.lag.begin()

    def _other_manner(self, hello: Hello) -> str:
        """Why a worker that says this cannot train with the others; empty where it can."""
        staleness, workers = manner = Manner.of(hello)
        if self._job.manner not in (None, manner):
            return f"{manner}, and others of this job say {self._job.manner}: make them alike"
        if staleness is not None and not hello.worker < (workers or 0) <= self.terms.most_workers:
            return f"{manner}: worker {hello.worker} of so many cannot be"
        if hello.replicates and self.lag is None:
            return "PROPHET_REPLICA is set, and the coordinator knows no bound: start it with --divergence-bound"
        if staleness == 0 and self.terms.delay_bound is not None:
            return f"{manner}: in step no update is late, so leave --delay-bound of the coordinator out"
        return ""

    def _lives(self, worker: JobWorker, now_s: float) -> None:
        worker.heard_s, worker.alive = now_s, True
        if self._job.leads is not None:
            self._job.leads.lives(worker.number)

    def receive(self, worker: int, request: Request, now_s: float) -> list[Addressed]:
        """Takes in what `worker` says. What is refused changes nothing."""
        known = self._job.workers.get(worker)
        if known is None:
            return [self._refusal(worker, f"worker {worker} has not said hello")]
        leaves = isinstance(request, Bye)
        first, known.ended = leaves and not known.ended, leaves
        self._lives(known, now_s)
        match request:
            case Ask():
                (self._ask_sum if request.sum else self._ask)(known, request, now_s)
            case Done():
                (self._done_sum if request.sum else self._done)(known, request, now_s)
            case NicRates():
                if request.up is not None:
                    self._network.uplinks[known.node] = Link.constant(request.up)
                if request.down is not None:
                    self._network.downlinks[known.node] = Link.constant(request.down)
            case Clock():
                self._clock(known, request)
            case Copied():
                if self.lag is not None:
                    self.lag.answered(request.number, worker, request.reason, now_s)
            case Beat():
                pass
            case Bye():
                self._forget(known, "it has ended")
                self._part(known, first, now_s)
            case Hello():
                return self.join(request, now_s)
        return self._said()

    def _ask(self, worker: JobWorker, ask: Ask, now_s: float) -> None:
        number = ask.update
        if number in worker.finished:
            self._say(worker, worker.finished[number])
        elif number in worker.open:
            self._repeat(worker.open[number], now_s)
        elif number < worker.forgotten:
            self._refuse(worker, f"update {number} was finished long ago", number)
        elif ask.version > self.version:
            self._refuse(worker, f"version {ask.version} is newer than the model, which has {self.version}", number)
        elif len(worker.open) >= MOST_OPEN:
            self._refuse(worker, f"{MOST_OPEN} updates of worker {worker.number} are open, which is the most", number)
        elif len(self._updates.ready) + len(self._updates.held) >= self.terms.most_waiting:
            self._refuse(worker, f"{self.terms.most_waiting} updates are waiting, which is the most", number)
        else:
            held = self._job.leads is not None and not self._job.leads.may_send(worker.number)
            self._repeat(self._updates.add(worker, ask, now_s, held), now_s)

    def _repeat(self, entry: OpenUpdate, now_s: float) -> None:
        """Says again how it stands with an update."""
        if entry.grant is not None:
            self._say(entry.worker, entry.grant.model_copy(update={"start_s": 0.0}))
            return
        begin_s = math.inf if entry.transfer is None else entry.transfer.begin_s
        start_s = max(0.0, begin_s - now_s if math.isfinite(begin_s) else self._timetable.busy_until_s - now_s)
        self._say(entry.worker, Wait(update=entry.ask.update, start_s=start_s))

    def _done(self, worker: JobWorker, done: Done, now_s: float) -> None:
        number = done.update
        said = worker.finished.get(number)
        if isinstance(said, Applied):
            self._say(worker, said)
            return
        if number < worker.forgotten:
            self._refuse(worker, f"update {number} was finished long ago", number)
            return
        entry = worker.open.get(number)
        if entry is not None:
            granted = entry.grant is not None and entry.collection is None
            if granted and entry.transfer is not None:
                self._timetable.ended(entry.transfer, now_s)
            self._close(entry)
        else:
            # It was never heard of, or was lost or dropped and went all the same.
            granted = False
        norm = done.norm if entry is None else entry.ask.norm
        self._apply(worker, number, done.version, norm, done.size_bytes, granted)

    def _apply(self, worker: JobWorker, number: int, version: int, norm: float, size_bytes: int, granted: bool) -> None:
        counts = self.counts
        if self.lag is not None:
            self.lag.changed(norm)
        self._job.version += 1
        delay = max(1, self.version - version)
        counts.applied += 1
        counts.applied_bytes += size_bytes
        if granted:
            counts.greatest_delay = max(counts.greatest_delay, delay)
        else:
            counts.ungranted += 1
            counts.greatest_ungranted_delay = max(counts.greatest_ungranted_delay, delay)
        self._finish(worker, number, Applied(update=number, version=self.version, delay=delay))

    def _ask_sum(self, worker: JobWorker, ask: Ask, now_s: float) -> None:
        """Its updates are all at their aggregator."""
        collection = self._collections.open.get(ask.update)
        if collection is None or collection.aggregator is not worker:
            self._refuse(worker, f"there is no collection {ask.update} of worker {worker.number}", ask.update, True)
            return
        if collection.grant is not None:
            self._say(worker, collection.grant.model_copy(update={"start_s": 0.0}))
            return
        self._say(worker, Wait(update=ask.update, sum=True))
        collection.transfer.ready = True
        for member in collection.members:
            if member.transfer is not None:
                self._timetable.withdraw(member.transfer)

    def _done_sum(self, worker: JobWorker, done: Done, now_s: float) -> None:
        collection = self._collections.open.get(done.update)
        if not self._collections.known(done.update) or (collection is not None and collection.aggregator is not worker):
            self._refuse(worker, f"there is no collection {done.update} of worker {worker.number}", done.update, True)
            return
        if collection is not None:
            granted = collection.grant is not None
            del self._collections.open[done.update]
            self._timetable.ended(collection.transfer, now_s)
            self.counts.sums += 1
            size_bytes = done.size_bytes
            for member in collection.members:
                self._close(member)
                asked = member.ask
                self._apply(member.worker, asked.update, asked.version, asked.norm, size_bytes, granted)
                size_bytes = 0  # what is summed travels once
        self._say(worker, Applied(update=done.update, sum=True, version=self.version))

    def _clock(self, worker: JobWorker, clock: Clock) -> None:
        leads = self._job.leads
        if leads is None:
            self._refuse(worker, f"worker {worker.number} has said hello without a staleness")
            return
        leads.heard(worker.number, clock.rounds, clock.models)
        worker.proceeds_at = clock.rounds if leads.waits(worker.number) else None
        self._look_at_leads()
        if worker.proceeds_at is not None:
            self._say(worker, Proceed(rounds=clock.rounds, now=False))

    def _look_at_leads(self) -> None:
        """Lets go on who had to wait for another that has gone on now, or has gone."""
        leads = self._job.leads
        if leads is None:
            return
        for worker in self._job.workers.values():
            if worker.proceeds_at is not None and leads.may_read(worker.number):
                self._say(worker, Proceed(rounds=worker.proceeds_at, now=True))
                worker.proceeds_at = None
        self._updates.let_go(lambda entry: leads.may_send(entry.worker.number))

    def _part(self, worker: JobWorker, first: bool, now_s: float) -> None:
        """Says to a worker that has ended whom the job still waits for, and whom in vain; to all, if for nobody now."""
        left = [other for other in self._job.workers.values() if not other.ended]
        working = [other for other in left if now_s - other.heard_s <= MOURNED * self.terms.dead_s]
        died = self._job.left_behind.union(other.number for other in left) - {other.number for other in working}
        if not working:
            self._job.left_behind |= died
        all_hear = first and not working
        for other in [other for other in self._job.workers.values() if other.ended] if all_hear else [worker]:
            self._say(other, Parting(working=len(working), died=tuple(sorted(died))))

    # What is due.

    def turn(self, now_s: float) -> list[Addressed]:
        """Decides batches, lets transfers go, and forgets the dead."""
        if now_s >= self._check_s:
            self._check(now_s)
        self._timetable.book(self._network, now_s)
        while self._updates.ready and self._batch_due_s() <= now_s:
            self._decide(now_s)
            self._timetable.book(self._network, now_s)
        while self._let_go(now_s):
            self._timetable.book(self._network, now_s)
        self._order_copy(now_s)
        self.next_s = min(self._check_s, self._timetable.next_s, self._batch_due_s())
        return self._said()

    def _batch_due_s(self) -> float:
        if not self._updates.ready or len(self._timetable.planned) >= MOST_PLANNED:
            return math.inf
        opened_s = self._updates.ready[0].asked_s
        return min(opened_s + self.terms.batch_s, max(opened_s, self._timetable.busy_until_s - LEAD_S))

    def _decide(self, now_s: float) -> None:
        """Make planned transfers of the scheduler's answer for one batch."""
        batch, self._updates.ready = self._updates.ready[:MOST_BATCH], self._updates.ready[MOST_BATCH:]
        network = self._timetable.book(self._network, now_s, None)
        aggregators = self._job.aggregators(self._scheduler.server)
        scheduler = self._scheduler
        # What it had scheduled may have been lost since, and other updates have come without it.
        scheduler.version = self.version + self._timetable.outstanding
        scheduler.aggregators = tuple(aggregators)
        schedule = scheduler.schedule([entry.update for entry in batch], network, now_s, self._timetable.busy_until_s)
        self.counts.batches += 1
        for update in schedule.dropped:
            self._drop(self._updates.by_id[update.id], f"its delay would be above {self.terms.delay_bound} versions")
        made = list(schedule.transfers)
        made = [transfer for place, transfer in enumerate(made) if not alone(made[place : place + 2])]
        for transfer in made:
            if transfer.kind is Kind.SUM:
                self._gather(transfer, aggregators[transfer.source])
            elif transfer.kind is Kind.DIRECT:
                self._updates.by_id[transfer.updates[0].id].transfer = transfer
        self._timetable.planned += made

    def _gather(self, transfer: PlannedTransfer, aggregator: JobWorker) -> None:
        members = [self._updates.by_id[update.id] for update in transfer.updates]
        collection = self._collections.add(aggregator, transfer, members)
        for member, leg in zip(members, transfer.after, strict=True):
            member.transfer, member.collection = leg, collection
        self._say_collect(collection)

    def _let_go(self, now_s: float) -> bool:
        """Grants what may start. True where something was dropped instead, and starts are to be reckoned again."""
        starting, hopeless = self._timetable.due(self.version, now_s)
        for transfer in hopeless:
            reason = f"its delay would be above {self.terms.delay_bound} versions"
            for entry in self._entries(transfer):
                self._drop(entry, reason)
        if hopeless:
            return True
        self._waits_for_copy = False
        for transfer in starting:
            if transfer.commits and not self._replica_allows(transfer):
                continue
            start_s = max(0.0, transfer.begin_s - now_s)
            self._timetable.start(transfer, now_s)
            if transfer.kind is Kind.SUM:
                collection = next(c for c in self._collections.open.values() if c.transfer is transfer)
                grant = Grant(update=collection.number, sum=True, start_s=start_s, version=self.version)
                collection.grant = grant
                self._say(collection.aggregator, grant)
            else:
                entry = self._updates.by_id[transfer.updates[0].id]
                entry.grant = Grant(update=entry.ask.update, start_s=start_s, version=self.version)
                if entry.collection is not None:
                    to = entry.collection.aggregator
                    more = {"aggregator": to.number, "address": to.sums_at or ""}
                    entry.grant = entry.grant.model_copy(update=more)
                self._say(entry.worker, entry.grant)
        return False

    def _replica_allows(self, transfer: PlannedTransfer) -> bool:
        """Return True if the replica is near enough for this transfer to reach the server. If not, none after it is."""
        lag = self.lag
        if lag is None or not any(worker.alive and worker.replicates for worker in self._job.workers.values()):
            return True
        under_way = math.fsum(other.norm for other in self._timetable.under_way if other.commits)
        if self._waits_for_copy or not lag.admits(transfer.norm, under_way):
            self._waits_for_copy = True
        return not self._waits_for_copy

    def _order_copy(self, now_s: float) -> None:
        """Have a worker hand the model to the replica where that is due: one that sends nothing, if there is any."""
        lag = self.lag
        if lag is None or not lag.due(self._waits_for_copy, now_s):
            return
        able = [worker for worker in self._job.workers.values() if worker.alive and worker.replicates]
        if able:
            lag.ordered(min(able, key=lambda worker: (worker.sends, *lag.turns(worker.number))).number)
            self._say_copy()

    def _say_copy(self) -> None:
        lag = self.lag
        if lag is not None and lag.order is not None:
            worker = self._job.workers[lag.order.worker]
            self._say(worker, Copy(number=lag.order.number, bound=lag.bound))

    def _check(self, now_s: float) -> None:
        self._check_s = now_s + CHECK_S
        self._say_copy()
        if self._job.leads is not None and now_s - self._job.leads_since_s > self.terms.dead_s:
            self._job.leads.absent(self._job.workers)
        for worker in self._job.workers.values():
            if worker.alive and now_s - worker.heard_s > self.terms.dead_s:
                self.counts.died += 1
                self._forget(worker, f"nothing was heard from it for {self.terms.dead_s:g} s")
        for transfer in self._timetable.overdue(now_s - self.terms.lease_s):
            for entry in self._entries(transfer):
                self._lose(entry, f"its transfer was {self.terms.lease_s:g} s late")
        self._look_at_leads()

    # What ends without being applied.

    def _forget(self, worker: JobWorker, reason: str) -> None:
        """Releases what a worker was granted. What it finished stays known, as it may come back and say it again."""
        worker.alive, worker.proceeds_at = False, None
        if self.lag is not None:
            self.lag.gone(worker.number)
        if self._job.leads is not None:
            self._job.leads.gone(worker.number)
            self._look_at_leads()
        for entry in list(worker.open.values()):
            collection = entry.collection
            if collection is None or not collection.transfer.ready:
                self._lose(entry, reason)
            # Otherwise it is in the sum already, and will be applied with it.
        for collection in [c for c in self._collections.open.values() if c.aggregator is worker]:
            for member in list(collection.members):
                self._lose(member, f"worker {worker.number} was to sum it: {reason}")

    def _drop(self, entry: OpenUpdate, reason: str) -> None:
        """It never leaves its worker; where it has gone to an aggregator already, it is lost instead."""
        if entry.grant is not None:
            self._lose(entry, reason)
            return
        self.counts.dropped += 1
        self._close(entry)
        number = entry.ask.update
        self._finish(entry.worker, number, Grant(update=number, dropped=True, reason=reason, version=self.version))

    def _lose(self, entry: OpenUpdate, reason: str) -> None:
        self.counts.lost += 1
        if self.lag is not None and entry.may_be_applied:
            self.lag.changed(entry.ask.norm)
        self._close(entry)
        number = entry.ask.update
        self._finish(entry.worker, number, Lost(update=number, reason=reason))

    def _close(self, entry: OpenUpdate) -> None:
        """It is no longer open: out of its batch, its transfer, its collection."""
        del entry.worker.open[entry.ask.update]
        self._updates.remove(entry)
        if entry.transfer is not None:
            self._timetable.withdraw(entry.transfer)
        collection = entry.collection
        if collection is None or collection.number not in self._collections.open:
            return
        collection.members.remove(entry)
        transfer = collection.transfer
        transfer.updates = tuple(update for update in transfer.updates if update is not entry.update)
        transfer.after = tuple(leg for leg in transfer.after if leg is not entry.transfer)
        if not collection.members:
            del self._collections.open[collection.number]
            self._timetable.withdraw(transfer)
        self._say_collect(collection)

    def _finish(self, worker: JobWorker, number: int, said: Applied | Grant | Lost) -> None:
        worker.finished[number] = said
        if len(worker.finished) > MOST_KEPT:
            oldest = next(iter(worker.finished))
            del worker.finished[oldest]
            worker.forgotten = max(worker.forgotten, oldest + 1)
        self._say(worker, said)

    # Small things.

    def _node(self, name: str) -> Node:
        if name not in self._nodes:
            self._nodes[name] = len(self._nodes)
            up, down = self.terms.rates.get(name, (self.terms.rate, self.terms.rate))
            self._network.uplinks.append(Link.constant(up))
            self._network.downlinks.append(Link.constant(down))
        return self._nodes[name]

    def _say_collect(self, collection: OpenCollection) -> None:
        members = tuple((member.worker.number, member.ask.update) for member in collection.members)
        self._say(collection.aggregator, Collect(number=collection.number, members=members))

    def _entries(self, transfer: PlannedTransfer) -> list[OpenUpdate]:
        """Return its updates that are open: ending one may have ended others."""
        return [self._updates.by_id[update.id] for update in transfer.updates if update.id in self._updates.by_id]

    def _say(self, worker: JobWorker, said: Said) -> None:
        # A worker that started anew has updates of the same numbers, which are others.
        if self._job.workers.get(worker.number) is worker:
            self._to_say.append((worker.number, said))

    def _said(self) -> list[Addressed]:
        said, self._to_say = self._to_say, []
        return said

    def _refuse(self, worker: JobWorker, text: str, update: int | None = None, of_sum: bool = False) -> None:
        self._to_say.append(self._refusal(worker.number, text, update, of_sum))

    def _refusal(self, worker: int, text: str, update: int | None = None, of_sum: bool = False) -> Addressed:
        self.counts.refused += 1
        return worker, Denied(text=text, update=update, sum=of_sum)
