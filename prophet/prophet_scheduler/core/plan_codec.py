"""Encoding of a plan as bytes, the only form that the hook, the queue, the simulator and event records take.

Rule of this file: the layout that core/native/plan_codec.h reads, and how to encode a Plan in it. Units are bytes and
seconds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from prophet_scheduler.core.plan import Plan, QueuePlan

if TYPE_CHECKING:
    from numpy.typing import NDArray

MAGIC = b"PRPHPLAN"
VERSION = 1
"""Version of the layout. The native part accepts no other."""
UNLIMITED = 2**64 - 1
"""Credit of a lane without a limit."""
NO_GROUP = -1
UNKNOWN_S = -1.0
"""Generation time of a gradient whose time is unknown."""

_LANE = np.dtype(
    [("credit", "<u8"), ("ranked", "<u4"), ("gradients", "<u4"), ("deadlines", "<u4"), ("reserved", "<u4")]
)
HEADER = np.dtype(
    [
        ("magic", "S8"),
        ("version", "<u4"),
        ("reserved", "<u4"),
        ("bytes", "<u8"),  # of the whole plan
        ("bandwidth", "<f8"),
        ("overhead_s", "<f8"),
        ("deadline_slack_s", "<f8"),
        ("lanes", _LANE, 2),
    ]
)
_GRADIENT = np.dtype(
    [
        ("generation_s", "<f8"),
        ("bytes", "<u8"),
        ("id", "<u4"),
        ("rank", "<i4"),
        ("group", "<i4"),
        ("reserved", "<u4"),
    ]
)
_DEADLINE = np.dtype([("time_s", "<f8"), ("rank", "<i4"), ("reserved", "<u4")])


def encode_plan(plan: Plan) -> bytes:
    """Return the bytes of both lanes of `plan`."""
    header = np.zeros((), HEADER)
    header["magic"], header["version"] = MAGIC, VERSION
    if plan.network is not None:
        header["bandwidth"], header["overhead_s"] = plan.network.bandwidth, plan.network.overhead_s
    header["deadline_slack_s"] = plan.deadline_slack_s
    parts: list[NDArray[Any]] = []
    for number, half in enumerate((plan.push, plan.pull)):
        gradients, deadlines = _gradients(plan, half), _deadlines(half)
        credit = UNLIMITED if half.credit is None else min(half.credit, UNLIMITED)
        header["lanes"][number] = (credit, half.order is not None, len(gradients), len(deadlines), 0)
        parts += [gradients, deadlines]
    header["bytes"] = HEADER.itemsize + sum(part.nbytes for part in parts)
    return header.tobytes() + b"".join(part.tobytes() for part in parts)


def _gradients(plan: Plan, half: QueuePlan) -> NDArray[Any]:
    """Return a row for each gradient in the plan, in ascending order of id."""
    order = half.order or {}
    rows = [
        (
            plan.generation_s.get(gradient, UNKNOWN_S),
            plan.size_bytes.get(gradient, 0),
            gradient,
            order.get(gradient, gradient),
            half.groups.get(gradient, NO_GROUP),
            0,
        )
        for gradient in sorted({*order, *half.groups, *plan.generation_s})
    ]
    return np.array(rows, _GRADIENT)


def _deadlines(half: QueuePlan) -> NDArray[Any]:
    return np.array([(deadline.time_s, deadline.rank, 0) for deadline in half.deadlines], _DEADLINE)
