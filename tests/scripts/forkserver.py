"""Runs scripts, each in a process of its own that has imported its framework already.

Rule of this file: a script must not notice. Importing torch takes longer than the training in these tests, so one
process imports it once and forks for each script; what is imported starts no thread. BytePS and Prophet are left to
the script: with BYTEPS_SCHEDULER in this process's environment Prophet waits for BytePS's import, as in any job.

    forkserver.py SOCKET MODULE...

A connection is a script: one line of JSON, {"script": path, "folder": path, "environ": {...}}, answered by its exit
status, or minus a signal. Shutting the connection down for writing ends the script, after it has written where its
threads are into `log` in its folder. With "memory": true it has a /dev/shm of its own, since BytePS names memory there
by key.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import gc
import importlib
import json
import os
import select
import signal
import socket
import sys
import types
from pathlib import Path
from typing import Any

LAST_WORDS_S = 2.0
CLONE_NEWNS = 0x00020000
MS_REC_PRIVATE = 0x4000 | 1 << 18


class Child:
    """A running script, from the side of the process that forked it."""

    def __init__(self, process: int, connection: socket.socket) -> None:
        self._process = process
        self.connection = connection
        self.ended = os.pidfd_open(process)  # readable when it has ended

    def abort(self) -> None:
        """Ends it; faulthandler writes all threads' stacks, for which it gets a moment."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._process, signal.SIGABRT)
        select.select([self.ended], [], [], LAST_WORDS_S)

    def collect(self) -> None:
        """Ends what it left behind and answers with its status."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process, signal.SIGKILL)
        status = os.waitstatus_to_exitcode(os.waitpid(self._process, 0)[1])
        os.close(self.ended)
        with self.connection, contextlib.suppress(BrokenPipeError):
            self.connection.sendall(b"%d\n" % status)


def serve(path: str) -> str:
    """Answers requests for ever; returns in the child of each of them, with the script's path."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen(16)
    children: list[Child] = []
    while True:
        waiting: list[socket.socket | int] = [
            listener,
            *(child.ended for child in children),
            *(child.connection for child in children),
        ]
        ready, _, _ = select.select(waiting, [], [])
        for child in list(children):
            if child.ended not in ready and child.connection in ready:
                child.abort()
            if child.ended in ready or child.connection in ready:
                children.remove(child)
                child.collect()
        if listener in ready:
            connection, _ = listener.accept()
            with connection.makefile("r") as lines:
                request = json.loads(lines.readline())
            process = os.fork()
            if process == 0:
                listener.close()
                connection.close()
                for child in children:
                    child.connection.close()
                    os.close(child.ended)
                _become(request)
                return str(request["script"])
            children.append(Child(process, connection))


def _become(request: dict[str, Any]) -> None:
    """The script's session, folder, log and environment, and its shared memory where asked for."""
    os.setsid()
    os.chdir(request["folder"])
    log = os.open("log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.environ.update(request["environ"])
    faulthandler.enable()
    if not request["memory"]:
        return
    libc = ctypes.CDLL(None, use_errno=True)
    private = libc.unshare(CLONE_NEWNS) or libc.mount(b"none", b"/", None, MS_REC_PRIVATE, None)
    if private or libc.mount(b"tmpfs", b"/dev/shm", b"tmpfs", 0, None):
        raise OSError(ctypes.get_errno(), "no /dev/shm for this script")


def run(script: str) -> None:
    """Runs it as `python script` would."""
    sys.argv = [script]
    sys.path[0:0] = [str(Path(script).parent)]
    module = types.ModuleType("__main__")
    module.__file__ = script
    sys.modules["__main__"] = module
    exec(compile(Path(script).read_text(), script, "exec"), vars(module))


if __name__ == "__main__":
    for name in sys.argv[2:]:
        importlib.import_module(name)
    gc.freeze()  # Or each child's first collection writes to, and so copies, every page that holds an object.
    run(serve(sys.argv[1]))
