"""The page of what is stable names all of it, and only what there is."""

from __future__ import annotations

import pkgutil
import re

import pytest
import typer

from prophet.cli import main as cli
from prophet.core import settings
from prophet.lab.records import RECORDS
from support.pages import ROOT, blocks

PAGE = ROOT / "docs" / "api.md"
TEXT = PAGE.read_text(encoding="utf-8")
NAME = re.compile(r"^\.\. auto\w+:: (\S+)$", re.MULTILINE)
NAMES = [name for text in blocks(PAGE, "{eval-rst}") for name in NAME.findall(text)]
NO_SETTING = {settings.CHOSEN}


def test_every_command_is_there() -> None:
    group = typer.main.get_command(cli.app)
    assert isinstance(group, typer.core.TyperGroup)
    assert sorted(re.findall(r"^\| `prophet (\w+)` \|", TEXT, re.MULTILINE)) == sorted(group.commands)


def test_every_variable_is_there() -> None:
    known = {value for value in vars(settings).values() if isinstance(value, str) and value.startswith("PROPHET_")}
    assert set(re.findall(r"`(PROPHET_\w+)`", TEXT)) == known - NO_SETTING


def test_every_variable_is_explained_in_a_row_of_its_own() -> None:
    pages = "".join((ROOT / "docs" / name).read_text(encoding="utf-8") for name in ("enabling.md", "mlfabric.md"))
    rows = set(re.findall(r"^\| `(PROPHET_\w+)` \|", pages, re.MULTILINE))
    assert set(re.findall(r"`(PROPHET_\w+)`", TEXT)) - rows == {settings.DDP_SCHEDULER}, "which has a section"


def test_every_schema_is_there() -> None:
    assert set(re.findall(r"\(schemas/(\w+)\.json\)", TEXT)) == {name for name, _ in RECORDS}


def test_the_names_of_python_are_there_and_say_what_they_are() -> None:
    pytest.importorskip("torch")
    assert len(NAMES) >= 20
    for name in NAMES:
        assert pkgutil.resolve_name(name).__doc__, name
