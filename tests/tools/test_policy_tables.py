"""The tables of docs/enabling.md are those that the policies' files make."""

from __future__ import annotations

import pytest

from tools.policy_tables import PAGE, with_tables


def test_the_page_is_as_the_policies_are() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert with_tables(page) == page, "run: python -m tools.policy_tables"


def test_a_page_without_the_marks_is_left_alone() -> None:
    with pytest.raises(ValueError, match="substring not found"):
        with_tables("# Enabling\n")
