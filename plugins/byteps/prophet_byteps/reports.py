"""Reports of a process: its status while it runs, and the files that it writes at exit.

Rule of this file: the observer and the kept events. Times are seconds of the steady clock.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from prophet_byteps.place import decides, place_of, shape_of
from prophet_scheduler.frontends.notices import logger
from prophet_scheduler.frontends.records import event_buffer, write_records

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from prophet_byteps.hook import Hook
    from prophet_scheduler.core.event_record import EventRecord, RecordBuffer
    from prophet_scheduler.core.profile import Profile
    from prophet_scheduler.core.settings import Settings
    from prophet_scheduler.core.status import AgentStatus
    from prophet_scheduler.session.session import Session
    from prophet_scheduler.watch.observer import Observer
    from prophet_scheduler.watch.status import Predicted


class Reports:
    """Reports of one process, as far as `settings` ask for any. `status()` returns its current status."""

    def __init__(self, settings: Settings, status: Callable[[], AgentStatus]) -> None:
        self._settings = settings
        self._status = status
        self.observer: Observer | None = None
        self._kept: RecordBuffer | None = event_buffer() if settings.events_out is not None else None
        self._predicted: Predicted | None = None
        self._planned_from: Profile | None = None
        self._said = False

    @property
    def wants_events(self) -> bool:
        """True if events are kept or observed."""
        return self._kept is not None or self.observer is not None

    def begin(self, framework: str, wake: Callable[[], None], arena: bool) -> None:
        """Start reporting what the process does, if requested. `wake` makes the agent take a turn at once."""
        if not self._settings.watched:
            return
        try:
            from prophet_scheduler.frontends import lines  # noqa: F401  The agent's thread must not import anything.
            from prophet_scheduler.watch.observer import Observer, worker_name

            rank, workers, local_rank = place_of(os.environ)
            port = os.environ.get("DMLC_PS_ROOT_PORT", "")
            worker = worker_name("byteps", framework, rank, workers, local_rank, port)
            self.observer = Observer.begin(worker, self._settings, self._status, wake, arena)
        except Exception as error:
            logger.warning("Prophet cannot report what it does: %s: %s", type(error).__name__, error)

    def keep(self, events: NDArray[Any]) -> None:
        """Keep drained events."""
        if self._kept is not None:
            self._kept.keep(events)

    def took_up(self, number: int, encoded: bytes) -> None:
        """Record a plan that the hook has taken up."""
        if self._kept is not None:
            self._kept.keep_plan(number, encoded)

    def predict(self, session: Session) -> None:
        """Predict iterations under the session's plan, for the observer."""
        if self.observer is None:
            return
        from prophet_scheduler.policies.algorithms.stock import stock_iteration_s
        from prophet_scheduler.watch.status import predicted_of

        profile, network = session.profiler.latest, session.network
        self._planned_from = profile
        if profile is not None and network is not None:
            self._predicted = predicted_of(session.wanted, stock_iteration_s(profile, network, ranks=None))

    def observe(self, now: float, events: NDArray[Any], session: Session | None, last: bool) -> None:
        """Report what happened since the last call. `last`: no further turns follow."""
        if self.observer is None:
            return
        profiler = session.profiler if session is not None else None
        if profiler is not None and profiler.ready and (self._planned_from is None or last):
            self._planned_from = profiler.latest
        self._say_begin()
        periods_s = profiler.periods_s if profiler is not None else None
        self.observer.turn(now, events, self._predicted, periods_s, self._planned_from)

    def _say_begin(self) -> None:
        profile, shape = self._planned_from, shape_of(os.environ)
        if self._said or not self._settings.says or not decides(os.environ) or profile is None or shape is None:
            return
        from prophet_scheduler.frontends import lines

        self._said = True
        servers = f"{shape.servers} server{'s' * (shape.servers > 1)}"
        workers = place_of(os.environ)[1]
        lines.begins("BytePS", f"{workers} workers and {servers}", profile.total_bytes, self._settings.policy)

    def close(self, session: Session | None) -> None:
        """Stop reporting, after a last line if the first one was printed."""
        if self.observer is None:
            return
        if self._said and session is not None:
            from prophet_scheduler.frontends import lines

            status = self.observer.status()
            iterations = status.iterations or session.profiler.iterations  # A program's own pushes report no ends.
            lines.ends(iterations, status.iteration, lines.plain_words(status, "BytePS"))
        self.observer.close()

    def write(self, session: Session | None, hook: Hook | None) -> None:
        """Write the requested files."""

        def events() -> EventRecord | None:
            if self._kept is None or hook is None:
                return None
            return self._kept.record(self._settings.watchdog_s, hook.most_in_flight)

        write_records(
            self._settings, self._status, lambda: session.profiler.latest if session is not None else None, events
        )
