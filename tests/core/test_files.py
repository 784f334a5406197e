"""Files appear whole, or stay what they were."""

from __future__ import annotations

from pathlib import Path

import pytest

from prophet.core.files import write_whole


def test_a_text_takes_the_place_of_another(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text("old")
    write_whole("grün", path)
    assert path.read_bytes() == "grün".encode()
    assert [entry.name for entry in tmp_path.iterdir()] == ["a.json"]


def test_what_cannot_be_written_leaves_the_file_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text("old")
    with pytest.raises(UnicodeEncodeError):
        write_whole("\ud800", path)
    assert path.read_text() == "old"
