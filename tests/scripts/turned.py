"""Makes one of a script's two reducers the slower, whatever this machine does.

Rule of this file: what is put in from outside. It is imported before a script starts, in its process. An iteration
counts as ITERATION_S, and with each reducer as so much longer as SLOW_PROPHET_S and SLOW_TORCH_S say; torch's is
predicted to be the faster, so that it has a turn. When the script ends, `turned.json` in its folder says how many
iterations each had, and how many slots of gradients are left in memory.
"""

from __future__ import annotations

import atexit
import gc
import json
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from prophet_ddp import agent, sequencing
from prophet_ddp.control import TORCH
from prophet_ddp.rounds import ModuleRounds
from prophet_ddp.turns import TurnReducer, Turns
from prophet_scheduler.core.choice import Choice, Question
from prophet_scheduler.frontends.torch.slot import Slot

ITERATION_S = 0.01
PROMISED = 0.5

_counts = {"prophet": 0, "torch": 0, "given back": 0, "slots": 0}


def _promise() -> None:
    vars(agent)["TORCH_AFTER"] = 0
    reducer = sequencing.torch_reducer

    def promised(question: Question) -> Iterator[Choice]:
        return (replace(choice, iteration_s=PROMISED * choice.iteration_s) for choice in reducer(question))

    sequencing.torch_reducer = promised


def _slow_down() -> None:
    end: Any = vars(ModuleRounds)["_end"]
    begin: Any = vars(TurnReducer)["prepare_for_backward"]
    back: Any = vars(Turns)["_why"]
    iterated: Any = vars(ModuleRounds)["iterated"]

    def count(self: Any) -> None:
        _counts["prophet"] += 1
        end(self)

    def count_torch(self: Any, outputs: Any) -> None:
        _counts["torch"] += 1
        begin(self, outputs)

    def count_back(self: Any, *bucket_bytes: Any) -> Any:
        _counts["given back"] += 1
        return back(self, *bucket_bytes)

    def slowed(self: Any, way: str, _took_s: float, *cut: Any) -> None:
        slower_s = float(os.environ.get(f"SLOW_{'TORCH' if way == TORCH else 'PROPHET'}_S", "0"))
        iterated(self, way, ITERATION_S + slower_s, *cut)

    ModuleRounds._end = count  # type: ignore[method-assign]
    ModuleRounds.iterated = slowed  # type: ignore[method-assign,assignment]
    TurnReducer.prepare_for_backward = count_torch  # type: ignore[method-assign]
    Turns._why = count_back  # type: ignore[method-assign,assignment]


@atexit.register
def _tell() -> None:
    _counts["slots"] = sum(isinstance(each, Slot) for each in gc.get_objects())
    Path("turned.json").write_text(json.dumps(_counts))


_promise()
_slow_down()
