"""Ways of averaging a module's gradients, and predicted times of those besides the usual one.

Rule of this file: pure. The tuner (prophet_scheduler/session/tuner.py) chooses the next way; rounds.py and turns.py
carry it out. Times are seconds.

Usually blocks are all-reduced. In a job that clips by the total norm they may go in two phases (phases.py). torch's own
reducer, with its own buckets or small ones, may be the fastest if iterations are short or nothing waits for the wire.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from prophet_ddp.control import TWO_PHASES
from prophet_ddp.phases import Division
from prophet_ddp.terms import SMALL_CUT, TORCH, TORCH_CUT, bucket_bytes_of
from prophet_scheduler.core.arena import profile_under
from prophet_scheduler.core.choice import Choice, Question
from prophet_scheduler.core.cut import MOST_BLOCK_BYTES, Cut
from prophet_scheduler.policies.algorithms.chooser import SIZES
from prophet_scheduler.policies.algorithms.collective import ArrivalOrder
from prophet_scheduler.policies.algorithms.sequence import LEAST_AT_ONCE, iteration_s, make_sequence
from prophet_scheduler.policies.algorithms.stock import stock_iteration_s


def two_phases(question: Question, divide: Callable[[Cut], Division]) -> Iterator[Choice]:
    """Yield choices with two phases, by block size.

    The program waits for the first phase, which sends half of the bytes. Forward hides as much of the second phase as
    forward itself takes. All ranks wait for the one that owns the most.
    """
    profile, network = question.profile, question.network
    twice = replace(network, bandwidth=2 * network.bandwidth)
    for size in SIZES:
        if size > max(profile.total_bytes, SIZES[0]):
            break
        cut = Cut.uniform(size)
        blocks = profile_under(profile, cut)
        plan = ArrivalOrder().plan(blocks, twice)
        reduced_s = iteration_s(blocks, make_sequence(blocks, twice, plan), barrier=True)
        gathered_s = sum(twice.transfer_s(block.size_bytes) for block in blocks.gradients)
        division = divide(cut)
        idle_s = (division.imbalance - 1) * profile.total_bytes / network.bandwidth
        if not division.owners:  # The last blocks arrive together, and forward still has to use them.
            idle_s += LEAST_AT_ONCE * profile.forward_s * min(1.0, size / profile.total_bytes)
        late_s = max(0.0, gathered_s - profile.forward_s)
        yield Choice(cut, 2 * size, reduced_s + late_s + idle_s, TWO_PHASES)


def torch_reducer(question: Question) -> Iterator[Choice]:
    """Yield choices with torch's own reducer, whose blocks are buckets."""
    profile, network, ranks = question.profile, question.network, question.shape.workers
    for cut in (TORCH_CUT, SMALL_CUT):
        predicted_s = stock_iteration_s(profile, network, ranks, bucket_bytes_of(cut) or None)
        yield Choice(cut, MOST_BLOCK_BYTES, predicted_s, TORCH, warms_up=True)
