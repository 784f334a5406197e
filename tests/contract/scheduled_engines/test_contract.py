"""Promises of Prophet to a job, on every engine that it schedules: order, agreement, bits, errors, and the end.

Rule of this file: tests that know no engine. A real job of two workers each is run for four cases, and a job shows all
that it can; what an engine has beyond this is tested beside it.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import re
from collections import defaultdict, deque
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from numpy.typing import NDArray

pytest.importorskip("torch")

from contract.scheduled_engines.adapters import ADAPTERS, MARKS, RunCase, ScheduledEngine
from contract.scheduled_engines.job import CUTS, FAILURE, FORCED, ROUNDS
from prophet_scheduler.core.event_record import load_events
from prophet_scheduler.core.events import EVENT_DTYPE, UNPROFILED_GRADIENT, EventKind, QueueKind
from prophet_scheduler.core.settings import DDP_SCHEDULER, SCHEDULER
from prophet_scheduler.core.units import format_size
from prophet_scheduler.engines.registry import engines
from prophet_scheduler.lab.records import read_status
from prophet_scheduler.lab.report import story_of
from support.roles import WORKERS, Ended

RECORDS = {"PROPHET_STATUS_OUT": "status.json", "PROPHET_EVENTS_OUT": "events.npz", "PROPHET_RECORD": "."}
BYTES = 4 * (64 * 4096 + 4096 + 4096 * 64 + 64)
WRONG = {"PROPHET_MONITOR_S": "x"}
MISSPELT = {"PROPHET_FUSON": "0"}
SAYS = {"PROPHET_QUIET": "0"}


class Cases:
    """The jobs of one engine, each run when it is first asked for."""

    def __init__(self, engine: ScheduledEngine, run: RunCase, folder: Path) -> None:
        self.engine = engine
        self._run = run
        self._folder = folder
        self._ends: dict[str, list[Ended]] = {}

    def place(self, name: str, worker: str) -> Path:
        return self._folder / name / worker

    def ends(self, name: str) -> list[Ended]:
        """`stock` is the engine alone, `stock CASE` a case of job.py without Prophet, `wrong` and `misspelt` a setting
        that is, `says` a job that is not quiet, and `other` one with another engine's variable; others are cases under
        Prophet.
        """
        if name not in self._ends:
            stock, _, own = name.rpartition(" ")
            case = "alone" if name in ("stock", "wrong", "misspelt", "says", "other") else own
            on = {} if {stock, own} & {"stock", "other"} else {self.engine.switch: "prophet", **RECORDS}
            other = dict.fromkeys({SCHEDULER, DDP_SCHEDULER} - {self.engine.switch}, "prophet")
            more = {"wrong": WRONG, "misspelt": MISSPELT, "says": SAYS, "other": other}.get(name, {})
            self._ends[name] = self._run(case, self._folder / name, {**on, **more})
        return self._ends[name]

    def weights(self, name: str) -> set[str]:
        return {line for end in self.ends(name) for line in end.lines("weights ")}

    def held(self) -> list[list[Any]]:
        """By worker and round, what held where blocks were forced."""
        return [json.loads(end.lines("held ")[0].removeprefix("held ")) for end in self.ends("recuts")]


@pytest.fixture(
    scope="module",
    params=[pytest.param(engine, marks=MARKS.get(engine.name, ()), id=engine.name) for engine in ADAPTERS],
)
def cases(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cases]:
    with request.param.jobs() as run:
        yield Cases(request.param, run, tmp_path_factory.mktemp(request.param.name))


def test_every_engine_with_a_policy_of_prophets_is_here() -> None:
    scheduled = {name for name, spec in engines().items() if spec.hook is not None or spec.check is not None}
    # What this suite asks of averages and cuts that are agreed on says nothing of workers that are not in step.
    assert {engine.name for engine in ADAPTERS} == set(FORCED) == scheduled - {"byteps_async"}


def test_blocks_that_change_all_the_time_end_with_the_bits_of_the_engine_alone(cases: Cases) -> None:
    assert [end.status for end in (*cases.ends("stock"), *cases.ends("recuts"))] == [0] * 4, cases.ends("recuts")
    assert len(cases.weights("stock")) == 1, "its workers differ without Prophet: that shows nothing"
    assert cases.weights("recuts") == cases.weights("stock")


def test_workers_that_wish_for_different_cuts_hold_the_same_in_every_round(cases: Cases) -> None:
    first, second = cases.held()
    assert len(first) == ROUNDS and first == second
    changes = sum(before != after for before, after in itertools.pairwise(first))
    assert changes >= ROUNDS // 4 - 2, "hardly anything was forced"
    assert len({json.dumps(value) for value in first}) >= len(CUTS)


def test_what_is_ready_and_first_in_the_sequence_goes_first(cases: Cases) -> None:
    cases.ends("recuts")
    first, *others = (events_of(cases.place("recuts", worker)) for worker in WORKERS)
    assert all(len(each) for each in others) or cases.engine.one_order, "one sequence needs one record"
    waited = 0
    for events, held in zip((first, *others), cases.held(), strict=True):
        added = [int(event["gradient"]) for event in events if event["kind"] == EventKind.ADD]
        waited += passed_over(events, cases.engine.urgency(added, held) if added else [])
    assert waited > 0, "nothing ever had to wait, which shows nothing"


def test_half_precision_and_clipping_have_the_engines_own_bits(cases: Cases) -> None:
    for end in cases.ends("half_and_clipped"):
        assert end.status == 0 and not end.lines("Prophet"), end.log
    assert cases.weights("half_and_clipped") == cases.weights("stock half_and_clipped") != cases.weights("stock")


def test_it_is_seen_whether_iterations_wait_for_all_averages(cases: Cases) -> None:
    for name, waits in (("half_and_clipped", True), ("recuts", False)):
        cases.ends(name)
        for worker in WORKERS:
            (record,) = cases.place(name, worker).glob("status*.json")
            status = read_status(record)
            assert (status.barrier, status.half) == (waits, waits), "that case has both"


def test_the_scheduler_takes_no_part_in_what_failed_and_says_so_once(cases: Cases) -> None:
    deciding, other = cases.ends("agent_fails")
    assert (deciding.status, other.status) == (0, 0), deciding.log + other.log
    (line,) = deciding.lines(FAILURE)
    assert "Prophet" in line and f"ValueError: {FAILURE}" in line
    assert "Traceback" not in deciding.log and not other.lines("Prophet"), other.log
    assert cases.weights("agent_fails") == cases.weights("stock")


def test_a_wrong_setting_ends_every_worker_with_one_line_that_names_it(cases: Cases) -> None:
    for end in cases.ends("wrong"):
        assert end.status == 2, end.log
        assert end.lines("Prophet") == ["Prophet: PROPHET_MONITOR_S is 'x'; it must be a number of at least 0.1"]
        assert not end.lines("weights") and "Traceback" not in end.log


def test_a_job_says_that_it_works_where_it_begins_and_where_it_ends(cases: Cases) -> None:
    speaks, other = sorted(cases.ends("says"), key=lambda end: not end.lines("Prophet"))
    assert (speaks.status, other.status) == (0, 0) and not other.lines("Prophet"), speaks.log + other.log
    first, *between, last = speaks.lines("Prophet")
    assert re.fullmatch(
        rf"Prophet: schedules .*2 .* {re.escape(format_size(BYTES))} an iteration, policy prophet", first
    )
    assert not between or "has torch's reducer" in between[0], speaks.log
    assert re.fullmatch(r"Prophet: \d+ iterations.*", last), speaks.log


def test_another_engines_variable_is_one_line_that_names_the_right_one(cases: Cases) -> None:
    first, other = cases.ends("other")
    (line,) = first.lines("Prophet")
    assert line.startswith("Prophet: stays off: ") and line.endswith(f"{cases.engine.switch} that switches Prophet on")
    assert not other.lines("Prophet"), other.log
    assert cases.weights("other") == cases.weights("stock")


def test_a_misspelt_setting_is_one_warning_of_the_job_that_names_it(cases: Cases) -> None:
    first, other = cases.ends("misspelt")
    assert (first.status, other.status) == (0, 0), first.log + other.log
    said = [line for line in first.lines("Prophet") if "PROPHET_" in line]
    assert said == [
        "Prophet: knows nothing of PROPHET_FUSON (did you mean PROPHET_FUSION?): what is set there has no effect"
    ], first.log + other.log
    assert not other.lines("Prophet"), other.log
    assert cases.weights("misspelt") == cases.weights("stock")


def test_each_worker_ends_by_itself_and_leaves_its_records_and_nothing_else(cases: Cases) -> None:
    for worker, end in zip(WORKERS, cases.ends("recuts"), strict=True):
        assert end.status == 0 and not end.lines("Prophet"), end.log
        place = cases.place("recuts", worker)
        (record,) = place.glob("status*.json")  # A second one on a machine has its number in the name.
        status = read_status(record)
        assert (status.policy, status.stepped_aside, status.arena) == ("prophet", "", True)
        assert status.recuts >= ROUNDS // 4 - 2
        assert {path.name for path in place.iterdir()} <= {"log", record.name, "events.npz", f"{worker}.jsonl"}
        left = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                left += [process] if Path(process.cwd()) == place else []
        assert not left


def test_each_worker_writes_down_what_it_did(cases: Cases) -> None:
    cases.ends("recuts")
    for number, worker in enumerate(WORKERS):
        (chapter,) = story_of(cases.place("recuts", worker)).chapters
        assert chapter.name == f"worker {number}"
        assert len(chapter.laps) == ROUNDS - 1
        assert sum(row.sent_bytes for row in chapter.traffic) >= ROUNDS * BYTES
        assert chapter.moments and chapter.cuts
        events = events_of(cases.place("recuts", worker))
        if len(events):
            ended = int((events["kind"] == EventKind.FINISH).sum())
            kept = [t for moment in chapter.moments for t in moment.transfers if t.queue is QueueKind.PUSH]
            assert len(kept) <= ended


def events_of(place: Path) -> NDArray[Any]:
    """A worker's pushes, of gradients alone; none where it keeps no record."""
    path = place / "events.npz"
    if not path.exists():
        return np.zeros(0, EVENT_DTYPE)
    events = load_events(path)
    assert not events["gap"].any()
    pushes: NDArray[Any] = events[(events["queue"] == QueueKind.PUSH) & (events["gradient"] < UNPROFILED_GRADIENT)]
    return pushes


def passed_over(events: NDArray[Any], urgency: list[tuple[int, ...]]) -> int:
    """Return the number of blocks that went while a less urgent one waited. Fails if a more urgent one waited."""
    ready: Mapping[int, deque[tuple[int, ...]]] = defaultdict(deque)
    coming = iter(urgency)
    waited = 0
    for event in events:
        block = int(event["gradient"])
        if event["kind"] == EventKind.ADD:
            ready[block].append(next(coming))
        elif event["kind"] == EventKind.START:
            going = ready[block].popleft()
            waiting = [place for places in ready.values() for place in places]
            assert not waiting or going <= min(waiting), f"{going} went before {min(waiting)}"
            waited += bool(waiting)
    return waited
