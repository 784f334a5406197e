"""The end of a process, for tests that go on after it."""

from __future__ import annotations

from typing import NoReturn


class ProcessEnded(Exception):
    """In place of the end: the line that was said, and the status."""

    def __init__(self, line: str, status: int) -> None:
        super().__init__(line, status)
        self.line, self.status = line, status


def end_process(line: str, status: int) -> NoReturn:
    """As prophet_scheduler.frontends.ending has it."""
    raise ProcessEnded(line, status)
