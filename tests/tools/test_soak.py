"""The soak: what is still to be run, what is kept, what is wrong, and all parts in short on real engines."""

from __future__ import annotations

import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from prophet_scheduler.core.errors import UserError
from prophet_scheduler.lab.jobs.record import write_record
from support.fakes import worker_record
from support.privileges import skip_without_namespaces
from support.programs import without_switches
from support.results import failed
from tools import kept, pages, soak
from tools.native_stress import StressRun
from tools.soak import FaultRun, LongTraining, SoakData, starts_of, tasks_of
from tools.starts import Start, StartedJob, soak_jobs

CHECKOUT = Path(__file__).parents[2]
START = Start(StartedJob("byteps", 0, 0, prophet=False), 1.5, "1f")
UNDER = replace(START, job=StartedJob("byteps", 0, 1))
STALL = "repeat 1 of 1: worker0 ended with status 75: prophet: no transfer has finished for 15 s"
HUNG = "repeat 1 of 1: hung: nothing for 40 s (iterations of 60 done: worker0 9, worker1 9)"
FAULTS = [
    FaultRun("", "stock", "1f", "", None, 0.5, 20.0),
    FaultRun("worker0 link-down 2-10s", "prophet", "1f", "", None, 9.25, 30.0),
    FaultRun("worker1 killed 3s", "stock", "", HUNG, 41.0, None, 50.0),
    FaultRun("worker1 killed 3s", "prophet", "", STALL, 16.2, None, 25.0),
]


def test_starts_come_in_turn_by_engine_with_and_without_prophet_and_by_kind() -> None:
    jobs = soak_jobs(8)
    assert [job.engine for job in jobs] == ["byteps", "ddp"] * 12
    for own in (jobs[::2], jobs[1::2]):
        assert [job.prophet for job in own] == [False, True, True] * 4
        assert [job.kind for job in own if job.prophet] == [0, 1, 0, 2] * 2
    assert jobs[:20] == soak_jobs(7)[:20], "more starts do not change the first ones"


def test_a_start_with_another_result_than_the_engine_alone_is_wrong() -> None:
    def wrong(*starts: Start) -> list[str]:
        return [line for part in starts_of(starts) for line in part["wrong"]]

    other = replace(UNDER, result="2e")
    assert wrong(UNDER) == wrong(START, UNDER) == []
    assert wrong(UNDER, START, other) == ["losses or weights differ from a start of the engine alone"]
    assert wrong(UNDER, other) == ["losses or weights differ from a start of Prophet"]
    assert wrong(START, replace(other, job=replace(other.job, kind=1))) == [], "another job"


def test_an_engine_that_hangs_alone_is_no_fault_of_prophet() -> None:
    assert SoakData(faults=FAULTS).wrong() == []
    hung = replace(FAULTS[2], policy="prophet")
    lost = replace(FAULTS[1], weights="2e")
    (first, second) = SoakData(faults=[*FAULTS, hung, lost]).wrong()
    assert first.startswith("worker1 killed 3s, prophet: hung: nothing for 40 s (iterations of 60 done")
    assert second == "worker0 link-down 2-10s, prophet: other weights; trained"


def test_a_job_that_fails_after_its_training_has_left_its_weights(tmp_path: Path) -> None:
    def left(**record: str) -> str:
        for number, changed in enumerate(record.values()):
            write_record(worker_record([1.0], weights_sha256=changed), tmp_path / f"worker{number}.json")
        return soak.weights_of(failed("it broke"), tmp_path, 2)

    assert left() == ""
    assert left(first="abc") == "", "the other left nothing"
    assert left(first="abc", other="abc") == "abc"
    assert left(first="abc", other="2e") == "workers differ"
    late = replace(FAULTS[1], error="repeat 1 of 1: worker1 ended with status -6 after its last iteration: what()")
    assert late.end == "ended: worker1 ended with status -6 after its last iteration: what()"
    assert SoakData(faults=[FAULTS[0], late]).wrong() == []
    assert SoakData(faults=[FAULTS[0], replace(late, weights="2e")]).wrong() != []


def test_what_is_wrong_is_said_of_every_part() -> None:
    data = SoakData(
        starts=starts_of([START, replace(UNDER, wrong="hung")]),
        tasks=tasks_of([StressRun("plain", 1, 0, 0, 0, 0, 120.0, "not over after 120 s")]),
        training=[LongTraining("prophet", 100, 20.0, 3, "1f", unfinished=2)],
        faults=[*FAULTS, replace(FAULTS[0], weights="2e")],
    )
    assert data.wrong() == [
        "start of byteps: hung",
        "tasks, plain: not over after 120 s",
        "training under prophet: 2 tasks lost",
        "jobs without a fault have 2 different models",
    ]
    two = [LongTraining("prophet", 100, 20.0, 3, weights) for weights in ("1f", "2e")]
    assert SoakData(training=two).wrong() == ["training: jobs of one length have different weights"]


def test_the_page_says_what_went_wrong_and_how_jobs_ended(tmp_path: Path) -> None:
    training = [LongTraining("prophet", 3600, 900.0, 90, "1f", unfinished=2)]
    data = SoakData(starts=starts_of([START, UNDER]), training=training, faults=FAULTS)
    kept.keep(tmp_path, "soak", SoakData, data)
    page = pages.page(tmp_path, "../reliability.md")
    assert "What went wrong under Prophet:\n\n- training under prophet: 2 tasks lost" in page
    assert "1 jobs, 1 with the same weights, 0 hung" in page and "1 jobs, 1 ended so, 0 hung" in page
    ended = "ended 16 s after the fault began: worker0 ended with status 75: "
    assert f"| worker1 killed 3s | prophet | 1 | - | - | {ended}" in page


def test_growth_is_the_slope_of_the_second_half() -> None:
    pairs = [(n, 10_000_000 + (5_000_000 if n > 40 else 0) + 100 * n) for n in range(1, 201)]
    assert soak.growth({"worker0": pairs, "server0": pairs[:15]}) == {"worker0": pytest.approx(100)}
    job = LongTraining("prophet", 200, 60.0, 6, "1f", growth_bytes={"worker0": 100.0, "worker1": 50.0})
    assert (job.growth("worker"), job.growth("server")) == (100.0, None)


def test_rates_of_long_training_stay_within_their_bounds_for_all_of_it() -> None:
    bandwidth = soak.changing_bandwidth(3, 200.0)
    times = [at_s for at_s, _ in bandwidth.changes]
    rates = [bandwidth.default, *(rate for _, rate in bandwidth.changes)]
    assert times == sorted(times) and 150 < times[-1] <= 200 and 10 <= len(times) <= 40
    assert all(rate is not None and 50e6 <= rate <= 400e6 for rate in rates)


def test_every_cell_of_the_faults_config_is_a_job(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(CHECKOUT)
    jobs = soak.fault_jobs()
    assert {experiment.cells[0].policies[0].name for _, experiment in jobs} == {
        "stock",
        "prophet",
        "ddp-gloo",
        "ddp-prophet",
    }
    assert {fault.split(" ")[1] for fault, _ in jobs if fault} == {
        *("link-down", "slow-link", "killed", "stopped", "of")
    }
    assert all(len(experiment.cells) == 1 and experiment.repeats == 1 for _, experiment in jobs)


def test_a_part_that_is_none_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(
        UserError, match="'start' is no part of the soak; its parts are starts, tasks, training, faults"
    ):
        soak.measure(tmp_path, tmp_path, parts="starts,start")


def test_the_soak_fails_if_something_was_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(soak.Soak, "tasks", lambda soak: [])
    data = SoakData(training=[LongTraining("prophet", 100, 20.0, 3, "1f", unfinished=2)])
    kept.keep(tmp_path, "soak", SoakData, data)
    with pytest.raises(UserError, match="wrong under Prophet: 1;"):
        soak.measure(tmp_path, tmp_path, parts="tasks")
    assert "2 tasks lost" in capsys.readouterr().out


@pytest.mark.engine
@pytest.mark.netns
def test_the_soak_in_short(tmp_path: Path) -> None:
    """Starts on both engines, tasks, training under changing rates, and a server that stops: nothing is wrong."""
    pytest.importorskip("byteps")
    pytest.importorskip("sklearn")
    skip_without_namespaces()
    results = tmp_path / "docs" / "results"
    results.mkdir(parents=True)
    clean = without_switches()
    command = [sys.executable, "-m", "tools.measure", "soak", "short=1", "--out", str(tmp_path / "out")]
    command += ["--results", str(results)]
    done = subprocess.run(command, capture_output=True, text=True, env=clean, cwd=CHECKOUT, timeout=1500)
    assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]
    stored = kept.kept(results, "soak", SoakData)
    assert stored is not None
    data = stored.data
    assert [(part["engine"], part["prophet"], part["wrong"]) for part in data.starts] == [
        *(("byteps", False, []), ("byteps", True, [])),
        *(("ddp", False, []), ("ddp", True, [])),
    ]
    assert data.tasks[0]["tasks"] > 70_000
    assert data.training[0].error == "" and data.training[0].messages and data.training[0].unfinished == 0
    (job,) = data.faults
    assert job.error == "" and job.weights and job.longest_iteration_s is not None and job.longest_iteration_s >= 0.9
    assert "2 on BytePS, 0 wrong" in pages.page(results, "../reliability.md")

    began = time.monotonic()
    again = subprocess.run(command, capture_output=True, text=True, env=clean, cwd=CHECKOUT, timeout=600)
    assert again.returncode == 0 and time.monotonic() - began < 30, "what is there is not run again"
    assert kept.kept(results, "soak", SoakData) == stored
