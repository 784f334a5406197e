"""The worker's end of the connection to its coordinator (ports.py is what a front end sees of it).

Rule of this file: one connection, one thread, futures. What is said, and when waiting ends, is conversation.py's.

The thread alone touches the connection; calls change the conversation under a lock and wake it. What may take long,
to look a name up and to connect, is done beside it by another one, which then ends. Whatever goes wrong in it
ends it with one warning, and from there on all updates go in arrival order.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, InvalidStateError
from typing import TypeVar
from urllib.parse import urlsplit

from prophet_mlfabric.conversation import AWAY, Conversation, Pass, Result, SumPermission
from prophet_mlfabric.messages import (
    LENGTH_BYTES,
    MOST_ANSWER_BYTES,
    Bye,
    Denied,
    Hello,
    Request,
    Welcome,
    decode_answer,
    framed,
    take_frames,
)
from prophet_mlfabric.nic_rates import NicEstimate
from prophet_mlfabric.ports import Asking, Collection, ModelCopy, Outcome, Permission
from prophet_mlfabric.settings import DEFAULT_COORDINATOR_BOUND_S, coordinator_from_environ
from prophet_mlfabric.tokens import token_of
from prophet_scheduler.core.errors import UserError
from prophet_scheduler.forks import free_in_forks
from prophet_scheduler.hub import Connection, Hub, Owner, lives_or_ends
from prophet_scheduler.learn.bandwidth import NicSample
from prophet_scheduler.learn.nic import interface_towards, sample_nic

logger = logging.getLogger("prophet_scheduler")
T = TypeVar("T")

RECONNECT_S = (0.1, 2.0)
"""The first wait before a lost connection is made anew, and the longest, to which it doubles."""
LINGER_S = 0.2
"""Longest seconds for the last word."""
SAMPLE_S = 0.1
"""Seconds between two looks at the NIC while an update travels, or an answer is waited for."""
BUSY_BYTES_PER_S = 64 * 1024
"""Bytes per second below which a NIC is in nobody's way: heartbeats, and a coordinator's messages."""


class CoordinatorClient:
    """One worker's connection; safe for several threads. See `CoordinatorPort` for its calls.

    `bound_s` is how long the coordinator may be silent before updates go in arrival order. `node` names the NIC, the
    host's name where left out; with `watch_nic` its rate is measured while updates travel, and reported. `staleness`
    is by how many rounds one of the job's `workers` may lead the slowest, None for any. `replicates`: it can make
    copies of the model. Raises UserError for an address, tenant or number that cannot be; nothing is connected yet when
    it returns.
    """

    def __init__(
        self,
        address: str,
        token: str,
        tenant: str,
        worker: int,
        bound_s: float = DEFAULT_COORDINATOR_BOUND_S,
        node: str | None = None,
        watch_nic: bool = True,
        workers: int | None = None,
        staleness: int | None = None,
        replicates: bool = False,
    ) -> None:
        try:
            hello = Hello(
                tenant=tenant,
                worker=worker,
                incarnation=secrets.randbits(53),
                node=node or socket.gethostname(),
                workers=workers,
                staleness=staleness,
                replicates=replicates,
            )
        except ValueError:
            raise UserError(f"tenant {tenant!r}, worker {worker!r}, node {node!r}: one cannot be") from None
        self._address = address
        self._lock = threading.Lock()
        self._conversation = Conversation(hello, token, bound_s, time.monotonic())
        self._askings: dict[int, Asking] = {}
        self._pushed: set[int] = set()
        """Updates that are done, and nobody has said yet what came of them."""
        self._sums: dict[int, Future[Permission]] = {}
        self._passes: dict[int, Future[bool]] = {}
        self._collect: Callable[[Collection], None] | None = None
        self._copy: Callable[[ModelCopy], None] | None = None
        # A restart takes longer than a millisecond an update, so it does not use a number again.
        self._numbers = time.time_ns() // 1_000_000
        self._closing = self._ended = self._warned = False
        self._answered = free_in_forks(threading.Condition(self._lock))
        self._interface = interface_towards(urlsplit(address).hostname or "") if watch_nic else None
        self._nic = NicEstimate()
        self._sample: NicSample | None = None
        self._was_sending = False
        self._place = _place(address)
        self._stopping = threading.Event()
        self._wait_s = 0.0
        self._made: socket.socket | None = None
        self._connection: Connection | None = None
        self._owner = Owner(LENGTH_BYTES + MOST_ANSWER_BYTES, received=self._received, closed=self._closed)
        self._hub = Hub(1, math.inf)
        self._thread = threading.Thread(target=self._run, name="prophet-coordinator", daemon=True)
        self._thread.start()

    @property
    def version(self) -> int:
        with self._lock:
            return self._conversation.version

    @property
    def away(self) -> bool:
        """True if updates go in arrival order now."""
        with self._lock:
            return self._conversation.away or self._ended

    def wait_welcome(self, timeout_s: float) -> bool:
        """Waits until the coordinator has let this worker in: True if it has.

        For a job's start: raises UserError where it refuses, as for a wrong token, which waiting does not mend.
        """
        with self._answered:
            self._answered.wait_for(
                lambda: self._conversation.welcomed or bool(self._conversation.refused) or self._ended, timeout_s
            )
            if self._conversation.refused:
                raise UserError(f"coordinator {self._address}: {self._conversation.refused}")
            return self._conversation.welcomed

    def ask(self, size_bytes: int, version: int, norm: float) -> Asking:
        with self._lock:
            asking = Asking(self._numbers, size_bytes)
            if not self._ended:
                self._conversation.ask(asking.update, size_bytes, version, norm, time.monotonic())
                self._askings[asking.update] = asking
            self._numbers += 1
            ended = self._ended
        if ended:
            _resolve(asking.permission, Permission(asking.update, True, AWAY, None, version, False))
        else:
            self._hub.wake()
        return asking

    def done(self, asking: Asking, size_bytes: int) -> Future[Outcome]:
        with self._lock:
            ended = self._ended
            if not ended:
                self._conversation.done(asking.update, size_bytes, time.monotonic())
                if asking.update in self._askings:
                    self._pushed.add(asking.update)
        if ended:
            _resolve(asking.outcome, Outcome(asking.update, True, self.version, None, AWAY))
        else:
            self._hub.wake()
        return asking.outcome

    def on_collect(self, collect: Callable[[Collection], None]) -> None:
        with self._lock:
            self._collect = collect
            self._conversation.aggregates()
        self._hub.wake()

    def collected(self, number: int) -> Future[Permission]:
        future: Future[Permission] = Future()
        with self._lock:
            future = self._sums.setdefault(number, future)
            ended = self._ended
            if not ended:
                self._conversation.collected(number, time.monotonic())
            version = self._conversation.version
        if ended:
            _resolve(future, Permission(0, True, AWAY, None, version, False))
        else:
            self._hub.wake()
        return future

    def pushed_sum(self, number: int, size_bytes: int) -> None:
        with self._lock:
            self._conversation.done_sum(number, size_bytes, time.monotonic())
        self._hub.wake()

    def on_copy(self, copy: Callable[[ModelCopy], None]) -> None:
        self._copy = copy  # what has come before comes again

    def copied(self, number: int, reason: str = "") -> None:
        with self._lock:
            self._conversation.copied(number, reason)
        self._hub.wake()

    def clock(self, rounds: int, models: int) -> Future[bool]:
        future: Future[bool] = Future()
        with self._lock:
            ended = self._ended
            if not ended:
                if rounds == models:
                    self._passes[rounds] = future
                self._conversation.clock(rounds, models, time.monotonic())
        if ended or rounds != models:
            _resolve(future, not ended)
        self._hub.wake()
        return future

    def wait_for_others(self) -> tuple[int, ...]:
        with self._answered:
            if self._ended or self._conversation.away:
                return ()
            self._conversation.leave(time.monotonic())
        self._hub.wake()
        with self._answered:
            talk = self._conversation
            self._answered.wait_for(lambda: self._ended or talk.away or talk.died is not None)
            return talk.died or ()

    def report(self, up: float | None = None, down: float | None = None) -> None:
        with self._lock:
            self._conversation.report(up, down)
        self._hub.wake()

    def close(self) -> None:
        with self._lock:
            self._closing = True
        self._hub.wake()
        if threading.current_thread() is not self._thread:
            self._thread.join(2.0)

    def __enter__(self) -> CoordinatorClient:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    # The thread.

    def _run(self) -> None:
        try:
            self._talk()
        except Exception as error:
            # Prophet's own failure: the job goes on without it.
            self._warn(f"{type(error).__name__}: {error}")
            with contextlib.suppress(Exception):
                self._send(Bye())  # or it would be taken for dead
        finally:
            self._end()

    def _talk(self) -> None:
        self._reconnect()
        while not self._closing:
            now = time.monotonic()
            with self._answered:
                made, self._made = self._made, None
                if made is not None:
                    self._conversation.connected()
            if made is not None:
                self._connection = self._hub.adopt(made, self._owner)
            with self._answered:
                self._watch(now)
                self._conversation.turn(now)
                messages, results = self._conversation.take()
                away, why = self._conversation.away, self._conversation.refused
                next_s = self._conversation.next_s
                if self._sample is not None:
                    next_s = min(next_s, self._sample.time_s + SAMPLE_S)
                self._answered.notify_all()
            if away:
                self._warn(why or f"it has not answered for {self._conversation.bound_s:g} s")
            for message in messages:
                self._send(message)
            for result in results:
                self._deliver(result)
            self._hub.turn(next_s)
        with self._lock:
            welcomed = self._conversation.welcomed
        if welcomed:
            self._send(Bye())

    def _reconnect(self) -> None:
        threading.Thread(target=self._connect, name="prophet-coordinator-connects", daemon=True).start()

    def _connect(self) -> None:
        first_s, longest_s = RECONNECT_S
        while not self._stopping.wait(self._wait_s):
            self._wait_s = min(max(first_s, 2 * self._wait_s), longest_s)
            try:
                made = socket.create_connection(self._place, longest_s)
                lives_or_ends(made)
            except OSError as error:
                logger.debug("no connection to the coordinator: %s", error)
                continue
            with self._lock:
                if self._stopping.is_set():
                    made.close()
                else:
                    self._made = made
            self._hub.wake()
            return

    def _closed(self, connection: Connection) -> None:
        self._connection = None
        if not self._stopping.is_set():
            self._reconnect()

    def _send(self, message: Request) -> None:
        # Where nobody is connected, it will be said again, or given up.
        if self._connection is not None:
            self._connection.send(framed(message))

    def _received(self, connection: Connection) -> None:
        try:
            for data in take_frames(connection.received, MOST_ANSWER_BYTES):
                self._heard(data)
        except UserError as error:
            logger.debug("what answers is no coordinator: %s", error)
            connection.close()

    def _heard(self, data: bytes) -> None:
        try:
            answer = decode_answer(data)
        except UserError as error:
            logger.debug("the coordinator said what cannot be read: %s", error)
            return
        if isinstance(answer, Welcome):
            self._wait_s = RECONNECT_S[0]
        if isinstance(answer, Denied):
            logger.debug("the coordinator refuses: %s", answer.text)
        with self._lock:
            self._conversation.receive(answer, time.monotonic())

    def _watch(self, now_s: float) -> None:
        """Samples the NIC where an update travels or has just travelled, and where an answer is waited for."""
        sending, waits = self._conversation.sending, self._conversation.waits
        if self._interface is None or not (sending or self._was_sending or waits):
            self._sample = None
            return
        last = self._sample
        if last is not None and sending == self._was_sending and now_s < last.time_s + SAMPLE_S:
            return
        sample = self._sample = sample_nic(self._interface, now_s)
        if sample is None:
            self._interface = None
            return
        if waits and last is not None:
            moved = max(sample.bytes_sent - last.bytes_sent, sample.bytes_received - last.bytes_received)
            if moved >= BUSY_BYTES_PER_S * (now_s - last.time_s):
                self._conversation.excuse(now_s - last.time_s)
        self._nic.observe(sample, self._was_sending)
        self._was_sending = sending
        news = self._nic.news()
        if news is not None:
            self._conversation.report(news, None)

    def _deliver(self, result: Result) -> None:
        match result:
            case Permission():
                with self._lock:
                    asking = self._askings.get(result.update)
                if asking is not None:
                    _resolve(asking.permission, result)
            case Outcome():
                with self._lock:
                    asking = self._askings.pop(result.update, None)
                    self._pushed.discard(result.update)
                if asking is not None:
                    _resolve(asking.outcome, result)
            case SumPermission():
                with self._lock:
                    future = self._sums.pop(result.number, None)
                if future is not None:
                    _resolve(future, result.permission)
            case Pass():
                with self._lock:
                    passed = self._passes.pop(result.rounds, None)
                if passed is not None:
                    _resolve(passed, result.coordinated)
            case Collection():
                if self._collect is not None:
                    self._collect(result)
            case ModelCopy():
                if self._copy is not None:
                    self._copy(result)

    def _warn(self, why: str) -> None:
        if not self._warned:
            self._warned = True
            logger.warning(
                "the coordinator at %s is of no use now (%s); updates go in arrival order until it is",
                self._address,
                why,
            )

    def _end(self) -> None:
        """Nobody will answer any more: what is open goes."""
        with self._answered:
            self._ended = True
            askings, sums = list(self._askings.values()), list(self._sums.values())
            passes = list(self._passes.values())
            self._askings.clear()
            self._sums.clear()
            self._passes.clear()
            version = self._conversation.version
            self._answered.notify_all()
        for asking in askings:
            number = asking.update
            sent = asking.permission.done() and asking.permission.result().aggregator is not None
            _resolve(asking.permission, Permission(number, True, AWAY, None, version, False))
            if sent or number in self._pushed:
                _resolve(asking.outcome, Outcome(number, not sent, version, None, AWAY))
            # One that is on its way to the server has its outcome when it is done.
        for future in sums:
            _resolve(future, Permission(0, True, AWAY, None, version, False))
        for passed in passes:
            _resolve(passed, False)
        self._stopping.set()
        if self._connection is not None:
            self._connection.end()
        until_s = time.monotonic() + LINGER_S
        while self._connection is not None and time.monotonic() < until_s:
            self._hub.turn(until_s)
        self._hub.close()
        with self._lock:
            if self._made is not None:
                self._made.close()


def _place(address: str) -> tuple[str, int]:
    """Host and port. Raises UserError where the address is none; a coordinator that is not there yet is waited for."""
    place = urlsplit(address)
    with contextlib.suppress(ValueError):  # what stands for the port is none
        if place.scheme == "tcp" and place.hostname and place.port:
            return place.hostname, place.port
    raise UserError(f"coordinator {address}: it is no address; write tcp://HOST:PORT")


def _resolve(future: Future[T], value: T) -> None:
    # It may have one, or nobody wants it any more.
    with contextlib.suppress(InvalidStateError):
        future.set_result(value)


def client_from_environ(
    worker: int, environ: Mapping[str, str] = os.environ, workers: int | None = None
) -> CoordinatorClient | None:
    """The coordinator that the environment names, None where it names none. Raises UserError naming what is wrong."""
    settings = coordinator_from_environ(environ)
    if settings is None:
        return None
    tenant, token = token_of(settings.token_file, settings.tenant)
    return CoordinatorClient(
        settings.address,
        token,
        tenant,
        worker,
        settings.bound_s,
        settings.node,
        workers=workers,
        staleness=settings.staleness,
        replicates=settings.replica is not None,
    )
