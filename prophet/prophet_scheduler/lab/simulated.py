"""Simulated runs of `prophet simulate`: an experiment's cells and policies, with the outputs of `prophet run`.

Rule of this file: convert a config's values to the simulator's, and its runs to the records that a real job writes.
results.py and figures.py treat these records like those of real runs.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np

from prophet_scheduler.core import settings
from prophet_scheduler.core._native import Exchange
from prophet_scheduler.core.cut import MOST_BLOCK_BYTES, Cut, learning_cut
from prophet_scheduler.core.errors import UserError
from prophet_scheduler.core.event_record import save_record
from prophet_scheduler.core.optional import require
from prophet_scheduler.core.policy import Policy
from prophet_scheduler.core.units import format_size
from prophet_scheduler.engines.spec import PartitionSetting, is_worker, role_of
from prophet_scheduler.lab.config import Cell, Experiment
from prophet_scheduler.lab.contenders import Contender
from prophet_scheduler.lab.job_config import ReplayJob
from prophet_scheduler.lab.jobs.record import Mark, WorkerRecord
from prophet_scheduler.lab.runner import ProgressListener, run_repeats
from prophet_scheduler.lab.runs import EVENTS_FILE, CellRuns, Run
from prophet_scheduler.lab.simulator_config import ASYNCHRONOUS
from prophet_scheduler.lab.testbed.shaping import token_bucket
from prophet_scheduler.lab.transfers import WORKER
from prophet_scheduler.lab.tuning import of_search
from prophet_scheduler.policies import Blocks, get_definition, policy_from_environ
from prophet_scheduler.simulate.cluster import Cluster, Costs, RateSteps, compute_scale, with_traffic
from prophet_scheduler.simulate.collectives import COLLECTIVES, collective_cost
from prophet_scheduler.simulate.grouped import grouped
from prophet_scheduler.simulate.job import Job, alone, job_of_cut, job_of_profile
from prophet_scheduler.simulate.measures import measures
from prophet_scheduler.simulate.run import Options, SimulatedRun, simulate

NEVER_S = 1e9
MOST_GRADIENT_BYTES = 4_000_000_000
"""Maximum size of a gradient; the simulator counts a transfer's bytes in 32 bits."""


@dataclass(frozen=True)
class Planned:
    """One policy of a cell, ready for simulation."""

    job: Job
    cluster: Cluster
    policy: Policy | None
    options: Options


def prepare_experiment(experiment: Experiment) -> list[list[list[Planned]]]:
    """Return a simulation for each cell, repeat and policy. Raises UserError if the config cannot be simulated."""
    require(*of_search(experiment))
    return [
        [
            [_planned(cell.of(policy), policy, repeat) for policy in cell.policies]
            for repeat in range(experiment.repeats)
        ]
        for cell in experiment.cells
    ]


def _planned(cell: Cell, policy: Contender, repeat: int) -> Planned:
    from prophet_scheduler.lab.simulated_ddp import prepared  # imports this file

    # An experiment's ranks share one machine. prepare() raises the error for what the simulator does not support.
    return prepared(cell, policy, repeat, replayed=True) or prepare(cell, policy, repeat)


def simulate_experiment(
    experiment: Experiment, planned: list[list[list[Planned]]], out: Path, listener: ProgressListener
) -> list[CellRuns]:
    """Simulate the runs from `prepare_experiment`; repeats differ only in the seed of the jitter. Records go under
    `out/runs`, as in `prophet run`.
    """

    def runs_of(cell: Cell, ready: list[list[Planned]], cell_folder: Path) -> CellRuns:
        def run(point: Cell, policy: Contender, label: str, repeat: int) -> Run:
            listener.run_starts(point, policy, label)
            if policy in cell.policies:
                simulation = ready[repeat][cell.policies.index(policy)]
            else:  # with sizes from tuning
                simulation = _planned(point, policy, repeat)
            folder = cell_folder / f"{policy.name}-{label}"
            try:
                done = run_planned(simulation, listener.iterations)
            except UserError as error:
                finished = Run(folder, error=str(error))
            else:
                shutil.rmtree(folder, ignore_errors=True)
                folder.mkdir(parents=True)
                save_record(done.record, folder / f"{WORKER}.{EVENTS_FILE}")
                assert point.wire is not None  # prepare() checks this
                finished = replace(run_of(done, folder), measures=measures(done, point.wire, point.job.warmup))
            listener.run_ends(finished.error)
            return finished

        return CellRuns(cell, {}, run_repeats(cell, experiment.repeats, run), simulated=True)

    cells = enumerate(zip(experiment.cells, planned, strict=True))
    return [runs_of(cell, ready, out / "runs" / f"cell{number}") for number, (cell, ready) in cells]


def run_planned(planned: Planned, on_iterations: Callable[[int], None] = lambda done: None) -> SimulatedRun:
    return simulate(planned.job, planned.cluster, planned.policy, planned.options, on_iterations)


def run_of(run: SimulatedRun, folder: Path) -> Run:
    """Return each worker's record as a real job would write it, with the time when blocks last changed."""
    workers = (
        WorkerRecord(
            np.diff(marks["start_s"]).tolist(),
            [Mark(float(m["start_s"]), float(m["backward_s"]), float(m["end_s"])) for m in marks],
        )
        for marks in run.marks
    )
    recuts = [float(run.marks["start_s"][:, since].max()) for since, _ in run.jobs[1:] if since < run.marks.shape[1]]
    return Run(folder, tuple(workers), recut_s=max(recuts, default=None))


def clips(cell: Cell) -> bool:
    """True if the job clips by the norm of all gradients, and so needs all averages before it can use any."""
    return isinstance(cell.job, ReplayJob) and cell.job.clip_norm > 0


def prepare(cell: Cell, policy: Contender, repeat: int = 0, *, waits: bool = False) -> Planned:
    """Return the simulation of a config's policy. Raises UserError if a part of the config cannot be simulated.

    `waits` is True if the program needs all averages before it uses any, as a job that clips always does.
    """
    profile = cell.wire
    waits = waits or clips(cell)
    if profile is None:
        real = f"{cell.job.kind} is real training"
        raise UserError(f"job.kind: {real}; `prophet simulate` takes a replay (job.kind: replay)")
    largest = max(profile.gradients, key=lambda gradient: gradient.size_bytes)
    if largest.size_bytes > MOST_GRADIENT_BYTES:
        sizes = f"has {format_size(largest.size_bytes)}; the simulator takes at most {format_size(MOST_GRADIENT_BYTES)}"
        raise UserError(f"profile {profile.name!r}: gradient {largest.name} {sizes} each, so scale the job down")
    if cell.cluster.faults:
        raise UserError("cluster.faults: a fault cannot be simulated; leave it out, or use `prophet run`")
    engine = policy.engine
    if policy.framework not in engine.simulated or engine.partition is None:
        raise UserError(f"policies: {policy.name} cannot be simulated, {engine.unsimulated}")
    config = cell.simulator
    collective = config.exchange in COLLECTIVES
    if collective and not policy.hooked:
        served = f"{policy.name} is {engine.words}'s parameter server"
        raise UserError(f"policies: {served}; give others for {config.exchange}")
    cluster = _cluster(cell)
    slow = cell.job.stragglers if isinstance(cell.job, ReplayJob) else {}
    scale = []
    if config.jitter or slow:
        stragglers = {int(node.removeprefix("worker")): factor for node, factor in slow.items()}
        size, seed = (cluster.workers, cell.job.iterations), cell.job.seed + repeat
        scale = compute_scale(*size, jitter=config.jitter, stragglers=stragglers, seed=seed)
    options = Options(
        iterations=cell.job.iterations,
        partition_bytes=_partition_bytes(policy, engine.partition),
        monitor_s=float(policy.env.get(settings.MONITOR_S, settings.DEFAULT_MONITOR_S)),
        # An all-reduce of a whole tensor may take longer than a job's watchdog waits.
        watchdog_s=float(policy.env.get(settings.WATCHDOG_S, NEVER_S if collective else settings.DEFAULT_WATCHDOG_S)),
        barrier=waits,
        compute_scale=scale,
    )
    if not policy.hooked:
        return Planned(job_of_profile(profile, alone(profile), barrier=True), cluster, None, options)
    scheduled_by = policy_from_environ(policy.base, policy.env, options.partition_bytes)
    if (groups := grouped(profile, cluster, scheduled_by, options, barrier=waits)) is not None:
        return Planned(groups[0], cluster, scheduled_by, groups[1])
    if collective:
        return Planned(job_of_profile(profile, alone(profile), barrier=waits), cluster, scheduled_by, options)
    blocks = get_definition(policy.base).blocks
    fused = policy.env.get(settings.FUSION, "1") == "1" and blocks is not Blocks.WHOLE
    sizes_set = settings.PARTITION_BYTES in policy.env or engine.partition.variable in policy.env
    adapts = blocks is Blocks.ADAPTIVE and not sizes_set
    cut = learning_cut(profile.total_bytes) if adapts else Cut.uniform(options.partition_bytes)
    options = replace(options, partition_bytes=MOST_BLOCK_BYTES, adapts=adapts)
    return Planned(job_of_cut(profile, cut, fused, barrier=waits), cluster, scheduled_by, options)


def _partition_bytes(policy: Contender, partition: PartitionSetting) -> int:
    default = partition.default_bytes
    if policy.hooked:
        whole = get_definition(policy.base).blocks is Blocks.WHOLE
        default = MOST_BLOCK_BYTES if whole else settings.DEFAULT_PARTITION_BYTES
    return int(policy.env.get(partition.variable, policy.env.get(settings.PARTITION_BYTES, default)))


def _cluster(cell: Cell) -> Cluster:
    config, cluster = cell.simulator, cell.cluster
    links, rates = {}, []
    mixed = [] if cluster.rate_mix is None else cluster.rate_mix.draw(cluster.workers)
    for node in (node for node in cluster.nodes if node != "scheduler"):
        rate = cluster.bandwidth.rate(node)
        changes = cluster.bandwidth.changes if is_worker(node) else ()  # as on the testbed
        steps = () if rate is None else tuple((at_s, bits / 8) for at_s, bits in ((0.0, rate), *changes))
        if shares := [(at_s, share) for at_s, worker, share in mixed if node == f"worker{worker}"]:
            steps = tuple((at_s, share * steps[0][1]) for at_s, share in shares)
        if steps:
            rates.append(8 * steps[0][1])
        if traffic := [(t.from_s, t.until_s, t.rate / 8) for t in cluster.traffic if t.node == node]:
            steps = with_traffic(steps, traffic)
        if steps:
            links[node] = steps
    if config.burst != "testbed":
        burst = float(config.burst)
    else:  # The testbed's token buckets grow with the rate; if rates differ, all links get the narrowest link's.
        burst = float(token_bucket(min(rates)).burst) if rates else 0.0
    costs = Costs(
        config.overhead_s,
        config.latency_s + _path_delay_s(cell),
        sum_rate=(config.sum_rate or 0.0) / 8,
        server_overhead_s=config.server_overhead_s,
        burst_bytes=burst,
        operation_s=config.operation_s,
        operation_rate=(config.operation_rate or 0.0) / 8,
    )
    if config.exchange in COLLECTIVES:
        return _collective(config.exchange, cluster.workers, links, costs)
    exchange = Exchange.ASYNCHRONOUS if config.exchange == ASYNCHRONOUS else Exchange.SYNCHRONOUS
    return Cluster(cluster.workers, cluster.servers, links, costs, exchange)


def _path_delay_s(cell: Cell) -> float:
    """Configured delay in seconds between the two ends of a message, beyond that of the testbed's own wires."""
    cluster = cell.cluster
    far = "worker" if cell.simulator.exchange in COLLECTIVES else "server"
    delays = [{cluster.delay.of(node) for node in cluster.nodes if role_of(node) == role} for role in ("worker", far)]
    if any(len(of_role) > 1 for of_role in delays):
        raise UserError("cluster.delay: the simulator has one delay for all workers and one for all servers")
    return sum(map(min, delays))


def _collective(name: str, workers: int, links: dict[str, RateSteps], costs: Costs) -> Cluster:
    """Return the collective's channel. In the paper's model (collectives.py), s bytes cost overhead + s / rate."""
    links = {node: steps for node, steps in links.items() if is_worker(node)}
    if not links:
        raise UserError(f"cluster.bandwidth: {name} needs a rate for the workers")
    if workers < 2:
        raise UserError(f"cluster.workers: {name} needs 2 or more")
    cost = partial(collective_cost, name, workers, costs.latency_s, reduction_rate=costs.sum_rate or None)
    latency_s = cost(bandwidth=next(iter(links.values()))[0][1]).overhead_s
    links = {n: tuple((at_s, cost(bandwidth=rate).bandwidth) for at_s, rate in steps) for n, steps in links.items()}
    return Cluster(workers, 0, links, replace(costs, latency_s=latency_s, burst_bytes=0.0), Exchange.COLLECTIVE)
