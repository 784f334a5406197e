"""Types of the native part; prophet/native/module.cc and simulator_module.cc are the implementation."""

import enum
from typing import Any

import numpy as np
from numpy.typing import NDArray

UNLIMITED: int
NO_GROUP: int

class GradientPlan:
    def __init__(self, rank: int, group: int, generation_s: float) -> None: ...

class Deadline:
    def __init__(self, time_s: float, rank: int) -> None: ...

class QueuePlan:
    ranked: bool
    credit_counts_only_urgent: bool
    credit: int
    deadlines: list[Deadline]
    group_bytes: dict[int, int]
    gradients: dict[int, GradientPlan]
    bandwidth: float
    overhead_s: float
    deadline_slack_s: float

class ScheduledQueue:
    def __init__(self, watchdog_s: float = 1.0) -> None: ...
    def add(self, id: int, gradient: int, bytes: int, now: float) -> bool: ...
    def get(self, now: float) -> tuple[int | None, float]: ...
    def requests_first_until(self, now: float) -> float: ...
    def finish(self, id: int, now: float) -> bool: ...
    def set_plan(self, plan: QueuePlan | None) -> None: ...
    @property
    def pending(self) -> int: ...
    @property
    def in_flight(self) -> int: ...
    @property
    def in_flight_bytes(self) -> int: ...
    @property
    def watchdog_releases(self) -> int: ...

def measure(pending: int, operations: int) -> tuple[float, list[float]]: ...
def bytes_per_pending(pending: int) -> float: ...

class Exchange(enum.Enum):
    SYNCHRONOUS = 0
    ASYNCHRONOUS = 1
    COLLECTIVE = 2

class OperationSpec:
    def __init__(self, seconds: float, inputs: int, successors: list[int], generates: list[int]) -> None: ...

class TensorSpec:
    def __init__(self, bytes: int, needed_by: list[int], parts: list[int] = ...) -> None: ...

class ClusterSpec:
    operations: list[OperationSpec]
    tensors: list[TensorSpec]
    partition_bytes: int
    workers: int
    servers: int
    exchange: Exchange
    latency_s: float
    server_rate: float
    header_bytes: float
    watchdog_s: float
    iterations: int
    backward: int

class Simulation:
    def __init__(self, spec: ClusterSpec) -> None: ...
    def set_link(
        self,
        node: int,
        up: list[tuple[float, float]],
        down: list[tuple[float, float]],
        overhead_s: float,
        burst_bytes: float,
    ) -> None: ...
    def set_compute_scale(self, scale: list[list[float]]) -> None: ...
    def record(self, worker: int) -> None: ...
    def set_plan(self, push: QueuePlan | None, pull: QueuePlan | None) -> None: ...
    def run(self, until_s: float, events: int) -> bool: ...
    def take_events(self, worker: int) -> NDArray[Any]: ...
    @property
    def now(self) -> float: ...
    @property
    def events(self) -> int: ...
    @property
    def iterations_done(self) -> int: ...
    @property
    def watchdog_releases(self) -> int: ...
    @property
    def marks(self) -> NDArray[np.void]: ...
    @property
    def computing(self) -> NDArray[Any]: ...
    @property
    def links(self) -> NDArray[Any]: ...
