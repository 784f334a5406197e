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


def test_they_are_written(tmp_path: Path) -> None:
    assert schemas.main(["--out", str(tmp_path / "new")]) == 0
    assert (tmp_path / "new" / "results.json").read_text() == schemas.schemas()["results.json"]


def test_a_folder_that_cannot_be_made_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("")
    assert schemas.main(["--out", str(tmp_path / "file")]) == 2
    assert capsys.readouterr().err.count("\n") == 1


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
