"""Lines of rooms beside their most."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tools import lines
from tools.lines import ROOT, lines_by_room


def test_a_file_counts_in_the_smallest_room_that_it_is_in() -> None:
    found = lines_by_room({"tools/lines.py": 0, "tools/": 0, "": 0})
    own = len((ROOT / "tools" / "lines.py").read_text().splitlines())
    assert found["tools/lines.py"] == own
    assert found == lines_by_room({"tools/": 0, "": 0}) | {"tools/lines.py": own, "tools/": found["tools/"]}
    assert sum(found.values()) == sum(lines_by_room({"": 0}).values())


def test_a_file_that_is_removed_and_still_tracked_has_no_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines, "ROOT", tmp_path)
    for name in ("there.py", "gone.py"):
        (tmp_path / name).write_text("1\n")
    for command in (["init", "--quiet"], ["add", "."]):
        subprocess.run(["git", *command], cwd=tmp_path, check=True)
    (tmp_path / "gone.py").unlink()
    assert lines_by_room({"": 0}) == {"": 1}
