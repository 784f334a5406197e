"""A plan as bytes: what the native part takes, what it refuses, and that both sides know the same layout."""

from __future__ import annotations

import struct

import numpy as np
import pytest

from prophet_scheduler.core import _native, plan_codec
from prophet_scheduler.core.events import QueueKind
from prophet_scheduler.core.network import Network
from prophet_scheduler.core.plan import Deadline, Plan, QueuePlan
from prophet_scheduler.core.plan_codec import HEADER, encode_plan
from support.lanes import TwoLaneQueue

PLAN = Plan(
    push=QueuePlan(order={0: 0, 1: 1}, credit=100, deadlines=(Deadline(1.0, 0),), groups={0: 3, 1: 3}),
    pull=QueuePlan(order={1: 0}),
    generation_s={0: 1.0, 1: 0.0},
    size_bytes={0: 10, 1: 20},
    network=Network(1e6, 1e-3),
    deadline_slack_s=0.25,
)


def test_both_sides_know_the_same_version() -> None:
    assert plan_codec.VERSION == _native.PLAN_VERSION


def test_the_bytes_of_a_plan() -> None:
    """By hand, so that a change of the layout is a change of this test (and asks for another version)."""
    lanes = struct.pack("<QIIII", 100, 1, 2, 1, 0) + struct.pack("<QIIII", 2**64 - 1, 1, 2, 0, 0)
    pushes = struct.pack("<dQIiiI", 1.0, 10, 0, 0, 3, 0) + struct.pack("<dQIiiI", 0.0, 20, 1, 1, 3, 0)
    deadline = struct.pack("<diI", 1.0, 0, 0)
    pulls = struct.pack("<dQIiiI", 1.0, 10, 0, 0, -1, 0) + struct.pack("<dQIiiI", 0.0, 20, 1, 0, -1, 0)
    body = lanes + pushes + deadline + pulls
    size = 48 + len(body)
    header = b"PRPHPLAN" + struct.pack("<IIQddd", 1, 0, size, 1e6, 1e-3, 0.25)
    assert encode_plan(PLAN) == header + body


def test_a_queue_takes_a_plan_and_its_bytes_alike() -> None:
    decisions = []
    for plan in (PLAN, encode_plan(PLAN)):
        queue = TwoLaneQueue()
        queue.set_plan(plan)
        queue.add(QueueKind.PUSH, 0, 1, 20, 0.0)
        before = queue.get(QueueKind.PUSH, 0.0)
        queue.add(QueueKind.PUSH, 1, 0, 10, 1.0)
        queue.add(QueueKind.PULL, 7, 0, 10, 1.0)
        queue.add(QueueKind.PULL, 8, 1, 10, 1.0)
        lanes = (QueueKind.PULL, QueueKind.PULL, QueueKind.PULL, QueueKind.PUSH, QueueKind.PUSH)
        decisions.append((before, [queue.get(kind, 1.0)[0] for kind in lanes]))
    assert decisions[0] == decisions[1] == ((None, 1.0), [7, 8, None, 0, 1])


def changed(plan: bytes, field: str, value: object) -> bytes:
    header = np.frombuffer(plan[: HEADER.itemsize], HEADER).copy()
    header[field] = value
    return header.tobytes() + plan[HEADER.itemsize :]


ENCODED = encode_plan(PLAN)
REFUSED = {
    "the plan is cut short": b"",
    "these bytes are not a plan": changed(ENCODED, "magic", b"NOTAPLAN"),
    "the plan has version 99, and version 1 is known here": changed(ENCODED, "version", 99),
    f"the plan says that it has {len(ENCODED)} bytes, and has {len(ENCODED) - 1}": ENCODED[:-1],
    f"the plan says that it has {len(ENCODED)} bytes, and has {len(ENCODED) + 1}": ENCODED + b"\0",
    "the plan has more bytes than its parts take": changed(ENCODED + bytes(16), "bytes", len(ENCODED) + 16),
}


@pytest.mark.parametrize("line", REFUSED)
def test_what_is_not_a_plan_of_this_version_is_refused_with_a_line(line: str) -> None:
    queue = TwoLaneQueue()
    queue.set_plan(Plan(push=QueuePlan(order={})))
    with pytest.raises(ValueError, match=f"^{line}$"):
        queue.set_plan(REFUSED[line])
    for task, gradient in enumerate([2, 1]):
        queue.add(QueueKind.PUSH, task, gradient, 10, 0.0)
    assert queue.get(QueueKind.PUSH, 0.0)[0] == 1, "the plan before stays"


def test_a_plan_cut_short_within_its_parts_is_refused() -> None:
    for size in range(HEADER.itemsize, len(ENCODED)):
        with pytest.raises(ValueError, match="cut short"):
            TwoLaneQueue().set_plan(changed(ENCODED[:size], "bytes", size))
