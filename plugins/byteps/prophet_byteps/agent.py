"""The agent: it learns and plans while the job runs, in one thread beside it.

Rule of this file: the edges (thread, clock, files, NIC counters) around a pure Session. Once a second it drains the
hook's events, hands them to the Session, and swaps in the plan if there is a new one. Any failure in here is one
warning, and from then on BytePS runs in order of arrival. Three things end the process, each with one line: a wrong
setting, workers that disagree, and, if PROPHET_STALL_S asks for it, a stall.

A script's data loaders and evaluations import BytePS too and send nothing. So modules that only a sending job needs are
imported with bps.init(), in the program's own thread. The agent's thread might be in the middle of an import when the
program forks, and then the child could never import that module.

Order, groups and deadlines are each worker's own. So is the credit of blocks that never change; if blocks change, the
credit comes with the cut from the deciding worker. Blocks and tensors are the job's: they come from the settings, the
front end and the agreed cut (docs/decisions/sizes-of-the-job.md). A plan's cut is a wish, left on the board
(cutting.py). So a worker without the hook cuts as the others do, and if the front end fails the workers agree, or end,
before anything is sent.
"""

from __future__ import annotations

import functools
import importlib
import logging
import os
import time
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np

from prophet_byteps import agreement, partition
from prophet_byteps import hook as hook_module
from prophet_byteps.cutting import CutBoard, Reason, decider
from prophet_byteps.hook import Hook
from prophet_byteps.library import Library
from prophet_scheduler import __version__
from prophet_scheduler.core import settings as names
from prophet_scheduler.core.cut import Cut, learning_cut
from prophet_scheduler.core.events import DRAIN_S, EVENT_DTYPE, UNPROFILED_GRADIENT, EventKind, name_of
from prophet_scheduler.core.plan import Plan
from prophet_scheduler.core.settings import DEFAULT_PARTITION_BYTES, Settings, from_environ
from prophet_scheduler.core.status import AgentStatus, HookStatus, LaneStatus
from prophet_scheduler.frontends.ending import STALLED, at_end, end_process
from prophet_scheduler.frontends.records import event_buffer, require_records, write_records
from prophet_scheduler.frontends.turning import TurningThread, tend_heap
from prophet_scheduler.policies import Blocks, get_definition, policy_from_environ

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from prophet_byteps.kept_pushes import KeptPushes
    from prophet_byteps.stall import Oldest, StallDetector
    from prophet_byteps.tracing import Traced
    from prophet_scheduler.core.choice import Shape
    from prophet_scheduler.core.event_record import EventRecord, RecordBuffer
    from prophet_scheduler.core.policy import Policy
    from prophet_scheduler.core.profile import Profile
    from prophet_scheduler.frontends.warm import WarmStart
    from prophet_scheduler.session.session import Session
    from prophet_scheduler.watch.observer import Observer
    from prophet_scheduler.watch.status import Predicted

FORWARD_IDS = ("mxnet",)
"""Frameworks whose ids are taken for forward order as they are: MXNet's threads hand over gradients that become ready
at about the same time in any order."""

EXIT_LIMIT_S = 5.0
"""Maximum wait for workers that have yet to answer, before BytePS or the process ends."""

TURN_LIMIT_S = 5.0
"""Maximum wait at the end for a turn of the agent under way; if it does not end, the last events are lost."""

logger = logging.getLogger("prophet_scheduler")


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
    ) -> None:
        self._framework = framework
        self._sizes = partition.sizes_of(settings, get_definition(settings.policy).blocks, framework)
        self._whole_gradients = framework in partition.WHOLE_GRADIENTS
        self._profile_in = profile
        self._warm: WarmStart | None = None
        self._make_policy: Callable[[int], Policy] | None = None
        self._pushes: KeptPushes | None = None
        self._began_warm = False
        self._begun = False
        self._board = CutBoard(self._sizes.fixed, self._first_cut)
        self._recuts = 0
        self._last_recut_s: float | None = None
        self._settings = settings
        self._policy = policy
        self._plan = policy.plan(None, None)
        self._session: Session | None = None
        self._library = library
        self._hook = hook
        self._no_hook = no_hook
        self._interface: str | None = None
        self._thread = TurningThread(self._turn, self._pause_s, self._give_up)
        self._observer: Observer | None = None
        self._predicted: Predicted | None = None
        self._planned_from: Profile | None = None
        self._aside = ""
        self._plans = 0
        self._traced: Traced | None = None
        self._kept: RecordBuffer | None = event_buffer() if settings.events_out is not None else None
        self._released = 0
        self._stall: StallDetector | None = None

    @classmethod
    def prepare(cls, framework: str, environ: MutableMapping[str, str]) -> Agent:
        """Check the settings and load the hook, before BytePS's library is loaded.

        UserError, with one line, for a wrong setting. If only the hook cannot act, the job runs without it.
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
        partition.chosen_by_prophet(ours)
        job = cls(framework, settings, policy, library, hook, no_hook, profile)
        job._make_policy = make_policy
        if hook is not None and framework == "torch" and (definition.traced or definition.of_graph is not None):
            from prophet_byteps.tracing import TraceBoard  # Few policies need it.

            make = functools.partial(make_policy, partition_bytes)
            job._board.trace = TraceBoard(settings.policy, make if definition.of_graph is not None else None)
        # BytePS reads the partition size once, at start. The size is the job's, so it holds without the hook as well.
        environ[names.BYTEPS_PARTITION_BYTES] = str(job._sizes.partition_bytes)
        if ours:
            environ[names.CHOSEN] = environ[names.BYTEPS_PARTITION_BYTES]
        return job

    def _first_cut(self, sizes: Sequence[int]) -> Cut:
        """Return this worker's first cut; called in the program's own thread, once the gradients are known."""
        if self._warm is None:
            from prophet_scheduler.frontends.warm import WarmStart

            blocks = {"framework": self._framework, "policy": self._settings.policy, "blocks": str(self._sizes)}
            arena = not self._whole_gradients
            where = {**where_it_runs(os.environ), **blocks}
            self._warm = WarmStart(self._settings.cache, where, self._learning_cut, self._profile_in, arena)
        return self._warm.first_cut(sizes)

    def _learning_cut(self, sizes: Sequence[int]) -> Cut:
        # Gradients that stay whole cannot have blocks of several sizes at once.
        return Cut.uniform(partition.LEARNING_BYTES) if self._whole_gradients else learning_cut(sum(sizes))

    def start(self, module: ModuleType) -> None:
        """Take over the queues of the BytePS module just imported, and start to learn.

        Workers must have the same names, order and sizes of keys, and these do not depend on the hook. So without the
        hook the front end is installed all the same, and only the order of transfers is BytePS's.
        """
        self._attach()
        layout = ""
        try:
            front_end = importlib.import_module(f"prophet_byteps.{self._framework}.front_end")
            front_end.install(module, fusion=self._sizes.fusion, agreement=agreement, board=self._board)
        except Exception as error:
            # Keys are BytePS's own then. This works if all workers do so, and they compare.
            layout = ", keys as in stock BytePS"
            why = f"its front end cannot be installed ({type(error).__name__}: {error})"
            if self._aside not in ("", str(error)):  # the hook may have had the same reason
                logger.warning("Prophet stepped aside: %s", why)
            self.step_aside(why)
        try:
            self._agree_at_start(module, self._terms() + layout)
        except Exception as error:
            self._not_compared(error)
        at_end(self._finish)
        self._thread.start()

    def _attach(self) -> None:
        if self._hook is not None and self._library is not None:
            try:
                self._hook.attach(self._library, self._settings.watchdog_s)
                hook_module.set_loaded(self._hook)
                self._take_up(self._hook, self._plan)
                return
            except Exception as error:
                self._no_hook = str(error)
        self.step_aside(self._no_hook)
        self._hook = None

    def _terms(self) -> str:
        """Return the text that must be the same on all workers."""
        return f"Prophet {__version__} for {self._framework}, policy {self._settings.policy}, {self._sizes}"

    def _agree_at_start(self, module: Any, terms: str) -> None:
        """Make bps.init() return only when all workers have started alike, and an elastic resume renew agreements."""
        init, resume = module.init, module.resume

        @functools.wraps(init)
        def init_and_agree(*args: Any, **kwargs: Any) -> Any:
            try:
                if place_of(os.environ)[0] == 0:
                    from prophet_scheduler.frontends.notices import warn_of_unknown_variables

                    warn_of_unknown_variables(os.environ)
                self._begin()
            except Exception as error:
                self._give_up(error)
            result = init(*args, **kwargs)
            # An asynchronous server answers before all have sent, so workers cannot compare through it.
            if agreement.active() is None and module.size() > 1 and names.in_step(os.environ):
                try:
                    from prophet_byteps import exchange

                    exchange.agree_on_start(module, self._framework, terms, self._settings.stall_s)
                    self._agree_on_pushes(module)
                    at_end(self._answer_before_the_end)  # Runs before BytePS's own, which came first.
                except Exception as error:
                    agreement.activate(None)
                    self._not_compared(error)
            return result

        @functools.wraps(resume)
        def resume_and_agree(*args: Any, **kwargs: Any) -> Any:
            from prophet_byteps import exchange

            result = resume(*args, **kwargs)
            exchange.renew(module)
            self._agree_on_pushes(module)
            return result

        module.init, module.resume = init_and_agree, resume_and_agree
        for name in {"shutdown", "suspend"} & set(vars(module)):
            setattr(module, name, self._answering_first(getattr(module, name)))

    def _agree_on_pushes(self, module: Any) -> None:
        """Agree on the cut of tensors that the program itself pushes with priorities, if blocks adapt."""
        if self._framework in partition.WHOLE_GRADIENTS or self._sizes.fixed is not None or agreement.active() is None:
            return  # If gradients stay whole, BytePS's own partition size cuts all of them.
        own_pushes = importlib.import_module(f"prophet_byteps.{self._framework}.own_pushes")
        if self._pushes is None:
            from prophet_byteps.kept_pushes import KeptPushes

            where = {**where_it_runs(os.environ), "framework": self._framework, "policy": self._settings.policy}
            self._pushes = KeptPushes(self._settings.cache, where, self._policy, shape_of(os.environ))
        size = own_pushes.agree(module, self._pushes.size)
        self._pushes.cut = Cut.uniform(size) if size else None
        if size and self._make_policy is not None:
            self._policy = self._make_policy(size)
            if self._session is not None:
                self._session.policy = self._policy

    def _answering_first(self, end: Callable[..., Any]) -> Callable[..., Any]:
        """Return BytePS's function that ends it, delayed until all workers have been answered."""

        @functools.wraps(end)
        def answer_and_end(*args: Any, **kwargs: Any) -> Any:
            self._answer_before_the_end()
            try:
                return end(*args, **kwargs)
            finally:
                group = agreement.active()
                if group is not None:
                    group.exchange.begin_anew()

        return answer_and_end

    def _not_compared(self, error: Exception) -> None:
        logger.warning("Prophet cannot compare the workers' settings: %s: %s", type(error).__name__, error)

    def _answer_before_the_end(self) -> None:
        """Answer all workers, since another may still wait for this one."""
        try:
            agreement.wait(agreement.at_rest, "all workers", EXIT_LIMIT_S)
        except Exception as error:
            logger.warning("Prophet ended before all workers had answered: %s", error)

    def step_aside(self, why: str) -> None:
        """Warn once, and run BytePS in order of arrival from here on."""
        if not self._aside:
            self._aside = why
            logger.warning("Prophet stepped aside: %s; the job goes on in BytePS's own order", why)
        if self._hook is not None:
            self._hook.step_aside(why)

    def _give_up(self, error: Exception) -> None:
        """Take no further turn after a failure of Prophet's own, and run in BytePS's own order."""
        self._thread.stop()
        self.step_aside(f"{type(error).__name__}: {error}")

    def _pause_s(self) -> float:
        return self._session.pause_s if self._session is not None else DRAIN_S

    def _turn(self) -> None:
        agreement.poll()
        if self._hook is None:
            self._observe(time.monotonic(), np.zeros(0, EVENT_DTYPE))
            return
        events = self._hook.drain()
        if self._kept is not None:
            self._kept.keep(events)
        now = time.monotonic()
        if len(events):
            self._begin()  # Nothing to do, unless the program started BytePS in a way of its own.
        if self._session is not None:
            self._learn(self._hook, self._session, now, events)
        self._observe(now, events)
        status = self._hook.status()
        if status.why_aside and not self._aside:
            self.step_aside(status.why_aside)
        if status.watchdog_releases > self._released:
            if self._released == 0:
                why = (
                    "what was on its way was not answered for so long: the network, a server or another worker had "
                    "stalled, or a broadcast or the first pushes of new blocks had the link"
                    if status.unanswered_releases
                    else "what is more urgent was predicted and did not come"
                )
                logger.warning(
                    "Prophet released a task that had been held for %g s with nothing moving; %s",
                    self._settings.watchdog_s,
                    why,
                )
            self._released = status.watchdog_releases
        self._watch_for_a_stall(now, bool(np.any(events["kind"] == EventKind.FINISH)), status)

    def _begin(self) -> None:
        """Make the parts of a sending job, once: the observer, and with a hook the learner and the stall detector."""
        if not self._begun:
            self._begun = True
            tend_heap()
            self._begin_to_observe()
        if self._hook is None or self._session is not None:
            return
        from prophet_byteps.stall import StallDetector
        from prophet_scheduler.learn.nic import interface_towards
        from prophet_scheduler.session.messages import Terms
        from prophet_scheduler.session.session import Session

        self._stall = StallDetector(self._settings.stall_s)
        scheduler_host = os.environ.get("DMLC_PS_ROOT_URI")
        self._interface = interface_towards(scheduler_host) if scheduler_host else None
        adapts = self._sizes.fixed is None
        terms = Terms(
            self._settings.monitor_s,
            forward_ids=self._framework in FORWARD_IDS,
            arena=not self._whole_gradients,
            shape=shape_of(os.environ),
            adapts=adapts and decides(os.environ),
            follows=adapts and not decides(os.environ),
            learns_order=not self._whole_gradients,
        )
        self._session = Session(self._policy, terms)
        searches = ["prophet_scheduler.policies.algorithms.chooser"] if hasattr(self._policy, "search") else []
        for name in ("prophet_scheduler.core.files", "prophet_scheduler.policies.algorithms.stock", *searches):
            importlib.import_module(name)  # The agent's own thread must import nothing.

    def _learn(self, hook: Hook, session: Session, now: float, events: NDArray[Any]) -> None:
        from prophet_scheduler.learn.nic import sample_nic
        from prophet_scheduler.session.messages import Remembered, TakeUp, Traced, Turn, Want

        nic = sample_nic(self._interface, now) if self._interface else None
        board = self._board
        warm, cut = self._keeps(session)
        if warm is not None and (kept := warm.take()) is not None:
            session.on(Remembered(kept))
            self._began_warm = True
        if board.trace is not None and (traced := board.trace.found) is not self._traced:
            self._traced = traced
            session.on(Traced(traced.forward_s, traced.policy or self._policy))
        if board.recuts > self._recuts:
            self._recuts, self._last_recut_s = board.recuts, now
        turn = Turn(
            now,
            events,
            nic,
            cut=board.in_force,
            networks=board.networks,
            refusals=board.refusals,
            credit=board.credit,
            barrier=board.barrier,
            ended=board.take_ended(),
        )
        instructions = session.on(turn)
        if (network := session.network) is not None:
            board.measured(network)
        if warm is not None:
            warm.turn(now, cut, session.learned)
        for instruction in instructions:
            match instruction:
                case TakeUp(plan):
                    self._plan = plan
                    self._take_up(hook, plan)
                    self._plans += 1
                    self._predict(session)
                case Want() as want if want.cut is not None:
                    board.want(want.cut, Reason(want.why, want.predicted_s), want.credit)
                case Want() as want if want.credit is not None:
                    board.want_credit(want.credit)

    def _keeps(self, session: Session) -> tuple[WarmStart | None, Cut | None]:
        """Return the place where learned values are kept, and the cut under which they were learned."""
        if self._warm is None and self._pushes is not None and self._pushes.cut and session.profiler.iterations:
            return self._pushes.warm, self._pushes.cut
        return self._warm, self._board.in_force

    def _predict(self, session: Session) -> None:
        """Predict the plan's iterations, for the observer."""
        if self._observer is None:
            return
        from prophet_scheduler.policies.algorithms.stock import stock_iteration_s
        from prophet_scheduler.watch.status import predicted_of

        profile, network = session.profiler.latest, session.network
        self._planned_from = profile
        if profile is not None and network is not None:
            self._predicted = predicted_of(session.wanted, stock_iteration_s(profile, network, collectives=False))

    def _begin_to_observe(self) -> None:
        if not self._settings.watched:
            return
        try:
            from prophet_scheduler.watch.observer import Observer, worker_name

            rank, workers, local_rank = place_of(os.environ)
            port = os.environ.get("DMLC_PS_ROOT_PORT", "")
            worker = worker_name("byteps", self._framework, rank, workers, local_rank, port)
            arena = not self._whole_gradients
            self._observer = Observer.begin(worker, self._settings, self._status, self._thread.wake, arena)
        except Exception as error:
            logger.warning("Prophet does not say what it does: %s: %s", type(error).__name__, error)

    def _observe(self, now: float, events: NDArray[Any]) -> None:
        if self._observer is None:
            return
        profiler = self._session.profiler if self._session is not None else None
        if profiler is not None and profiler.ready and (self._planned_from is None or self._thread.stopped):
            self._planned_from = profiler.latest
        periods_s = profiler.periods_s if profiler is not None else None
        self._observer.turn(now, events, self._predicted, periods_s, self._planned_from)

    def _watch_for_a_stall(self, now: float, finished: bool, status: HookStatus) -> None:
        if self._stall is None:
            return  # Nothing has been sent.
        from prophet_byteps.stall import Verdict, story

        push, pull = (oldest(lane, not self._whole_gradients) for lane in (status.pushes, status.pulls))
        under_way = status.in_flight_bytes > 0 or push is not None or pull is not None or handed_over()
        verdict = self._stall.turn(now, finished, under_way)
        if verdict is Verdict.WARN:
            logger.warning("Prophet: %s", story(self._stall.stalled_s, push, pull))
        elif verdict is Verdict.END:
            end_process(f"{story(self._stall.stalled_s, push, pull)} (PROPHET_STALL_S)", STALLED)

    def _take_up(self, hook: Hook, plan: Plan) -> None:
        taken = hook.set_plan(plan)
        if self._kept is not None:
            self._kept.keep_plan(taken.number, taken.encoded)

    def _finish(self) -> None:
        """End the thread and the observer, and write the records asked for."""
        session = self._session
        # Events have one reader: this thread may read them only after the agent's has ended.
        if self._thread.end(TURN_LIMIT_S):
            self._take_last_events()
        if self._observer is not None:
            self._observer.close()
        if session is not None and not self._aside:
            warm, cut = self._keeps(session)
            if warm is not None:
                warm.keep(session.learned(cut))
        write_records(self._settings, self._status, self._learned, self._happened)

    def _take_last_events(self) -> None:
        if self._hook is None or (self._kept is None and self._observer is None):
            return
        try:
            events = self._hook.drain()
        except Exception as error:
            logger.warning("Prophet does not have the last events: %s: %s", type(error).__name__, error)
            return
        if self._kept is not None:
            self._kept.keep(events)
        self._observe(time.monotonic(), events)

    def _learned(self) -> Profile | None:
        return self._session.profiler.latest if self._session is not None else None

    def _happened(self) -> EventRecord | None:
        if self._kept is None or self._hook is None:
            return None
        return self._kept.record(self._settings.watchdog_s, self._hook.most_in_flight)

    def _status(self) -> AgentStatus:
        """Return the present status. Call it from any thread."""
        cut, reason = self._board.in_force, self._board.recut_reason
        return AgentStatus(
            policy=self._settings.policy,
            stepped_aside=self._aside,
            plans=self._plans,
            agent_cpu_s=self._thread.busy_s,
            partition_bytes=self._sizes.partition_bytes,
            push_credit=self._plan.push.credit,
            pull_credit=self._plan.pull.credit,
            deadlines=tuple(self._plan.push.deadlines),
            network=self._session.network if self._session else None,
            hook=self._hook.status() if self._hook else None,
            cut=cut.segments if cut is not None else (),
            recuts=self._board.recuts,
            last_recut_s=self._last_recut_s,
            recut_reason=reason.why,
            recut_predicted_s=reason.predicted_s,
            refused=self._board.refused,
            arena=not self._whole_gradients,
            began_warm=self._began_warm,
            kept_was_dropped=self._session.kept_was_dropped if self._session else "",
            barrier=self._board.barrier,
            arms=self._session.arms if self._session else (),
            tuner=self._session.tuner_in_words if self._session else "",
            half=self._board.half,
        )


def shape_of(environ: Mapping[str, str]) -> Shape | None:
    """Return the number of machines that talk to servers, and the number of servers; None if not given."""
    from prophet_scheduler.core.choice import Shape

    counts = [environ.get(name, "") for name in (names.DMLC_NUM_WORKER, names.DMLC_NUM_SERVER)]
    if not all(count.isdecimal() and int(count) > 0 for count in counts):
        return None
    return Shape(*map(int, counts))


def place_of(environ: Mapping[str, str]) -> tuple[int, int | None, int]:
    """Return (number in the job, size of the job, number on its machine) of this process, as far as `environ` says."""

    def read(name: str, default: int) -> int:
        text = environ.get(name, "")
        return int(text) if text.isdecimal() else default

    local_rank, local_size = read(names.BYTEPS_LOCAL_RANK, 0), read(names.BYTEPS_LOCAL_SIZE, 1)
    machines = read(names.DMLC_NUM_WORKER, 0)
    return read(names.DMLC_WORKER_ID, 0) * local_size + local_rank, machines * local_size or None, local_rank


def where_it_runs(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that distinguish a process's job from other jobs, and its worker from other workers."""
    own = ("DMLC_NUM_WORKER", "DMLC_NUM_SERVER", "DMLC_PS_ROOT_URI", "DMLC_INTERFACE", "DMLC_WORKER_ID")
    return {name: environ.get(name, "") for name in (*own, "BYTEPS_LOCAL_RANK", "BYTEPS_LOCAL_SIZE")}


def decides(environ: Mapping[str, str]) -> bool:
    """Return True if this is the process whose wishes count (cutting.py)."""
    local_rank, local_size = environ.get(names.BYTEPS_LOCAL_RANK) or "0", environ.get(names.BYTEPS_LOCAL_SIZE) or "1"
    # On the first machine a process's rank is its number there.
    return names.is_first_machine(environ) and local_rank == str(decider(int(local_size)))


def handed_over() -> bool:
    """Return True if BytePS has tensors that are not back, even if the hook sees none of them: BytePS opens a key, and
    waits for all workers, before the key's first transfer is a task.
    """
    if agreement.active() is None:
        return False
    from prophet_byteps import exchange  # Loaded where workers agree.

    return exchange.under_way()


def oldest(lane: LaneStatus, arena: bool) -> Oldest | None:
    """Return the transfer of this lane that has been under way for longest, None if there is none.

    For `arena` see name_of.
    """
    from prophet_byteps.stall import Oldest

    if lane.oldest_s is None or lane.oldest_gradient is None:
        return None
    if lane.oldest_gradient >= UNPROFILED_GRADIENT:  # a broadcast, say
        return Oldest(lane.oldest_s)
    return Oldest(lane.oldest_s, ("the " if arena else "") + name_of(lane.oldest_gradient, arena))
