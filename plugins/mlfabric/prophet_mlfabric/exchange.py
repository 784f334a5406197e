"""Requests and answers between processes of a job, authenticated with its token.

Rule of this file: sockets, proofs and limits. torch/aggregating.py sends updates to sum, and replica.py models.

It has its own sockets, since torch.distributed needs a group whose members must not die.

The listener sends a nonce to every new connection. A message is a head (kind, sender, number, length, BLAKE2b of the
bytes (RFC 7693), nonce for the answer), a keyed BLAKE2b over nonce and head, and the bytes. The key is made from the
token, which is never sent. So nothing beyond a head is read before a proof, and no more than a message's maximum after
it. An answer is also such a message, and is ignored without a proof.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import logging
import math
import queue
import secrets
import socket
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from prophet_scheduler.core.errors import UserError
from prophet_scheduler.hub import Connection, Hub, Owner, listener_at, lives_or_ends

logger = logging.getLogger("prophet_scheduler")

TIMEOUT_S = 10.0
"""Maximum seconds to connect, to send or receive the next bytes, or to answer a complete request."""
MOST_STRANGERS = 256
"""Maximum connections without a proof; another one replaces the oldest."""
NONCE_BYTES = DIGEST_BYTES = 32
PIECE_BYTES = 1 << 16
DONE, REFUSED = 0, 255
"""Kinds of answers: done, or refused for a reason in UTF-8. Other kinds are requests."""
_HEAD = struct.Struct(f"<BIQQ{DIGEST_BYTES}s{NONCE_BYTES}s")
HEAD_BYTES = _HEAD.size + DIGEST_BYTES
"""Bytes of a head with its proof."""


class Head(NamedTuple):
    """Head of a message: its kind, sender and number, the length and digest of its bytes, and the answer's nonce."""

    kind: int
    worker: int
    number: int
    length: int
    digest: bytes
    nonce: bytes


def key_of(tenant: str, token: str) -> bytes:
    """Return the key for a job's proofs."""
    return hashlib.sha256(f"{tenant} {token}".encode()).digest()


def message(
    key: bytes, nonce: bytes, kind: int, worker: int, number: int, payload: bytes, own_nonce: bytes = bytes(NONCE_BYTES)
) -> bytes:
    """Return a complete message to the sender of `nonce`."""
    head = _HEAD.pack(kind, worker, number, len(payload), _digest(payload), own_nonce)
    return head + _proof(key, nonce, head) + payload


def _head(key: bytes, nonce: bytes, said: bytes) -> Head | None:
    """Return the head in the HEAD_BYTES of `said`; None without a valid proof."""
    head, proof = said[: _HEAD.size], said[_HEAD.size :]
    return Head(*_HEAD.unpack(head)) if hmac.compare_digest(proof, _proof(key, nonce, head)) else None


def _proof(key: bytes, nonce: bytes, head: bytes) -> bytes:
    return hashlib.blake2b(nonce + head, key=key, digest_size=DIGEST_BYTES).digest()


def _digest(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=DIGEST_BYTES).digest()


@dataclass(frozen=True)
class Request:
    """A request with a valid proof. `answer` may be called once, from any thread."""

    kind: int
    worker: int
    number: int
    payload: bytes
    answer: Callable[[int, int, bytes], None]
    """Queues an answer of this kind, number and bytes, and returns at once."""


class Listener:
    """Accepts requests at `host` from construction on; they wait until `serve`, which calls `handle` with each.

    A message has at most `largest_bytes`. A stranger has `stranger_s` seconds to send its head. Construction raises
    OSError if it cannot listen there.
    """

    def __init__(
        self,
        host: str,
        port: int,
        key: bytes,
        largest_bytes: int,
        handle: Callable[[Request], None],
        stranger_s: float = TIMEOUT_S,
    ) -> None:
        self._key, self._largest_bytes, self._handle = key, largest_bytes, handle
        listener = listener_at(host, port)
        self.address: tuple[str, int] = listener.getsockname()[:2]
        self._hub = Hub(MOST_STRANGERS, stranger_s)
        self._hub.listen(listener, Owner(HEAD_BYTES, self._made, self._received, self._closed))
        self._nonces: dict[Connection, bytes] = {}
        self._heads: dict[Connection, Head] = {}
        """Heads whose bytes have yet to arrive."""
        self._answers: queue.SimpleQueue[tuple[Connection, bytes]] = queue.SimpleQueue()
        self._stopping = False

    def serve(self) -> None:
        """Answer until `stop` or KeyboardInterrupt."""
        while not self._stopping:
            self._hub.turn(math.inf)
            with contextlib.suppress(queue.Empty):
                while True:
                    connection, answer = self._answers.get_nowait()
                    connection.send(answer)

    def stop(self) -> None:
        """Make `serve` return soon. Thread-safe."""
        self._stopping = True
        self._hub.wake()

    def close(self) -> None:
        """Close all sockets after `serve` has returned."""
        self._hub.close()

    def _made(self, connection: Connection) -> None:
        nonce = self._nonces[connection] = secrets.token_bytes(NONCE_BYTES)
        lives_or_ends(connection.socket)
        connection.send(nonce)

    def _closed(self, connection: Connection) -> None:
        del self._nonces[connection]
        self._heads.pop(connection, None)

    def _received(self, connection: Connection) -> None:
        received, head = connection.received, self._heads.get(connection)
        if head is None and len(received) == HEAD_BYTES:
            head = _head(self._key, self._nonces[connection], bytes(received))
            received.clear()
            if head is None:
                # The sender lacks the token; tell it so.
                connection.send(_HEAD.pack(REFUSED, 0, 0, 0, b"", b"") + bytes(DIGEST_BYTES))
                connection.end()
                return
            if head.length > self._largest_bytes:
                logger.debug("a message of %d bytes; the limit is %d", head.length, self._largest_bytes)
                connection.close()
                return
            self._heads[connection] = head
            connection.admit(max(head.length, 1), self._largest_bytes)
        if head is not None and len(received) == head.length:
            del self._heads[connection]
            payload = bytes(received)
            received.clear()
            connection.admit(HEAD_BYTES, self._largest_bytes)
            if hmac.compare_digest(head.digest, _digest(payload)):
                self._take(connection, head, payload)
            else:
                connection.close()

    def _take(self, connection: Connection, head: Head, payload: bytes) -> None:
        def answer(kind: int, number: int, data: bytes) -> None:
            self._answers.put((connection, message(self._key, head.nonce, kind, 0, number, data)))
            self._hub.wake()

        try:
            self._handle(Request(head.kind, head.worker, head.number, payload, answer))
        except Exception as error:
            logger.warning("a request was not answered: %s: %s", type(error).__name__, error)
            connection.close()


class Asked(contextlib.AbstractContextManager["Asked"]):
    """A request, sent to `address` by construction, and its answer. Use it in `with`.

    Each step times out after `timeout_s`. Construction raises OSError if the request cannot be sent.
    """

    def __init__(
        self,
        address: tuple[str, int],
        key: bytes,
        kind: int,
        worker: int = 0,
        number: int = 0,
        payload: bytes = b"",
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        self._key = key
        self._nonce = secrets.token_bytes(NONCE_BYTES)
        self._socket = socket.create_connection(address, timeout_s)
        try:
            lives_or_ends(self._socket)
            nonce = self._read(NONCE_BYTES)
            said = memoryview(message(key, nonce, kind, worker, number, payload, self._nonce))
            while said:  # the timeout is for each send, so the message is sent in pieces
                said = said[self._socket.send(said[:PIECE_BYTES]) :]
        except OSError:
            self._socket.close()
            raise

    def __exit__(self, *exception: object) -> None:
        self._socket.close()

    def answer(self, most_bytes: float = math.inf) -> tuple[int, bytes]:
        """Return the answer's number and bytes, at most `most_bytes`.

        Raises OSError if no answer arrives, and UserError if it is a refusal, too long, or without a valid proof.
        """
        said = self._read(HEAD_BYTES)
        head = _head(self._key, self._nonce, said)
        if head is None and said[0] == REFUSED:
            raise UserError("the token is wrong")
        if head is None:
            raise UserError("the process there does not have the job's token")
        if head.length > most_bytes:
            raise UserError(f"an answer of {head.length} bytes; the limit is {most_bytes:g}")
        payload = self._read(head.length)
        if not hmac.compare_digest(head.digest, _digest(payload)):
            raise UserError("an answer was corrupted in transit")
        if head.kind == REFUSED:
            raise UserError(payload.decode(errors="replace"))
        return head.number, payload

    def _read(self, count: int) -> bytes:
        pieces = bytearray()
        while len(pieces) < count:
            piece = self._socket.recv(min(count - len(pieces), 16 * PIECE_BYTES))
            if not piece:
                raise ConnectionError("the connection was closed")
            pieces += piece
        return bytes(pieces)
