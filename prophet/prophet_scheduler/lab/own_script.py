"""Command `prophet testbed`: a user's own script of DistributedDataParallel, each rank on a node of the testbed.

Rule of this file: starting, reading and ending the ranks. The user's script runs unchanged: its environment has
torchrun's variables and the shell's, Prophet's among them.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from prophet_scheduler.core.errors import UserError
from prophet_scheduler.engines.registry import engines
from prophet_scheduler.engines.spec import RunNetwork
from prophet_scheduler.lab.runner import FIRST_PORT, POLL_S, Edges, Process
from prophet_scheduler.lab.session import worker_cores

LEAST_WORKERS = 2


class Nodes(Protocol):
    """Part of a testbed that ranks need."""

    def address(self, name: str) -> str: ...
    def interface(self, name: str) -> str: ...
    def popen(self, name: str, argv: Sequence[str], *, env: Mapping[str, str], log: Path, cwd: Path) -> Process: ...


class Said:
    """Reader of a program's new lines in its log."""

    def __init__(self, log: Path) -> None:
        self._log = log
        self._place = 0
        self._begun = b""

    def lines(self, *, ended: bool) -> list[str]:
        """Return the new whole lines, and the rest too if the program has `ended`."""
        if not self._log.exists():
            return []
        with self._log.open("rb") as log:
            log.seek(self._place)
            new = log.read()
        self._place += len(new)
        *whole, self._begun = (self._begun + new).split(b"\n")
        if ended and self._begun:
            whole.append(self._begun)
            self._begun = b""
        return [line.decode(errors="replace") for line in whole]


def rank_environment(rank: int, network: RunNetwork, shell: Mapping[str, str]) -> dict[str, str]:
    """Return the shell's environment with torchrun's variables of a rank.

    Ranks share this machine's files, so each has its own LOCAL_RANK. Nodes have addresses but no names. The environment
    silences torch's warning about that, unless the shell sets TORCH_CPP_LOG_LEVEL.
    """
    own = {"LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": str(network.workers)}
    defaults = {"OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1", "TORCH_CPP_LOG_LEVEL": "ERROR"}
    return defaults | dict(shell) | engines()["ddp"].environment(f"worker{rank}", network) | own


def run_ranks(
    command: Sequence[str],
    workers: Sequence[str],
    nodes: Nodes,
    say: Callable[[str], None],
    edges: Edges | None = None,
    shell: Mapping[str, str] = os.environ,
) -> int:
    """Run `command` on all workers and pass on their output until all have ended or one has failed.

    Returns 0 if all ended well, else 1 after a line that names the failed one; the others still run then.
    """
    edges = edges or Edges()
    addresses = {worker: nodes.address(worker) for worker in workers}
    with tempfile.TemporaryDirectory(prefix="prophet-") as folder:
        processes, heard = {}, {}
        for rank, worker in enumerate(workers):
            network = RunNetwork(len(workers), 0, addresses, nodes.interface(worker), FIRST_PORT, folder)
            log = Path(folder, f"{worker}.log")
            env = rank_environment(rank, network, shell)
            processes[worker] = nodes.popen(worker, command, env=env, log=log, cwd=Path.cwd())
            heard[worker] = Said(log)
        while True:
            codes = {worker: process.poll() for worker, process in processes.items()}
            for worker, code in codes.items():
                for line in heard[worker].lines(ended=code is not None):
                    say(line)
            failed = next((worker for worker, code in codes.items() if code not in (None, 0)), None)
            if failed is not None:
                say(f"{failed} ended with status {codes[failed]}")
                return 1
            if all(code == 0 for code in codes.values()):
                return 0
            edges.sleep(POLL_S)


def run_on_testbed(
    command: Sequence[str], workers: int, bandwidth_bps: float, delay_s: float, say: Callable[[str], None]
) -> int:
    """Call `run_ranks` on a testbed; each worker's link has this bandwidth and this delay each way.

    Raises UserError if there can be no such testbed, or there is no such command.
    """
    if workers < LEAST_WORKERS:
        raise UserError(f"--workers is {workers}; it must be {LEAST_WORKERS} or more")
    if shutil.which(command[0]) is None:
        raise UserError(f"{command[0]}: no such command; give what each worker runs, such as: python train.py")
    from prophet_scheduler.lab.testbed import NodeSpec, Testbed, reexec_in_user_namespace

    reexec_in_user_namespace()
    names = [f"worker{rank}" for rank in range(workers)]
    cores = worker_cores(sorted(os.sched_getaffinity(0)), workers)
    specs = [NodeSpec(name, bandwidth_bps, cores.get(name, ()), delay_s or None) for name in names]
    with Testbed(specs) as testbed:
        return run_ranks(command, names, testbed, say)
