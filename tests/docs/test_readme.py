"""The numbers of the README are those of the pages that it names."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from support.pages import ROOT

README = ROOT / "README.md"
TEXT = README.read_text(encoding="utf-8")
TIME = r"(\d\.\d{3})"
DDP_ROW = re.compile(rf"^\| (.+) \| {TIME} \| {TIME} \| {TIME} \| \*\*{TIME}\*\* \| {TIME} \|$", re.MULTILINE)
DDP_ROWS = DDP_ROW.findall(TEXT)
DDP_PAGE = ROOT / "docs/results/allreduce.md"
ROW = re.compile(rf"^\| (.+) \| {TIME} \| \*\*{TIME}\*\* \| ([\d.]+) \| \[\w+\]\((.+)\) \|$", re.MULTILINE)
ROWS = ROW.findall(TEXT)
SECONDS = re.compile(r"\d\.\d{3}\b")


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


def test_the_picture_fetches_nothing_and_follows_the_readers_mode() -> None:
    (picture,) = re.findall(r"\]\((docs/images/.+\.svg)\)", TEXT)
    drawn = (ROOT / picture).read_text(encoding="utf-8")
    assert "prefers-color-scheme: dark" in drawn
    assert not re.search(r"https?://(?!www\.w3\.org/2000/svg\")|@import|url\(", drawn)
