"""Counts of what Prophet did in a script on a rough ride, by the way that trained at the time (ways.py).

Rule of this file: what rough.py and rough_fsdp.py count. When the script ends, `rough.json` in its folder has the
counts; a script without ways has one way, without a name.
"""

from __future__ import annotations

import atexit
import json
import sys
from collections import Counter, defaultdict
from pathlib import Path

_counts: defaultdict[str, Counter[str]] = defaultdict(Counter)


def count(what: str, more: int = 1) -> None:
    _counts[_begun()[-1]][what] += more


def _begun() -> list[str]:
    return getattr(sys.modules.get("ways"), "begun", None) or [""]


@atexit.register
def _tell() -> None:
    Path("rough.json").write_text(json.dumps({way: _counts[way] for way in _begun()}))
