"""Cost of being watched: the status socket, the record and the figures, each on and off, in one run.

Rule of this file: the job's ranks, and who asks them. The job is a real one of
DistributedDataParallel under Prophet on this machine's loopback, whose turns are interleaved (overhead_job.py). While
it trains it is asked for its status and its figures each second, as `prophet top` and Prometheus do. `make overhead`
runs it, for about six minutes on a quiet machine.

Wall time scatters by a percent from turn to turn, which is more than watching takes. So what watching takes is
counted: processor time of its threads, and of what training's own threads do for it.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from prophet_scheduler.cli.top import ask_all, statuses
from prophet_scheduler.cli.top_view import view
from prophet_scheduler.core.errors import UserError
from prophet_scheduler.lab.launchers import without_jobs
from tools.overhead_job import ASKED, VARIANTS
from tools.ports import free_port

RANKS = 2
BLOCK_BYTES = 256 * 1024
"""Size of all blocks, so that they are the same in all turns."""
JUDGED_EVERY_S = 3600.0
"""Seconds between plans. The first rank plans once, before the first turn: more learning would outweigh watching."""
SETTINGS = {
    **{"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"},
    **{"PROPHET_SCHEDULER": "prophet", "PROPHET_CACHE": "off", "PROPHET_QUIET": "1"},
    **{"PROPHET_PARTITION_BYTES": str(BLOCK_BYTES), "PROPHET_MONITOR_S": str(JUDGED_EVERY_S)},
}
LOG = "ranks.log"
ASK_EVERY_S = 1.0
WIDTH_OF_TOP = 120
"""Letters in a row of the terminal."""
TRIM = 0.02
"""Longest share of a turn's iterations, left out: the machine did something else in these."""


def mean_s(times: Sequence[float]) -> float:
    """Return the mean of a turn's iterations, without the longest few."""
    ranked = sorted(times)
    return statistics.fmean(ranked[: max(1, len(ranked) - int(len(ranked) * TRIM))])


def read_ranks(folder: Path) -> dict[str, list[dict[str, Any]]]:
    """Return the turns and calls that the ranks left. Raises UserError if one left nothing.

    A turn has its mean iteration, and for one iteration its processor time, that of Prophet's threads in it, and of
    that the time of the code that only watches, in seconds. Calls are of training's threads for watching: count an
    iteration, and seconds of one.
    """
    found: dict[str, list[dict[str, Any]]] = {"turns": [], "calls": []}
    for rank in range(RANKS):
        path = folder / f"rank{rank}.json"
        if not path.exists():
            raise UserError(f"{path}: rank {rank} left nothing; its words are in {folder / LOG}")
        left = json.loads(path.read_text(encoding="utf-8"))
        found["turns"] += [{"rank": rank, **row, "iteration_s": mean_s(row["iteration_s"])} for row in left["turns"]]
        found["calls"] += [{"rank": rank, **row} for row in left["calls"]]
    return found


class Asker:
    """Client that does each second what `prophet top` and Prometheus do, if there is somebody to ask."""

    def __init__(self, folder: Path, ports: Sequence[int]) -> None:
        self.looks = 0
        self.looked_s = 0.0
        """Processor time of all looks."""
        self.fetched = 0
        self._folder = folder
        self._addresses = [f"http://127.0.0.1:{port}/metrics" for port in ports]
        self._screen = Console(file=io.StringIO(), width=WIDTH_OF_TOP, force_terminal=True)

    def ask(self) -> None:
        before = time.process_time()
        documents = ask_all([self._folder])
        if documents:
            self._screen.print(view(statuses(documents), time.time(), WIDTH_OF_TOP))
            self.looks += 1
            self.looked_s += time.process_time() - before
        for address in self._addresses:
            with contextlib.suppress(OSError), urllib.request.urlopen(address, timeout=1) as answer:
                self.fetched += bool(answer.read())


def measure(out: Path, results: Path, *, cycles: int = 10, seconds: float = 5.0) -> dict[str, Any]:
    """Run the job, in so many cycles of turns of so many seconds. Raises UserError if it fails.

    `looks` are those of `prophet top` at both ranks, and each took `look_s` of its processor time; `fetched` is how
    often a rank gave its figures, `load` the load average at the end.
    """
    out.mkdir(parents=True, exist_ok=True)
    out = out.resolve()
    for old in out.glob("rank*.json"):
        old.unlink()
    ports = [free_port() for _ in range(RANKS)]
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(RANKS)]
    job = ["-m", "tools.overhead_job", str(out), str(cycles), str(seconds), *map(str, ports)]
    limit_s = 120 + 3 * cycles * len(VARIANTS) * seconds
    with tempfile.TemporaryDirectory(prefix="prophet-") as runtime, (out / LOG).open("wb") as log:
        own = SETTINGS | {"XDG_RUNTIME_DIR": runtime}
        process = subprocess.Popen([*torchrun, *job], env=without_jobs(os.environ) | own, stdout=log, stderr=log)
        try:
            asker = Asker(Path(runtime, ASKED, "prophet"), ports)
            ends_at = time.monotonic() + limit_s
            while process.poll() is None:
                if time.monotonic() >= ends_at:
                    raise UserError(f"the job is not over after {limit_s:.0f} s; see {out}")
                time.sleep(ASK_EVERY_S)
                asker.ask()
        finally:
            process.terminate()  # it ends the ranks
            process.wait()
    asked = {"looks": asker.looks, "look_s": asker.looked_s / max(1, asker.looks), "fetched": asker.fetched}
    return {**read_ranks(out), "seconds": seconds, **asked, "load": os.getloadavg()[0]}
