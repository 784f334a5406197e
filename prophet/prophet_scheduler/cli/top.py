"""Command `prophet top`: ask the workers on this machine each second, and show their status.

Rule of this file: requests, the loop, and the key that ends it. top_view.py draws the screen. Jobs of other users and
machines do not appear, because it asks only the sockets of this user on this machine.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import select
import sys
import termios
import time
import tty
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from prophet_scheduler.cli.top_view import view
from prophet_scheduler.core.errors import UserError
from prophet_scheduler.core.status import Observed
from prophet_scheduler.lab.records import live_status
from prophet_scheduler.lab.screen import screen
from prophet_scheduler.watch.sockets import ask, folders, sockets_in
from prophet_scheduler.watch.status import LiveStatus

EVERY_S = 1.0
RENEWED_S = 60.0
"""Age in seconds at which advice on an observed job is renewed."""
WAITING = "you have no such job under Prophet on this machine yet; waiting for one"
MOST_AT_ONCE = 16
"""Maximum number of workers asked at once."""

Document = dict[str, Any]


def ask_all(places: Sequence[Path] | None = None) -> list[Document]:
    """Return the documents of all workers of this user on this machine, sorted by job and rank."""
    paths = [path for folder in (folders() if places is None else places) for path in sockets_in(folder)]
    with ThreadPoolExecutor(MOST_AT_ONCE) as pool:
        documents = [document for document in pool.map(ask, paths) if document is not None]
    return sorted(documents, key=lambda document: (_of(document, "job", ""), _of(document, "rank", 0)))


def _of(document: Document, key: str, default: Any) -> Any:
    worker = document.get("worker")
    value = worker.get(key, default) if isinstance(worker, dict) else default
    return value if isinstance(value, type(default)) else default


def of_job(documents: Sequence[Document], job: str | None) -> list[Document]:
    """Return the documents of `job`, a name or the beginning of one; all documents for None.

    Raises UserError if there is no such job.
    """
    if not documents:
        raise UserError(
            "you have no job under Prophet on this machine; start one with BYTEPS_SCHEDULER=prophet or "
            "PROPHET_SCHEDULER=prophet"
        )
    named = [document for document in documents if job is None or _of(document, "job", "").startswith(job)]
    if not named:
        running = ", ".join(sorted({_of(document, "job", "") for document in documents}))
        raise UserError(f"no job {job!r} runs under Prophet on this machine; running: {running}")
    return named


@dataclass
class TopEdges:
    """Clock, sleep (both in seconds), request and console of `prophet top`. `sleep` returns True if the user quits."""

    ask: Callable[[], list[Document]] = ask_all
    now: Callable[[], float] = time.time
    sleep: Callable[[float], bool | None] = time.sleep
    console: Console = field(default_factory=screen)


def looks(job: str | None, count: int | None, edges: TopEdges) -> Iterator[list[Document]]:
    """Yield the workers' documents each second, until the job has ended, the user quits, or `count` times. Yield an
    empty list while the job has not started.

    Raises UserError if there is a `count` and no such job at first.
    """
    taken = 0
    while True:
        try:
            documents = of_job(edges.ask(), job)
            taken += 1
        except UserError:
            if taken:
                return
            if count is not None:
                raise
            documents = []
        yield documents
        if taken == count or edges.sleep(EVERY_S):
            return


def print_lines(job: str | None, count: int | None = None, edges: TopEdges | None = None) -> None:
    """Print the document of each worker on a line, each second."""
    for documents in _begun(looks(job, count, edges or TopEdges())):
        for document in documents:
            print(json.dumps(document), flush=True)


def show(job: str | None, count: int | None = None, edges: TopEdges | None = None) -> None:
    """Draw the screen each second, on the terminal's alternate screen, until `q`. Then leave the last one visible. A
    file or a pipe gets every screen.
    """
    edges = edges or TopEdges()
    made: dict[str, tuple[float, Sequence[str]]] = {}

    def advice(job: str, seen: Observed) -> Sequence[str]:
        made_s, lines = made.get(job, (-math.inf, ()))
        if edges.now() - made_s >= RENEWED_S:
            from prophet_scheduler.lab.advice_observed import lines as lines_on  # imports the simulator

            lines = lines_on(seen)
            if seen.times is not None:
                made[job] = edges.now(), lines
        return lines

    def drawn(documents: Sequence[Document]) -> RenderableType:
        return view(statuses(documents), edges.now(), edges.console.width, advice)

    if not edges.console.is_interactive:
        for documents in _begun(looks(job, count, edges)):
            edges.console.print(drawn(documents))
        return
    last: RenderableType = ""
    try:
        with _until_q(edges) as leaving, Live(console=edges.console, auto_refresh=False, screen=True) as live:
            for documents in looks(job, count, leaving):
                if documents:
                    last = drawn(documents)
                live.update(Group(last or WAITING, Text("q to leave", "dim")), refresh=True)
    finally:
        if last:
            edges.console.print(last)


def _begun(taken: Iterable[list[Document]]) -> Iterator[list[Document]]:
    """Yield the documents of a job that has started. Before that, print once that it is awaited."""
    said = False
    for documents in taken:
        if documents:
            yield documents
        elif not said:
            said = True
            print(f"prophet: {WAITING}", file=sys.stderr)


@contextlib.contextmanager
def _until_q(edges: TopEdges) -> Iterator[TopEdges]:
    """Yield the edges with a sleep that pressing `q` interrupts."""
    if edges.sleep is not time.sleep or not sys.stdin.isatty():
        yield edges
        return

    def sleep(seconds: float) -> bool:
        until_s = time.monotonic() + seconds
        while select.select([sys.stdin], [], [], max(0.0, until_s - time.monotonic()))[0]:
            if os.read(sys.stdin.fileno(), 1) in (b"q", b"Q", b""):
                return True
        return False

    before = termios.tcgetattr(sys.stdin)
    tty.setcbreak(sys.stdin, termios.TCSANOW)
    try:
        yield replace(edges, sleep=sleep)
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)


def statuses(documents: Sequence[Document]) -> list[LiveStatus]:
    """Return the statuses in readable documents. Those of other versions of Prophet may be unreadable."""
    read = []
    for document in documents:
        with contextlib.suppress(ValidationError):
            read.append(live_status(document))
    return read
