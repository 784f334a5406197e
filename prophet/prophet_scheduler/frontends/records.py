"""Files that a process writes at its end: PROPHET_STATUS_OUT, PROPHET_EVENTS_OUT and PROPHET_PROFILE_OUT, on any
engine.

Rule of this file: how much to keep for these files, and writing them. The engine's agent supplies their content. A
failure here causes one warning per file, never a failed job.

Import this file before the program ends. Defining a dataclass after an interrupt runs `exec`, and CPython then forgets
that the signal should end the process.
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
"""Number of newest events kept for PROPHET_EVENTS_OUT (24 bytes each)."""

logger = logging.getLogger("prophet_scheduler")


def event_buffer() -> RecordBuffer:
    """Return a buffer for the events of a process that will write them."""
    from prophet_scheduler.core.event_record import RecordBuffer

    return RecordBuffer(EVENTS_KEPT)


def require_records(settings: Settings) -> None:
    """Raise UserError if a requested file cannot be written."""
    if settings.outputs:
        from prophet_scheduler.core.files import require_places

        require_places(settings.outputs)


def write_records(
    settings: Settings,
    status: Callable[[], AgentStatus],
    profile: Callable[[], Profile | None] = lambda: None,
    events: Callable[[], EventRecord | None] = lambda: None,
) -> None:
    """Write the files that the settings ask for. Each function is called only for its own file; None skips the file."""
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
