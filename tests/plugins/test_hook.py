"""The native hook against a stand-in for BytePS's core, each case in a process of its own."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from prophet.plugins.byteps import hook
from prophet.plugins.byteps.hook import HookError, inspect_library

FAKE_CORE = Path(__file__).parents[1] / "native" / "fake_core.cc"
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
from prophet.model import *
from prophet.plugins.byteps.hook import Hook, inspect_library
library = inspect_library(Path(sys.argv[1]))
hook = Hook.load()
core = ctypes.CDLL(sys.argv[1])
core.core_get.restype = ctypes.c_int64
core.core_add_push.argtypes = [ctypes.c_uint64, ctypes.c_int, ctypes.c_uint, ctypes.c_int]
core.core_not_ready.argtypes = [ctypes.c_uint64]
core.core_add.argtypes = [ctypes.c_int, ctypes.c_uint64, ctypes.c_int]
hook.attach(library, 1.0)
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
        from prophet.plugins.byteps.hook import open_apart
        hook.set_plan(Plan(push=QueuePlan(order={}), pull=QueuePlan(order={})))
        other = open_apart(Path(sys.argv[2]))
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
