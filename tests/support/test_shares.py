"""Tests that make networks are one worker's."""

from __future__ import annotations

from pathlib import Path

from support.shares import place

TESTS = Path(__file__).parents[1]


def test_whatever_makes_networks_has_its_place_before_what_computes() -> None:
    files = [file for file in sorted(TESTS.rglob("test_*.py")) if "mark.netns" in file.read_text(encoding="utf-8")]
    assert len(files) > 10
    places = {str(file.relative_to(TESTS.parent)): place(f"{file.relative_to(TESTS.parent)}::test") for file in files}
    places.pop("tests/support/test_shares.py")
    assert [file for file, number in places.items() if number == 3] == [], "name it in tests/support/shares.py"
    assert places["tests/net/test_real_jobs.py"] == 1 > places["tests/net/test_elastic.py"]
