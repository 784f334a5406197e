"""Page of a report: one self-contained HTML file.

Rule of this file: words, tables and the order of the charts. The page fetches nothing: it contains the drawing library
once, and its own policy forbids the browser any request. Light and dark follow the reader's system. Names, settings and
reasons from a run are text, never markup.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path
from typing import Any

from prophet_scheduler.core.optional import need
from prophet_scheduler.core.units import format_rate, format_size, format_time
from prophet_scheduler.lab.iterations import Times, basis, time_columns
from prophet_scheduler.lab.report import charts
from prophet_scheduler.lab.report.stories import Chapter, Moment, Story
from prophet_scheduler.lab.results_view import describe_setting

MOST_MOMENTS = 3
"""Maximum moments of a chapter: the first, the last, and the first after the last change of the cut."""
MOST_DRAWN = 8
"""Maximum chapters with drawn transfers."""

STYLE = Path(__file__).with_name("page.css")
SCRIPT = Path(__file__).with_name("page.js")
BUTTONS = [["zoom2d", "pan2d", "zoomIn2d", "zoomOut2d", "resetScale2d", "toImage"]]
"""Buttons of a chart, without the library's button that sends a chart to a server."""
POLICY = (
    "default-src 'none'; form-action 'none'; base-uri 'none'; "
    "script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:"
)


def page(story: Story) -> str:
    """Return the whole file."""
    draw = _Drawing()
    body = "\n".join(_sections(story, draw))
    library = need("plotly.offline", "prophet report").get_plotlyjs()
    style, script = STYLE.read_text(encoding="utf-8"), SCRIPT.read_text(encoding="utf-8")
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{escape(POLICY)}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        f"<title>{escape(story.title)} - Prophet</title>\n<style>\n{style}</style>\n"
        f"<script>{library}</script>\n</head>\n<body>\n<main>\n{body}\n</main>\n<script>\n{script}</script>\n"
        "</body>\n</html>\n"
    )


class _Drawing:
    """Writer of charts, which numbers them in order."""

    def __init__(self) -> None:
        self._count = 0

    def __call__(self, figure: Any | None) -> str:
        if figure is None:
            return ""
        self._count += 1
        to_html = need("plotly.io", "prophet report").to_html
        config = {"displaylogo": False, "responsive": True, "modeBarButtons": BUTTONS}
        text: str = to_html(
            figure, include_plotlyjs=False, full_html=False, div_id=f"chart{self._count}", config=config
        )
        return text


def _sections(story: Story, draw: _Drawing) -> Iterable[str]:
    chapters = story.chapters
    yield f"<h1>{escape(story.title)}</h1>"
    yield "".join(f"<p>{escape(fact)}</p>" for fact in story.facts)
    yield from _times(story, draw)
    yield from _moments(chapters, draw)
    yield from _section(
        "Blocks and cuts",
        "How large the blocks were in which gradients travelled. Prophet cuts them anew where that is predicted to be "
        "faster.",
        draw(charts.block_chart(chapters)),
        _cut_table(chapters),
    )
    yield from _section(
        "Predicted and measured",
        "What an iteration was predicted to take with the blocks that were chosen, and the mean of those that took "
        "place with them.",
        draw(charts.prediction_chart(chapters)),
        _arm_table(chapters),
    )
    yield from _section(
        "Waits by layer",
        "For how long an iteration stood still because a gradient was not back when its layer needed it.",
        draw(charts.wait_chart(chapters, lambda chapter: chapter.waited_s, "ms of an iteration")),
    )
    yield from _section(
        "Waits for the wire",
        "How long each gradient, or block, was ready before it was sent: medians. What comes last in forward order may "
        "wait long and delay nothing.",
        draw(charts.wait_chart(chapters, lambda chapter: chapter.queued_s, "ms from ready to sent")),
    )
    yield from _section(
        "Rates",
        "Bytes of gradients over time, and the link's rate as Prophet measured it; headers are not counted.",
        draw(charts.rate_chart(chapters)),
        draw(charts.busy_chart(chapters)),
    )
    yield from _section("Settings", "", _pairs(sorted(story.settings.items())))


def _section(title: str, words: str, *parts: str) -> Iterable[str]:
    """Yield a section, or nothing if all its parts are empty."""
    if any(parts):
        introduction = f"<p>{escape(words)}</p>" if words else ""
        yield f"<section>\n<h2>{escape(title)}</h2>\n{introduction}\n" + "\n".join(filter(None, parts)) + "\n</section>"


def _times(story: Story, draw: _Drawing) -> Iterable[str]:
    if story.results is not None:
        parts = []
        several: list[Times] = []
        for cell in story.results.cells:
            setting = describe_setting(cell.setting)
            parts.append(f"<h3>{escape(setting)}</h3>" if setting else "")
            parts.append(draw(charts.policy_chart(cell)))
            for name, policy in cell.policies.items():
                if policy.error is not None:
                    parts.append(f'<p class="note">{escape(name)} failed: {escape(policy.error)}</p>')
            shown = {name: policy.iteration_s for name, policy in cell.policies.items() if policy.iteration_s}
            several += shown.values()
            headings, rows = time_columns(list(shown.values()))
            parts.append(_table(("", *headings), [[name, *row] for name, row in zip(shown, rows, strict=True)]))
        said = f"{basis(several)} Beside them: how many times as fast as the stock engine." if several else ""
        yield from _section("Iteration times", said, *parts)
        yield from _section(
            "Each iteration", "Of one run of each policy.", draw(charts.iteration_chart(story.chapters))
        )
        return
    yield from _section(
        "Iteration times",
        "From the last gradient of an iteration to the last one of the next. Dotted: blocks were cut anew.",
        _summary(story.chapters),
        draw(charts.iteration_chart(story.chapters)),
        "".join(
            f'<p class="note">{escape(chapter.name)}: {escape(note)}</p>'
            for chapter in story.chapters
            for note in chapter.notes
        ),
    )


def _summary(chapters: Sequence[Chapter]) -> str:
    rows = []
    several = [chapter.times for chapter in chapters]
    headings, columns = time_columns(several, format_time, unit="")
    for chapter, times, row in zip(chapters, several, columns, strict=True):
        stock_s = chapter.stock_s
        network = chapter.networks[-1][1] if chapter.networks else None
        rows.append(
            [
                chapter.name,
                str(len(chapter.laps)),
                *row,
                format_time(stock_s) if stock_s is not None else "",
                f"{stock_s / times.rest:.2f}" if stock_s is not None and times is not None and times.rest else "",
                f"{format_rate(network.bandwidth * 8)}, {format_time(network.overhead_s)} a message" if network else "",
            ]
        )
    return _table(
        (
            *("", "iterations", *headings, "in the engine's own order, predicted"),
            *("times as long as at rest, predicted", "link as measured last"),
        ),
        rows,
    )


def _moments(chapters: Sequence[Chapter], draw: _Drawing) -> Iterable[str]:
    parts = []
    for chapter in chapters[:MOST_DRAWN]:
        shown = shown_moments(chapter)
        # The other workers do much the same at the same time.
        for moment in shown[-1:] if chapter.waited_s and chapter is not chapters[0] else shown:
            figure = charts.transfer_chart(chapter, moment)
            if figure is None:
                continue
            parts.append(f"<h3>{escape(chapter.name)}, {escape(moment.name)}</h3>")
            hidden = max(0, len(moment.transfers) - charts.MOST_BARS) + moment.left_out
            if hidden:
                parts.append(f"<p>{hidden} more transfers are not shown.</p>")
            parts.append(draw(figure))
    yield from _section(
        "What moved when",
        "Each line is one transfer: thin while it was ready and not sent, thick while it was in flight.",
        *parts,
    )


def shown_moments(chapter: Chapter) -> list[Moment]:
    """Return at most MOST_MOMENTS: the first, the first after the last change of the cut, and the last."""
    moments = [moment for moment in chapter.moments if moment.transfers]
    if len(moments) <= MOST_MOMENTS:
        return moments
    changed_s = chapter.cuts[-1].from_s if chapter.cuts else 0.0
    after = next((moment for moment in moments if moment.from_s >= changed_s), moments[-1])
    return list(dict.fromkeys([moments[0], after, moments[-1]]))


def _cut_table(chapters: Sequence[Chapter]) -> str:
    rows = []
    for chapter in chapters:
        for row in chapter.compared():
            cut = row.cut
            least, most = cut.sizes
            sizes = format_size(least) if least == most else f"{format_size(least)} to {format_size(most)}"
            rows.append(
                [
                    chapter.name,
                    f"{cut.from_s:.1f} s",
                    sizes,
                    cut.reason,
                    format_time(cut.predicted_s) if cut.predicted_s is not None else "",
                    f"{format_time(row.measured_s)} ({row.count})" if row.measured_s is not None else "",
                    f"{row.error:+.1%}" if row.error is not None else "",
                ]
            )
    if not rows:
        return ""
    return _table(("", "from", "blocks", "why", "predicted", "measured (iterations)", "error"), rows)


def _arm_table(chapters: Sequence[Chapter]) -> str:
    """Return a table of the tuner's beliefs at the end."""
    rows = [
        [
            chapter.name,
            arm.words,
            format_time(arm.predicted_s),
            f"{format_time(arm.believed_s)} ± {arm.error:.1%}",
            str(arm.seen),
        ]
        for chapter in chapters
        for arm in chapter.arms
    ]
    return _table(("", "blocks", "predicted", "believed at the end", "iterations seen"), rows) if rows else ""


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    head = "".join(f"<th>{escape(each)}</th>" for each in heads)
    body = "\n".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f'<div class="wide"><table>\n<thead><tr>{head}</tr></thead>\n<tbody>\n{body}\n</tbody></table></div>'


def _pairs(rows: Sequence[tuple[str, str]]) -> str:
    return _table(("setting", "value"), rows) if rows else ""
