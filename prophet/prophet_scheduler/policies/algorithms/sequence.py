"""One order of blocks for all ranks, and its times: collectives on the simulator's core, on a virtual clock.

Rule of this file: pure functions of a profile, a network and a plan. Times are in seconds, sizes in bytes.

Engines of collectives match operations by issue order, so that order must be the same on all ranks. It cannot depend on
what is ready on each rank; it has to be known before the iteration begins. So it is the order in which the queue issues
the learned pattern when this is played to it. Each block takes E(s) = overhead + s / bandwidth (paper, Eq. 10), plus
the acknowledgement's delay if the wire was idle before it: otherwise enough blocks are in flight to hide the delay.
Preemption happens between blocks.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from prophet_scheduler.core._native import ClusterSpec, Exchange, OperationSpec, Simulation, TensorSpec
from prophet_scheduler.core.cut import sizes_in_turn
from prophet_scheduler.core.events import EventKind
from prophet_scheduler.core.network import Network
from prophet_scheduler.core.plan import Plan
from prophet_scheduler.core.plan_codec import encode_plan
from prophet_scheduler.core.profile import Profile

SEGMENT_BYTES = 1 << 20
"""Maximum message of gloo's ring; two are in flight at a time (gloo/allreduce.cc, maxSegmentSize)."""


@dataclass(frozen=True)
class IssueOrder:
    """Order in which all gradients of a profile are issued, by index.

    `ends_s`: when each gradient is back, by index, in seconds since backward began.
    """

    order: tuple[int, ...]
    ends_s: tuple[float, ...]


def backward_order(count: int) -> tuple[int, ...]:
    """Return the order for an unknown job: the last gradient first, as backward generates them."""
    return tuple(reversed(range(count)))


def make_sequence(profile: Profile, network: Network, plan: Plan) -> IssueOrder:
    """Return the order of a queue with this plan when the gradients of `profile`, each a block, arrive on time.

    Raises ValueError if the plan holds some of them back forever.
    """
    times = sorted({gradient.generation_s for gradient in profile.gradients})
    step_of = {time_s: place for place, time_s in enumerate(times)}
    generates: list[list[int]] = [[] for _ in times]
    # Within a step the last gradient comes first, as with autograd.
    for place in reversed(range(len(profile.gradients))):
        generates[step_of[profile.gradients[place].generation_s]].append(place)
    # An operation that needs all blocks, then the steps of backward: the second iteration begins when all are back.
    operations = [OperationSpec(0.0, 0, [1], [])]
    for place, (before, now) in enumerate(itertools.pairwise([0.0, *times])):
        following = [place + 2] if place + 1 < len(times) else []
        operations.append(OperationSpec(now - before, 1, following, generates[place]))
    spec = ClusterSpec()
    spec.operations = operations
    rows = zip(profile.gradients, profile.gradient_ids, strict=True)
    spec.tensors = [TensorSpec(gradient.size_bytes, [0], [gradient.size_bytes], id_) for gradient, id_ in rows]
    spec.partition_bytes = max(gradient.size_bytes for gradient in profile.gradients)
    spec.workers, spec.servers, spec.exchange = 1, 0, Exchange.COLLECTIVE
    spec.latency_s, spec.delay_first = network.ack_delay_s, True
    spec.at_once = operations_at_once(network, profile.total_bytes / len(profile.gradients), MOST_AT_ONCE)
    spec.watchdog_s = math.inf
    spec.iterations, spec.backward, spec.ends_at_backward = 2, 1, True
    simulation = Simulation(spec)
    simulation.set_link(0, [(0.0, network.bandwidth)], [], network.overhead_s, 0.0)
    simulation.set_plan(encode_plan(replace(plan, push=replace(plan.push, credit=None))))
    simulation.record(0)
    try:
        simulation.run(math.inf, 1 << 32)
    except RuntimeError as error:
        raise ValueError(f"the plan holds back gradients for ever: {error}") from None
    events = simulation.take_events(0)
    place_of = profile.rank_by_id
    order = [place_of[id_] for id_ in events["gradient"][events["kind"] == EventKind.START].tolist()]
    finished = events[events["kind"] == EventKind.FINISH]
    ends = dict(zip(finished["gradient"].tolist(), finished["time_s"].tolist(), strict=True))
    return IssueOrder(tuple(order), tuple(ends[id_] for id_ in profile.gradient_ids))


TORCH_AT_ONCE = 2
"""Concurrent operations in one of torch's own process groups (gloo has two threads)."""
LEAST_AT_ONCE = 3
"""Minimum concurrent operations in Prophet's group: one on the wire, one queued behind it, and one finishing."""
MOST_AT_ONCE = 8
"""Maximum concurrent operations that are worthwhile."""
LEARNING_BLOCKS = 64
"""Number of the smallest first blocks that would fill the arena: a recut is cheap here, so they need not be small."""
LARGEST_LEARNING = 8
"""Largest of the first blocks over the smallest, to separate the cost of a message from that of its bytes."""
LEAST_LEARNING_BLOCKS = 2 * MOST_AT_ONCE
LEARNING_DELAY_S = 0.2
"""Maximum total delay of the first blocks, with MOST_AT_ONCE of them in flight together."""
MOST_LEARNING_BYTES = 16 << 20
"""Maximum size of the smallest first blocks."""
SPARE = 4 / 3
"""Margin for hiding the delay. Operations in flight together may wait together, and with just enough of them the wire
is idle now and then."""


def learning_sizes(total_bytes: int, delay_s: float = 0.0) -> tuple[int, ...]:
    """Return the sizes of a job's first blocks, which alternate along the arena (learning_cut).

    `delay_s`: the delay of each block, during which others may be in flight.
    """
    most = MOST_AT_ONCE * LEARNING_DELAY_S / max(delay_s, 1e-6)
    blocks = int(max(LEAST_LEARNING_BLOCKS, min(most, LEARNING_BLOCKS)))
    return sizes_in_turn(total_bytes, blocks, LARGEST_LEARNING, MOST_LEARNING_BYTES)


def operations_at_once(network: Network, size_bytes: float, most: int) -> int:
    """Return how many operations of this size, up to `most`, must be in flight for the wire to hide their delays."""
    travels_s = network.transfer_s(size_bytes)
    return max(LEAST_AT_ONCE, min(most, 1 + math.ceil(SPARE * network.ack_delay_s / travels_s)))


def play_sequence(profile: Profile, network: Network, order: Sequence[int]) -> IssueOrder:
    """Return the times of this order: a gradient is issued once it and all earlier ones are ready and there is room."""
    rows = [profile.gradients[place] for place in order]
    # A gradient that has to wait for later ones counts as generated together with them.
    comes = itertools.accumulate((gradient.generation_s for gradient in rows), max)
    late = [replace(gradient, generation_s=time_s) for gradient, time_s in zip(rows, comes, strict=True)]
    ends_s = make_sequence(Profile(profile.name, tuple(reversed(late))), network, Plan()).ends_s[::-1]
    by_place = dict(zip(order, ends_s, strict=True))
    return IssueOrder(tuple(order), tuple(by_place[place] for place in range(len(rows))))


def iteration_s(profile: Profile, sequence: IssueOrder, barrier: bool = False) -> float:
    """Return the seconds from the start of backward to the end of the next forward pass, where each layer waits for its
    gradient (paper, Eq. 3) or, with a `barrier`, the first layer waits for all gradients.
    """
    if barrier:
        return max(profile.backward_s, *sequence.ends_s) + profile.forward_s
    now = profile.backward_s
    for gradient, end_s in zip(profile.gradients, sequence.ends_s, strict=True):
        now = max(now, end_s) + gradient.forward_s
    return now


def more_trips_s(size_bytes: int, network: Network, ranks: int) -> float:
    """Return the seconds that an all-reduce of this size waits in addition to the delay of a small one.

    A rank sends a segment once the receiver's notice is there, so each pair of segments waits for a trip. With more
    than two ranks one segment travels while the other waits. With two, notices queue behind data on the same
    connection, so both wait (measured: 25 MB, 0.25 to 2.5 Gbit/s, 0 to 20 ms each way).
    """
    trips = 2 * (ranks - 1)
    if not trips:
        return 0.0
    more = trips * max(0.0, size_bytes / (ranks * 2 * SEGMENT_BYTES) - 1)
    meanwhile_s = SEGMENT_BYTES / network.bandwidth if ranks > 2 else 0.0
    return more * max(0.0, network.ack_delay_s / trips - meanwhile_s)
