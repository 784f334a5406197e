"""Starts of DistributedDataParallel under Prophet with delays at random, in short: no hang, and the bits of none."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from support.programs import without_switches
from tools import ddp_stress
from tools.ddp_stress import KINDS, StressJob, Wrong

CHECKOUT = Path(__file__).parents[2]


def test_starts_with_delays_have_the_bits_of_plain_ddp() -> None:
    command = [sys.executable, "-m", "tools.ddp_stress", "--starts", str(2 * KINDS), "--iterations", "25"]
    done = subprocess.run(command, capture_output=True, text=True, env=without_switches(), cwd=CHECKOUT, timeout=1500)
    assert done.returncode == 0, done.stdout + done.stderr
    words = done.stdout.split()
    assert words[:3] == [str(2 * KINDS), "starts,", str(2 * KINDS * 25)]
    assert int(words[4]) > KINDS, "cuts and sequences changed again and again"


@pytest.mark.parametrize("key", ["losses", "weights", "changes"])
def test_what_differs_is_said(key: str) -> None:
    row = {"losses": "a", "weights": "b", "changes": 1}
    with pytest.raises(Wrong, match=f"rank 1 has other {key}|changed cuts at different times"):
        ddp_stress.check(StressJob(2, 0, 1), [row, row], [row, {**row, key: "c"}])
    ddp_stress.check(StressJob(2, 0, 1), [row, row], [row, dict(row)])
