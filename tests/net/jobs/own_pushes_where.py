"""own_pushes.py where workers are not alike: own_pushes_where.py CASE [SUSPENSIONS]

Rule of this file: one function a case, which changes what the case is about; then the job runs as it is.
"""

from __future__ import annotations

import os
import runpy
import sys
from pathlib import Path

RANK = os.environ["DMLC_WORKER_ID"]


def workers_want_other_sizes() -> None:
    """As where each has kept something else of its network; that of worker 0 decides."""
    from prophet_byteps.learning import KeptPushes

    vars_of_class = {"0": 256 << 10, "1": 64 << 10}
    KeptPushes.size = lambda self: vars_of_class[RANK]  # type: ignore[method-assign]


def worker_1_has_an_unknown_byteps() -> None:
    """Prophet's hook takes over a function that this one lacks."""
    from prophet_byteps import library

    if RANK == "1":
        library._NEEDED += (b"_ZN6byteps6common7UnknownEv\0",)


if __name__ == "__main__":
    case, *arguments = sys.argv[1:]
    globals()[case]()
    sys.argv = [str(Path(__file__).with_name("own_pushes.py")), *arguments]
    runpy.run_path(sys.argv[0], run_name="__main__")
