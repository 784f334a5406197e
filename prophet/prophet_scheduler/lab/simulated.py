"""Simulated runs: an experiment's cells and policies, with the outputs of `prophet run`, and any contender on BytePS or
on the ring of DistributedDataParallel and FSDP2.

Rule of this file: convert a config's values to the simulator's, and its runs to the records that a real job writes;
turn a contender over gloo into a run from the known behaviour of the engine and the plugins, measuring nothing and
fitting nothing to a job. results.py treats the records like those of real runs. Times are seconds, sizes
bytes.

Gloo's all-reduce is a ring (simulate/collectives.py), with the simulator's overhead and latency for BytePS's testbed.
Further costs of an operation were measured apart from any job (docs/results/operations.md): a message waits until its
receiver asks for it, a large operation travels in pieces, and each message and byte costs CPU time. Two operations are
in flight, since torch's gloo has two threads; under a policy without groups, as many as the plugin uses at that delay.
DDP waits for all averages in backward. So do policies with a barrier (Definition.waits) and jobs that need all averages
before they use any. A learning policy is simulated with its final choice: the fastest here of the cuts that its search
ranks best for the profile and that cost, or of rounds in two phases if the job clips.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np

from prophet_scheduler.core import settings
from prophet_scheduler.core._native import Exchange
from prophet_scheduler.core.arena import profile_under
from prophet_scheduler.core.choice import Question, Shape
from prophet_scheduler.core.cut import MOST_BLOCK_BYTES, Borders, Cut, learning_cut
from prophet_scheduler.core.errors import UserError
from prophet_scheduler.core.event_record import save_record
from prophet_scheduler.core.network import Network
from prophet_scheduler.core.plan import Plan
from prophet_scheduler.core.policy import Policy
from prophet_scheduler.core.profile import Profile
from prophet_scheduler.core.units import format_size
from prophet_scheduler.engines.ddp import BUCKET_CAP_MB
from prophet_scheduler.engines.spec import PartitionSetting, is_worker
from prophet_scheduler.engines.topology import ALL_REDUCE
from prophet_scheduler.lab.cluster_config import ASYNCHRONOUS, FSDP2
from prophet_scheduler.lab.config import Cell, Experiment
from prophet_scheduler.lab.contenders import Contender
from prophet_scheduler.lab.job_config import ReplayJob
from prophet_scheduler.lab.jobs.record import Mark, WorkerRecord
from prophet_scheduler.lab.runner import ProgressListener, run_repeats
from prophet_scheduler.lab.runs import EVENTS_FILE, WORKER, CellRuns, Run
from prophet_scheduler.lab.testbed.shaping import token_bucket
from prophet_scheduler.policies import Blocks, get_definition, policy_from_environ
from prophet_scheduler.policies.algorithms.collective import SIZES, ArrivalOrder, CollectivePolicy, ForwardOrder
from prophet_scheduler.policies.algorithms.sequence import (
    MOST_AT_ONCE,
    SEGMENT_BYTES,
    TORCH_AT_ONCE,
    learning_sizes,
    operations_at_once,
)
from prophet_scheduler.policies.ddp import DDP_BUCKET_BYTES, DDP_FIRST_BUCKET_BYTES, MEBIBYTE, Ddp
from prophet_scheduler.simulate.cluster import Cluster, Costs, RateSteps, compute_scale, with_traffic
from prophet_scheduler.simulate.collectives import COLLECTIVES, collective_cost
from prophet_scheduler.simulate.grouped import WHOLE, grouped
from prophet_scheduler.simulate.job import Job, alone, job_of_cut, job_of_profile
from prophet_scheduler.simulate.run import Options, SimulatedRun, channel, simulate
from prophet_scheduler.simulate.sharded import Sharding, job_of_phases, job_of_shards, modules_of

NEVER_S = 1e9
MOST_GRADIENT_BYTES = 4_000_000_000
"""Maximum size of a gradient; the simulator counts a transfer's bytes in 32 bits."""

RING = "ring"
WAYS_A_MESSAGE = 2
"""One-way trips of a gloo message: the receiver's request, then the message itself."""
MESSAGE_S = 0.0000535
"""CPU seconds of a message on a machine with two cores."""
MOVED_RATE = 5.3e9
"""Bytes per second that the two cores send, receive and add."""
ISSUE_S = 0.000364
"""CPU seconds to issue a block under Prophet, on two ranks' cores, besides the cost of its operation."""
COPIED_RATE = 6.6e9
"""Bytes per second at which gradients are copied, in and back."""
RENEWED_BYTES = 32 << 20
"""Size above which each allocation gets new pages: the maximum of the C library's M_MMAP_THRESHOLD (mallopt)."""
RENEWED_RATE = 2.7e9
"""Bytes per second at which gradients are copied to new pages."""
UPDATED_RATE = 7.6e9
"""Bytes per second at which SGD updates parameters."""
NOTHING = Contender("fifo", "fifo")
"""Placeholder to prepare a cell's cluster with; its job and plan are replaced."""
SEARCHED_AT_ONCE = 1_000_000
TRIED_CUTS, TRIED_ITERATIONS = 6, 5
SHARD_BLOCK_BYTES = 512 * 1024
"""Size of Prophet's blocks with FSDP2 (prophet_fsdp/takeover.py)."""
SHARD_BLOCKS_AT_ONCE = 4
"""Blocks that a rank requests from a peer at once (prophet_fsdp/wire.py)."""


@dataclass(frozen=True)
class Planned:
    """One policy of a cell, ready for simulation."""

    job: Job
    cluster: Cluster
    policy: Policy | None
    options: Options


def prepare_experiment(experiment: Experiment) -> list[list[list[Planned]]]:
    """Return a simulation for each cell, repeat and policy. Raises UserError if the config cannot be simulated."""

    def planned(cell: Cell, policy: Contender, repeat: int) -> Planned:
        # An experiment's ranks share one machine. prepare() raises the error for what the simulator does not support.
        return prepared(cell, policy, repeat, replayed=True) or prepare(cell, policy, repeat)

    return [
        [[planned(cell.of(policy), policy, repeat) for policy in cell.policies] for repeat in range(experiment.repeats)]
        for cell in experiment.cells
    ]


def simulate_experiment(
    experiment: Experiment, planned: list[list[list[Planned]]], out: Path, listener: ProgressListener
) -> list[CellRuns]:
    """Simulate the runs from `prepare_experiment`; repeats differ only in the seed of the jitter. Records go under
    `out/runs`, as in `prophet run`.
    """
    done = []
    for number, (cell, ready) in enumerate(zip(experiment.cells, planned, strict=True)):

        def run(point: Cell, policy: Contender, repeat: int, folder: Path, ready: list[list[Planned]] = ready) -> Run:
            place = point.policies.index(policy)
            try:
                simulated = run_planned(ready[repeat][place], listener.iterations)
            except UserError as error:
                return Run(folder, error=str(error))
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
            save_record(simulated.record, folder / f"{WORKER}.{EVENTS_FILE}")
            utilisation = processor_utilisation(simulated, point.job.warmup)
            return replace(run_of(simulated, folder), processor_utilisation=utilisation)

        runs = run_repeats(cell, experiment.repeats, out / "runs" / f"cell{number}", listener, run)
        done.append(CellRuns(cell, {}, runs, simulated=True))
    return done


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


def processor_utilisation(run: SimulatedRun, warmup: int) -> float:
    """Return the share of time in which worker 0 computes, over the whole iterations after the first `warmup`."""
    from_s, *_, until_s = run.marks[0]["backward_s"][warmup:]
    began_s, ended_s = (np.clip(run.computing[name], from_s, until_s) for name in ("started_s", "finished_s"))
    return float((ended_s - began_s).sum() / (until_s - from_s))


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
    size, seed = (cluster.workers, cell.job.iterations), cell.job.seed + repeat
    scale = compute_scale(*size, jitter=config.jitter, seed=seed) if config.jitter else []
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
    cut = learning_cut(profile.total_bytes) if adapts else Cut.uniform(min(options.partition_bytes, MOST_BLOCK_BYTES))
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
    ways = 2 if config.exchange in COLLECTIVES else 1  # the links with a delay between the two ends of a message
    costs = Costs(config.overhead_s, config.latency_s + ways * cluster.delay, burst_bytes=burst)
    if config.exchange in COLLECTIVES:
        return _collective(config.exchange, cluster.workers, links, costs)
    exchange = Exchange.ASYNCHRONOUS if config.exchange == ASYNCHRONOUS else Exchange.SYNCHRONOUS
    return Cluster(cluster.workers, cluster.servers, links, costs, exchange)


def _collective(name: str, workers: int, links: dict[str, RateSteps], costs: Costs) -> Cluster:
    """Return the collective's channel. In the paper's model (collectives.py), s bytes cost overhead + s / rate."""
    links = {node: steps for node, steps in links.items() if is_worker(node)}
    if not links:
        raise UserError(f"cluster.bandwidth: {name} needs a rate for the workers")
    if workers < 2:
        raise UserError(f"cluster.workers: {name} needs 2 or more")
    cost = partial(collective_cost, name, workers, costs.latency_s)
    latency_s = cost(bandwidth=next(iter(links.values()))[0][1]).overhead_s
    links = {n: tuple((at_s, cost(bandwidth=rate).bandwidth) for at_s, rate in steps) for n, steps in links.items()}
    return Cluster(workers, 0, links, replace(costs, latency_s=latency_s, burst_bytes=0.0), Exchange.COLLECTIVE)


def prepared(
    cell: Cell, contender: Contender, repeat: int = 0, *, waits: bool = False, replayed: bool = False, on_host: int = 1
) -> Planned | None:
    """Return the simulation of a cell's contender; None if the simulator does not support it.

    `waits`: the program needs all averages before it uses any, as clipping by the norm of all gradients does.
    `replayed`: simulate a replay of `prophet run`. All ranks then share one machine's cores, and copies and updates are
    added to the profile's compute times; a profile recorded from a job includes them already. `on_host` workers share a
    host, which matters only for FSDP2: a ring by rank crosses a host's link once, however many ranks it has.
    """
    if cell.simulator.exchange == FSDP2 and cell.profile is not None:
        cores_of = cell.cluster.workers if replayed else on_host
        return _sharded(cell, contender, repeat, waits=waits, on_host=on_host, cores_of=cores_of)
    if contender.framework in contender.engine.simulated:
        return prepare(cell, contender, repeat, waits=waits)
    variant, profile = contender.variant, cell.wire
    if variant is None or profile is None or contender.engine.topology is not ALL_REDUCE:
        return None
    empty = _on_ring(cell, repeat)
    hooked = variant.policy is not None
    cluster = _of_gloo(empty.cluster, hooked=hooked, together=replayed)
    empty = replace(empty, cluster=cluster)
    if replayed:
        profile = handled(profile, back=not hooked)
    environ = {**variant.env, **contender.env}
    if variant.policy is None:
        halved = cell.job.compression != "none"
        return _in_groups(profile, empty, buckets_of(environ.get(BUCKET_CAP_MB), halved=halved), waits=True)
    definition = get_definition(variant.policy)
    policy = policy_from_environ(variant.policy, environ, settings.DEFAULT_PARTITION_BYTES)
    waits = waits or clips(cell) or definition.waits
    if definition.groups:
        return _in_groups(profile, empty, policy, waits=waits)
    network = cost(empty.cluster)
    if definition.blocks is Blocks.WHOLE:
        cuts: Sequence[Cut] = [Borders.of_gradients([gradient.size_bytes for gradient in profile.gradients])]
    elif definition.blocks is Blocks.ADAPTIVE:
        policy = ArrivalOrder() if waits else ForwardOrder()
        cuts = likely_cuts(profile, network, cell.cluster.workers, waits)
    else:
        cuts = [Cut.uniform(settings.DEFAULT_PARTITION_BYTES)]
    planned = [_in_blocks(profile, empty, policy, network, cut, waits=waits) for cut in cuts]
    if definition.blocks is Blocks.ADAPTIVE and clips(cell):
        sizes = [size for size in SIZES if size <= max(profile.total_bytes, SIZES[0])]
        planned += [_in_phases(profile, empty, network, Cut.uniform(size)) for size in sizes]

    def steady_s(tried: Planned) -> float:
        short = replace(tried.options, iterations=TRIED_ITERATIONS, compute_scale=())
        return float(simulate(tried.job, tried.cluster, tried.policy, short).iteration_s()[-1])

    return planned[0] if len(planned) == 1 else min(planned, key=steady_s)


def _on_ring(cell: Cell, repeat: int) -> Planned:
    """Return the cluster and options of the cell's ring, with a placeholder job."""
    ring = cell.simulator.model_copy(update={"exchange": RING, "shards": None, "keep": False})
    return prepare(replace(cell, simulator=ring, policies=(NOTHING,)), NOTHING, repeat)


def _in_blocks(profile: Profile, empty: Planned, policy: Policy, network: Network, cut: Cut, *, waits: bool) -> Planned:
    blocks = profile_under(profile, cut)
    plan = policy.plan(blocks, network)
    sizes = [block.size_bytes for block in blocks.gradients]
    at_once = operations_at_once(network, sum(sizes) / len(sizes), MOST_AT_ONCE)
    options = _counted(replace(empty.options, partition_bytes=WHOLE), plan, at_once)
    return Planned(job_of_cut(profile, cut, barrier=waits), empty.cluster, policy, options)


def _in_phases(profile: Profile, empty: Planned, network: Network, cut: Cut) -> Planned:
    """Simulate rounds in two phases (phases.py): each phase is half an all-reduce, with half its messages."""
    job, costs = job_of_phases(profile, cut), empty.cluster.costs
    halves = replace(costs, latency_s=costs.latency_s / 2, operation_s=costs.operation_s / 2)
    at_once = operations_at_once(network, sum(job.sizes) / len(job.sizes), MOST_AT_ONCE)
    options = _counted(replace(empty.options, partition_bytes=WHOLE), Plan(), at_once)
    return Planned(job, replace(empty.cluster, costs=halves), None, options)


def buckets_of(cap_mb: str | None, *, halved: bool) -> Ddp:
    """Return DDP's buckets. If bucket_cap_mb is set, the first is not smaller (torch/nn/parallel/distributed.py).

    `halved`: sizes are in half precision. DDP fills a bucket before its hook rounds it, so limits are halved too.
    """
    limits = (DDP_BUCKET_BYTES, DDP_FIRST_BUCKET_BYTES) if cap_mb is None else (int(float(cap_mb) * MEBIBYTE),) * 2
    return Ddp(*(max(1, limit // (2 if halved else 1)) for limit in limits))


def _of_gloo(cluster: Cluster, *, hooked: bool, together: bool) -> Cluster:
    """Return the ring's cluster with gloo's further costs.

    `hooked`: Prophet issues the operations. `together`: all ranks share one machine's cores.
    """
    workers, costs = cluster.workers, cluster.costs
    ranks, rounds = workers if together else 1, 2 * (workers - 1)
    of_gloo = replace(
        costs,
        latency_s=WAYS_A_MESSAGE * costs.latency_s,
        piece_bytes=2 * workers * SEGMENT_BYTES,
        # Two ranks share a single connection, where a message's request waits behind the bytes of another.
        meanwhile=1 - 1 / rounds if workers > 2 else 0.0,
        operation_s=ranks * rounds * MESSAGE_S + (max(1.0, ranks / 2) * ISSUE_S if hooked else 0.0),
        operation_rate=MOVED_RATE * workers / (ranks * rounds),
    )
    return replace(cluster, costs=of_gloo)


def handled(profile: Profile, *, back: bool) -> Profile:
    """Return `profile` plus the CPU's work on gradients. Before a gradient is sent, autograd copies it to the program's
    memory, and a second copy goes to the send buffer. Before a layer's forward, its parameters are updated and, with
    `back`, its averages are copied back into its gradients.
    """
    later_s = 1 / UPDATED_RATE + (1 / COPIED_RATE if back else 0.0)
    copied_s, gradients = 0.0, []
    for gradient in reversed(profile.gradients):
        kept_rate = RENEWED_RATE if gradient.size_bytes > RENEWED_BYTES else COPIED_RATE
        taken_s = gradient.size_bytes * (1 / kept_rate + 1 / COPIED_RATE)
        copied_s = max(copied_s, gradient.generation_s) + taken_s
        forward_s = gradient.forward_s + gradient.size_bytes * later_s
        gradients.append(replace(gradient, generation_s=copied_s, forward_s=forward_s))
    return replace(profile, gradients=tuple(reversed(gradients)))


def cost(cluster: Cluster) -> Network:
    """Return the cost of an operation while others are in flight, with the ring's latency as its delay."""
    return Network(channel(cluster)[0][1], cluster.costs.overhead_s, cluster.costs.latency_s)


def likely_cuts(profile: Profile, network: Network, workers: int, waits: bool) -> list[Cut]:
    """Return the TRIED_CUTS best cuts of the plugin's search, best first."""
    first = learning_cut(profile.total_bytes, learning_sizes(profile.total_bytes))
    question = Question(profile, network, Shape(workers, 1), (first,), anew=True, barrier=waits)
    search = CollectivePolicy(ForwardOrder(), ArrivalOrder()).search(question)
    while not search.work(SEARCHED_AT_ONCE):
        pass
    return [choice.cut for choice in search.choices[:TRIED_CUTS]]


def _in_groups(profile: Profile, empty: Planned, policy: Policy, *, waits: bool) -> Planned | None:
    made = grouped(profile, empty.cluster, policy, empty.options, barrier=waits)
    if made is None:
        return None
    job, options = made
    if options.plan is not None:
        options = _counted(options, options.plan, TORCH_AT_ONCE)
    return Planned(job, empty.cluster, policy, options)


def _counted(options: Options, plan: Plan, at_once: int) -> Options:
    """Return `options` with this plan, and a limit on operations in flight instead of on their bytes."""
    return replace(options, plan=replace(plan, push=replace(plan.push, credit=None)), at_once=at_once)


def _sharded(cell: Cell, contender: Contender, repeat: int, *, waits: bool, on_host: int, cores_of: int) -> Planned:
    """Return the simulation of FSDP2, under Prophet if the contender has a policy: all policies do the same there.
    `cores_of` ranks share a machine's cores. Raises UserError if the shards do not divide the ranks.
    """
    workers, config = cell.cluster.workers, cell.simulator
    shards = config.shards or workers
    if workers % shards or max(shards, on_host) % min(shards, on_host):
        hosts = f", and divide or be a multiple of the {on_host} on a host" if on_host > 1 else ""
        raise UserError(f"shards is {shards}; it must divide the {workers} workers{hosts}")
    scheduled, ring = contender.recorded, _on_ring(cell, repeat)
    share, costs = ALL_REDUCE.worker_share(workers), ring.cluster.costs
    links = {node: tuple((at_s, rate * share) for at_s, rate in steps) for node, steps in ring.cluster.links.items()}
    cluster = replace(ring.cluster, links=links)
    message_s = WAYS_A_MESSAGE * costs.latency_s / (2 * (workers - 1))
    sharding = Sharding(
        shards,
        workers // shards,
        keeps=config.keep,
        scheduled=scheduled,
        waits=waits or clips(cell),
        together=on_host,
        within=channel(cluster)[0][1] / MOVED_RATE,
        message_s=message_s,
    )
    assert cell.wire is not None  # checked by _on_ring()
    modules, members = modules_of(cell.wire)
    job, plan = job_of_shards(modules, sharding)
    job = replace(job, members=tuple(members[module] for (module,) in job.members))
    messages_s = cores_of * (max(shards, workers // shards) - 1) * MESSAGE_S
    issued_s = max(1.0, cores_of / 2) * ISSUE_S if scheduled else 0.0
    costs = replace(
        costs,
        latency_s=message_s if scheduled else 0.0,
        operation_s=messages_s + issued_s,
        operation_rate=MOVED_RATE / cores_of,
    )
    options = replace(
        ring.options,
        plan=plan,
        partition_bytes=SHARD_BLOCK_BYTES if scheduled else WHOLE,
        at_once=SHARD_BLOCKS_AT_ONCE if scheduled else 0,
    )
    return Planned(job, replace(cluster, costs=costs), None, options)
