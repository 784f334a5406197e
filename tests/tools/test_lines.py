"""Lines of rooms beside their most."""

from __future__ import annotations

from tools.lines import ROOT, lines_by_room


def test_a_file_counts_in_the_smallest_room_that_it_is_in() -> None:
    found = lines_by_room({"tools/lines.py": 0, "tools/": 0, "": 0})
    own = len((ROOT / "tools" / "lines.py").read_text().splitlines())
    assert found["tools/lines.py"] == own
    assert found == lines_by_room({"tools/": 0, "": 0}) | {"tools/lines.py": own, "tools/": found["tools/"]}
    assert sum(found.values()) == sum(lines_by_room({"": 0}).values())
