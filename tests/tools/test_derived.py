"""Files that follow from code and kept results are up to date."""

from __future__ import annotations

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
