"""Runs a job that is cut anew every few rounds, and whose workers measure different networks.

forced_recuts.py SCRIPT [ARGUMENT ...]

Rule of this file: what rank 0 wants and what a worker says of its network; the job is a program as users write them.
Prints what the job heard of networks, and how often it was cut anew.
"""

from __future__ import annotations

import dataclasses
import itertools
import os
import runpy
import sys
from pathlib import Path

from prophet_byteps.cutting import CutBoard, Wish
from prophet_scheduler.core.cut import Cut, Segment
from prophet_scheduler.core.network import Network
from prophet_scheduler.policies import Blocks
from prophet_scheduler.policies import prophet as policy

CUTS = (
    Cut.uniform(64 * 1024),
    Cut((Segment(0, 128 * 1024), Segment(1 << 20, 1 << 20))),
    Cut((Segment(0, 16 * 1024), Segment(256 * 1024, 512 * 1024), Segment(3 << 20, 256 * 1024))),
)

boards: list[CutBoard] = []
make = CutBoard.__init__
wanted = itertools.cycle(CUTS)
network = Network(bandwidth=1e6 * (1 + int(os.environ["DMLC_WORKER_ID"])))


def make_and_keep(board: CutBoard, *args: object) -> None:
    make(board, *args)  # type: ignore[arg-type]
    boards.append(board)


become = os.execv
# A process that becomes another one goes on like this.
os.execv = lambda path, words: become(path, [*words[:2], __file__, *words[2:]])  # type: ignore[assignment]
policy.POLICIES["prophet"] = dataclasses.replace(policy.POLICIES["prophet"], blocks=Blocks.ADAPTIVE)
CutBoard.__init__ = make_and_keep  # type: ignore[method-assign, assignment]
CutBoard.said = lambda board: (Wish(next(wanted)), network)  # type: ignore[method-assign, assignment]
del sys.argv[0]
sys.path[0:0] = [str(Path(sys.argv[0]).parent)]
runpy.run_path(sys.argv[0], run_name="__main__")
for board in boards:
    print("recuts", board.in_force.recuts, "networks", [entry.bandwidth for entry in board.networks], flush=True)
