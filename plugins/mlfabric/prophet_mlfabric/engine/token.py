"""The token of an experiment's coordinator: one a run, in a folder that only this run has.

What belongs here: making that file, by whoever of the run's processes comes first.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from prophet_scheduler.core.files import write_whole

TENANT = "experiment"


def make_token(path: Path) -> None:
    """Writes the file of tokens. Every process of a run writes the same, so that none has to wait for another.

    It keeps one run's workers apart from another run's coordinator, and nobody out: the folder does that.
    """
    if not path.exists():
        write_whole(f"{TENANT} {hashlib.sha256(str(path).encode()).hexdigest()}\n", path)
