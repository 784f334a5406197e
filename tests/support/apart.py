"""Asynchronous jobs with a coordinator on a real network, whose processes a test may kill.

Rule of this file: three workers with faster links than the server's, so updates meet; the roles' processes, with a
replica of the model on demand; and their ends. A worker runs a script of tests/net/jobs.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from prophet_scheduler.lab.testbed import NodeSpec, Testbed
from support.roles import LAST_WORDS, ONE_DEVICE, PATIENT, SERVE, Job, Process, write_stacks

WORKERS = ("worker0", "worker1", "worker2")
ASYNCHRONOUS = {**ONE_DEVICE, "BYTEPS_ENABLE_ASYNC": "1"}
SERVER_RATE, WORKER_RATE = "10mbit", "100mbit"
SPECS = [
    *(NodeSpec(worker, 100e6) for worker in WORKERS),
    NodeSpec("server", 10e6),
    NodeSpec("scheduler", None),
    NodeSpec("coordinator", None),
]
TENANT = "tests"
LIMIT_S = 240.0
BLOCK_BYTES = 16384
POLL_S = 0.05


@dataclass
class JobApart:
    """A running job: its processes by role, and the folder that contains each role's own."""

    folder: Path
    job: Job
    coordinate: Sequence[str]
    processes: dict[str, Process] = field(default_factory=dict)
    began_s: float = field(default_factory=time.monotonic)

    def start_coordinator(self) -> None:
        self.processes["coordinator"] = self.job.start("coordinator", self.coordinate, {})

    def log(self, role: str) -> str:
        """Return the role's log; empty before its process has opened the file."""
        path = self.folder / role / "log"
        return path.read_text() if path.exists() else ""

    def until(self, done: Callable[[], bool]) -> None:
        """Wait until `done()`. Fail with all logs if that takes too long."""
        while not done():
            if time.monotonic() - self.began_s > LIMIT_S:
                write_stacks(self.processes.values())
                logs = {role: self.log(role)[-LAST_WORDS:] for role in self.processes}
                raise AssertionError(f"it has taken {LIMIT_S:g} s: {logs}")
            time.sleep(POLL_S)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Stop all workers within the context, so that none ends before the processes started in it are ready."""
        self._signal_workers(signal.SIGSTOP)
        try:
            yield
        finally:
            self._signal_workers(signal.SIGCONT)

    def _signal_workers(self, number: signal.Signals) -> None:
        for worker in WORKERS:
            if self.processes[worker].poll() is None:
                with suppress(ProcessLookupError):
                    os.killpg(self.processes[worker].pid, number)

    def wait(self) -> list[int]:
        """Wait until all workers have ended. Return their statuses."""
        self.until(lambda: all(self.processes[worker].poll() is not None for worker in WORKERS))
        return [self.processes[worker].wait() for worker in WORKERS]

    def counts(self, worker: str) -> dict[str, Any]:
        """Return the counts of the worker's rounds, from its last line."""
        (line,) = [line for line in self.log(worker).splitlines() if line.startswith("counts ")]
        found: dict[str, Any] = json.loads(line.removeprefix("counts "))
        return found

    def said(self, worker: str) -> list[str]:
        """Return the worker's lines that mention Prophet."""
        return [line for line in self.log(worker).splitlines() if "prophet" in line.lower()]

    def coordinated(self) -> dict[str, Any]:
        """End the coordinator. Return its counts of all updates."""
        process = self.processes["coordinator"]
        process.terminate()
        process.wait(LIMIT_S)
        status = json.loads((self.folder / "coordinator" / "status.json").read_text())
        found: dict[str, Any] = status["tenants"][TENANT]
        return found


@contextmanager
def running(
    testbed: Testbed,
    folder: Path,
    port: int,
    command: Sequence[str],
    settings: Mapping[str, str] | None = None,
    replica: Path | None = None,
    bound: float = 0.0,
    resume: bool = False,
    dead_after: str = "30s",
) -> Iterator[JobApart]:
    """Start all roles, and end them with the context; `command` is the script of each worker, and its arguments.

    `replica` is the file of a replica, which may be behind by this `bound`; `resume`: the job begins with it.
    `dead_after` is the coordinator's option: if no worker dies, longer than a busy machine keeps one silent.
    """
    tokens = folder / "tokens"
    folder.mkdir(parents=True, exist_ok=True)
    tokens.write_text(f"{TENANT} 0123456789abcdef\n")
    tokens.chmod(0o600)
    address = f"{testbed.address('coordinator')}:{port + 1000}"
    prophet = [sys.executable, "-P", "-m", "prophet_scheduler.cli.main"]
    coordinate = [*prophet, "coordinate", "--token-file", str(tokens)]
    coordinate += ["--listen", address, "--server-rate", SERVER_RATE, "--rate", WORKER_RATE]
    coordinate += ["--batch", "50ms", "--dead-after", dead_after, "--status", "status.json"]
    of_replica: dict[str, str] = {}
    if replica is not None:
        coordinate += ["--divergence-bound", str(bound)]
        of_replica = {"PROPHET_REPLICA": str(replica), **({"PROPHET_RESUME": str(replica)} if resume else {})}
    with Job(testbed, folder, port, WORKERS) as job:
        apart = JobApart(folder, job, coordinate)
        try:
            apart.start_coordinator()
            for role in ("scheduler", "server"):
                apart.processes[role] = job.start(role, SERVE, ASYNCHRONOUS)
            for worker in WORKERS:
                own = {
                    **ASYNCHRONOUS,
                    **PATIENT,
                    "BYTEPS_SCHEDULER": "mlfabric",
                    "PROPHET_COORDINATOR": address,
                    "PROPHET_COORDINATOR_TOKEN_FILE": str(tokens),
                    "PROPHET_PARTITION_BYTES": str(BLOCK_BYTES),
                    "PROPHET_COORDINATOR_BOUND_S": "12",
                    "PROPHET_NODE": worker,
                    **of_replica,
                    **(settings or {}),
                }
                apart.processes[worker] = job.fork(worker, command, own)
            yield apart
        finally:
            testbed.terminate_all()
