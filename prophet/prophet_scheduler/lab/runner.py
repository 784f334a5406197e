"""Runner of an experiment: start the roles of each job on a testbed, watch them, and collect their files.

Rule of this file: processes, files and time limits. Testbed, clock and sleep are passed in. Policies are interleaved
(A B C, A B C), so that a slow drift of the machine affects all of them. A run that fails or hangs is reported with the
last lines of every role and is never repeated.
"""

from __future__ import annotations

import itertools
import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol, TypeVar

from prophet_scheduler.core import settings
from prophet_scheduler.core.errors import UserError
from prophet_scheduler.core.files import write_whole
from prophet_scheduler.core.status import AgentStatus
from prophet_scheduler.engines.spec import RunNetwork, is_worker
from prophet_scheduler.lab.changes import changes
from prophet_scheduler.lab.config import Cell, Experiment
from prophet_scheduler.lab.contenders import Contender
from prophet_scheduler.lab.faults import FaultKind
from prophet_scheduler.lab.job_config import ReplayJob
from prophet_scheduler.lab.jobs.record import WorkerRecord, progress_path
from prophet_scheduler.lab.launchers import command, environment, nodes_of
from prophet_scheduler.lab.records import read_status, read_worker
from prophet_scheduler.lab.runs import EVENTS_FILE, PROFILE_FILE, STATUS_FILE, CellRuns, Run
from prophet_scheduler.lab.testbed import Testbed
from prophet_scheduler.models.profiles import save_profile

T = TypeVar("T")

POLL_S = 0.1
TAIL_LINES = 5
FIRST_PORT = 23000
"""Port of the first run; every run has its own, since a used port stays busy for a while."""
ERROR_MARKS = ("Error:", "Check failed", "what():")
"""Marks of an error in a log line: Python's, ps-lite's and MXNet's, and those of C++ exceptions."""


@dataclass(frozen=True)
class Edges:
    """Clock and sleep function of the runner, in seconds."""

    now: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep


class ProgressListener(Protocol):
    def run_starts(self, cell: Cell, policy: Contender, repeat: int) -> None: ...
    def iterations(self, done: int) -> None: ...
    def run_ends(self, error: str | None) -> None: ...


class JobFailed(Exception):
    """Failure of a job; the message is one line."""


def run_experiment(
    experiment: Experiment,
    out: Path,
    hosts: Callable[[Cell], AbstractContextManager[Testbed]],
    listener: ProgressListener,
    edges: Edges | None = None,
    obstacle: Callable[[Contender], str | None] = lambda policy: None,
) -> list[CellRuns]:
    """Run all policies of every cell `repeats` times; logs and records go under `out/runs`.

    `obstacle` returns, in one line, why a policy cannot start on this machine; None if it can. An obstacle becomes the
    error of the policy's runs, and the other policies run.
    """
    ports = itertools.count(FIRST_PORT)
    done = []
    for number, cell in enumerate(experiment.cells):
        with hosts(cell) as host:

            def run(point: Cell, policy: Contender, repeat: int, folder: Path, host: Testbed = host) -> Run:
                if (reason := obstacle(policy)) is not None:
                    return Run(folder, error=reason)
                place = host, folder, next(ports), experiment.time_limit_s, edges or Edges()
                return JobRun(point, _with_faults(policy, point), *place).run(listener.iterations)

            links, round_trips = host.check(), host.check_round_trips()
            runs = run_repeats(cell, experiment.repeats, out / "runs" / f"cell{number}", listener, run)
        done.append(CellRuns(cell, links, runs, round_trips=round_trips))
    return done


def run_repeats(
    cell: Cell, repeats: int, folder: Path, listener: ProgressListener, run: Callable[[Cell, Contender, int, Path], Run]
) -> dict[str, list[Run]]:
    """Run all policies, interleaved: `run(cell, policy, repeat from 0, the run's own folder)`."""
    runs: dict[str, list[Run]] = {policy.name: [] for policy in cell.policies}
    for repeat in range(repeats):
        for policy in cell.policies:
            point = cell.of(policy)
            listener.run_starts(point, policy, repeat)
            finished = run(point, policy, repeat, folder / f"{policy.name}-repeat{repeat + 1}")
            listener.run_ends(finished.error)
            runs[policy.name].append(finished)
    return runs


@dataclass
class JobRun:
    """One training job on the testbed, from start to end. `folder` has each node's log and records."""

    cell: Cell
    policy: Contender
    host: Testbed
    folder: Path
    port: int
    limit_s: float
    edges: Edges

    def __post_init__(self) -> None:
        self._nodes = nodes_of(self.policy.engine, self.cell.cluster)
        self._workers = [node for node in self._nodes if is_worker(node)]
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._killed: dict[str, bool] = {}
        """Nodes killed by a fault; False once the program has restarted."""
        self._broke_at: float | None = None

    def _record(self, node: str, suffix: str) -> Path:
        return self.folder.resolve() / f"{node}.{suffix}"

    def _result(self, worker: str) -> Path:
        return self._record(worker, "json")

    def _finished(self, worker: str) -> int:
        """Return the number of the worker's finished iterations."""
        progress = progress_path(self._result(worker))
        return progress.read_bytes().count(b"\n") if progress.exists() else 0

    def _logs(self, node: str) -> tuple[Path, Path]:
        """Return the log of the node's program, and the log after its restart."""
        return self.folder / f"{node}.log", self.folder / f"{node}.again.log"

    def _log_lines(self, node: str) -> list[str]:
        logs = [log for log in self._logs(node) if log.exists()]
        text = "".join(log.read_text(encoding="utf-8", errors="replace") for log in logs)
        return [line for line in text.splitlines() if line.strip()]

    def run(self, on_iterations: Callable[[int], None]) -> Run:
        """Run the job until it finishes or fails, and leave no process running."""
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)
        # Paths of UNIX sockets must be short, so sockets are not under the user's folder.
        with tempfile.TemporaryDirectory(prefix="prophet-") as sockets:
            try:
                self._sockets = Path(sockets)
                self._spec = self._write_spec()
                for node in self._nodes:
                    self.start(node)
                self._wait(on_iterations)
                workers, statuses = self._collect()
            except JobFailed as failure:
                after_s = None if self._broke_at is None else self.edges.now() - self._broke_at
                tails = {node: self._log_lines(node)[-TAIL_LINES:] for node in self._nodes}
                return Run(self.folder, error=str(failure), log_tail=tails, ended_after_s=after_s)
            finally:
                self.host.terminate_all()
                self._mend()
        recuts_s = [status.last_recut_s for status in statuses if status.last_recut_s is not None]
        return Run(self.folder, workers, statuses, recut_s=max(recuts_s, default=None))

    def start(self, node: str) -> None:
        """Start the node's program, or restart it after a kill."""
        again = node in self._processes
        private, working = self._sockets / node, self._record(node, "cwd")
        private.mkdir(exist_ok=again)
        working.mkdir(exist_ok=again)
        options = ["--spec", str(self._spec), "--out", str(self._result(node))]
        argv = command(self.policy, node, self.cell.job.kind, options)
        env, log = self._environment(node, private), self._logs(node)[again]
        self._processes[node] = self.host.popen(node, argv, env=env, log=log, cwd=working)
        if again:
            self._killed[node] = False

    def kill(self, node: str) -> None:
        """Kill the node's program; its machine stays and closes its connections."""
        self._killed[node] = True
        self.host.send_signal(node, signal.SIGKILL)

    def _mend(self) -> None:
        """Restore the network to its state before the job."""
        cluster = self.cell.cluster
        slow = {fault.node for fault in cluster.faults if fault.node and fault.kind is FaultKind.SLOW_LINK}
        for node in (*self._workers, *sorted(slow.difference(self._workers))):
            self.host.set_bandwidth(node, cluster.bandwidth.rate(node))
        for node in {traffic.node for traffic in cluster.traffic}:
            self.host.set_traffic(node, None)
        for fault in cluster.faults:
            if fault.kind is FaultKind.LINK_DOWN and fault.node is not None:
                self.host.set_link(fault.node, passes=True)

    def _write_spec(self) -> Path:
        """Write the workers' spec, the same for every policy."""
        job = self.cell.job
        spec = job.model_dump(mode="json")
        if isinstance(job, ReplayJob):
            assert self.cell.profile is not None
            profile = self.folder / "profile.json"
            save_profile(self.cell.profile, profile, source=f"made from {job.profile!r} for an experiment")
            spec["profile"] = str(profile.resolve())
        path = self.folder / "spec.json"
        write_whole(json.dumps(spec, indent=2) + "\n", path)
        return path.resolve()

    def _environment(self, node: str, sockets: Path) -> dict[str, str]:
        """Return the environment of a node's process: the engine's settings and, for a worker, its records' paths."""
        cluster = self.cell.cluster
        addresses = {name: self.host.address(name) for name in cluster.nodes}
        rates = {name: cluster.bandwidth.rate(name) for name in cluster.nodes}
        place = addresses, self.host.interface(node), self.port, str(sockets)
        network = RunNetwork(cluster.workers, cluster.servers, *place, rates)
        env = environment(self.policy, node, network, os.environ)
        if node in self._workers and self.policy.recorded:
            env[settings.PROFILE_OUT] = str(self._record(node, PROFILE_FILE))
            env[settings.EVENTS_OUT] = str(self._record(node, EVENTS_FILE))
            env[settings.STATUS_OUT] = str(self._record(node, STATUS_FILE))
        return env

    def _wait(self, on_iterations: Callable[[int], None]) -> None:
        """Wait until every worker has exited with status 0. Raises JobFailed otherwise."""
        progress, progressed_s = -1, self.edges.now()
        schedule = changes(self.cell.cluster, self._workers, self.host, self.kill, self.start)
        coming = next(schedule, None)
        trained_since: float | None = None
        while True:
            codes = {node: process.poll() for node, process in self._processes.items()}
            dead = sorted(node for node, is_dead in self._killed.items() if is_dead)
            gone = [node for node, code in codes.items() if code not in (None, 0) and node not in dead]
            # A killed program may bring down others, but only the workers decide whether the job fails.
            fallen = [node for node in gone if self._killed and node not in self._workers]
            if failed := [node for node in gone if node not in fallen]:
                raise JobFailed(self._how_it_ended(failed[0], codes) + self._fell_before(fallen, codes))
            if (fault := self.host.fault()) is not None:
                raise JobFailed(fault)
            if all(codes[worker] == 0 for worker in self._workers):
                return
            alive = [worker for worker in self._workers if worker not in dead]
            if len(alive) < len(self._workers) and all(codes[worker] == 0 for worker in alive):
                raise JobFailed(f"{', '.join(dead)} was killed, and the others ended without it")
            now = self.edges.now()
            finished = [self._finished(worker) for worker in self._workers]
            on_iterations(min(finished))
            before, progress = progress, sum(finished) + sum(codes[worker] == 0 for worker in self._workers)
            if progress != before:
                progressed_s = now
            elif now - progressed_s >= self.limit_s:
                counts = ", ".join(f"{w} {n}" for w, n in zip(self._workers, finished, strict=True))
                total = self.cell.job.iterations
                hung = f"hung: nothing for {self.limit_s:g} s (iterations of {total} done: {counts})"
                raise JobFailed(hung + self._fell_before(fallen, codes))
            if trained_since is None and min(finished) > 0:
                trained_since = now
            while trained_since is not None and coming is not None and now - trained_since >= coming.at_s:
                coming.make()
                if coming.breaks and self._broke_at is None:
                    self._broke_at = now
                coming = next(schedule, None)
            self.edges.sleep(POLL_S)

    def _how_it_ended(self, node: str, codes: Mapping[str, int | None]) -> str:
        late = node in self._workers and self._result(node).exists()
        when = " after its last iteration" if late else ""
        return f"{node} ended with status {codes[node]}{when}: {last_words(self._log_lines(node))}"

    def _fell_before(self, nodes: Sequence[str], codes: Mapping[str, int | None]) -> str:
        """Describe the programs that failed earlier, without those that a fault killed."""
        return "".join(f" ({self._how_it_ended(node, codes)})" for node in nodes)

    def _collect(self) -> tuple[tuple[WorkerRecord, ...], tuple[AgentStatus, ...]]:
        """Return the workers' results and Prophet's statuses. Raises JobFailed if one is missing."""
        results, statuses = [], []
        for worker in self._workers:
            results.append(_read(read_worker, self._result(worker), f"{worker} left no result"))
        for worker in self._workers if self.policy.recorded else ():
            # Prophet steps aside rather than fail a job, so a run of the stock engine could be taken for one of
            # Prophet.
            stock = f"without Prophet: {worker} ran with stock {self.policy.engine.words} instead of {self.policy.base}"
            statuses.append(_read(read_status, self._record(worker, STATUS_FILE), stock))
        for worker, status in zip(self._workers, statuses, strict=False):
            if status.stepped_aside:
                raise JobFailed(f"Prophet stepped aside in {worker}: {status.stepped_aside}")
        return tuple(results), tuple(statuses)


def _with_faults(policy: Contender, cell: Cell) -> Contender:
    """Return `policy` with the variables for dropped messages; its own values win."""
    env: dict[str, str] = {}
    loss = policy.engine.message_loss
    for fault in cell.cluster.faults:
        if fault.percent is not None and loss is not None:
            env |= loss(fault.percent)
    return replace(policy, env={**env, **policy.env})


def last_words(log: Sequence[str]) -> str:
    """Return the last line of a log with an error's mark, or else the last line."""
    errors = [line for line in log if any(mark in line for mark in ERROR_MARKS)]
    return (errors or list(log) or ["it said nothing"])[-1].strip()


def _read(read: Callable[[Path], T], path: Path, absent: str) -> T:
    """Read a worker's record. Raises JobFailed, with `absent` if it is missing, or with the error in it."""
    if not path.exists():
        raise JobFailed(absent)
    try:
        return read(path)
    except UserError as error:
        raise JobFailed(str(error)) from None
