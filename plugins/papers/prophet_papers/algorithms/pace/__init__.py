"""PACE (Bao, Peng, Chen, Wu, INFOCOM 2020): preemptive all-reduce scheduling and balanced fusion.

`problem` reduces a graph to releases, lengths and tails, `schedule` finds the best preemptive schedule, `fusion`
chooses the transfers to fuse. The policy for the queue is in prophet_papers/pace.py.
"""

from prophet_papers.algorithms.pace.fusion import (
    Fusion,
    Partition,
    balanced_fusion,
    balanced_partitions,
    best_fusion,
    segment_bytes,
)
from prophet_papers.algorithms.pace.problem import Problem, TimedTransfer, problem_of
from prophet_papers.algorithms.pace.schedule import (
    WireSegment,
    iteration_time,
    least_time,
    preemptive_schedule,
)

__all__ = [
    "Fusion",
    "Partition",
    "Problem",
    "TimedTransfer",
    "WireSegment",
    "balanced_fusion",
    "balanced_partitions",
    "best_fusion",
    "iteration_time",
    "least_time",
    "preemptive_schedule",
    "problem_of",
    "segment_bytes",
]
