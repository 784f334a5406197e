"""Command `prophet testbed`: run a user's DistributedDataParallel script, each rank on its own node of the testbed.

Rule of this file: start the ranks, read their output, stop them. The script runs unchanged; its environment has
torchrun's variables and the shell's, including Prophet's.
"""

from __future__ import annotations

import contextlib
import math
import os
import re
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev

from prophet_scheduler.core.errors import UserError
from prophet_scheduler.engines.registry import engines
from prophet_scheduler.engines.spec import RunNetwork
from prophet_scheduler.lab.runner import FIRST_PORT, POLL_S
from prophet_scheduler.lab.session import worker_cores
from prophet_scheduler.lab.testbed import NodeSpec, Testbed, reexec_in_user_namespace


@dataclass(frozen=True)
class Links:
    """Links of the workers: bits per second each way, and the one-way delay in seconds."""

    workers: int
    bandwidth_bps: float
    delay_s: float


def rank_environment(rank: int, network: RunNetwork, shell: Mapping[str, str]) -> dict[str, str]:
    """Return the shell's environment plus torchrun's variables for a rank.

    Ranks share this machine's files, so each has its own LOCAL_RANK. Torch's warnings about nameless nodes are off.
    """
    own = {"LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": str(network.workers)}
    defaults = {"OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1", "TORCH_CPP_LOG_LEVEL": "ERROR"}
    return defaults | dict(shell) | engines()["ddp"].environment(f"worker{rank}", network) | own


def run_ranks(
    command: Sequence[str],
    workers: Sequence[str],
    nodes: Testbed,
    say: Callable[[str], None],
    shell: Mapping[str, str] = os.environ,
) -> int:
    """Run `command` on all workers and pass on their output until all have exited or one has failed.

    Returns 0 if all succeeded. On a failure, names the worker and returns 1 while the others still run.
    """
    addresses = {worker: nodes.address(worker) for worker in workers}
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="prophet-"))
        processes, logs, begun = {}, {}, dict.fromkeys(workers, b"")
        for rank, worker in enumerate(workers):
            network = RunNetwork(len(workers), 0, addresses, nodes.interface(worker), FIRST_PORT, folder)
            env, log = rank_environment(rank, network, shell), Path(folder, f"{worker}.log")
            processes[worker] = nodes.popen(worker, command, env=env, log=log, cwd=Path.cwd())
            logs[worker] = stack.enter_context(log.open("rb"))
        while True:
            codes = {worker: process.poll() for worker, process in processes.items()}
            for worker, code in codes.items():
                *whole, begun[worker] = (begun[worker] + logs[worker].read()).split(b"\n")
                if code is not None and begun[worker]:
                    whole.append(begun[worker])
                    begun[worker] = b""
                for line in whole:
                    say(line.decode(errors="replace"))
            failed = next((worker for worker, code in codes.items() if code not in (None, 0)), None)
            if failed is not None:
                say(f"{failed} ended with status {codes[failed]}")
                return 1
            if all(code == 0 for code in codes.values()):
                return 0
            time.sleep(POLL_S)


def seconds_in(lines: Sequence[str], pattern: re.Pattern[str]) -> float:
    """Return the last number that the pattern's group matches in the lines. Raises UserError unless it is above 0."""
    found = [match[1] for line in lines for match in pattern.finditer(line)]
    with contextlib.suppress(IndexError, TypeError, ValueError):  # TypeError: a group that did not match
        if 0 < (seconds := float(found[-1])) < math.inf:
            return seconds
    wrong = f"finds {found[-1]!r}, not a number above 0," if found else "finds nothing"
    raise UserError(f"--seconds: {pattern.pattern!r} {wrong} in what the command printed")


def parse_change(texts: Sequence[str]) -> dict[str, str]:
    """Parse texts of the form `NAME=VALUE`. Raises UserError."""
    wrong = next((text for text in texts if not text.partition("=")[0].isidentifier() or "=" not in text), None)
    if wrong is not None:
        raise UserError(f"--compare: {wrong!r} is not a variable; write e.g. PROPHET_SCHEDULER=prophet")
    return dict(text.split("=", 1) for text in texts)


def parse_pattern(text: str) -> re.Pattern[str]:
    """Compile a regular expression, which must have a group. Raises UserError."""
    try:
        pattern = re.compile(text)
    except re.error as error:
        raise UserError(f"--seconds: {text!r} is not a regular expression ({error})") from None
    if not pattern.groups:
        raise UserError(f"--seconds: {text!r} needs a group for the number, such as 'took ([0-9.]+) s'")
    return pattern


def compare_on_testbed(
    command: Sequence[str],
    links: Links,
    change: Sequence[str],
    pairs: int,
    seconds: str | None,
    say: Callable[[str], None],
) -> int:
    """Run `command` without and with the variables of `change`, in `pairs`, and report the mean speedup with its
    standard error. The two of a pair alternate in running first.

    Compares the last number in the output that the regular expression `seconds` matches; without one, the time of the
    whole command. Returns 0, or 1 after printing a failed run's output. Raises UserError like `run_on_testbed`.
    """
    changed, pattern = parse_change(change), None if seconds is None else parse_pattern(seconds)
    without = {name: value for name, value in os.environ.items() if name not in changed}
    ratios = []
    with testbed_of(command, links) as (names, testbed):
        for pair in range(1, pairs + 1):
            took_s = {}
            for variant in (False, True) if pair % 2 else (True, False):
                lines: list[str] = []
                began_s = time.monotonic()
                if run_ranks(command, names, testbed, lines.append, without | changed if variant else without):
                    for line in lines:
                        say(line)
                    return 1
                took_s[variant] = time.monotonic() - began_s if pattern is None else seconds_in(lines, pattern)
            ratios.append(took_s[False] / took_s[True])
            took = f"{took_s[False]:.3f} s without, {took_s[True]:.3f} s with it"
            say(f"pair {pair}: {took}, {ratios[-1]:.2f} times")
    ratio = f"{fmean(ratios):.2f} ± {stdev(ratios) / pairs**0.5:.2f} times"
    say(f"with {' '.join(change)}: {ratio} as fast")
    return 0


def run_on_testbed(command: Sequence[str], links: Links, say: Callable[[str], None]) -> int:
    """Call `run_ranks` on a testbed. Raises UserError if the testbed is impossible or the command does not exist."""
    with testbed_of(command, links) as (names, testbed):
        return run_ranks(command, names, testbed, say)


@contextlib.contextmanager
def testbed_of(command: Sequence[str], links: Links) -> Iterator[tuple[list[str], Testbed]]:
    """Set up a testbed for `command` with a node for each worker; yield the nodes' names and the testbed."""
    if shutil.which(command[0]) is None:
        raise UserError(f"{command[0]}: no such command; give what each worker runs, such as: python train.py")
    reexec_in_user_namespace()
    names = [f"worker{rank}" for rank in range(links.workers)]
    cores = worker_cores(sorted(os.sched_getaffinity(0)), links.workers)
    specs = [NodeSpec(name, links.bandwidth_bps, cores.get(name, ()), links.delay_s or None) for name in names]
    with Testbed(specs) as testbed:
        yield names, testbed
