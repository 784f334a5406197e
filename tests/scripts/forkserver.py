"""Runs scripts, each in a process of its own that has imported its framework already.

Rule of this file: a script must not notice. Importing torch takes longer than the training in these tests, so one
process imports it once and forks for each script; what is imported starts no thread. BytePS and Prophet are left to
the script: with BYTEPS_SCHEDULER in its environment Prophet waits for BytePS's import, as in any job. One with
PROPHET_SCHEDULER needs a server that has it too, since Prophet then comes before torch.

    forkserver.py SOCKET MODULE...

A connection is a script: one line of JSON, {"command": [script, argument, ...], "folder": path, "environ": {...}},
answered by two lines: the process's number, and in the end its exit status, or minus a signal. Shutting the connection
down for writing ends the script, after it has written where its threads are into its log, which is "log", or `log` in
its folder. With "namespace" it is in that network namespace (a path), and with "memory" it has a /dev/shm of its own,
since BytePS names memory there by key. With "late_ns" its sleeps may end so many nanoseconds later. The server ends
with its standard input, where that is a pipe, and ends what it has forked.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import faulthandler
import gc
import importlib
import json
import os
import runpy
import select
import signal
import site
import socket
import stat
import sys
import sysconfig
import threading
import types
from pathlib import Path
from typing import Any

LAST_WORDS_S = 2.0
CLONE_NEWNS = 0x00020000
CLONE_NEWNET = 0x40000000
MS_REC_PRIVATE = 0x4000 | 1 << 18
SWITCHES = {"BYTEPS_SCHEDULER", "PROPHET_SCHEDULER"}


class Child:
    """A running script, from the side of the process that forked it."""

    def __init__(self, process: int, connection: socket.socket) -> None:
        self._process = process
        self.connection = connection
        self.ended = os.pidfd_open(process)  # readable when it has ended
        self._answer(process)

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
        with self.connection:
            self._answer(status)

    def _answer(self, number: int) -> None:
        with contextlib.suppress(BrokenPipeError):
            self.connection.sendall(b"%d\n" % number)


def serve(path: str) -> list[str]:
    """Answers requests until it has to end; returns in the child of each of them, with the script and its arguments."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen(16)
    held = [0] if stat.S_ISFIFO(os.fstat(0).st_mode) else []
    children: list[Child] = []
    while True:
        waiting: list[socket.socket | int] = [
            listener,
            *held,
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
        if 0 in ready:
            for child in children:
                child.abort()
                child.collect()
            os._exit(0)  # what was imported may have something to do at an end
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
                command: list[str] = request["command"]
                return command
            children.append(Child(process, connection))


def _become(request: dict[str, Any]) -> None:
    """The script's session, folder, log, environment and namespaces, and Prophet's line in site-packages once more."""
    os.setsid()
    os.chdir(request["folder"])
    log = os.open(request.get("log", "log"), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for file, place in ((nothing, 0), (log, 1), (log, 2)):
        os.dup2(file, place)
    if "late_ns" in request:
        Path("/proc/self/timerslack_ns").write_text(str(request["late_ns"]))
    os.environ.clear()
    os.environ.update(request["environ"])
    faulthandler.enable()
    libc = ctypes.CDLL(None, use_errno=True)
    if "namespace" in request:
        namespace = os.open(request["namespace"], os.O_RDONLY)
        if libc.setns(namespace, CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), "no network for this script")
        os.close(namespace)
    if request.get("memory"):
        private = libc.unshare(CLONE_NEWNS) or libc.mount(b"none", b"/", None, MS_REC_PRIVATE, None)
        if private or libc.mount(b"tmpfs", b"/dev/shm", b"tmpfs", 0, None):
            raise OSError(ctypes.get_errno(), "no /dev/shm for this script")
    if not SWITCHES & request["environ"].keys():
        # What others are compared with may leave torch as it is, whose libraries take longer to undo than most scripts
        # run. What is loaded from here on is undone before.
        libc.on_exit(libc._exit, None)
        libc.on_exit(libc.fcloseall, None)
    site.addpackage(sysconfig.get_path("purelib"), "prophet-autoload.pth", set())


def run(command: list[str]) -> None:
    """Runs it as `python` would: a script and its arguments, or -m and a module and its arguments."""
    script, *_ = command
    if script == "-m":
        sys.argv = command[1:]
        runpy.run_module(command[1], run_name="__main__", alter_sys=True)
        return
    sys.argv = command
    sys.path[0:0] = [str(Path(script).parent)]
    module = types.ModuleType("__main__")
    module.__file__ = script
    sys.modules["__main__"] = module
    exec(compile(Path(script).read_text(), script, "exec", dont_inherit=True), vars(module))


def leave() -> None:
    """End as Python does, without undoing what is loaded: a thread of torch's that wants the GIL meanwhile aborts."""
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


if __name__ == "__main__":
    for name in sys.argv[2:]:
        importlib.import_module(name)
    gc.freeze()  # Or each child's first collection writes to, and so copies, every page that holds an object.
    run(serve(sys.argv[1]))
    if not SWITCHES & os.environ.keys() and "byteps" not in sys.modules:
        leave()
