"""A real FSDP2 job of two ranks says what it does while it trains, and at its end."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

pytest.importorskip("torch")

from prophet_scheduler.cli.top import ask_all, statuses
from prophet_scheduler.watch.status import LiveStatus
from support.programs import clean_environ, torchrun_variables
from tools.ports import free_port

CASE = Path(__file__).with_name("watched_case.py")
LIMIT_S = 120.0
BYTES = 4 * (64 * 64 + 64) * 4
"""Bytes of all parameters."""
PASSES = 3
"""Parameters are gathered for forward and for backward, and gradients are reduced."""


def test_a_job_is_seen_while_it_trains_and_leaves_its_status() -> None:
    port = free_port()
    with tempfile.TemporaryDirectory(prefix="prophet-") as name:
        folder = Path(name)
        settings = {"PROPHET_SCHEDULER": "fifo", "XDG_RUNTIME_DIR": name, "GLOO_SOCKET_IFNAME": "lo"}
        settings["PROPHET_STATUS_OUT"] = str(folder / "status.json")
        ranks = [
            subprocess.Popen(
                [sys.executable, "-P", str(CASE), str(folder / "stop")],
                env=clean_environ() | settings | torchrun_variables(rank, 2, port),
            )
            for rank in range(2)
        ]
        try:
            seen: list[LiveStatus] = []
            deadline = time.monotonic() + LIMIT_S
            while len([status for status in seen if status.iterations > 20]) < 2:
                assert time.monotonic() < deadline, seen
                assert not any(rank.poll() for rank in ranks)
                time.sleep(0.2)
                seen = statuses(ask_all([folder / "prophet"]))
            (folder / "stop").touch()
            assert [rank.wait(LIMIT_S) for rank in ranks] == [0, 0]
        finally:
            for rank in ranks:
                rank.kill()
        for status in seen:
            assert status.iteration is not None and status.worker.workers == 2 and status.agent.stepped_aside == ""
            # Each pass sends half of all bytes with two ranks. The root has nothing to gather in backward.
            assert status.sent.total_bytes == pytest.approx(status.iterations * BYTES * PASSES / 2, rel=0.3)
        left = [json.loads(path.read_text()) for path in sorted(folder.glob("status*.json"))]
        assert [status["policy"] for status in left] == ["fifo", "fifo"]
