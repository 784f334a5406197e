"""MLfabric (Viswanathan, Akella, arXiv:1907.00434): one scheduler for all transfers of a training job.

`network` says what is left of every NIC over time; `ordering`, `aggregation`, `replication` and `distribution` are the
paper's algorithms and `scheduler` runs them for each batch of updates. `cluster` trains with them on a virtual clock
(`settings`, `wire`, `sharing`), `training` is a real SGD problem to train, `tables` and `figures` are what the paper
reports. It schedules whole updates of many workers, not one worker's gradients, so it is no policy for the queue.
"""

from prophet.studies.mlfabric.aggregation import Aggregation, Group, aggregate
from prophet.studies.mlfabric.cluster import Consistency, Counting, Method, Record, Trainee, Transport, mlfabric_a, run
from prophet.studies.mlfabric.distribution import Distribution, Hop, distribute
from prophet.studies.mlfabric.network import Link, NetworkState
from prophet.studies.mlfabric.ordering import Ordering, Update, order_updates, shortest_first
from prophet.studies.mlfabric.replication import DivergenceLedger, Replication, replicate
from prophet.studies.mlfabric.scheduler import Arrival, BatchSchedule, Kind, PlannedTransfer, Scheduler
from prophet.studies.mlfabric.settings import COMPUTE, NETWORK, Setting, Stragglers, TrafficMix
from prophet.studies.mlfabric.training import LossCurve, Sgd, SgdProblem, StepSize, Trained, loss_curves, train

__all__ = [
    "COMPUTE",
    "NETWORK",
    "Aggregation",
    "Arrival",
    "BatchSchedule",
    "Consistency",
    "Counting",
    "Distribution",
    "DivergenceLedger",
    "Group",
    "Hop",
    "Kind",
    "Link",
    "LossCurve",
    "Method",
    "NetworkState",
    "Ordering",
    "PlannedTransfer",
    "Record",
    "Replication",
    "Scheduler",
    "Setting",
    "Sgd",
    "SgdProblem",
    "StepSize",
    "Stragglers",
    "TrafficMix",
    "Trained",
    "Trainee",
    "Transport",
    "Update",
    "aggregate",
    "distribute",
    "loss_curves",
    "mlfabric_a",
    "order_updates",
    "replicate",
    "run",
    "shortest_first",
    "train",
]
