"""`prophet testbed`: a user's own script of DistributedDataParallel, each rank on a node of the testbed.

Rule of this file: how the ranks are started, heard and ended. The script is the user's, as it is: it finds in its
environment what torchrun would tell it, and the shell's variables, Prophet's among them.
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
    """What ranks need of a testbed."""

    def address(self, name: str) -> str: ...
    def interface(self, name: str) -> str: ...
    def popen(self, name: str, argv: Sequence[str], *, env: Mapping[str, str], log: Path, cwd: Path) -> Process: ...


class Said:
    """What a program has written to its log since the last look."""

    def __init__(self, log: Path) -> None:
        self._log = log
        self._place = 0
        self._begun = b""

    def lines(self, *, ended: bool) -> list[str]:
        """Whole lines; the last one need not be whole where the program has `ended`."""
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
    """The shell's, and what torchrun tells a rank. Ranks share this machine's files, so each has its number there.

    Nodes have addresses and no names. torch warns of that, unless the shell says that its warnings are wanted.
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
    """Runs `command` on all workers and says what they say, until all have ended or one has failed.

    0 where all ended well, else 1, after a line that names the one that failed; the others still run then.
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
    """`run_ranks` on a testbed with so many workers, each with a link of bits per second and seconds each way.

    Raises UserError where there can be no such testbed, or there is no such command.
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
