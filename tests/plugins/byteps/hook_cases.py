"""Cases of the native hook that test_hook.py runs, each in a process of its own (hook_core.py)."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from plugins.byteps.hook_core import (
    BROADCAST,
    COPY,
    PULL,
    PUSH,
    REDUCE,
    WITH_ANOTHER_NAME,
    WITHOUT_STAGES,
    Core,
    case,
    key,
    main,
)
from prophet_byteps.hook import PULL_ONLY, PUSH_ONLY, Hook
from prophet_scheduler.core.events import UNPROFILED_GRADIENT, EventKind, QueueKind
from prophet_scheduler.core.network import Network
from prophet_scheduler.core.plan import Plan, QueuePlan

BY_PRIORITY = Plan(push=QueuePlan(order={}), pull=QueuePlan(order={}))


def in_order(credit: int) -> Plan:
    return Plan(push=QueuePlan(order={}, credit=credit), pull=QueuePlan(order={}))


@case
def without_a_plan_tasks_go_in_order_of_arrival(hook: Hook, core: Core) -> None:
    core.add(3, 1, 2)
    assert core.drain(PUSH) == [3, 1, 2]
    assert hook.status().tasks == 3


@case
def a_plan_orders_pushes_and_pulls_and_credit_comes_back_with_the_acknowledgement(hook: Hook, core: Core) -> None:
    hook.set_plan(in_order(100))
    core.add(3, 1, 2)
    assert core.drain(PUSH) == [1]
    core.finish(PUSH)
    assert core.drain(PUSH) == [2]
    core.finish(PUSH)
    assert core.drain(PULL) == [1, 2]
    kinds = [(int(e["queue"]), int(e["kind"]), int(e["gradient"])) for e in hook.drain()]
    push, pull = int(QueueKind.PUSH), int(QueueKind.PULL)
    assert (push, int(EventKind.FINISH), 1) in kinds
    assert kinds.index((push, int(EventKind.FINISH), 1)) < kinds.index((pull, int(EventKind.ADD), 1))


@case
def on_a_busy_wire_the_request_for_a_pull_goes_before_the_next_push(hook: Hook, core: Core) -> None:
    hook.set_plan(Plan(push=QueuePlan(order={}, credit=200), network=Network(1e3)))
    core.add(1, 2, 3, 4)

    def next_push() -> int:
        while (task := core.get(PUSH)) < 0:
            pass
        return task >> 16

    def started_after_finish() -> float:
        rows = [e for e in hook.drain() if e["queue"] == QueueKind.PUSH]
        times = {int(e["kind"]): float(e["time_s"]) for e in rows if e["kind"] != EventKind.ADD}
        return times[EventKind.START] - times[EventKind.FINISH]

    assert [next_push(), next_push()] == [1, 2]
    hook.drain()
    core.finish(PUSH)
    assert core.gradient(PULL) == 2  # on its way, as far as the hook can tell, until that loop comes back
    assert next_push() == 3
    assert started_after_finish() >= 1e-3, "it waited for that loop, and no longer than the limit"
    core.finish(PUSH)
    assert core.drain(PULL) == [3]
    assert next_push() == 4


@case
def a_gradient_is_told_by_its_priority_where_the_front_end_passes_one(hook: Hook, core: Core) -> None:
    hook.set_plan(BY_PRIORITY)
    core.add(7, priority=-3)  # gradient 2
    core.add(8, priority=-1)  # gradient 0
    core.add(9, priority=0)  # a broadcast: somebody waits for it now
    assert core.drain(PUSH) == [9, 8, 7]
    added = [int(e["gradient"]) for e in hook.drain() if e["kind"] == EventKind.ADD]
    assert added == [2, 0, 9 | UNPROFILED_GRADIENT]


@case
def a_one_way_task_passes_the_other_stage_in_its_turn(hook: Hook, core: Core) -> None:
    core.add(4, priority=PULL_ONLY)
    assert core.gradient(PUSH) == 4, "a program may pass any priority"
    core.finish(PUSH)
    assert core.gradient(PULL) == 4
    core.finish(PULL)
    assert core.get(9) >> 16 == 4
    assert hook.go_one_way()
    core.add(5, priority=PULL_ONLY)
    assert core.get(PUSH) < 0
    assert core.gradient(PULL) == 5
    core.finish(PULL)
    core.add(6, priority=PUSH_ONLY)
    assert core.gradient(PUSH) == 6
    core.finish(PUSH)
    assert core.get(PULL) < 0
    assert core.get(9) >> 16 == 5 and core.get(9) >> 16 == 6, "both are on to COPYH2D"
    status = hook.status()
    assert (status.pending, status.in_flight_bytes) == (0, 0), "a stage that is passed is finished as well"
    hook.step_aside("for good")
    core.add(7, priority=PULL_ONLY)
    assert core.gradient(PUSH) == 7, "from then on all go both ways"


@case
def a_task_that_other_gpus_have_not_finished_lets_the_next_one_go(hook: Hook, core: Core) -> None:
    hook.set_plan(BY_PRIORITY)
    core.not_ready(1)
    core.add(1, 2)
    assert core.drain(PUSH) == [2]
    core.ready()
    assert core.drain(PUSH) == [1]


@case
def a_task_that_comes_while_a_loop_waits_is_handed_out_at_once(hook: Hook, core: Core) -> None:
    """With no task, BytePS's loop would sleep before it asks again."""
    core.add_at(COPY, 5, later=True)
    assert core.get(COPY) == 5
    core.add_at(REDUCE, 6, later=True)
    assert core.get(REDUCE) == 6


@case
def one_round_of_reduce_and_broadcast_finds_the_tasks_of_both(hook: Hook, core: Core) -> None:
    def one_round() -> list[int]:
        return [core.get(stage) for stage in (REDUCE, REDUCE, BROADCAST)]

    core.add_at(BROADCAST, 7)
    assert one_round() == [-1, -1, 7]
    core.add_at(REDUCE, 8)
    core.add_at(BROADCAST, 9)
    assert one_round() == [8, -1, 9]
    assert one_round() == [-1, -1, -1]
    core.add_at(BROADCAST, 10, later=True)  # when the next round is about to begin
    assert one_round() == [-1, -1, 10]


@case
def a_push_without_a_pull_finishes_at_the_next_stage(hook: Hook, core: Core) -> None:
    """On one machine with several PCIe switches PUSH is a barrier, and COPYH2D comes after it."""
    hook.set_plan(in_order(100))
    for gradient in (3, 1, 2):
        core.add_barrier(gradient)
    for gradient in (1, 2, 3):
        assert core.drain(PUSH) == [gradient], "its credit has come back"
        core.finish(PUSH)
    assert hook.status().in_flight_bytes == 0
    finished = [int(e["gradient"]) for e in hook.drain() if e["kind"] == EventKind.FINISH]
    assert finished == [1, 2, 3]


@case
def neither_direction_has_more_in_flight_than_the_engine_bears(hook: Hook, core: Core) -> None:
    for plan in (None, Plan(push=QueuePlan(), pull=QueuePlan())):
        core.stop()
        core.start()
        if plan is not None:
            hook.set_plan(plan)
        core.add(*range(600))
        core.drain(PUSH)
        assert hook.status().pushes.in_flight == 255, "arrival order, credit without limit: all but one place"
        core.finish(PUSH)
        assert core.get(PUSH) >= 0
        assert hook.status().pushes.in_flight == 255
    core.stop()
    core.start()
    hook.set_plan(BY_PRIORITY)
    for gradient in range(600):
        core.add(gradient)
        assert core.get(PUSH) >= 0
        core.finish(PUSH)
    core.drain(PULL)
    assert hook.status().pulls.in_flight == 128, "half of the places are for the most urgent ones"
    assert hook.status().pulls.waiting == 600 - 128


@case
def pulls_that_are_stuck_leave_a_place_for_each_more_urgent_one(hook: Hook, core: Core) -> None:
    """Backward hands over the least urgent first, and none is answered until the other workers have pushed it."""
    hook.set_plan(BY_PRIORITY)

    def pull(gradient: int) -> int:
        core.add(gradient)
        assert core.get(PUSH) >= 0
        core.finish(PUSH)
        return core.gradient(PULL)

    for gradient in range(299, 171, -1):
        assert pull(gradient) == gradient
    assert pull(171) == -1, "half of the places are taken, and the others are for more urgent ones"
    for gradient in range(126, -1, -1):
        assert pull(gradient) == gradient
    assert hook.status().pulls.in_flight == 255, "and one left for what somebody waits for right now"


@case
def tasks_of_a_suspended_engine_are_forgotten_when_it_resumes(hook: Hook, core: Core) -> None:
    hook.set_plan(in_order(100))
    core.add(3, 1, 2)
    assert core.gradient(PUSH) == 1
    assert core.alive() == 3
    core.stop()
    core.lose(PUSH)
    core.start()
    assert core.alive() == 0, "nothing keeps a tensor of the engine that is gone"
    status = hook.status()
    assert status.active and status.pending == 0 and status.in_flight_bytes == 0
    assert core.get(PUSH) == -1
    core.add(5, 4)
    assert core.drain(PUSH) == [4], "the plan and its credit are as before"
    gaps = [int(e["gradient"]) for e in hook.drain() if e["gap"]]
    assert gaps == [5], "what was open before is unknown from here"


@case
def reset_forgets_what_waits_and_what_is_in_flight(hook: Hook, core: Core) -> None:
    hook.reset()
    hook.set_plan(in_order(200))
    core.not_ready(4)
    core.add(4, 3, 1, 2)
    assert core.drain(PUSH) == [1, 2]
    hook.reset()
    hook.reset()
    assert core.alive() == 1, "only the one that the core has sent"
    core.ready()
    assert core.get(PUSH) == -1
    core.finish(PUSH)  # a late answer: this was none of its pushes
    kinds = [int(e["kind"]) for e in hook.drain() if e["queue"] == QueueKind.PUSH]
    assert EventKind.FINISH not in kinds
    assert core.drain(PULL) == [2]


@case
def calls_that_come_when_the_queues_are_gone_do_nothing(hook: Hook, core: Core) -> None:
    hook.set_plan(BY_PRIORITY)
    core.add(3, 1, 2)
    assert core.gradient(PUSH) == 1
    core.stop()
    core.finish(PUSH)  # an answer that comes late
    core.add(7)
    for stage in (REDUCE, COPY, PUSH, PULL, BROADCAST):
        assert core.get(stage) == -1
    hook.step_aside("a test")
    assert core.alive() == 0
    assert not hook.status().active


@case
def status_says_which_gradient_waits_for_whom(hook: Hook, core: Core) -> None:
    status = hook.status()
    assert status.still_s is None and status.pushes.oldest_gradient is None
    hook.set_plan(in_order(200))
    core.add(3, 1, 2)
    assert core.drain(PUSH) == [1, 2]
    core.finish(PUSH)  # 2
    assert core.drain(PULL) == [2]
    status = hook.status()
    pushes, pulls = status.pushes, status.pulls
    assert (pushes.waiting, pushes.in_flight, pushes.oldest_gradient) == (1, 1, 1)
    assert (pulls.waiting, pulls.in_flight, pulls.oldest_gradient) == (0, 1, 2)
    assert pushes.oldest_s is not None and pulls.oldest_s is not None and status.still_s is not None
    assert pushes.oldest_s >= pulls.oldest_s >= status.still_s >= 0
    assert core.drain(PUSH) == [3]
    core.finish(PULL)
    status = hook.status()
    assert status.pulls.oldest_gradient is None and status.pulls.oldest_s is None
    assert status.pushes.in_flight == 2


@case
def events_between_two_drains_are_kept(hook: Hook, core: Core) -> None:
    core.transfer(30_000)
    events = hook.drain()
    assert len(events) == 180_000
    assert hook.status().events_dropped == 0
    assert not events["gap"].any()
    assert len(hook.drain()) == 0


@case
def the_first_event_after_dropped_ones_says_so(hook: Hook, core: Core) -> None:
    core.transfer(180_000)
    events = hook.drain()
    assert len(events) == 1 << 20
    lost = 6 * 180_000 - (1 << 20)
    assert hook.status().events_dropped == lost
    assert events["gap"].tolist() == [lost] + [0] * (len(events) - 1)
    core.transfer(1)
    assert not hook.drain()["gap"].any()


@case
def many_tasks_that_are_not_ready_cost_little(hook: Hook, core: Core) -> None:
    hook.set_plan(BY_PRIORITY)
    for gradient in range(5000):
        core.not_ready(gradient)
        core.add(gradient)
    before = core.asked()
    assert [core.get(PUSH) for _ in range(10)] == [-1] * 10
    assert core.asked() - before <= 2 * 10 * 256, "a few at a time: each call looks twice at most"
    core.ready()
    got: set[int] = set()
    while len(got) < 5000:
        task = core.get(PUSH)
        if task >= 0:
            got.add(task >> 16)
            core.finish(PUSH)


@case
def a_loop_does_not_oversleep_a_task_after_stepping_aside(hook: Hook, core: Core) -> None:
    """The engine's own PUSH waits for other GPUs without a signal: it is asked whether something waits there."""
    hook.step_aside("a test")
    core.add_at(PUSH, key(5), later=True)  # when that is asked
    assert core.gradient(PUSH) == 5


@case
def a_task_that_does_not_look_sane_makes_it_step_aside(hook: Hook, core: Core) -> None:
    hook.set_plan(BY_PRIORITY)
    core.add(3, 1)
    core.add(2, sane=WITHOUT_STAGES)
    status = hook.status()
    assert not status.active
    assert status.why_aside == "an impossible list of stages"
    assert core.drain(PUSH) == [3, 1, 2], "in order of arrival, and nothing lost"


@case
def a_task_with_a_name_that_is_not_its_partitions_makes_it_step_aside(hook: Hook, core: Core) -> None:
    """This happens if a name is kept in another way than the hook expects."""
    hook.set_plan(BY_PRIORITY)
    core.add(3)
    core.add(3, partition=12)
    assert hook.status().active
    core.add(2, sane=WITH_ANOTHER_NAME)
    assert hook.status().why_aside == "a name that is not its partition's"
    assert core.drain(PUSH) == [3, 3, 2]


@case
def stepping_aside_hands_everything_back_in_order_of_arrival(hook: Hook, core: Core) -> None:
    hook.set_plan(BY_PRIORITY)
    core.add(3, 1, 2)
    hook.step_aside("a test")
    hook.step_aside("again")
    assert core.drain(PUSH) == [3, 1, 2]
    assert hook.status().why_aside == "a test"


@case
def a_tensor_has_a_partition_size_of_its_own(hook: Hook, core: Core) -> None:
    assert not hook.sizes_apart
    assert core.push("page", 10) == 1
    assert hook.sizes_apart, "BytePS was seen to look at the number twice"
    assert core.push("before", 3500) == 1
    hook.turn_on_sizes()
    hook.give_size("byteps.own", 1000)
    assert [core.push(name, 3500) for name in ("own", "other", "own", "before")] == [4, 1, 4, 1]
    core.start()
    assert core.push("later", 3500) == 1
    assert core.push("own", 3500) == -1, "BytePS that begins anew knows no tensor, and the hook no size"


@case
def a_first_push_that_waits_for_all_workers_holds_nobody_up(hook: Hook, core: Core) -> None:
    core.push("page", 10)
    hook.turn_on_sizes()
    for name in ("waits", "own"):
        hook.give_size(f"byteps.{name}", 1000)
    with ThreadPoolExecutor(2) as pool:
        waiting = [pool.submit(core.push, "waits", 3500) for _ in range(2)]
        while core.waiting() < 1:
            time.sleep(0.001)
        assert [core.push("own", 3500), core.push("other", 3500)] == [4, 1]
        core.all_have_it()
        assert [each.result() for each in waiting] == [4, 4]


@case
def a_forked_child_waits_for_no_lock_of_its_parents(hook: Hook, core: Core) -> None:
    """FORKS children are forked, at any moment of a parent whose threads are in the hook all the time."""
    hook.set_plan(BY_PRIORITY)
    sys.setswitchinterval(1e-4)
    over = threading.Event()

    def while_it_lasts(call: Callable[[], object]) -> None:
        while not over.is_set():
            call()

    calls = (lambda: core.transfer(100), hook.status, hook.drain, lambda: core.push("own", 100))
    threads = [threading.Thread(target=while_it_lasts, args=(call,)) for call in calls]
    for thread in threads:
        thread.start()
    try:
        for number in range(int(os.environ.get("FORKS", "100"))):
            child = os.fork()
            if child == 0:
                signal.alarm(60)
                active = hook.status().active
                hook.step_aside("a child")
                hook.reset()
                hook.wait_activity(0.0)
                os._exit(int(active or hook.sizes_apart or len(hook.drain()) > 0))
            _, status = os.waitpid(child, 0)
            assert status == 0, f"child {number} ended with {status}"
    finally:
        over.set()
        for thread in threads:
            thread.join()
    assert hook.status().active, "the parent's goes on"


@case
def a_fork_returns_in_a_child_whatever_the_engines_threads_do_with_python(hook: Hook, core: Core) -> None:
    """Forks come at any moment of C++ threads that use Python; in some of them CPython 3.11 by itself hangs."""
    for _ in range(3):
        core.visit_python(1 << 30)
    sys.setswitchinterval(1e-5)
    for number in range(int(os.environ.get("FORKS", "200"))):
        child = os.fork()
        if child == 0:
            os._exit(0)
        ends_at = time.monotonic() + 60
        while os.waitpid(child, os.WNOHANG) == (0, 0):
            time.sleep(0.0005)
            if time.monotonic() > ends_at:
                os.kill(child, signal.SIGKILL)
                print(f"child {number} did not come out of fork()", flush=True)
                os._exit(1)
    print(f"{sys._getframe().f_code.co_name} holds", flush=True)
    os._exit(0)  # The threads go on.


@case
def a_child_that_is_forked_before_byteps_begins_is_scheduled(hook: Hook, core: Core) -> None:
    """This is so if a program imports BytePS and its workers are forks of it."""
    hook.set_plan(BY_PRIORITY)
    child = os.fork()
    if child == 0:
        core.add(3, 1, 2)
        os._exit(int(core.drain(PUSH) != [1, 2, 3] or hook.status().tasks != 3))
    assert os.waitpid(child, 0)[1] == 0
    core.add(3, 1, 2)
    assert core.drain(PUSH) == [1, 2, 3]


@case
def tensors_have_no_sizes_if_the_first_look_is_not_seen(hook: Hook, core: Core) -> None:
    """Run this case on a core that test_hook.py builds for it, and on no other."""
    core.push("page", 10)
    assert not hook.sizes_apart


OF_OTHER_CORES = ("tensors_have_no_sizes_if_the_first_look_is_not_seen",)


if __name__ == "__main__":
    main(*sys.argv[1:3])
