"""The engines that Prophet schedules, as the suite runs them: a new engine is one more class in ADAPTERS.

Rule of this file: how a job of two workers is started and ends, and in which sequence the engine promises to send. What
is done to Prophet inside of a worker is job.py's.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Protocol

import pytest

from scripts.ranks import Ranks
from support.roles import WORKERS, Ended, network, nodes, run_job

JOB = Path(__file__).with_name("job.py")
LIMIT_S = 180.0
LINK_BPS = 400e6
FIRST_PORT = 24600
IMPORTED = ("torch", "torch._dynamo", "numpy")
"""Modules that are there when a rank starts: importing them takes longer than the job."""

RunCase = Callable[[str, Path, Mapping[str, str]], list[Ended]]
"""(case of job.py, an empty folder, settings of all workers) -> how each ended. They work in folder/worker0, ..."""


def case_of(engine: str, case: str) -> dict[str, str]:
    """Arguments of job.py."""
    return {"CONTRACT_ENGINE": engine, "CONTRACT_CASE": case}


class ScheduledEngine(Protocol):
    """An engine as the suite needs it. `name` is that of its description, `switch` the variable that turns Prophet on.

    `one_order`: whether all workers hold one sequence of blocks, and not a cut alone.
    """

    name: str
    switch: str
    one_order: bool

    def jobs(self) -> AbstractContextManager[RunCase]:
        """Return the starter of jobs, one after another, while the context lasts. Skip the test if there is none."""
        ...

    def urgency(self, added: Sequence[int], held: Sequence[Any]) -> list[tuple[int, ...]]:
        """For each of the blocks that became ready, in this order, its place in the promised sequence: the least first.

        `held` is what job.py said by round.
        """
        ...


class BytePS:
    """A scheduler, a server and two workers in namespaces. Each worker's queue sends the most urgent first."""

    name = "byteps"
    switch = "BYTEPS_SCHEDULER"
    one_order = False

    @contextlib.contextmanager
    def jobs(self) -> Iterator[RunCase]:
        pytest.importorskip("byteps")
        ports = iter(range(FIRST_PORT, FIRST_PORT + 100))
        with network(nodes(LINK_BPS)) as testbed:

            def run(case: str, folder: Path, settings: Mapping[str, str]) -> list[Ended]:
                of_all = {**settings, **case_of(self.name, case)}
                of_workers = dict.fromkeys(WORKERS, of_all)
                return run_job(testbed, folder, next(ports), [str(JOB)], of_workers, LIMIT_S, forked=True)

            yield run

    def urgency(self, added: Sequence[int], held: Sequence[Any]) -> list[tuple[int, ...]]:
        return [(block,) for block in added]


class Ddp:
    """Two ranks on this machine. All issue one agreed sequence, round by round."""

    name = "ddp"
    switch = "PROPHET_SCHEDULER"
    one_order = True

    @contextlib.contextmanager
    def jobs(self) -> Iterator[RunCase]:
        pytest.importorskip("torch")

        modes: Mapping[bool, tuple[dict[str, str], tuple[str, ...]]] = {
            False: ({}, IMPORTED),
            True: ({self.switch: "prophet"}, (*IMPORTED, "prophet_ddp.takeover")),
        }
        with contextlib.ExitStack() as stack:
            servers = {mode: stack.enter_context(Ranks(*how)) for mode, how in modes.items()}

            def run(case: str, folder: Path, settings: Mapping[str, str]) -> list[Ended]:
                server = servers[self.switch in settings]
                places = [folder / worker for worker in WORKERS]
                ends = server.ends(JOB, places, LIMIT_S, {**settings, **case_of(self.name, case)})
                return [
                    Ended(status, (place / "log").read_text(), after_s)
                    for place, (status, after_s) in zip(places, ends, strict=True)
                ]

            yield run

    def urgency(self, added: Sequence[int], held: Sequence[Any]) -> list[tuple[int, ...]]:
        places: list[tuple[int, ...]] = []
        for number, sequence in enumerate(held):
            blocks = added[len(places) : len(places) + len(sequence)]
            assert sorted(blocks) == sorted(sequence), f"round {number} had other blocks than were agreed on"
            places += [(number, sequence.index(block)) for block in blocks]
        return places


ADAPTERS: tuple[ScheduledEngine, ...] = (BytePS(), Ddp())
MARKS: Mapping[str, Sequence[pytest.MarkDecorator]] = {"byteps": (pytest.mark.engine, pytest.mark.netns)}
"""Marks of the engines that need more than a process."""
