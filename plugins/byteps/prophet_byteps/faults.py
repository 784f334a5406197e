"""Known faults of the installed BytePS, for `prophet doctor`.

Rule of this file: it reads files without loading them, and ignores versions: every source build calls itself 0.2.5.
A correction leaves a mark in the file that it fixes (build/rules.py), so a mark proves the fix. Without a mark the code
is taken to be as released, although somebody may have fixed it in another way. If a file lacks the code in question,
nothing is claimed.
"""

from __future__ import annotations

import enum
import mmap
import sysconfig
from dataclasses import dataclass
from pathlib import Path

from .build.rules import CORRECTIONS, Correction
from .library import byteps_folder, extension

LAUNCHER = "launcher"
_OF_GPUS = b"byteps_torch_push_pull_async_torch_cuda_FloatTensor"
"""Symbol in a PyTorch part that was built with CUDA."""


class State(enum.IntEnum):
    """Visible state of one fault in one file; the last is the worst."""

    CORRECTED = enum.auto()
    UNKNOWN = enum.auto()
    AS_RELEASED = enum.auto()


@dataclass(frozen=True)
class Fault:
    """Visible state of one fault: the worst of all parts that may have it."""

    correction: Correction
    state: State

    @property
    def row(self) -> tuple[str, str]:
        """Name, and effect on a job."""
        doubt = "cannot tell whether " if self.state is State.UNKNOWN else ""
        return self.correction.name, f"{doubt}{self.correction.effect}"


def check_faults() -> tuple[bool, str, tuple[tuple[str, str], ...]] | None:
    """Return (True if there are no faults, a line, rows of (fault, effect on a job)); None without BytePS."""
    folder = byteps_folder()
    if folder is None:
        return None
    parts = parts_of(folder)
    faults = look(parts)
    known = [fault for fault in faults if fault.state is not State.CORRECTED]
    if not known:
        return True, f"all {len(faults)} known faults are corrected", ()
    released = sum(fault.state is State.AS_RELEASED for fault in known)
    line = f"{released} of {len(faults)} known faults are present, as far as can be seen"
    if released < len(known):
        line += f", and {len(known) - released} cannot be determined"
    return False, f"{line}; {_mend(parts)} (docs/corrections.md)", tuple(fault.row for fault in known)


def parts_of(folder: Path) -> dict[str, Path]:
    """Return the files in which to look for faults of the BytePS in `folder`, by part."""
    libraries = {part: extension(folder / part) for part in ("torch", "mxnet", "server")}
    # A BytePS installed into a separate folder (pip's --target) has its scripts there.
    scripts = (folder.parent / "bin" / "bpslaunch", Path(sysconfig.get_path("scripts"), "bpslaunch"))
    libraries[LAUNCHER] = next((script for script in scripts if script.is_file()), None)
    return {part: path for part, path in libraries.items() if path is not None}


def look(parts: dict[str, Path]) -> tuple[Fault, ...]:
    """Return the state of each fault that these files may have."""
    faults = []
    for correction in CORRECTIONS:
        states = (_state(correction, part, parts[part]) for part in correction.parts if part in parts)
        if seen := [state for state in states if state is not None]:
            faults.append(Fault(correction, max(seen)))
    return tuple(faults)


def _state(correction: Correction, part: str, path: Path) -> State | None:
    """Return the fault's state in one file; None if it lacks the code in question."""
    try:
        if part == LAUNCHER:
            return _state_of_script(correction, path.read_text(encoding="utf-8", errors="replace"))
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as image:
            if image.find(correction.mark.encode() + b"\0") >= 0:
                return State.CORRECTED
            return State.AS_RELEASED if image.find(correction.seen_by) >= 0 else State.UNKNOWN
    except (OSError, ValueError):  # unreadable, or empty
        return State.UNKNOWN


def _state_of_script(correction: Correction, text: str) -> State | None:
    if correction.seen_by.decode() not in text:
        return None
    if all(rule.new in text for rule in correction.rules):
        return State.CORRECTED
    return State.AS_RELEASED if any(rule.old in text for rule in correction.rules) else State.UNKNOWN


def _mend(parts: dict[str, Path]) -> str:
    """Return how to get a BytePS without faults."""
    if "torch" in parts and _OF_GPUS in parts["torch"].read_bytes():
        return "`python -m prophet_byteps.build build --cuda` builds a BytePS without them"
    return "`pip uninstall byteps`, then `python -m prophet_byteps.build install`, installs a BytePS without them"
