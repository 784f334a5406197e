"""A real FSDP2 job of two ranks says what it does while it trains, and at its end."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("torch")

from plugins.torch.test_watching import LIMIT_S, eventually, job
from prophet_scheduler.cli.top import ask_all, statuses
from prophet_scheduler.watch.status import LiveStatus
from tools.ports import free_port

CASE = Path(__file__).with_name("watched_case.py")
BYTES = 4 * (64 * 64 + 64) * 4
"""Bytes of all parameters."""
PASSES = 3
"""Parameters are gathered for forward and for backward, and gradients are reduced."""


def test_a_job_is_seen_while_it_trains_and_leaves_its_status(short_folder: Path) -> None:
    settings = {"PROPHET_SCHEDULER": "fifo", "GLOO_SOCKET_IFNAME": "lo"}
    settings["PROPHET_STATUS_OUT"] = str(short_folder / "status.json")

    def both() -> list[LiveStatus]:
        seen = statuses(ask_all([short_folder / "prophet"]))
        return seen if len([status for status in seen if status.iterations > 20]) == 2 else []

    with job(short_folder, settings, free_port(), CASE) as ranks:
        seen = eventually(both, short_folder)
        (short_folder / "stop").touch()
        assert [rank.wait(LIMIT_S) for rank in ranks] == [0, 0]
    for status in seen:
        assert status.iteration is not None and status.worker.workers == 2 and status.agent.stepped_aside == ""
        # Each pass sends half of all bytes with two ranks. The root has nothing to gather in backward.
        assert status.sent.total_bytes == pytest.approx(status.iterations * BYTES * PASSES / 2, rel=0.3)
    left = [json.loads(path.read_text()) for path in sorted(short_folder.glob("status*.json"))]
    assert [status["policy"] for status in left] == ["fifo", "fifo"]
