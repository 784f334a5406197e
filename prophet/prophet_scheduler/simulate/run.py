"""Simulation of one job on one cluster under one policy, with the session that plans for it.

Rule of this file: an agent's work on the virtual clock. No configuration file, no figure.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from prophet_scheduler.core._native import ClusterSpec, Exchange, Simulation
from prophet_scheduler.core.choice import Shape
from prophet_scheduler.core.cut import EARLY_ROUNDS, RECUT_ROUNDS, Cut
from prophet_scheduler.core.errors import UserError
from prophet_scheduler.core.event_record import EventRecord
from prophet_scheduler.core.events import DRAIN_S, EVENT_DTYPE
from prophet_scheduler.core.plan import Plan
from prophet_scheduler.core.plan_codec import encode_plan
from prophet_scheduler.core.policy import Policy
from prophet_scheduler.core.settings import DEFAULT_MONITOR_S, DEFAULT_PARTITION_BYTES, DEFAULT_WATCHDOG_S
from prophet_scheduler.session.messages import SessionTerms, TakeUp, Turn
from prophet_scheduler.session.session import Session
from prophet_scheduler.simulate.cluster import Cluster, RateSteps
from prophet_scheduler.simulate.job import Job

WORKER = 0
"""Worker that is recorded, and whose events the session gets. In a job, each worker learns the same on its own."""
EVENTS_AT_ONCE = 1_000_000
"""Number of events between two checks for Ctrl-C and progress."""
MOST_TURNS = 20
"""Maximum turns of the session in an iteration. On a link of a few bits per second, one every DRAIN_S would mean
millions, mostly without any event."""


@dataclass(frozen=True)
class Options:
    """Options of a policy's run. `partition_bytes` is BytePS's. With a `plan`, the policy does not learn."""

    iterations: int = 30
    partition_bytes: int = DEFAULT_PARTITION_BYTES
    monitor_s: float = DEFAULT_MONITOR_S
    watchdog_s: float = DEFAULT_WATCHDOG_S
    plan: Plan | None = None
    adapts: bool = False
    """True if the policy's plans may change the cut."""
    barrier: bool = False
    """True to tell the session that iterations wait for all averages, as the front end of such a job would."""
    compute_scale: Sequence[Sequence[float]] = ()
    at_once: int = 0
    """Maximum number of collective operations in flight; 0 for no limit except the plan's."""


@dataclass(frozen=True)
class SimulatedRun:
    """Result of a run. Times are seconds on the virtual clock, which begins at 0.

    `jobs`: (first round, job from that round on), the first from round 0. `marks`: (workers, iterations) with the
    fields start_s, backward_s and end_s. `record`: worker 0's events and plans, as in a job's record. `computing`:
    operations on worker 0's processor (started_s, finished_s, operation, ...). `links`: its messages on the wire
    (started_s, finished_s, bytes, down).
    """

    jobs: tuple[tuple[int, Job], ...]
    marks: NDArray[Any]
    record: EventRecord
    computing: NDArray[Any]
    links: NDArray[Any]
    plan: Plan | None
    plans: int
    watchdog_releases: int

    @property
    def job(self) -> Job:
        """Job of the first round."""
        return self.jobs[0][1]

    def job_of(self, iteration: int) -> Job:
        """Return the job of an iteration's round."""
        return next(job for since, job in reversed(self.jobs) if since <= iteration)

    @property
    def events(self) -> NDArray[Any]:
        """Events of worker 0's tasks (EVENT_DTYPE)."""
        return self.record.events

    def iteration_s(self, warmup: int = 0) -> NDArray[np.float64]:
        """Return the times from start to start of all workers' iterations after the first `warmup`."""
        times: NDArray[np.float64] = np.diff(self.marks["start_s"], axis=1)[:, warmup:]
        return times.ravel()


def simulate(
    job: Job,
    cluster: Cluster,
    policy: Policy | None,
    options: Options,
    on_iterations: Callable[[int], None] = lambda done: None,
) -> SimulatedRun:
    """Simulate `job`. Without a policy and plan, tasks go in arrival order without limits, as in stock BytePS.

    The policy learns as in a job: every `turn_s` a Session gets worker 0's events, and its plans take effect. The
    result depends only on the arguments. Raises UserError if the job cannot make progress.
    """
    simulation = Simulation(_spec(job, cluster, options))
    for place, node in enumerate(cluster.nodes):
        rate = list(cluster.links.get(node, ()))
        overhead_s = cluster.costs.overhead_s if node.startswith("worker") else 0.0
        simulation.set_link(place, rate, rate, overhead_s, cluster.costs.burst_bytes)
    if cluster.exchange is Exchange.COLLECTIVE:
        simulation.set_link(0, list(channel(cluster)), [], cluster.costs.overhead_s, 0.0)
    simulation.set_compute_scale([list(row) for row in options.compute_scale])
    simulation.record(WORKER)
    every_s = turn_s(job, cluster)
    session = None
    if policy is not None and options.plan is None:
        shape = None if cluster.exchange is Exchange.COLLECTIVE else Shape(cluster.workers, cluster.servers)
        # Scaled so that the monitor judges the network after as many turns as in a job.
        monitor_s = options.monitor_s * every_s / DRAIN_S
        session = Session(policy, SessionTerms(monitor_s, shape=shape, adapts=options.adapts, learns_order=True))
    layouts = _Layouts(simulation, job)
    plan = session.plan if session else options.plan
    encoded: dict[int, bytes] = {}
    _set_plan(simulation, plan, encoded)
    kept: list[NDArray[Any]] = []
    plans, until, done = 0, 0.0, False
    while not done:
        until = until + every_s * session.pause_s / DRAIN_S if session else float("inf")
        try:
            done = simulation.run(until, EVENTS_AT_ONCE)
            while not done and simulation.now < until:
                on_iterations(simulation.iterations_done)
                done = simulation.run(until, EVENTS_AT_ONCE)
        except RuntimeError as error:  # pybind11 turns std::logic_error into it
            raise UserError(str(error)) from None
        events = simulation.take_events(WORKER).astype(EVENT_DTYPE)
        kept.append(events)
        on_iterations(simulation.iterations_done)
        if session is None or done:
            continue
        turn = Turn(simulation.now, events, cut=layouts.in_force, barrier=options.barrier)
        for instruction in session.on(turn):
            if not isinstance(instruction, TakeUp):
                continue
            plan = instruction.plan
            plans += 1
            _set_plan(simulation, plan, encoded)
            if plan.cut is not None:
                layouts.want(plan.cut)
    return SimulatedRun(
        tuple(layouts.rounds),
        simulation.marks,
        EventRecord(np.concatenate(kept), encoded, options.watchdog_s),
        simulation.computing,
        simulation.links,
        plan,
        plans,
        simulation.watchdog_releases,
    )


def turn_s(job: Job, cluster: Cluster) -> float:
    """Return the seconds between two turns of the session: DRAIN_S, as in a job, or more if an iteration takes minutes.

    An iteration takes at least the time of its bytes on the slowest worker's link, at the best rate of that link.
    """
    limited = (cluster.links.get(node, ()) for node in cluster.nodes[: cluster.workers])
    best = [max(rate for _, rate in steps) for steps in limited if steps]
    return max(DRAIN_S, sum(job.sizes) / min(best) / MOST_TURNS) if best else DRAIN_S


class _Layouts:
    """Cuts of one run. A cut takes effect in the same round on all workers, as in a job."""

    def __init__(self, simulation: Simulation, job: Job) -> None:
        self._simulation = simulation
        self._numbers = {job.cut: 0}
        self.rounds = [(0, job)]

    @property
    def in_force(self) -> Cut | None:
        """Cut of the last round that all workers have reached."""
        done = self._simulation.iterations_done
        return next(job.cut for since, job in reversed(self.rounds) if since <= done)

    def want(self, cut: Cut) -> None:
        """Use `cut` from the next round on at which workers check for a new one."""
        job = self.rounds[-1][1]
        if cut == job.cut or job.recut is None:
            return
        job = job.recut(cut)
        if cut not in self._numbers:
            self._numbers[cut] = self._simulation.add_layout(
                list(job.tensors), [list(places) for places in job.generates]
            )
        every = 1 if self._simulation.iterations_done < EARLY_ROUNDS else RECUT_ROUNDS
        since = self._simulation.use_layout(self._numbers[cut], every)
        self.rounds = [(before, other) for before, other in self.rounds if before < since] + [(since, job)]


def channel(cluster: Cluster) -> RateSteps:
    """Return the rate of collectives over time: that of the slowest worker at each moment."""
    limited = [cluster.links[node] for node in cluster.nodes[: cluster.workers] if cluster.links.get(node)]
    times = sorted({at for steps in limited for at, _ in steps})
    return tuple((at, min(next(r for t, r in reversed(steps) if t <= at) for steps in limited)) for at in times)


def _spec(job: Job, cluster: Cluster, options: Options) -> ClusterSpec:
    if options.iterations < 1:
        raise UserError(f"iterations is {options.iterations}; it must be 1 or more")
    spec = ClusterSpec()
    spec.operations = list(job.operations)
    spec.tensors = list(job.tensors)
    spec.partition_bytes = options.partition_bytes
    spec.workers = cluster.workers
    spec.servers = cluster.servers
    spec.exchange = cluster.exchange
    spec.latency_s = cluster.costs.latency_s
    spec.server_rate = cluster.costs.sum_rate
    spec.server_overhead_s = cluster.costs.server_overhead_s
    spec.at_once = options.at_once
    spec.piece_bytes = cluster.costs.piece_bytes
    spec.meanwhile = cluster.costs.meanwhile
    spec.operation_s = cluster.costs.operation_s
    spec.operation_rate = cluster.costs.operation_rate
    spec.header_bytes = cluster.costs.header_bytes
    spec.watchdog_s = options.watchdog_s
    spec.iterations = options.iterations
    spec.backward = -1 if job.backward is None else job.backward
    return spec


def _set_plan(simulation: Simulation, plan: Plan | None, encoded: dict[int, bytes]) -> None:
    """Give `plan` to all workers, and keep its bytes in `encoded` under its number."""
    if plan is None:
        simulation.set_plan(None)
        return
    plan_bytes = encode_plan(plan)
    encoded[simulation.set_plan(plan_bytes)] = plan_bytes
