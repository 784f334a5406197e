"""The worker's end of the connection to its coordinator.

Rule of this file: one connection and one thread. conversation.py decides what to send and how long to wait.

Only the thread touches the connection. Calls change the conversation under a lock and wake the thread. An exception in
the thread ends it with one warning, and all updates go in arrival order from then on.

A worker's round, in this order:

    asking = coordinator.ask(size_bytes, version, norm)     # returns at once
    permission = asking.permission.result()                 # returns when the update may start; always returns
    if not permission.goes: discard the update, pull, compute from there
    push all its blocks to the server
    coordinator.done(asking, size_bytes)                    # the server has all of it; asking.outcome has its delay
    pull; the next `ask` passes the version of this model
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import math
import queue
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import InvalidStateError

from prophet_mlfabric import messages as msg
from prophet_mlfabric.conversation import Asking, Conversation
from prophet_mlfabric.nic_rates import NicWatch
from prophet_mlfabric.settings import CoordinatorSettings, host_and_port
from prophet_scheduler.core.errors import UserError
from prophet_scheduler.forks import free_in_forks
from prophet_scheduler.hub import Connection, Hub, Owner, lives_or_ends
from prophet_scheduler.learn.nic import interface_towards

logger = logging.getLogger("prophet_scheduler")

RECONNECT_S = (0.1, 2.0)
"""First and longest wait, in seconds, before reconnecting; the wait doubles."""
LINGER_S = 0.2
"""Maximum seconds to send the last message."""


class CoordinatorClient:
    """One worker's connection to its coordinator. Thread-safe; only `wait_for_others`, `wait_welcome` and `close`
    block.

    It is worker `worker`. With `watch_nic` the NIC's rate is measured while updates are in flight, and reported.
    `replicates` if it keeps a replica of the model. Raises UserError for an invalid address, tenant or number. The
    constructor does not wait for a connection.
    """

    def __init__(
        self, settings: CoordinatorSettings, worker: int, replicates: bool = False, watch_nic: bool = True
    ) -> None:
        tenant, node = settings.tenant, settings.node
        try:
            hello = msg.Hello(
                tenant=tenant,
                worker=worker,
                incarnation=secrets.randbits(53),
                node=node or socket.gethostname(),
                replicates=replicates,
            )
        except ValueError:
            raise UserError(f"tenant {tenant!r}, worker {worker!r}, node {node!r}: one is invalid") from None
        self._address = settings.address
        place = host_and_port(settings.address, "the coordinator")
        self._answered = free_in_forks(threading.Condition())
        """Guards the conversation, which threads share."""
        self._talk = Conversation(hello, settings.token, settings.bound_s, time.monotonic())
        self._copy: Callable[[msg.Copy], None] = lambda order: None
        # A worker makes less than one update per millisecond, so a restart does not use a number again.
        self._numbers = itertools.count(time.time_ns() // 1_000_000)
        self._closing = self._ended = self._warned = False
        self._nic = NicWatch(interface_towards(place[0]) if watch_nic else None)
        self._connection: Connection | None = None
        self._hub = Hub(1, math.inf)
        self._connector = _Connector(place, self._hub.wake)
        self._thread = threading.Thread(target=self._run, name="prophet-coordinator", daemon=True)
        self._thread.start()

    @property
    def version(self) -> int:
        """Newest version known: updates applied to the server's model."""
        with self._answered:
            return self._talk.version

    @property
    def away(self) -> bool:
        """True if the coordinator is away, so that updates go in arrival order."""
        with self._answered:
            return self._talk.away

    def wait_welcome(self, timeout_s: float) -> bool:
        """Wait until the coordinator has admitted this worker. Return True if it has.

        Raises UserError if the coordinator refuses it, for instance for a wrong token, since waiting would not help.
        """
        with self._answered:
            talk = self._talk
            self._answered.wait_for(lambda: talk.welcomed or bool(talk.refused) or self._ended, timeout_s)
            if talk.refused:
                raise UserError(f"coordinator {self._address}: {talk.refused}")
            return talk.welcomed

    def ask(self, size_bytes: int, version: int, norm: float) -> Asking:
        """Ask to send an update of `size_bytes`, computed from `version` of the model, with Euclidean norm `norm`.

        Raises UserError for impossible sizes, versions or norms.
        """
        with self._talking() as talk:
            return talk.ask(next(self._numbers), size_bytes, version, norm, time.monotonic())

    def done(self, asking: Asking, size_bytes: int) -> None:
        """Report that the server has acknowledged every byte. A second call does nothing."""
        with self._talking() as talk:
            talk.done(asking.update, size_bytes, time.monotonic())

    def on_copy(self, copy: Callable[[msg.Copy], None]) -> None:
        """Set the function that the client's thread calls for each copy of the model that the replica needs."""
        self._copy = copy  # earlier orders are repeated

    def copied(self, number: int, reason: str = "") -> None:
        """Report that copy `number` is in the replica or, with `reason`, why it is not."""
        with self._talking() as talk:
            talk.copied(number, reason)

    def wait_for_others(self) -> tuple[int, ...]:
        """Wait, when this worker ends, until all others have ended or died. Return the dead workers. If the coordinator
        is away, return none at once.
        """
        with self._answered:
            talk = self._talk
            if not talk.away:
                talk.leave(time.monotonic())
                self._hub.wake()
                self._answered.wait_for(lambda: talk.away or talk.died is not None)
            return (not talk.away and talk.died) or ()

    def close(self) -> None:
        """Close the connection; open updates go in arrival order."""
        with self._answered:
            self._closing = True
        self._hub.wake()
        if threading.current_thread() is not self._thread:
            self._thread.join(2.0)

    @contextlib.contextmanager
    def _talking(self) -> Iterator[Conversation]:
        """Lock the conversation for a change, then wake the thread. If that has ended, deliver the results here."""
        with self._answered:
            yield self._talk
        self._hub.wake()
        if self._ended:
            self._deliver()

    # The client's thread.

    def _run(self) -> None:
        try:
            self._serve()
        except Exception as error:
            # Prophet's own failure: the job continues without it.
            self._warn(f"{type(error).__name__}: {error}")
        finally:
            self._end()

    def _serve(self) -> None:
        self._connector.start()
        while not self._closing:
            now = time.monotonic()
            made = self._connector.take()
            if made is not None:
                with self._answered:
                    self._talk.connected()
                owner = Owner(msg.LENGTH_BYTES + msg.MOST_ANSWER_BYTES, received=self._received, closed=self._closed)
                self._connection = self._hub.adopt(made, owner)
            with self._answered:
                self._nic.look(self._talk, now)
                self._talk.turn(now)
                away, why = self._talk.away, self._talk.refused
                next_s = min(self._talk.next_s, self._nic.next_s)
                self._answered.notify_all()
            if away:
                self._warn(why or f"it has not answered for {self._talk.bound_s:g} s")
            self._deliver()
            self._hub.turn(next_s)

    def _closed(self, connection: Connection) -> None:
        self._connection = None
        self._connector.start()

    def _received(self, connection: Connection) -> None:
        try:
            for data in msg.take_frames(connection.received, msg.MOST_ANSWER_BYTES):
                answer = msg.decode_answer(data)
                if isinstance(answer, msg.Welcome):
                    self._connector.is_answered()
                if isinstance(answer, msg.Denied):
                    logger.debug("the coordinator refuses: %s", answer.text)
                with self._answered:
                    self._talk.receive(answer, time.monotonic())
        except UserError as error:
            logger.debug("an answer is not a coordinator's: %s", error)
            connection.close()

    def _deliver(self) -> None:
        """Send messages and deliver results."""
        with self._answered:
            messages, results = self._talk.take()
        for message in messages:
            # Without a connection, `turn` repeats the message later, or gives up on its answer.
            if self._connection is not None and not self._ended:
                self._connection.send(msg.framed(message))
        for future, value in results:
            if isinstance(value, msg.Copy):
                self._copy(value)
            elif future is not None:
                with contextlib.suppress(InvalidStateError):  # it was cancelled
                    future.set_result(value)

    def _warn(self, why: str) -> None:
        if not self._warned:
            self._warned = True
            logger.warning(
                "the coordinator at %s is unavailable (%s); updates go in arrival order until it is back",
                self._address,
                why,
            )

    def _end(self) -> None:
        """Release everything that is open, since no answer will arrive."""
        if self._talk.welcomed and self._connection is not None:
            with contextlib.suppress(Exception):  # without a Bye, the coordinator would count this worker as dead
                self._connection.send(msg.framed(msg.Bye()))
        with self._answered:
            self._ended = True
            self._talk.end(time.monotonic())
            self._answered.notify_all()
        self._deliver()
        self._connector.stop()
        if self._connection is not None:
            self._connection.end()
        until_s = time.monotonic() + LINGER_S
        while self._connection is not None and time.monotonic() < until_s:
            self._hub.turn(until_s)
        self._hub.close()


class _Connector:
    """Connects in a thread of its own, since resolving a name and connecting may take long."""

    def __init__(self, place: tuple[str, int], made: Callable[[], None]) -> None:
        """`made` is called from any thread when `take` has a connection."""
        self._place = place
        self._made = made
        self._stopping = threading.Event()
        self._wait_s = 0.0
        self._sockets: queue.SimpleQueue[socket.socket] = queue.SimpleQueue()

    def start(self) -> None:
        """Try, in the background, until a connection is made."""
        if not self._stopping.is_set():
            threading.Thread(target=self._connect, name="prophet-coordinator-connects", daemon=True).start()

    def take(self) -> socket.socket | None:
        with contextlib.suppress(queue.Empty):
            return self._sockets.get_nowait()
        return None

    def is_answered(self) -> None:
        """Reset the wait before the next connection to its minimum."""
        self._wait_s = RECONNECT_S[0]

    def stop(self) -> None:
        self._stopping.set()
        while (made := self.take()) is not None:
            made.close()

    def _connect(self) -> None:
        first_s, longest_s = RECONNECT_S
        while not self._stopping.wait(self._wait_s):
            self._wait_s = min(max(first_s, 2 * self._wait_s), longest_s)
            try:
                made = socket.create_connection(self._place, longest_s)
            except OSError as error:
                logger.debug("no connection to the coordinator: %s", error)
                continue
            lives_or_ends(made)
            self._sockets.put(made)
            if self._stopping.is_set():
                self.stop()
            self._made()
            return
