"""The agent beside a hook and a BytePS that the test plays: what it says, what it agrees on, and when it ends a job."""

from __future__ import annotations

import atexit
import contextlib
import dataclasses
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from prophet_byteps import agent, agreement, exchange, meeting
from prophet_byteps import hook as hook_module
from prophet_byteps.agent import Agent, oldest
from prophet_byteps.cutting import CutBoard, Reason, Wish
from prophet_byteps.library import HookError
from prophet_byteps.place import decides, place_of, shape_of
from prophet_byteps.stall import Oldest
from prophet_byteps.tracing import TraceBoard
from prophet_papers.tictac import TicTac
from prophet_scheduler import __version__
from prophet_scheduler.core.choice import Shape
from prophet_scheduler.core.cut import Cut, Refusal, Segment
from prophet_scheduler.core.errors import UserError
from prophet_scheduler.core.event_record import load_events, load_record
from prophet_scheduler.core.events import EVENT_DTYPE, UNPROFILED_GRADIENT, EventKind, QueueEvent
from prophet_scheduler.core.network import Network
from prophet_scheduler.core.plan import Plan
from prophet_scheduler.core.plan_codec import encode_plan
from prophet_scheduler.core.settings import Settings
from prophet_scheduler.core.status import AgentStatus, LaneStatus
from prophet_scheduler.frontends import ending
from prophet_scheduler.frontends.ending import STALLED
from prophet_scheduler.lab.records import read_status
from prophet_scheduler.lab.report import story_of
from prophet_scheduler.models.profiles import load_profile
from prophet_scheduler.policies import get_policy
from prophet_scheduler.session.messages import Instruction, SessionTerms, TakeUp, Turn, Want
from prophet_scheduler.session.session import Session
from prophet_scheduler.watch import training
from support.ending import ProcessEnded, end_process
from support.graphs import graph
from support.virtual import events, iteration, transfers


class Hook:
    """A hook with one pull under way, which takes `plans` plans and refuses the next."""

    most_in_flight = 256

    def __init__(self, plans: int = 100) -> None:
        self.events = np.zeros(0, EVENT_DTYPE)
        self.taken, self.plans = 0, plans
        self.state = SimpleNamespace(
            why_aside="",
            watchdog_releases=0,
            unanswered_releases=0,
            in_flight_bytes=4,
            pushes=LaneStatus(0, 0, None, None),
            pulls=LaneStatus(0, 1, 0.0, 7),
        )

    def attach(self, library: object, watchdog_s: float) -> None: ...

    def set_plan(self, plan: Plan) -> tuple[int, bytes]:
        if self.taken == self.plans:
            raise HookError("the hook cannot take a plan: of another kind")
        self.taken += 1
        return self.taken - 1, encode_plan(plan)

    def drain(self) -> Any:
        return self.events

    def status(self) -> Any:
        return self.state

    def step_aside(self, why: str) -> None:
        self.state.why_aside = why


class SlowHook(Hook):
    """A hook whose events take until they are let go, and that counts who reads them at the same time."""

    def __init__(self) -> None:
        super().__init__()
        self.events = one_event(EventKind.ADD)
        self.entered, self.go_on = threading.Event(), threading.Event()
        self.readers = self.at_once = 0

    def drain(self) -> Any:
        self.readers += 1
        self.at_once = max(self.at_once, self.readers)
        self.entered.set()
        assert self.go_on.wait(30)
        self.readers -= 1
        return self.events


def one_event(kind: EventKind | QueueEvent) -> Any:
    return np.array([(0.0, 0, 4, 0, 0, kind, 0)], EVENT_DTYPE)


@pytest.fixture(autouse=True)
def nothing_agreed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agreement, "_active", None)
    monkeypatch.setattr(hook_module, "_loaded", None)
    monkeypatch.setattr(agent, "end_process", end_process)
    monkeypatch.delenv("BYTEPS_ENABLE_ASYNC", raising=False)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    return now


def job(hook: Any = None, policy: str = "fifo", framework: str = "torch", **settings: Any) -> Agent:
    library: Any = SimpleNamespace()
    return Agent(framework, Settings(policy, **settings), get_policy(policy), library, hook, "no hook here")


def turns(job: Agent, clock: list[float], seconds: int) -> None:
    """Pass time, in which the oldest pull grows older."""
    job._begin()
    for _ in range(seconds):
        clock[0] += 1.0
        state: Any = job._hook.status()  # type: ignore[union-attr]
        if state.pulls.oldest_s is not None:
            state.pulls = dataclasses.replace(state.pulls, oldest_s=state.pulls.oldest_s + 1.0)
        job._turn()


@contextlib.contextmanager
def stalled(said: str) -> Iterator[None]:
    """Expect the end of a job that may stall for 20 s."""
    with pytest.raises(ProcessEnded) as ended:
        yield
    assert ended.value.status == STALLED
    assert ended.value.line.startswith(f"no transfer has finished for 20 s: {said}")
    assert ended.value.line.endswith("(PROPHET_STALL_S)")


def test_a_stall_is_one_warning_that_says_which_gradient_waits(
    clock: list[float], caplog: pytest.LogCaptureFixture
) -> None:
    turns(job(Hook()), clock, 60)
    assert len(caplog.records) == 1
    assert (
        "the pull of the block at 0.03 MiB is not answered after 46 s, so another worker has not sent it" in caplog.text
    )


def test_a_stall_ends_the_process_where_that_is_asked_for(clock: list[float]) -> None:
    hook = Hook()
    scheduled = job(hook, stall_s=20.0)
    turns(scheduled, clock, 10)
    hook.events = one_event(EventKind.FINISH)
    turns(scheduled, clock, 10)
    hook.events = hook.events[:0]
    turns(scheduled, clock, 19)
    with stalled("the pull of the block at 0.03 MiB"):
        turns(scheduled, clock, 1)


@pytest.fixture
def idle() -> Agent:
    """A job that may stall for 20 s, with nothing under way."""
    hook = Hook()
    hook.state.in_flight_bytes, hook.state.pulls = 0, LaneStatus(0, 0, None, None)
    return job(hook, stall_s=20.0)


def test_the_end_of_byteps_waits_for_all_as_well(idle: Agent, clock: list[float]) -> None:
    lasts = [19]
    byteps = SimpleNamespace(init=int, resume=int, shutdown=lambda: turns(idle, clock, lasts[0]))
    idle._agree_at_start(byteps, "")
    turns(idle, clock, 60)
    byteps.shutdown()
    turns(idle, clock, 60)
    lasts[0] = 21
    with stalled("BytePS's end waits for all workers"):
        byteps.shutdown()


@pytest.mark.parametrize("end", ["shutdown", "suspend"])
@pytest.mark.parametrize(
    ("late_s", "back_after_s", "failed", "waited_s"),
    [
        (0.0, 0.0, False, 0.0),
        (0.0, 1.0, False, 1.0),
        (0.0, 60.0, False, meeting.EXIT_LIMIT_S),
        (0.0, 60.0, True, meeting.FAILED_PATIENCE_S),
        (60.0, 60.0, False, 60.0),
        (60.0, 60.0, True, 60.0),
        (60.0, 90.0, False, 60.0 + meeting.EXIT_LIMIT_S),
    ],
)
def test_byteps_ends_when_all_are_at_their_end_and_pages_that_nobody_asks_for_are_back(
    end: str,
    late_s: float,
    back_after_s: float,
    failed: bool,
    waited_s: float,
    clock: list[float],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """BytePS's own end waits for all as well, and a late worker may have yet to send what this one needs."""
    if failed:
        monkeypatch.setattr(sys, "last_value", KeyboardInterrupt(), raising=False)

    def sleep(seconds: float) -> None:
        clock[0] += seconds

    monkeypatch.setattr(time, "sleep", sleep)
    began, ended, forgotten = clock[0], list[float](), list[float]()
    said: list[str] = []
    others = SimpleNamespace(
        poll=lambda: True,
        exchange=SimpleNamespace(pages_under_way=lambda: clock[0] < began + back_after_s),
        leave=lambda: said.append("leaves"),
        all_leave=lambda: clock[0] >= began + late_s,
        ended=lambda: forgotten.append(clock[0]),
    )
    monkeypatch.setattr(agreement, "_active", others)
    byteps = SimpleNamespace(init=int, resume=int, **{end: lambda: ended.append(clock[0])})
    job(Hook())._agree_at_start(byteps, "")
    getattr(byteps, end)()
    assert said == ["leaves"]
    assert ended == forgotten == [pytest.approx(began + waited_s, abs=2 * agreement.POLL_S)]


def test_a_program_that_leaves_by_os_exit_waits_for_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    others = SimpleNamespace(poll=lambda: True, exchange=SimpleNamespace(pages_under_way=bool), ended=int)
    monkeypatch.setattr(agreement, "_active", others)
    monkeypatch.setattr(ending, "_at_once", True)
    byteps = SimpleNamespace(init=int, resume=int, shutdown=int)
    job(Hook())._agree_at_start(byteps, "")
    byteps.shutdown()


def test_a_first_push_counts_as_under_way(idle: Agent, clock: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    line = SimpleNamespace(under_way=lambda: False)
    monkeypatch.setattr(agreement, "_active", SimpleNamespace(poll=lambda: True, exchange=line))
    turns(idle, clock, 60)
    line.under_way = lambda: True
    turns(idle, clock, 19)
    with stalled("no transfer is under way, "):
        turns(idle, clock, 1)


@pytest.mark.parametrize(
    ("unanswered", "why"), [(1, "no transfer in flight was answered"), (0, "was predicted but did not arrive")]
)
def test_released_tasks_cause_one_warning_with_the_reason(
    unanswered: int, why: str, clock: list[float], caplog: pytest.LogCaptureFixture
) -> None:
    hook = Hook()
    scheduled = job(hook)
    for released in (1, 2):
        hook.state.watchdog_releases, hook.state.unanswered_releases = released, unanswered
        turns(scheduled, clock, 2)
    (line,) = caplog.messages
    assert why in line


def test_only_gradients_have_numbers() -> None:
    assert oldest(LaneStatus(3, 0, None, None), arena=True) is None
    assert oldest(LaneStatus(0, 1, 2.0, UNPROFILED_GRADIENT + 3), arena=True) == Oldest(2.0, "a tensor")
    assert oldest(LaneStatus(0, 1, 2.0, 512), arena=True) == Oldest(2.0, "the block at 2.00 MiB")
    assert oldest(LaneStatus(0, 1, 2.0, 3), arena=False) == Oldest(2.0, "gradient 3")


def test_the_agent_polls_the_agreement_without_a_hook(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[bool] = []
    monkeypatch.setattr(agreement, "poll", lambda: asked.append(True))
    job()._turn()
    assert asked == [True]


class BytePS(SimpleNamespace):
    """byteps.torch as far as the start of a job is concerned."""

    def __init__(self, size: int) -> None:
        super().__init__(init=lambda lazy=True: f"init {lazy}", resume=lambda *args: args, size=lambda: size)


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """Calls of agreements and renewals."""
    calls: list[tuple[Any, ...]] = []
    monkeypatch.setattr(atexit, "register", lambda function: None)
    monkeypatch.setattr(exchange, "agree_on_start", lambda *args: calls.append(("start", *args[1:])))
    monkeypatch.setattr(exchange, "renew", lambda bps: calls.append(("renew",)))
    return calls


def test_init_returns_what_it_did_when_all_have_started_alike(started: list[tuple[Any, ...]]) -> None:
    bps = BytePS(2)
    job(stall_s=9.0)._agree_at_start(bps, "")
    assert bps.init(lazy=False) == "init False"
    terms = f"Prophet {__version__} for torch, policy fifo, blocks of 131072 bytes, fusion on"
    assert started == [("start", "torch", terms, 9.0)]
    assert bps.resume(2, 1, 0) == (2, 1, 0)
    assert started[1:] == [("renew",)]


def test_one_worker_and_asynchronous_workers_compare_nothing(
    started: list[tuple[Any, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    alone, asynchronous = BytePS(1), BytePS(2)
    for bps in (alone, asynchronous):
        job()._agree_at_start(bps, "terms")
    assert alone.init() == "init True"
    monkeypatch.setenv("BYTEPS_ENABLE_ASYNC", "1")
    assert asynchronous.init() == "init True"
    assert started == []


def test_a_comparison_that_fails_is_one_warning(
    started: list[tuple[Any, ...]], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: Any) -> None:
        raise KeyError("byteps.torch.ops")

    monkeypatch.setattr(exchange, "agree_on_start", fail)
    bps = BytePS(2)
    job()._agree_at_start(bps, "terms")
    assert bps.init() == "init True"
    assert caplog.messages == ["Prophet: cannot compare the workers' settings: KeyError: 'byteps.torch.ops'"]


@pytest.mark.parametrize("inits", [True, False])
def test_the_learner_is_there_when_byteps_has_started_or_sends(started: list[tuple[Any, ...]], inits: bool) -> None:
    hook, bps = Hook(), BytePS(2)
    scheduled = job(hook)
    scheduled._agree_at_start(bps, "terms")
    hook.events = one_event(QueueEvent.PLAN)
    scheduled._turn()
    assert scheduled._learning.session is None, "a program that only imports BytePS learns nothing"
    if inits:
        bps.init()
    else:
        hook.events = one_event(EventKind.ADD)
        scheduled._turn()
    assert scheduled._learning.session is not None


def test_a_learner_that_cannot_be_made_is_one_warning(
    started: list[tuple[Any, ...]], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "prophet_scheduler.session.session", None)
    hook, bps = Hook(), BytePS(2)
    scheduled = job(hook)
    scheduled._agree_at_start(bps, "terms")
    assert bps.init() == "init True"
    assert scheduled._thread.stopped
    (line,) = caplog.messages
    assert line.startswith("Prophet: stepped aside: ModuleNotFoundError: ")
    assert "ModuleNotFoundError" in hook.state.why_aside


@pytest.mark.parametrize("policy", ["p3", "prophet"])
def test_wishes_and_the_network_are_left_on_the_board(policy: str, clock: list[float]) -> None:
    cut = Cut.uniform(1 << 20)
    turns: list[Turn] = []
    instructions: list[Instruction] = [
        TakeUp(Plan()),
        Want(cut, 3 << 20, why="larger blocks cost less", predicted_s=0.25),
    ]

    class Session:
        network = Network(1e8)

        def on(self, event: Turn) -> list[Instruction]:
            turns.append(event)
            return instructions

    scheduled = job(policy=policy)
    board = scheduled._board

    def turn(now: float) -> None:
        scheduled._learning.turn(Session(), now, [])  # type: ignore[arg-type]

    turn(3.0)
    assert board.said() == (Wish(cut, 3 << 20), Network(1e8))
    first = None if policy == "prophet" and board.fixed is None else Cut.uniform(128 * 1024)
    assert [(turn.cut, turn.networks) for turn in turns] == [(first, ())]
    for number in range(2):
        board.taken_up(0, Cut.uniform(4096 << number))
        turn(4.0 + number)
    assert turns[-1].cut == Cut.uniform(8192)
    assert scheduled._learning.last_recut_s == 5.0
    board.refuse(Refusal(cut, "no names"))
    turn(6.0)
    assert turns[-1].refusals == (Refusal(cut, "no names"),)
    board.taken_up(0, cut, 1 << 20)
    assert board.in_force.reason == ("larger blocks cost less", 0.25)
    instructions[1:] = [Want(None, 2 << 20)]
    turn(7.0)
    assert [turn.credit for turn in turns] == [None] * 4 + [1 << 20], "what the worker that decides wants in flight"
    assert board.said()[0] == Wish(cut, 2 << 20), "a plan that leaves the cut as it is"


def test_a_trace_is_used_for_plans_as_long_as_it_holds() -> None:
    scheduled = job(policy="tictac")
    learning = scheduled._learning
    board = scheduled._board.trace = TraceBoard("tictac", TicTac)
    session = Session(learning.policy, SessionTerms(5.0))
    generated = [row for number in range(8) for row in iteration(float(number), {2: 0.1, 1: 0.2, 0: 0.3})]
    learning.turn(session, 8.0, events(generated))
    layers = {"a": (0.0, "gradient0"), "b": (0.0, "a gradient2"), "c": (0.0, "b gradient1")}
    board.leave({1: 7.0}, graph({f"gradient{id_}": 1000 for id_ in range(3)}, layers))
    learning.turn(session, 9.0, events([]))
    assert session.policy is board.found.policy
    assert learning.plan.push.order == {0: 0, 2: 0, 1: 2}, "TIO's, since no network is known"
    profile = session.profiler.profile
    assert profile is not None and profile.gradients[1].forward_s == 7.0
    board.close("why")
    learning.turn(session, 10.0, events([]))
    assert session.policy is learning.policy and learning.plan.push.order == {0: 0, 1: 0, 2: 2}


def test_a_recut_right_before_the_end_leaves_the_last_profile(clock: list[float], tmp_path: Path) -> None:
    scheduled = job(Hook(), "p3", profile_out=tmp_path / "profile.json")
    learning = scheduled._learning
    learning.session = session = Session(get_policy("p3"), SessionTerms(5.0))
    generated = [row for number in range(8) for row in iteration(float(number), {1: 0.1, 0: 0.3}, partitions=2)]
    scheduled._board.taken_up(0, Cut.uniform(4096))
    learning.turn(session, 8.0, events(generated))
    profile = session.profiler.profile
    assert profile is not None
    scheduled._board.taken_up(0, Cut.uniform(8192))
    learning.turn(session, 9.0, events(iteration(8.0, {2: 0.3})))
    assert session.profiler.profile is None
    scheduled._finish()
    assert load_profile(tmp_path / "profile.json").gradients == profile.gradients


def test_a_plan_that_the_hook_refuses_is_one_warning_and_bytepss_own_order(caplog: pytest.LogCaptureFixture) -> None:
    hook = Hook(plans=0)
    job(hook)._attach()
    why = "the hook cannot take a plan: of another kind"
    assert hook.state.why_aside == why
    assert caplog.messages == [f"Prophet: stepped aside: {why}; the job goes on in BytePS's own order"]


def test_the_agent_leaves_events_and_plans_where_it_was_asked_to(tmp_path: Path) -> None:
    hook = Hook()
    hook.events = one_event(EventKind.ADD)
    scheduled = job(hook, watchdog_s=2.0, events_out=tmp_path / "e.npz")
    scheduled._attach()
    scheduled._finish()
    record = load_record(tmp_path / "e.npz")
    assert (len(record.events), record.watchdog_s, record.most_in_flight) == (1, 2.0, 256)
    assert dict(record.plans) == {0: encode_plan(get_policy("fifo").plan(None, None))}


def test_the_events_have_one_reader_while_a_turn_is_under_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hook = SlowHook()
    scheduled = job(hook, "p3", events_out=tmp_path / "events.npz")
    monkeypatch.setattr(agent, "TURN_LIMIT_S", 0.0)
    scheduled._thread.start()
    scheduled._thread.wake()
    assert hook.entered.wait(30)
    scheduled._finish()
    assert len(load_events(tmp_path / "events.npz")) == 0
    monkeypatch.setattr(agent, "TURN_LIMIT_S", 30.0)
    hook.go_on.set()
    scheduled._finish()
    assert hook.at_once == 1
    assert len(load_events(tmp_path / "events.npz")) == 2, "that turn's, and what came after it"


def test_the_status_says_how_blocks_were_cut(tmp_path: Path) -> None:
    scheduled = job(policy="p3", status_out=tmp_path / "status.json")
    scheduled._finish()
    status = read_status(tmp_path / "status.json")
    assert (status.policy, status.plans, status.hook, status.network) == ("p3", 0, None, None)
    assert status.cut == Cut.uniform(status.partition_bytes).segments
    assert (status.recuts, status.last_recut_s, status.recut_reason) == (0, None, "")
    board = scheduled._board = CutBoard(None)
    board.taken_up(0, Cut.uniform(4096))
    board.want(Cut.uniform(8192), Reason("a faster network", 0.75))
    board.taken_up(0, Cut.uniform(8192))
    scheduled._finish()
    status = read_status(tmp_path / "status.json")
    assert status.cut == (Segment(0, 8192),)
    assert (status.recuts, status.recut_reason, status.recut_predicted_s) == (1, "a faster network", 0.75)
    assert status.refused == ()
    board.refuse(Refusal(Cut.uniform(4096), "no names"))
    scheduled._finish()
    assert read_status(tmp_path / "status.json").refused == ("blocks of 4 KiB cannot be used: no names",)


def test_a_worker_says_what_it_does_with_a_hook_and_without(
    clock: list[float], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(training, "_log", None)
    monkeypatch.setenv("DMLC_WORKER_ID", "3")
    hook = Hook()
    for number, hooked in enumerate((hook, None)):
        folder = tmp_path / str(number)
        scheduled: Any = job(hooked, "p3", "mxnet", record=folder)
        scheduled._attach = lambda: None
        hook.state.pending = 0
        hook.events = transfers([1000, 2000], bandwidth=1e6, overhead_s=0.0, began=clock[0])
        scheduled.step_aside("no hook") if hooked is None else None
        scheduled._reports._status = lambda scheduled=scheduled: AgentStatus("p3", scheduled._aside, 0, 0.0, 4096, 1)
        scheduled._begin()
        clock[0] += 1.0
        scheduled._turn()
        assert scheduled._reports.observer.status().worker.rank == 3
        hook.events = hook.events[:0]
        scheduled._hook = None
        scheduled._finish()
        (chapter,) = story_of(folder).chapters
        assert chapter.name == "worker 3" and not chapter.all_reduce
        assert chapter.notes == ([] if hooked else ["Prophet stepped aside: no hook"])


@pytest.mark.parametrize(
    ("told", "place", "decider"),
    [
        ("", (0, None, 0), True),
        ("2 4", (2, 4, 0), False),
        ("0 2 0 1", (0, 2, 0), True),
        ("0 2 0 8", (0, 16, 0), False),
        ("0 2 7 8", (7, 16, 7), True),
        ("1 2 3 8", (11, 16, 3), False),
        ("1 2 7 8", (15, 16, 7), False),
    ],
)
def test_the_environment_gives_the_rank_and_the_decider(
    told: str, place: tuple[int, int | None, int], decider: bool
) -> None:
    """The process that talks to the servers decides."""
    names = ("DMLC_WORKER_ID", "DMLC_NUM_WORKER", "BYTEPS_LOCAL_RANK", "BYTEPS_LOCAL_SIZE")
    environ = dict(zip(names, told.split(), strict=False))
    assert (place_of(environ), decides(environ)) == (place, decider)


def test_the_shape_of_a_job_is_what_byteps_was_told() -> None:
    assert shape_of({"DMLC_NUM_WORKER": "4", "DMLC_NUM_SERVER": "2"}) == Shape(4, 2)
    assert shape_of({"DMLC_NUM_WORKER": "4"}) is None
    assert shape_of({"DMLC_NUM_WORKER": "4", "DMLC_NUM_SERVER": "0"}) is None


def test_the_next_start_of_a_job_is_planned_at_its_first_turn(clock: list[float], tmp_path: Path) -> None:
    rows = [
        row
        for second in range(60)
        for row in iteration(1000.0 + second / 4, {3 - n: 0.01 * n for n in range(4)}, size=131072)
    ]
    generated = events(rows)
    sent = transfers([131072, 30000, 65536, 4000] * 40, bandwidth=50e6, overhead_s=0.0005, began=1005.0)
    stream = np.concatenate([generated, sent])
    stream = stream[np.argsort(stream["time_s"], kind="stable")]
    taken: list[list[Plan]] = []
    sizes = [1 << 20] * 4
    for _ in range(2):
        hook = Hook()
        scheduled = job(hook, "prophet", cache=tmp_path / "cache", status_out=tmp_path / "status.json")
        plans: list[Plan] = []
        scheduled._take_up = lambda hook, plan, plans=plans: plans.append(plan)  # type: ignore[method-assign, misc]
        first = scheduled._board.first_cut(sizes)
        scheduled._begin()
        scheduled._turn()
        taken.append(list(plans))
        hook.events = stream
        scheduled._turn()
        hook.events = hook.events[:0]
        scheduled._board.taken_up(0, Cut.uniform(1 << 19))
        scheduled._hook = None  # Nothing is recorded, and a status has none.
        scheduled._finish()
    assert taken[0] == []
    assert [plan.network is not None for plan in taken[1]] == [True]
    assert first == Cut.uniform(1 << 19)
    assert read_status(tmp_path / "status.json").began_warm


def test_a_profile_that_cannot_be_read_ends_the_start_with_a_line(tmp_path: Path) -> None:
    environ = {"BYTEPS_SCHEDULER": "prophet", "PROPHET_PROFILE_IN": str(tmp_path / "none.json")}
    with pytest.raises(UserError, match=r"none\.json: no such profile file"):
        Agent.prepare("torch", environ)
