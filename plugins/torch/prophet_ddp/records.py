"""What a process leaves when it ends, in the files that PROPHET_STATUS_OUT, PROPHET_EVENTS_OUT and so on name.

Rule of this file: what is kept for them while the job runs, and writing them. They are those of a BytePS job
(prophet/core/status.py, prophet/core/event_record.py, prophet/models/profiles.py), of the first module of the process
that Prophet was to take over. Every rank has a status. Events and profile are on the first rank of the module's group,
which learns and decides for all. Times are seconds of the steady clock.

What it says while it runs, where that is asked for (prophet/watch), is of the same module and from the same values.

A failure in here is one warning, never a failed job.
"""

from __future__ import annotations

import atexit
import dataclasses
import json
import logging
import os
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from prophet.core import settings as names
from prophet.core.cut import MOST_BLOCK_BYTES, Cut
from prophet.core.errors import UserError
from prophet.core.settings import Settings
from prophet.core.status import AgentStatus
from prophet.learn.barrier import BarrierWatch
from prophet.watch.observer import Observer, worker_name
from prophet.watch.status import Predicted, WorkerName

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from prophet.core.event_record import RecordBuffer
    from prophet.core.plan import Plan
    from prophet.learn.learner import Monitor
    from prophet.learn.profiler import JobProfiler

EVENTS_KEPT = 2_000_000
"""Newest events kept for PROPHET_EVENTS_OUT (24 bytes each)."""

logger = logging.getLogger("prophet")


class Learned(Protocol):
    """What an agent has learned."""

    @property
    def profiler(self) -> JobProfiler: ...
    @property
    def monitor(self) -> Monitor: ...


class ModuleRecord:
    """One module's, which outlives it: cuts that were in force, and on the rank that decides what was learned."""

    def __init__(self) -> None:
        self.cut: Cut | None = None
        self.recuts = 0
        self.last_recut_s: float | None = None
        self.why = ""
        """Why the last cut was wanted."""
        self.plans = 0
        self.waits = BarrierWatch()
        self.plan: Plan | None = None
        self.learner: Learned | None = None
        self.began_warm = False
        self.kept_was_dropped = ""
        """Why nothing of what was kept is used any more."""
        self.drain: Callable[[], NDArray[Any]] | None = None
        """The events since the last call, where any are kept."""
        self.decides = True
        """Whether this rank does, for all; others leave no events."""
        self.events: RecordBuffer | None = None
        self.predicted = Predicted()
        """What came of the last plan, predicted."""
        self.observe: Callable[[NDArray[Any]], None] | None = None
        """Takes in what happened since the last call, where this process says what it does."""

    def took_up(self, cut: Cut) -> None:
        """This cut is in force from here on."""
        if self.cut is not None and cut != self.cut:
            self.recuts += 1
            self.last_recut_s = time.monotonic()
        self.cut = cut

    def keep(self, events: NDArray[Any]) -> None:
        """Events that were drained."""
        if self.events is not None:
            self.events.keep(events)
        if self.observe is not None:
            self.observe(events)

    def planned(self, plan: Plan, why: str) -> None:
        """A plan was taken up; `why` is empty where it wants no other cut."""
        self.plan = plan
        self.plans += 1
        if plan.cut is not None:
            self.why = why


class Records:
    """This process's. `agent_cpu_s` says what Prophet's thread has used so far, `wake` has it make a turn at once."""

    def __init__(self, agent_cpu_s: Callable[[], float], wake: Callable[[], None] = lambda: None) -> None:
        self._agent_cpu_s = agent_cpu_s
        self._wake = wake
        self._observer: Observer | None = None
        self._worker: WorkerName | None = None
        self._ranks = 1
        self._settings: Settings | None = None
        self._module: ModuleRecord | None = None
        self._aside = ""
        self._given_back = ""

    def begin(self, settings: Settings) -> None:
        """The first module is there; from now on the end of the process is waited for."""
        if self._settings is None:
            self._settings = settings
            atexit.register(self.write)

    def observes_next(self) -> bool:
        """Whether the next module that is taken over is the one that this process says something of while it runs."""
        return self._settings is not None and self._settings.watched and self._module is None and not self._aside

    def follow(self, record: ModuleRecord, rank: int = 0, workers: int = 1, ranks: int = 1) -> None:
        """Of a module that is taken over, whose group has so many `ranks`; the first one counts. `rank` of so many
        `workers` is this process in its job.
        """
        if self._module is not None or self._aside:
            return
        observes = self.observes_next()
        self._module = record
        if (
            self._settings is not None
            and self._settings.events_out is not None
            and record.decides
            and record.drain is not None
        ):
            from prophet.core.event_record import RecordBuffer

            record.events = RecordBuffer(EVENTS_KEPT)
        if observes and self._settings is not None:
            number, port = os.environ.get(names.LOCAL_RANK, ""), os.environ.get("MASTER_PORT", "")
            local_rank = int(number) if number.isdecimal() else 0
            self._worker = worker_name("ddp", "torch", rank, workers, local_rank, port)
            self._ranks = ranks
            self.watch_by(self._settings)

    def watch_by(self, settings: Settings) -> None:
        """From now on this process says what these settings ask for of the module that is followed, and no more."""
        if self._observer is not None:
            self._observer.close()
            self._observer = None
        if self._worker is not None and self._module is not None:
            self._observer = Observer.begin(
                self._worker, settings, self.status, self._wake, all_reduce_ranks=self._ranks
            )
            self._module.observe = self._observe if self._observer is not None else None

    def _observe(self, events: NDArray[Any]) -> None:
        if self._observer is not None and self._module is not None:
            self._observer.turn(time.monotonic(), events, self._module.predicted)

    def stepped_aside(self, why: str, record: ModuleRecord | None = None) -> None:
        """A module has torch's reducer: from its start, or `record`'s from here on."""
        if record is self._module and not self._aside:
            self._aside = why

    def given_back(self, why: str, record: ModuleRecord) -> None:
        """From here on the module has torch's reducer, which was faster."""
        if record is self._module:
            self._given_back = why

    def write(self) -> None:
        """Writes what was asked for."""
        if self._observer is not None:
            if self._module is not None and self._module.drain is not None:
                self._module.keep(self._module.drain())
            self._observer.close()
        out = self._settings
        if out is None:
            return
        try:
            self._write(out)
        except (OSError, UserError) as error:
            logger.warning("Prophet could not write its records: %s", error)

    def _write(self, out: Settings) -> None:
        if out.outputs:
            from prophet.core.files import make_places

            make_places(out.outputs)
        module = self._module
        latest = module.learner.profiler.latest if module is not None and module.learner is not None else None
        if out.profile_out is not None and latest is not None:
            from prophet.models.profiles import save_profile

            save_profile(latest, out.profile_out, source="learned by Prophet from a running job")
        if out.events_out is not None and module is not None and module.events is not None:
            from prophet.core.event_record import save_record

            if module.drain is not None:
                module.keep(module.drain())
            save_record(module.events.record(out.watchdog_s, None, agreed=True), out.events_out)
        if out.status_out is not None:
            text = json.dumps(dataclasses.asdict(self.status()), indent=2) + "\n"
            out.status_out.write_text(text, encoding="utf-8")

    def status(self) -> AgentStatus:
        """Of this process, by now."""
        assert self._settings is not None
        module = self._module or ModuleRecord()
        learner, plan = module.learner, module.plan
        return AgentStatus(
            policy=self._settings.policy,
            stepped_aside=self._aside,
            plans=module.plans,
            agent_cpu_s=self._agent_cpu_s(),
            partition_bytes=self._settings.partition_bytes or MOST_BLOCK_BYTES,
            push_credit=plan.push.credit if plan is not None else None,
            deadlines=tuple(plan.push.deadlines) if plan is not None else (),
            network=learner.monitor.network if learner is not None else None,
            cut=module.cut.segments if module.cut is not None else (),
            recuts=module.recuts,
            last_recut_s=module.last_recut_s,
            recut_reason=module.why if module.recuts else "",
            arena=True,
            began_warm=module.began_warm,
            kept_was_dropped=module.kept_was_dropped,
            given_back=self._given_back,
            barrier=module.waits.holds,
        )
