"""Atomic writes, reads that are safe for any content, and early checks that a path is writable.

Rule of this file: how content is written and read, and checks to make before long work rather than after it. What the
content means is up to the caller.
"""

from __future__ import annotations

import contextlib
import errno
import json
import math
import os
import secrets
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

from prophet_scheduler.core.errors import UserError

ANYBODY, OWNER = 0o666, 0o600
"""Modes for new files, before the user's umask."""
MOST_READ_BYTES = 1 << 30
"""Maximum size of a file that Prophet reads, packed or unpacked."""


@contextlib.contextmanager
def whole_file(path: Path, mode: int = ANYBODY) -> Iterator[BinaryIO]:
    """Open a file for writing. `path` changes only when the file is closed. Raises OSError naming `path`, and then
    leaves nothing behind. A device or a pipe is written to directly.

    Several processes may write the same path at once, even from several machines. The last to close wins.
    """
    part = path.with_name(f"{path.name}.{secrets.token_hex(4)}.part")
    try:
        if path.exists() and not path.is_file():
            with path.open("wb") as file:
                yield file
            return
        try:
            with open(part, "xb", opener=lambda name, flags: os.open(name, flags, mode)) as file:
                yield file
            part.replace(path)
        except BaseException:
            with contextlib.suppress(OSError):
                part.unlink()
            raise
    except OSError as error:  # the error of a full disk has no file name
        error.filename, error.filename2 = str(path), None
        raise


def write_whole(text: str, path: Path) -> None:
    """Write `text` in UTF-8, whole or not at all. Raises OSError naming `path`."""
    with whole_file(path) as file:
        file.write(text.encode())


def read_bytes(path: Path) -> bytes:
    """Return the content of a regular file. Raises OSError for any other too: a pipe or a device may never end."""
    with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "Not a regular file", str(path))
        if status.st_size > MOST_READ_BYTES:
            raise OSError(errno.EFBIG, os.strerror(errno.EFBIG), str(path))
        return file.read()


def read_text(path: Path) -> str:
    """Return the UTF-8 text of a regular file. Raises OSError and UnicodeDecodeError."""
    return read_bytes(path).decode()


def parse_json(text: str) -> Any:
    """Return the value of a JSON text. An integer beyond 64 bits becomes a float. Raises ValueError with one line, also
    for unusable JSON: too deep nesting, lone surrogates and numbers that are not finite.
    """
    try:
        value = json.loads(text, parse_constant=_finite, parse_float=_finite, parse_int=_whole)
        if "\\u" in text:
            json.dumps(value, ensure_ascii=False).encode()
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    return value


def _finite(text: str) -> float:
    if not math.isfinite(float(text)):
        raise ValueError(f"{text[:20]} is not a finite number")
    return float(text)


def _whole(digits: str) -> int | float:
    whole = int(digits)
    return whole if -(1 << 63) <= whole < 1 << 64 else _finite(digits)


def require_folder(path: Path, name: str) -> None:
    """Raise UserError if `path` is not a writable folder and could not be created as one. This creates nothing.

    `name` is the option or variable that gave the path.
    """
    nearest = next(place for place in (path.absolute(), *path.absolute().parents) if os.path.lexists(place))
    if not nearest.is_dir():
        raise UserError(f"{name}: {nearest} is not a folder; name another")
    if not os.access(nearest, os.W_OK | os.X_OK):
        raise UserError(f"{name}: you may not write into {nearest}; name another folder")


def require_places(files: Mapping[str, Path]) -> None:
    """Raise UserError if one of the files, by option or variable, cannot be written. `placed` creates their folders."""
    for name, path in files.items():
        if path.is_dir():
            raise UserError(f"{name}: {path} is a folder; name a file in it")
        if not os.access(path, os.W_OK):  # else it is, say, a writable device in a folder of root's
            require_folder(path.parent, name)


def placed(path: Path) -> Path:
    """Return `path` after creating its folder. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    return path
