"""Contenders of DistributedDataParallel on the simulator's ring.

Rule of this file: from a contender of that engine to a run of the simulator, by what the engine and the plugin are
known to do; nothing is measured here, or fitted to a job. Times are seconds, sizes bytes.

Gloo's all-reduce is a ring, so the channel's cost is that of simulate/collectives.py, with the overhead and the
latency that the simulator has for BytePS's testbed. What an operation takes besides is measured apart from any job
(docs/results/operations.md): a message goes when its receiver has said that it waits for it, a large operation goes in
pieces, and processors have their part in each message and byte. Of operations two are in flight, as many as torch's
gloo has threads; under a policy without groups as many as the plugin takes for that delay. DDP waits for all averages
in backward, and so do policies with a barrier of their own (Definition.waits), and any job that looks at all averages
before it uses one. A policy that learns is simulated with what it comes to: of the cuts that its search finds best for
the job's own profile and for that cost, the one that is the fastest here, as a job keeps the one that it measures to
be. Training for real has no profile, and is left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace

from prophet_scheduler.core.arena import profile_under
from prophet_scheduler.core.choice import Question, Shape
from prophet_scheduler.core.cut import Borders, Cut, learning_cut
from prophet_scheduler.core.network import Network
from prophet_scheduler.core.plan import Plan
from prophet_scheduler.core.policy import Policy
from prophet_scheduler.core.profile import Profile
from prophet_scheduler.core.settings import DEFAULT_PARTITION_BYTES
from prophet_scheduler.engines.ddp import BUCKET_CAP_MB
from prophet_scheduler.engines.topology import ALL_REDUCE
from prophet_scheduler.lab.config import Cell
from prophet_scheduler.lab.contenders import Contender
from prophet_scheduler.lab.simulated import Planned, prepare
from prophet_scheduler.policies import Blocks, get_definition, policy_from_environ
from prophet_scheduler.policies.algorithms.collective import (
    ArrivalOrder,
    CollectivePolicy,
    ForwardOrder,
    learning_sizes,
)
from prophet_scheduler.policies.algorithms.sequence import MOST_AT_ONCE, TORCH_AT_ONCE, operations_at_once
from prophet_scheduler.policies.ddp import MEBIBYTE, Ddp
from prophet_scheduler.simulate.cluster import Cluster
from prophet_scheduler.simulate.grouped import WHOLE, grouped
from prophet_scheduler.simulate.job import job_of_cut
from prophet_scheduler.simulate.run import Options, channel, simulate

RING = "ring"
WAYS_A_MESSAGE = 2
"""Of gloo: the receiver's word that it waits for it, and the message itself."""
SEGMENT_BYTES = 1 << 20
"""The largest message of gloo's ring, of which two are under way at a time (gloo/allreduce.cc, maxSegmentSize)."""
MESSAGE_S = 0.0000535
"""What a message takes of a machine's two cores."""
MOVED_RATE = 5.3e9
"""Bytes per second that these send, receive and add."""
ISSUE_S = 0.000364
"""What a block takes of two ranks' cores that Prophet issues, beside its operation."""
COPIED_RATE = 6.6e9
"""Bytes per second of gradients, on their way in and on their way back."""
RENEWED_BYTES = 32 << 20
"""What is larger has new memory each time, page by page: the C library's greatest M_MMAP_THRESHOLD (mallopt)."""
RENEWED_RATE = 2.7e9
"""Bytes per second of gradients that are copied to such memory."""
UPDATED_RATE = 7.6e9
"""Bytes per second of parameters that SGD updates."""
NOTHING = Contender("fifo", "fifo")
"""Under which a cell's cluster is prepared; job and plan are replaced."""
SEARCHED_AT_ONCE = 1_000_000
TRIED_CUTS, TRIED_ITERATIONS = 6, 5


def prepared(cell: Cell, contender: Contender, *, waits: bool = False, replayed: bool = False) -> Planned | None:
    """One contender of a cell, ready to be simulated; None where the simulator does not know it.

    `waits`: the program looks at all averages before it uses any, as one that clips gradients by the norm of all does.
    `replayed`: as `prophet run` replays a profile, with all ranks on one machine's cores, and copies and updates beside
    what the profile has of computing; one that was recorded of a job has these in it.
    """
    if contender.framework in contender.engine.simulated:
        return prepare(cell, contender, waits=waits)
    variant, profile = contender.variant, cell.wire
    if variant is None or profile is None or contender.engine.topology is not ALL_REDUCE:
        return None
    on_ring = replace(cell, simulator=cell.simulator.model_copy(update={"exchange": RING}), policies=(NOTHING,))
    empty = prepare(on_ring, NOTHING)
    hooked = variant.policy is not None
    cluster = _of_gloo(empty.cluster, cell.simulator.model_fields_set, hooked=hooked, together=replayed)
    empty = replace(empty, cluster=cluster)
    if replayed:
        profile = handled(profile, back=not hooked)
    environ = {**variant.env, **contender.env}
    if variant.policy is None:
        return _in_groups(profile, empty, buckets_of(environ.get(BUCKET_CAP_MB)), waits=True)
    definition = get_definition(variant.policy)
    policy = policy_from_environ(variant.policy, environ, DEFAULT_PARTITION_BYTES)
    waits = waits or definition.waits
    if definition.groups:
        return _in_groups(profile, empty, policy, waits=waits)
    network = cost(empty.cluster)
    if definition.blocks is Blocks.WHOLE:
        cuts: Sequence[Cut] = [Borders.of_gradients([gradient.size_bytes for gradient in profile.gradients])]
    elif definition.blocks is Blocks.ADAPTIVE:
        policy = ArrivalOrder() if waits else ForwardOrder()
        cuts = likely_cuts(profile, network, cell.cluster.workers, waits)
    else:
        cuts = [Cut.uniform(DEFAULT_PARTITION_BYTES)]
    planned = [_in_blocks(profile, empty, policy, network, cut, waits=waits) for cut in cuts]
    return planned[0] if len(planned) == 1 else min(planned, key=_tried_s)


def _in_blocks(profile: Profile, empty: Planned, policy: Policy, network: Network, cut: Cut, *, waits: bool) -> Planned:
    blocks = profile_under(profile, cut)
    plan = policy.plan(blocks, network)
    sizes = [block.size_bytes for block in blocks.gradients]
    at_once = operations_at_once(network, sum(sizes) / len(sizes), MOST_AT_ONCE)
    options = _counted(replace(empty.options, partition_bytes=WHOLE), plan, at_once)
    return Planned(job_of_cut(profile, cut, barrier=waits), empty.cluster, policy, options)


def _tried_s(planned: Planned) -> float:
    """Seconds that an iteration takes once it goes on as the one before."""
    short = replace(planned.options, iterations=TRIED_ITERATIONS, compute_scale=())
    return float(simulate(planned.job, planned.cluster, planned.policy, short).iteration_s()[-1])


def buckets_of(cap_mb: str | None) -> Ddp:
    """DDP's buckets. With a bucket_cap_mb there is no smaller first one (torch/nn/parallel/distributed.py)."""
    if cap_mb is None:
        return Ddp()
    bucket_bytes = int(float(cap_mb) * MEBIBYTE)
    return Ddp(bucket_bytes, bucket_bytes)


def _of_gloo(cluster: Cluster, given: AbstractSet[str], *, hooked: bool, together: bool) -> Cluster:
    """The cluster of a ring, with what gloo's takes besides, but for what the config has `given`. `hooked`: Prophet
    issues the operations. `together`: all ranks share one machine's cores.
    """
    workers, costs = cluster.workers, cluster.costs
    ranks, rounds = workers if together else 1, 2 * (workers - 1)
    operation_s = ranks * rounds * MESSAGE_S + (max(1.0, ranks / 2) * ISSUE_S if hooked else 0.0)
    operation_rate = MOVED_RATE * workers / (ranks * rounds)
    of_gloo = replace(
        costs,
        latency_s=WAYS_A_MESSAGE * costs.latency_s,
        piece_bytes=2 * workers * SEGMENT_BYTES,
        # Two ranks have one connection, where the word for one message waits behind the bytes of another.
        meanwhile=1 - 1 / rounds if workers > 2 else 0.0,
        operation_s=costs.operation_s if "operation_s" in given else operation_s,
        operation_rate=costs.operation_rate if "operation_rate" in given else operation_rate,
    )
    return replace(cluster, costs=of_gloo)


def handled(profile: Profile, *, back: bool) -> Profile:
    """`profile` with what processors have to do with gradients: one leaves when autograd has copied it to where the
    program finds it, and that is copied to where it is sent from. A layer computes when its parameters are updated and,
    with `back`, its averages copied to where its gradients were.
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
    """What an operation adds to the time while others are in flight, and the ring's latency as its delay."""
    return Network(channel(cluster)[0][1], cluster.costs.overhead_s, cluster.costs.latency_s)


def likely_cuts(profile: Profile, network: Network, workers: int, waits: bool = False) -> list[Cut]:
    """What the search that Prophet's plugin has finds best, and next best."""
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
    """`options` with this plan, under which operations in flight count, and not their bytes."""
    return replace(options, plan=replace(plan, push=replace(plan.push, credit=None)), at_once=at_once)
