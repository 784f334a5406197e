"""Time, place and commit of a measurement: the line that every page of results has.

Rule of this file: asking the machine and git, and that one line. A page never says it another way.
"""

from __future__ import annotations

import datetime
import os
import platform
import subprocess
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Provenance:
    """`date` is a day (ISO), `commit` short, with `+` if tracked files had changes."""

    date: str
    commit: str
    processor: str
    cores: int

    @property
    def machine(self) -> str:
        """Return the machine as far as others' results can be compared with it."""
        return f"{self.processor}, {self.cores} core{'' if self.cores == 1 else 's'}"

    def line(self, done: str = "Measured") -> str:
        """Return the line of a page; `done` is what was done."""
        return f"{done} on {self.date} at commit {self.commit} on {self.machine}."


def here() -> Provenance:
    """Return the provenance of what this process measures now."""
    return Provenance(datetime.date.today().isoformat(), commit(), processor(), os.cpu_count() or 1)


def commit() -> str:
    """Return the commit of the checkout, or `unknown`. Files that measurements write are no change."""
    folder = Path(__file__).parent
    try:
        name = _git(folder, "rev-parse", "--short", "HEAD")
        changes = _git(folder, "status", "--porcelain", "--untracked-files=no", ":/", ":!/docs/results")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return name + ("+" if changes else "")


def processor() -> str:
    """Return the machine's name of its processor, from Linux, or the architecture."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def _git(folder: Path, *arguments: str) -> str:
    command = ["git", "-C", str(folder), *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()
