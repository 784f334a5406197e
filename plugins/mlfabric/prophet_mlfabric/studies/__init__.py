"""MLfabric simulated: jobs of many workers on a virtual clock, scheduled by mlfabric.

`cluster` trains with the paper's algorithms (`settings`, `wire`, `sharing`), `training` is a real SGD problem to train,
`tables` and `figures` are what the paper reports. The algorithms' names are here too, so that a study is one import.
"""

from prophet_mlfabric.aggregation import Aggregation, Group, aggregate
from prophet_mlfabric.distribution import Distribution, Hop, distribute
from prophet_mlfabric.network import Link, NetworkState
from prophet_mlfabric.ordering import Ordering, Update, order_updates, shortest_first
from prophet_mlfabric.replication import DivergenceLedger, Replication, replicate
from prophet_mlfabric.scheduler import Arrival, BatchSchedule, Kind, PlannedTransfer, Scheduler
from prophet_mlfabric.studies.cluster import (
    Consistency,
    Counting,
    Method,
    Record,
    Trainee,
    Transport,
    mlfabric_a,
    run,
)
from prophet_mlfabric.studies.settings import COMPUTE, NETWORK, Setting, Stragglers, TrafficMix
from prophet_mlfabric.studies.training import (
    LossCurve,
    Sgd,
    SgdProblem,
    StepSize,
    Trained,
    loss_curves,
    train,
)

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
