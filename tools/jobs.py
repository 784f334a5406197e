"""Jobs of a maintainer's own script on the testbed.

Rule of this file: one job from start to end, and how it ended. The tools that run jobs evaluate the results
(released.py, gpu.py). A job is hung, not just slow, if workers' interfaces have had almost no traffic for a while.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from prophet_scheduler.core.errors import UserError
from prophet_scheduler.engines.spec import RunNetwork, is_worker
from prophet_scheduler.lab.cluster_config import ClusterConfig
from prophet_scheduler.lab.contenders import Contender
from prophet_scheduler.lab.launchers import environment, nodes_of, server_command, without_jobs
from prophet_scheduler.lab.own_script import run_ranks
from prophet_scheduler.lab.runner import Watch, last_words
from prophet_scheduler.lab.testbed import Testbed

POLL_S = 0.1
ONE_THREAD = {"BYTEPS_OMP_THREAD_PER_GPU": "1"}
"""BytePS's setting for threads of sums and copies. By default each of its threads has four OpenMP threads, which spin
while they wait; on two cores the server then needs seconds for a key."""
NOISE_BYTES = 10_000
"""Bytes through a worker's interface that are no progress: ARP, and TCP's own traffic."""

Process = subprocess.Popen[bytes]


@dataclass(frozen=True, order=True)
class Marks:
    """Progress in a worker's log; `iteration` is the last that it finished, 0 before the first."""

    connected: bool = False
    iteration: int = 0
    weights: str = ""

    @property
    def stage(self) -> str:
        """Stage of the job, in the words of the tables."""
        return "in training" if self.connected else "at the start"


@dataclass(frozen=True)
class Ended:
    """End of a job, with the `marks` of the worker that made the least progress.

    `trained`: it finished; `failed`: a role exited with an error; `stopped`: traffic ceased; `late`: it timed out while
    there was traffic; `ended`: by an observer. `why` is one line about the last four.
    """

    end: Literal["trained", "failed", "stopped", "late", "ended"]
    marks: Marks
    why: str = ""


@dataclass(frozen=True)
class Limits:
    """Time limits in seconds: without progress, and for the whole job."""

    still_s: float = 30.0
    whole_s: float = 240.0


Look = Callable[[Marks, Mapping[str, Process]], str | None]
"""Function called at every poll with the slowest worker's marks and the processes by node; a reason ends the job."""


def read_marks(log: str) -> Marks:
    """Read the marks in a worker's output so far. An incomplete last line does not count yet."""
    lines = [line.split() for line in log[: log.rfind("\n") + 1].splitlines()]
    said = {words[0]: words[-1] for words in lines if words and words[0] in ("connected", "iteration", "weights")}
    return Marks("connected" in said, int(said.get("iteration", 0)), said.get("weights", ""))


def interface_bytes(text: str) -> int:
    """Return all bytes received and sent, except on the loopback, from the text of /proc/PID/net/dev."""
    rows = [line.replace(":", " ").split() for line in text.splitlines()[2:]]
    return sum(int(row[1]) + int(row[9]) for row in rows if row[0] != "lo")


def moved(processes: Mapping[str, Process], workers: Sequence[str]) -> int:
    """Return the traffic through the workers' interfaces in units of NOISE_BYTES. A worker that has exited counts 1."""
    total = 0
    for worker in workers:
        try:
            text = Path(f"/proc/{processes[worker].pid}/net/dev").read_text(encoding="ascii")
            total += interface_bytes(text) // NOISE_BYTES
        except OSError:
            total += 1
    return total


def run_job(
    testbed: Testbed,
    cluster: ClusterConfig,
    policy: Contender,
    command: Sequence[str],
    folder: Path,
    port: int,
    limits: Limits,
    look: Look = lambda marks, processes: None,
    settings: Callable[[str], Mapping[str, str]] = lambda node: ONE_THREAD,
) -> Ended:
    """Run workers with this script and its arguments, and the other roles, on the testbed, whose nodes are the
    cluster's.

    Workers print the marks. `settings` returns a node's environment beyond that of the engine and the policy. Logs go
    into `folder`. Nothing is left running.
    """
    folder.mkdir(parents=True, exist_ok=True)
    nodes = nodes_of(policy.engine, cluster)
    workers = [node for node in nodes if is_worker(node)]
    addresses = {node: testbed.address(node) for node in cluster.nodes}
    with tempfile.TemporaryDirectory(prefix="prophet-") as sockets:  # paths of UNIX sockets must be short
        processes: dict[str, Process] = {}
        try:
            for node in nodes:
                Path(sockets, node).mkdir()
                interface, place = testbed.interface(node), str(Path(sockets, node))
                network = RunNetwork(cluster.workers, cluster.servers, addresses, interface, port, place)
                env = {**environment(policy, node, network, os.environ), **settings(node)}
                argv = [sys.executable, *command] if node in workers else server_command(policy.engine, node)
                started = testbed.popen(node, argv, env=env, log=folder / f"{node}.log", cwd=Path(sockets, node))
                processes[node] = started
            return watched(processes, workers, folder, limits, look)
        finally:
            testbed.terminate_all()


def watched(
    processes: Mapping[str, Process], workers: Sequence[str], folder: Path, limits: Limits, look: Look
) -> Ended:
    """Wait until the workers exit, or until there is a reason to stop waiting."""
    began = time.monotonic()
    watch = Watch(limits.still_s, began)
    while True:
        codes = {node: process.poll() for node, process in processes.items()}
        logs = {node: (folder / f"{node}.log").read_text(errors="replace") for node in processes}
        marks = min(read_marks(logs[worker]) for worker in workers)
        now = time.monotonic()
        for node, code in codes.items():
            if code not in (None, 0):
                said = last_words(logs[node].splitlines())
                return Ended("failed", marks, f"{node} ended with status {code}: {said}")
        if all(codes[worker] == 0 for worker in workers):
            return Ended("trained", marks)
        if watch.hung(moved(processes, workers), now):
            return Ended("stopped", marks, f"nothing moved for {limits.still_s:g} s")
        if now - began >= limits.whole_s:
            return Ended("late", marks, f"not over after {limits.whole_s:g} s")
        if (why := look(marks, processes)) is not None:
            return Ended("ended", marks, why)
        time.sleep(POLL_S)


def said_by_ranks(
    program: Sequence[str], workers: Sequence[str], nodes: Testbed, own: Mapping[str, str] | None = None
) -> Any:
    """Run `python -m PROGRAM` as a rank on each worker, with `own` in its environment. Return the last line that is
    JSON, parsed. Raises UserError.
    """
    said: list[str] = []
    shell = without_jobs(os.environ) | dict(own or {})
    status = run_ranks([sys.executable, "-m", *program], workers, nodes, said.append, shell=shell)
    found = [line for line in said if line.startswith("{")]
    if status or not found:
        raise UserError(f"{' '.join(program[:2])}: {'; '.join(said[-2:]) or 'it said nothing'}")
    return json.loads(found[-1])
