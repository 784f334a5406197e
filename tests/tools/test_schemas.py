"""The published schemas are those of the types."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tools import schemas

PUBLISHED = Path(__file__).parents[2] / schemas.FOLDER


def test_the_published_schemas_are_up_to_date() -> None:
    made = schemas.schemas()
    assert {path.name for path in PUBLISHED.glob("*.json")} == set(made)
    for name, text in made.items():
        assert (PUBLISHED / name).read_text(encoding="utf-8") == text, f"{name} is out of date: make schemas"


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
    assert keys <= set(json.loads(schemas.schemas()[f"{name}.json"])["properties"])
