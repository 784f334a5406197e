"""Files that are written whole or not at all.

What belongs here: how a text reaches its place; what is written is its caller's.
"""

from __future__ import annotations

from pathlib import Path


def write_whole(text: str, path: Path) -> None:
    """Writes `text` in UTF-8. Until all of it is there, `path` is what it was. Raises OSError."""
    part = path.with_name(path.name + ".part")
    part.write_text(text, encoding="utf-8")
    part.replace(path)
