"""The native hook against a stand-in for BytePS's core, each case in a process of its own."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from prophet_byteps import hook
from prophet_byteps.hook import HookError, inspect_library

FAKE_CORE = Path(__file__).parents[2] / "native" / "fake_core.cc"
PUSH, PULL = 6, 7


OLD_STRINGS = "-D_GLIBCXX_USE_CXX11_ABI=0"


def build_core(folder: Path, *macros: str) -> Path:
    library = folder / "core.so"
    # Calls must go through the procedure linkage table, as they do between BytePS's files.
    command = [
        "g++",
        "-std=c++17",
        "-O1",
        "-fPIC",
        "-fno-inline",
        *macros,
        "-shared",
        str(FAKE_CORE),
        "-o",
        str(library),
    ]
    subprocess.run(command, check=True)
    return library


@pytest.fixture(scope="session", params=["", OLD_STRINGS], ids=["new-strings", "old-strings"])
def core(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With the task layout of BytePS's PyTorch part, and with that of its MXNet part."""
    return build_core(tmp_path_factory.mktemp("core"), *filter(None, [request.param]))


@pytest.fixture(scope="session")
def other_core(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_core(tmp_path_factory.mktemp("other"), OLD_STRINGS, "-DCORE_LAST_FIRST")


PRELUDE = """
import ctypes, sys
from pathlib import Path
from prophet.core.events import *
from prophet.core.network import *
from prophet.core.plan import *
from prophet.core.profile import *
from prophet_byteps.hook import Hook, inspect_library
library = inspect_library(Path(sys.argv[1]))
hook = Hook.load()
core = ctypes.CDLL(sys.argv[1])
core.core_get.restype = ctypes.c_int64
core.core_add_push.argtypes = [ctypes.c_uint64, ctypes.c_int, ctypes.c_uint, ctypes.c_int]
core.core_not_ready.argtypes = [ctypes.c_uint64]
core.core_add.argtypes = [ctypes.c_int, ctypes.c_uint64, ctypes.c_int]
core.core_add_barrier.argtypes = [ctypes.c_uint64]
core.core_asked.restype = ctypes.c_long
hook.attach(library, 1e6)   # no watchdog, however slow the machine
core.core_start()
PUSH, PULL = 6, 7
REDUCE, COPY, BROADCAST = 1, 2, 11
def key(gradient, partition=0): return gradient << 16 | partition
def add(gradient, partition=0, priority=0, size=100, stages=1):
    core.core_add_push(key(gradient, partition), priority, size, stages)
def drain(stage):
    got = []
    while (k := core.core_get(stage)) >= 0: got.append(k >> 16)
    return got
"""


def run(core: Path, body: str, *more: Path) -> None:
    script = PRELUDE + textwrap.dedent(body)
    done = subprocess.run(
        [sys.executable, "-P", "-c", script, str(core), *map(str, more)], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr


def test_without_a_plan_tasks_go_in_order_of_arrival(core: Path) -> None:
    run(
        core,
        """
        for gradient in (3, 1, 2): add(gradient)
        assert drain(PUSH) == [3, 1, 2]
        assert hook.status().tasks == 3
        """,
    )


def test_a_plan_orders_pushes_and_pulls_and_credit_comes_back_with_the_acknowledgement(core: Path) -> None:
    run(
        core,
        """
        hook.set_plan(Plan(push=QueuePlan(order={}, credit=100), pull=QueuePlan(order={})))
        for gradient in (3, 1, 2): add(gradient)
        assert drain(PUSH) == [1]
        core.core_finish(PUSH)
        assert drain(PUSH) == [2]
        core.core_finish(PUSH)
        assert drain(PULL) == [1, 2]
        kinds = [(int(e["queue"]), int(e["kind"]), int(e["gradient"])) for e in hook.drain()]
        push, pull = int(QueueKind.PUSH), int(QueueKind.PULL)
        assert (push, int(EventKind.FINISH), 1) in kinds
        assert kinds.index((push, int(EventKind.FINISH), 1)) < kinds.index((pull, int(EventKind.ADD), 1))
        """,
    )


def test_on_a_busy_wire_the_request_for_a_pull_goes_before_the_next_push(core: Path) -> None:
    run(
        core,
        """
        hook.set_plan(Plan(push=QueuePlan(order={}, credit=200), network=Network(1e3)))
        for gradient in (1, 2, 3, 4): add(gradient)
        def next_push():
            while (k := core.core_get(PUSH)) < 0: pass
            return k >> 16
        def started_after_finish():
            rows = [e for e in hook.drain() if e["queue"] == QueueKind.PUSH]
            times = {int(e["kind"]): float(e["time_s"]) for e in rows if e["kind"] != EventKind.ADD}
            return times[EventKind.START] - times[EventKind.FINISH]
        assert [next_push(), next_push()] == [1, 2]
        hook.drain()
        core.core_finish(PUSH)
        assert core.core_get(PULL) >> 16 == 2   # on its way, as far as the hook can tell, until that loop comes back
        assert next_push() == 3
        assert started_after_finish() >= 1e-3, "it waited for that loop, and no longer than the limit"
        core.core_finish(PUSH)
        assert drain(PULL) == [3]
        assert next_push() == 4
        """,
    )


def test_a_gradient_is_told_by_its_priority_where_the_front_end_passes_one(core: Path) -> None:
    run(
        core,
        """
        hook.set_identity("priority")
        hook.set_plan(Plan(push=QueuePlan(order={})))
        add(7, priority=-3)   # gradient 2
        add(8, priority=-1)   # gradient 0
        add(9)                # a broadcast: somebody waits for it now
        assert drain(PUSH) == [9, 8, 7]
        added = [int(e["gradient"]) for e in hook.drain() if e["kind"] == EventKind.ADD]
        assert added == [2, 0, 9 | UNPROFILED_GRADIENT]
        """,
    )


def test_a_task_that_other_gpus_have_not_finished_lets_the_next_one_go(core: Path) -> None:
    run(
        core,
        """
        hook.set_plan(Plan(push=QueuePlan(order={})))
        core.core_not_ready(key(1))
        add(1); add(2)
        assert drain(PUSH) == [2]
        core.core_ready()
        assert drain(PUSH) == [1]
        """,
    )


def test_a_task_that_comes_while_a_loop_waits_is_handed_out_at_once(core: Path) -> None:
    """With no task, BytePS's loop would sleep before it asks again."""
    run(
        core,
        """
        core.core_add(COPY, 5, 1)
        assert core.core_get(COPY) == 5
        core.core_add(REDUCE, 6, 1)
        assert core.core_get(REDUCE) == 6
        """,
    )


def test_one_round_of_reduce_and_broadcast_finds_the_tasks_of_both(core: Path) -> None:
    run(
        core,
        """
        def one_round(): return [core.core_get(stage) for stage in (REDUCE, REDUCE, BROADCAST)]
        core.core_add(BROADCAST, 7, 0)
        assert one_round() == [-1, -1, 7]
        core.core_add(REDUCE, 8, 0)
        core.core_add(BROADCAST, 9, 0)
        assert one_round() == [8, -1, 9]
        assert one_round() == [-1, -1, -1]
        core.core_add(BROADCAST, 10, 1)   # when the next round is about to begin
        assert one_round() == [-1, -1, 10]
        """,
    )


def test_where_no_pull_follows_a_push_is_finished_when_it_comes_to_the_next_stage(core: Path) -> None:
    """On one machine with several PCIe switches PUSH is a barrier, and COPYH2D comes after it."""
    run(
        core,
        """
        hook.set_plan(Plan(push=QueuePlan(order={}, credit=100), pull=QueuePlan(order={})))
        for gradient in (3, 1, 2): core.core_add_barrier(key(gradient))
        for gradient in (1, 2, 3):
            assert drain(PUSH) == [gradient], "its credit has come back"
            core.core_finish(PUSH)
        assert hook.status().in_flight_bytes == 0
        finished = [int(e["gradient"]) for e in hook.drain() if e["kind"] == EventKind.FINISH]
        assert finished == [1, 2, 3]
        """,
    )


def test_neither_direction_has_more_in_flight_than_the_engine_bears(core: Path) -> None:
    run(
        core,
        """
        def get_all(stage):
            while core.core_get(stage) >= 0: pass
        for plan in (None, Plan(push=QueuePlan(), pull=QueuePlan())):
            core.core_stop(); core.core_start()
            if plan: hook.set_plan(plan)
            for gradient in range(600): add(gradient)
            get_all(PUSH)
            assert hook.status().pushes.in_flight == 255, "arrival order, credit without limit: all but one place"
            core.core_finish(PUSH)
            assert core.core_get(PUSH) >= 0
            assert hook.status().pushes.in_flight == 255
        core.core_stop(); core.core_start()
        hook.set_plan(Plan(push=QueuePlan(order={}), pull=QueuePlan(order={})))
        for gradient in range(600):
            add(gradient)
            assert core.core_get(PUSH) >= 0
            core.core_finish(PUSH)
        get_all(PULL)
        assert hook.status().pulls.in_flight == 128, "half of the places are for the most urgent ones"
        assert hook.status().pulls.waiting == 600 - 128
        """,
    )


def test_pulls_that_are_stuck_leave_a_place_for_each_more_urgent_one(core: Path) -> None:
    """Backward hands the least urgent over first, and none is answered until the other workers have pushed it."""
    run(
        core,
        """
        hook.set_plan(Plan(push=QueuePlan(order={}), pull=QueuePlan(order={})))
        def pull(gradient):
            add(gradient)
            assert core.core_get(PUSH) >= 0
            core.core_finish(PUSH)
            return core.core_get(PULL) >> 16
        for gradient in range(299, 171, -1): assert pull(gradient) == gradient
        assert pull(171) == -1, "half of the places are taken, and the others are for more urgent ones"
        for gradient in range(126, -1, -1): assert pull(gradient) == gradient
        assert hook.status().pulls.in_flight == 255, "and one left for what somebody waits for right now"
        """,
    )


def test_what_a_suspended_engine_had_is_forgotten_when_it_resumes(core: Path) -> None:
    run(
        core,
        """
        hook.set_plan(Plan(push=QueuePlan(order={}, credit=100), pull=QueuePlan(order={})))
        for gradient in (3, 1, 2): add(gradient)
        assert core.core_get(PUSH) >> 16 == 1
        assert core.core_alive() == 3
        core.core_stop()
        core.core_lose(PUSH)
        core.core_start()
        assert core.core_alive() == 0, "nothing keeps a tensor of the engine that is gone"
        status = hook.status()
        assert status.active and status.pending == 0 and status.in_flight_bytes == 0
        assert core.core_get(PUSH) == -1
        for gradient in (5, 4): add(gradient)
        assert drain(PUSH) == [4], "the plan and its credit are as before"
        gaps = [int(e["gradient"]) for e in hook.drain() if e["gap"]]
        assert gaps == [5], "what was open before is unknown from here"
        """,
    )


def test_reset_forgets_what_waits_and_what_is_in_flight(core: Path) -> None:
    run(
        core,
        """
        hook.reset()
        hook.set_plan(Plan(push=QueuePlan(order={}, credit=200), pull=QueuePlan(order={})))
        core.core_not_ready(key(4))
        for gradient in (4, 3, 1, 2): add(gradient)
        assert drain(PUSH) == [1, 2]
        hook.reset()
        hook.reset()
        assert core.core_alive() == 1, "only the one that the core has sent"
        core.core_ready()
        assert core.core_get(PUSH) == -1
        core.core_finish(PUSH)   # a late answer: this was none of its pushes
        kinds = [int(e["kind"]) for e in hook.drain() if e["queue"] == QueueKind.PUSH]
        assert EventKind.FINISH not in kinds
        assert drain(PULL) == [2]
        """,
    )


def test_calls_that_come_when_the_queues_are_gone_do_nothing(core: Path) -> None:
    run(
        core,
        """
        hook.set_plan(Plan(push=QueuePlan(order={}), pull=QueuePlan(order={})))
        for gradient in (3, 1, 2): add(gradient)
        assert core.core_get(PUSH) >> 16 == 1
        core.core_stop()
        core.core_finish(PUSH)   # an answer that comes late
        add(7)
        for stage in (REDUCE, COPY, PUSH, PULL, BROADCAST): assert core.core_get(stage) == -1
        hook.step_aside("a test")
        assert core.core_alive() == 0
        assert not hook.status().active
        """,
    )


def test_status_says_which_gradient_waits_for_whom(core: Path) -> None:
    run(
        core,
        """
        status = hook.status()
        assert status.still_s is None and status.pushes.oldest_gradient is None
        hook.set_plan(Plan(push=QueuePlan(order={}, credit=200), pull=QueuePlan(order={})))
        for gradient in (3, 1, 2): add(gradient)
        assert drain(PUSH) == [1, 2]
        core.core_finish(PUSH)   # 2
        assert drain(PULL) == [2]
        status = hook.status()
        assert (status.pushes.waiting, status.pushes.in_flight, status.pushes.oldest_gradient) == (1, 1, 1)
        assert (status.pulls.waiting, status.pulls.in_flight, status.pulls.oldest_gradient) == (0, 1, 2)
        assert status.pushes.oldest_s >= status.pulls.oldest_s >= status.still_s >= 0
        assert drain(PUSH) == [3]
        core.core_finish(PULL)
        status = hook.status()
        assert status.pulls.oldest_gradient is None and status.pulls.oldest_s is None
        assert status.pushes.in_flight == 2
        """,
    )


def test_as_many_events_as_come_between_two_drains_are_kept(core: Path) -> None:
    run(
        core,
        """
        core.core_transfer(30_000)
        events = hook.drain()
        assert len(events) == 180_000
        assert hook.status().events_dropped == 0
        assert not events["gap"].any()
        assert len(hook.drain()) == 0
        """,
    )


def test_where_events_are_dropped_the_first_one_left_says_so(core: Path) -> None:
    run(
        core,
        """
        core.core_transfer(180_000)
        events = hook.drain()
        assert len(events) == 1 << 20
        lost = 6 * 180_000 - (1 << 20)
        assert hook.status().events_dropped == lost
        assert events["gap"].tolist() == [lost] + [0] * (len(events) - 1)
        core.core_transfer(1)
        assert not hook.drain()["gap"].any()
        """,
    )


def test_many_tasks_that_are_not_ready_cost_little(core: Path) -> None:
    run(
        core,
        """
        hook.set_plan(Plan(push=QueuePlan(order={})))
        for gradient in range(5000):
            core.core_not_ready(key(gradient))
            add(gradient)
        before = core.core_asked()
        assert [core.core_get(PUSH) for _ in range(10)] == [-1] * 10
        assert core.core_asked() - before <= 2 * 10 * 256, "a few at a time: each call looks twice at most"
        core.core_ready()
        got = set()
        while len(got) < 5000:
            k = core.core_get(PUSH)
            if k >= 0:
                got.add(k >> 16)
                core.core_finish(PUSH)
        """,
    )


def test_after_stepping_aside_a_loop_does_not_sleep_over_what_the_engine_has(core: Path) -> None:
    """The engine's own PUSH waits for other GPUs without a signal: it is asked whether something waits there."""
    run(
        core,
        """
        hook.step_aside("a test")
        core.core_add(PUSH, key(5), 1)   # when it is asked that
        assert core.core_get(PUSH) >> 16 == 5
        """,
    )


def test_a_task_that_does_not_look_sane_makes_it_step_aside(core: Path) -> None:
    run(
        core,
        """
        hook.set_plan(Plan(push=QueuePlan(order={})))
        add(3); add(1)
        add(2, stages=0)
        status = hook.status()
        assert not status.active
        assert status.why_aside == "an impossible list of stages"
        assert drain(PUSH) == [3, 1, 2], "in order of arrival, and nothing lost"
        """,
    )


def test_stepping_aside_hands_everything_back_in_order_of_arrival(core: Path) -> None:
    run(
        core,
        """
        hook.set_plan(Plan(push=QueuePlan(order={})))
        for gradient in (3, 1, 2): add(gradient)
        hook.step_aside("a test")
        hook.step_aside("again")
        assert drain(PUSH) == [3, 1, 2]
        assert hook.status().why_aside == "a test"
        """,
    )


def test_another_byteps_in_the_process_keeps_its_own_functions(core: Path, other_core: Path) -> None:
    run(
        core,
        """
        from prophet_byteps.hook import open_apart
        hook.set_plan(Plan(push=QueuePlan(order={}), pull=QueuePlan(order={})))
        other = open_apart(Path(sys.argv[2]))
        other.core_start()
        other.core_get.restype = ctypes.c_int64
        other.core_add_push.argtypes = core.core_add_push.argtypes
        for gradient in (3, 1, 2):
            other.core_add_push(key(gradient), 0, 100, 1)
            add(gradient)
        got = [other.core_get(PUSH) >> 16 for _ in range(3)]
        assert got == [2, 1, 3], "its own order: the last first"
        assert drain(PUSH) == [1, 2, 3]
        assert hook.status().tasks == 3
        """,
        other_core,
    )


def test_the_layout_is_told_by_the_library(core: Path, request: pytest.FixtureRequest) -> None:
    assert inspect_library(core).old_string_abi == ("old-strings" in request.node.name)


def test_a_library_without_what_the_hook_takes_over_is_refused(tmp_path: Path, core: Path) -> None:
    other = tmp_path / "c_lib.so"
    other.write_bytes(core.read_bytes().replace(b"12DequeueGroupEv", b"12DequeueWronglyv"[:16]))
    with pytest.raises(HookError, match="DequeueGroup"):
        inspect_library(other)


def test_an_unknown_release_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hook.importlib.metadata, "version", lambda name: "0.9")
    with pytest.raises(HookError, match=r"BytePS 0\.9 is unknown to this Prophet"):
        hook.find_library("torch")


def test_no_byteps_is_said_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> str:
        raise hook.importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(hook.importlib.metadata, "version", absent)
    assert hook.check_compatibility() == (False, "no BytePS is installed in this Python")
