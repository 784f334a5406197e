"""Measurements on the testbed: the behavior of its links, and the time of gloo's all-reduces on them.

Rule of this file: which links and operations are measured. Nothing else runs on the testbed, and nothing computes
meanwhile: the simulator's constants come from these operations, not from any job's iterations. A rank that times them
is `python -m tools.testbed`; rank 0 prints one JSON line.
"""

from __future__ import annotations

import datetime
import itertools
import json
import os
import time
import timeit
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from prophet_ddp.events import EventLog
from prophet_ddp.issuer import Issuer, JointOperation, RankGroups
from prophet_ddp.wide_gloo import greatest, wide_group
from prophet_scheduler.lab.testbed import NodeSpec, Testbed, reexec_in_user_namespace
from prophet_scheduler.lab.testbed.testbed import RAMP_ROUND_TRIPS
from prophet_scheduler.policies.algorithms.sequence import MOST_AT_ONCE
from tools.jobs import said_by_ranks

BANDWIDTHS = (250e6, 1e9, 2.5e9, None)
DELAYS_S = (None, 0.0, 0.001, 0.005, 0.02)
NODE, OTHER = "worker0", "server0"
MEASURE_S = 1.5
SIZES = (4 << 10, 128 << 10, 1 << 20, 16 << 20)
AT_ONCE = (1, 2, MOST_AT_ONCE)
ISSUED = SIZES[:3]
"""Sizes of operations to issue through Prophet."""
WAYS: Sequence[tuple[int, float | None, float | None]] = (
    (2, None, None),
    (4, None, None),
    (2, None, 0.001),
    (2, None, 0.005),
    (4, None, 0.005),
    (2, 250e6, None),
    (2, 250e6, 0.005),
    (4, 250e6, 0.005),
    (2, 1e9, None),
    (2, 1e9, 0.005),
    (2, 2.5e9, None),
)
"""Ranks, and the link of each: bits per second, None for no limit, and seconds of delay in each direction."""
LONG_S = 0.5
"""Seconds for which each operation is timed, unless `MOST` operations take less."""
MOST = 2000
PARAMETERS, PARAMETER_BYTES = 50, 2 << 20
"""Number and bytes of a model's tensors, whose gradients are copied and applied: more than any cache holds."""
RENEWED_BYTES = 64 << 20
"""Bytes of a gradient that is in new memory each time."""
PASSES = 8
WAIT_S = 0.05


def link(bandwidth_bps: float | None, delay_s: float | None) -> dict[str, Any]:
    """Measure a link on the testbed; return its settings and measurements. Raises UserError.

    Rates are bits per second.
    """
    asked = {"bandwidth_bps": bandwidth_bps, "delay_s": delay_s}
    node = NodeSpec(NODE, bandwidth_bps, delay_s=delay_s, measured=True)
    with Testbed([node, NodeSpec(OTHER, None)]) as testbed:
        round_trip_s = testbed.round_trips()[NODE]
        seconds = MEASURE_S + RAMP_ROUND_TRIPS * 2 * (delay_s or 0.0)
        up_bps = testbed.measure(NODE, OTHER, seconds)
        down_bps = testbed.measure(OTHER, NODE, seconds)
    return {**asked, "round_trip_s": round_trip_s, "up_bps": up_bps, "down_bps": down_bps}


def links(out: Path, results: Path) -> dict[str, Any]:
    """Measure every link, one at a time; `load` is the load average of the last minute. Raises UserError."""
    reexec_in_user_namespace()
    seen = []
    for asked in itertools.product(BANDWIDTHS, DELAYS_S):
        seen.append(link(*asked))
        print(seen[-1], flush=True)
    return {"links": seen, "load": os.getloadavg()[0]}


def timed_on(ranks: int, bandwidth_bps: float | None, delay_s: float | None) -> dict[str, Any]:
    """Time operations of all sizes on a testbed with these links. Raises UserError.

    `bare_s` has seconds of gloo's own operations, by bytes and operations in flight; `issued_s` of those that Prophet
    issues, by bytes. `*_rate` are bytes per second that the fastest rank copies, copies to new memory, and updates,
    while the others do the same.
    """
    nodes = [f"worker{rank}" for rank in range(ranks)]
    with Testbed([NodeSpec(node, bandwidth_bps, delay_s=delay_s) for node in nodes]) as testbed:
        found = said_by_ranks(["tools.testbed"], nodes, testbed)
    return {"way": {"ranks": ranks, "bandwidth_bps": bandwidth_bps, "delay_s": delay_s}, **found}


def operations(out: Path, results: Path) -> list[dict[str, Any]]:
    reexec_in_user_namespace()
    found = []
    for way in WAYS:
        print(*way, flush=True)
        found.append(timed_on(*way))
    return found


def main() -> None:
    """Time all operations as one rank, and also copies and updates of a model's gradients."""
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    torch.set_num_threads(1)
    patience = datetime.timedelta(seconds=120)
    host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    store: Any = torch._C._distributed_c10d.TCPStore(host, port, ranks, rank == 0, patience)
    group = wide_group(store, rank, ranks, patience)
    issuer = Issuer(RankGroups(group), EventLog(False))
    cases = itertools.product(SIZES, AT_ONCE)
    large = torch.ones(RENEWED_BYTES // 4)
    parameters = [torch.nn.Parameter(torch.ones(PARAMETER_BYTES // 4)) for _ in range(PARAMETERS)]
    for parameter in parameters:
        parameter.grad = torch.ones_like(parameter)
    buffer = torch.ones(PARAMETERS, PARAMETER_BYTES // 4)

    def copy() -> None:
        for parameter, place in zip(parameters, buffer, strict=True):
            torch.mul(parameter.detach(), 0.5, out=place)

    def rate(size: int, once: Callable[[], Any]) -> float:
        return greatest(group, size / mean_s(once))

    found = {
        "bare_s": [[size, at_once, timed(group, bare(group, size, at_once))] for size, at_once in cases],
        "issued_s": [[size, timed(group, issued(issuer, size))] for size in ISSUED],
        "copied_rate": rate(PARAMETERS * PARAMETER_BYTES, copy),
        "renewed_rate": rate(RENEWED_BYTES, large.clone),
        "updated_rate": rate(PARAMETERS * PARAMETER_BYTES, torch.optim.SGD(parameters, lr=1e-3).step),
    }
    if rank == 0:
        print(json.dumps(found), flush=True)
    group.barrier().wait()


def bare(group: Any, size: int, at_once: int) -> Callable[[int], None]:
    """Return a function that makes all-reduces of `size` bytes by gloo, `at_once` in flight, each in its own memory."""
    data = [torch.ones(size // 4) for _ in range(at_once)]

    def several(count: int) -> None:
        under_way: deque[Any] = deque()
        for number in range(count):
            if len(under_way) == at_once:
                under_way.popleft().wait()
            under_way.append(group.allreduce([data[number % at_once]]))
        while under_way:
            under_way.popleft().wait()

    return several


def issued(issuer: Issuer, size: int) -> Callable[[int], None]:
    """Return a function that makes all-reduces of `size` bytes through Prophet's issuer; a thread waits for one after
    another, as forward does.
    """
    data = [torch.ones(size // 4) for _ in range(2 * issuer.at_once)]

    def operation(number: int) -> JointOperation:
        own = data[number % len(data)]
        return JointOperation(lambda: issuer.groups.all_reduce(own), number, 4 * own.numel())

    def several(count: int) -> None:
        operations = [operation(number) for number in range(count)]
        issuer.append(operations)
        for each in operations:
            issuer.ready(each)
        for each in operations:
            while not each.done:
                issuer.wait_activity(WAIT_S)

    return several


def timed(group: Any, several: Callable[[int], None]) -> float:
    """Return the mean seconds of an operation in a long series."""
    some = 16
    several(some)  # opens connections and their TCP windows
    began = time.monotonic()
    several(some)
    each_s = greatest(group, (time.monotonic() - began) / some)
    count = max(some, min(MOST, int(LONG_S / each_s)))
    began = time.monotonic()
    several(count)
    return (time.monotonic() - began) / count


def mean_s(once: Callable[[], Any]) -> float:
    once()
    return timeit.timeit(once, number=PASSES) / PASSES


if __name__ == "__main__":
    main()
