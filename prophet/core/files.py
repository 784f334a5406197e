"""Files that are written whole or not at all, and whether a place can be written to at all.

What belongs here: how a text reaches its place, and the question whether anything can, for those who are to know before
the work and not after it. What is written is its caller's.
"""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Mapping
from pathlib import Path

from prophet.core.errors import UserError


def write_whole(text: str, path: Path) -> None:
    """Writes `text` in UTF-8. Until all of it is there, `path` is what it was. Raises OSError; nothing is left then.

    Several processes may write one file at once, on several machines of one file system even: the last has it.
    """
    part = path.with_name(f"{path.name}.{secrets.token_hex(4)}.part")
    try:
        part.write_text(text, encoding="utf-8")
        part.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            part.unlink()
        raise


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
    """The file, whose folder is there now. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    return path
