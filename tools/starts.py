"""Starts of small jobs on BytePS and DistributedDataParallel, to find hangs and wrong results.

    python -m tools.starts soak|stress COUNT FILE

Rule of this file: the jobs, how they start, and what is kept of each start. FILE gets a line for each start that it
lacks. `soak` has COUNT starts under Prophet on each engine, and some without it. `stress` has COUNT starts on DDP with
random delays, beside one of each job without Prophet; it fails if a start is wrong.

Each start forks its processes from this one, which has imported torch but nothing else of the job, so that each begins
like a separate process and no start waits for the disk. The "machines" are processes on this machine's loopback. A
job's gradients are whole numbers, so their sums are the same in any order, and the result must equal the engine's own
bit for bit with any number of ranks. Gradients depend on the current weights, so an update that is late, repeated or
missing shows. On DDP rank 0 keeps asking for another cut and another sequence.

Forked processes leave through their callers, so there is no `with` and no `finally` around a fork.
"""

from __future__ import annotations

import argparse
import contextlib
import faulthandler
import functools
import gc
import hashlib
import itertools
import json
import math
import os
import random
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"

import psutil
import torch
import torch._dynamo  # the first optimizer would import it, which takes seconds
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import clip_grad_norm_

from prophet_scheduler.cli.options import exit_status
from prophet_scheduler.core import settings
from prophet_scheduler.engines.registry import engines, scheduled_engine
from prophet_scheduler.engines.spec import RunNetwork, is_worker
from prophet_scheduler.lab.runner import last_words
from prophet_scheduler.lab.testbed import reexec_in_user_namespace
from prophet_scheduler.lab.testbed.launch import own_shared_memory
from tools.kept import resumed
from tools.ports import free_port

BYTEPS, DDP = scheduled_engine(), engines()["ddp"]
LAYER_ROWS = (64, 3, 200, 17, 128, 1, 96, 250, 40)
LAYERS, COLUMNS = len(LAYER_ROWS), 65
KINDS = 6
"""Number of kinds of jobs: one module or two, each plain, with an evaluation on rank 0, or with layers left out."""
SOAKED_KINDS = (0, 1, 0, 2)
"""Kinds of the soak's jobs, in turn: plain, two optimizers, plain, an evaluation."""
STOCK_EVERY = 3
"""One in this many of the soak's starts is without Prophet."""
NODES = ("scheduler", "server0", "worker0", "worker1")
ONE_THREAD = {"BYTEPS_OMP_THREAD_PER_GPU": "1"}
"""BytePS's setting for threads of sums and copies. By default each of its threads has four OpenMP threads, which spin
while they wait; on two cores the server then needs seconds for a key."""
LIMIT_S = 60.0
"""Maximum seconds of one start, and half of those with delays."""


class Wrong(Exception):
    """A start did not give the right result."""


@dataclass(frozen=True)
class StartedJob:
    """One job. `delay_s` is the longest delay, 0 for none; `seed` only affects delays, cuts and sequences."""

    engine: str
    kind: int
    seed: int
    prophet: bool = True
    ranks: int = 2
    iterations: int = 6
    delay_s: float = 0.0

    @property
    def evaluates(self) -> bool:
        return self.kind // 2 == 1

    @property
    def varies(self) -> bool:
        return self.kind // 2 == 2


@dataclass(frozen=True)
class Start:
    """One start: `first_s` is the time from the start of its processes until the slowest rank's first iteration ends
    (0 if it does not). `wrong` is empty, or one line: it hung or failed.
    """

    job: StartedJob
    first_s: float
    result: str
    """Digest of all ranks' losses and weights; empty if it hung or failed."""
    changes: int = 0
    """Number of changes of cut or sequence."""
    wrong: str = ""


def soak_jobs(count: int) -> list[StartedJob]:
    """Return the jobs for `count` starts of each engine under Prophet. The engines take turns."""
    kinds = {prophet: itertools.cycle(SOAKED_KINDS) for prophet in (False, True)}
    jobs: list[StartedJob] = []
    while sum(job.prophet for job in jobs) < 2 * count:
        prophet = len(jobs) // 2 % STOCK_EVERY != 0
        kind = next(kinds[prophet])
        jobs += [StartedJob(engine.name, kind, len(jobs), prophet) for engine in (BYTEPS, DDP)]
    return jobs


def stress_jobs(count: int) -> list[StartedJob]:
    """Return `count` jobs under Prophet, with two and four ranks in turn, after each of them without Prophet."""
    jobs = [
        StartedJob(DDP.name, n // 2 % KINDS, n, ranks=2 + 2 * (n % 2), iterations=25, delay_s=0.003)
        for n in range(count)
    ]
    plain = [replace(job, seed=0, prophet=False, delay_s=0.0) for job in jobs]
    return [*dict.fromkeys(plain), *jobs]


LISTS = {"soak": soak_jobs, "stress": stress_jobs}


def checked(starts: Sequence[Start]) -> list[Start]:
    """Return the starts, those without Prophet first. A result that differs from the first of the same job is wrong."""
    right: dict[Any, Start] = {}
    found = []
    for start in sorted(starts, key=lambda start: start.job.prophet):
        job = start.job
        first = start if start.wrong else right.setdefault((job.engine, job.kind, job.ranks, job.iterations), start)
        if start.result != first.result:
            of = "Prophet" if first.job.prophet else "the engine alone"
            start = replace(start, wrong=f"losses or weights differ from a start of {of}")
        found.append(start)
    return found


class WholeNumbers(torch.nn.Module):
    """Layers whose gradients are whole numbers and depend on the signs of the weights."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        numbers = torch.Generator().manual_seed(seed)
        self.layers = torch.nn.ParameterList(
            torch.randint(-64, 65, (rows, COLUMNS), generator=numbers).float() / 128 for rows in LAYER_ROWS
        )

    def forward(self, data: torch.Tensor, left_out: Collection[int], delay: Any) -> torch.Tensor:
        total = torch.zeros((), dtype=torch.float64)
        for place, weight in enumerate(self.layers):
            if place in left_out:
                continue
            delay()
            weight = weight * 1.0
            if weight.requires_grad:
                weight.register_hook(lambda _gradient: delay())
            total = total + (weight * (data[place] + weight.detach().sign())).sum(dtype=torch.float64)
        return total


def modules_of(job: StartedJob) -> list[WholeNumbers]:
    return [WholeNumbers(job.kind * 10 + number) for number in range(1 + job.kind % 2)]


def optimizer_of(module: torch.nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(module.parameters(), lr=2**-7, momentum=0.5)


def train(
    job: StartedJob,
    rank: int,
    modules: Sequence[Any],
    optimizers: Sequence[Any],
    delay: Callable[[], None] = lambda: None,
    before_iteration: Callable[[], None] = lambda: None,
) -> dict[str, Any]:
    """Train one worker's part on any engine, with `modules` and `optimizers` as it wraps them. Return the results."""
    bare = [getattr(module, "module", module) for module in modules]
    losses = hashlib.sha256()
    first_at = 0.0
    for iteration in range(job.iterations):
        numbers = torch.Generator().manual_seed(iteration * 100 + rank)
        data = torch.randint(-3, 4, (len(modules), LAYERS, COLUMNS), generator=numbers).float()
        # Three layers that this rank leaves out, and one that all do.
        left_out = {iteration % LAYERS, *torch.randperm(LAYERS, generator=numbers)[:3].tolist()} if job.varies else ()
        before_iteration()
        delay()
        for optimizer in optimizers:
            optimizer.zero_grad()
        together = iteration % 3 == 0
        outputs = [module(data[number], left_out, delay) for number, module in enumerate(modules)]
        if iteration % 5 == 4 and isinstance(modules[0], DistributedDataParallel):
            with contextlib.ExitStack() as stack:
                for module in modules:
                    stack.enter_context(module.no_sync())
                for number, module in enumerate(modules):
                    module(data[number].neg(), left_out, delay).backward()
            outputs = [module(data[number], left_out, delay) for number, module in enumerate(modules)]
        if together:
            torch.stack(outputs).sum().backward()
        else:
            for output in outputs:
                output.backward()
        if iteration % 7 < 3 and isinstance(modules[0], DistributedDataParallel) and not job.varies:
            for module in modules:
                # Among more than two ranks, partial norms are added in another order: only the greatest is exact.
                most, order = (64.0, 2.0) if job.ranks == 2 else (4.0, math.inf)
                losses.update(repr(clip_grad_norm_(module.parameters(), most, order).item()).encode())
        for optimizer in optimizers:
            delay()
            optimizer.step()
        losses.update(repr([output.item() for output in outputs]).encode())
        first_at = time.monotonic() if iteration == 0 else first_at
        if job.evaluates and rank == 0 and iteration == job.iterations // 2:
            with torch.no_grad():
                losses.update(repr([module(data[0], (), delay).item() for module in bare]).encode())
    weights = hashlib.sha256(b"".join(param.detach().numpy().tobytes() for each in bare for param in each.parameters()))
    return {"losses": losses.hexdigest(), "weights": weights.hexdigest(), "first_at": first_at}


class ChangingCuts:
    """Random changes of cuts and sequences: rank 0 asks for them, and every rank counts those that take effect."""

    def __init__(self, modules: Sequence[Any], rank: int, seed: int) -> None:
        self.changes = 0
        self._modules = modules
        self._asks = rank == 0
        self._choices = random.Random(seed)
        self._held: dict[int, Any] = {}

    def next_iteration(self) -> None:
        for number, module in enumerate(self._modules):
            rounds = module.reducer.rounds
            self.changes += self._held.get(number) not in (None, rounds.layout.decision)
            self._held[number] = rounds.layout.decision
            if self._asks and rounds.layout.cut is not None and self._choices.random() < 0.4:
                self._want_another(rounds)

    def _want_another(self, rounds: Any) -> None:
        from prophet_ddp.control import Decision
        from prophet_scheduler.core.cut import UNIT_BYTES, Cut, Segment

        choices = self._choices
        first, second = (UNIT_BYTES * choices.choice((1, 2, 3, 5, 8, 16, 64, 1000)) for _ in range(2))
        segments = [Segment(0, first)]
        if choices.random() < 0.5:
            segments.append(Segment(UNIT_BYTES * choices.randint(1, 40), second))
        cut = Cut(tuple(segments))
        two_phases = rounds.divisible and choices.random() < 0.5
        count = len(rounds.layout.blocks_under(rounds.layout.division(cut).cut if two_phases else cut))
        order, gathers = (tuple(choices.sample(range(count), count)) for _ in range(2))
        rounds.channel.control.want(Decision(cut, order, gathers=gathers if two_phases else ()))


def live_in_ddp(node: str, rank: int, job: StartedJob, port: int, folder: Path) -> None:
    own = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "RANK": rank, "WORLD_SIZE": job.ranks}
    os.environ.update({name: str(value) for name, value in own.items()})
    if job.prophet:
        os.environ[settings.DDP_SCHEDULER] = "prophet"
        import prophet_ddp.autoload  # noqa: F401, as the .pth file in site-packages does
    delays = random.Random(f"{job.seed} {rank}")

    def delay() -> None:
        if job.delay_s and delays.random() < 0.3:
            time.sleep(delays.random() ** 3 * job.delay_s)

    dist.init_process_group("gloo")
    modules = [DistributedDataParallel(module, find_unused_parameters=job.varies) for module in modules_of(job)]
    changing = ChangingCuts(modules if job.prophet else (), rank, job.seed)
    result = train(job, rank, modules, [optimizer_of(module) for module in modules], delay, changing.next_iteration)
    (folder / f"{node}.json").write_text(json.dumps({**result, "changes": changing.changes}))
    if job.seed % 2:
        dist.destroy_process_group()


def live_in_byteps(node: str, job: StartedJob, port: int, folder: Path, sockets: Path) -> None:
    own_shared_memory()
    addresses = {name: f"127.0.0.{place + 2}" for place, name in enumerate(NODES)}
    place = sockets / node
    place.mkdir()
    os.environ.update(BYTEPS.environment(node, RunNetwork(job.ranks, 1, addresses, "lo", port, str(place))))
    os.environ.update(ONE_THREAD)
    if not is_worker(node):
        import byteps.server  # noqa: F401, it serves until all workers have finished

        return
    if job.prophet:
        os.environ[settings.SCHEDULER] = "prophet"
        import prophet_byteps.autoload  # noqa: F401, as the .pth file in site-packages does
    import byteps.torch as bps

    bps.init()
    modules = modules_of(job)
    optimizers = [
        bps.DistributedOptimizer(
            optimizer_of(module),
            named_parameters=[(f"{number}.{name}", value) for name, value in module.named_parameters()],
        )
        for number, module in enumerate(modules)
    ]
    (folder / f"{node}.json").write_text(json.dumps(train(job, bps.rank(), modules, optimizers)))
    bps.shutdown()


def live(lives: Mapping[str, Callable[[], None]], folder: Path, limit_s: float) -> None:
    """Fork a process for each of `lives`, with its output in `folder`/NAME.log, and wait until all have exited.

    Each exits normally, by leaving this function and its callers. Raises Wrong with their output if one fails, or has
    not exited after `limit_s` seconds.
    """
    pids = {}
    for name, life in lives.items():
        pid = os.fork()
        if pid == 0:
            log = os.open(folder / f"{name}.log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.dup2(log, 1)
            os.dup2(log, 2)
            faulthandler.register(signal.SIGUSR1, all_threads=True)
            life()
            raise SystemExit(0)
        pids[pid] = name
    ended, hung = psutil.wait_procs([psutil.Process(pid) for pid in pids], timeout=limit_s)
    statuses = {pids[process.pid]: process.wait() for process in ended}
    for number in (signal.SIGUSR1, signal.SIGKILL):
        for process in hung:
            process.send_signal(number)
        time.sleep(0.5 if hung else 0.0)
    psutil.wait_procs(hung)
    if hung or any(statuses.values()):
        logs = "\n".join(f"-- {name}\n{(folder / f'{name}.log').read_text(errors='replace')}" for name in lives)
        raise Wrong(f"hung {sorted(pids[process.pid] for process in hung)}, statuses {statuses}\n{logs}")


def start(job: StartedJob, folder: Path) -> Start:
    """Make one start. A hang or failure is part of the result."""
    sockets = Path(tempfile.mkdtemp(prefix="starts-"))  # paths of UNIX sockets must be short
    port, began = free_port(), time.monotonic()
    lives: dict[str, Callable[[], None]]
    if job.engine == BYTEPS.name:
        lives = {node: functools.partial(live_in_byteps, node, job, port, folder, sockets) for node in NODES}
    else:
        lives = {
            f"worker{rank}": functools.partial(live_in_ddp, f"worker{rank}", rank, job, port, folder)
            for rank in range(job.ranks)
        }
    try:
        live(lives, folder, 2 * LIMIT_S if job.delay_s else LIMIT_S)
    except Wrong as wrong:
        (folder / f"wrong-{job.engine}-{job.seed}.txt").write_text(f"{job}: {wrong}")
        lines = str(wrong).splitlines()
        ended = Start(job, 0.0, "", wrong=f"{lines[0]}: {last_words(lines[1:])}")
    else:
        ended = result_of(job, [json.loads((folder / f"{node}.json").read_text()) for node in filter(is_worker, lives)])
        ended = replace(ended, first_s=ended.first_s - began)
    shutil.rmtree(sockets)
    return ended


def result_of(job: StartedJob, ranks: Sequence[Mapping[str, Any]]) -> Start:
    """Return a start that all ranks finished; `first_s` is on the ranks' clock."""
    digest = hashlib.sha256(json.dumps([(rank["losses"], rank["weights"]) for rank in ranks]).encode()).hexdigest()
    changes = {rank.get("changes", 0) for rank in ranks}
    wrong = f"ranks changed cuts at different times: {sorted(changes)}" if len(changes) > 1 else ""
    return Start(job, max(rank["first_at"] for rank in ranks), digest[:16], max(changes), wrong)


def run(which: str, count: int, file: Path) -> int:
    """Make the missing starts."""
    os.environ[settings.CACHE] = settings.OFF
    torch.set_num_threads(1)
    reexec_in_user_namespace()
    folder = file.parent.resolve() / "starts"
    folder.mkdir(parents=True, exist_ok=True)
    gc.freeze()  # or each process's exit would visit all imported objects
    starts = resumed(file, Start, LISTS[which](count), lambda _, job: start(job, folder), lambda start: start.job)
    if which == "soak":  # the soak says itself what was wrong
        return 0
    wrong = [f"{start.job}: {start.wrong}" for start in checked(starts) if start.wrong]
    changes = sum(start.changes for start in starts)
    print(f"{len(starts)} starts, {changes} changes of cut or sequence, {len(wrong)} wrong", *wrong, sep="\n")
    return int(bool(wrong))


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.starts", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("which", choices=LISTS)
    parser.add_argument("count", type=int)
    parser.add_argument("file", type=Path)
    options = parser.parse_args()
    return exit_status(lambda: run(options.which, options.count, options.file))


if __name__ == "__main__":
    raise SystemExit(main())
