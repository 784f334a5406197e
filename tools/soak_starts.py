"""Repeated starts of small jobs: whether each ends with the engine's own weights, and the time until the end of its
first iteration.

Rule of this file: the jobs, how they start, and the data kept of each start. It is a separate program, `python -m
tools.soak_starts FILE COUNT`, since the processes that it forks exit by leaving it; tools/soak.py calls it. FILE gets a
line for each start, until it has COUNT of each engine under Prophet.

Every start forks its processes from this one, which has imported torch but nothing else of the job, so that each begins
like a separate process and no start waits for the disk. Half of the jobs are plain, a quarter have two optimizers, a
quarter evaluate on one worker in the middle. The "machines" are processes on this machine, connected by its loopback.
Gradients are whole numbers (tools/ddp_stress.py).
"""

from __future__ import annotations

import functools
import gc
import hashlib
import json
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from prophet_scheduler.cli.options import exit_status
from prophet_scheduler.core import settings
from prophet_scheduler.engines.byteps import ENGINE as BYTEPS
from prophet_scheduler.engines.spec import RunNetwork, is_worker
from prophet_scheduler.lab.runner import last_words
from prophet_scheduler.lab.testbed import reexec_in_user_namespace
from prophet_scheduler.lab.testbed.launch import own_shared_memory
from tools import ddp_stress
from tools.ddp_stress import StressJob, Wrong
from tools.jobs import ONE_THREAD
from tools.kept import resumed
from tools.ports import free_port
from tools.soak_records import SoakStart, wanted_starts

ITERATIONS = 6
WORKERS = 2
NODES = ("scheduler", "server0", "worker0", "worker1")
LIMIT_S = 60.0
"""Maximum seconds of one start."""


def live_in_byteps(node: str, job: StressJob, port: int, folder: Path, sockets: Path) -> None:
    own_shared_memory()
    addresses = {name: f"127.0.0.{place + 2}" for place, name in enumerate(NODES)}
    place = sockets / node
    place.mkdir()
    os.environ.update(BYTEPS.environment(node, RunNetwork(WORKERS, 1, addresses, "lo", port, str(place))))
    os.environ.update(ONE_THREAD)
    if not is_worker(node):
        import byteps.server  # noqa: F401, it serves until all workers have finished

        return
    if job.prophet:
        os.environ[settings.SCHEDULER] = "prophet"
        import prophet_byteps.autoload  # noqa: F401, as the .pth file in site-packages does
    import byteps.torch as bps

    bps.init()
    modules = ddp_stress.modules_of(job)
    optimizers = [
        bps.DistributedOptimizer(
            ddp_stress.optimizer_of(module),
            named_parameters=[(f"{number}.{name}", value) for name, value in module.named_parameters()],
        )
        for number, module in enumerate(modules)
    ]
    (folder / f"{node}.json").write_text(json.dumps(ddp_stress.train(job, bps.rank(), modules, optimizers)))
    bps.shutdown()


def start_in_byteps(job: StressJob, folder: Path) -> list[dict[str, Any]]:
    """Return the workers' results. Raises Wrong."""
    sockets = Path(tempfile.mkdtemp(prefix="soak-"))  # paths of UNIX sockets must be short
    port = free_port()
    lives = {node: functools.partial(live_in_byteps, node, job, port, folder, sockets) for node in NODES}
    try:
        ddp_stress.live(lives, folder, LIMIT_S)
    except Wrong:  # not `finally`, which forked processes would also run
        shutil.rmtree(sockets)
        raise
    shutil.rmtree(sockets)
    return [json.loads((folder / f"{node}.json").read_text()) for node in NODES if is_worker(node)]


def start(engine: str, prophet: bool, kind: int, seed: int, folder: Path) -> SoakStart:
    """Make one start. A hang or failure is part of the result."""
    job = StressJob(WORKERS, kind, ITERATIONS, seed=seed, prophet=prophet)
    began = time.monotonic()
    try:
        if engine == BYTEPS.name:
            results = start_in_byteps(job, folder)
        else:
            (results,) = ddp_stress.start([job], folder, LIMIT_S)
    except Wrong as wrong:
        (folder / f"wrong-{engine}-{seed}.txt").write_text(str(wrong))
        lines = str(wrong).splitlines()
        said = f"{lines[0]}: {last_words(lines[1:])}"
        return SoakStart(engine, prophet, kind, 0.0, time.monotonic() - began, "", said)
    whole_s = time.monotonic() - began
    result = hashlib.sha256(json.dumps([(part["losses"], part["weights"]) for part in results]).encode()).hexdigest()
    first_s = max(part["first_at"] for part in results) - began
    return SoakStart(engine, prophet, kind, first_s, whole_s, result[:16])


def run(file: Path, count: int) -> int:
    """Make the missing ones of `count` starts. No `with`: forked processes would also leave through it."""
    os.environ[settings.CACHE] = settings.OFF
    torch.set_num_threads(1)
    reexec_in_user_namespace()
    folder = file.parent.resolve() / "starts"
    folder.mkdir(parents=True, exist_ok=True)
    gc.freeze()  # or each process's exit would visit all imported objects

    def make(number: int, key: tuple[str, bool, int]) -> SoakStart:
        return start(*key, number, folder)

    resumed(file, SoakStart, wanted_starts(count), make, lambda start: (start.engine, start.prophet, start.kind))
    return 0


if __name__ == "__main__":
    raise SystemExit(exit_status(lambda: run(Path(sys.argv[1]), int(sys.argv[2]))))
