"""Pages of results: they are what their data gives, say where it was measured, and have no number by hand."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from support.results import cell, failed, policy
from tools import kept, pages
from tools.kept import Point, Provenance, Study

HERE = Path(__file__).parents[2]
RESULTS = HERE / kept.RESULTS
PROVENANCE = Provenance("2026-01-02", "abc1234", "a processor", 2)


@pytest.fixture(autouse=True)
def in_the_checkout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(HERE)


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    """Kept data and notes in a folder of their own."""
    results = tmp_path / "docs" / "results"
    for folder in ("data", "notes"):
        shutil.copytree(RESULTS / folder, results / folder)
    return results


@pytest.mark.parametrize("name", pages.names())
def test_a_page_is_what_its_data_gives_with_its_origin_and_whole_tables_and_figures(name: str) -> None:
    text = (RESULTS / name).read_text(encoding="utf-8")
    assert pages.page(RESULTS, name) == text, f"{name} is out of date: make pages"
    day, commit = r"\d{4}-\d\d-\d\d", r"[0-9a-f]{7,}\+?"
    measured = rf"(Measured|Simulated|Computed) on {day} at commit {commit} on .+, \d+ cores?\."
    assert re.search(rf"{measured}|A note of {day}", text)
    for part in text.split("\n\n"):
        lines = [line for line in part.splitlines() if line.startswith("|")]
        assert not lines or set(lines[1]) == {"|", "-"}, f"{name}: {part[:80]}"
        assert len({len(re.split(r"(?<!\\)\|", line)) for line in lines}) <= 1, f"{name}: {part[:80]}"
    assert all((RESULTS / figure).is_file() for figure in re.findall(r"!\[[^]]*\]\(([^)]+)\)", text))


@pytest.mark.parametrize(("name", "most"), [("map.md", 500), ("against-the-papers.md", 1500)])
def test_pages_for_doubters_are_short(name: str, most: int) -> None:
    assert len((RESULTS / name).read_text(encoding="utf-8").split()) <= most


def test_all_notes_are_on_a_page() -> None:
    shown = "\n".join((RESULTS / name).read_text(encoding="utf-8") for name in pages.names())
    for path in (RESULTS / "notes").glob("*.md"):
        text = kept.note(RESULTS, path.stem).strip()
        assert re.match(r"\*A note of \d{4}-\d\d-\d\d", text), f"{path.name} does not begin with its date"
        assert text in shown, f"{path.name} is on no page; it was measured anew, so remove it"


def test_make_pages_writes_them_all(copied: Path) -> None:
    before = set(copied.parent.rglob("*.*"))
    assert pages.main(["--results", str(copied)]) == 0
    written = {path.resolve() for path in set(copied.parent.rglob("*.*")) - before}
    assert written == {(copied / name).resolve() for name in pages.names()}


@pytest.mark.parametrize(
    ("content", "line"),
    [
        ('{"measured": 3}', "testbed.json: cannot be read as kept results"),
        (
            '{"measured": {"date": "", "commit": "", "processor": "", "cores": 1}, "data": {}}',
            "testbed.md: its data lacks something ('dict object' has no attribute 'links')",
        ),
    ],
)
def test_data_that_cannot_be_shown_is_one_line_and_nothing_is_written(
    content: str, line: str, copied: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (copied / "data" / "testbed.json").write_text(content)
    assert pages.main(["--results", str(copied)]) == 2
    error = capsys.readouterr().err
    assert line in error and error.count("\n") == 1
    assert not list(copied.glob("*.md"))


def test_what_failed_in_a_study_is_said(copied: Path) -> None:
    ours = policy(0.9, accuracy=0.97)
    shown = cell(stock=policy(1.8), p3=policy(1.0), prophet=ours, fifo=failed("it hung"))
    kept.keep(copied, "validation", Study, Study({}, [Point(shown, 2)]), PROVENANCE)
    kept.keep(copied, "replay-resnet50", Study, Study({}, [Point(shown, 2)]), PROVENANCE)
    text = pages.page(copied, "replay.md")
    assert "| 250mbit | 1.800 | 1.000 | 0.900 | failed | 0.600 | 1.50 | -10.0% |" in text
    assert "250mbit; lower bound 0.600 s\n\n| policy |" in text
    assert "| prophet | 0.900 | 0.800-1.000 | 97.0% |" in text
    assert "| fifo | failed: it hung | - | - |" in text
    assert "bit for bit, under 0 of\n3 other policies." in text
