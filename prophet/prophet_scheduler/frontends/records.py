"""What a process leaves when it ends, in the files that PROPHET_STATUS_OUT, PROPHET_EVENTS_OUT and PROPHET_PROFILE_OUT
name, whatever the engine.

Rule of this file: how much is kept for them, and that they are written. What is in them the engine's agent knows. A
failure in here is one warning for each file, never a failed job.

It is imported before the program ends: a dataclass that is made after an interrupt runs `exec`, and CPython then
forgets that the process is to end by the signal.
"""

from __future__ import annotations

import dataclasses
import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from prophet_scheduler.core.event_record import EventRecord, RecordBuffer
    from prophet_scheduler.core.profile import Profile
    from prophet_scheduler.core.settings import Settings
    from prophet_scheduler.core.status import AgentStatus

EVENTS_KEPT = 2_000_000
"""Newest events kept for PROPHET_EVENTS_OUT (24 bytes each)."""

logger = logging.getLogger("prophet_scheduler")


def event_buffer() -> RecordBuffer:
    """For the events of a process that is to leave them."""
    from prophet_scheduler.core.event_record import RecordBuffer

    return RecordBuffer(EVENTS_KEPT)


def require_records(settings: Settings) -> None:
    """Raises UserError where a file that is to be left cannot be written."""
    if settings.outputs:
        from prophet_scheduler.core.files import require_places

        require_places(settings.outputs)


def write_records(
    settings: Settings,
    status: Callable[[], AgentStatus],
    profile: Callable[[], Profile | None] = lambda: None,
    events: Callable[[], EventRecord | None] = lambda: None,
) -> None:
    """Writes what the settings ask for. Each of the three is called only for its file, which None leaves unwritten."""
    if not settings.outputs:
        return
    from prophet_scheduler.core.files import placed, write_whole

    def write_profile(path: Path) -> None:
        if (learned := profile()) is not None:
            from prophet_scheduler.models.profiles import save_profile

            save_profile(learned, placed(path), source="learned by Prophet from a running job")

    def write_events(path: Path) -> None:
        if (record := events()) is not None:
            from prophet_scheduler.core.event_record import save_record

            save_record(record, placed(path))

    def write_status(path: Path) -> None:
        write_whole(json.dumps(dataclasses.asdict(status()), indent=2) + "\n", placed(path))

    for path, write in (
        (settings.profile_out, write_profile),
        (settings.events_out, write_events),
        (settings.status_out, write_status),
    ):
        if path is None:
            continue
        try:
            write(path)
        except Exception as error:
            logger.warning("Prophet could not write its records: %s: %s", type(error).__name__, error)
