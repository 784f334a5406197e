"""Pages of results: they are what their data gives, say where it was measured, and have no number by hand."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tools import kept, pages
from tools.provenance import Provenance

HERE = Path(__file__).parents[2]
RESULTS = HERE / kept.RESULTS
PROVENANCE = Provenance("2026-01-02", "abc1234", "a processor", 2)


@pytest.fixture(autouse=True)
def in_the_checkout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(HERE)


@pytest.mark.parametrize("name", pages.PAGES)
def test_a_page_is_what_its_data_gives(name: str) -> None:
    made = pages.PAGES[name](RESULTS)
    assert made == (RESULTS / name).read_text(encoding="utf-8"), f"{name} is out of date: make pages"


@pytest.mark.parametrize("name", pages.PAGES)
def test_a_page_says_when_and_where_it_was_measured(name: str) -> None:
    text = (RESULTS / name).read_text(encoding="utf-8")
    day, commit = r"\d{4}-\d\d-\d\d", r"[0-9a-f]{7,}\+?"
    measured = re.search(rf"(Measured|Simulated) on {day} at commit {commit} on .+, \d+ cores?\.", text)
    noted = re.search(rf"A note of {day}", text)
    assert measured or noted


@pytest.mark.parametrize("name", pages.PAGES)
def test_without_data_and_notes_a_page_says_how_to_measure_it(name: str, tmp_path: Path) -> None:
    text = pages.PAGES[name](tmp_path)
    assert text.startswith("# ") and "Not measured yet: `" in text
    makefile = (HERE / "Makefile").read_text(encoding="utf-8")
    for target in re.findall(r"Not measured yet: `make (\S+)`", text):
        assert f"\n{target}:" in makefile


@pytest.mark.parametrize("name", pages.PAGES)
def test_the_figures_of_a_page_are_there(name: str) -> None:
    for figure in re.findall(r"!\[[^]]*\]\(([^)]+)\)", (RESULTS / name).read_text(encoding="utf-8")):
        assert (RESULTS / figure).is_file(), figure


def test_all_notes_and_data_are_on_a_page() -> None:
    shown = "\n".join((RESULTS / name).read_text(encoding="utf-8") for name in pages.PAGES)
    for path in (RESULTS / "notes").glob("*.md"):
        text = kept.note(RESULTS, path.stem).strip()
        assert re.match(r"\*A note of \d{4}-\d\d-\d\d", text), f"{path.name} does not begin with its date"
        assert text in shown, f"{path.name} is on no page; it was measured anew, so remove it"


def test_make_pages_writes_them_all(tmp_path: Path) -> None:
    results = tmp_path / "results"
    results.mkdir()
    assert pages.main(["--results", str(results)]) == 0
    written = {path for path in tmp_path.rglob("*") if path.is_file()}
    assert written == {(results / name).resolve() for name in pages.PAGES}


def test_data_that_cannot_be_read_is_one_line_and_nothing_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "guard.json").write_text('{"measured": 3}')
    assert pages.main(["--results", str(tmp_path)]) == 2
    error = capsys.readouterr().err
    assert "guard.json: cannot be read as kept results" in error and error.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["data"]
