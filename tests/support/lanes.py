"""The scheduled queue for tests: fed with plans, and one lane of it by itself."""

from __future__ import annotations

from prophet_scheduler.core import _native
from prophet_scheduler.core.events import QueueKind
from prophet_scheduler.core.plan import Plan
from prophet_scheduler.core.plan_codec import encode_plan


class TwoLaneQueue(_native.TwoLaneQueue):
    """The queue, with plans as values."""

    def __init__(self, watchdog_s: float = 1.0, most_in_flight: int | None = None) -> None:
        super().__init__(watchdog_s, _native.UNBOUNDED if most_in_flight is None else most_in_flight)

    def set_plan(self, plan: Plan | bytes | None) -> None:
        super().set_plan(encode_plan(plan) if isinstance(plan, Plan) else plan)


class ScheduledQueue:
    """Lane `kind` of a TwoLaneQueue; the other lane stays empty."""

    def __init__(
        self, kind: QueueKind = QueueKind.PUSH, watchdog_s: float = 1.0, most_in_flight: int | None = None
    ) -> None:
        self.kind = kind
        self.both = TwoLaneQueue(watchdog_s, most_in_flight)

    def set_plan(self, plan: Plan | None) -> None:
        self.both.set_plan(plan)

    def add(self, task: int, gradient: int, size_bytes: int, now: float) -> bool:
        return self.both.add(self.kind, task, gradient, size_bytes, now)

    def get(self, now: float) -> tuple[int | None, float]:
        return self.both.get(self.kind, now)

    def look(self, now: float) -> tuple[int | None, float]:
        return self.both.look(self.kind, now)

    def finish(self, task: int, now: float) -> bool:
        return self.both.finish(self.kind, task, now)

    def clear(self) -> None:
        self.both.clear()

    @property
    def pending(self) -> int:
        return self.both.pending(self.kind)

    @property
    def in_flight(self) -> int:
        return self.both.in_flight(self.kind)

    @property
    def in_flight_bytes(self) -> int:
        return self.both.in_flight_bytes(self.kind)

    @property
    def watchdog_releases(self) -> int:
        return self.both.watchdog_releases

    @property
    def unanswered_releases(self) -> int:
        return self.both.unanswered_releases
