"""Files that a process writes at its end, as PROPHET_STATUS_OUT, PROPHET_EVENTS_OUT and others ask.

Rule of this file: what is kept for them while the job runs. prophet_scheduler/frontends/records.py writes them, as for
a BytePS job. They describe the first module of the process that Prophet was to take over. Every rank has a status.
Events and profile are on the first rank of the module's group, which learns and decides for all. Times are seconds of
the steady clock.

Reports of a running process, where requested (prophet_scheduler/watch), are on the same module and from the same
values.

A failure in here is one warning, never a failed job.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch.distributed as dist

from prophet_ddp.control import TORCH, TORCH_CUT
from prophet_ddp.environment import environ_of_rank
from prophet_scheduler.core import settings as names
from prophet_scheduler.core.cut import MOST_BLOCK_BYTES, Cut
from prophet_scheduler.core.settings import Settings
from prophet_scheduler.core.status import AgentStatus
from prophet_scheduler.frontends.ending import at_end
from prophet_scheduler.frontends.records import event_buffer, write_records
from prophet_scheduler.learn.barrier import BarrierWatch
from prophet_scheduler.watch.observer import Observer, worker_name
from prophet_scheduler.watch.status import Predicted, WorkerName

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from prophet_ddp.grouping import GroupingAgent
    from prophet_scheduler.core.event_record import EventRecord, RecordBuffer
    from prophet_scheduler.core.plan import Plan
    from prophet_scheduler.core.profile import Profile
    from prophet_scheduler.core.status import Observed
    from prophet_scheduler.frontends.turning import TurningThread
    from prophet_scheduler.session.session import Session

logger = logging.getLogger("prophet_scheduler")


class ModuleRecord:
    """Record of one module, which outlives the module: decisions, and on the deciding rank the learned values."""

    def __init__(self) -> None:
        self.cut: Cut | None = None
        """Cut in force."""
        self.recuts = 0
        self.last_recut_s: float | None = None
        self.why = ""
        """Reason for the last cut."""
        self.predicted_s: float | None = None
        """Predicted duration of an iteration under that cut, in seconds."""
        self.plan: Plan | None = None
        self.plans = 0
        self.predicted = Predicted()
        """Predictions of the last plan."""
        self.waits = BarrierWatch()
        """Detection of iterations that wait for all averages."""
        self.asks = BarrierWatch()
        """Detection of iterations that ask for the norms of all averages before they read any average."""
        self.half = False
        """True if gradients travel in half precision."""
        self.learner: Session | GroupingAgent | None = None
        self.planned_from: Profile | None = None
        """Profile that the last plan was made from; at the end of the process, the newest profile."""
        self.began_warm = False
        self.kept_was_dropped = ""
        """Reason why nothing kept from the last run is in use any more."""
        self.drain: Callable[[], NDArray[Any]] | None = None
        """Function that returns the events since the last call; None if this rank keeps none."""
        self.decides = True
        """True if this rank decides for all. Other ranks write no events."""
        self.events: RecordBuffer | None = None
        self.observed: Callable[[], Observed] | None = None
        """Function that returns what was seen of a module that Prophet only observes."""
        self.observer: Observer | None = None
        """Observer of the process; None if it does not report on this module while it runs."""

    def took_up(self, cut: Cut) -> None:
        """Record that this cut is in force from here on."""
        if self.cut is not None and cut != self.cut:
            self.recuts += 1
            self.last_recut_s = time.monotonic()
        self.cut = cut

    def planned(self, plan: Plan, why: str, predicted: Predicted) -> None:
        """Record that a plan was taken up. `why` counts if the plan wants another cut."""
        self.plan, self.predicted = plan, predicted
        self.plans += 1
        if plan.cut is not None:
            self.why, self.predicted_s = why, predicted.iteration_s

    @property
    def barrier(self) -> bool:
        """True if iterations wait for all averages, or would if their norms did not arrive first (phases.py)."""
        return self.waits.holds or self.asks.holds

    def keep(self, events: NDArray[Any]) -> None:
        """Keep drained events, and report them."""
        if self.events is not None:
            self.events.keep(events)
        if self.observer is not None:
            self.observer.turn(time.monotonic(), events, self.predicted, profile=self.planned_from)


class Records:
    """Records of this process, in which this `thread` learns or only looks."""

    def __init__(self, thread: TurningThread) -> None:
        self._thread = thread
        self._worker: WorkerName | None = None
        self._ranks = 1
        self._settings: Settings | None = None
        self._module: ModuleRecord | None = None
        self._said = False
        self._aside = ""
        self._given_back = ""

    def begin(self, settings: Settings) -> None:
        """Begin with the first module. From now on the files are written when the process ends."""
        if self._settings is None:
            self._settings = settings
            at_end(self.write)

    def observes_next(self) -> bool:
        """Return True if this process, while it runs, reports on the next module that is taken over."""
        return self._settings is not None and self._settings.watched and self._module is None and not self._aside

    def follow(self, record: ModuleRecord, ranks: int = 1) -> None:
        """Follow a module that is taken over, in a group of `ranks` ranks; only the first module counts."""
        if self._module is not None or self._aside:
            return
        observes, told = self.observes_next(), self._settings
        self._module = record
        if told is not None and told.events_out is not None and record.decides and record.drain is not None:
            record.events = event_buffer()
        if told is not None and observes:
            number, port = environ_of_rank().get(names.LOCAL_RANK, ""), os.environ.get("MASTER_PORT", "")
            local_rank = int(number) if number.isdecimal() else 0
            self._worker = worker_name("ddp", "torch", dist.get_rank(), dist.get_world_size(), local_rank, port)
            self._ranks = ranks
            self.watch_by(told)

    def taken_over(self, record: ModuleRecord, size_bytes: int, backend: str) -> None:
        """Say on the first rank what is scheduled, once all ranks have taken over the first module: gradients of
        `size_bytes`, over a group with this backend.
        """
        told = self._settings
        if told is not None and told.says and record is self._module and record.decides and not self._said:
            from prophet_scheduler.frontends import lines  # Only the first rank needs it.

            self._said = True
            what = f"DistributedDataParallel over {backend}"
            lines.begins(what, f"{self._ranks} ranks", size_bytes, told.policy)

    def watch_by(self, settings: Settings) -> None:
        """From now on make only the reports that these settings ask for, on the followed module."""
        module, worker = self._module, self._worker
        if module is not None and module.observer is not None:
            module.observer.close()
        if module is not None and worker is not None:
            how = settings, self.status, self._thread.wake
            module.observer = Observer.begin(worker, *how, all_reduce_ranks=self._ranks)

    def stepped_aside(self, why: str, record: ModuleRecord | None = None) -> None:
        """Record that a module has torch's reducer: from its start, or the one of `record` from here on."""
        if record is self._module and not self._aside:
            self._aside = why

    def given_back(self, why: str, record: ModuleRecord) -> None:
        """Record that the module has torch's reducer from here on, since that was faster."""
        if record is self._module:
            self._given_back = why

    def write(self) -> None:
        """Stop reporting, and write the requested files."""
        module = self._module
        try:
            if module is not None and module.drain is not None:
                if module.learner is not None:
                    module.planned_from = module.learner.profiler.latest
                module.keep(module.drain())
        except Exception as error:
            logger.warning("Prophet does not have the last events: %s: %s", type(error).__name__, error)
        if module is not None and module.observer is not None:
            if self._said:
                self._say_end(module.observer)
            module.observer.close()
        if self._settings is not None:
            write_records(self._settings, self.status, self._profile, self._events)

    def _say_end(self, observer: Observer) -> None:
        from prophet_scheduler.frontends import lines

        status = observer.status()
        as_it_comes = TORCH_CUT.segments, TORCH
        torch = next((arm for arm in status.agent.arms if (arm.cut, arm.way) == as_it_comes and arm.seen), None)
        lines.ends(status.iterations, status.iteration, lines.plain_words(status, "DDP", torch))

    def _profile(self) -> Profile | None:
        module = self._module
        return module.learner.profiler.latest if module is not None and module.learner is not None else None

    def _events(self) -> EventRecord | None:
        events = self._module.events if self._module is not None else None
        assert self._settings is not None
        return events.record(self._settings.watchdog_s, None, agreed=True) if events is not None else None

    def status(self) -> AgentStatus:
        """Return the current status of this process."""
        assert self._settings is not None
        module = self._module or ModuleRecord()
        learner, plan = module.learner, module.plan
        return AgentStatus(
            policy=self._settings.policy,
            stepped_aside=self._aside,
            plans=module.plans,
            agent_cpu_s=self._thread.busy_s,
            partition_bytes=self._settings.partition_bytes or MOST_BLOCK_BYTES,
            push_credit=plan.push.credit if plan is not None else None,
            deadlines=tuple(plan.push.deadlines) if plan is not None else (),
            network=learner.network if learner is not None else None,
            cut=module.cut.segments if module.cut is not None else (),
            recuts=module.recuts,
            last_recut_s=module.last_recut_s,
            recut_reason=module.why if module.recuts else "",
            recut_predicted_s=module.predicted_s if module.recuts else None,
            arena=True,
            began_warm=module.began_warm,
            kept_was_dropped=module.kept_was_dropped,
            given_back=self._given_back,
            barrier=module.barrier,
            arms=learner.arms if learner is not None else (),
            tuner=learner.tuner_in_words if learner is not None else "",
            half=module.half,
            observed=module.observed() if module.observed is not None else None,
        )
