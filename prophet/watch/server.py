"""Answers whoever asks a worker what it does: over its status socket, and at the address for Prometheus.

Rule of this file: the thread that sleeps until somebody asks, and its sockets; what is said comes from a function. One
document a connection: who connects to the status socket is sent it, and the connection is closed. A question is of this
machine's own user, so it is answered in turn, each for a short while at most. Nothing here is imported late: the
program may fork at any moment, and a child of it has none of this.
"""

from __future__ import annotations

import contextlib
import logging
import os
import selectors
import socket
import sys
import threading
import weakref
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from socketserver import TCPServer

from prophet.watch.metrics import CONTENT_TYPE
from prophet.watch.sockets import listen

ANSWER_LIMIT_S = 0.5
"""How long one who asks may take to read the answer."""

logger = logging.getLogger("prophet")
_servers: weakref.WeakSet[StatusServer] = weakref.WeakSet()


class StatusServer:
    """The thread and its sockets. `document` makes what the status socket says, `page` what Prometheus is to see; they
    are called in this thread.
    """

    def __init__(self, document: Callable[[], bytes], page: Callable[[], bytes]) -> None:
        self._document = document
        self._page = page
        self._selector = selectors.DefaultSelector()
        self._asked: dict[int, Callable[[], None]] = {}
        self._sockets: list[socket.socket] = []
        self._path: Path | None = None
        self._wake, self._woken = socket.socketpair()
        self._stopped = False
        self._pid = os.getpid()
        self._thread: threading.Thread | None = None

    def at_path(self, path: Path) -> None:
        """Also over a socket at this path. Raises OSError."""
        listener = listen(path)
        self._path = path
        self._listen(listener, lambda: self._say(listener))

    def at_address(self, host: str, port: int) -> int:
        """Also the page at this address; returns the port. Raises OSError."""
        server = _PageServer(host, port, self._page)
        self._listen(server.socket, server.handle_request)
        return int(server.server_address[1])

    def start(self) -> None:
        """From now on it answers."""
        self._selector.register(self._woken, selectors.EVENT_READ)
        _servers.add(self)
        self._thread = threading.Thread(target=self._run, name="prophet-status", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Answers no more, and leaves no socket. In a process that was forked it leaves the parent's."""
        if os.getpid() != self._pid:
            return
        self._stopped = True
        with contextlib.suppress(OSError):
            self._wake.send(b"\0")
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(2 * ANSWER_LIMIT_S)
        if self._path is not None:
            with contextlib.suppress(OSError):
                self._path.unlink()
        self.let_go()

    def let_go(self) -> None:
        """Closes this process's ends of all sockets."""
        for each in (*self._sockets, self._wake, self._woken):
            with contextlib.suppress(OSError):
                each.close()

    def _listen(self, listener: socket.socket, answer: Callable[[], None]) -> None:
        self._sockets.append(listener)
        self._asked[listener.fileno()] = answer
        self._selector.register(listener, selectors.EVENT_READ)

    def _run(self) -> None:
        while not self._stopped:
            for key, _ in self._selector.select():
                answer = self._asked.get(key.fd)
                if answer is None or self._stopped:
                    continue
                try:
                    answer()
                except Exception as error:
                    if not self._stopped:
                        logger.warning("Prophet no longer says what it does: %s: %s", type(error).__name__, error)
                    self.close()
                    return

    def _say(self, listener: socket.socket) -> None:
        try:
            connection, _ = listener.accept()
        except OSError:  # gone again
            return
        with connection:
            connection.settimeout(ANSWER_LIMIT_S)
            document = self._document()
            with contextlib.suppress(OSError):
                connection.sendall(document)


class _Handler(BaseHTTPRequestHandler):
    timeout = ANSWER_LIMIT_S

    def do_GET(self) -> None:
        """The page, at /metrics or at the address alone."""
        assert isinstance(self.server, _PageServer)
        if self.path.partition("?")[0] not in ("/", "/metrics"):
            self.send_error(HTTPStatus.NOT_FOUND)
            return
        page = self.server.page()
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", CONTENT_TYPE)
        self.send_header("Content-Length", str(len(page)))
        self.end_headers()
        self.wfile.write(page)

    def log_message(self, format: str, *arguments: object) -> None:
        """Nothing: standard error is the program's."""


class _PageServer(TCPServer):
    """Not http.server's own, which asks for the host's name when it starts, and may wait for the answer."""

    allow_reuse_address = True
    timeout = ANSWER_LIMIT_S

    def __init__(self, host: str, port: int, page: Callable[[], bytes]) -> None:
        self.page = page
        self._failed = False
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        super().__init__((host, port), _Handler)

    def handle_error(self, request: object, client_address: object) -> None:
        """Who asked is gone, or too slow: that is theirs."""
        error = sys.exc_info()[1]
        if not isinstance(error, OSError) and not self._failed:
            self._failed = True
            logger.warning("Prophet has no figures for Prometheus: %s: %s", type(error).__name__, error)


def _in_the_child() -> None:
    """A child has no thread that answers; with its ends open, who connects after the parent's end would wait."""
    for server in list(_servers):
        server.let_go()


os.register_at_fork(after_in_child=_in_the_child)
