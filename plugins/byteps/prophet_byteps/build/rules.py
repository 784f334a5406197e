"""Edits to BytePS's source, and how a list of them is applied.

An edit is a rule: a place, a small replacement and the reason for it. A rule states how often its text must occur, so
that an edit which no longer fits the source stops the build instead of quietly doing nothing. The rules themselves are
in `compatibility.py` and `corrections.py`, and in `releases.py` where a release differs.

Rules that together mend one fault are a correction. It leaves a mark: a function that does nothing, which the library
exports. So a library shows what is mended in it (prophet_byteps/faults.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from prophet_scheduler.core.errors import UserError


@dataclass(frozen=True)
class Rule:
    """Replace `old` by `new` at its `count` places in one file.

    `file` is relative to the root of the source, `old` is literal text, and `reason` says why the source cannot stay.
    """

    file: str
    old: str
    new: str
    reason: str
    count: int = 1

    def apply(self, text: str) -> str:
        """Return `text` with this edit made. Raises UserError unless `old` occurs exactly `count` times."""
        count = text.count(self.old)
        if count != self.count:
            raise UserError(
                f"engine: {self.file}: an edit expects {_brief(self.old)} {self.count} time(s) but the source has it"
                f" {count} time(s); this is not the BytePS source the edits were written for"
            )
        return text.replace(self.old, self.new)


@dataclass(frozen=True)
class Correction:
    """Rules that mend one fault.

    `name` is that of its section in docs/corrections.md. `effect` is the fault's effect on a job, in half a line.
    `parts` are the parts of BytePS that have the fault, by folder. `seen_by` is in the file of a part that has the code
    in question; if `tells`, a file without it surely does not have the fault. The mark is left after the line
    `marked_after` of the file `marked_in`; a fault of a script needs none, since the mended text can be read.
    """

    name: str
    effect: str
    parts: tuple[str, ...]
    rules: tuple[Rule, ...]
    seen_by: bytes
    marked_in: str | None = None
    marked_after: str = ""
    tells: bool = False

    @property
    def mark(self) -> str:
        """Name of the function. BytePS's linker script exports names that contain `byteps`."""
        return f"prophet_byteps_corrected_{self.name}"

    @property
    def all_rules(self) -> tuple[Rule, ...]:
        """Its rules, and the one that leaves the mark."""
        if self.marked_in is None:
            return self.rules
        visible = '__attribute__((used, weak, visibility("default")))'
        text = f'{self.marked_after}extern "C" {visible} void {self.mark}() {{}}\n'
        reason = "says that the fault is mended in this library"
        return (*self.rules, Rule(self.marked_in, self.marked_after, text, reason))


def apply_rules(rules: Sequence[Rule], source: Path) -> None:
    """Make every edit under the directory `source`, in order. Raises UserError at the first that does not fit."""
    for rule in rules:
        path = source / rule.file
        if not path.is_file():
            raise UserError(f"engine: {rule.file}: an edit expects this file but the source has none")
        path.write_text(rule.apply(path.read_text(encoding="utf-8")), encoding="utf-8")


def _brief(text: str) -> str:
    """Return the first line of `text`, quoted and cut to a length that fits an error line."""
    line = text.strip().splitlines()[0].strip()
    return repr(line if len(line) <= 60 else line[:57] + "...")
