"""Programs that import BytePS, for test_autoload.py, each in an interpreter of its own.

    autoload_cases.py CASE [PART]

Rule of this file: ordinary programs, one function each. They import nothing of Prophet: whether anybody does is what
the test asks.
"""

from __future__ import annotations

import importlib
import os
import sys
from types import ModuleType


def imported(part: str) -> ModuleType:
    return importlib.import_module(f"byteps.{part}")


def without_prophet(part: str) -> None:
    imported(part)
    assert not [name for name in sys.modules if name.startswith("prophet")]


def without_byteps() -> None:
    assert "numpy" not in sys.modules
    assert "prophet_byteps.autoload" in sys.modules


def trains(part: str) -> ModuleType:
    bps = imported(part)
    assert bps.init() == "started"
    print("trains")
    return bps


def trains_with_the_front_end(part: str) -> None:
    bps = trains(part)
    replaced = bps.DistributedOptimizer if part == "torch" else bps.DistributedTrainer._allreduce_grads
    assert replaced.__wrapped__
    print(os.environ["BYTEPS_PARTITION_BYTES"])


def trains_with_bytepss_own(part: str) -> None:
    assert trains(part).DistributedOptimizer() == "stock"


def prints_first(part: str) -> None:
    sys.stdout.write("kept")
    imported(part)


if __name__ == "__main__":
    case, *arguments = sys.argv[1:]
    globals()[case](*arguments)
