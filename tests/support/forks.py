"""Processes that begin where their framework is imported already, with Popen's ways.

Rule of this file: a forkserver (scripts/forkserver.py) from the side of who asks: its life, what it is asked, and each
process that it has forked. What the test was about is never in it: a server has imported what every such program
imports first, and nothing of BytePS or Prophet.
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
from types import TracebackType
from typing import Any, Self

from support.programs import clean_environ

FORKSERVER = Path(__file__).parents[1] / "scripts" / "forkserver.py"
TORCH = ("torch", "torch._dynamo", "numpy")
"""What a script with torch imports until it has its first optimizer, which takes longer than most jobs here."""
START_LIMIT_S = 60.0


class NoForks(Exception):
    """The server has not started, or has ended; the message ends with its last words."""


class Forked:
    """A process that a server has forked; its status is minus a signal where one ended it."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._answers = connection.makefile("r")
        self.pid = int(self._answer())
        self.returncode: int | None = None

    def fileno(self) -> int:
        """Readable when it has ended, or the server has."""
        return self._connection.fileno()

    def poll(self) -> int | None:
        return self._look(0.0)

    def wait(self, timeout: float | None = None) -> int:
        """Its status. Raises subprocess.TimeoutExpired after so many seconds."""
        status = self._look(timeout)
        if status is None:
            raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0.0)
        return status

    def kill(self) -> None:
        self._signal(signal.SIGKILL)

    def terminate(self) -> None:
        self._signal(signal.SIGTERM)

    def abort(self) -> None:
        """Has the server end it, after it has written where its threads are into its log."""
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        """Forgets it; where it still runs, the server ends it."""
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
    """One server, for processes at any time and from any thread, until it is closed or this process ends.

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
                stdin=subprocess.PIPE,  # at whose end it ends
                stdout=log,
                stderr=log,
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Ends it, and what it has forked."""
        assert self._server.stdin is not None
        self._server.stdin.close()
        self._server.wait()
        self._folder.cleanup()

    def fork(self, command: Sequence[str], folder: Path, environ: Mapping[str, str], **how: Any) -> Forked:
        """A process that runs `command`, as it would stand after `python`, in `folder`, where all that it prints is in
        the file `log`. `environ` is its whole environment. `how`: more of what forkserver.py can be asked.
        """
        request = {"command": list(command), "folder": str(folder), "environ": dict(environ), **how}
        connection = self._connect()
        connection.sendall(json.dumps(request).encode() + b"\n")
        return Forked(connection)

    def _connect(self) -> socket.socket:
        """A connection to the server, which may still be importing."""
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


def run_ranks(ranks: Mapping[Path, tuple[Sequence[str], Mapping[str, str]]], limit_s: float) -> None:
    """Runs ranks under Prophet together, each a command and its whole environment in a folder, which is made.

    Fails with what they printed where one fails, or is late.
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
    said = "\n".join((folder / "log").read_text()[-4000:] for folder in processes)
    assert statuses == [0] * len(statuses), said


_shared: dict[str, ForkServer] = {}
_lock = threading.Lock()


def torch_server() -> ForkServer:
    """The server with torch of all of this process's tests."""
    return _server("torch", {})


def ddp_server() -> ForkServer:
    """The same for ranks under Prophet, which comes to them before torch does."""
    return _server("ddp", {"PROPHET_SCHEDULER": "prophet"})


def _server(name: str, settings: Mapping[str, str]) -> ForkServer:
    with _lock:
        if name not in _shared:
            _shared[name] = ForkServer(TORCH, settings)
        return _shared[name]


def close_shared() -> None:
    """Ends what `torch_server` and `ddp_server` have started."""
    while _shared:
        _shared.popitem()[1].close()
