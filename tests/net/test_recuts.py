"""A job on a real network whose blocks are cut anew every four rounds: the weights are stock BytePS's, bit for bit.

This is MXNet's; PyTorch's is among tests/contract/scheduled_engines.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from prophet_scheduler.core.cut import EARLY_ROUNDS
from prophet_scheduler.core.event_record import load_events
from prophet_scheduler.lab.testbed import Testbed
from support.roles import WORKERS, Ended, run_job, side_by_side

pytestmark = [pytest.mark.engine, pytest.mark.netns]

JOBS = Path(__file__).with_name("jobs")
ROUNDS = EARLY_ROUNDS
SETTINGS = {"BYTEPS_SCHEDULER": "prophet", "PROPHET_STATUS_OUT": "status.json", "PROPHET_EVENTS_OUT": "events.npz"}
PORT = 24350
LINK_BPS = 400e6


def recuts(folder: Path, ends: list[Ended]) -> list[int]:
    """By worker. Each must have heard what both measured, and have followed rank 0 without a word."""
    counts = []
    for worker, end in zip(WORKERS, ends, strict=True):
        assert end.status == 0, end.log[-2000:]
        assert not end.lines("Prophet"), end.log[-2000:]
        (line,) = end.lines("recuts")
        assert line.endswith("networks [1000000.0, 2000000.0]")
        status = json.loads((folder / worker / "status.json").read_text())
        assert status["stepped_aside"] == ""
        assert line.startswith(f"recuts {status['recuts']} ")
        counts.append(status["recuts"])
    return counts


def test_an_mxnet_job_learns_the_same(testbed: Testbed, beside: Testbed, tmp_path: Path) -> None:
    pytest.importorskip("mxnet")
    command = [str(JOBS / "mxnet_digits.py"), "--out", "result.json", "--iterations", str(ROUNDS)]
    forced = [str(JOBS / "forced_recuts.py"), *command]
    stock, ends = side_by_side(
        lambda: run_job(testbed, tmp_path / "stock", PORT, command, late=True),
        lambda: run_job(beside, tmp_path / "forced", PORT, forced, dict.fromkeys(WORKERS, SETTINGS)),
    )
    assert [end.status for end in stock] == [0, 0], stock
    assert recuts(tmp_path / "forced", ends) == [ROUNDS - 1] * 2
    sent = load_events(tmp_path / "forced" / "worker1" / "events.npz")["bytes"]
    assert {64 * 1024, 512 * 1024, 1024 * 1024} <= set(sent.tolist()), "one size for each cut"
    results = [
        json.loads((tmp_path / run / worker / "result.json").read_text())
        for run in ("stock", "forced")
        for worker in WORKERS
    ]
    assert len({result["weights_sha256"] for result in results}) == 1
