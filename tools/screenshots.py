"""The pictures of docs/watching.md: `prophet top` and a report, of a job that is started for them.

Rule of this file: the job, and from it to docs/images. What is seen is real: an all-reduce job under Prophet on two
nodes with shaped links, asked while it trains. `make screenshots` runs it, for about two minutes; it needs what
`prophet run` needs, and chromium for the report.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
import time
from io import StringIO
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import MONOKAI

from prophet_scheduler.cli.top import Document, ask_all, statuses
from prophet_scheduler.cli.top_view import view
from prophet_scheduler.core import settings
from prophet_scheduler.core.errors import UserError
from prophet_scheduler.lab.config import load_experiment
from prophet_scheduler.lab.report import write_report
from prophet_scheduler.lab.session import run_session
from tools.browser import INSTALL, find_browser, headless
from tools.repeating import repeating

IMAGES = Path("docs/images")
EVERY_S = 1.0
WIDTH = 104
"""Letters of the terminal."""
WINDOW = "1120,2300"
LIMIT_S = 120
JOB = """name: watched
engine: ddp
repeats: 1
job: {{kind: replay, profile: resnet50, total_bytes: 25.6MB, backward_s: 0.6, forward_s: 0.3, batch_size: 64,
      iterations: {iterations}, warmup: 3}}
cluster: {{workers: 2, servers: 1, bandwidth: 250mbit}}
policies: [{{name: ddp-prophet, env: {{{record}: {folder}}}}}]
"""
FONTS = re.compile(r"\s*@font-face \{.*?\}\n", re.DOTALL)
"""Fonts of rich's SVG, which would be fetched; without them the reader's own are used."""


class Looks:
    """Looks at the workers; `last` is the last complete one at both, at `at_s` of Unix time."""

    def __init__(self, folder: Path) -> None:
        self.last: list[Document] = []
        self.at_s = 0.0
        self._folder = folder

    def look(self) -> None:
        seen = ask_all([self._folder])
        if len(seen) == 2 and all(each["forward_waits"] or each["iterations"] < 10 for each in seen):
            self.last, self.at_s = seen, time.time()


def draw_top(documents: list[Document], now: float, out: Path) -> None:
    """Draw the screen."""
    console = Console(record=True, width=WIDTH, file=StringIO(), force_terminal=True, color_system="truecolor")
    console.print(view(statuses(documents), now, WIDTH))
    svg = console.export_svg(title="prophet top", theme=MONOKAI)
    out.write_text(FONTS.sub("\n", svg), encoding="utf-8")


def draw_report(browser: str, page: Path, out: Path, dark: bool) -> None:
    """Draw the page as a browser shows it."""
    with tempfile.TemporaryDirectory() as profile:
        command = headless(browser, page, Path(profile), WINDOW, dark, f"--screenshot={out.resolve()}")
        subprocess.run(command, check=True, capture_output=True, timeout=LIMIT_S)


def measure(out: Path, results: Path, *, iterations: int = 70) -> None:
    """Run the job in `out` and draw into IMAGES. Raises UserError."""
    browser = find_browser()
    if browser is None:
        raise UserError(f"a picture of the report needs a browser; {INSTALL}")
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    record = out.resolve() / "record"
    config = out / "watched.yaml"
    config.write_text(JOB.format(iterations=iterations, record=settings.RECORD, folder=record), encoding="utf-8")
    with tempfile.TemporaryDirectory(prefix="prophet-") as runtime:
        os.environ["XDG_RUNTIME_DIR"] = runtime
        looks = Looks(Path(runtime) / "prophet")
        with repeating(EVERY_S, looks.look):
            failed = run_session(load_experiment(config), out / "run")
    if failed or not looks.last:
        raise UserError(f"the job failed, or said nothing; see {out}")
    draw_top(looks.last, looks.at_s, IMAGES / "top.svg")
    for file in record.glob("*.jsonl"):  # The folder of this checkout does not interest a reader.
        file.write_text(file.read_text(encoding="utf-8").replace(f"{Path.cwd()}/", ""), encoding="utf-8")
    write_report(record, out / "report.html")
    for name, dark in (("report", False), ("report-dark", True)):
        draw_report(browser, out / "report.html", IMAGES / f"{name}.png", dark)
