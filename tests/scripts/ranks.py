"""Jobs of scripts that torchrun would start: some ranks on this machine, with gloo between them.

Rule of this file: starting and ending the ranks of one job. Which scripts there are and what must hold is in
test_ddp_scripts.py.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from scripts.jobs import JobFailed, _wait
from support.forks import Forked, ForkServer
from support.programs import clean_environ, torchrun_variables
from support.roles import last_words
from tools.ports import free_port

HERE = Path(__file__).parent


class Ranks:
    """A forkserver of its own, for any number of jobs while the context lasts. `run` may be called from many threads.

    `settings` are the ranks' environment beside torchrun's own; `modules` are imported before a script starts.
    """

    def __init__(self, settings: Mapping[str, str], modules: tuple[str, ...]) -> None:
        self._settings = settings
        self._modules = modules

    def __enter__(self) -> Self:
        path = os.pathsep.join([str(HERE), str(HERE / "over_ddp")])
        self._environ = {"PYTHONPATH": path, "GLOO_SOCKET_IFNAME": "lo", **self._settings}
        self._server = ForkServer(self._modules, self._environ)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.close()

    def run(
        self, script: Path, folder: Path, limit_s: float, ranks: int = 2, settings: Mapping[str, str] = {}
    ) -> list[dict[str, Any]]:
        """Runs one job to its end and returns what each rank reported; raises JobFailed, also after `limit_s`."""
        places = [folder / f"rank{rank}" for rank in range(ranks)]
        results = [place / "result.json" for place in places]
        with contextlib.ExitStack() as stack:
            processes = self._start(script, places, settings, stack)
            failure = _wait(processes, time.monotonic() + limit_s, results, lambda: None)
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
            running = {process: name for name, process in self._start(script, places, settings, stack).items()}
            while running and time.monotonic() - began < limit_s:
                for process in select.select(list(running), [], [], 0.05)[0]:
                    ended[running.pop(process)] = process.wait(), time.monotonic() - began
            for process in running:
                process.abort()
                process.wait()
        return [ended.get(place.name, (None, limit_s)) for place in places]

    def _start(
        self, script: Path, places: Sequence[Path], settings: Mapping[str, str], stack: contextlib.ExitStack
    ) -> dict[str, Forked]:
        """Starts a rank in each of `places`; by their names, the processes, to be closed with `stack`."""
        port = free_port()
        processes: dict[str, Forked] = {}
        for rank, place in enumerate(places):
            place.mkdir(parents=True)
            environ = clean_environ() | self._environ | torchrun_variables(rank, len(places), port) | dict(settings)
            processes[place.name] = self._server.fork([str(script)], place, environ)
            stack.callback(processes[place.name].close)
        return processes
