"""The networks and roles of real BytePS jobs, for tests: scheduler, server and workers as users start them.

Rule of this file: the testbed's nodes, each role's environment, folder and process, and their ends. A job computes by
the test's own script.
"""

from __future__ import annotations

import os
import re
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from subprocess import Popen, TimeoutExpired
from typing import Any, Protocol, Self, TypeVar

from prophet_scheduler.core.settings import SCHEDULER
from prophet_scheduler.lab.testbed import NodeSpec, Testbed
from support.forks import Forked, ForkServer, torch_server
from support.privileges import skip_without_namespaces
from support.programs import LATE, LATE_NS, clean_environ

T = TypeVar("T")

WORKERS = ("worker0", "worker1")
SERVERS = ("scheduler", "server")
SERVE = [sys.executable, "-c", "import byteps.server"]
SERVE_AGAIN = str(Path(__file__).with_name("serve_again.py"))
ONE_DEVICE = {
    "BYTEPS_LOCAL_RANK": "0",
    "BYTEPS_LOCAL_SIZE": "1",
    "BYTEPS_FORCE_DISTRIBUTED": "1",
    "NVIDIA_VISIBLE_DEVICES": "0",
}
"""Variables that bpslaunch would set for a process alone on its machine."""
PATIENT = {"PROPHET_WATCHDOG_S": "30"}
"""Setting for busy machines: one that stands still for a second must not make Prophet say that nothing has moved."""
PS_LITE = re.compile(r"^\[\d\d:\d\d:\d\d\] (\S+\.(cc|h):\d+: )?")
"""Prefix of a line of ps-lite."""
LAST_WORDS_S = 2.0
LAST_WORDS = 8000
"""Characters shown of each role's log if a job has run out of time."""


def nodes(bandwidth: float | None) -> list[NodeSpec]:
    """Return two workers at `bandwidth` bits per second, and an unlimited server and scheduler."""
    return [*(NodeSpec(worker, bandwidth) for worker in WORKERS), *(NodeSpec(node, None) for node in SERVERS)]


@contextmanager
def network(specs: Sequence[NodeSpec]) -> Iterator[Testbed]:
    """Make a testbed of these nodes; skip the test if there can be none."""
    skip_without_namespaces()
    with Testbed(list(specs)) as testbed:
        yield testbed


class Process(Protocol):
    """Process of a role, either started or forked."""

    @property
    def pid(self) -> int: ...
    def poll(self) -> int | None: ...
    def wait(self, timeout: float | None = None) -> int: ...
    def kill(self) -> None: ...
    def terminate(self) -> None: ...


class Job:
    """The roles of one job, each with its output in the file `log` of its own folder, `folder`/ROLE.

    The caller ends programs it started. Forked ones end with the context.
    """

    def __init__(self, testbed: Testbed, folder: Path, port: int, workers: Sequence[str] = WORKERS) -> None:
        self._testbed = testbed
        self._folder = folder
        self._port = port
        self._workers = workers
        self._sockets = tempfile.TemporaryDirectory(prefix="prophet-")  # names of UNIX sockets are short
        self._forked: list[Forked] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        for process in self._forked:
            process.close()
        self._sockets.cleanup()

    def place(self, node: str) -> Path:
        """Make and return the role's folder."""
        place = self._folder / node
        place.mkdir(parents=True, exist_ok=True)
        return place

    def variables(self, node: str) -> dict[str, str]:
        """Return the variables that a user of BytePS sets for the role at this node before bpslaunch."""
        sockets = Path(self._sockets.name, node)
        sockets.mkdir(exist_ok=True)
        variables = {
            "DMLC_ROLE": node.rstrip("0123456789"),
            "DMLC_NUM_WORKER": str(len(self._workers)),
            "DMLC_NUM_SERVER": "1",
            "DMLC_PS_ROOT_URI": self._testbed.address("scheduler"),
            "DMLC_PS_ROOT_PORT": str(self._port),
            "DMLC_NODE_HOST": self._testbed.address(node),
            "BYTEPS_SOCKET_PATH": str(sockets),
        }
        return variables | ({"DMLC_WORKER_ID": node.removeprefix("worker")} if node in self._workers else {})

    def start(self, node: str, command: Sequence[str], settings: Mapping[str, str]) -> Popen[bytes]:
        """Start a role's process in its folder, with `settings` beside the role's variables."""
        place = self.place(node)
        return self._testbed.popen(node, command, env=self._environ(node, settings), log=place / "log", cwd=place)

    def fork(
        self, node: str, command: Sequence[str], settings: Mapping[str, str], server: ForkServer | None = None
    ) -> Forked:
        """Start a role's script as `start` does, with torch, or the modules of `server`, imported already.

        Sleeps of stock BytePS may end late.
        """
        how: dict[str, Any] = {} if SCHEDULER in settings else {"late_ns": LATE_NS}
        how |= {"namespace": self._testbed.namespace(node), "memory": True}
        environ = self._environ(node, settings)
        process = (server or torch_server()).fork(command, self.place(node), environ, **how)
        self._forked.append(process)
        return process

    def _environ(self, node: str, settings: Mapping[str, str]) -> dict[str, str]:
        # The fault handler is for `write_stacks`.
        return clean_environ() | {"PYTHONFAULTHANDLER": "1"} | self.variables(node) | dict(settings)


@dataclass(frozen=True)
class Ended:
    """End of a worker: its exit status (None if it had to be killed), its output, and the time, in seconds."""

    status: int | None
    log: str
    after_s: float

    def lines(self, word: str) -> list[str]:
        """Return lines with `word` in them. ps-lite writes a line in pieces, and other lines may come in between."""
        return [PS_LITE.sub("", line) for line in self.log.splitlines() if word in line]


def run_job(
    testbed: Testbed,
    folder: Path,
    port: int,
    command: Sequence[str],
    settings: Mapping[str, Mapping[str, str]] | None = None,
    limit_s: float = 180.0,
    lives: int = 1,
    awaited: Sequence[str] = WORKERS,
    forked: bool = False,
) -> list[Ended]:
    """Run `command` with this Python on both workers until the `awaited` have ended, or for `limit_s` seconds.

    Then kill those still running. If time has run out, each role first writes its threads' stacks into its log, and the
    ends of all logs are printed for pytest to show. `settings`: more environment, by worker. `lives`: number of times
    that scheduler and server run, one after another, since they end when all workers have suspended; workers have
    SCHEDULERS_BEGUN, a file with the number begun. `forked`: the workers begin with torch imported already, which takes
    longer than most jobs. Sleeps of stock BytePS may end late. Return the ends of the workers, in their order.
    """
    settings = settings or {}
    with Job(testbed, folder, port) as job:
        begun = str(folder / "schedulers-begun")
        again = [sys.executable, "-P", SERVE_AGAIN, str(lives), begun]
        servers = [job.start(node, again, ONE_DEVICE) for node in SERVERS]
        processes: dict[str, Process] = {}
        for worker in WORKERS:
            own = {**ONE_DEVICE, **PATIENT, "SCHEDULERS_BEGUN": begun, **settings.get(worker, {})}
            if forked:
                processes[worker] = job.fork(worker, command, own)
            else:
                late = () if SCHEDULER in own else LATE
                processes[worker] = job.start(worker, [*late, sys.executable, "-P", *command], own)
        began = time.monotonic()
        ends: dict[str, tuple[int | None, float]] = {}
        try:
            while not ends.keys() >= set(awaited) and time.monotonic() - began < limit_s:
                for worker in set(WORKERS) - set(ends):
                    with suppress(TimeoutExpired):
                        ends[worker] = processes[worker].wait(0.05), time.monotonic() - began
            if not ends.keys() >= set(awaited):
                write_stacks([*servers, *processes.values()])
                print(f"the job still ran after {limit_s:g} s\n{last_words(folder, LAST_WORDS)}")
        finally:
            testbed.terminate_all()
    return [
        Ended(status, (folder / worker / "log").read_text(), after_s)
        for worker in WORKERS
        for status, after_s in [ends.get(worker, (None, limit_s))]
    ]


def write_stacks(processes: Iterable[Process]) -> None:
    """End those of a Job that still run, with their children. Each first writes the stacks of all its threads."""
    running = [process for process in processes if process.poll() is None]
    for process in running:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGABRT)
    ends_at = time.monotonic() + LAST_WORDS_S
    for process in running:
        with suppress(TimeoutExpired):
            process.wait(max(0.0, ends_at - time.monotonic()))


def last_words(folder: Path, length: int = 1500) -> str:
    """Return the ends of all roles' logs."""
    logs = sorted(folder.glob("*/log"))
    return "\n".join(f"--- {log.parent.name}\n{log.read_text(errors='replace')[-length:]}" for log in logs)


def side_by_side(*jobs: Callable[[], T]) -> list[T]:
    """Run jobs at the same time, each on its own testbed. Return their results.

    BytePS takes some idle seconds to end, which the jobs share. Times cannot be compared.
    """
    with ThreadPoolExecutor(len(jobs)) as pool:
        return [ended.result() for ended in [pool.submit(job) for job in jobs]]
