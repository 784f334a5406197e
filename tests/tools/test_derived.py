"""Files that follow from code and kept results are up to date."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tools import derived


@pytest.mark.parametrize("path", derived.derived(), ids=lambda path: path.name)
def test_a_file_is_up_to_date(path: Path) -> None:
    assert derived.derived()[path] == path.read_text(encoding="utf-8"), f"{path.name} is out of date: make pages"


def test_every_published_schema_has_a_type() -> None:
    assert set(derived.SCHEMAS.glob("*.json")) <= set(derived.derived())


def test_a_page_without_the_marks_is_left_alone() -> None:
    with pytest.raises(ValueError, match="substring not found"):
        derived.with_tables("# Enabling\n")


@pytest.mark.parametrize(
    ("name", "keys"),
    [
        ("results", {"schema", "config", "repeats", "cells"}),
        ("status", {"policy", "stepped_aside", "hook", "network"}),
        ("worker", {"iteration_s", "marks", "weights_sha256"}),
        ("profile", {"schema", "name", "source", "gradients"}),
        ("advice", {"schema", "network_holds_back", "iteration_s", "suggestions"}),
    ],
)
def test_a_schema_has_the_keys_of_its_file(name: str, keys: set[str]) -> None:
    assert keys <= set(json.loads((derived.SCHEMAS / f"{name}.json").read_text())["properties"])


def test_the_simulators_errors_have_every_contender_once() -> None:
    assert derived.errors_text().count('"prophet"') == 1
