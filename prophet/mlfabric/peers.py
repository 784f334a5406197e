"""How workers of an asynchronous job send each other updates to sum, and models back.

Rule of this file: sockets and bytes. What is sent to whom is a front end's, prophet/frontends/torch/aggregating.py.

ZeroMQ, as for the coordinator, and not sends of torch.distributed: those need all workers in one process group, whose
members may not die, and a receive posted for each send, where here nobody knows who will send next.

A message is what it is, who sent it, which update, the bytes, and a keyed BLAKE2b (RFC 7693) over all of that with the
job's token; whatever has a wrong one is dropped. Messages are as long as the model, and no longer ones are taken.
"""

from __future__ import annotations

import enum
import hashlib
import hmac
import logging
import struct
import threading
from collections.abc import Callable, Mapping
from typing import Any

from prophet.core.forks import free_in_forks
from prophet.core.optional import need

logger = logging.getLogger("prophet")

_HEAD = struct.Struct("<BIQ")
_LINGER_MS = 1000
_POLL_MS = 200
Receive = Callable[["PeerMessage", int, int, bytes], None]
"""(what, worker, update, bytes)."""


class PeerMessage(enum.IntEnum):
    """What a worker sends another."""

    UPDATE = 1
    """To be summed."""
    MODEL = 2
    """The server's, with the update in it."""


class Peers:
    """One worker's sockets. Messages wait until `listen` says who takes them.

    `host` is the address of this worker that the others can reach, `largest_bytes` the most that a message has.
    """

    def __init__(self, token: str, worker: int, host: str, largest_bytes: int) -> None:
        zmq: Any = need("zmq", "sums of updates at workers")
        self._zmq = zmq
        self._key = hashlib.sha256(token.encode()).digest()
        self._worker = worker
        self._context = zmq.Context()
        self._incoming = self._context.socket(zmq.PULL)
        self._incoming.setsockopt(zmq.MAXMSGSIZE, largest_bytes)
        self.port: int = self._incoming.bind_to_random_port(f"tcp://{host}")
        self._addresses: Mapping[int, tuple[str, int]] = {}
        self._outgoing: dict[int, Any] = {}
        self._lock = free_in_forks(threading.Lock())
        self._closing = free_in_forks(threading.Event())
        self._thread: threading.Thread | None = None

    def know(self, addresses: Mapping[int, tuple[str, int]]) -> None:
        """Where the others are: host and port by worker."""
        self._addresses = addresses

    def listen(self, receive: Receive) -> None:
        """From now on `receive` is called for each message, from a thread of its own."""
        self._thread = threading.Thread(target=self._listen, args=(receive,), name="prophet-peers", daemon=True)
        self._thread.start()

    def send(self, what: PeerMessage, worker: int, update: int, payload: bytes | memoryview) -> None:
        """Hands a message over and returns; it travels while its worker goes on. Raises KeyError for an unknown one."""
        head = _HEAD.pack(what, self._worker, update)
        with self._lock:
            if worker not in self._outgoing:
                host, port = self._addresses[worker]
                outgoing = self._context.socket(self._zmq.PUSH)
                outgoing.setsockopt(self._zmq.LINGER, _LINGER_MS)
                outgoing.connect(f"tcp://{host}:{port}")
                self._outgoing[worker] = outgoing
            self._outgoing[worker].send_multipart([head, self._proof(head, payload), payload])

    def close(self) -> None:
        self._closing.set()
        if self._thread is not None:
            self._thread.join(2.0)
        with self._lock:
            for outgoing in self._outgoing.values():
                outgoing.close()
            self._outgoing.clear()
        if self._thread is None or not self._thread.is_alive():
            self._context.destroy(linger=_LINGER_MS)

    def _proof(self, head: bytes, payload: bytes | memoryview) -> bytes:
        digest = hashlib.blake2b(head, key=self._key, digest_size=32)
        digest.update(payload)
        return digest.digest()

    def _listen(self, receive: Receive) -> None:
        try:
            while not self._closing.is_set():
                if self._incoming.poll(_POLL_MS):
                    self._take(self._incoming.recv_multipart(), receive)
        except Exception as error:
            logger.warning("Prophet hears no more of other workers: %s: %s", type(error).__name__, error)
        finally:
            self._incoming.close()

    def _take(self, frames: list[bytes], receive: Receive) -> None:
        if len(frames) != 3 or len(frames[0]) != _HEAD.size:
            return
        head, proof, payload = frames
        if not hmac.compare_digest(proof, self._proof(head, payload)):
            logger.debug("a message of %d bytes has no proof of this job's token", len(payload))
            return
        kind, worker, update = _HEAD.unpack(head)
        if kind in set(PeerMessage):
            receive(PeerMessage(kind), worker, update, payload)
