"""The charts of a report.

Rule of this file: from chapters to plotly's figures; page.py has the text beside them. Colours are those of `prophet
run`'s figures and are distinct on white and on black; the page sets ink, grid and background. Times are in seconds and
milliseconds, rates in Mbit/s, sizes in KiB.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from prophet_scheduler.core.events import QueueKind, name_of
from prophet_scheduler.core.optional import need
from prophet_scheduler.core.transfer import Transfer
from prophet_scheduler.lab.records import CellResult
from prophet_scheduler.lab.report.stories import Chapter, Moment

go: Any = need("plotly.graph_objects", "prophet report")

PUSH, PULL, WAITING = "#3f7fcf", "#e08214", "#b06a6a"
COLOURS = ("#3f7fcf", "#e08214", "#4f9d69", "#9a6fc0", "#c65d7b", "#6b8e9e", "#a98b3c", "#7d7d7d")
BACKWARD_COLOUR, FORWARD_COLOUR = "rgba(120,130,160,0.18)", "rgba(80,160,90,0.15)"
MOST_BARS = 6000
"""Maximum transfers in a chart, the last ones if there are more."""
MOST_NAMES = 30
FEW_ROWS = 12
SHOWN_AT_FIRST = 4
"""Iterations of a moment that are shown before a reader zooms out."""
HEIGHT = 340

Figure = Any


def colour(place: int) -> str:
    """Return the colour of the chapter at this place."""
    return COLOURS[place % len(COLOURS)]


def _figure(height: int = HEIGHT, **layout: Any) -> Figure:
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
        **layout,
    )
    figure.update_xaxes(zeroline=False, automargin=True)
    figure.update_yaxes(zeroline=False, automargin=True)
    return figure


def iteration_chart(chapters: Sequence[Chapter]) -> Figure | None:
    """Draw each iteration's time over the run; dotted lines are changes of the first chapter's cut."""
    shown = [(place, chapter) for place, chapter in enumerate(chapters) if chapter.laps]
    if not shown:
        return None
    figure = _figure()
    for place, chapter in shown:
        figure.add_scatter(
            x=[round(lap.end_s, 4) for lap in chapter.laps],
            y=[round(lap.period_s * 1e3, 3) for lap in chapter.laps],
            name=chapter.name,
            mode="lines+markers",
            marker={"size": 3},
            line={"width": 1, "color": colour(place)},
            hovertemplate="%{y:.4g} ms, ended at %{x:.2f} s",
        )
    for chapter in chapters[:1]:
        for cut in chapter.cuts[1:]:
            figure.add_vline(x=cut.from_s, line={"width": 1, "dash": "dot", "color": WAITING})
    figure.update_xaxes(title="seconds into the run")
    figure.update_yaxes(title="iteration (ms)", rangemode="tozero")
    return figure


def policy_chart(cell: CellResult) -> Figure:
    """Draw the iteration time of each policy, the lower bound as a line."""
    times_s = cell.times_s
    figure = _figure(height=120 + 34 * len(times_s), showlegend=False)
    names = list(times_s)
    figure.add_bar(
        y=names,
        x=list(times_s.values()),
        orientation="h",
        marker={"color": [PUSH if name.endswith("prophet") else "#9aa3b2" for name in names]},
        text=[_beside(name, time_s, cell) for name, time_s in times_s.items()],
        textposition="inside",
        insidetextanchor="start",
        constraintext="none",
        hovertemplate="%{y}: %{x:.4f} s",
    )
    if cell.lower_bound_s is not None:
        figure.add_vline(x=cell.lower_bound_s, line={"width": 1, "dash": "dash", "color": WAITING})
    figure.update_xaxes(title="iteration time (s); dashed: the lower bound", rangemode="tozero")
    figure.update_yaxes(autorange="reversed")
    return figure


def _beside(name: str, time_s: float, cell: CellResult) -> str:
    ratio = cell.ratios.get(name)
    return f"{time_s:.3f} s" + ("" if ratio is None else f", {ratio:.2f} x")


def transfer_chart(chapter: Chapter, moment: Moment) -> Figure | None:
    """Draw every transfer of a moment: when it was ready, when it was sent and when it was back."""
    transfers = sorted(moment.transfers, key=lambda transfer: transfer.start_s)[-MOST_BARS:]
    if not transfers:
        return None
    figure = _figure(height=460)
    for what, from_s, until_s in moment.computing:
        shade = BACKWARD_COLOUR if what == "backward" else FORWARD_COLOUR
        figure.add_vrect(x0=from_s, x1=until_s, fillcolor=shade, line_width=0, layer="below")
    rows = {id_: row for row, id_ in enumerate(sorted({transfer.gradient for transfer in transfers}))}
    push = "all-reduce" if chapter.all_reduce else "push"
    _add_spans(figure, transfers, rows, chapter, "ready, not sent", WAITING, 1.5, lambda t: (t.added_s, t.start_s))
    for queue, name, shade in ((QueueKind.PUSH, push, PUSH), (QueueKind.PULL, "pull", PULL)):
        own = [transfer for transfer in transfers if transfer.queue is queue]
        _add_spans(figure, own, rows, chapter, name, shade, 5.0, lambda t: (t.start_s, t.finish_s))
    figure.update_xaxes(title="seconds into the run (drag to zoom, double-click to see all)")
    times = chapter.times
    if times is not None and moment.until_s - moment.from_s > SHOWN_AT_FIRST * times.median:
        figure.update_xaxes(range=[moment.until_s - SHOWN_AT_FIRST * times.median, moment.until_s])
    what = "block" if chapter.arena else "gradient"
    ticks = {"dtick": 1} if len(rows) <= FEW_ROWS else {}
    figure.update_yaxes(title=f"{what}, the first layer's on top", autorange="reversed", **ticks)
    return figure


def _add_spans(
    figure: Figure,
    transfers: Sequence[Transfer],
    rows: dict[int, int],
    chapter: Chapter,
    name: str,
    shade: str,
    width: float,
    span: Callable[[Transfer], tuple[float, float]],
) -> None:
    """Add all transfers as one line with gaps, which draws thousands at once."""
    if not transfers:
        return
    x: list[float | None] = []
    y: list[int | None] = []
    texts: list[str | None] = []
    for transfer in transfers:
        from_s, until_s = span(transfer)
        row = rows[transfer.gradient]
        waited_ms = (transfer.start_s - transfer.added_s) * 1e3
        took_ms = (transfer.finish_s - transfer.start_s) * 1e3
        size = f"{transfer.size_bytes / 1024:.0f} KiB"
        label = name_of(transfer.gradient, chapter.arena)
        text = f"{label}, {size}: waited {waited_ms:.1f} ms, took {took_ms:.1f} ms"
        x += [round(from_s, 6), round(until_s, 6), None]
        y += [row, row, None]
        texts += [text, text, None]
    figure.add_scatter(
        x=x,
        y=y,
        text=texts,
        mode="lines",
        name=name,
        line={"width": width, "color": shade},
        hovertemplate="%{text}<extra>" + name + "</extra>",
    )


def block_chart(chapters: Sequence[Chapter]) -> Figure | None:
    """Draw the sizes of the smallest and the largest blocks of each cut that was in force."""
    shown = [(place, chapter) for place, chapter in enumerate(chapters) if chapter.cuts]
    if not shown:
        return None
    figure = _figure(height=260)
    for place, chapter in shown:
        last_s = max([chapter.cuts[-1].from_s, *(lap.end_s for lap in chapter.laps[-1:])])
        for end, dash in ((0, "dot"), (1, "solid")):
            times = [cut.from_s for cut in chapter.cuts] + [last_s]
            sizes = [cut.sizes[end] / 1024 for cut in chapter.cuts]
            figure.add_scatter(
                x=times,
                y=[*sizes, sizes[-1]],
                name=f"{chapter.name}, {('smallest', 'largest')[end]}",
                mode="lines+markers",
                line={"shape": "hv", "dash": dash, "color": colour(place)},
                text=[cut.reason for cut in chapter.cuts] + [""],
                hovertemplate="%{y:.0f} KiB from %{x:.2f} s %{text}",
            )
    figure.update_xaxes(title="seconds into the run")
    figure.update_yaxes(title="block (KiB)", type="log")
    return figure


def wait_chart(chapters: Sequence[Chapter], of: Callable[[Chapter], Any], title: str) -> Figure | None:
    """Draw the gradients with the longest waits, of the program or for the wire as `of` returns them."""
    shown = [(place, chapter) for place, chapter in enumerate(chapters) if of(chapter)]
    if not shown:
        return None
    worst: dict[str, float] = {}
    for _, chapter in shown:
        for name, seconds in of(chapter).items():
            worst[name] = max(worst.get(name, 0.0), seconds)
    names = sorted(worst, key=lambda name: -worst[name])[:MOST_NAMES]
    figure = _figure(height=140 + 20 * len(names) * max(1, min(3, len(shown))), barmode="group")
    for place, chapter in shown:
        values = of(chapter)
        figure.add_bar(
            y=names,
            x=[values.get(name, 0.0) * 1e3 for name in names],
            orientation="h",
            name=chapter.name,
            marker={"color": colour(place)},
            hovertemplate="%{y}: %{x:.4g} ms",
        )
    figure.update_xaxes(title=title)
    figure.update_yaxes(autorange="reversed")
    return figure


def rate_chart(chapters: Sequence[Chapter]) -> Figure | None:
    """Draw the sent and received rates over the run, and the measured rate of the link."""
    shown = [(place, chapter) for place, chapter in enumerate(chapters) if chapter.traffic]
    if not shown:
        return None
    figure = _figure()
    for place, chapter in shown:
        times = [(row.from_s + row.until_s) / 2 for row in chapter.traffic]
        lengths = [max(row.until_s - row.from_s, 1e-9) for row in chapter.traffic]
        ways = [
            ("sent and received" if chapter.all_reduce else "sent", "solid", [r.sent_bytes for r in chapter.traffic])
        ]
        if not chapter.all_reduce:
            ways.append(("received", "dash", [row.received_bytes for row in chapter.traffic]))
        for name, dash, moved in ways:
            figure.add_scatter(
                x=times,
                y=[size * 8e-6 / length for size, length in zip(moved, lengths, strict=True)],
                name=f"{chapter.name}, {name}",
                mode="lines",
                line={"width": 1.5, "dash": dash, "color": colour(place)},
                hovertemplate="%{y:.4g} Mbit/s at %{x:.2f} s",
            )
        if chapter.networks:
            end_s = chapter.traffic[-1].until_s
            rates = [network.bandwidth * 8e-6 for _, network in chapter.networks]
            figure.add_scatter(
                x=[*(time_s for time_s, _ in chapter.networks), end_s],
                y=[*rates, rates[-1]],
                name=f"{chapter.name}, link as measured",
                mode="lines+markers",
                line={"shape": "hv", "dash": "dot", "width": 1, "color": colour(place)},
                marker={"size": 4},
                hovertemplate="link: %{y:.4g} Mbit/s from %{x:.2f} s",
            )
    figure.update_xaxes(title="seconds into the run")
    figure.update_yaxes(title="Mbit/s", rangemode="tozero")
    return figure


def busy_chart(chapters: Sequence[Chapter]) -> Figure | None:
    """Draw the share of time with a transfer in flight."""
    shown = [
        (place, chapter)
        for place, chapter in enumerate(chapters)
        if any(row.sending_s or row.receiving_s for row in chapter.traffic)
    ]
    if not shown:
        return None
    figure = _figure(height=240)
    for place, chapter in shown:
        rows = [row for row in chapter.traffic if row.until_s > row.from_s]
        figure.add_scatter(
            x=[(row.from_s + row.until_s) / 2 for row in rows],
            y=[100 * min(1.0, row.sending_s / (row.until_s - row.from_s)) for row in rows],
            name=chapter.name,
            mode="lines",
            line={"width": 1.5, "color": colour(place)},
            hovertemplate="%{y:.0f}% at %{x:.2f} s",
        )
    figure.update_xaxes(title="seconds into the run")
    figure.update_yaxes(title="% of the time", range=[0, 103])
    return figure


def prediction_chart(chapters: Iterable[Chapter]) -> Figure | None:
    """Draw each cut's predicted iteration time beside the measured one, if it has both."""
    chapters = list(chapters)
    rows = [
        (chapter.name, row)
        for chapter in chapters
        for row in chapter.compared()
        if row.cut.predicted_s is not None and row.measured_s is not None
    ]
    if not rows:
        return None
    labels = [f"{name}, from {row.cut.from_s:.1f} s" for name, row in rows]
    figure = _figure(height=140 + 40 * len(rows), barmode="group")
    figure.add_bar(
        y=labels,
        x=[(row.cut.predicted_s or 0.0) * 1e3 for _, row in rows],
        orientation="h",
        name="predicted",
        marker={"color": PULL},
        hovertemplate="predicted: %{x:.4g} ms",
    )
    figure.add_bar(
        y=labels,
        x=[(row.measured_s or 0.0) * 1e3 for _, row in rows],
        orientation="h",
        name="measured",
        marker={"color": PUSH},
        hovertemplate="measured: %{x:.4g} ms",
    )
    figure.update_xaxes(title="iteration (ms)", rangemode="tozero")
    figure.update_yaxes(autorange="reversed")
    return figure
