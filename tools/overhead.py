"""What it costs to be watched: the status socket, the record and the figures, each on and off, in one run.

Rule of this file: the job's ranks, who asks them, and the page docs/results/watching.md. The job is a real one of
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
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from rich.console import Console

from prophet_scheduler.cli.top import ask_all, statuses
from prophet_scheduler.cli.top_view import view
from prophet_scheduler.core.errors import UserError
from prophet_scheduler.lab.launchers import without_jobs
from tools import kept
from tools.command_line import exit_status, page_parser
from tools.markdown import table
from tools.overhead_job import ASKED, LAYERS, VARIANTS, WIDTH
from tools.ports import free_port
from tools.repeating import repeating

PAGE = "watching.md"
NAME = "watching"
TITLE = "# What it costs to be watched\n\nMade by `make overhead`."
ABOUT = """A job of two ranks under `PROPHET_SCHEDULER=prophet`, trained for real over the loopback of one machine, is
[watched](../watching.md) in turns: *status* is its socket, of which nobody asks anything; *top* is `prophet top` beside
it, which asks once a second; *record* is a record of its own; *metrics* are figures, which are fetched once a
second; *all* is top, record and metrics together; and in one turn of each cycle there is *nothing*. A record is at its
densest in its first seconds, and each turn begins one anew."""
COUNTED = """## What it takes

Processor time that a rank spends on being watched, as a share of the time that it trains: medians over the cycles, and
in brackets the standard error of the median. *Counted* is that of the code that watches and of no other: the thread
that answers, what the thread beside training does to see what has happened and to write it down, and calls of
training's own threads. *Difference* is what Prophet's threads take more than in the turn of *nothing* of the same
cycle, and those calls. The first rank learns for all, in the thread that watches, and what learning takes scatters by
more than watching does: there the difference says little. The other rank does nothing but watch, and there the two are
to agree. It keeps events for watching alone, and the first rank in any case."""
CALLS = """In it is what training's own threads do for whoever watches. Each call was timed, before the first turn:"""
ELAPSED = """## What it delays

Iteration time, and processor time of all threads of a rank, beside those of *nothing* in the same cycle: medians over
all cycles and ranks. They scatter by much more than watching takes: a machine's own speed may drift by a third within
minutes, so turns that follow one another are alike, and the errors in brackets, which take them for independent, are
too small. *All* has in it whatever the others have. Iteration times are means over a turn, since what happens once a
second is in few iterations."""
RANKS = 2
NOTHING = VARIANTS[0]
BLOCK_BYTES = 256 * 1024
"""Size of all blocks, so that they are the same in all turns."""
JUDGED_EVERY_S = 3600.0
"""Seconds between plans. The first rank plans once, before the first turn: more learning would outweigh watching."""
ASK_EVERY_S = 1.0
WIDTH_OF_TOP = 120
"""Letters in a row of the terminal."""
TRIM = 0.02
"""Longest share of a turn's iterations, left out: the machine did something else in these."""


@dataclass(frozen=True)
class Turn:
    """One turn of one rank: its mean iteration, and for one iteration its processor time, that of Prophet's threads in
    it, and of that the time of the code that only watches; in seconds.
    """

    rank: int
    cycle: int
    variant: str
    iteration_s: float
    cpu_s: float
    threads_s: float
    watching_s: float


@dataclass(frozen=True)
class Call:
    """Calls of training's threads for watching: count an iteration, and seconds of one."""

    rank: int
    call: str
    count: float
    call_s: float


@dataclass(frozen=True)
class OverheadData:
    """Data of the page. `looks` are those of `prophet top` at both ranks, and each took `look_s` of its processor time;
    `fetched` is how often a rank gave its figures, `load` the load average at the end.
    """

    turns: Sequence[Turn]
    calls: Sequence[Call]
    seconds: float
    looks: int
    look_s: float
    fetched: int
    load: float


def mean_s(times: Sequence[float]) -> float:
    """Return the mean of a turn's iterations, without the longest few."""
    ranked = sorted(times)
    return statistics.fmean(ranked[: max(1, len(ranked) - int(len(ranked) * TRIM))])


def read_ranks(folder: Path) -> tuple[list[Turn], list[Call]]:
    """Return what the ranks left. Raises UserError if one left nothing."""
    turns, calls = [], []
    for rank in range(RANKS):
        path = folder / f"rank{rank}.json"
        if not path.exists():
            raise UserError(f"{path}: rank {rank} left nothing; its words are in {folder / f'rank{rank}.log'}")
        left = json.loads(path.read_text(encoding="utf-8"))
        turns += [Turn(rank, **{**row, "iteration_s": mean_s(row["iteration_s"])}) for row in left["turns"]]
        calls += [Call(rank, **row) for row in left["calls"]]
    return turns, calls


def compared(turns: Sequence[Turn], variant: str) -> list[tuple[Turn, Turn]]:
    """Return by cycle and rank the turn of `variant`, and that of nothing."""
    base = {(turn.rank, turn.cycle): turn for turn in turns if turn.variant == NOTHING}
    return [(turn, base[turn.rank, turn.cycle]) for turn in turns if turn.variant == variant]


def shares(turns: Sequence[Turn], variant: str, key: str) -> list[float]:
    """Return by cycle and rank what `variant` takes more than nothing does, as a share of that."""
    return [getattr(turn, key) / getattr(nothing, key) - 1 for turn, nothing in compared(turns, variant)]


def counted(data: OverheadData, variant: str, rank: int) -> list[float]:
    """Return by cycle the processor time of the code that watches, in its own threads and in those of training, as a
    share of the time of an iteration.
    """
    called_s = _called_s(data, rank)
    return [
        (turn.watching_s + called_s) / nothing.iteration_s
        for turn, nothing in compared(data.turns, variant)
        if turn.rank == rank
    ]


def more(data: OverheadData, variant: str, rank: int) -> list[float]:
    """Return by cycle the additional processor time of Prophet's threads over the turn of nothing, and training's
    calls, as a share of the time of an iteration.
    """
    called_s = _called_s(data, rank)
    return [
        (turn.threads_s - nothing.threads_s + called_s) / nothing.iteration_s
        for turn, nothing in compared(data.turns, variant)
        if turn.rank == rank
    ]


def _called_s(data: OverheadData, rank: int) -> float:
    """Return the time of training's own threads in an iteration for watching."""
    return sum(call.count * call.call_s for call in data.calls if call.rank == rank)


def described(values: Sequence[float]) -> str:
    """Return the median and its standard error, from the median deviation."""
    middle = float(np.median(values))
    scatter = 1.4826 * float(np.median(np.abs(np.array(values) - middle)))
    return f"{middle:+.2%} ({1.25 * scatter / len(values) ** 0.5:.2%})"


def page(results: Path) -> str:
    """Return the page, made from the kept data."""
    stored = kept.kept(results, NAME, OverheadData)
    if stored is None:
        return kept.joined(TITLE, ABOUT, kept.otherwise(results, NAME, "make overhead"))
    measured, data = stored
    base = [turn for turn in data.turns if turn.variant == NOTHING]
    cycles = len({turn.cycle for turn in data.turns})
    iteration_ms = 1e3 * statistics.median(turn.iteration_s for turn in base)
    how = (
        f"{measured.line()} {cycles} cycles with turns of {data.seconds:g} s; {LAYERS} layers of {WIDTH} x {WIDTH}, "
        f"blocks of {BLOCK_BYTES >> 10} KiB, {iteration_ms:.1f} ms an iteration when nothing is said. `prophet top` "
        f"looked {data.looks} times, for which it took {1e3 * data.look_s:.1f} ms of processor time each, as a process "
        f"of its own; figures were fetched {data.fetched} times. The load average of the last minute was "
        f"{data.load:.1f} at the end."
    )
    taken, calls = counted_table(data), call_table(data.calls)
    return kept.joined(TITLE, how, ABOUT, COUNTED, taken, CALLS, calls, ELAPSED, elapsed_table(data.turns))


def counted_table(data: OverheadData) -> str:
    """Return a row for each variant, with two columns a rank."""
    rows = [
        [variant, *(described(way(data, variant, rank)) for rank in range(RANKS) for way in (counted, more))]
        for variant in VARIANTS[1:]
    ]
    columns = (f"{rank}, {way}" for rank in ("the first rank", "the other rank") for way in ("counted", "difference"))
    return table(("what is said", *columns), rows)


def call_table(calls: Sequence[Call]) -> str:
    """Return a row for each call of a rank."""
    rows = [
        [str(call.rank), f"`{call.call.strip('_')}`", f"{call.count:.1f}", f"{1e6 * call.call_s:.2f}"] for call in calls
    ]
    return table(("rank", "call", "times an iteration", "microseconds each"), rows)


def elapsed_table(turns: Sequence[Turn]) -> str:
    """Return a row for each variant."""
    rows = [
        [variant, *(described(shares(turns, variant, key)) for key in ("iteration_s", "cpu_s"))]
        for variant in VARIANTS[1:]
    ]
    return table(("what is said", "iteration time", "processor time of an iteration"), rows)


class Asker:
    """Client that does each second what `prophet top` and Prometheus do, if there is somebody to ask."""

    def __init__(self, folder: Path, port: int) -> None:
        self.looks = 0
        self.looked_s = 0.0
        """Processor time of all looks."""
        self.fetched = 0
        self._folder = folder
        self._addresses = [f"http://127.0.0.1:{port + rank}/metrics" for rank in range(RANKS)]
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


@contextmanager
def ranks(out: Path, runtime: Path, options: Sequence[str]) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Run the job's processes; nothing of it is left running."""
    common = {
        **without_jobs(os.environ),
        **{"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": str(RANKS)},
        **{"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1", "XDG_RUNTIME_DIR": str(runtime)},
        **{"PROPHET_SCHEDULER": "prophet", "PROPHET_CACHE": "off"},
        **{"PROPHET_PARTITION_BYTES": str(BLOCK_BYTES), "PROPHET_MONITOR_S": str(JUDGED_EVERY_S)},
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
    """Run the job. Raises UserError if it fails."""
    out.mkdir(parents=True, exist_ok=True)
    out = out.resolve()
    for old in out.glob("rank*.json"):
        old.unlink()
    port = free_port()
    arguments = ["--out", str(out), "--cycles", str(cycles), "--seconds", str(seconds), "--port", str(port)]
    limit_s = 120 + 3 * cycles * len(VARIANTS) * seconds
    with tempfile.TemporaryDirectory(prefix="prophet-") as name, ranks(out, Path(name), arguments) as started:
        asker = Asker(Path(name, ASKED, "prophet"), port)
        with repeating(ASK_EVERY_S, asker.ask):
            deadline = time.monotonic() + limit_s
            for process in started:
                try:
                    process.wait(max(1.0, deadline - time.monotonic()))
                except subprocess.TimeoutExpired:
                    raise UserError(f"the job is not over after {limit_s:.0f} s; see {out}") from None
        turns, calls = read_ranks(out)
        look_s = asker.looked_s / max(1, asker.looks)
        return OverheadData(turns, calls, seconds, asker.looks, look_s, asker.fetched, os.getloadavg()[0])


def main(arguments: list[str] | None = None) -> int:
    """Measure, keep and write the page."""
    parser = page_parser("overhead", __doc__)
    parser.add_argument("--out", type=Path, default=Path("build/overhead"), help="folder for what the ranks leave")
    parser.add_argument("--cycles", type=int, default=10)
    parser.add_argument("--seconds", type=float, default=5.0, help="of each turn")
    parser.add_argument("--try", dest="only_try", action="store_true", help="print the table and keep nothing")
    options = parser.parse_args(arguments)

    def work() -> int:
        data = measure(options.out, options.cycles, options.seconds)
        if not options.only_try:
            kept.publish(options.results, NAME, OverheadData, data, PAGE, page)
        print(counted_table(data), call_table(data.calls), elapsed_table(data.turns), sep="\n")
        return 0

    return exit_status(work)


if __name__ == "__main__":
    sys.exit(main())
