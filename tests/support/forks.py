"""Processes that begin with their framework imported already, with Popen's methods.

Rule of this file: a forkserver (scripts/forkserver.py) from the client's side: its life, its requests, and the
processes it has forked. The subject of the test is never in it: a server has imported the first modules of every such
program, and nothing of BytePS or Prophet.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from support.programs import clean_environ

FORKSERVER = Path(__file__).parents[1] / "scripts" / "forkserver.py"
TORCH = ("torch", "torch._dynamo", "numpy")
"""Modules that a script with torch imports before its first optimizer, which takes longer than most jobs here."""
START_LIMIT_S = 180.0


class NoForks(Exception):
    """The server has not started, or has ended; the message ends with its last words."""


class Forked:
    """A process that a server has forked; its status is minus the signal if one ended it."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._answers = connection.makefile("r")
        self.pid = int(self._answer())
        self.returncode: int | None = None

    def fileno(self) -> int:
        """Return a descriptor that is readable when it has ended, or the server has."""
        return self._connection.fileno()

    def poll(self) -> int | None:
        return self._look(0.0)

    def wait(self, timeout: float | None = None) -> int:
        """Return its status. subprocess.TimeoutExpired after `timeout` seconds."""
        status = self._look(timeout)
        if status is None:
            raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0.0)
        return status

    def kill(self) -> None:
        self._signal(signal.SIGKILL)

    def terminate(self) -> None:
        self._signal(signal.SIGTERM)

    def abort(self) -> None:
        """Have the server end it, after it has written the stacks of its threads into its log."""
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        """Forget it; if it still runs, the server ends it."""
        self._answers.close()
        self._connection.close()

    def _signal(self, number: signal.Signals) -> None:
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def _look(self, timeout_s: float | None) -> int | None:
        if self.returncode is None and select.select([self._connection], [], [], timeout_s)[0]:
            self.returncode = int(self._answer())
            self.close()
        return self.returncode

    def _answer(self) -> str:
        answer = self._answers.readline()
        if not answer:
            raise NoForks("the forkserver has ended")
        return answer


class ForkServer:
    """A server, for processes at any time and from any thread, until it is closed or this process ends.

    `settings` are its own environment beside the clean one; `modules` are imported first.
    """

    def __init__(self, modules: Sequence[str] = TORCH, settings: Mapping[str, str] = {}) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="prophet-")  # names of UNIX sockets are short
        self._socket = Path(self._folder.name, "socket")
        self._log = self._socket.with_suffix(".log")
        program = [sys.executable, "-P", str(FORKSERVER), str(self._socket), *modules]
        with self._log.open("wb") as log:
            self._server = subprocess.Popen(
                program,
                env=clean_environ() | dict(settings),
                stdin=subprocess.PIPE,  # it ends when this closes
                stdout=log,
                stderr=log,
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def close(self) -> None:
        """End it, and all processes it has forked."""
        assert self._server.stdin is not None
        self._server.stdin.close()
        self._server.wait()
        self._folder.cleanup()

    def fork(self, command: Sequence[str], folder: Path, environ: Mapping[str, str], **how: Any) -> Forked:
        """Start a process that runs `command`, as written after `python`, in `folder`; its output is in the file `log`
        there. `environ` is its whole environment. `how`: more options of forkserver.py.
        """
        request = {"command": list(command), "folder": str(folder), "environ": dict(environ), **how}
        connection = self._connect()
        connection.sendall(json.dumps(request).encode() + b"\n")
        return Forked(connection)

    def _connect(self) -> socket.socket:
        """Return a connection to the server, which may still be importing."""
        deadline = time.monotonic() + START_LIMIT_S
        while True:
            connection = socket.socket(socket.AF_UNIX)
            try:
                connection.connect(str(self._socket))
                return connection
            except OSError:
                connection.close()
            if time.monotonic() > deadline or self._server.poll() is not None:
                raise NoForks(f"no forkserver: {self._log.read_text()[-2000:]}")
            time.sleep(0.02)


def end_ranks(ranks: Mapping[Path, tuple[Sequence[str], Mapping[str, str]]], limit_s: float) -> list[tuple[int, str]]:
    """Run ranks under Prophet together, each a command and its whole environment in a folder, which is made.

    Return each one's status and output. Fail if one is late.
    """
    ends_at = time.monotonic() + limit_s
    processes: dict[Path, Forked] = {}
    try:
        for folder, (command, environ) in ranks.items():
            folder.mkdir()
            processes[folder] = ddp_server().fork(command, folder, environ)
        statuses = [process.wait(max(0.0, ends_at - time.monotonic())) for process in processes.values()]
    finally:
        for process in processes.values():
            process.close()
    return [(status, (folder / "log").read_text()) for status, folder in zip(statuses, processes, strict=True)]


def run_ranks(ranks: Mapping[Path, tuple[Sequence[str], Mapping[str, str]]], limit_s: float) -> list[str]:
    """Run ranks as `end_ranks` does. Return each one's output. Fail with their output if one fails or is late."""
    ended = end_ranks(ranks, limit_s)
    assert [status for status, _ in ended] == [0] * len(ended), "\n".join(said[-4000:] for _, said in ended)
    return [said for _, said in ended]


_shared: dict[str, ForkServer] = {}
_lock = threading.Lock()


def torch_server() -> ForkServer:
    """Return the server with torch for all of this process's tests."""
    return _server("torch", {})


def ddp_server() -> ForkServer:
    """Return the server for ranks under Prophet, which they import before torch."""
    return _server("ddp", {"PROPHET_SCHEDULER": "prophet"})


def _server(name: str, settings: Mapping[str, str]) -> ForkServer:
    with _lock:
        if name not in _shared:
            _shared[name] = ForkServer(TORCH, settings)
        return _shared[name]


def close_shared() -> None:
    """End the servers that `torch_server` and `ddp_server` have started."""
    while _shared:
        _shared.popitem()[1].close()
