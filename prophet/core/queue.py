"""The scheduled queue for Python hosts: the native state machine, fed with a `QueuePlan`.

Rule of this file: one conversion from the values of prophet/model.py; the logic is native
(prophet/core/native/queue.h), so that a job and the simulator run the same code.
"""

from __future__ import annotations

from prophet.core import _native
from prophet.core.events import QueueKind
from prophet.core.plan import Plan, QueuePlan

UNLIMITED: int = _native.UNLIMITED
NO_GROUP: int = _native.NO_GROUP


def native_plan(plan: Plan, kind: QueueKind) -> _native.QueuePlan:
    """The half of `plan` that is for one queue, as the native queue takes it."""
    half: QueuePlan = plan.push if kind is QueueKind.PUSH else plan.pull
    native = _native.QueuePlan()
    native.ranked = half.order is not None
    native.credit_counts_only_urgent = kind is QueueKind.PULL
    native.credit = UNLIMITED if half.credit is None else half.credit
    native.deadlines = [_native.Deadline(d.time_s, d.rank) for d in half.deadlines]
    order = half.order or {}
    native.gradients = {
        gradient: _native.GradientPlan(
            order.get(gradient, gradient), half.groups.get(gradient, NO_GROUP), plan.generation_s.get(gradient, -1.0)
        )
        for gradient in planned_gradients(plan, half)
    }
    group_bytes: dict[int, int] = {}
    for gradient, group in half.groups.items():
        group_bytes[group] = group_bytes.get(group, 0) + plan.size_bytes[gradient]
    native.group_bytes = group_bytes
    if plan.network is not None:
        native.bandwidth = plan.network.bandwidth
        native.overhead_s = plan.network.overhead_s
    native.deadline_slack_s = plan.deadline_slack_s
    return native


def planned_gradients(plan: Plan, half: QueuePlan) -> list[int]:
    """Every gradient id that the plan says anything about, in ascending order."""
    return sorted({*(half.order or {}), *half.groups, *plan.generation_s})


class ScheduledQueue:
    """Pending tasks and what is in flight; see prophet/core/native/queue.h for the rules.

    Times are seconds on the caller's clock, sizes bytes. `watchdog_s` bounds how long a ready task
    may be held while nothing moves, `most_in_flight` (at least 1) how many tasks are in flight, whatever the plan.
    """

    def __init__(
        self, kind: QueueKind = QueueKind.PUSH, watchdog_s: float = 1.0, most_in_flight: int | None = None
    ) -> None:
        self.kind = kind
        self._native = _native.ScheduledQueue(
            watchdog_s, _native.UNBOUNDED if most_in_flight is None else most_in_flight
        )

    def set_plan(self, plan: Plan | None) -> None:
        """Swaps the plan whole; None means arrival order without limits."""
        self._native.set_plan(None if plan is None else native_plan(plan, self.kind))

    def add(self, task: int, gradient: int, size_bytes: int, now: float) -> bool:
        """The task's data is there. False, and nothing taken, where its id is already known."""
        return self._native.add(task, gradient, size_bytes, now)

    def get(self, now: float) -> tuple[int | None, float]:
        """(the task to start, or None; the time at which asking again may give another answer)."""
        return self._native.get(now)

    def requests_first_until(self, now: float) -> float:
        """Until when the next push should let requests for pulls go first; asked when one is acknowledged."""
        return self._native.requests_first_until(now)

    def finish(self, task: int, now: float) -> bool:
        """The task is acknowledged or answered. False where it is not in flight."""
        return self._native.finish(task, now)

    def clear(self) -> None:
        """Forgets every task, pending or in flight; the plan stays."""
        self._native.clear()

    @property
    def pending(self) -> int:
        return self._native.pending

    @property
    def in_flight(self) -> int:
        return self._native.in_flight

    @property
    def in_flight_bytes(self) -> int:
        return self._native.in_flight_bytes

    @property
    def watchdog_releases(self) -> int:
        return self._native.watchdog_releases
