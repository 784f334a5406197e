"""What the testbed's links do: round trip and rate by delay and bandwidth, and what a relay costs.

Rule of this file: which links are looked at, and the page made of it, docs/results/testbed.md. One link at a time, with
nothing else in the testbed.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from prophet_scheduler.core.units import format_rate, format_time
from prophet_scheduler.lab.testbed import NodeSpec, RelayReport, Testbed, reexec_in_user_namespace
from prophet_scheduler.lab.testbed.testbed import RAMP_ROUND_TRIPS
from tools import kept
from tools.command_line import exit_status, page_parser
from tools.markdown import table
from tools.provenance import Provenance

PAGE = "testbed.md"
NAME = "testbed"
BANDWIDTHS = (250e6, 1e9, 2.5e9, None)
DELAYS_S = (None, 0.0, 0.001, 0.005, 0.02)
NODE, OTHER = "worker0", "server0"
MEASURE_S = 1.5


@dataclass(frozen=True)
class Links:
    """Data of the page; `load` is the load average of the last minute when all was measured."""

    links: list[MeasuredLink]
    load: float


@dataclass(frozen=True)
class MeasuredLink:
    """One link: what was asked for, and what it did. Bits per second and seconds; `relay` while data went up."""

    bandwidth_bps: float | None
    delay_s: float | None
    round_trip_s: float
    up_bps: float
    down_bps: float
    relay: RelayReport | None

    @property
    def processor_share(self) -> float | None:
        """Share of one core, while data goes up at the full rate; None without a relay."""
        return None if self.relay is None else self.relay.cpu_s / (8 * self.relay.bytes / self.up_bps)


def look(bandwidth_bps: float | None, delay_s: float | None) -> MeasuredLink:
    """Make a testbed of one such link and measure it. Raises UserError."""
    node = NodeSpec(NODE, bandwidth_bps, delay_s=delay_s, measured=True)
    with Testbed([node, NodeSpec(OTHER, None)]) as testbed:
        round_trip_s = testbed.round_trips()[NODE]
        seconds = MEASURE_S + RAMP_ROUND_TRIPS * 2 * (delay_s or 0.0)
        testbed.relays()
        up_bps = testbed.measure(NODE, OTHER, seconds)
        relay = testbed.relays().get(NODE)
        return MeasuredLink(bandwidth_bps, delay_s, round_trip_s, up_bps, testbed.measure(OTHER, NODE, seconds), relay)


def page(results: Path) -> str:
    """Return the page, made from the kept data."""
    return kept.joined("# The testbed's links", kept.section(results, NAME, Links, "make testbed", text))


def text(data: Links, measured: Provenance) -> str:
    """Return the measurements as Markdown."""
    rows = [
        (
            "not shaped" if link.bandwidth_bps is None else format_rate(link.bandwidth_bps),
            "-" if link.delay_s is None else format_time(link.delay_s),
            f"{link.round_trip_s * 1e3:.3f}",
            f"{link.up_bps / 1e6:,.0f}",
            f"{link.down_bps / 1e6:,.0f}",
            *_of_relay(link),
        )
        for link in data.links
    ]
    columns = (
        *("bandwidth", "delay each way", "round trip, ms", "up, Mbit/s", "down, Mbit/s"),
        *("late, us", "99% within, us", "latest, us", "frames lost", "of a core"),
    )
    return f"""Made by `make testbed`. {measured.line()} The load average was
{data.load:.1f} then; what late frames and processor time are on a machine with other work is not what they are alone.

One link of the testbed ([page](../experiments.md)), alone: its median round trip with small packets, and the rate of
one TCP connection each way. A delay is made by a relay; `-` is a link without one, and 0s is one that passes frames
on at once. *Late* is how much later than due the relay sent a frame while data went up, on average, and *of a core*
its processor time then. A link that is not shaped carries what the machine can.

{table(columns, rows)}"""


def _of_relay(link: MeasuredLink) -> tuple[str, ...]:
    relay, share = link.relay, link.processor_share
    if relay is None or share is None:
        return ("-",) * 5
    late = (f"{seconds * 1e6:.0f}" for seconds in (relay.late_mean_s, relay.late_p99_s, relay.late_max_s))
    return (*late, str(relay.dropped), f"{share:.1%}")


def run(results: Path) -> int:
    """Look at every link and write the page. Raises UserError."""
    console = Console()
    reexec_in_user_namespace()
    links = []
    for bandwidth_bps in BANDWIDTHS:
        for delay_s in DELAYS_S:
            links.append(link := look(bandwidth_bps, delay_s))
            console.print(link, markup=False, soft_wrap=True)
    kept.publish(results, NAME, Links, Links(links, os.getloadavg()[0]), PAGE, page)
    return 0


def main(arguments: list[str] | None = None) -> int:
    """Measure and write; exit status 2 with one line for an error of the user's."""
    parser = page_parser("testbed", __doc__)
    options = parser.parse_args(arguments)
    return exit_status(lambda: run(options.results))


if __name__ == "__main__":
    sys.exit(main())
