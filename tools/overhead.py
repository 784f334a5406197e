"""What it costs to be watched: the status socket, the record and the figures, each on and off, in one run.

Rule of this file: the job's ranks, who asks them, and the page docs/results/watching.md. The job is a real one of
DistributedDataParallel under Prophet on this machine's loopback, whose turns are interleaved (overhead_job.py). While
it trains it is asked for its status and its figures each second, as `prophet top` and Prometheus would. `make overhead`
runs it, for about ten minutes on a quiet machine.
"""

from __future__ import annotations

import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from prophet.core.errors import UserError
from prophet.watch.sockets import ask, sockets_in
from tools import kept
from tools.command_line import exit_status, page_parser
from tools.markdown import table
from tools.overhead_job import LAYERS, VARIANTS, WIDTH
from tools.ports import free_port
from tools.repeating import repeating

PAGE = "watching.md"
NAME = "watching"
TITLE = "# What it costs to be watched\n\nMade by `make overhead`."
ABOUT = """A job of two ranks under `PROPHET_SCHEDULER=prophet`, trained for real over the loopback of one machine, is
[watched](../watching.md) in turns: by its status socket, which is asked once a second as `prophet top` does; by a
record of its own; by figures, which are fetched once a second; by all of them; and by nothing. Each turn is compared
with that of *nothing* in the same cycle. Iteration times are means over a turn, since what happens once a second is in
few iterations; processor time is that of all threads of a rank. A record is at its densest in its first seconds, and
each turn begins one anew. Shown are the medians over all cycles and ranks, and
in brackets the standard error of the median."""
RANKS = 2
NOTHING = VARIANTS[0]
BLOCK_BYTES = 256 * 1024
"""Of one size, so that blocks are the same in all turns."""
ASK_EVERY_S = 1.0
TRIM = 0.02
"""The longest share of a turn's iterations is left out: in these the machine did something else."""


@dataclass(frozen=True)
class Turn:
    """One turn of one rank: its mean iteration and its processor time for one, in seconds."""

    rank: int
    cycle: int
    variant: str
    iteration_s: float
    cpu_s: float


@dataclass(frozen=True)
class OverheadData:
    """What the page is made from. `asked` is how often a rank answered, `load` the load average at the end."""

    turns: Sequence[Turn]
    seconds: float
    asked: int
    load: float


def mean_s(times: Sequence[float]) -> float:
    """Of a turn's iterations, without the longest few."""
    ranked = sorted(times)
    return statistics.fmean(ranked[: max(1, len(ranked) - int(len(ranked) * TRIM))])


def read_turns(folder: Path) -> list[Turn]:
    """What the ranks left. Raises UserError where one left nothing."""
    turns = []
    for rank in range(RANKS):
        path = folder / f"rank{rank}.json"
        if not path.exists():
            raise UserError(f"{path}: rank {rank} left nothing; its words are in {folder / f'rank{rank}.log'}")
        for row in json.loads(path.read_text(encoding="utf-8"))["turns"]:
            turns.append(Turn(rank, row["cycle"], row["variant"], mean_s(row["iteration_s"]), row["cpu_s"]))
    return turns


def shares(turns: Sequence[Turn], variant: str, key: str) -> list[float]:
    """By cycle and rank: what `variant` takes more than nothing does, as a share of that."""
    base = {(turn.rank, turn.cycle): getattr(turn, key) for turn in turns if turn.variant == NOTHING}
    own = [turn for turn in turns if turn.variant == variant]
    return [getattr(turn, key) / base[turn.rank, turn.cycle] - 1 for turn in own]


def described(values: Sequence[float]) -> str:
    """The median and its standard error, from the median deviation."""
    middle = float(np.median(values))
    scatter = 1.4826 * float(np.median(np.abs(np.array(values) - middle)))
    return f"{middle:+.2%} ({1.25 * scatter / len(values) ** 0.5:.2%})"


def page(results: Path) -> str:
    """The page, from what is kept."""
    stored = kept.kept(results, NAME, OverheadData)
    if stored is None:
        return kept.joined(TITLE, ABOUT, kept.otherwise(results, NAME, "make overhead"))
    measured, data = stored
    base = [turn for turn in data.turns if turn.variant == NOTHING]
    cycles = len({turn.cycle for turn in data.turns})
    iteration_ms = 1e3 * statistics.median(turn.iteration_s for turn in base)
    how = (
        f"{measured.line()} {cycles} cycles with turns of {data.seconds:g} s; {LAYERS} layers of {WIDTH} x {WIDTH}, "
        f"blocks of {BLOCK_BYTES >> 10} KiB, {iteration_ms:.1f} ms an iteration when nothing is said. The ranks "
        f"answered {data.asked} times. The load average of the last minute was {data.load:.1f} at the end."
    )
    return kept.joined(TITLE, how, ABOUT, overhead_table(data.turns))


def overhead_table(turns: Sequence[Turn]) -> str:
    """A row for each of what is said."""
    rows = [
        [variant, *(described(shares(turns, variant, key)) for key in ("iteration_s", "cpu_s"))]
        for variant in VARIANTS[1:]
    ]
    return table(("what is said", "iteration time", "processor time of an iteration"), rows)


class Asker:
    """Asks all workers for their status and their figures; `answers` is how many have come."""

    def __init__(self, folder: Path, port: int) -> None:
        self.answers = 0
        self._folder = folder
        self._addresses = [f"http://127.0.0.1:{port + rank}/metrics" for rank in range(RANKS)]

    def ask(self) -> None:
        self.answers += sum(ask(path) is not None for path in sockets_in(self._folder))
        for address in self._addresses:
            with contextlib.suppress(OSError), urllib.request.urlopen(address, timeout=1) as answer:
                self.answers += bool(answer.read())


@contextmanager
def ranks(out: Path, runtime: Path, options: Sequence[str]) -> Iterator[list[subprocess.Popen[bytes]]]:
    """The job's processes; nothing of it is left running."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("PROPHET_", "BYTEPS_", "DMLC_"))}
    common = {
        **clean,
        **{"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": str(RANKS)},
        **{"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1", "XDG_RUNTIME_DIR": str(runtime)},
        **{"PROPHET_SCHEDULER": "prophet", "PROPHET_CACHE": "off", "PROPHET_PARTITION_BYTES": str(BLOCK_BYTES)},
    }
    started = []
    try:
        for rank in range(RANKS):
            with (out / f"rank{rank}.log").open("wb") as log:
                env = {**common, "RANK": str(rank), "LOCAL_RANK": str(rank)}
                command = [sys.executable, "-m", "tools.overhead_job", *options]
                started.append(subprocess.Popen(command, env=env, stdout=log, stderr=log))
        yield started
    finally:
        for process in started:
            process.kill()
            process.wait()


def measure(out: Path, cycles: int, seconds: float) -> OverheadData:
    """Runs the job. Raises UserError where it fails."""
    out.mkdir(parents=True, exist_ok=True)
    out = out.resolve()
    for old in out.glob("rank*.json"):
        old.unlink()
    port = free_port()
    arguments = ["--out", str(out), "--cycles", str(cycles), "--seconds", str(seconds), "--port", str(port)]
    limit_s = 120 + 3 * cycles * len(VARIANTS) * seconds
    with tempfile.TemporaryDirectory(prefix="prophet-") as name, ranks(out, Path(name), arguments) as started:
        asker = Asker(Path(name) / "prophet", port)
        with repeating(ASK_EVERY_S, asker.ask):
            deadline = time.monotonic() + limit_s
            for process in started:
                try:
                    process.wait(max(1.0, deadline - time.monotonic()))
                except subprocess.TimeoutExpired:
                    raise UserError(f"the job is not over after {limit_s:.0f} s; see {out}") from None
        return OverheadData(read_turns(out), seconds, asker.answers, os.getloadavg()[0])


def main(arguments: list[str] | None = None) -> int:
    """Measures, keeps and writes the page."""
    parser = page_parser("overhead", __doc__)
    parser.add_argument("--out", type=Path, default=Path("build/overhead"), help="folder for what the ranks leave")
    parser.add_argument("--cycles", type=int, default=24)
    parser.add_argument("--seconds", type=float, default=5.0, help="of each turn")
    parser.add_argument("--try", dest="only_try", action="store_true", help="print the table and keep nothing")
    options = parser.parse_args(arguments)

    def work() -> int:
        data = measure(options.out, options.cycles, options.seconds)
        if not options.only_try:
            kept.publish(options.results, NAME, OverheadData, data, PAGE, page)
        print(overhead_table(data.turns))
        return 0

    return exit_status(work)


if __name__ == "__main__":
    sys.exit(main())
