"""Server of a worker's status, over its status socket and at the address for Prometheus.

Rule of this file: the thread that sleeps until a request arrives, and its subset of HTTP. Callbacks make the answers,
and the hub (hub.py) keeps slow clients from delaying others. The status socket sends each client one document and
closes the connection. All imports are at the top: the program may fork at any moment, and a child has no such thread.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import re
import threading
from collections.abc import Callable
from http import HTTPStatus
from pathlib import Path

from prophet_scheduler.forks import LivingSet
from prophet_scheduler.hub import Connection, Hub, Owner, listener_at
from prophet_scheduler.watch.metrics import CONTENT_TYPE
from prophet_scheduler.watch.sockets import listen

ANSWER_LIMIT_S = 5.0
"""Maximum time for a client to send its request and read the answer."""
MOST_ASKING = 32
"""Maximum number of clients at once."""
MOST_REQUEST_BYTES = 8192
CLOSE_S = 1.0
"""Maximum time to finish an answer when the server closes."""
_ENDS = (b"\n\r\n", b"\n\n")
_REQUEST = re.compile(rb"(?P<method>[A-Z]+) (?P<path>[^ ?\r\n]+)")

logger = logging.getLogger("prophet_scheduler")
_servers: LivingSet[StatusServer] = LivingSet()


class StatusServer:
    """Thread with its sockets. It calls `document` to answer the status socket, and `page` to answer Prometheus."""

    def __init__(self, document: Callable[[], bytes], page: Callable[[], bytes]) -> None:
        self._document = document
        self._page = page
        self._page_failed = False
        self._hub = Hub(MOST_ASKING, ANSWER_LIMIT_S)
        self._path: Path | None = None
        self._stopped = False
        self._pid = os.getpid()
        self._thread: threading.Thread | None = None

    def at_path(self, path: Path) -> None:
        """Answer on a socket at this path too. Raises OSError."""
        self._hub.listen(listen(path), Owner(MOST_REQUEST_BYTES, made=self._say))
        self._path = path

    def at_address(self, host: str, port: int) -> int:
        """Serve the page at this address too, and return the port. Raises OSError."""
        listener = listener_at(host, port)
        self._hub.listen(listener, Owner(MOST_REQUEST_BYTES, received=self._show))
        return int(listener.getsockname()[1])

    def start(self) -> None:
        """Start answering."""
        _servers.add(self)
        self._thread = threading.Thread(target=self._run, name="prophet-status", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop, and remove the socket. Do nothing in a forked child: the socket is its parent's."""
        if os.getpid() != self._pid:
            return
        self._stopped = True
        self._hub.wake()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(CLOSE_S)
        if self._path is not None:
            with contextlib.suppress(OSError):
                self._path.unlink()
        self.let_go()

    def let_go(self) -> None:
        """Close this process's ends of all sockets."""
        self._hub.close()

    def _run(self) -> None:
        try:
            while not self._stopped:
                self._hub.turn(math.inf)
        except Exception as error:
            if not self._stopped:
                logger.warning("Prophet no longer reports its status: %s: %s", type(error).__name__, error)
            self.close()

    def _say(self, connection: Connection) -> None:
        connection.send(self._document())
        connection.end()

    def _show(self, connection: Connection) -> None:
        """Answer a request for the page, at /metrics or /."""
        whole = any(end in connection.received for end in _ENDS)
        if not whole and len(connection.received) < MOST_REQUEST_BYTES:
            return
        request = _REQUEST.match(connection.received) if whole else None
        status, body = HTTPStatus.OK, b""
        if request is None:
            status = HTTPStatus.BAD_REQUEST
        elif request["method"] != b"GET":
            status = HTTPStatus.METHOD_NOT_ALLOWED
        elif request["path"] not in (b"/", b"/metrics"):
            status = HTTPStatus.NOT_FOUND
        else:
            try:
                body = self._page()
            except Exception as error:
                status = HTTPStatus.INTERNAL_SERVER_ERROR
                if not self._page_failed:
                    self._page_failed = True
                    logger.warning("Prophet has no metrics for Prometheus: %s: %s", type(error).__name__, error)
        head = f"HTTP/1.0 {status.value} {status.phrase}\r\nContent-Type: {CONTENT_TYPE}\r\n"
        connection.send(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        connection.end()


def _in_the_child() -> None:
    """Close the sockets in a forked child. It has no thread to answer, and clients would wait on its copies."""
    for server in _servers:
        server.let_go()


os.register_at_fork(after_in_child=_in_the_child)
