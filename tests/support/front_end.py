"""PyTorch's front end between two tests of one process."""

from __future__ import annotations

from prophet.frontends.torch import guards


def forget() -> None:
    """What a test leaves pending, or watched, is nothing to the next one."""
    for table in (guards._kept, guards._pending, guards._learning):
        table.clear()  # type: ignore[attr-defined]
    guards.leave_references()
