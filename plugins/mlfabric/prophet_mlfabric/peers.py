"""Connections between the workers of an asynchronous job: updates to sum, and models back.

Rule of this file: sockets and bytes. What is sent to whom is a front end's, torch/aggregating.py.

Sockets of their own, and not sends of torch.distributed: those need all workers in one process group, whose members
may not die, and a receive posted for each send, where here nobody knows who will send next.

Who is connected to sends a nonce. A message is a head (what it is, who sent it, which update, how long it is, and its
BLAKE2b, RFC 7693), a keyed BLAKE2b over nonce and head with the job's token, and the bytes. So no more is read than a
head before there is a proof, and after it no more than a message may have, which is as long as the model. Whoever sends
a head without a proof, or other bytes than the head says, is disconnected.
"""

from __future__ import annotations

import enum
import hashlib
import hmac
import logging
import math
import queue
import secrets
import socket
import struct
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from prophet_scheduler.forks import free_in_forks
from prophet_scheduler.hub import Connection, Hub, Owner, listener_at, lives_or_ends

logger = logging.getLogger("prophet_scheduler")

NONCE_BYTES = DIGEST_BYTES = 32
_HEAD = struct.Struct(f"<BIQQ{DIGEST_BYTES}s")
HEAD_BYTES = _HEAD.size + DIGEST_BYTES
"""Bytes of a head with its proof."""
STRANGER_S = 10.0
"""Longest seconds from a connection to its first proof."""
MOST_STRANGERS = 256
LINGER_S = 1.0
"""Longest seconds for messages that are on their way when a worker ends."""
CONNECT_S = 5.0
Receive = Callable[["PeerMessage", int, int, bytes], None]
"""(what, worker, update, bytes)."""
_Message: TypeAlias = tuple[bytes, bytes]
"""Head and bytes."""


class PeerMessage(enum.IntEnum):
    """Message from one worker to another."""

    UPDATE = 1
    """Update to be summed."""
    MODEL = 2
    """The server's, with the update in it."""


@dataclass
class _Incoming:
    """A connection's nonce, and the head whose bytes are to come next."""

    nonce: bytes
    head: tuple[int, int, int, int, bytes] | None = None


class Peers:
    """One worker's sockets. Messages wait until `listen` says who takes them.

    `host` is the address of this worker that the others can reach, `largest_bytes` the most that a message has.
    """

    def __init__(self, token: str, worker: int, host: str, largest_bytes: int, stranger_s: float = STRANGER_S) -> None:
        self._key = hashlib.sha256(token.encode()).digest()
        self._worker = worker
        self._largest_bytes = largest_bytes
        self._listener = listener_at(host, 0)
        self.port: int = self._listener.getsockname()[1]
        self._hub = Hub(MOST_STRANGERS, stranger_s)
        self._incoming: dict[Connection, _Incoming] = {}
        self._receive: Receive | None = None
        self._addresses: Mapping[int, tuple[str, int]] = {}
        self._outgoing: dict[int, tuple[queue.SimpleQueue[_Message | None], threading.Thread]] = {}
        self._lock = free_in_forks(threading.Lock())
        self._closing = free_in_forks(threading.Event())
        self._thread: threading.Thread | None = None

    def know(self, addresses: Mapping[int, tuple[str, int]]) -> None:
        """Learn where the others are: host and port by worker."""
        self._addresses = addresses

    def listen(self, receive: Receive) -> None:
        """Call `receive` for each message from now on, from a thread of its own."""
        self._receive = receive
        self._hub.listen(self._listener, Owner(HEAD_BYTES, self._made, self._received, self._closed))
        self._thread = threading.Thread(target=self._listen, name="prophet-peers", daemon=True)
        self._thread.start()

    def send(self, what: PeerMessage, worker: int, update: int, payload: bytes | memoryview) -> None:
        """Hands a message over and returns; it travels while its worker goes on. Raises KeyError for an unknown one."""
        data = bytes(payload)
        head = _HEAD.pack(what, self._worker, update, len(data), _digest(data))
        with self._lock:
            if worker not in self._outgoing:
                messages: queue.SimpleQueue[_Message | None] = queue.SimpleQueue()
                arguments = (self._addresses[worker], messages)
                name = f"prophet-peer-{worker}"
                thread = threading.Thread(target=self._deliver, args=arguments, name=name, daemon=True)
                self._outgoing[worker] = messages, thread
                thread.start()
            self._outgoing[worker][0].put((head, data))

    def close(self) -> None:
        """Ends its threads; what is on its way gets LINGER_S."""
        self._closing.set()
        until_s = time.monotonic() + LINGER_S
        with self._lock:
            outgoing = list(self._outgoing.values())
        for messages, _ in outgoing:
            messages.put(None)
        for _, thread in outgoing:
            thread.join(max(0.0, until_s - time.monotonic()))
        self._hub.wake()
        if self._thread is None:
            self._listener.close()
            self._hub.close()
        else:
            self._thread.join(2 * LINGER_S)

    def _proof(self, nonce: bytes, head: bytes) -> bytes:
        return hashlib.blake2b(nonce + head, key=self._key, digest_size=DIGEST_BYTES).digest()

    # What goes out: a thread for each worker that is sent something.

    def _deliver(self, address: tuple[str, int], messages: queue.SimpleQueue[_Message | None]) -> None:
        connection: tuple[socket.socket, bytes] | None = None
        while (message := messages.get()) is not None:
            head, data = message
            for _ in range(2):  # a connection may have been lost since the last message
                try:
                    connection = connection or _connected(address)
                    own, nonce = connection
                    own.sendall(head + self._proof(nonce, head))
                    own.sendall(data)
                    break
                except OSError as error:
                    logger.debug("a message to %s:%d is lost: %s", *address, error)
                    if connection is not None:
                        connection[0].close()
                    connection = None
        if connection is not None:
            connection[0].close()

    # What comes in: one thread.

    def _listen(self) -> None:
        try:
            while not self._closing.is_set():
                self._hub.turn(math.inf)
        except Exception as error:
            logger.warning("Prophet hears no more of other workers: %s: %s", type(error).__name__, error)
        finally:
            self._hub.close()

    def _made(self, connection: Connection) -> None:
        nonce = secrets.token_bytes(NONCE_BYTES)
        self._incoming[connection] = _Incoming(nonce)
        lives_or_ends(connection.socket)
        connection.send(nonce)

    def _closed(self, connection: Connection) -> None:
        del self._incoming[connection]

    def _received(self, connection: Connection) -> None:
        incoming = self._incoming[connection]
        if incoming.head is None and len(connection.received) == HEAD_BYTES:
            said = bytes(connection.received)
            connection.received.clear()
            head, proof = said[: _HEAD.size], said[_HEAD.size :]
            if not hmac.compare_digest(proof, self._proof(incoming.nonce, head)):
                logger.debug("a connection has no proof of this job's token")
                connection.close()
                return
            incoming.head = _HEAD.unpack(head)
            length = incoming.head[3]
            if length > self._largest_bytes:
                logger.debug("a message of %d bytes; %d is the most", length, self._largest_bytes)
                connection.close()
                return
            connection.admit(max(length, 1), NONCE_BYTES)
        if incoming.head is not None and len(connection.received) == incoming.head[3]:
            kind, worker, update, _, digest = incoming.head
            payload = bytes(connection.received)
            connection.received.clear()
            incoming.head = None
            connection.admit(HEAD_BYTES, NONCE_BYTES)
            if not hmac.compare_digest(digest, _digest(payload)):
                connection.close()
            elif kind in set(PeerMessage) and self._receive is not None:
                self._receive(PeerMessage(kind), worker, update, payload)


def _digest(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=DIGEST_BYTES).digest()


def _connected(address: tuple[str, int]) -> tuple[socket.socket, bytes]:
    """A connection, and the nonce that came over it, which comes when the other one listens. Raises OSError."""
    own = socket.create_connection(address, CONNECT_S)
    try:
        own.settimeout(None)
        lives_or_ends(own)
        nonce = b""
        while len(nonce) < NONCE_BYTES:
            piece = own.recv(NONCE_BYTES - len(nonce))
            if not piece:
                raise ConnectionError("it was closed")
            nonce += piece
    except OSError:
        own.close()
        raise
    return own, nonce
