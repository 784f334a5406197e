"""Command `prophet report`: a run as one self-contained HTML page, or as a trace for Perfetto.

Rule of this file: read the folder, write the file. stories.py defines the content, from_record.py and from_run.py read
it, charts.py and page.py draw it, and perfetto.py turns it into a trace.
"""

from __future__ import annotations

import json
from pathlib import Path

from prophet_scheduler.core.errors import UserError
from prophet_scheduler.core.files import placed, require_places, write_whole
from prophet_scheduler.core.optional import require
from prophet_scheduler.lab.records import is_run
from prophet_scheduler.lab.report.from_record import story_of_record
from prophet_scheduler.lab.report.from_run import story_of_run
from prophet_scheduler.lab.report.stories import Story


def story_of(folder: Path) -> Story:
    """Return the story of a folder of `prophet run` or of PROPHET_RECORD. Raises UserError if it is neither."""
    return story_of_run(folder) if is_run(folder) else story_of_record(folder)


def write_report(folder: Path, out: Path) -> None:
    """Write the page, completely or not at all. Raises UserError, or MissingPackage without plotly or jinja2."""
    story = story_of(folder)
    require(*((package, "prophet report") for package in ("plotly", "jinja2")))
    require_places({"--out": out})
    from prophet_scheduler.lab.report.page import page

    _write(page(story), out)


def write_trace(folder: Path, out: Path) -> None:
    """Write the trace for Perfetto, completely or not at all. Raises UserError."""
    from prophet_scheduler.lab.report.perfetto import trace

    story = story_of(folder)
    require_places({"--perfetto": out})
    _write(json.dumps(trace(story)), out)


def _write(text: str, out: Path) -> None:
    try:
        write_whole(text, placed(out))
    except OSError as error:
        raise UserError(f"{out}: cannot be written ({error.strerror})") from None
