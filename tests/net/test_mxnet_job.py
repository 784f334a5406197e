"""A Gluon job on a real shaped network, with stock BytePS and with Prophet switched on by its variable."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from prophet_scheduler.core.cut import EARLY_ROUNDS, MOST_BLOCK_BYTES, RECUT_ROUNDS
from prophet_scheduler.core.event_record import load_events
from prophet_scheduler.core.events import UNPROFILED_GRADIENT, EventKind, QueueKind
from prophet_scheduler.lab.testbed import Testbed
from prophet_scheduler.models.profiles import load_profile
from support.roles import WORKERS, run_job, side_by_side

pytest.importorskip("mxnet")
pytestmark = [pytest.mark.engine, pytest.mark.netns]

JOB = Path(__file__).with_name("jobs") / "mxnet_digits.py"
ITERATIONS = 60
PORT = 23900
LINK_BPS = 400e6
STALL_S = 5
"""More than a worker may be behind the other on a busy machine."""


Results = list[dict[str, Any]]
"""Results of each worker."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("scheduled")


@pytest.fixture(scope="module")
def results(
    testbed: Testbed, beside: Testbed, folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Results, Results]:
    """Results of the job with stock BytePS, and with Prophet."""
    records = {f"PROPHET_{kind}_OUT": name for kind, name in (("STATUS", "s.json"), ("EVENTS", "e.npz"))}
    records["PROPHET_PROFILE_OUT"] = "p.json"  # each worker has a folder of its own
    plain = tmp_path_factory.mktemp("stock")
    stock, scheduled = side_by_side(
        lambda: train(testbed, plain, PORT, {}),
        lambda: train(beside, folder, PORT, {"BYTEPS_SCHEDULER": "prophet", **records}),
    )
    return stock, scheduled


@pytest.fixture(scope="module")
def scheduled(results: tuple[Results, Results]) -> Results:
    return results[1]


COMMAND = (str(JOB), "--out", "result.json", "--iterations", str(ITERATIONS))


def train(testbed: Testbed, folder: Path, port: int, settings: dict[str, str]) -> Results:
    """Runs the job to its end and returns what its workers wrote; fails with their last words."""
    for end in run_job(testbed, folder, port, COMMAND, dict.fromkeys(WORKERS, settings)):
        assert end.status == 0, end.log[-2000:]
    return [json.loads((folder / worker / "result.json").read_text()) for worker in WORKERS]


def test_workers_that_differ_all_end_and_say_who_has_what(testbed: Testbed, tmp_path: Path) -> None:
    settings = ({"BYTEPS_SCHEDULER": "prophet"}, {"BYTEPS_SCHEDULER": "p3", "PROPHET_FUSION": "0"})
    command = (str(JOB), "--out", "result.json", "--iterations", "1")
    ends = run_job(testbed, tmp_path, PORT + 1, command, dict(zip(WORKERS, settings, strict=True)))
    assert [end.status for end in ends] == [2, 2], ends
    for end in ends:
        (line,) = end.lines("Prophet:")
        assert re.search(r"for mxnet, policy prophet, blocks (that adapt|of \d+ bytes), fusion on; worker 1: ", line)
        assert "for mxnet, policy p3, blocks of 131072 bytes, fusion off" in line


def test_waiting_for_a_dead_workers_first_push_ends_at_the_limit(testbed: Testbed, tmp_path: Path) -> None:
    settings = {"BYTEPS_SCHEDULER": "prophet", "PROPHET_STALL_S": f"{STALL_S}"}
    command = (str(JOB.with_name("where.py")), "a_gluon_worker_1_dies_before_it_sends", *COMMAND)
    ends = run_job(testbed, tmp_path, PORT + 2, command, dict.fromkeys(WORKERS, settings), limit_s=40)
    assert [end.status for end in ends] == [75, 7], ends
    (line,) = ends[0].lines("Prophet:")
    # The agent looks once a second, and on a busy machine later.
    stalled = re.fullmatch(r"Prophet: no transfer has finished for (\d+) s: (.*) \(PROPHET_STALL_S\)", line)
    assert stalled is not None and int(stalled[1]) >= STALL_S, line
    assert stalled[2].startswith("no transfer is under way, ")


def test_it_learns_the_same_bit_for_bit(results: tuple[Results, Results]) -> None:
    stock, scheduled = results
    digests = {result["weights_sha256"] for result in [*stock, *scheduled]}
    assert len(digests) == 1
    assert min(result["accuracy"] for result in scheduled) >= 0.95


def test_every_task_went_through_the_queues_and_nothing_was_forced(scheduled: Results, folder: Path) -> None:
    for worker, result in zip(WORKERS, scheduled, strict=True):
        assert "Prophet" not in (folder / worker / "log").read_text()
        status = json.loads((folder / worker / "s.json").read_text())
        assert status["stepped_aside"] == ""
        assert status["hook"]["active"]
        assert status["plans"] >= 1
        events = load_events(folder / worker / "e.npz")
        gradients = events[events["gradient"] < UNPROFILED_GRADIENT]
        for queue in (QueueKind.PUSH, QueueKind.PULL):
            for kind in EventKind:
                chosen = gradients[(gradients["queue"] == queue) & (gradients["kind"] == kind)]
                first = chosen[chosen["partition"] == 0]
                assert len(first) == result["gradients"] * ITERATIONS
            assert chosen["bytes"].max() <= MOST_BLOCK_BYTES


def test_the_profile_is_in_forward_order(scheduled: Results, folder: Path) -> None:
    profile = load_profile(folder / "worker0" / "p.json")
    sizes = [gradient.size_bytes for gradient in profile.gradients]
    layer = [4 * 512 * 512, 2048, 2048, 2048]  # weight, bias, gamma, beta
    assert sizes == [4 * 512 * 64, 2048, 2048, 2048, *layer * 3, 4 * 512 * 10, 40]


def test_blocks_that_are_cut_anew_every_few_rounds_change_no_bit(
    testbed: Testbed, results: tuple[Results, Results], tmp_path: Path
) -> None:
    """Each worker must have heard what both measured, and have followed rank 0 without a word."""
    on = {"BYTEPS_SCHEDULER": "prophet", "PROPHET_STATUS_OUT": "s.json", "PROPHET_EVENTS_OUT": "e.npz"}
    forced = (str(JOB.with_name("forced_recuts.py")), *COMMAND)
    ends = run_job(testbed, tmp_path, PORT + 3, forced, dict.fromkeys(WORKERS, on))
    recuts = EARLY_ROUNDS + (ITERATIONS - 1 - EARLY_ROUNDS) // RECUT_ROUNDS
    for worker, end in zip(WORKERS, ends, strict=True):
        assert end.status == 0 and not end.lines("Prophet"), end.log[-2000:]
        assert end.lines("recuts") == [f"recuts {recuts} networks [1000000.0, 2000000.0]"]
        status = json.loads((tmp_path / worker / "s.json").read_text())
        assert (status["recuts"], status["stepped_aside"]) == (recuts, "")
        result = json.loads((tmp_path / worker / "result.json").read_text())
        assert result["weights_sha256"] == results[0][0]["weights_sha256"]
    sent = load_events(tmp_path / "worker1" / "e.npz")["bytes"]
    assert {64 * 1024, 512 * 1024, 1024 * 1024} <= set(sent.tolist()), "one size for each cut"


@pytest.mark.parametrize("how", ["", "shutdown"])
def test_it_ends_with_transfers_under_way(testbed: Testbed, tmp_path: Path, how: str) -> None:
    settings = {worker: {"BYTEPS_SCHEDULER": "prophet"} for worker in WORKERS}
    job = (str(JOB.with_name("mxnet_ends.py")), *how.split())
    for end in run_job(testbed, tmp_path, PORT + 4 + len(how), job, settings):
        assert end.status == 0, end.log[-2000:]
        assert "at the end" in end.log
        assert not end.lines("Prophet:")
