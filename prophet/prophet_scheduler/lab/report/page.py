"""Page of a report: one self-contained HTML file.

Rule of this file: the tables' rows and the choice of moments; page.html.j2 has the text and the order of the charts.
The page's security policy forbids all requests. Names, settings and reasons from a run are text, never markup.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from prophet_scheduler.core.optional import need
from prophet_scheduler.core.units import format_rate, format_size, format_time
from prophet_scheduler.lab.iterations import time_columns
from prophet_scheduler.lab.records import CellResult
from prophet_scheduler.lab.report import charts
from prophet_scheduler.lab.report.stories import Chapter, Moment, Story
from prophet_scheduler.lab.results_view import basis_of, describe_setting

MOST_MOMENTS = 3
"""Maximum number of moments per chapter: the first, the first after the last change of the cut, and the last."""
MOST_DRAWN = 8
"""Maximum number of chapters with drawn transfers."""
BUTTONS = [["zoom2d", "pan2d", "zoomIn2d", "zoomOut2d", "resetScale2d", "toImage"]]
"""Buttons of a chart, without plotly's button that uploads a chart to a server."""
Rows = list[list[str]]


def page(story: Story) -> str:
    """Return the content of the HTML file. Raises MissingPackage without jinja2 or plotly."""
    jinja2 = need("jinja2", "prophet report")
    to_html, numbers = need("plotly.io", "prophet report").to_html, itertools.count(1)
    config = {"displaylogo": False, "responsive": True, "modeBarButtons": BUTTONS}

    def draw(figure: Any | None) -> str:
        if figure is None:
            return ""
        place = f"chart{next(numbers)}"
        return str(to_html(figure, include_plotlyjs=False, full_html=False, div_id=place, config=config))

    loader = jinja2.FileSystemLoader(Path(__file__).parent)
    spaces = {"trim_blocks": True, "lstrip_blocks": True, "keep_trailing_newline": True}
    env = jinja2.Environment(loader=loader, undefined=jinja2.StrictUndefined, autoescape=True, **spaces)
    said = basis_of(story.results.cells) if story.results is not None else ""
    rendered: str = env.get_template("page.html.j2").render(
        story=story,
        chapters=story.chapters,
        said=f"{said} Next to each: the speedup over the stock engine." if said else "",
        library=need("plotly.offline", "prophet report").get_plotlyjs(),
        draw=draw,
        charts=charts,
        setting=describe_setting,
        times=times_table,
        summary=summary_table,
        moments=drawn_moments,
        cuts=cut_rows,
        arms=arm_rows,
    )
    return rendered


def times_table(cell: CellResult) -> tuple[Sequence[str], Rows]:
    """Return (headings, rows) of the iteration times of a cell's policies."""
    shown = {name: policy.iteration_s for name, policy in cell.policies.items() if policy.iteration_s}
    headings, rows = time_columns(list(shown.values()))
    return ("", *headings), [[name, *row] for name, row in zip(shown, rows, strict=True)]


def summary_table(chapters: Sequence[Chapter]) -> tuple[Sequence[str], Rows]:
    """Return (headings, rows) of a job's workers: times, predictions and link."""
    several = [chapter.times for chapter in chapters]
    headings, columns = time_columns(several, format_time, unit="")
    rows = []
    for chapter, times, row in zip(chapters, several, columns, strict=True):
        stock_s = chapter.stock_s
        network = chapter.networks[-1][1] if chapter.networks else None
        ratio = f"{stock_s / times.rest:.2f}" if stock_s is not None and times is not None and times.rest else ""
        link = f"{format_rate(network.bandwidth * 8)}, {format_time(network.overhead_s)} a message" if network else ""
        rows.append([chapter.name, str(len(chapter.laps)), *row, _time(stock_s), ratio, link])
    more = "in the engine's own order, predicted", "predicted speedup", "link, last measured"
    return ("", "iterations", *headings, *more), rows


def drawn_moments(chapters: Sequence[Chapter]) -> Iterator[tuple[Chapter, Moment]]:
    """Yield the moments to draw: all of the first worker, and only the last of others, which do much the same."""
    for chapter in chapters[:MOST_DRAWN]:
        shown = shown_moments(chapter)
        for moment in shown[-1:] if chapter.waited_s and chapter is not chapters[0] else shown:
            yield chapter, moment


def shown_moments(chapter: Chapter) -> list[Moment]:
    """Return at most MOST_MOMENTS moments with transfers, chosen as described there."""
    moments = [moment for moment in chapter.moments if moment.transfers]
    if len(moments) <= MOST_MOMENTS:
        return moments
    changed_s = chapter.cuts[-1].from_s if chapter.cuts else 0.0
    after = next((moment for moment in moments if moment.from_s >= changed_s), moments[-1])
    return list(dict.fromkeys([moments[0], after, moments[-1]]))


def cut_rows(chapters: Sequence[Chapter]) -> Rows:
    """Return a row for each cut that was used."""
    rows = []
    for chapter in chapters:
        for cut in chapter.compared():
            sizes = " to ".join(map(format_size, dict.fromkeys(cut.sizes)))
            measured = f"{format_time(cut.measured_s)} ({cut.count})" if cut.measured_s is not None else ""
            times = _time(cut.predicted_s), measured, f"{cut.error:+.1%}" if cut.error is not None else ""
            rows.append([chapter.name, f"{cut.from_s:.1f} s", sizes, cut.reason, *times])
    return rows


def arm_rows(chapters: Sequence[Chapter]) -> Rows:
    """Return a row for each arm of the tuner, with its final belief."""
    return [
        [chapter.name, arm.words, _time(arm.predicted_s), f"{_time(arm.believed_s)} ± {arm.error:.1%}", str(arm.seen)]
        for chapter in chapters
        for arm in chapter.arms
    ]


def _time(seconds: float | None) -> str:
    return "" if seconds is None else format_time(seconds)
