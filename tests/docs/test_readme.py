"""The numbers of the README are those of the pages that it names, and its picture is what the tool draws."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from support.pages import ROOT
from tools import picture

README = ROOT / "README.md"
TEXT = README.read_text(encoding="utf-8")
TIME = r"(\d\.\d{3})"
DDP_ROW = re.compile(rf"^\| (.+) \| {TIME} \| {TIME} \| {TIME} \| \*\*{TIME}\*\* \| {TIME} \|$", re.MULTILINE)
DDP_ROWS = DDP_ROW.findall(TEXT)
DDP_PAGE = ROOT / "docs/results/allreduce.md"
ROW = re.compile(rf"^\| (.+) \| {TIME} \| \*\*{TIME}\*\* \| ([\d.]+) \| \[\w+\]\((.+)\) \|$", re.MULTILINE)
ROWS = ROW.findall(TEXT)
SECONDS = re.compile(r"\d\.\d{3}\b")
SVG = "{http://www.w3.org/2000/svg}"


def rows_of(page: Path) -> list[set[str]]:
    """The times in each row of the page's tables."""
    return [set(SECONDS.findall(line)) for line in page.read_text(encoding="utf-8").splitlines() if line[:1] == "|"]


@pytest.mark.parametrize(("job", "plain", "best", "half", "ours", "both"), DDP_ROWS, ids=[row[0] for row in DDP_ROWS])
def test_a_row_of_ddp_is_two_rows_of_its_page(job: str, plain: str, best: str, half: str, ours: str, both: str) -> None:
    of_page = rows_of(DDP_PAGE)
    assert any({plain, best, ours} <= row for row in of_page), f"no such times for {job}"
    assert any({half, both} <= row for row in of_page), f"no such times for {job} in half precision"


@pytest.mark.parametrize(("job", "without", "ours", "times", "page"), ROWS, ids=[row[0] for row in ROWS])
def test_a_row_is_what_its_page_has(job: str, without: str, ours: str, times: str, page: str) -> None:
    of_page = rows_of(ROOT / page)
    together = any({without, ours} <= row for row in of_page)
    # A page without a row for each cell has one for each policy.
    alone = any(without in row for row in of_page) and any(ours in row for row in of_page)
    assert together or alone, f"{page} has no such times for {job}"
    assert times == f"{float(without) / float(ours):.2f}"


def test_other_times_are_on_those_pages_too() -> None:
    assert len(DDP_ROWS) >= 4 and len(ROWS) >= 3
    pages = {DDP_PAGE, *(ROOT / row[4] for row in ROWS)}
    assert set(SECONDS.findall(TEXT)) <= {time for page in pages for times in rows_of(page) for time in times}


@pytest.fixture(scope="module")
def panels() -> list[picture.Panel]:
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.chdir(ROOT)
        return picture.panels()


@pytest.fixture
def drawn(panels: list[picture.Panel]) -> str:
    return picture.drawing(panels)


def test_the_picture_is_what_the_tool_draws(drawn: str) -> None:
    assert drawn == (ROOT / picture.PICTURE).read_text(encoding="utf-8"), "out of date: make pages"
    assert f"]({picture.PICTURE})" in README.read_text(encoding="utf-8")


def test_the_picture_says_all_and_fetches_nothing(drawn: str) -> None:
    root = ElementTree.fromstring(drawn)
    texts = [text.text or "" for text in root.iter(f"{SVG}text")]
    for title in picture.SHOWN.values():
        assert any(re.fullmatch(rf"{re.escape(title)}: \d\.\d\d s", text) for text in texts)
    assert texts.count("backward") == texts.count("forward") == len(picture.SHOWN)
    assert "prefers-color-scheme: dark" in drawn
    assert not re.search(r"https?://(?!www\.w3\.org/2000/svg\")|@import|url\(", drawn)


def test_what_is_computed_and_sent_is_the_iteration(panels: list[picture.Panel]) -> None:
    first, *_, ours = panels
    assert first.iteration_s > ours.iteration_s
    for each in (first, ours):
        assert sum(span.end_s - span.start_s for span in each.computing) == pytest.approx(0.9, rel=1e-6)
        assert all(span.start_s < span.end_s <= each.iteration_s + 1e-9 for span in (*each.computing, *each.sending))
    steps = [span.step for span in first.computing]
    assert steps == [*range(12, -1, -1), *range(13)], "backward from the last step to the first, and forward back"
