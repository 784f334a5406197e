"""Tests of when a bar is drawn: on a terminal, after a second; nothing of it stays."""

from __future__ import annotations

from io import StringIO

import pytest
from rich.console import Console

from prophet_scheduler.lab.session import PATIENCE_S, progress_where_slow


def drawn(monkeypatch: pytest.MonkeyPatch, took_s: float, terminal: bool) -> str:
    """Return what is written by work of two steps that takes `took_s`."""
    monkeypatch.setenv("TERM", "xterm")
    file = StringIO()
    times_s = iter([0.0, 0.0, took_s, took_s])
    with progress_where_slow(Console(file=file, force_terminal=terminal), lambda: next(times_s)) as report:
        report(0.25, "first")
        report(0.5, "second")
    return file.getvalue()


def test_what_is_quick_has_no_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    assert drawn(monkeypatch, 0.9 * PATIENCE_S, terminal=True) == ""


def test_what_takes_long_has_one_until_it_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    text = drawn(monkeypatch, 1.1 * PATIENCE_S, terminal=True)
    assert "second" in text and "first" not in text
    assert text.endswith("\x1b[1A\x1b[2K"), "the line is cleared"


def test_a_file_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    assert drawn(monkeypatch, 10 * PATIENCE_S, terminal=False) == ""
