"""Files appear whole, or stay what they were."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from prophet_scheduler.core.errors import UserError
from prophet_scheduler.core.files import placed, require_folder, require_places, whole_file, write_whole


def test_a_text_takes_the_place_of_another(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text("old")
    write_whole("grün", path)
    assert path.read_bytes() == "grün".encode()
    assert [entry.name for entry in tmp_path.iterdir()] == ["a.json"]


def test_what_cannot_be_written_leaves_the_file_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    for there in ([], [path]):
        with pytest.raises(UnicodeEncodeError):
            write_whole("\ud800", path)
        assert list(tmp_path.iterdir()) == there
        path.write_text("old")
    assert path.read_text() == "old"


def test_two_that_write_one_file_at_once_both_succeed(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    with whole_file(path) as file:
        write_whole("the other", path)
        file.write(b"the last")
    assert path.read_text() == "the last"
    assert [entry.name for entry in tmp_path.iterdir()] == ["a.json"]


def test_a_place_that_can_be_made_is_made_when_it_is_written_to(tmp_path: Path) -> None:
    files = {"PROPHET_STATUS_OUT": tmp_path / "a" / "b" / "status.json", "--plot": tmp_path / "plot.png"}
    require_places(files)
    require_folder(tmp_path / "a" / "b", "--out")
    assert list(tmp_path.iterdir()) == []
    assert [placed(path) for path in files.values()] == list(files.values())
    assert (tmp_path / "a" / "b").is_dir()


def test_a_device_can_be_written_to_whosever_its_folder_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: path == Path("/dev/null"))
    require_places({"PROPHET_STATUS_OUT": Path("/dev/null")})


def test_a_place_that_cannot_be_is_one_line_with_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "file"
    file.write_text("")
    with pytest.raises(UserError, match=r"^PROPHET_STATUS_OUT: .*/file is not a folder; name another$"):
        require_places({"PROPHET_STATUS_OUT": file / "new" / "status.json"})
    with pytest.raises(UserError, match=r"^--plot: .* is a folder; name a file in it$"):
        require_places({"--plot": tmp_path})
    (tmp_path / "gone").symlink_to(tmp_path / "nowhere")
    with pytest.raises(UserError, match=r"^--out: .*/gone is not a folder; name another$"):
        require_folder(tmp_path / "gone" / "out", "--out")
    monkeypatch.setattr(os, "access", lambda path, mode: False)  # nothing is closed to root
    with pytest.raises(UserError, match=r"^--out: you may not write into .*; name another folder$"):
        require_folder(tmp_path / "out", "--out")
    with pytest.raises(UserError, match=r"^--plot: you may not write into .*; name another folder$"):
        require_places({"--plot": tmp_path / "plot.png"})
