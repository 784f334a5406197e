"""Jobs of scripts that torchrun would start: some ranks on this machine, with gloo between them.

Rule of this file: starting and ending the ranks of one job. Which scripts there are and what must hold is in
test_ddp_scripts.py.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from scripts.jobs import JobFailed, _wait
from support.programs import clean_environ, torchrun_variables
from support.roles import last_words
from tools.ports import free_port

START_LIMIT_S = 60.0
HERE = Path(__file__).parent


class Ranks:
    """A forkserver of its own, for any number of jobs while the context lasts. `run` may be called from many threads.

    `settings` are the ranks' environment beside torchrun's own; `modules` are imported before a script starts.
    """

    def __init__(self, settings: Mapping[str, str], modules: tuple[str, ...]) -> None:
        self._settings = settings
        self._modules = modules
        self._folder = tempfile.TemporaryDirectory(prefix="prophet-")  # names of UNIX sockets are short
        self._socket = Path(self._folder.name, "socket")
        self._log = self._socket.with_suffix(".log")

    def __enter__(self) -> Self:
        program = [sys.executable, "-P", str(HERE / "forkserver.py"), str(self._socket), *self._modules]
        path = os.pathsep.join([str(HERE), str(HERE / "over_ddp")])
        environ = clean_environ() | {"PYTHONPATH": path, "GLOO_SOCKET_IFNAME": "lo"} | dict(self._settings)
        with self._log.open("wb") as log:
            self._server = subprocess.Popen(program, env=environ, stdout=log, stderr=log)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.kill()
        self._server.wait()
        self._folder.cleanup()

    def run(
        self, script: Path, folder: Path, limit_s: float, ranks: int = 2, settings: Mapping[str, str] = {}
    ) -> list[dict[str, Any]]:
        """Runs one job to its end and returns what each rank reported; raises JobFailed, also after `limit_s`."""
        places = [folder / f"rank{rank}" for rank in range(ranks)]
        results = [place / "result.json" for place in places]
        with contextlib.ExitStack() as stack:
            connections = self._start(script, places, settings, stack)
            failure = _wait(connections, time.monotonic() + limit_s, results, lambda: None)
        if not failure and not all(path.exists() for path in results):
            failure = "a rank reported nothing"
        if failure:
            raise JobFailed(f"{script.stem}: {failure}\n{last_words(folder)}")
        return [json.loads(path.read_text()) for path in results]

    def ends(
        self, script: Path, places: Sequence[Path], limit_s: float, settings: Mapping[str, str] = {}
    ) -> list[tuple[int | None, float]]:
        """Runs one job, a rank in each of `places`; how each ended, well or not: (status, seconds).

        The status of what had to be ended after `limit_s` is None, and below 0 that of a signal.
        """
        began = time.monotonic()
        ended: dict[str, tuple[int | None, float]] = {}
        with contextlib.ExitStack() as stack:
            running = {connection: name for name, connection in self._start(script, places, settings, stack).items()}
            while running and time.monotonic() - began < limit_s:
                for connection in select.select(list(running), [], [], 0.05)[0]:
                    status = int(connection.recv(16).decode())
                    ended[running.pop(connection)] = status, time.monotonic() - began
            for connection in running:
                connection.shutdown(socket.SHUT_WR)
                connection.recv(16)
        return [ended.get(place.name, (None, limit_s)) for place in places]

    def _start(
        self, script: Path, places: Sequence[Path], settings: Mapping[str, str], stack: contextlib.ExitStack
    ) -> dict[str, socket.socket]:
        """Starts a rank in each of `places`; by their names, what answers when it ends, to be closed with `stack`."""
        port = free_port()
        connections: dict[str, socket.socket] = {}
        for rank, place in enumerate(places):
            place.mkdir(parents=True)
            environ = torchrun_variables(rank, len(places), port) | dict(settings)
            request = {"script": str(script), "folder": str(place), "environ": environ, "memory": False}
            connection = connections[place.name] = stack.enter_context(self._connect())
            connection.sendall(json.dumps(request).encode() + b"\n")
        return connections

    def _connect(self) -> socket.socket:
        """A connection to the forkserver, which may still be importing."""
        deadline = time.monotonic() + START_LIMIT_S
        while True:
            connection = socket.socket(socket.AF_UNIX)
            try:
                connection.connect(str(self._socket))
                return connection
            except OSError:
                connection.close()
            if time.monotonic() > deadline or self._server.poll() is not None:
                raise JobFailed(f"no forkserver: {self._log.read_text()[-2000:]}")
            time.sleep(0.02)
