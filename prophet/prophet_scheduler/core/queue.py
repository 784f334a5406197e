"""The scheduled queue for Python hosts: the native state machine, fed with plans.

What belongs here: the types of Python around the native queue. Its logic is in core/native/two_lane_queue.h and
queue.h, so that a job and the simulator run the same code.
"""

from __future__ import annotations

from prophet_scheduler.core import _native
from prophet_scheduler.core.events import QueueKind
from prophet_scheduler.core.plan import Plan
from prophet_scheduler.core.plan_codec import encode_plan

NO_REQUEST = _native.NO_REQUEST


class TwoLaneQueue:
    """Pending tasks and what is in flight, pushes and pulls; see core/native/queue.h for the rules.

    Times are seconds on the caller's clock, sizes bytes. A task's id is unique among those of its lane that are pending
    or in flight. `watchdog_s` bounds how long a ready task may be held while nothing moves, `most_in_flight` (at least
    1) how many tasks of each lane are in flight, whatever the plan. Raises ValueError where these cannot be.
    """

    def __init__(self, watchdog_s: float = 1.0, most_in_flight: int | None = None) -> None:
        self._native = _native.TwoLaneQueue(watchdog_s, _native.UNBOUNDED if most_in_flight is None else most_in_flight)

    def set_plan(self, plan: Plan | bytes | None) -> None:
        """Swap the plan whole; None means arrival order without limits.

        Raises ValueError for bytes that are not those of a plan (see core/plan_codec.py).
        """
        self._native.set_plan(encode_plan(plan) if isinstance(plan, Plan) else plan)

    def add(self, kind: QueueKind, task: int, gradient: int, size_bytes: int, now: float) -> bool:
        """Add a task whose data is there. Return False, and take nothing, if its id is already known."""
        return self._native.add(kind, task, gradient, size_bytes, now)

    def get(self, kind: QueueKind, now: float) -> tuple[int | None, float]:
        """Return (the task to start, or None; the time at which another answer is possible)."""
        return self._native.get(kind, now)

    def look(self, kind: QueueKind, now: float) -> tuple[int | None, float]:
        """Do as `get`, but do not start the task."""
        return self._native.look(kind, now)

    def finish(self, kind: QueueKind, task: int, now: float) -> bool:
        """Note that the task is acknowledged or answered. Return False if it is not in flight."""
        return self._native.finish(kind, task, now)

    def clear(self) -> None:
        """Forget every task, pending or in flight; the plan stays."""
        self._native.clear()

    def pending(self, kind: QueueKind) -> int:
        return self._native.pending(kind)

    def in_flight(self, kind: QueueKind) -> int:
        return self._native.in_flight(kind)

    def in_flight_bytes(self, kind: QueueKind) -> int:
        return self._native.in_flight_bytes(kind)

    @property
    def requests_first_until(self) -> float:
        """Time until which pushes let requests for pulls go first, in seconds; NO_REQUEST if none came lately.

        Set by a replay only, whose record does not have when pulls were asked for in vain.
        """
        return self._native.requests_first_until

    @requests_first_until.setter
    def requests_first_until(self, until: float) -> None:
        self._native.requests_first_until = until

    @property
    def empty(self) -> bool:
        """True if nothing waits and nothing is in flight, in either lane."""
        return self._native.empty

    @property
    def watchdog_releases(self) -> int:
        return self._native.watchdog_releases

    @property
    def unanswered_releases(self) -> int:
        """Releases among those of tasks that had waited for others in flight, none of which had ended for so long."""
        return self._native.unanswered_releases
