"""Makes a script's comparison with torch's reducer come early, on a clock on which one of the two is the slower.

Rule of this file: what is put in from outside. It is imported before a script starts, in its process. An iteration
takes ITERATION_S on that clock, and with each reducer so much longer as SLOW_PROPHET_S and SLOW_TORCH_S say; how long
it really takes on this machine decides nothing. When the script ends, `turned.json` in its folder says how many
iterations each had.
"""

from __future__ import annotations

import atexit
import json
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from prophet.core.cut import Cut
from prophet_ddp import comparison, turns
from prophet_ddp.control import Control
from prophet_ddp.rounds import ModuleRounds
from prophet_ddp.turns import TurnReducer, Turns

COUNT = 8
ITERATION_S = 0.01

_counts = {"prophet": 0, "torch": 0, "given back": 0}


class _AtRest:
    """Blocks that nobody wants to be others."""

    def __init__(self, rounds: ModuleRounds) -> None:
        self._rounds = rounds

    @property
    def at_rest(self) -> Cut | None:
        return self._rounds.cut


def _come_early() -> None:
    settings: dict[str, Any] = {"LEAST_COUNT": COUNT, "MOST_COUNT": COUNT, "LOOK_S": 0.0, "COUNT_S": 0.0}
    vars(comparison).update(settings)
    compare: Any = vars(Turns)["compare"]
    of_module: Any = Turns
    of_module.compare = lambda self, made, _: compare(self, made, _AtRest(self._rounds))
    control: Any = Control
    control.want = lambda *_: None


def _slow_down() -> None:
    prophet_s, torch_s = (float(os.environ.get(f"SLOW_{name}_S", "0")) for name in ("PROPHET", "TORCH"))
    end: Any = vars(ModuleRounds)["_end"]
    begin: Any = vars(TurnReducer)["prepare_for_backward"]
    back: Any = vars(Turns)["_why"]
    now_s = 0.0

    def end_late(self: Any) -> None:
        nonlocal now_s
        _counts["prophet"] += 1
        now_s += ITERATION_S + prophet_s
        end(self)

    def begin_late(self: Any, outputs: Any) -> None:
        nonlocal now_s
        _counts["torch"] += 1
        now_s += ITERATION_S + torch_s
        begin(self, outputs)

    def count_back(self: Any) -> Any:
        _counts["given back"] += 1
        return back(self)

    vars(turns)["time"] = SimpleNamespace(monotonic=lambda: now_s)
    ModuleRounds._end = end_late  # type: ignore[method-assign]
    TurnReducer.prepare_for_backward = begin_late  # type: ignore[method-assign]
    Turns._why = count_back  # type: ignore[method-assign]


@atexit.register
def _tell() -> None:
    Path("turned.json").write_text(json.dumps(_counts))


_come_early()
_slow_down()
