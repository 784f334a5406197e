"""Observer of one worker: its status on request, its metrics and its record.

Rule of this file: joining meter, status, record and server. Nothing here can harm a job: a part that fails logs one
warning and stops. An engine's agent calls `turn` once a second in its own thread; the server's thread answers
requests. The agents of both engines report their state as an AgentStatus.
"""

from __future__ import annotations

import json
import logging
import math
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from prophet_scheduler import __version__
from prophet_scheduler.core.settings import METRICS_PORT, PREFIX, RECORD, Settings
from prophet_scheduler.core.status import AgentStatus
from prophet_scheduler.forks import free_in_forks
from prophet_scheduler.watch import training
from prophet_scheduler.watch.meter import Meter, Periods, spread_of
from prophet_scheduler.watch.metrics import metrics_page
from prophet_scheduler.watch.server import StatusServer
from prophet_scheduler.watch.sockets import name_of_socket, own_folder, remove_stale
from prophet_scheduler.watch.status import ForwardWait, LiveStatus, Predicted, WorkerName
from prophet_scheduler.watch.training import OpenWait, TrainingLog

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from prophet_scheduler.core.profile import Profile
    from prophet_scheduler.watch.recorder import RecordWriter

SETTINGS_SHOWN = (PREFIX, "BYTEPS_", "DMLC_", "OMP_NUM_THREADS", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_", "GLOO_")
"""Prefixes of the environment variables that a record includes."""

FRESH_S = 0.1
"""Maximum age of a turn that still answers a request without a new turn."""
WAKE_LIMIT_S = 0.25
"""Maximum time for which a request waits for the agent's thread, which may be busy."""

logger = logging.getLogger("prophet_scheduler")
_here: Observer | None = None
"""Newest observer of this process."""


class Observer:
    """Observer of one worker. None of its methods raises. For `all_reduce_ranks` and `arena`, see Meter.

    `agent` returns the agent's current state, from any thread. `wake` makes the agent's thread take a turn at once.
    """

    def __init__(
        self,
        worker: WorkerName,
        log: TrainingLog,
        agent: Callable[[], AgentStatus],
        wake: Callable[[], None] = lambda: None,
        arena: bool = True,
        all_reduce_ranks: int | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._worker = worker
        self._log = log
        self._agent = agent
        self._wake = wake
        self._clock = clock
        self._looked = free_in_forks(threading.Condition(threading.Lock()))
        self._meter = Meter(all_reduce_ranks, arena)
        self._periods = Periods()
        self._began_s = clock()
        self._looked_s = self._began_s
        self._iterations = 0
        self._predicted = Predicted()
        self._others_s: Sequence[float] = ()
        self._busy_s = 0.0
        self._writer: RecordWriter | None = None
        self._server: StatusServer | None = None
        self._pid = os.getpid()
        self._over = False

    @classmethod
    def begin(
        cls,
        worker: WorkerName,
        settings: Settings,
        agent: Callable[[], AgentStatus],
        wake: Callable[[], None],
        arena: bool = True,
        all_reduce_ranks: int | None = None,
    ) -> Observer | None:
        """Return the observer for these settings; None if they ask for none. Each part that fails logs a warning."""
        global _here
        if not settings.watched:
            return None
        observer = _here = cls(worker, training.switch_on(), agent, wake, arena, all_reduce_ranks)
        if settings.record is not None:
            observer.record_into(settings.record, settings.record_command)
        if settings.status or settings.metrics_port is not None:
            observer._serve(settings)
        return observer

    def record_into(self, folder: Path, command: bool = False) -> None:
        """Start writing a record, which includes the command line if `command`."""
        from prophet_scheduler.watch.recorder import RecordWriter
        from prophet_scheduler.watch.rows import BeginRow

        begin = BeginRow(
            self._worker,
            unix_s=time.time() - self._clock(),
            began_s=self._began_s,
            version=__version__,
            command=tuple(sys.argv) if command else (),
            settings=settings_shown(os.environ),
            all_reduce=self._meter.all_reduces,
        )
        try:
            self._writer = RecordWriter(folder, begin)
        except OSError as error:
            logger.warning("Prophet writes no record into %s (%s): %s", folder, RECORD, error.strerror or error)

    def _serve(self, settings: Settings) -> None:
        server = StatusServer(self.document, self.page)
        answers = False
        if settings.status:
            try:
                folder = own_folder()
                remove_stale(folder)
                server.at_path(folder / name_of_socket(self._worker))
                answers = True
            except OSError as error:
                logger.warning("Prophet has no status socket: %s", error)
        if settings.metrics_port is not None:
            try:
                server.at_address(settings.metrics_host, settings.metrics_port)
                answers = True
            except OSError as error:
                where = f"{settings.metrics_host}:{settings.metrics_port}"
                why = error.strerror or error
                logger.warning("Prophet has no metrics for Prometheus at %s (%s): %s", where, METRICS_PORT, why)
        if answers:
            server.start()
            self._server = server
        else:
            server.let_go()

    def turn(
        self,
        now: float,
        events: NDArray[Any],
        predicted: Predicted | None = None,
        periods_s: NDArray[Any] | None = None,
        profile: Profile | None = None,
    ) -> None:
        """Process the events since the last turn. `profile` is that of the last plan.

        `periods_s` are the newest iteration times according to events, for a front end that does not report the ends of
        iterations.
        """
        if self._over:
            return
        before = time.thread_time()
        predicted = predicted or Predicted()
        try:
            ends_s = self._log.take_ends()
            with self._looked:
                moved = self._meter.turn(now, events)
                self._periods.add(ends_s)
                spread = self._periods.spread()
                self._iterations += sum(not math.isnan(end_s) for end_s in ends_s)
                self._others_s = periods_s.tolist() if periods_s is not None else ()
                self._looked_s, self._predicted = now, predicted
                self._looked.notify_all()
            if self._writer is not None:
                usual_s = spread.median_s if spread is not None else None
                waited_s, agent = self._log.waited_s(), self._agent()
                self._writer.turn(now, moved, ends_s, waited_s, agent, predicted, usual_s, profile)
        except OSError as error:  # only the record writes
            logger.warning("the record ends here: %s", error)
            if self._writer is not None:
                self._writer.give_up()
        except Exception as error:
            self._give_up(error)
        finally:
            self._busy_s += time.thread_time() - before

    def status(self) -> LiveStatus:
        """Return the status of the last turn, with the current wait and the agent's current status."""
        agent = self._agent()
        with self._looked:
            now = self._clock()
            sent, received = self._meter.flows()
            wait = self._log.awaited()
            recut_s = agent.last_recut_s
            return LiveStatus(
                worker=self._worker,
                time_s=time.time() - (now - self._looked_s),
                since_s=now - self._began_s,
                iterations=self._iterations,
                agent=agent,
                iteration=self._periods.spread() or spread_of(self._others_s),
                sent=sent,
                received=received,
                all_reduce=self._meter.all_reduces,
                urgency=self._meter.urgency(),
                forward_waits=self._forward_waits(wait, now) if wait is not None else None,
                predicted=self._predicted,
                last_recut_ago_s=now - recut_s if recut_s is not None else None,
                watch_cpu_s=self._busy_s,
            )

    @property
    def of_this_process(self) -> bool:
        """False in a fork."""
        return os.getpid() == self._pid

    def document(self) -> bytes:
        """Return the current status in the format of the status socket."""
        return self._asked(lambda: json.dumps(asdict(self.status()), allow_nan=False) + "\n")

    def page(self) -> bytes:
        """Return the current metrics in the format of Prometheus."""
        return self._asked(lambda: metrics_page(self.status()))

    def _asked(self, answer: Callable[[], str]) -> bytes:
        before = time.thread_time()
        asked_s = self._clock()
        if asked_s - self._looked_s > FRESH_S:
            self._wake()
            with self._looked:
                self._looked.wait_for(lambda: self._looked_s >= asked_s, WAKE_LIMIT_S)
        text = answer()
        self._busy_s += time.thread_time() - before
        return text.encode()

    def close(self) -> None:
        """Stop the server and complete the record at the end of the process. Do nothing in a forked child."""
        if self._over or not self.of_this_process:
            return
        try:
            if self._server is not None:
                self._server.close()
            self._over = True
            if self._writer is not None:
                self._writer.close(self._clock(), self._agent(), self._log.waited_s(), self._busy_s)
        except Exception as error:
            logger.warning("Prophet could not complete its record: %s: %s", type(error).__name__, error)

    def _give_up(self, error: Exception) -> None:
        self._over = True
        logger.warning("Prophet no longer reports its status: %s: %s", type(error).__name__, error)
        if self._writer is not None:
            self._writer.give_up()
        if self._server is not None:
            self._server.close()

    def _forward_waits(self, wait: OpenWait, now: float) -> ForwardWait:
        where = self._meter.where([block.id for block in wait.blocks])
        return ForwardWait(wait.name, max(0.0, now - wait.since_s), whom(where, self._meter.all_reduces))


def status_here() -> dict[str, Any] | None:
    """Return this process's status as in its socket's document, but without a new turn; None without an observer."""
    return asdict(_here.status()) if _here is not None and _here.of_this_process else None


def whom(where: str | None, all_reduce: bool) -> str:
    """Return what a transfer in this state waits for, in words (see Meter.where).

    A server acknowledges a push on receipt, and answers a pull once every worker has pushed the key. An all-reduce
    finishes once all ranks have joined it.
    """
    if where is None:
        return "unknown"
    if where == "waiting":
        return "earlier transfers of this worker"
    if all_reduce:
        return "the wire, or a rank that has not joined yet"
    return "its server, or the wire" if where == "push" else "another worker that has not pushed it, or its server"


def settings_shown(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that configure the job, sorted by name. None of them holds a secret."""
    return {name: environ[name] for name in sorted(environ) if name.startswith(SETTINGS_SHOWN)}


def job_name(script: str, port: str) -> str:
    """Return the name of a job: its script and the port of its workers' rendezvous."""
    path = Path(script)
    stem = path.parent.name if path.stem == "__main__" else path.stem
    return f"{stem or 'python'}-{port}" if port else stem or "python"


def worker_name(
    engine: Literal["byteps", "ddp"], framework: str, rank: int, workers: int | None, local_rank: int, port: str
) -> WorkerName:
    """Return the name of this process."""
    job = job_name(sys.argv[0] if sys.argv else "", port)
    return WorkerName(job, rank, engine, framework, workers, local_rank, socket.gethostname(), os.getpid())
