"""Lines of each room and their limits, which are in pyproject.toml: `make lint` fails if a room has more.

Rule of this file: counting lines of tracked code. A change that needs more lines raises the limit, which shows it.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import tomllib
from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).parents[1]
CODE = ("*.py", "*.pyi", "*.h", "*.cc", "*.j2", "*.js", "*.css", "*.html", "*.toml")
"""Files that count."""


def lines_by_room(rooms: Mapping[str, int]) -> dict[str, int]:
    """Return the lines of tracked code in each room, a path prefix. A file counts in its longest room."""
    listed = subprocess.run(["git", "ls-files", *CODE], cwd=ROOT, capture_output=True, text=True, check=True)
    found = dict.fromkeys(rooms, 0)
    for name in listed.stdout.splitlines():
        room = max((room for room in rooms if name.startswith(room)), key=len)
        with contextlib.suppress(FileNotFoundError):  # removed and not yet committed
            found[room] += len((ROOT / name).read_bytes().splitlines())
    return found


def main() -> int:
    """Print the table. Return 1 if a room has more lines than its limit."""
    rooms: dict[str, int] = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["prophet"]["lines"]
    found = lines_by_room(rooms)
    table = Table("room", "lines", "at most")
    for room, most in rooms.items():
        over = found[room] > most
        table.add_row(room or "the rest", str(found[room]), str(most), style="red" if over else "")
    beside = sum(count for room, count in found.items() if room != "tests/")
    Console().print(table, f"{beside} beside tests, {found['tests/']} of tests")
    return int(any(found[room] > most for room, most in rooms.items()))


if __name__ == "__main__":
    sys.exit(main())
