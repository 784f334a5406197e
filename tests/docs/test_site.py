"""The site of the pages: made as `make site` makes it, whole, in a reader's order, and with nothing from elsewhere."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

pytest.importorskip("sphinx")
pytest.importorskip("myst_parser")
pytest.importorskip("furo")

from support.pages import ROOT

DOCS = ROOT / "docs"
NO_PAGES = DOCS / "results" / "notes"
"""Files that are part of other pages."""
LIMIT_S = 400
FIRST = ["tutorial", "installing", "enabling", "watching", "is-it-the-network", "advising", "stacks"]
"""First entries of the menu, in this order."""


class Fetched(HTMLParser):
    """References that a browser would fetch to show a page, and the targets of its menu."""

    def __init__(self) -> None:
        super().__init__()
        self.addresses: list[str] = []
        self.menu: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        if tag != "a":
            self.addresses += [values[name] for name in ("src", "srcset", "href", "data") if name in values]
        elif values.get("class") == "reference internal" and values["href"].endswith(".html"):
            self.menu.append(values["href"].removesuffix(".html"))


def parsed(page: Path) -> Fetched:
    parser = Fetched()
    parser.feed(page.read_text(encoding="utf-8"))
    return parser


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the site. Its command is the Makefile's, and any warning is an error there."""
    folder = tmp_path_factory.mktemp("site")
    recipe = re.search(r"^site:.*\n\t(.*)$", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    assert recipe is not None
    words = shlex.split(recipe[1].replace("$(BIN)/python", sys.executable).replace("build/", f"{folder}/"))
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=LIMIT_S)
    assert (done.returncode, done.stderr) == (0, "")
    return folder / "site"


def test_every_page_is_there(site: Path) -> None:
    pages = [page for page in DOCS.rglob("*.md") if NO_PAGES not in page.parents]
    assert len(pages) > 50
    assert not [page for page in pages if not (site / page.relative_to(DOCS)).with_suffix(".html").is_file()]


def test_it_begins_as_the_readme_does_and_leads_on_in_order(site: Path) -> None:
    text = (site / "index.html").read_text(encoding="utf-8")
    assert "makes data-parallel training faster on slow networks" in text
    menu = parsed(site / "index.html").menu
    assert menu[: len(FIRST)] == FIRST
    assert {"api", "glossary", "results/replay", "decisions/nccl", "policies/pace", "CHANGELOG"} <= set(menu)


def test_nothing_comes_from_elsewhere(site: Path) -> None:
    for page in site.rglob("*.html"):
        assert not [address for address in parsed(page).addresses if re.match(r"(\w+:)?//", address)], page.name
    for style in site.rglob("*.css"):
        assert not re.search(r"@import|url\(['\"]?(https?:)?//", style.read_text(encoding="utf-8")), style.name


def test_docstrings_are_on_the_page_of_the_api(site: Path) -> None:
    text = (site / "api.html").read_text(encoding="utf-8")
    for name in (
        "prophet_scheduler.core.plan.Plan",
        "prophet_scheduler.simulate.simulate",
        "prophet_scheduler.policies.Blocks.ADAPTIVE",
    ):
        assert f'id="{name}"' in text, name


def test_it_can_be_searched_without_a_server(site: Path) -> None:
    index = (site / "searchindex.js").read_text(encoding="utf-8")
    assert index.startswith("Search.setIndex(") and "enabling" in index
