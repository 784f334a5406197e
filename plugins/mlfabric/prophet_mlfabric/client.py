"""The worker's end of the connection to its coordinator.

Rule of this file: one connection, whose answers a thread reads. The caller's threads send, and wait for answers.

A question is repeated until it is answered. If the coordinator is silent for longer than the bound meanwhile, it is
*away*: updates go in arrival order until it has admitted this worker again. The worker then repeats its unacknowledged
reports, so that the coordinator's count of versions stays true.

A worker's round, in this order:

    permission = coordinator.ask(size_bytes, version, norm) # returns when the update may start; always returns
    if not permission.goes: discard the update, pull, compute from there
    push all its blocks to the server
    coordinator.done(permission)                            # the server has all of it
    pull; the next `ask` passes the version of this model
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import math
import secrets
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from prophet_mlfabric import messages as msg
from prophet_mlfabric.settings import CoordinatorSettings, host_and_port
from prophet_scheduler.core.errors import UserError
from prophet_scheduler.forks import free_in_forks
from prophet_scheduler.hub import lives_or_ends

logger = logging.getLogger("prophet_scheduler")

RECONNECT_S = 0.5
"""Seconds before reconnecting."""
CONNECT_S = 2.0
"""Maximum seconds to connect."""
LONGEST_S = 60.0
"""Maximum seconds to wait for a grant, however often the coordinator says to wait."""
MOST_UNHEARD = 1000
"""Maximum number of unacknowledged updates to remember; another one replaces the oldest."""
CLOSE_S = 2.0
"""Maximum seconds to wait for the reading thread to end."""


@dataclass(frozen=True)
class Permission:
    """Decision about an update, which may start now.

    `goes` is False if the update is dropped, before it costs a byte. `coordinated` is False if the coordinator is away,
    slow, or refuses: the update then goes in arrival order.
    """

    ask: msg.Ask
    goes: bool
    coordinated: bool


@dataclass
class _Question:
    """Question that waits for its answer, and when the coordinator was last heard."""

    request: msg.Request
    heard_s: float
    answer: msg.Answer | None = None

    def is_answered_by(self, answer: msg.Answer) -> bool:
        match self.request, answer:
            case msg.Ask(update=number), msg.Grant() | msg.Denied():
                return answer.update == number
            case msg.Bye(), msg.Parting(working=0):
                return True
        return False


class CoordinatorClient:
    """One worker's connection to its coordinator. Thread-safe.

    It is worker `worker`; `replicates` if it keeps a replica of the model. The reading thread calls `on_copy` with each
    copy of the model that the replica needs, and `on_delay` with the delay of each applied update; neither may block.
    Raises UserError for an invalid address, tenant or number. The constructor does not wait for a connection.
    """

    def __init__(self, settings: CoordinatorSettings, worker: int, replicates: bool = False) -> None:
        tenant, node = settings.tenant, settings.node
        try:
            self._hello = msg.Hello(
                tenant=tenant,
                worker=worker,
                incarnation=secrets.randbits(53),
                node=node or socket.gethostname(),
                replicates=replicates,
            )
        except ValueError:
            raise UserError(f"tenant {tenant!r}, worker {worker!r}, node {node!r}: one is invalid") from None
        self._settings, place = settings, host_and_port(settings.address, "the coordinator")
        self.on_copy: Callable[[msg.Copy], None] = lambda order: None
        self.on_delay: Callable[[int], None] = lambda delay: None
        self._changed = free_in_forks(threading.Condition())
        self._socket: socket.socket | None = None
        """Connection on which the coordinator has admitted this worker."""
        self.version = 0
        """Newest version known: updates applied to the server's model."""
        self.away = False
        """True if updates do not wait for the coordinator."""
        self._refused = ""
        """Reason why the coordinator refuses this worker; empty if it does not."""
        self._warned = False
        # A worker makes less than one update per millisecond, so a restart does not use a number again.
        self._numbers = itertools.count(time.time_ns() // 1_000_000)
        self._question: _Question | None = None
        self._unheard: dict[int, msg.Done] = {}
        self._ended = free_in_forks(threading.Event())
        self._thread = threading.Thread(target=self._run, args=(place,), name="prophet-coordinator", daemon=True)
        self._thread.start()

    # Calls of the worker.

    def wait_welcome(self, timeout_s: float) -> bool:
        """Wait until the coordinator has admitted this worker. Return True if it has.

        Raises UserError if the coordinator refuses it, for instance for a wrong token, since waiting would not help.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._socket or self._refused or self._ended.is_set(), timeout_s)
            if self._refused:
                raise UserError(f"coordinator {self._settings.address}: {self._refused}")
            return self._socket is not None

    def ask(self, size_bytes: int, version: int, norm: float) -> Permission:
        """Wait for the permission to send an update of `size_bytes`, computed from `version` of the model, with
        Euclidean norm `norm`. Raises UserError for impossible sizes, versions or norms.
        """
        try:
            ask = msg.Ask(update=next(self._numbers), size_bytes=size_bytes, version=version, norm=norm)
        except ValueError:
            raise UserError(
                f"an update of {size_bytes} bytes from version {version} with the norm {norm}: give numbers from 0 on"
            ) from None
        with self._changed:
            self.version = max(self.version, version)
            answer = self._answer_to(ask, time.monotonic() + LONGEST_S)
        if not isinstance(answer, msg.Grant):
            return Permission(ask, goes=True, coordinated=False)
        if not answer.dropped:
            time.sleep(min(answer.start_s, self._settings.bound_s))
        return Permission(ask, not answer.dropped, coordinated=True)

    def done(self, permission: Permission) -> None:
        """Report that the server has acknowledged every byte."""
        done = msg.Done(**permission.ask.model_dump(exclude={"kind"}))
        with self._changed:
            self._unheard[done.update] = done
            if len(self._unheard) > MOST_UNHEARD:
                del self._unheard[next(iter(self._unheard))]
            self._send(done)

    def copied(self, number: int, reason: str = "") -> None:
        """Report that copy `number` is in the replica or, with `reason`, why it is not. If this is lost, the
        coordinator asks again.
        """
        with self._changed:
            self._send(msg.Copied(number=number, reason=reason[: msg.MOST_REASON]))

    def wait_for_others(self) -> tuple[int, ...]:
        """Wait, when this worker ends, until all others have ended or died. Return the dead workers. If the coordinator
        is away, return none at once.
        """
        with self._changed:
            answer = self._answer_to(msg.Bye(), math.inf)
        return answer.died if isinstance(answer, msg.Parting) else ()

    def close(self) -> None:
        """End the connection; later updates go in arrival order."""
        with self._changed:
            self._send(msg.Bye())  # else the coordinator would count this worker as dead
            if self._socket is not None:
                with contextlib.suppress(OSError):
                    self._socket.shutdown(socket.SHUT_WR)
            self._ended.set()
            self._changed.notify_all()
        self._thread.join(CLOSE_S)

    def _answer_to(self, request: msg.Request, until_s: float) -> msg.Answer | None:
        """Repeat a question until it is answered. Return None if the time is over or the coordinator is away."""
        self._question = question = _Question(request, time.monotonic())
        bound_s = self._settings.bound_s

        def over() -> bool:
            return question.answer is not None or self.away or self._ended.is_set() or time.monotonic() >= until_s

        while not over():
            self._send(request)
            self._changed.wait_for(over, bound_s / 4)
            if time.monotonic() - question.heard_s >= bound_s and not over():
                self._be_away(f"it has not answered for {bound_s:g} s")
        self._question = None
        return question.answer

    def _send(self, message: msg.Request) -> None:
        """Send a message, if this worker is admitted."""
        if self._socket is not None:
            with contextlib.suppress(OSError):  # the thread notices
                self._socket.sendall(msg.framed(message))

    def _be_away(self, why: str) -> None:
        self.away = True
        if self._socket is not None:  # its buffer must not fill up
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)
            self._socket = None
        self._changed.notify_all()
        if not self._warned:
            self._warned = True
            logger.warning(
                "the coordinator at %s is unavailable (%s); updates go in arrival order until it is back",
                self._settings.address,
                why,
            )

    # The reading thread.

    def _run(self, place: tuple[str, int]) -> None:
        why = "this worker has left it"
        try:
            while not self._ended.is_set():
                try:
                    with socket.create_connection(place, CONNECT_S) as own:
                        self._read(own)
                except (OSError, UserError) as error:
                    logger.debug("no connection to the coordinator: %s", error)
                self._ended.wait(RECONNECT_S)
        except Exception as error:
            # Prophet's own failure: the job continues without it.
            why = f"{type(error).__name__}: {error}"
        with self._changed:
            self._warned = self._warned or self._ended.is_set()
            self._ended.set()
            self._be_away(why)

    def _read(self, own: socket.socket) -> None:
        """Introduce this worker, then handle all answers."""
        lives_or_ends(own)
        own.settimeout(None)
        own.sendall(msg.framed(self._hello))
        received = bytearray()
        try:
            while data := own.recv(1 << 16):
                received += data
                for frame in msg.take_frames(received, msg.MOST_ANSWER_BYTES):
                    with self._changed:
                        self._take(msg.decode_answer(frame), own)
                        self._changed.notify_all()
        finally:
            with self._changed:
                if self._socket is own:
                    self._socket = None

    def _take(self, answer: msg.Answer, own: socket.socket) -> None:
        question = self._question
        if self._socket is not own and not isinstance(answer, msg.Challenge | msg.Welcome | msg.Denied):
            return
        if question is not None:
            if question.is_answered_by(answer):
                question.answer = answer
            if self._socket is own:
                question.heard_s = time.monotonic()
        if isinstance(answer, msg.Welcome | msg.Grant | msg.Applied):
            self.version = max(self.version, answer.version)
        match answer:
            case msg.Challenge():
                hello = self._hello.model_copy(update={"version": self.version})
                proof = msg.prove(self._settings.token, answer.nonce, hello)
                own.sendall(msg.framed(hello.model_copy(update={"proof": proof})))
            case msg.Welcome():
                self._hello = self._hello.model_copy(update={"epoch": answer.epoch})
                self._socket, self.away, self._refused = own, False, ""
                for message in (*self._unheard.values(), *([] if question is None else [question.request])):
                    self._send(message)
            case msg.Applied():
                if self._unheard.pop(answer.update, None) is not None:
                    self.on_delay(answer.delay)
            case msg.Denied(update=None):
                if self._socket is not own:
                    self._refused = answer.text
                    self._be_away(answer.text)
                    raise UserError(answer.text)
                logger.debug("the coordinator refuses: %s", answer.text)
            case msg.Denied():
                self._unheard.pop(answer.update or 0, None)
            case msg.Copy():
                self.on_copy(answer)
