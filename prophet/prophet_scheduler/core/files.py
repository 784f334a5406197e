"""Files that are written whole or not at all, and read whatever is in them, and whether a place can be written to.

Rule of this file: how content reaches its place and comes from it, and the question whether anything can be written
there, for those who are to know before the work and not after it. What it means is its caller's.
"""

from __future__ import annotations

import contextlib
import errno
import json
import math
import os
import secrets
import stat
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

from prophet_scheduler.core.errors import UserError

ANYBODY, OWNER = 0o666, 0o600
"""Modes of a file that is written here, as far as the user's umask allows."""
MOST_READ_BYTES = 1 << 30
"""Maximum bytes of a file that Prophet writes, packed or not."""


@contextlib.contextmanager
def whole_file(path: Path, mode: int = ANYBODY) -> Iterator[BinaryIO]:
    """Open a file to write into. `path` changes only when it is closed. Raises OSError naming `path`; nothing is left
    then. A device or a pipe is written to as it is.

    Several processes may write one file at once, on several machines of one file system even: the last has it.
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
    except OSError as error:  # that of a full disk has no name
        error.filename, error.filename2 = str(path), None
        raise


def write_whole(text: str, path: Path) -> None:
    """Write `text` in UTF-8, as `whole_file` does."""
    with whole_file(path) as file:
        file.write(text.encode())


def read_bytes(path: Path) -> bytes:
    """Return all of a regular file. Raises OSError, also for any other: a pipe or a device may have no end."""
    with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "Not a regular file", str(path))
        if status.st_size > MOST_READ_BYTES:
            raise OSError(errno.EFBIG, os.strerror(errno.EFBIG), str(path))
        return file.read()


def read_text(path: Path) -> str:
    """Return the text of a regular file in UTF-8. Raises OSError and UnicodeDecodeError."""
    return read_bytes(path).decode()


def parse_json(text: str, finite: bool = True) -> Any:
    """Return the value of a JSON text; an integer beyond 64 bits is a float. Raises ValueError with one line, also for
    useless JSON: nesting without end, halves of characters and, if all must be `finite`, a number that is not.
    """
    number = _finite if finite else float
    try:
        value = json.loads(
            text, parse_constant=number, parse_float=number, parse_int=lambda digits: _whole(digits, number)
        )
        if "\\u" in text:
            json.dumps(value, ensure_ascii=False).encode()
    except RecursionError:
        raise ValueError("lists in lists without an end") from None
    return value


def _finite(text: str) -> float:
    if not math.isfinite(float(text)):
        raise ValueError(f"{text[:20]} is no number that there can be")
    return float(text)


def _whole(digits: str, number: Callable[[str], float]) -> int | float:
    whole = int(digits)
    return whole if -(1 << 63) <= whole < 1 << 64 else number(digits)


def require_folder(path: Path, name: str) -> None:
    """Raises UserError where `path` is no folder to write into and none can be made there. Nothing is made yet.

    `name` is the option or variable that says the path.
    """
    nearest = next(place for place in (path.absolute(), *path.absolute().parents) if os.path.lexists(place))
    if not nearest.is_dir():
        raise UserError(f"{name}: {nearest} is no folder; name another")
    if not os.access(nearest, os.W_OK | os.X_OK):
        raise UserError(f"{name}: you may not write into {nearest}; name another folder")


def require_places(files: Mapping[str, Path]) -> None:
    """Raises UserError where one of the files cannot be written, each by its option or variable. Nothing is made yet;
    `placed` does that.
    """
    for name, path in files.items():
        if path.is_dir():
            raise UserError(f"{name}: {path} is a folder; name a file in it")
        if not os.access(path, os.W_OK):  # a device, say, in a folder that is root's
            require_folder(path.parent, name)


def placed(path: Path) -> Path:
    """Return the file, after making its folder. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    return path
