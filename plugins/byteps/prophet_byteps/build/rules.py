"""What an edit to BytePS's source is, and how a list of them is applied.

An edit is a rule: a place, a small replacement and the reason for it. A rule states how often its text must occur, so
that an edit which no longer fits the source stops the build instead of quietly doing nothing. The rules themselves are
in `compatibility.py` and `corrections.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from prophet.core.errors import UserError


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


def apply_rules(rules: Sequence[Rule], source: Path) -> None:
    """Make every edit under the directory `source`, in order. Raises UserError at the first that does not fit."""
    for rule in rules:
        path = source / rule.file
        if not path.is_file():
            raise UserError(f"engine: {rule.file}: an edit expects this file but the source has none")
        path.write_text(rule.apply(path.read_text(encoding="utf-8")), encoding="utf-8")


def _brief(text: str) -> str:
    """First line of `text`, quoted and cut to a length that fits an error line."""
    line = text.strip().splitlines()[0].strip()
    return repr(line if len(line) <= 60 else line[:57] + "...")
