"""The page of what is stable names all of it, and only what there is; so does the one list of variables."""

from __future__ import annotations

import ast
import pkgutil
import re

import pytest
import typer

from prophet_scheduler.cli import main as cli
from prophet_scheduler.core import settings
from prophet_scheduler.lab.records import RECORDS
from prophet_scheduler.policies import unknown_variables
from support.pages import PAGES, ROOT, blocks

PAGE = ROOT / "docs" / "api.md"
TEXT = PAGE.read_text(encoding="utf-8")
NAME = re.compile(r"^\.\. auto\w+:: (\S+)$", re.MULTILINE)
NAMES = [name for text in blocks(PAGE, "{eval-rst}") for name in NAME.findall(text)]
EXAMPLES = {"PROPHET_WINDOW_BYTES", "PROPHET_FUSON"}
"""Names of a policy that a page tells how to add, and a misspelt one."""
BUILDING = "PROPHET_ENGINE_MACHINE_FLAGS"
"""Is for the compiler of a BytePS that is being built, and in no job's environment."""


def test_every_command_is_there() -> None:
    group = typer.main.get_command(cli.app)
    assert isinstance(group, typer.core.TyperGroup)
    assert sorted(re.findall(r"^\| `prophet (\w+)` \|", TEXT, re.MULTILINE)) == sorted(group.commands)


def test_every_variable_is_there() -> None:
    assert set(re.findall(r"`(PROPHET_\w+)`", TEXT)) == settings.NAMES - settings.HANDED_ON


def test_no_page_names_a_variable_that_there_is_not() -> None:
    pages = "".join(page.read_text(encoding="utf-8") for page in (*PAGES, ROOT / "CHANGELOG.md"))
    assert set(unknown_variables(re.findall(r"\bPROPHET_[A-Z_]*[A-Z]", pages))) == EXAMPLES


def test_the_settings_are_the_one_list_of_variables() -> None:
    """A name that is written elsewhere in the code would not be known when somebody sets it."""
    elsewhere = {
        node.value
        for folder in ("prophet", "plugins")
        for path in (ROOT / folder).rglob("*.py")
        if path != ROOT / "prophet" / "prophet_scheduler" / "core" / "settings.py"
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant) and re.fullmatch(r"PROPHET_[A-Z0-9_]+", str(node.value))
    }
    assert elsewhere == {BUILDING}
    assert settings.HANDED_ON < settings.NAMES and settings.FUSION in settings.NAMES


def test_every_variable_is_explained_in_a_row_of_its_own() -> None:
    pages = "".join((ROOT / "docs" / name).read_text(encoding="utf-8") for name in ("enabling.md", "mlfabric.md"))
    rows = set(re.findall(r"^\| `(PROPHET_\w+)` \|", pages, re.MULTILINE))
    assert set(re.findall(r"`(PROPHET_\w+)`", TEXT)) <= rows


def test_every_schema_is_there() -> None:
    assert set(re.findall(r"\(schemas/(\w+)\.json\)", TEXT)) == {name for name, _ in RECORDS}


def test_the_names_of_python_are_there_and_say_what_they_are() -> None:
    pytest.importorskip("torch")
    assert len(NAMES) >= 20
    for name in NAMES:
        assert pkgutil.resolve_name(name).__doc__, name
