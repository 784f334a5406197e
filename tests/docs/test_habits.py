"""Promises of CONTRIBUTING: hooks cover what `make lint` does, and links lead to pages."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
PAGES = [*ROOT.glob("*.md"), *sorted((ROOT / "docs").rglob("*.md"))]
CODE = [
    path
    for folder in ("prophet", "plugins", "tools", "tests")
    for suffix in ("py", "h", "cc")
    for path in sorted((ROOT / folder).rglob(f"*.{suffix}"))
]

LINK = re.compile(r"\]\(([^)#\s]*)(?:#([^)\s]*))?\)")
HEADING = re.compile(r"^#+ (.*)$", re.MULTILINE)
DECISION = re.compile(r"docs/decisions/[\w-]+\.md")


def words(command: str) -> list[str]:
    """A linter's command without what says which files it is for."""
    return re.sub(r" (\.|--force-exclude|\$\$\(.*\))(?= |$)", "", command).split()


def anchors(page: Path) -> set[str]:
    """The anchors of its headings, as GitHub makes them."""
    headings = (re.sub(r"[^\w\- ]", "", text.strip().lower()) for text in HEADING.findall(page.read_text("utf-8")))
    return {heading.replace(" ", "-") for heading in headings}


def links(page: Path) -> Iterator[tuple[Path, str]]:
    """(file, anchor or "") of each link to this project's files."""
    for target, anchor in LINK.findall(page.read_text("utf-8")):
        if "://" not in target:
            yield (page.parent / target).resolve() if target else page, anchor


def test_every_linter_of_make_lint_has_a_hook() -> None:
    target = re.search(r"^lint:.*\n((?:\t.*\n)+)", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE)
    assert target is not None
    linters = [words(line.strip().replace("$(BIN)", ".venv/bin")) for line in target.group(1).splitlines()]
    config = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text("utf-8"))
    hooks = [hook for repo in config["repos"] for hook in repo["hooks"]]
    assert sorted(words(hook["entry"]) for hook in hooks) == sorted(linters)
    assert {repo["repo"] for repo in config["repos"]} == {"local"}
    assert {hook["language"] for hook in hooks} == {"system"}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    for target, anchor in links(page):
        assert target.exists(), f"{page.name} links to {target}"
        assert not anchor or anchor in anchors(target), f"{page.name} links to #{anchor} of {target.name}"


def test_pages_do_have_links() -> None:
    assert {target.name for target, _ in links(ROOT / "README.md")} >= {"CONTRIBUTING.md", "enabling.md", "replay.md"}
    assert [anchor for page in PAGES for _, anchor in links(page) if anchor]


def test_code_points_to_decisions_that_exist_and_the_index_has_them_all() -> None:
    pointers = {pointer for path in CODE for pointer in DECISION.findall(path.read_text("utf-8"))}
    assert len(pointers) >= 5
    assert not [pointer for pointer in pointers if not (ROOT / pointer).is_file()]
    index = ROOT / "docs" / "decisions" / "README.md"
    assert {target for target, _ in links(index) if target.parent == index.parent} == set(index.parent.glob("*.md")) - {
        index
    }
