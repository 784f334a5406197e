"""Jobs of scripts that torchrun would start: some ranks on this machine, with gloo between them.

Rule of this file: starting and ending the ranks of one job. Which scripts there are and what must hold is in
test_ddp_scripts.py.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from scripts.jobs import JobFailed, _wait, last_words
from support.roles import clean_environ

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
        port = _free_port()
        connections: dict[str, socket.socket] = {}
        places = [folder / f"rank{rank}" for rank in range(ranks)]
        try:
            for rank, place in enumerate(places):
                place.mkdir(parents=True)
                environ = {
                    "MASTER_ADDR": "127.0.0.1",
                    "MASTER_PORT": str(port),
                    "WORLD_SIZE": str(ranks),
                    "LOCAL_WORLD_SIZE": str(ranks),
                    "RANK": str(rank),
                    "LOCAL_RANK": str(rank),
                } | dict(settings)
                request = {"script": str(script), "folder": str(place), "environ": environ, "memory": False}
                connection = connections[place.name] = self._connect()
                connection.sendall(json.dumps(request).encode() + b"\n")
            results = [place / "result.json" for place in places]
            failure = _wait(connections, time.monotonic() + limit_s, results, lambda: None)
        finally:
            for connection in connections.values():
                connection.close()
        if not failure and not all(path.exists() for path in results):
            failure = "a rank reported nothing"
        if failure:
            raise JobFailed(f"{script.stem}: {failure}\n{last_words(folder)}")
        return [json.loads(path.read_text()) for path in results]

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


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
