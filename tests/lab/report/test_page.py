"""The page of a report: it needs nothing else, shows what there is, and is looked at in a real browser."""

from __future__ import annotations

import re
import subprocess
from html.parser import HTMLParser
from pathlib import Path

import pytest

pytest.importorskip("plotly")

from prophet_scheduler.core.cut import Segment
from prophet_scheduler.core.errors import UserError
from prophet_scheduler.core.status import ArmStatus
from prophet_scheduler.lab.iterations import MEDIANS
from prophet_scheduler.lab.records import Results, write_results
from prophet_scheduler.lab.report import story_of, write_report
from prophet_scheduler.lab.report.page import MOST_MOMENTS, page, shown_moments
from prophet_scheduler.lab.report.stories import Chapter, CutInForce, Moment, Story
from support.job_records import write_experiment, write_job_record
from support.results import cell, policy
from tools.screenshots import BROWSERS, INSTALL, find_browser, headless

LIMIT_S = 400


class Structure(HTMLParser):
    """References that a browser would fetch, and the words that a reader sees."""

    def __init__(self) -> None:
        super().__init__()
        self.references: list[str] = []
        self.policy = ""
        self.heads: list[str] = []
        self.words: list[str] = []
        self.scripts = 0
        self._open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        self.references += [values[name] for name in ("src", "href", "srcset", "data", "action") if name in values]
        if values.get("http-equiv") == "Content-Security-Policy":
            self.policy = values["content"]
        self.scripts += tag == "script"
        if tag not in ("meta", "br", "link", "img"):
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self._open and self._open[-1] in ("h2", "h3"):
            self.heads.append(data)
        if not {"script", "style"} & set(self._open):
            self.words.append(data)


def structure(text: str) -> Structure:
    parser = Structure()
    parser.feed(text)
    parser.close()
    assert not parser._open
    return parser


@pytest.fixture(scope="module")
def record(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("record")
    write_job_record(folder)
    return folder


def test_page_is_self_contained_and_complete(record: Path) -> None:
    text = page(story_of(record))
    parsed = structure(text)
    assert parsed.references == []
    assert parsed.policy.startswith("default-src 'none'") and "http" not in parsed.policy
    assert not re.search(r"@import|url\(\s*['\"]?http", text[: text.index("<script>")])
    sections = [
        "Iteration times",
        "What moved when",
        "Blocks and cuts",
        "Waits by layer",
        "Rates",
    ]
    assert [head for head in parsed.heads if head in sections] == sections
    assert text.count("plotly.js v") <= 2, "the library is there once"
    assert "prefers-color-scheme: dark" in text
    words = " ".join(parsed.words)
    assert "worker 1" in words and "predicted 1.2 s an iteration" in words and "250mbit" in words
    assert {"mean", "at rest", "median", "p10-p90"} <= set(parsed.words)


def test_text_from_a_run_is_no_markup() -> None:
    bad = "<script>alert(1)</script>"
    story = Story(bad, [bad], [Chapter(bad, cuts=[CutInForce(0.0, (), bad)], notes=[bad])], {bad: bad})
    parsed = structure(page(story))
    harmless = structure(page(Story("x", [], [Chapter("x", cuts=[CutInForce(0.0, ())])], {"x": "x"})))
    assert parsed.scripts == harmless.scripts
    assert "".join(parsed.words).count(bad) >= 6


def test_page_of_experiment(tmp_path: Path) -> None:
    write_experiment(tmp_path)
    write_report(tmp_path, tmp_path / "report.html")
    parsed = structure((tmp_path / "report.html").read_text(encoding="utf-8"))
    assert {"Iteration times", "Each iteration", "Rates", "Settings"} <= set(parsed.heads)
    assert "broken failed: it hung" in " ".join(parsed.words)
    first = parsed.words.index("mean (s)")
    assert parsed.words[first : first + 4] == ["mean (s)", "at rest", "median", "p10-p90"]
    assert {"0.900", "1.800"} <= set(parsed.words), "the means of what prophet and stock took"


def test_page_of_schema_1_has_only_medians(tmp_path: Path) -> None:
    results = Results(schema=1, config={}, cells=[cell(stock=policy(1.75), prophet=policy(0.95))])
    write_results(results, tmp_path / "results.json")
    write_report(tmp_path, tmp_path / "report.html")
    words = structure((tmp_path / "report.html").read_text(encoding="utf-8")).words
    assert any(MEDIANS in said for said in words)
    assert {"median (s)", "1.750", "0.950"} <= set(words) and "mean (s)" not in words


def test_unwritable_page_is_one_line(record: Path) -> None:
    (record / "file").write_text("")
    with pytest.raises(UserError, match=r"^--out: .*/file is not a folder; name another$"):
        write_report(record, record / "file" / "report.html")
    with pytest.raises(UserError, match=r"^--out: .* is a folder; name a file in it$"):
        write_report(record, record)


def test_at_most_three_moments_are_drawn() -> None:
    from prophet_scheduler.core.events import QueueKind
    from prophet_scheduler.core.transfer import Transfer

    moved = (Transfer(0, 0, 8, QueueKind.PUSH, 0.0, 0.1, 0.2),)
    moments = [Moment(str(second), second, second + 1.0, moved) for second in range(10)]
    chapter = Chapter("w", moments=[*moments, Moment("empty", 10.0, 11.0, ())], cuts=[CutInForce(3.5, ())])
    shown = shown_moments(chapter)
    assert [moment.name for moment in shown] == ["0", "4", "9"] and len(shown) == MOST_MOMENTS


def drawn(browser: str, file: Path, folder: Path, dark: bool) -> str:
    """The page's DOM, once all is drawn."""
    command = headless(browser, file, folder / "profile", "1200,2400", dark, "--dump-dom")
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def test_browser_draws_light_and_dark(record: Path, tmp_path: Path) -> None:
    browser = find_browser()
    if browser is None:
        pytest.skip(f"no browser: none of {', '.join(BROWSERS)} is installed ({INSTALL})")
    file = tmp_path / "report.html"
    write_report(record, file)
    charts = file.read_text(encoding="utf-8").count('class="plotly-graph-div"')
    inks = set()
    for dark in (False, True):
        dom = drawn(browser, file, tmp_path, dark)
        body = re.search(r"<body[^>]*>", dom)
        assert body is not None and "data-error" not in body[0]
        assert f'data-drawn="{charts}"' in body[0] and charts >= 6
        assert f'data-scheme="{"dark" if dark else "light"}"' in body[0]
        assert len(re.findall(r'<svg class="main-svg"', dom)) >= charts
        assert dom.count("scatterlayer") >= 4 and "ready, not sent" in dom
        ink = re.search(r'class="xtick"><text[^>]*fill: (rgb\([^)]*\))', dom)
        assert ink is not None
        inks.add(ink[1])
    assert len(inks) == 2, "the charts have the ink of the page"


def test_page_has_table_of_arms() -> None:
    arm = ArmStatus((Segment(0, 1 << 18),), "two phases", 0.97, 0.953, 0.012, 9)
    words = structure(page(Story("x", [], [Chapter("w", arms=[arm])]))).words
    assert {"two phases of 256KiB", "970ms", "953ms ± 1.2%", "9"} <= set(words)
