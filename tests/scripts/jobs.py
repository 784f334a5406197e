"""Jobs of training scripts: two workers, a server and a scheduler on a narrow network.

Rule of this file: starting and ending what a job consists of. Which scripts there are and what must hold is in
test_scripts.py.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import select
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pytest

from prophet_scheduler.lab.testbed import Testbed
from support.forks import Forked, ForkServer
from support.roles import ONE_DEVICE, SERVE, SERVERS, WORKERS, Job, last_words, nodes

LINK_BPS = 20e6
"""An iteration's transfers take longer than its compute, so that a missing wait shows."""
FIRST_PORT = 23000
POLL_S = 0.05


Reports = list[dict[str, Any]]
"""What each worker of a job reported."""


class JobFailed(Exception):
    """A worker failed or hung; the message ends with every role's last words."""


class Ahead:
    """Jobs of the tests that were chosen, run ahead of the tests that wait for them, `at_a_time` of them."""

    def __init__(self, request: pytest.FixtureRequest, folder: Path, at_a_time: int) -> None:
        items: Any = [item for item in request.session.items if item.path == request.path]
        self.chosen = [item.callspec.params for item in items if hasattr(item, "callspec")]
        """Parameters of each test."""
        self._folder = folder
        self._pool = ThreadPoolExecutor(at_a_time)
        self._runs: dict[tuple[str, str], Future[Reports]] = {}

    def add(self, mode: str, name: str, run: Callable[..., Reports], script: Path, *arguments: Any) -> None:
        """Have `run(script, folder, *arguments)` run the job of this name, unless there is one."""
        if (mode, name) not in self._runs:
            self._runs[mode, name] = self._pool.submit(run, script, self.place(mode, name), *arguments)

    def result(self, mode: str, name: str) -> Reports:
        """Return what each worker reported; fails with the roles' last words."""
        try:
            return self._runs[mode, name].result()
        except JobFailed as error:
            pytest.fail(f"under {mode}: {error}", pytrace=False)

    def place(self, mode: str, name: str) -> Path:
        """Return the job's folder, which has one for each worker."""
        return self._folder / mode / name

    def close(self) -> None:
        self._pool.shutdown(cancel_futures=True)


class Cluster:
    """Nodes whose workers begin in a forkserver, for any number of jobs while the context lasts.

    BytePS takes some four idle seconds to end, so `run` may be called from several threads: a job holds one of `turns`
    until its workers have reported. BytePS's threads poll, so jobs that train together mostly wait for each other.
    `settings` are the workers' environment beside BytePS's own.
    """

    def __init__(self, settings: Mapping[str, str], server: ForkServer, turns: threading.Semaphore) -> None:
        self._testbed = Testbed(nodes(LINK_BPS))
        self._settings = settings
        self._server = server
        self._ports = itertools.count(FIRST_PORT)
        self._turns = turns

    def __enter__(self) -> Self:
        self._testbed.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._testbed.__exit__(kind, error, trace)

    def run(self, script: Path, folder: Path, limit_s: float) -> list[dict[str, Any]]:
        """Runs one job to its end and returns what each worker reported; raises JobFailed, also after `limit_s`."""
        results = [folder / worker / "result.json" for worker in WORKERS]
        turn = contextlib.ExitStack()
        turn.enter_context(self._turns)
        port = next(self._ports)
        others = []
        with turn, Job(self._testbed, folder, port) as job:
            try:
                for node in SERVERS:
                    others.append(job.start(node, SERVE, ONE_DEVICE))
                settings = {**ONE_DEVICE, **self._settings}
                workers = {node: job.fork(node, [str(script)], settings, self._server) for node in WORKERS}
                failure = _wait(workers, time.monotonic() + limit_s, results, turn.close)
            finally:
                for process in others:  # They end by themselves, unless a worker failed.
                    process.kill()
                    process.wait()
        if not failure and not all(path.exists() for path in results):
            failure = "a worker reported nothing"
        if failure:
            raise JobFailed(f"{script.stem}: {failure}\n{last_words(folder)}")
        return [json.loads(path.read_text()) for path in results]


def _wait(workers: Mapping[str, Forked], deadline: float, results: Sequence[Path], trained: Callable[[], None]) -> str:
    """Waits for all workers' ends; says which of them failed, after ending the others, or nothing.

    Calls `trained` when all `results` are there; `deadline` is a time.monotonic().
    """
    running = {process: worker for worker, process in workers.items()}
    failure = ""
    while running:
        ready, _, _ = select.select(list(running), [], [], POLL_S)
        for process in ready:
            worker = running.pop(process)
            status = process.wait()
            if status != 0 and not failure:
                failure = f"{worker} ended with status {status}"
        if all(path.exists() for path in results):
            trained()
        if running and not failure and time.monotonic() > deadline:
            failure = f"{' and '.join(running.values())} still ran after the time limit"
        if failure:
            for process in running:
                process.abort()
    return failure
