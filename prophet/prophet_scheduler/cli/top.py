"""Command `prophet top`: ask the workers of this machine each second, and show their status.

Rule of this file: requests and the loop; top_view.py draws the screen. Jobs of other users or machines do not appear,
because their sockets are not this user's.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from rich.console import Console
from rich.live import Live

from prophet_scheduler.cli.top_view import view
from prophet_scheduler.core.errors import UserError
from prophet_scheduler.core.status import Observed
from prophet_scheduler.lab.records import live_status
from prophet_scheduler.lab.screen import screen
from prophet_scheduler.watch.sockets import ask, folders, sockets_in
from prophet_scheduler.watch.status import LiveStatus

EVERY_S = 1.0
RENEWED_S = 60.0
MOST_AT_ONCE = 16
"""Maximum workers asked at the same time."""

Document = dict[str, Any]


def ask_all(places: Sequence[Path] | None = None) -> list[Document]:
    """Return the documents of all of this user's workers on this machine, sorted by job and rank."""
    paths = [path for folder in (folders() if places is None else places) for path in sockets_in(folder)]
    with ThreadPoolExecutor(MOST_AT_ONCE) as pool:
        documents = [document for document in pool.map(ask, paths) if document is not None]
    return sorted(documents, key=lambda document: (_of(document, "job", ""), _of(document, "rank", 0)))


def _of(document: Document, key: str, default: Any) -> Any:
    worker = document.get("worker")
    value = worker.get(key, default) if isinstance(worker, dict) else default
    return value if isinstance(value, type(default)) else default


def of_job(documents: Sequence[Document], job: str | None) -> list[Document]:
    """Return the documents of `job`, a name or a prefix of one; all documents for None.

    Raises UserError if there is no such job.
    """
    if not documents:
        raise UserError(
            "no job of yours runs under Prophet on this machine; start one with BYTEPS_SCHEDULER=prophet or "
            "PROPHET_SCHEDULER=prophet"
        )
    named = [document for document in documents if job is None or _of(document, "job", "").startswith(job)]
    if not named:
        running = ", ".join(sorted({_of(document, "job", "") for document in documents}))
        raise UserError(f"no job {job!r} runs under Prophet on this machine; there is {running}")
    return named


@dataclass
class TopEdges:
    """Clock, sleep (both in seconds), request and console of `prophet top`."""

    ask: Callable[[], list[Document]] = ask_all
    now: Callable[[], float] = time.time
    sleep: Callable[[float], None] = time.sleep
    console: Console = field(default_factory=screen)


def looks(job: str | None, count: int | None, edges: TopEdges) -> Iterator[list[Document]]:
    """Yield the workers' documents each second, until the job has ended or `count` times.

    Raises UserError if there is no such job at first.
    """
    taken = 0
    while True:
        try:
            yield of_job(edges.ask(), job)
        except UserError:
            if taken == 0:
                raise
            return
        taken += 1
        if taken == count:
            return
        edges.sleep(EVERY_S)


def print_lines(job: str | None, count: int | None = None, edges: TopEdges | None = None) -> None:
    """Print one document a line, each worker's in turn, each second."""
    edges = edges or TopEdges()
    for documents in looks(job, count, edges):
        for document in documents:
            print(json.dumps(document), flush=True)


def show(job: str | None, count: int | None = None, edges: TopEdges | None = None) -> None:
    """Draw the screen each second; the last one stays. A file or a pipe gets every screen."""
    edges = edges or TopEdges()
    advice = _Advice(edges.now)
    screens = (
        view(statuses(documents), edges.now(), edges.console.width, advice.lines)
        for documents in looks(job, count, edges)
    )
    if not edges.console.is_interactive:
        for screen in screens:
            edges.console.print(screen)
        return
    with Live(console=edges.console, auto_refresh=False) as live:
        for screen in screens:
            live.update(screen, refresh=True)


class _Advice:
    """Advice on observed jobs, by job; made anew after RENEWED_S, since each costs a simulation."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._made: dict[str, tuple[float, Sequence[str]]] = {}

    def lines(self, job: str, seen: Observed) -> Sequence[str]:
        made_s, lines = self._made.get(job, (-math.inf, ()))
        if self._now() - made_s >= RENEWED_S:
            from prophet_scheduler.lab.advice_observed import lines as lines_on  # Imports the simulator.

            lines = lines_on(seen)
            if seen.times is not None:
                self._made[job] = self._now(), lines
        return lines


def statuses(documents: Sequence[Document]) -> list[LiveStatus]:
    """Return the statuses of readable documents; those of another Prophet version may be unreadable."""
    read = []
    for document in documents:
        try:
            read.append(live_status(document))
        except ValidationError:
            continue
    return read
