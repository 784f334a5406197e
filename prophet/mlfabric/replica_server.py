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
import json
import logging
import shutil
import sys
import threading
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from socketserver import TCPServer, ThreadingMixIn

from prophet.core.errors import UserError
from prophet.mlfabric.replica_model import updates_in
from prophet.mlfabric.replica_store import (
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

logger = logging.getLogger("prophet")

MOST_DIGITS = 18
"""Of a number in a request: Python takes no number of thousands."""


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


class ReplicaServer(ThreadingMixIn, TCPServer):
    """Listens from the start; `serve_forever` answers until KeyboardInterrupt or `shutdown`."""

    allow_reuse_address = True
    daemon_threads = True

    def __init__(self, host: str, port: int, tenant: str, token: str, kept: KeptModel) -> None:
        """Raises UserError where nothing can listen there."""
        self.tenant, self.token, self.kept = tenant, token, kept
        try:
            super().__init__((host, port), _Handler)
        except OSError as error:
            raise UserError(f"--listen {host}:{port}: {error.strerror}; choose an address of this machine") from None

    @property
    def address(self) -> str:
        """Where it listens, with the port that it got."""
        host, port = self.socket.getsockname()[:2]
        return f"{host}:{port}"

    def handle_error(self, request: object, client_address: object) -> None:
        """Nothing where a connection broke: whoever asked has gone, or asks again."""
        error = sys.exc_info()[1]
        if not isinstance(error, OSError):
            logger.warning("the replica has not answered a request: %s: %s", type(error).__name__, error)


class _Handler(BaseHTTPRequestHandler):
    timeout = TIMEOUT_S
    server: ReplicaServer
    left = 0
    """Bytes of the body that are still to come."""

    def do_GET(self) -> None:
        """What is there, or the model itself."""
        if not self._proved():
            return
        kept = self.server.kept
        if self.path == STATE:
            self._answer(HTTPStatus.OK, json.dumps({"updates": kept.updates}).encode())
        elif self.path != MODEL or kept.updates is None:
            self._answer(HTTPStatus.NOT_FOUND, b"it has no model yet")
        else:
            self._answer_file(kept.path)

    def do_PUT(self) -> None:
        """A copy to keep."""
        self.left = self._length()
        if not self._proved():
            return
        updates = self.headers.get(UPDATES, "")
        if self.path != MODEL or not _is_number(updates):
            self._answer(HTTPStatus.NOT_FOUND, b"there is no such thing to keep")
            return
        if why := self.server.kept.older(int(updates)):
            self._answer(HTTPStatus.CONFLICT, why.encode())
            return
        part = self.server.kept.path.with_name(f"{self.server.kept.path.name}.{threading.get_ident()}.part")
        try:
            why = self._received(part) or self.server.kept.take(part, int(updates))
        except UserError as error:
            why = str(error)
        except OSError as error:
            why = f"it could not write the model ({error.strerror})"
        finally:
            with contextlib.suppress(OSError):
                part.unlink()
        self._answer(HTTPStatus.CONFLICT if why else HTTPStatus.OK, why.encode())

    def log_message(self, format: str, *arguments: object) -> None:
        """Nothing: a copy is no event."""

    def _length(self) -> int:
        text = self.headers.get("Content-Length", "0")
        return int(text) if _is_number(text) else 0

    def _proved(self) -> bool:
        server, headers = self.server, self.headers
        said = (headers.get(UPDATES, ""), str(self._length()), headers.get(DIGEST, ""), headers.get(NONCE, ""))
        proof = prove(server.token, self.command or "", self.path, server.tenant, *said)
        if hmac.compare_digest(proof.encode(), headers.get(PROOF, "").encode()):
            return True
        of = headers.get(TENANT, "")
        why = "the token is wrong" if of == server.tenant else f"it is of the job {server.tenant}, and not of {of!r}"
        self._answer(HTTPStatus.FORBIDDEN, why.encode())
        return False

    def _received(self, part: Path) -> str:
        """The body into a file. Returns what is wrong with it, or nothing."""
        digest = hashlib.blake2b(digest_size=32)
        with part.open("wb") as file:
            while self.left:
                piece = self.rfile.read(min(self.left, PIECE_BYTES))
                if not piece:
                    return "the model ended before its end"
                digest.update(piece)
                file.write(piece)
                self.left -= len(piece)
        return "" if digest.hexdigest() == self.headers.get(DIGEST) else "the model has changed on its way"

    def _head(self, status: HTTPStatus, length: int, digest: str) -> None:
        self.send_response_only(status)
        self.send_header("Content-Length", str(length))
        self.send_header("Connection", "close")
        proof = prove(self.server.token, self.headers.get(NONCE, ""), str(int(status)), digest)
        if status != HTTPStatus.FORBIDDEN:  # a stranger gets nothing that the token has made
            self.send_header(PROOF, proof)
        self.end_headers()

    def _answer(self, status: HTTPStatus, body: bytes) -> None:
        self._head(status, len(body), digest_of(body))
        self.wfile.write(body)
        if self.left:
            # Closed over bytes that nobody has read, a connection may lose the answer: small bodies are.
            self.rfile.read(min(self.left, PIECE_BYTES))

    def _answer_file(self, path: Path) -> None:
        with path.open("rb") as file:  # which stays this version, whatever takes its place
            digest = hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=32)).hexdigest()
            self._head(HTTPStatus.OK, file.tell(), digest)
            file.seek(0)
            shutil.copyfileobj(file, self.wfile, PIECE_BYTES)


def _is_number(text: str) -> bool:
    return text.isdecimal() and len(text) <= MOST_DIGITS
