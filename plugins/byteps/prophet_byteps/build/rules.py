"""Edits to BytePS's source, read from `edits/`, and how to apply them.

An edit is a rule: a place and a small replacement. A rule states how often its text must occur. So an edit that no
longer fits the source stops the build instead of silently doing nothing.

Rules that together fix one fault are a correction. It leaves a mark: a function that does nothing, which the library
exports. So a library shows which faults are fixed in it (prophet_byteps/faults.py). The CPU build has all corrections,
so every contender on BytePS runs on the same corrected base.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prophet_scheduler.core.errors import UserError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

HERE = Path(__file__).parent
VERSION = "0.2.5.post15"
"""BytePS's newest release on PyPI. The rules are written for its source."""
SHA256 = "9d6a3c5be4c4b5a172739744bb32725c433f9a9f63794e1885e7376ff4eea99f"
"""Digest of its source archive."""


@dataclass(frozen=True)
class Rule:
    """Replacement of the literal text `old` with `new` at its `count` places in `file`, relative to the source's root.

    `only` names the build to which the rule applies, "cpu" or "cuda"; empty for both.
    """

    file: str
    old: str
    new: str
    count: int = 1
    only: str = ""

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
    """Rules that fix one fault.

    `name` is that of its section in docs/corrections.md. `effect` is the fault's effect on a job, in half a line.
    `parts` are the parts of BytePS that have the fault, by folder. A part's file contains `seen_by` if it has the code
    in question. The mark is left in `file` after the line `marked_after`; a fault of a script needs no mark, since the
    corrected text can be read.
    """

    name: str
    effect: str
    parts: tuple[str, ...]
    rules: tuple[Rule, ...]
    seen_by: bytes
    file: str
    marked_after: str = ""

    @property
    def mark(self) -> str:
        """Name of the marking function. BytePS's linker script exports names that contain `byteps`."""
        return f"prophet_byteps_corrected_{self.name}"

    @property
    def all_rules(self) -> tuple[Rule, ...]:
        """The correction's rules, and one more that leaves the mark."""
        if not self.marked_after:
            return self.rules
        visible = '__attribute__((used, weak, visibility("default")))'
        text = f'{self.marked_after}extern "C" {visible} void {self.mark}() {{}}\n'
        return (*self.rules, Rule(self.file, self.marked_after, text))


def _read(name: str) -> Any:
    return tomllib.loads((HERE / "edits" / f"{name}.toml").read_text(encoding="utf-8"))


def _rule(row: dict[str, Any]) -> Rule:
    """Return the rule of a row. Instead of `old` and `new` it may have text to `add` between `after` and `before`."""
    after, add, before = (row.pop(name, "") for name in ("after", "add", "before"))
    return Rule(**({"old": after + before, "new": after + add + before} | row))


def _rules(tables: Sequence[dict[str, Any]], only: str = "") -> tuple[Rule, ...]:
    """Return the rules of all tables. A table's `file` is for its rules that name none."""
    return tuple(_rule({"file": table.get("file"), "only": only, **row}) for table in tables for row in table["rules"])


def _correction(row: dict[str, Any]) -> Correction:
    """Return a correction, with fields shared by its file's corrections. Marks follow the source's own header."""
    row = {"marked_after": f'#include "{Path(row["file"]).stem}.h"\n'} | _CORRECTIONS.get(row["file"], {}) | row
    rules, seen_by = _rules([row]), row["seen_by"].encode()
    return Correction(**{**row, "parts": tuple(row["parts"]), "rules": rules, "seen_by": seen_by})


_CUDA = _read("cuda")
COMPATIBILITY = _rules(_read("compatibility")["edits"]) + _rules(_CUDA["edits"], "cuda")
"""Rules without which BytePS does not compile, import or work on today's tools."""
_CORRECTIONS = _read("corrections")
CORRECTIONS = tuple(map(_correction, _CORRECTIONS["correction"]))
_CUDA_CORRECTIONS = _rules(_CUDA["corrections"], "cuda")


def rules_of(corrected: bool = True, cuda: bool = False) -> tuple[Rule, ...]:
    """Return the rules of a build, with BytePS's faults `corrected` or left as released."""
    rules = [rule for rule in COMPATIBILITY if rule.only != "cuda"]
    if corrected:
        rules += (rule for correction in CORRECTIONS for rule in correction.all_rules)
    if cuda:
        rules = [rule for rule in rules if rule.only != "cpu"]
        rules += (rule for rule in COMPATIBILITY if rule.only == "cuda")
        rules += _CUDA_CORRECTIONS if corrected else ()
    return tuple(rules)


def apply_rules(rules: Sequence[Rule], source: Path) -> None:
    """Apply every rule under the folder `source`, in order. Raises UserError at the first that does not fit."""
    for rule in rules:
        path = source / rule.file
        if not path.is_file():
            raise UserError(f"engine: {rule.file}: an edit expects this file but the source has none")
        path.write_text(rule.apply(path.read_text(encoding="utf-8")), encoding="utf-8")


def _brief(text: str) -> str:
    """Return the first line of `text`, quoted, and shortened to fit an error line."""
    line = text.strip().splitlines()[0].strip()
    return repr(line if len(line) <= 60 else line[:57] + "...")
