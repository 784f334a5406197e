"""Paths of the workers' status sockets, and requests to them.

Rule of this file: the folder, its permissions, the names in it, and one request over one socket. status.py defines the
answer, server.py sends it. The folder is the user's own, mode 0700: `prophet` in XDG_RUNTIME_DIR (XDG Base Directory
Specification), else `prophet-UID` in the folder for temporary files. A folder that others own or can access is
rejected.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import socket
import stat
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from prophet_scheduler.watch.status import WorkerName

SUFFIX = ".status"
MOST_PATH_BYTES = 100
"""Maximum length of a socket's path; Linux allows 107."""
MOST_JOB_LETTERS = 40
LONGEST_NAME = f"{'j' * MOST_JOB_LETTERS}.99999.9999999.part"
MOST_DOCUMENT_BYTES = 1 << 24
ASK_LIMIT_S = 1.0
"""Maximum time for a worker's answer."""


def folders(environ: Mapping[str, str] = os.environ, uid: int | None = None) -> list[Path]:
    """Return possible folders for sockets in order of preference. They need not exist."""
    own = f"prophet-{os.getuid() if uid is None else uid}"
    candidates = []
    runtime = environ.get("XDG_RUNTIME_DIR", "")
    if runtime.startswith("/") and Path(runtime).is_dir():
        candidates.append(Path(runtime) / "prophet")
    # If the path of the folder for temporary files is long, it leaves no room for the names of sockets.
    candidates += [Path(tempfile.gettempdir()) / own, Path("/tmp") / own]
    fits = [path for path in dict.fromkeys(candidates) if len(bytes(path / LONGEST_NAME)) <= MOST_PATH_BYTES]
    return fits or [Path("/tmp") / own]


def own_folder(candidates: Sequence[Path] | None = None) -> Path:
    """Create and return the first usable folder. Raises OSError if there is none."""
    failed: OSError | None = None
    for path in folders() if candidates is None else candidates:
        try:
            path.mkdir(mode=0o700, exist_ok=True)
            check_own(path)
            return path
        except OSError as error:
            failed = failed or error
    assert failed is not None
    raise failed


def check_own(path: Path) -> None:
    """Raise OSError unless `path` is a folder that only this user can access."""
    status = path.lstat()
    if not stat.S_ISDIR(status.st_mode):
        raise NotADirectoryError(f"{path} is not a folder")
    if status.st_uid != os.getuid() or status.st_mode & 0o077:
        raise PermissionError(f"{path} must belong to you, and nobody else may use it: chmod 700 {path}")


def name_of_socket(worker: WorkerName) -> str:
    """Return the file name of a worker's socket, different for each process."""
    job = re.sub(r"[^\w-]", "-", worker.job, flags=re.ASCII)[:MOST_JOB_LETTERS]
    return f"{job}.{worker.rank}.{worker.pid}{SUFFIX}"


def listen(path: Path) -> socket.socket:
    """Return a socket at `path`. The path appears only when clients can connect. Raises OSError."""
    part = path.with_suffix(".part")
    part.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listener.bind(str(part))
        part.chmod(0o600)
        listener.listen(16)
        part.replace(path)
    except OSError:
        listener.close()
        part.unlink(missing_ok=True)
        raise
    listener.setblocking(False)
    return listener


def ask(path: Path, limit_s: float = ASK_LIMIT_S) -> dict[str, Any] | None:
    """Return the worker's document; None without an answer in time. Remove the socket if no process has it open."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        until_s = time.monotonic() + limit_s
        connection.settimeout(limit_s)
        try:
            connection.connect(str(path))
            pieces = []
            size = 0
            while (piece := connection.recv(1 << 16)) and size <= MOST_DOCUMENT_BYTES:
                pieces.append(piece)
                size += len(piece)
                if (left_s := until_s - time.monotonic()) <= 0:
                    return None
                connection.settimeout(left_s)
            document = json.loads(b"".join(pieces))
        except ConnectionRefusedError:
            with contextlib.suppress(OSError):
                path.unlink()
            return None
        except (OSError, ValueError, RecursionError):
            return None
    return document if isinstance(document, dict) else None


def sockets_in(folder: Path) -> list[Path]:
    """Return all sockets in a folder, by name; none if the folder is missing or not the user's own."""
    try:
        check_own(folder)
        return sorted(path for path in folder.iterdir() if path.suffix == SUFFIX)
    except OSError:
        return []


def remove_stale(folder: Path) -> None:
    """Remove the sockets of killed processes."""
    for path in sockets_in(folder):
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.setblocking(False)
            try:
                connection.connect(str(path))
            except ConnectionRefusedError:
                path.unlink(missing_ok=True)
