"""What one of gloo's all-reduces takes on the testbed: the numbers that the simulator has of them.

Rule of this file: which operations on which links are looked at, what follows for the simulator, and the page made of
it, docs/results/operations.md. Nothing computes meanwhile, so no iteration of any job is in it.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from prophet_scheduler.core.errors import UserError
from prophet_scheduler.core.units import format_rate, format_size, format_time
from prophet_scheduler.lab.launchers import without_jobs
from prophet_scheduler.lab.own_script import run_ranks
from prophet_scheduler.lab.testbed import NodeSpec, Testbed, reexec_in_user_namespace
from prophet_scheduler.policies.algorithms.sequence import LEAST_AT_ONCE, MOST_AT_ONCE
from tools import kept
from tools.command_line import exit_status, page_parser
from tools.markdown import table
from tools.provenance import Provenance

PAGE = "operations.md"
NAME = "operations"
JOB = Path(__file__).with_name("operations_job.py")
KIB, MIB = 1 << 10, 1 << 20
SMALL, LARGE = 4 * KIB, 16 * MIB
SIZES = (SMALL, 128 * KIB, MIB, LARGE)
AT_ONCE = (1, 2, MOST_AT_ONCE)
ISSUED = (SMALL, 128 * KIB, MIB)
"""Sizes of operations that Prophet issues."""


@dataclass(frozen=True)
class Way:
    """Ranks, and the link of each: bits per second, None for no limit, and seconds each way."""

    ranks: int
    bandwidth_bps: float | None = None
    delay_s: float | None = None


PLAIN, DELAY_S = Way(2), 0.005
DELAYED = Way(2, None, DELAY_S)
"""Ways from which the simulator's numbers follow."""
WAYS = (
    PLAIN,
    Way(4),
    Way(2, None, 0.001),
    DELAYED,
    Way(4, None, 0.005),
    Way(2, 250e6),
    Way(2, 250e6, 0.005),
    Way(4, 250e6, 0.005),
    Way(2, 1e9),
    Way(2, 1e9, 0.005),
    Way(2, 2.5e9),
)


@dataclass(frozen=True)
class OnWay:
    """Measurements of one way. Seconds of an operation: `bare_s` of gloo's, by bytes and operations under way;
    `issued_s` of those that Prophet issues, by bytes. Bytes per second that the fastest rank copies, copies to new
    memory, and updates, while the others do as well.
    """

    way: Way
    bare_s: list[tuple[int, int, float]]
    issued_s: list[tuple[int, float]]
    copied_rate: float
    renewed_rate: float
    updated_rate: float

    def bare(self, size_bytes: int, at_once: int) -> float:
        """Return the seconds. Raises KeyError if it was not timed."""
        return {(size, count): each_s for size, count, each_s in self.bare_s}[size_bytes, at_once]

    def issued(self, size_bytes: int) -> float:
        """Return the seconds. Raises KeyError if it was not timed."""
        return dict(self.issued_s)[size_bytes]


@dataclass(frozen=True)
class Follows:
    """Numbers that the simulator takes from it, for a machine with two cores."""

    ways_a_message: float
    message_s: float
    moved_rate: float
    issue_s: float
    copied_rate: float
    renewed_rate: float
    updated_rate: float


def follows(data: Sequence[OnWay]) -> Follows:
    """Derive them from small operations on a link with a delay, from many at once without one, and from large ones."""
    by_way = {one.way: one for one in data}
    plain, delayed = by_way[PLAIN], by_way[DELAYED]
    path_s = 2 * DELAY_S  # from rank to rank: the delays of both links
    rounds = 2 * (PLAIN.ranks - 1)
    small_s = plain.bare(SMALL, MOST_AT_ONCE)
    return Follows(
        ways_a_message=(delayed.bare(SMALL, 1) - plain.bare(SMALL, 1)) / path_s / rounds,
        message_s=small_s / (PLAIN.ranks * rounds),
        moved_rate=rounds * LARGE / (plain.bare(LARGE, MOST_AT_ONCE) - small_s),
        issue_s=plain.issued(SMALL) - small_s,
        copied_rate=plain.copied_rate,
        renewed_rate=plain.renewed_rate,
        updated_rate=plain.updated_rate,
    )


def look(way: Way) -> OnWay:
    """Make a testbed of such links and time every size on it. Raises UserError."""
    nodes = [f"worker{rank}" for rank in range(way.ranks)]
    pairs = [(size, at_once) for size in SIZES for at_once in AT_ONCE]
    command = [sys.executable, str(JOB), json.dumps(pairs), json.dumps(ISSUED)]
    said: list[str] = []
    with Testbed([NodeSpec(node, way.bandwidth_bps, delay_s=way.delay_s) for node in nodes]) as testbed:
        if run_ranks(command, nodes, testbed, said.append, shell=without_jobs(os.environ)) != 0:
            raise UserError("; ".join(said[-2:]))
    found = json.loads(next(line for line in said if line.startswith("{")))
    return OnWay(
        way,
        [(size, at_once, each_s) for size, at_once, each_s in found["bare"]],
        [(size, each_s) for size, each_s in found["issued"]],
        found["copied"],
        found["renewed"],
        found["updated"],
    )


def page(results: Path) -> str:
    """Return the page, made from the kept data."""
    section = kept.section(results, NAME, list[OnWay], "make operations", text)
    return kept.joined("# What an all-reduce takes", section)


def text(data: Sequence[OnWay], measured: Provenance) -> str:
    """Return the measurements as Markdown."""
    columns = ("ranks", "bandwidth", "delay each way", "at once", *(format_size(size) for size in SIZES))
    rows = []
    for one in data:
        way = one.way
        where = (
            str(way.ranks),
            "not shaped" if way.bandwidth_bps is None else format_rate(way.bandwidth_bps),
            "-" if way.delay_s is None else format_time(way.delay_s),
        )
        rows += [(*where, str(at_once), *(_ms(one.bare(size, at_once)) for size in SIZES)) for at_once in AT_ONCE]
        issued = (_ms(one.issued(size)) if size in ISSUED else "-" for size in SIZES)
        rows.append((*where, "Prophet", *issued))
    so = follows(data)
    return f"""Made by `make operations`. {measured.line()}

All-reduces of gloo between ranks on the testbed, and nothing else: milliseconds an operation, on average, while so
many are under way. The first column is an operation of hardly any bytes. *Prophet*: the plugin issues them,
{LEAST_AT_ONCE} at once, for a thread that waits for one after another.

{table(columns, rows)}

The simulator's numbers for DistributedDataParallel are these, of two ranks that share the machine; no iteration of any
job is in them:

| | |
|---|---|
| ways through the network of a message, the receiver's word that it waits included | {so.ways_a_message:.1f} |
| processors' time for a message | {so.message_s * 1e3:.2f} ms |
| what they move and add | {so.moved_rate / 1e9:.1f} GB/s |
| their time for a block that Prophet issues, beside the operation | {so.issue_s * 1e3:.2f} ms |
| gradients copied by a rank, while the other does | {so.copied_rate / 1e9:.1f} GB/s |
| gradients of 64 MiB copied to new memory by a rank, while the other does | {so.renewed_rate / 1e9:.1f} GB/s |
| parameters updated by a rank's SGD, while the other's does | {so.updated_rate / 1e9:.1f} GB/s |"""


def _ms(each_s: float) -> str:
    return f"{each_s * 1e3:.2f}"


def run(results: Path) -> int:
    """Time every operation and write the page. Raises UserError."""
    console = Console()
    reexec_in_user_namespace()
    found = []
    for way in WAYS:
        console.print(way, markup=False, soft_wrap=True)
        found.append(look(way))
    kept.publish(results, NAME, list[OnWay], found, PAGE, page)
    return 0


def main(arguments: list[str] | None = None) -> int:
    """Measure and write; exit status 2 with one line for an error of the user's."""
    options = page_parser("operations", __doc__).parse_args(arguments)
    return exit_status(lambda: run(options.results))


if __name__ == "__main__":
    sys.exit(main())
