"""Start DistributedDataParallel jobs under Prophet repeatedly, with random delays, to find hangs and wrong results.

Rule of this file: the jobs, how they start, and their expected results. `python -m tools.ddp_stress --starts 200`.

Each start forks its ranks from this process, which has imported only torch, so each begins like a separate process. A
job's gradients are whole numbers, so their sums are the same in any order, and the result must equal plain
DistributedDataParallel's bit for bit with any number of ranks. Gradients depend on the current weights, so an update
that is late, repeated or missing shows. Meanwhile rank 0 keeps asking for another cut and another sequence.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import faulthandler
import functools
import gc
import hashlib
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"

import torch
import torch._dynamo  # the first optimizer would import it, which takes seconds
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import clip_grad_norm_

from tools.ports import free_port

LAYERS = 9
LAYER_ROWS = (64, 3, 200, 17, 128, 1, 96, 250, 40)
COLUMNS = 65
KINDS = 6
"""Number of kinds of jobs: one module or two, each plain, with an evaluation on rank 0, or with layers left out."""


class Wrong(Exception):
    """A start did not give the right result."""


@dataclass(frozen=True)
class StressJob:
    """One start. `delay_s` is the longest delay, 0 for none; `seed` only affects delays, cuts and sequences."""

    ranks: int
    kind: int
    iterations: int
    seed: int = 0
    delay_s: float = 0.0
    prophet: bool = True

    @property
    def modules(self) -> int:
        return 1 + self.kind % 2

    @property
    def evaluates(self) -> bool:
        return self.kind // 2 == 1

    @property
    def varies(self) -> bool:
        return self.kind // 2 == 2


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


def modules_of(job: StressJob) -> list[WholeNumbers]:
    return [WholeNumbers(job.kind * 10 + number) for number in range(job.modules)]


def optimizer_of(module: torch.nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(module.parameters(), lr=2**-7, momentum=0.5)


def train(
    job: StressJob,
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
                losses.update(repr(clip_grad_norm_(module.parameters(), 64.0).item()).encode())
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


def train_in_ddp(job: StressJob, rank: int) -> dict[str, Any]:
    """Train one rank's part, with delays and, under Prophet, changing cuts and sequences."""
    delays = random.Random(f"{job.seed} {rank}")

    def delay() -> None:
        if job.delay_s and delays.random() < 0.3:
            time.sleep(delays.random() ** 3 * job.delay_s)

    modules = [DistributedDataParallel(module, find_unused_parameters=job.varies) for module in modules_of(job)]
    changing = ChangingCuts(modules if job.prophet else (), rank, job.seed)
    result = train(job, rank, modules, [optimizer_of(module) for module in modules], delay, changing.next_iteration)
    return {**result, "changes": changing.changes}


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
            self.changes += self._held.get(number) not in (None, rounds.decision)
            self._held[number] = rounds.decision
            if self._asks and rounds.cut is not None and self._choices.random() < 0.4:
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
        count = len(rounds.blocks_under(rounds.division(cut).cut if two_phases else cut))
        order, gathers = (tuple(choices.sample(range(count), count)) for _ in range(2))
        rounds.channel.control.want(Decision(cut, order, gathers=gathers if two_phases else ()))


def run_rank(jobs: Sequence[StressJob], rank: int, port: int, folder: Path) -> None:
    """Run one rank of several jobs, one after another, in this process. Their `ranks` and `prophet` must be equal."""
    job = jobs[0]
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(rank), WORLD_SIZE=str(job.ranks))
    if job.prophet:
        os.environ.update(PROPHET_SCHEDULER="prophet", PROPHET_CACHE="off")
        import prophet_ddp.autoload  # noqa: F401, as the .pth file in site-packages does
    dist.init_process_group("gloo")
    results = [train_in_ddp(each, rank) for each in jobs]
    (folder / f"rank{rank}.json").write_text(json.dumps(results))
    if job.seed % 2:
        dist.destroy_process_group()


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
    statuses: dict[str, int] = {}
    ends_at = time.monotonic() + limit_s
    while pids and time.monotonic() < ends_at:
        for pid, name in list(pids.items()):
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                statuses[name] = os.waitstatus_to_exitcode(status)
                del pids[pid]
        time.sleep(0.005)
    hung = sorted(pids.values())
    for number in (signal.SIGUSR1, signal.SIGKILL):
        for pid in pids:
            os.kill(pid, number)
        time.sleep(0.5 if pids else 0.0)
    for pid in pids:
        os.waitpid(pid, 0)
    if hung or any(statuses.values()):
        logs = "\n".join(f"-- {name}\n{(folder / f'{name}.log').read_text(errors='replace')}" for name in lives)
        raise Wrong(f"hung {hung}, statuses {statuses}\n{logs}")


def start(jobs: Sequence[StressJob], folder: Path, limit_s: float) -> list[list[dict[str, Any]]]:
    """Train one job after another in the same ranks, and return the ranks' results by job.

    The jobs' `ranks` and `prophet` must be equal. Raises Wrong with the ranks' output if one fails or hangs.
    """
    port, ranks = free_port(), range(jobs[0].ranks)
    lives = {f"rank{rank}": functools.partial(run_rank, jobs, rank, port, folder) for rank in ranks}
    try:
        live(lives, folder, limit_s * len(jobs))
    except Wrong as wrong:
        raise Wrong(f"{', '.join(map(str, jobs))}: {wrong}") from None
    said = [json.loads((folder / f"rank{rank}.json").read_text()) for rank in ranks]
    return [list(of_job) for of_job in zip(*said, strict=True)]


def check(job: StressJob, truth: list[dict[str, Any]], results: list[dict[str, Any]]) -> None:
    """Raise Wrong if a rank's results differ from plain DistributedDataParallel's."""
    for rank, (result, wanted) in enumerate(zip(results, truth, strict=True)):
        for key in ("losses", "weights"):
            if result[key] != wanted[key]:
                raise Wrong(f"{job}: rank {rank} has other {key} than without Prophet")
    if len({result["changes"] for result in results}) != 1:
        raise Wrong(f"{job}: ranks changed cuts at different times: {results}")


def stress(jobs: Sequence[StressJob], folder: Path, limit_s: float) -> int:
    """Run all jobs, first those without Prophet. Return the number of changes. Raises Wrong at the first error."""
    plain = {(job.ranks, job.kind): dataclasses.replace(job, prophet=False, delay_s=0.0) for job in jobs}
    truths: dict[StressJob, list[dict[str, Any]]] = {}
    for ranks in {job.ranks for job in jobs}:
        alike = [job for job in plain.values() if job.ranks == ranks]
        truths |= zip(alike, start(alike, folder, limit_s), strict=True)
    changes = 0
    for number, job in enumerate(jobs):
        (results,) = start([job], folder, limit_s)
        check(job, truths[plain[job.ranks, job.kind]], results)
        changes += results[0]["changes"]
        if number % 20 == 19:
            print(f"{number + 1} starts", file=sys.stderr, flush=True)
    return changes


def main() -> None:
    """Report what was run, or exit with status 1 at the first error."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--starts", type=int, default=8)
    parser.add_argument("--iterations", type=int, default=50, help="of each start")
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--delay-ms", type=float, default=3.0, help="the longest; delays occur 30%% of the time")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--limit-s", type=float, default=120.0, help="for one start")
    options = parser.parse_args()
    gc.freeze()  # or each rank's exit would visit all imported objects
    jobs = []
    for number in range(options.starts):
        ranks, kind = options.ranks[number % len(options.ranks)], number // len(options.ranks) % KINDS
        jobs.append(StressJob(ranks, kind, options.iterations, options.seed + number // 2, options.delay_ms / 1e3))
    folder = Path(tempfile.mkdtemp())  # No `with`: a forked rank also leaves through here.
    try:
        changes = stress(jobs, folder, options.limit_s)
    except Wrong as wrong:
        print(wrong)
        sys.exit(1)
    shutil.rmtree(folder)
    said = f"{options.starts} starts, {options.starts * options.iterations} iterations, {changes} changes of cut or"
    print(f"{said} sequence: no hang, the bits of plain DistributedDataParallel")


if __name__ == "__main__":
    main()
