"""The roles of a real BytePS job on the testbed, for tests: scheduler, servers and workers as users start them.

Rule of this file: environments, processes and their ends. What a job computes is the test's own script.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from subprocess import TimeoutExpired

from prophet.lab.testbed import NodeSpec, Testbed

WORKERS = ("worker0", "worker1")
SERVERS = ("scheduler", "server")

SERVE = """
import subprocess, sys
for _ in range({}):
    subprocess.run([sys.executable, "-c", "import byteps.server"], check=True)
"""


def nodes(bandwidth: float) -> list[NodeSpec]:
    """Two workers at `bandwidth` bits per second, and a server and a scheduler that are not limited."""
    return [*(NodeSpec(worker, bandwidth) for worker in WORKERS), *(NodeSpec(node, None) for node in SERVERS)]


@dataclass(frozen=True)
class Ended:
    """How a worker ended: its exit status (None where it had to be killed), its output, and when, in seconds."""

    status: int | None
    log: str
    after_s: float

    def lines(self, word: str) -> list[str]:
        return [line for line in self.log.splitlines() if word in line]


def run_job(
    testbed: Testbed,
    folder: Path,
    port: int,
    command: Sequence[str],
    settings: Mapping[str, Mapping[str, str]] | None = None,
    limit_s: float = 60.0,
    lives: int = 1,
) -> list[Ended]:
    """Runs `command` with this Python on both workers until they end, or are killed after `limit_s` seconds.

    Each role works in a folder of its own, `folder`/ROLE, with its output in the file `log`. `settings`: more
    environment, by worker. `lives`: how often the scheduler and the server run, one after another, since they end when
    all workers have suspended. Returns how the workers ended, in their order.
    """
    settings = settings or {}
    with tempfile.TemporaryDirectory(prefix="prophet-") as sockets:  # names of UNIX sockets are short
        processes = {}
        for node in (*SERVERS, *WORKERS):
            place = folder / node
            place.mkdir(parents=True)
            Path(sockets, node).mkdir()
            environ = {k: v for k, v in os.environ.items() if not k.startswith(("BYTEPS_", "DMLC_", "PROPHET_"))}
            environ |= {
                "DMLC_ROLE": node.rstrip("0123456789"),
                "DMLC_NUM_WORKER": str(len(WORKERS)),
                "DMLC_NUM_SERVER": "1",
                "DMLC_PS_ROOT_URI": testbed.address("scheduler"),
                "DMLC_PS_ROOT_PORT": str(port),
                "DMLC_NODE_HOST": testbed.address(node),
                "BYTEPS_LOCAL_RANK": "0",
                "BYTEPS_LOCAL_SIZE": "1",
                "BYTEPS_FORCE_DISTRIBUTED": "1",
                "BYTEPS_SOCKET_PATH": str(Path(sockets, node)),
                "NVIDIA_VISIBLE_DEVICES": "0",
                "OMP_NUM_THREADS": "1",
            }
            role_command = [sys.executable, "-c", SERVE.format(lives)]
            if node in WORKERS:
                environ |= {"DMLC_WORKER_ID": node.removeprefix("worker"), **settings.get(node, {})}
                role_command = [sys.executable, "-P", *command]
            processes[node] = testbed.popen(node, role_command, env=environ, log=place / "log", cwd=place)
        began = time.monotonic()
        ends: dict[str, tuple[int | None, float]] = {}
        try:
            while len(ends) < len(WORKERS) and time.monotonic() - began < limit_s:
                for worker in set(WORKERS) - set(ends):
                    with suppress(TimeoutExpired):
                        ends[worker] = processes[worker].wait(0.05), time.monotonic() - began
        finally:
            testbed.terminate_all()
    return [
        Ended(status, (folder / worker / "log").read_text(), after_s)
        for worker in WORKERS
        for status, after_s in [ends.get(worker, (None, limit_s))]
    ]
