"""Charts of a report.

Rule of this file: turn chapters into plotly figures; page.html.j2 has the text around them. The colours are those of
`prophet run`'s figures and are distinct on white and black; the page sets text, grid and background colours. Times are
in seconds or milliseconds, rates in Mbit/s, sizes in KiB.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from prophet_scheduler.core.events import QueueKind, name_of
from prophet_scheduler.core.optional import need
from prophet_scheduler.core.transfer import Transfer
from prophet_scheduler.lab.records import CellResult
from prophet_scheduler.lab.report.stories import Chapter, Moment

go: Any = need("plotly.graph_objects", "prophet report")

PUSH, PULL, WAITING = "#3f7fcf", "#e08214", "#b06a6a"
COLOURS = (PUSH, PULL, "#4f9d69", "#9a6fc0", "#c65d7b", "#6b8e9e", "#a98b3c", "#7d7d7d")
BACKWARD_COLOUR, FORWARD_COLOUR = "rgba(120,130,160,0.18)", "rgba(80,160,90,0.15)"
MOST_BARS = 6000
"""Maximum number of transfers in a chart, which shows the last ones."""
MOST_NAMES = 30
FEW_ROWS = 12
SHOWN_AT_FIRST = 4
"""Number of a moment's iterations in view before the reader zooms out."""
SECONDS = "seconds into the run"

Figure = Any
Span = Callable[[Transfer], tuple[float, float]]
TO_ZERO = {"rangemode": "tozero"}
DOWNWARDS = {"autorange": "reversed"}


def _figure(
    x: str,
    y: str = "",
    height: int = 340,
    x_axis: Mapping[str, Any] | None = None,
    y_axis: Mapping[str, Any] | None = None,
    **layout: Any,
) -> Figure:
    """Return an empty figure; `x` and `y` are the titles of its axes."""
    common = {"zeroline": False, "automargin": True}
    figure = go.Figure()
    figure.update_layout(
        template="none",
        height=height,
        margin={"l": 70, "r": 20, "t": 30, "b": 50},
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
        legend={"orientation": "h", "y": 1.0, "yanchor": "bottom", "x": 0},
        hovermode="closest",
        modebar={"bgcolor": "rgba(0,0,0,0)", "color": "#8a93a3", "activecolor": PUSH},
        font={"family": "system-ui, sans-serif", "size": 13},
        xaxis={**common, "title": x, **(x_axis or {})},
        yaxis={**common, "title": y, **(y_axis or {})},
        **layout,
    )
    return figure


def _coloured(chapters: Sequence[Chapter], has: Callable[[Chapter], Any]) -> list[tuple[str, Chapter]]:
    """Return the chapters for which `has` is true, each with its colour, the same in all charts."""
    return [(COLOURS[place % len(COLOURS)], chapter) for place, chapter in enumerate(chapters) if has(chapter)]


def iteration_chart(chapters: Sequence[Chapter]) -> Figure | None:
    """Draw each iteration's time over the run; dotted lines mark changes of the first chapter's cut."""
    shown = _coloured(chapters, lambda chapter: chapter.laps)
    if not shown:
        return None
    figure = _figure(SECONDS, "iteration (ms)", y_axis=TO_ZERO)
    for colour, chapter in shown:
        ends_s = [round(lap.end_s, 4) for lap in chapter.laps]
        periods_ms = [round(lap.period_s * 1e3, 3) for lap in chapter.laps]
        look = {"mode": "lines+markers", "marker": {"size": 3}, "line": {"width": 1, "color": colour}}
        hover = "%{y:.4g} ms, ended at %{x:.2f} s"
        figure.add_scatter(x=ends_s, y=periods_ms, name=chapter.name, hovertemplate=hover, **look)
    for cut in chapters[0].cuts[1:]:
        figure.add_vline(x=cut.from_s, line={"width": 1, "dash": "dot", "color": WAITING})
    return figure


def policy_chart(cell: CellResult) -> Figure:
    """Draw each policy's iteration time, with the lower bound as a line."""
    times_s = cell.times_s
    ratios = {name: f", {cell.ratios[name]:.2f} x" if name in cell.ratios else "" for name in times_s}
    title = "iteration time (s); dashed: the lower bound"
    figure = _figure(title, height=120 + 34 * len(times_s), x_axis=TO_ZERO, y_axis=DOWNWARDS, showlegend=False)
    colours = [PUSH if name.endswith("prophet") else "#9aa3b2" for name in times_s]
    texts = [f"{time_s:.3f} s{ratios[name]}" for name, time_s in times_s.items()]
    look = {"textposition": "inside", "insidetextanchor": "start", "constraintext": "none"}
    look |= {"orientation": "h", "hovertemplate": "%{y}: %{x:.4f} s", "name": ""}
    figure.add_bar(y=list(times_s), x=list(times_s.values()), text=texts, marker={"color": colours}, **look)
    if cell.lower_bound_s is not None:
        figure.add_vline(x=cell.lower_bound_s, line={"width": 1, "dash": "dash", "color": WAITING})
    return figure


def transfer_chart(chapter: Chapter, moment: Moment) -> Figure:
    """Draw every transfer of a moment: when it was ready, when it was sent, and when it finished."""
    transfers = sorted(moment.transfers, key=lambda transfer: transfer.start_s)[-MOST_BARS:]
    rows = {id_: row for row, id_ in enumerate(sorted({transfer.gradient for transfer in transfers}))}
    what, ticks = "block" if chapter.arena else "gradient", {"dtick": 1} if len(rows) <= FEW_ROWS else {}
    title = f"{SECONDS} (drag to zoom, double-click to see all)"
    figure = _figure(title, f"{what}, the first layer's on top", 460, y_axis={**DOWNWARDS, **ticks})
    for what, from_s, until_s in moment.computing:
        shade = BACKWARD_COLOUR if what == "backward" else FORWARD_COLOUR
        figure.add_vrect(x0=from_s, x1=until_s, fillcolor=shade, line_width=0, layer="below")

    def add(shown: Sequence[Transfer], name: str, shade: str, width: float, span: Span) -> None:
        """Add all transfers as a single line with gaps, so that thousands are drawn at once."""
        x: list[Any] = []
        y: list[Any] = []
        texts: list[Any] = []
        for each in shown:
            from_s, until_s = span(each)
            waited_ms, took_ms = (each.start_s - each.added_s) * 1e3, (each.finish_s - each.start_s) * 1e3
            label = f"{name_of(each.gradient, chapter.arena)}, {each.size_bytes / 1024:.0f} KiB"
            x += [round(from_s, 6), round(until_s, 6), None]
            y += [rows[each.gradient], rows[each.gradient], None]
            texts += [f"{label}: waited {waited_ms:.1f} ms, took {took_ms:.1f} ms"] * 2 + [None]
        if x:
            look = {"mode": "lines", "line": {"width": width, "color": shade}}
            hover = "%{text}<extra>" + name + "</extra>"
            figure.add_scatter(x=x, y=y, text=texts, name=name, hovertemplate=hover, **look)

    add(transfers, "ready, not sent", WAITING, 1.5, lambda each: (each.added_s, each.start_s))
    push = "all-reduce" if chapter.all_reduce else "push"
    for queue, name, shade in ((QueueKind.PUSH, push, PUSH), (QueueKind.PULL, "pull", PULL)):
        own = [each for each in transfers if each.queue is queue]
        add(own, name, shade, 5.0, lambda each: (each.start_s, each.finish_s))
    times = chapter.times
    if times is not None and moment.until_s - moment.from_s > SHOWN_AT_FIRST * times.median:
        figure.update_xaxes(range=[moment.until_s - SHOWN_AT_FIRST * times.median, moment.until_s])
    return figure


def wait_chart(chapters: Sequence[Chapter]) -> Figure | None:
    """Draw the gradients that the program waited longest for."""
    shown = _coloured(chapters, lambda chapter: chapter.waited_s)
    if not shown:
        return None
    waits = [chapter.waited_s for _, chapter in shown]
    worst = {name: max(each.get(name, 0.0) for each in waits) for each in waits for name in each}
    names = sorted(worst, key=lambda name: -worst[name])[:MOST_NAMES]
    height = 140 + 20 * len(names) * min(3, len(shown))
    figure = _figure("ms of an iteration", height=height, y_axis=DOWNWARDS, barmode="group")
    for (colour, chapter), own in zip(shown, waits, strict=True):
        waited_ms = [own.get(name, 0.0) * 1e3 for name in names]
        look = {"orientation": "h", "hovertemplate": "%{y}: %{x:.4g} ms", "marker": {"color": colour}}
        figure.add_bar(y=names, x=waited_ms, name=chapter.name, **look)
    return figure


def rate_chart(chapters: Sequence[Chapter]) -> Figure | None:
    """Draw the send and receive rates over the run, and the measured rate of the link."""
    shown = _coloured(chapters, lambda chapter: chapter.traffic)
    if not shown:
        return None
    figure = _figure(SECONDS, "Mbit/s", y_axis=TO_ZERO)
    for colour, chapter in shown:
        times = [(row.from_s + row.until_s) / 2 for row in chapter.traffic]
        lengths = [max(row.until_s - row.from_s, 1e-9) for row in chapter.traffic]
        sent = "sent and received" if chapter.all_reduce else "sent"
        ways = [(sent, "solid", [row.sent_bytes for row in chapter.traffic])]
        if not chapter.all_reduce:
            ways.append(("received", "dash", [row.received_bytes for row in chapter.traffic]))
        for name, dash, moved in ways:
            rates = [size * 8e-6 / length for size, length in zip(moved, lengths, strict=True)]
            look = {"mode": "lines", "line": {"width": 1.5, "dash": dash, "color": colour}}
            hover = "%{y:.4g} Mbit/s at %{x:.2f} s"
            figure.add_scatter(x=times, y=rates, name=f"{chapter.name}, {name}", hovertemplate=hover, **look)
        if chapter.networks:
            rates = [network.bandwidth * 8e-6 for _, network in chapter.networks]
            times = [*(time_s for time_s, _ in chapter.networks), chapter.traffic[-1].until_s]
            look = {"mode": "lines+markers", "marker": {"size": 4}}
            look |= {"line": {"shape": "hv", "dash": "dot", "width": 1, "color": colour}}
            name, hover = f"{chapter.name}, link as measured", "link: %{y:.4g} Mbit/s from %{x:.2f} s"
            figure.add_scatter(x=times, y=[*rates, rates[-1]], name=name, hovertemplate=hover, **look)
    return figure
