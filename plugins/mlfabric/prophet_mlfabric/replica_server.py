"""A replica of one job's model: a file that is always a whole version, and the newest that a worker has handed over.

Rule of this file: HTTP requests in, the file and answers out. What asks is replica_store.py.

A copy is written beside the file and takes its place when all of it is there, is what was announced, and is no older
than what is there. So whenever this process ends, the file is a model, and a worker that was told that its copy is kept
was told the truth. Nothing of a body is read before its sender has proved that it has the job's token.
"""

from __future__ import annotations

import contextlib
import glob
import hashlib
import hmac
import http.client
import io
import json
import logging
import math
import socket
import threading
from collections.abc import Mapping
from http import HTTPStatus
from pathlib import Path
from types import MappingProxyType

from prophet_mlfabric.replica_model import updates_in
from prophet_mlfabric.replica_store import (
    DIGEST,
    MODEL,
    NONCE,
    PIECE_BYTES,
    PROOF,
    STATE,
    TENANT,
    TIMEOUT_S,
    UPDATES,
    digest_of,
    prove,
)
from prophet_scheduler.core.errors import UserError
from prophet_scheduler.hub import Connection, Hub, Owner, listener_at

logger = logging.getLogger("prophet_scheduler")

MOST_HEAD_BYTES = 8192
MOST_STRANGERS = 64
"""Connections without a proof; for one more the oldest goes."""
MOST_SERVED = 16
"""Most connections at once with a proof: workers of one job. One more is disconnected, and asks again."""
MOST_DIGITS = 18
"""Most digits of a number in a request: Python refuses one of thousands."""


class KeptModel:
    """The file. Any thread may use it."""

    def __init__(self, path: Path) -> None:
        """Raises UserError where there is a file that is no replica of a model."""
        self.path = path
        self.updates = updates_in(path) if path.exists() else None
        self.copies = 0
        for left in path.absolute().parent.glob(glob.escape(path.name) + ".*.part"):  # of a process that was killed
            left.unlink(missing_ok=True)
        self._lock = threading.Lock()

    def older(self, updates: int) -> str:
        """Why a model with so many updates is not taken; empty where it is."""
        if self.updates is None or updates >= self.updates:
            return ""
        return f"it has a model with {self.updates} updates, and this one has {updates}: it keeps the newer one"

    def take(self, part: Path, updates: int) -> str:
        """`part`, a file, takes the place of what was there. Returns why not, or nothing."""
        with self._lock:
            if why := self.older(updates):
                return why
            if updates_in(part) != updates:
                return f"this model has not {updates} updates, as was said"
            part.replace(self.path)
            self.updates = updates
            self.copies += 1
        return ""


class _Request:
    """Head of a request. Raises ValueError or HTTPException where it is no head of HTTP."""

    def __init__(self, head: bytes) -> None:
        line, _, rest = head.partition(b"\r\n")
        self.method, self.path, _ = line.decode("ascii").split(" ")
        self.headers = http.client.parse_headers(io.BytesIO(rest + b"\r\n\r\n"))
        length = self.header("Content-Length")
        self.length = int(length) if _is_number(length) else 0

    def header(self, name: str) -> str:
        return str(self.headers.get(name, ""))


class ReplicaServer:
    """Listens from the start; `serve_forever` answers until KeyboardInterrupt or `shutdown`, which any thread may call.

    Heads come in on one thread. Only for what has a proof there is another one, for as long as it takes.
    """

    def __init__(
        self, host: str, port: int, tenant: str, token: str, kept: KeptModel, stranger_s: float = TIMEOUT_S
    ) -> None:
        """`stranger_s` is how long a head may take to come. Raises UserError where nothing can listen there."""
        self.tenant, self.token, self.kept = tenant, token, kept
        try:
            self.socket = listener_at(host, port)
        except OSError as error:
            raise UserError(f"--listen {host}:{port}: {error.strerror}; choose an address of this machine") from None
        self._free = threading.Semaphore(MOST_SERVED)
        self._stopped = False
        self._hub = Hub(MOST_STRANGERS, stranger_s)
        self._hub.listen(self.socket, Owner(MOST_HEAD_BYTES, received=self._received))

    @property
    def address(self) -> str:
        """Address where it listens, with the port that it got."""
        host, port = self.socket.getsockname()[:2]
        return f"{host}:{port}"

    def serve_forever(self) -> None:
        """Answers until `shutdown`."""
        while not self._stopped:
            self._hub.turn(math.inf)

    def shutdown(self) -> None:
        """`serve_forever` returns soon."""
        self._stopped = True
        self._hub.wake()

    def close(self) -> None:
        """Closes its socket, once nobody serves."""
        self._hub.close()

    def proves(self, request: _Request) -> bool:
        """Return True if it comes from somebody with the token."""
        said = (request.header(UPDATES), str(request.length), request.header(DIGEST), request.header(NONCE))
        proof = prove(self.token, request.method, request.path, self.tenant, *said)
        return hmac.compare_digest(proof.encode(), request.header(PROOF).encode())

    def _received(self, connection: Connection) -> None:
        head, end, body = bytes(connection.received).partition(b"\r\n\r\n")
        if not end and len(head) < MOST_HEAD_BYTES:
            return
        try:
            request = _Request(head if end else b"")
        except (ValueError, http.client.HTTPException):
            connection.send(_head(HTTPStatus.BAD_REQUEST, 0))
            connection.end()
            return
        if not self.proves(request):
            of = request.header(TENANT)
            job = f"it is of the job {self.tenant}, and not of {of!r}"
            why = ("the token is wrong" if of == self.tenant else job).encode()
            connection.send(_head(HTTPStatus.FORBIDDEN, len(why)) + why)  # nothing that the token has made
            connection.end()
            return
        exchange = _Exchange(self, request, connection.release(), body)
        if self._free.acquire(blocking=False):
            threading.Thread(target=self._serve, args=(exchange,), name="prophet-replica", daemon=True).start()
        else:
            exchange.socket.close()

    def _serve(self, exchange: _Exchange) -> None:
        try:
            exchange.run()
        except OSError:
            pass  # whoever asked has gone, or asks again
        except Exception as error:
            logger.warning("the replica has not answered a request: %s: %s", type(error).__name__, error)
        finally:
            exchange.socket.close()
            self._free.release()


class _Exchange:
    """One proved request, and its answer, on a thread of its own."""

    def __init__(self, server: ReplicaServer, request: _Request, own: socket.socket, body: bytes) -> None:
        self._server = server
        self._request = request
        self.socket = own
        self._body = body[: request.length]
        self._left = request.length - len(self._body)

    def run(self) -> None:
        """Raises OSError where the connection breaks, or where nothing comes or goes for TIMEOUT_S."""
        self.socket.settimeout(TIMEOUT_S)
        kept, path, method = self._server.kept, self._request.path, self._request.method
        if method == "PUT":
            self._keep()
        elif method == "GET" and path == STATE:
            self._answer(HTTPStatus.OK, json.dumps({"updates": kept.updates}).encode())
        elif method == "GET" and path == MODEL and kept.updates is not None:
            self._answer_file(kept.path)
        else:
            self._answer(HTTPStatus.NOT_FOUND, b"it has no model yet")
        # Closed over bytes that nobody has read, a connection may lose the answer.
        self.socket.shutdown(socket.SHUT_WR)
        while self.socket.recv(PIECE_BYTES):
            pass

    def _keep(self) -> None:
        updates = self._request.header(UPDATES)
        if self._request.path != MODEL or not _is_number(updates):
            self._answer(HTTPStatus.NOT_FOUND, b"there is no such thing to keep")
            return
        kept = self._server.kept
        if why := kept.older(int(updates)):
            self._answer(HTTPStatus.CONFLICT, why.encode())
            return
        part = kept.path.with_name(f"{kept.path.name}.{threading.get_ident()}.part")
        try:
            why = self._received(part) or kept.take(part, int(updates))
        except UserError as error:
            why = str(error)
        except OSError as error:
            why = f"it could not write the model ({error.strerror})"
        finally:
            with contextlib.suppress(OSError):
                part.unlink()
        self._answer(HTTPStatus.CONFLICT if why else HTTPStatus.OK, why.encode())

    def _received(self, part: Path) -> str:
        """The body into a file. Returns what is wrong with it, or nothing."""
        digest = hashlib.blake2b(digest_size=32)
        with part.open("wb") as file:
            piece = self._body
            while True:
                digest.update(piece)
                file.write(piece)
                if not self._left:
                    break
                piece = self.socket.recv(min(self._left, PIECE_BYTES))
                if not piece:
                    return "the model ended before its end"
                self._left -= len(piece)
        return "" if digest.hexdigest() == self._request.header(DIGEST) else "the model has changed on its way"

    def _proved_head(self, status: HTTPStatus, length: int, digest: str) -> bytes:
        proof = prove(self._server.token, self._request.header(NONCE), str(int(status)), digest)
        return _head(status, length, {PROOF: proof, DIGEST: digest})

    def _answer(self, status: HTTPStatus, body: bytes) -> None:
        self.socket.sendall(self._proved_head(status, len(body), digest_of(body)) + body)

    def _answer_file(self, path: Path) -> None:
        with path.open("rb") as file:  # which stays this version, whatever takes its place
            digest = hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=32)).hexdigest()
            self.socket.sendall(self._proved_head(HTTPStatus.OK, file.tell(), digest))
            file.seek(0)
            while piece := file.read(PIECE_BYTES):
                self.socket.sendall(piece)


def _head(status: HTTPStatus, length: int, headers: Mapping[str, str] = MappingProxyType({})) -> bytes:
    lines = [f"HTTP/1.1 {int(status)} {status.phrase}", f"Content-Length: {length}", "Connection: close"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, "", ""]).encode()


def _is_number(text: str) -> bool:
    return text.isdecimal() and len(text) <= MOST_DIGITS
