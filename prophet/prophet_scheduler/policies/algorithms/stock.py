"""Prediction of an iteration of a stock engine, with its own order and barrier, from the same profile and network.

Rule of this file: pure functions of a profile and a network; the status shows the result, but no policy plans with it.
Times are in seconds, sizes in bytes.

Both engines send gradients in the order in which backward generates them, and begin the next forward pass when all
averages are back. DistributedDataParallel sends its buckets (Li et al., "PyTorch Distributed", VLDB 2020). BytePS
pushes partitions, and requests each average when the push is acknowledged. The request queues behind all pushes ready
by then, so on a slow link much of the return traffic starts only when everything has been sent.
"""

from __future__ import annotations

from prophet_scheduler.core.choice import Shape
from prophet_scheduler.core.cut import MOST_BLOCK_BYTES, Cut
from prophet_scheduler.core.network import Network
from prophet_scheduler.core.profile import Profile
from prophet_scheduler.policies.algorithms.predictor import Predictor
from prophet_scheduler.policies.algorithms.sequence import TORCH_AT_ONCE, more_trips_s
from prophet_scheduler.policies.ddp import buckets


def stock_iteration_s(profile: Profile, network: Network, ranks: int | None, bucket_bytes: int | None = None) -> float:
    """Return the seconds of one iteration of DistributedDataParallel with `ranks` ranks, or of BytePS if None. All
    buckets have `bucket_bytes`; None means the default of DistributedDataParallel.

    The gradients of `profile` may be blocks: these show well enough when each byte is ready.
    """
    if ranks is None:
        predictor = Predictor(profile, network, Shape(1, 1), arena=False, wide_servers=True, barrier=True)
        prediction = predictor.begin(Cut.uniform(MOST_BLOCK_BYTES), None)
        prediction.run(1 << 32)
        return prediction.iteration_s
    sizes = [each.size_bytes for each in profile.gradients]
    in_buckets = buckets(sizes) if bucket_bytes is None else buckets(sizes, bucket_bytes, bucket_bytes)
    sent_s, back_s = 0.0, [0.0] * TORCH_AT_ONCE
    for members in in_buckets:
        rows = [profile.gradients[place] for place in members]
        size_bytes = sum(each.size_bytes for each in rows)
        # A bucket is ready with its last gradient.
        begins_s = max(rows[-1].generation_s, back_s[-TORCH_AT_ONCE])
        sent_s = max(begins_s, sent_s) + network.transfer_s(size_bytes)
        back_s.append(sent_s + network.ack_delay_s + more_trips_s(size_bytes, network, ranks))
    return max(profile.backward_s, *back_s) + profile.forward_s
