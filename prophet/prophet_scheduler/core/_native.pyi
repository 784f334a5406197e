"""Types of the native part; core/native/module.cc and simulator_module.cc are the implementation."""

import enum
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

UNBOUNDED: int
EVENT_VERSION: int
NO_PLAN: int
NO_REQUEST: float
PLAN_VERSION: int

class TwoLaneQueue:
    """`kind` is 0 for pushes and 1 for pulls, as in QueueKind."""

    def __init__(self, watchdog_s: float = 1.0, most_in_flight: int = ...) -> None: ...
    def add(self, kind: int, id: int, gradient: int, bytes: int, now: float) -> bool: ...
    def get(self, kind: int, now: float) -> tuple[int | None, float]: ...
    def look(self, kind: int, now: float) -> tuple[int | None, float]: ...
    def finish(self, kind: int, id: int, now: float) -> bool: ...
    def clear(self) -> None: ...
    def set_plan(self, plan: bytes | None) -> None: ...
    requests_first_until: float
    def pending(self, kind: int) -> int: ...
    def in_flight(self, kind: int) -> int: ...
    def in_flight_bytes(self, kind: int) -> int: ...
    @property
    def empty(self) -> bool: ...
    @property
    def watchdog_releases(self) -> int: ...
    @property
    def unanswered_releases(self) -> int: ...

def measure(pending: int, operations: int) -> tuple[float, list[float]]: ...
def bytes_per_pending(pending: int) -> float: ...
def call_both(first: Callable[..., object], original: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """Call first(*args, **kwargs), and return original(*args, **kwargs)."""

def call_seen(mode: Any, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None, /) -> Any:
    """Call mode.look_at(func, args, kwargs), and return func(*args, **kwargs).

    A function in the dict `mode.unseen` is not looked at. Its value there is the lock to hold during the call, or None.
    """

def method(function: Callable[..., Any], /) -> Any:
    """Return a function like this one that binds to an object as a method does."""

class Exchange(enum.Enum):
    SYNCHRONOUS = 0
    ASYNCHRONOUS = 1
    COLLECTIVE = 2

class OperationSpec:
    def __init__(self, seconds: float, inputs: int, successors: list[int], generates: list[int]) -> None: ...

class TensorSpec:
    def __init__(self, bytes: int, needed_by: list[int], parts: Sequence[int] = ..., id: int = ...) -> None: ...

class ClusterSpec:
    operations: list[OperationSpec]
    tensors: list[TensorSpec]
    partition_bytes: int
    workers: int
    servers: int
    exchange: Exchange
    latency_s: float
    server_rate: float
    server_overhead_s: float
    at_once: int
    piece_bytes: float
    meanwhile: float
    delay_first: bool
    operation_s: float
    operation_rate: float
    header_bytes: float
    watchdog_s: float
    iterations: int
    backward: int
    ends_at_backward: bool

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
    def add_layout(self, tensors: list[TensorSpec], generates: list[list[int]]) -> int: ...
    def use_layout(self, number: int, every: int) -> int: ...
    def record(self, worker: int) -> None: ...
    def set_plan(self, plan: bytes | None) -> int: ...
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
