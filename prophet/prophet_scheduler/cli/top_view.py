"""Screen of `prophet top`, rendered from statuses.

Rule of this file: pure rendering of workers side by side, which computes only ratios. It shows times in ms or s and
rates in bits per second, as everywhere on the command line.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from prophet_scheduler.core.settings import OBSERVE
from prophet_scheduler.core.status import Observed, describe_cut
from prophet_scheduler.core.units import format_rate, format_size, format_time
from prophet_scheduler.engines.registry import engines
from prophet_scheduler.watch.status import Flow, LiveStatus, UrgencyBand

LABEL_WIDTH = 20
WORKER_WIDTH = 30
STALE_S = 5.0
"""Age of a status in seconds above which the worker counts as silent."""
BARS = " ▁▂▃▄▅▆▇█"
BUSY_CELLS = 10
MOST_ARMS = 4
OBSERVED = ("", "iteration", "Prophet")
"""Rows of a job that Prophet only watches."""


def view(
    statuses: Sequence[LiveStatus],
    now: float,
    width: int = 120,
    advice: Callable[[str, Observed], Sequence[str]] = lambda job, seen: (),
) -> RenderableType:
    """Return the screen, `width` characters wide. `now` is Unix time. `advice` returns lines about an observed job."""
    parts: list[RenderableType] = []
    for job, group in itertools.groupby(statuses, key=lambda status: status.worker.job):
        workers = list(group)
        each = max(1, (width - LABEL_WIDTH) // WORKER_WIDTH)
        for first in range(0, len(workers), each):
            parts.append(_table(job, workers, workers[first : first + each], now))
        seen = next((status.agent.observed for status in workers if status.agent.observed is not None), None)
        parts += [Text(line) for line in (advice(job, seen) if seen is not None else ())]
    return Group(*parts)


def _table(job: str, all_of_it: Sequence[LiveStatus], workers: Sequence[LiveStatus], now: float) -> Table:
    engine = engines()[workers[0].worker.engine].words
    known = max((status.worker.workers or 0 for status in all_of_it), default=0)
    of_all = f"{len(all_of_it)} of {known} workers are on this machine" if known > len(all_of_it) else ""
    title = Text.assemble((job, "bold"), f"   {engine}, policy {workers[0].agent.policy}", (f"   {of_all}", "dim"))
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False, expand=False)
    table.add_column("", no_wrap=True, style="dim", min_width=LABEL_WIDTH - 2)
    for status in workers:
        table.add_column(f"worker {status.worker.rank}", min_width=WORKER_WIDTH - 4, max_width=WORKER_WIDTH + 14)
    rows: Sequence[tuple[str, Callable[[LiveStatus], Text]]] = (
        ("", lambda status: _state(status, now)),
        ("iteration", _iteration),
        ("stock, predicted", _stock),
        ("sent", lambda status: _flow(status.sent)),
        ("received", lambda status: _flow(status.received)),
        ("waiting", lambda status: _bands(status.urgency, "waiting", "waiting_bytes")),
        ("in flight", lambda status: _bands(status.urgency, "in_flight", "in_flight_bytes")),
        ("forward waits for", _forward_waits),
        ("link, measured", _link),
        ("blocks", lambda status: Text(describe_cut(status.agent.cut))),
        ("cut changed", _changes),
        ("believed", _arms),
        ("tuner", lambda status: Text(status.agent.tuner)),
        ("in flight at most", _credit),
        ("Prophet", _cost),
    )
    for label, row in rows:
        if workers[0].agent.policy == OBSERVE and label not in OBSERVED:
            continue
        cells = [row(status) for status in workers]
        if any(cell.plain for cell in cells):
            table.add_row(label, *cells)
    return table


def _state(status: LiveStatus, now: float) -> Text:
    agent = status.agent
    if agent.stepped_aside:
        return Text(f"stepped aside: {agent.stepped_aside}", "red")
    if agent.given_back:
        return Text(f"torch's reducer took over: {agent.given_back}", "yellow")
    age_s = now - status.time_s
    if age_s > STALE_S:
        return Text(f"silent for {age_s:.0f} s", "red")
    return Text(f"{status.iterations} iterations in {format_time(round(status.since_s))}")


def _iteration(status: LiveStatus) -> Text:
    spread = status.iteration
    if spread is None:
        return Text("not known yet", "dim")
    shown = Text(format_time(spread.median_s), "bold")
    return shown.append(f"  {format_time(spread.p10_s)} to {format_time(spread.p90_s)}", "not bold")


def _stock(status: LiveStatus) -> Text:
    stock_s = status.predicted.stock_iteration_s
    if stock_s is None:
        return Text("")
    if status.iteration is None:
        return Text(format_time(stock_s))
    return Text(f"{format_time(stock_s)}, {stock_s / status.iteration.median_s:.2f} times as long")


def _flow(flow: Flow) -> Text:
    cells = round(flow.busy * BUSY_CELLS)
    bar = "█" * cells + "·" * (BUSY_CELLS - cells)
    rate = format_rate(flow.bytes_per_s * 8) if flow.bytes_per_s else "nothing"
    return Text.assemble(bar, f" {flow.busy:.0%}  {rate}", (f"  {format_size(flow.total_bytes)}", "dim"))


def _bands(bands: Sequence[UrgencyBand], count: str, size: str) -> Text:
    """Return a bar for each band of gradients, first layers first."""
    if not bands:
        return Text("")
    counts = [getattr(band, count) for band in bands]
    most = max(counts)
    steps = len(BARS) - 1
    bars = "".join(BARS[-(-value * steps // most)] if most else BARS[0] for value in counts)
    total_bytes = sum(getattr(band, size) for band in bands)
    return Text.assemble("│", (bars, "cyan"), f"│ {sum(counts)}", (f"  {format_size(total_bytes)}", "dim"))


def _forward_waits(status: LiveStatus) -> Text:
    waits = status.forward_waits
    if waits is None:
        return Text("nothing", "dim")
    return Text.assemble(waits.gradient, (f" for {format_time(waits.for_s)}: {waits.whom}", "yellow"))


def _link(status: LiveStatus) -> Text:
    network = status.agent.network
    if network is None:
        return Text("")
    return Text(f"{format_rate(network.bandwidth * 8)}, {format_time(network.overhead_s)} a message")


def _arms(status: LiveStatus) -> Text:
    """Return the arms believed fastest, each with its prediction and its number of measured iterations."""
    lines = [
        f"{arm.words}: {format_time(arm.believed_s)} ± {arm.error:.1%} "
        f"({format_time(arm.predicted_s)} predicted, {arm.seen} seen)"
        for arm in status.agent.arms[:MOST_ARMS]
    ]
    return Text("\n".join(lines))


def _changes(status: LiveStatus) -> Text:
    agent = status.agent
    if not agent.recuts:
        return Text("")
    ago = f", {format_time(round(status.last_recut_ago_s))} ago" if status.last_recut_ago_s is not None else ""
    reason = f": {agent.recut_reason}" if agent.recut_reason else ""
    return Text(f"{agent.recuts} times{ago}{reason}")


def _credit(status: LiveStatus) -> Text:
    credit = status.agent.push_credit
    return Text(format_size(credit) if credit is not None else "")


def _cost(status: LiveStatus) -> Text:
    if not status.since_s:
        return Text("")
    own = status.agent.agent_cpu_s / status.since_s
    plans = status.agent.plans
    return Text(f"{plans} plan{'s' * (plans != 1)}, {own:.2%} of a core", "dim")
