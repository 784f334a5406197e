"""Training on a virtual clock: workers, a server, aggregators, a replica (MLfabric, sections 2 and 7).

Rule of this file: who does what when. The learner has the models, transports.py the transfers, the scheduler decides.

A worker reads the model, computes an update, pushes it and, when the update is applied (or dropped), asks for the
model again. *Asynchronous* servers apply each update separately, *synchronous* ones all workers' updates as one step.

Events of the same time keep the order in which they were made (agenda.py), so one setting and seed always give the same
run, bit for bit.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from prophet_mlfabric.ordering import Update
from prophet_mlfabric.studies.agenda import Agenda
from prophet_mlfabric.studies.settings import Computations, Rates, Setting
from prophet_mlfabric.studies.transports import Carrier, Ring, Scheduled, Shared, Tree

HORIZON_S = 3600.0
"""Virtual seconds after which a job is stopped if nothing else stops it."""


@dataclass(frozen=True)
class Method:
    """Training method. `synchronous` servers apply all workers' updates as one step, others each update separately.

    `transport` moves updates and models. `delay_bound` is tau_max, `divergence_bound` Div_max; None for no replica.
    """

    transport: type[Carrier]
    synchronous: bool = False
    delay_bound: int | None = None
    divergence_bound: float | None = None
    momentum: float = 0.0


def mlfabric_a(delay_bound: int | None) -> Method:
    """Return MLfabric-A of section 7.1."""
    return Method(Scheduled, delay_bound=delay_bound)


MLFABRIC_S = Method(Scheduled, synchronous=True)
ASYNC = Method(Shared)
RR_SYNC = Method(Ring, synchronous=True)
TR_SYNC = Method(Tree, synchronous=True)


class Trainee:
    """Model and data of a job. The cluster only passes models and updates on.

    This base class has no model, for runs in which only times matter: every norm is 1.
    """

    def read(self) -> Any:
        """Return a snapshot of the server's model, which later steps do not change."""

    def begin(self, worker: int, model: Any, now_s: float) -> None:
        """Handle that a worker has this model and begins to compute."""

    def compute(self, worker: int, model: Any) -> tuple[Any, float]:
        """Return an update from this model, and its norm."""
        return None, 1.0

    def apply(self, updates: Sequence[Any]) -> None:
        """Move the server's model by the sum of these updates (Eq. 2)."""

    def replicate(self, updates: Sequence[Any]) -> None:
        """Move the replica's model by the sum of these updates."""

    def observe(self, now_s: float, applied: int) -> None:
        """Handle that the server's or replica's model has moved; `applied` counts updates applied at the server."""


@dataclass
class Record:
    """Record of a run. Times in virtual seconds.

    `applied_s`, `delays` (Eq. 9's) and `by_worker` have one entry for each applied update, in order. `sent_to_server`
    and `sent_to_replica` count transfers to these, `replicated` the updates in the latter. `dropped_s` has a time for
    each dropped update, `ready_s` one for each all-reduce: when the last worker's update was computed.
    """

    applied_s: list[float] = field(default_factory=list)
    delays: list[int] = field(default_factory=list)
    by_worker: list[int] = field(default_factory=list)
    dropped_s: list[float] = field(default_factory=list)
    ready_s: list[float] = field(default_factory=list)
    sent_to_server: int = 0
    sent_to_replica: int = 0
    replicated: int = 0
    end_s: float = 0.0

    @property
    def updates_per_s(self) -> float:
        return len(self.applied_s) / self.end_s

    @property
    def dropped_part(self) -> float:
        """Fraction of updates that were dropped, among those applied or dropped."""
        return len(self.dropped_s) / max(1, len(self.dropped_s) + len(self.applied_s))


def run(
    setting: Setting,
    method: Method,
    learner: Trainee | None = None,
    horizon_s: float = HORIZON_S,
    stop: Callable[[], bool] = lambda: False,
    *,
    iterations: int | None = None,
    rates: Rates | None = None,
) -> Record:
    """Train for `horizon_s` virtual seconds, or until `stop()`, called after every step of the server, is True.

    With `iterations` a worker ends after that many updates, applied or dropped, and the job with the last worker.
    `rates` are drawn if they are not given.
    """
    known = Rates.draw(setting, horizon_s) if rates is None else rates
    return StudiedCluster(setting, method, known, learner, stop, iterations).run(horizon_s)


class StudiedCluster:
    """One job on one cluster. Transports call all methods except `run`."""

    def __init__(
        self,
        setting: Setting,
        method: Method,
        rates: Rates,
        learner: Trainee | None = None,
        stop: Callable[[], bool] = lambda: False,
        iterations: int | None = None,
    ) -> None:
        self.setting, self.method, self.learner = setting, method, learner or Trainee()
        self.record = Record()
        self.now_s = 0.0
        self.version = 0
        self.agenda = Agenda()
        self._numbers = itertools.count()
        self._stop, self._stopped = stop, False
        self._computations = Computations(setting)
        self._left = [math.inf if iterations is None else iterations] * setting.workers
        """Updates that each worker still makes."""
        self._payloads: dict[int, tuple[int, Any]] = {}
        self._at_server: list[tuple[int, Update, Any]] = []
        self._transport = method.transport(self, rates)

    def run(self, horizon_s: float) -> Record:
        model = self.learner.read()
        for worker in range(self.setting.workers):
            self.has_model(worker, model, 0)
        while self.agenda.next_s <= horizon_s and not self._stopped:
            self.now_s, action = self.agenda.take()
            action()
        if self.agenda and not self._stopped:
            self.now_s = horizon_s
        self.record.end_s = self.now_s
        return self.record

    # A worker's round: has_model, computed, applied (or dropped), wants_model.

    def has_model(self, worker: int, model: Any, version: int) -> None:
        self.learner.begin(worker, model, self.now_s)
        takes = self._computations.next_s(worker)

        def computed() -> None:
            payload, norm = self.learner.compute(worker, model)
            number, machine = next(self._numbers), self.setting.machine_of(worker)
            self._payloads[number] = worker, payload
            self._transport.push(worker, Update(number, machine, self.setting.model_bytes, version, norm))

        self.agenda.at(self.now_s + takes, computed)

    def dropped(self, update: Update) -> None:
        worker, _ = self._payloads.pop(update.id)
        self.record.dropped_s.append(self.now_s)
        self._next_round(worker)

    def applied(self, updates: Sequence[Update]) -> None:
        """Apply these updates, which have arrived at the server; all earlier ones are applied."""
        for update in updates:
            worker, payload = self._payloads.pop(update.id)
            self._at_server.append((worker, update, payload))
        record, before = self.record, len(self.record.by_worker)
        per_step = self.setting.workers if self.method.synchronous else 1
        while len(self._at_server) >= per_step:
            # In worker order, so that no sum depends on the order of arrival.
            step = sorted(self._at_server[:per_step], key=lambda arrived: arrived[0])
            del self._at_server[:per_step]
            self.learner.apply([payload for _, _, payload in step])
            self.version += 1
            record.applied_s += [self.now_s] * len(step)
            record.delays += [self.version - update.version for _, update, _ in step]
            record.by_worker += [worker for worker, _, _ in step]
        if moved := record.by_worker[before:]:
            self.learner.observe(self.now_s, len(record.applied_s))
            self._stopped = self._stopped or self._stop()
        for worker in moved:
            self._next_round(worker)

    def copied(self, arrived: Sequence[Any]) -> None:
        """Apply the values of these updates at the replica."""
        for payload in arrived:
            self.learner.replicate([payload])
        self.record.replicated += len(arrived)
        self.learner.observe(self.now_s, len(self.record.applied_s))

    def payload(self, update: Update) -> Any:
        """Return the value of an update. Only valid until the update is applied."""
        return self._payloads[update.id][1]

    def _next_round(self, worker: int) -> None:
        self._left[worker] -= 1
        if self._left[worker] > 0:
            self._transport.pull(worker)
        elif max(self._left) <= 0:
            self._stopped = True
