"""Types of the native part, which core/native/module.cc implements."""

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
    """Scheduled queue of the tasks pending and in flight. core/native/queue.h and two_lane_queue.h have its rules.

    `kind` is 0 for pushes and 1 for pulls, as in QueueKind. Times are seconds on the caller's clock, sizes bytes. A
    task's id is unique among those of its lane that are pending or in flight. `watchdog_s` limits how long a ready task
    is held while nothing moves. `most_in_flight` (at least 1) limits the tasks in flight in each lane under any plan.
    Raises ValueError if these are invalid.
    """

    def __init__(self, watchdog_s: float = 1.0, most_in_flight: int = ...) -> None: ...
    def add(self, kind: int, id: int, gradient: int, bytes: int, now: float) -> bool:
        """Add a task whose data is ready. Return False, and change nothing, if its id is already known."""

    def get(self, kind: int, now: float) -> tuple[int | None, float]:
        """Start a task. Return its id, or None if none may start, and the time from which the answer may differ."""

    def look(self, kind: int, now: float) -> tuple[int | None, float]:
        """Return what `get` would, without starting the task."""

    def finish(self, kind: int, id: int, now: float) -> bool:
        """Record that the task is acknowledged or answered. Return False if it is not in flight."""

    def clear(self) -> None:
        """Drop all tasks, pending or in flight. The plan stays."""

    def set_plan(self, plan: bytes | None) -> None:
        """Replace the plan (core/plan_codec.py). None means arrival order without limits. Raises ValueError."""
    requests_first_until: float
    """Time until which pushes let pull requests go first; NO_REQUEST if none is waiting. Only replays set it."""
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
    """Call first(*args, **kwargs), then return original(*args, **kwargs)."""

def call_seen(mode: Any, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None, /) -> Any:
    """Call what mode.look_at(func, types, args, kwargs) returns with (*args, **kwargs), and return the result.

    For functions in the dict `mode.unseen`, skip look_at. Their value there is a lock to hold during the call, or None.
    """

def method(function: Callable[..., Any], /) -> Any:
    """Return a function like this one that binds to an instance as a method does."""

def begin_work() -> None:
    """Mark this thread as at work, and blind. In pairs with `end_work`, as all of these that begin something."""

def end_work(*error: object) -> None: ...
def begin_blind() -> None:
    """Mark this thread as blind."""

def end_blind(*error: object) -> None: ...
def begin_wait() -> None:
    """Take the marks of this thread's work away, unless it is part of other work."""

def end_wait(*error: object) -> None: ...
def is_at_work() -> bool: ...
def is_blind() -> bool: ...
def is_handling() -> bool:
    """Return True while `call_seen` runs in this thread."""

class Exchange(enum.Enum):
    SYNCHRONOUS = 0
    ASYNCHRONOUS = 1
    COLLECTIVE = 2

class OperationSpec:
    def __init__(self, seconds: float, inputs: int, successors: list[int], generates: list[int]) -> None: ...

class TensorSpec:
    def __init__(
        self,
        bytes: int,
        needed_by: list[int],
        parts: Sequence[int] = ...,
        id: int = ...,
        needed_now: list[int] = ...,
    ) -> None: ...

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
