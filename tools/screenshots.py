"""The pictures of docs/watching.md: `prophet top` and a report, of a job started for them.

Rule of this file: the job, the headless browser, and the pictures in docs/images. The data is real: an all-reduce job
under Prophet on two nodes with shaped links, watched while it trains. It takes about two minutes, and needs chromium
for the report.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
import threading
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from io import StringIO
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.terminal_theme import MONOKAI

from prophet_scheduler.cli.top import Document, ask_all, statuses
from prophet_scheduler.cli.top_view import view
from prophet_scheduler.core import settings
from prophet_scheduler.core.errors import UserError
from prophet_scheduler.lab.config import experiment_of
from prophet_scheduler.lab.report import write_report
from prophet_scheduler.lab.session import run_session
from prophet_scheduler.lab.testbed import reexec_in_user_namespace
from tools.figures import OURS

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")
INSTALL = "on Debian: apt-get install chromium"
IMAGES = Path("docs/images")
EVERY_S = 1.0
WIDTH = 104
"""Columns of the terminal."""
WINDOW = "1120,2300"
LIMIT_S = 120
JOB: Mapping[str, Any] = {
    **{"kind": "replay", "profile": "resnet50", "total_bytes": "25.6MB", "backward_s": 0.6, "forward_s": 0.3},
    **{"batch_size": 64, "warmup": 3},
}
CLUSTER = {"workers": 2, "servers": 1, "bandwidth": "250mbit"}
FONTS = re.compile(r"\s*@font-face \{.*?\}\n", re.DOTALL)
"""Web fonts in rich's SVG, which would be downloaded; without them the reader's own fonts are used."""


def find_browser() -> str | None:
    return next((program for name in BROWSERS if (program := shutil.which(name)) is not None), None)


def headless(browser: str, page: Path, profile: Path, window: str, dark: bool, what: str) -> list[str]:
    """Return the command that renders `page` and then does `what`, such as --dump-dom. `profile` is a folder for the
    browser's own use, `window` the window's size as `width,height`.
    """
    return [
        *(browser, "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars"),
        *(f"--user-data-dir={profile}", "--virtual-time-budget=20000", f"--window-size={window}"),
        f"--blink-settings=preferredColorScheme={0 if dark else 1}",
        *(what, page.resolve().as_uri()),
    ]


def draw_top(documents: list[Document], now: float, out: Path) -> None:
    console = Console(record=True, width=WIDTH, file=StringIO(), force_terminal=True, color_system="truecolor")
    console.print(view(statuses(documents), now, WIDTH))
    svg = console.export_svg(title="prophet top", theme=MONOKAI)
    out.write_text(FONTS.sub("\n", svg), encoding="utf-8")


def draw_report(browser: str, page: Path, out: Path, dark: bool) -> None:
    with tempfile.TemporaryDirectory() as profile:
        command = headless(browser, page, Path(profile), WINDOW, dark, f"--screenshot={out.resolve()}")
        subprocess.run(command, check=True, capture_output=True, timeout=LIMIT_S)


def looked(folder: Path, over: threading.Event) -> tuple[list[Document], float]:
    """Read the workers' statuses until `over`. Return the last that were complete at both, and their Unix time."""
    seen, seen_s = list[Document](), 0.0
    while not over.wait(EVERY_S):
        documents = ask_all([folder])
        if len(documents) == 2 and all(each["forward_waits"] or each["iterations"] < 10 for each in documents):
            seen, seen_s = documents, time.time()
    return seen, seen_s


def measure(out: Path, results: Path, *, iterations: int = 70) -> None:
    """Run the job in `out`, and draw the pictures in IMAGES. Raises UserError."""
    browser = find_browser()
    if browser is None:
        raise UserError(f"a picture of the report needs a browser; {INSTALL}")
    reexec_in_user_namespace()
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    record = out.resolve() / "record"
    policy = {"name": OURS, "env": {settings.RECORD: str(record)}}
    config = {"engine": "ddp", "repeats": 1, "cluster": CLUSTER, "policies": [policy]}
    experiment = experiment_of({**config, "job": {**JOB, "iterations": iterations}}, Path("watched.yaml"))
    over = threading.Event()
    with tempfile.TemporaryDirectory(prefix="prophet-") as runtime, ThreadPoolExecutor(1) as pool:
        os.environ["XDG_RUNTIME_DIR"] = runtime
        looking = pool.submit(looked, Path(runtime, "prophet"), over)
        try:
            failed = run_session(experiment, out / "run")
        finally:
            over.set()
        seen, seen_s = looking.result()
    if failed or not seen:
        raise UserError(f"the job failed, or said nothing; see {out}")
    draw_top(seen, seen_s, IMAGES / "top.svg")
    for file in record.glob("*.jsonl"):  # Readers do not need the path of this checkout.
        file.write_text(file.read_text(encoding="utf-8").replace(f"{Path.cwd()}/", ""), encoding="utf-8")
    write_report(record, out / "report.html")
    for name, dark in (("report", False), ("report-dark", True)):
        draw_report(browser, out / "report.html", IMAGES / f"{name}.png", dark)
