"""apart.py with a death in it: apart_where.py CASE STEPS

Rule of this file: one function a case, which changes what the case is about and then runs the job as it is. A worker
that dies does so as by SIGKILL, and only one of a job does.
"""

from __future__ import annotations

import os
import runpy
import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import psutil
import torch

JOB = Path(__file__).with_name("apart.py")
RANK = os.environ["DMLC_WORKER_ID"]
MARK = Path("..") / "died"
"""In a folder that all workers have; it says who died."""
STOPPED = Path("..") / "stopped"
"""File that the test makes when it has stopped the server."""


def die_first() -> None:
    """Ends this process at once, unless another worker has died before."""
    try:
        descriptor = os.open(MARK, os.O_CREAT | os.O_EXCL | os.O_WRONLY)
    except FileExistsError:
        return
    os.write(descriptor, RANK.encode())
    os.close(descriptor)
    os.kill(os.getpid(), signal.SIGKILL)


def die_in_the_second_push(begin: Callable[[Any, Sequence[torch.Tensor]], None]) -> None:
    """Have worker 1 begin its second push by `begin(wire, blocks)`, and die."""
    from prophet_mlfabric.byteps.wire import BEGINS, BytePSWire

    push, pushed = BytePSWire.push, [0]

    def push_or_die(wire: BytePSWire, blocks: Sequence[torch.Tensor]) -> None:
        pushed[0] += len(blocks) > 1
        if RANK == "1" and pushed[0] == 2:
            wire._say(BEGINS)
            begin(wire, blocks)
            die_first()
        push(wire, blocks)

    vars_of: Any = BytePSWire
    vars_of.push = push_or_die


def send(wire: Any, blocks: Sequence[torch.Tensor]) -> list[int]:
    """Begin to send the first blocks. Return their handles."""
    from prophet_byteps.hook import PUSH_ONLY

    return [wire._send(block, name, PUSH_ONLY) for block, name in zip(blocks, wire._names, strict=False)]


def worker_1_dies_amid_an_update() -> None:
    """Half of the blocks of its second push are at the server."""
    die_in_the_second_push(lambda wire, blocks: wire._wait(send(wire, blocks[: len(blocks) // 2])))


def worker_1_dies_before_the_server_answers() -> None:
    """Its second push is at the server, which the test has stopped, and goes on when the worker is gone."""

    def send_all(wire: Any, blocks: Sequence[torch.Tensor]) -> None:
        print("stop the server", flush=True)
        wait_until(STOPPED.exists)
        there = bytes_sent() + sum(block.nbytes for block in blocks)
        send(wire, blocks)
        wait_until(lambda: bytes_sent() >= there and all_acknowledged())

    die_in_the_second_push(send_all)


def wait_until(true: Callable[[], bool]) -> None:
    while not true():
        time.sleep(0.01)


def bytes_sent() -> int:
    return psutil.net_io_counters().bytes_sent


def all_acknowledged() -> bool:
    """Return True if no TCP connection of this network namespace has bytes that the other end's kernel lacks."""
    connections = Path("/proc/net/tcp").read_text().splitlines()[1:]
    return all(line.split()[4].startswith("00000000:") for line in connections)


def worker_1_dies_after_its_push() -> None:
    """Its update is in the server's model, and nobody knows."""
    from prophet_mlfabric.client import CoordinatorClient

    def die(client: Any, permission: Any) -> None:
        if RANK == "1" and permission.ask.version:
            die_first()
        done(client, permission)

    vars_of: Any = CoordinatorClient
    done, vars_of.done = CoordinatorClient.done, die


if __name__ == "__main__":
    globals()[sys.argv[1]]()
    sys.argv = [str(JOB), sys.argv[2]]
    runpy.run_path(str(JOB), run_name="__main__")
