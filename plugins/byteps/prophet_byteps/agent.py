"""The agent: one thread of a worker process that learns and plans while the job runs.

Rule of this file: the thread, the clock, and how the process ends. Once a second the agent drains the hook's events,
passes them on (learning.py, reports.py) and swaps in the new plan, if there is one. If anything in here fails, Prophet
warns once, and BytePS runs in order of arrival from then on. Three things end the process, each with one line: a wrong
setting, workers that disagree, and, if PROPHET_STALL_S is set, a stall.

Data loaders and evaluation scripts import BytePS too, but send nothing. So bps.init() imports the modules that only a
sending job needs, in the program's own thread. If the agent's thread imported one and the program forked meanwhile,
the child could never import that module.
"""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Callable, MutableMapping
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np

from prophet_byteps import agreement, meeting, partition
from prophet_byteps import hook as hook_module
from prophet_byteps.hook import Hook
from prophet_byteps.learning import Learning
from prophet_byteps.library import Library
from prophet_byteps.place import place_of
from prophet_byteps.reports import Reports
from prophet_scheduler import __version__, plugins
from prophet_scheduler.core import settings as names
from prophet_scheduler.core.events import DRAIN_S, EVENT_DTYPE, UNPROFILED_GRADIENT, EventKind, name_of
from prophet_scheduler.core.plan import Plan
from prophet_scheduler.core.settings import DEFAULT_PARTITION_BYTES, Settings, from_environ
from prophet_scheduler.core.status import AgentStatus, HookStatus, LaneStatus
from prophet_scheduler.frontends.ending import STALLED, at_end, end_process
from prophet_scheduler.frontends.notices import logger, warn_of_unknown_variables
from prophet_scheduler.frontends.records import require_records
from prophet_scheduler.frontends.turning import TurningThread, tend_heap
from prophet_scheduler.policies import Blocks, get_definition, policy_from_environ

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from prophet_byteps.stall import Oldest, StallDetector
    from prophet_scheduler.core.policy import Policy
    from prophet_scheduler.core.profile import Profile

TURN_LIMIT_S = 5.0
"""Seconds to wait at exit for the agent's current turn. If it takes longer, the last events are lost."""


class Agent:
    """Prophet in one worker process."""

    def __init__(
        self,
        framework: str,
        settings: Settings,
        policy: Policy,
        library: Library | None,
        hook: Hook | None,
        no_hook: str = "",
        profile: Profile | None = None,
        make_policy: Callable[[int], Policy] | None = None,
    ) -> None:
        self._framework = framework
        self._settings = settings
        self._sizes = partition.sizes_of(settings, get_definition(settings.policy).blocks, framework)
        self._learning = Learning(framework, settings, self._sizes, policy, profile, make_policy)
        self._board = self._learning.board
        self._library = library
        self._hook = hook
        self._no_hook = no_hook
        self._thread = TurningThread(self._turn, self._pause_s, self._give_up)
        self._reports = Reports(settings, self._status)
        self._begun = False
        self._aside = ""
        self._released = 0
        self._stall: StallDetector | None = None

    @classmethod
    def prepare(cls, framework: str, environ: MutableMapping[str, str]) -> Agent:
        """Check the settings and load the hook, before BytePS's library is loaded.

        Raises UserError, with one line, if a setting is wrong. If only the hook cannot act, the job runs without it.
        """
        settings = from_environ(environ)
        definition = get_definition(settings.policy, names.SCHEDULER)
        require_records(settings)
        adaptive = definition.blocks is Blocks.ADAPTIVE
        partition_bytes = settings.partition_bytes or (
            partition.LEARNING_BYTES if adaptive else DEFAULT_PARTITION_BYTES
        )
        make_policy = functools.partial(policy_from_environ, settings.policy, dict(environ))
        policy = make_policy(partition_bytes)
        profile = None
        if settings.profile_in is not None:
            from prophet_scheduler.models.profiles import load_profile

            profile = load_profile(settings.profile_in)
        library, hook, no_hook = hook_module.load_for(framework)
        ours = names.users_own_partition_bytes(environ) is None
        job = cls(framework, settings, policy, library, hook, no_hook, profile, make_policy)
        if hook is not None and framework == "torch" and (definition.traced or definition.of_graph is not None):
            from prophet_byteps.tracing import TraceBoard  # Few policies need it.

            make = functools.partial(make_policy, partition_bytes)
            job._board.trace = TraceBoard(settings.policy, make if definition.of_graph is not None else None)
        # BytePS reads the partition size once, at start. All workers must share it, so it also holds without the hook.
        environ[names.BYTEPS_PARTITION_BYTES] = str(job._sizes.partition_bytes)
        if ours:
            environ[names.CHOSEN] = environ[names.BYTEPS_PARTITION_BYTES]
        return job

    def start(self, module: ModuleType) -> None:
        """Take over the queues of the BytePS module just imported, and start learning.

        All workers need the same keys: names, order and sizes. These do not depend on the hook. So the front end is
        installed even without the hook, and only the order of transfers is then BytePS's.
        """
        self._attach()
        layout = ""
        try:
            install = plugins.load(plugins.FRONT_ENDS, self._framework)
            install(module, fusion=self._sizes.fusion, agreement=agreement, board=self._board)
        except Exception as error:
            # Keys are then BytePS's own. That works only if it is so on all workers, so they compare the layout.
            layout = ", keys as in stock BytePS"
            why = f"its front end cannot be installed ({type(error).__name__}: {error})"
            if self._aside not in ("", str(error)):  # the hook may have failed for the same reason
                logger.warning("Prophet stepped aside: %s", why)
            self.step_aside(why)
        try:
            self._agree_at_start(module, layout)
        except Exception as error:
            meeting.not_compared(error)
        at_end(self._finish)
        self._thread.start()

    def _attach(self) -> None:
        if self._hook is not None and self._library is not None:
            try:
                self._hook.attach(self._library, self._settings.watchdog_s)
                self._take_up(self._hook, self._learning.plan)
                return
            except Exception as error:
                self._no_hook = str(error)
        self.step_aside(self._no_hook)
        self._hook = None

    def _agree_at_start(self, module: Any, layout: str) -> None:
        """Make bps.init() return only when all workers have started with the same settings and `layout`."""

        def begin() -> None:
            try:
                if place_of(os.environ)[0] == 0:  # one worker of the job
                    warn_of_unknown_variables(os.environ)
                self._begin()
            except Exception as error:
                self._give_up(error)

        terms = f"Prophet {__version__} for {self._framework}, policy {self._settings.policy}, {self._sizes}{layout}"
        meeting.attend(module, self._framework, terms, self._settings.stall_s, begin, self._learning.agree_on_pushes)

    def step_aside(self, why: str) -> None:
        """Warn once, and run BytePS in order of arrival from now on."""
        if not self._aside:
            self._aside = why
            logger.warning("Prophet stepped aside: %s; the job goes on in BytePS's own order", why)
        if self._hook is not None:
            self._hook.step_aside(why)

    def _give_up(self, error: Exception) -> None:
        """Stop taking turns after a failure inside Prophet, and run in BytePS's own order."""
        self._thread.stop()
        self.step_aside(f"{type(error).__name__}: {error}")

    def _pause_s(self) -> float:
        session = self._learning.session
        return session.pause_s if session is not None else DRAIN_S

    def _turn(self) -> None:
        agreement.poll()
        if self._hook is None:
            self._observe(time.monotonic(), np.zeros(0, EVENT_DTYPE))
            return
        events = self._hook.drain()
        self._reports.keep(events)
        now = time.monotonic()
        if np.any(events["kind"] <= EventKind.FINISH):  # a task's event, not just the first plan's
            self._begin()  # Does nothing unless the program started BytePS without bps.init().
        session = self._learning.session
        plan = self._learning.turn(session, now, events) if session is not None else None
        if plan is not None and session is not None:
            self._take_up(self._hook, plan)
            self._reports.predict(session)
        self._observe(now, events)
        status = self._hook.status()
        if status.why_aside and not self._aside:
            self.step_aside(status.why_aside)
        if status.watchdog_releases > self._released:
            self._warn_of_releases(status)
        self._watch_for_a_stall(now, bool(np.any(events["kind"] == EventKind.FINISH)), status)

    def _warn_of_releases(self, status: HookStatus) -> None:
        if self._released == 0:
            why = (
                "no transfer in flight was answered for that long: the network, a server or another worker had "
                "stalled, or a broadcast or the first pushes of new blocks occupied the link"
                if status.unanswered_releases
                else "a more urgent gradient was predicted but did not arrive"
            )
            logger.warning(
                "Prophet released a task that had been held for %g s with nothing moving; %s",
                self._settings.watchdog_s,
                why,
            )
        self._released = status.watchdog_releases

    def _begin(self) -> None:
        """Create, once, what only a sending job needs: the observer and, with a hook, session and stall detector."""
        if not self._begun:
            self._begun = True
            tend_heap()
            self._reports.begin(self._framework, self._thread.wake, self._learning.arena)
        if self._hook is None or self._learning.session is not None:
            return
        from prophet_byteps.stall import StallDetector

        self._stall = StallDetector(self._settings.stall_s)
        self._learning.begin()

    def _observe(self, now: float, events: NDArray[Any]) -> None:
        self._reports.observe(now, events, self._learning.session, last=self._thread.stopped)

    def _watch_for_a_stall(self, now: float, finished: bool, status: HookStatus) -> None:
        if self._stall is None:
            return  # Nothing has been sent.
        from prophet_byteps.stall import Verdict, story

        push, pull = (oldest(lane, self._learning.arena) for lane in (status.pushes, status.pulls))
        # BytePS opens a key, and waits until all workers have, before the hook sees a task for its first transfer.
        under_way = status.in_flight_bytes > 0 or bool(push or pull) or agreement.under_way() or meeting.ending
        verdict = self._stall.turn(now, finished, under_way)
        if verdict is Verdict.NOTHING:
            return
        line = story(self._stall.stalled_s, push, pull, meeting.ending)
        if verdict is Verdict.END:
            end_process(f"{line} (PROPHET_STALL_S)", STALLED)
        logger.warning("Prophet: %s", line)

    def _take_up(self, hook: Hook, plan: Plan) -> None:
        self._reports.took_up(*hook.set_plan(plan))

    def _finish(self) -> None:
        """Stop the thread and the observer, and write the requested records."""
        session = self._learning.session
        # Events have one reader at a time: this thread may read them only after the agent's thread has stopped.
        if self._thread.end(TURN_LIMIT_S) and self._hook is not None and self._reports.wants_events:
            try:
                events = self._hook.drain()
                self._reports.keep(events)
                self._observe(time.monotonic(), events)
            except Exception as error:
                logger.warning("Prophet does not have the last events: %s: %s", type(error).__name__, error)
        self._reports.close(session)
        if not self._aside:
            self._learning.keep()
        self._reports.write(session, self._hook)

    def _status(self) -> AgentStatus:
        """Return the current status. Thread-safe."""
        board, learning, session = self._board, self._learning, self._learning.session
        in_force, plan = board.in_force, learning.plan
        return AgentStatus(
            policy=self._settings.policy,
            stepped_aside=self._aside,
            plans=learning.plans,
            agent_cpu_s=self._thread.busy_s,
            partition_bytes=self._sizes.partition_bytes,
            push_credit=plan.push.credit,
            pull_credit=plan.pull.credit,
            deadlines=tuple(plan.push.deadlines),
            network=session.network if session else None,
            hook=self._hook.status() if self._hook else None,
            cut=in_force.cut.segments if in_force.cut is not None else (),
            recuts=in_force.recuts,
            last_recut_s=learning.last_recut_s,
            recut_reason=in_force.reason.why,
            recut_predicted_s=in_force.reason.predicted_s,
            refused=board.refused,
            arena=learning.arena,
            began_warm=learning.began_warm,
            kept_was_dropped=session.kept_was_dropped if session else "",
            barrier=board.barrier,
            arms=session.arms if session else (),
            tuner=session.tuner_in_words if session else "",
            half=board.half,
        )


def oldest(lane: LaneStatus, arena: bool) -> Oldest | None:
    """Return the lane's oldest transfer in flight, or None if there is none. `arena`: see name_of."""
    from prophet_byteps.stall import Oldest

    if lane.oldest_s is None or lane.oldest_gradient is None:
        return None
    if lane.oldest_gradient >= UNPROFILED_GRADIENT:  # such as a broadcast
        return Oldest(lane.oldest_s)
    return Oldest(lane.oldest_s, ("the " if arena else "") + name_of(lane.oldest_gradient, arena))
