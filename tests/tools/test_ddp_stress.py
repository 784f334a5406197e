"""Starts of DistributedDataParallel under Prophet with delays at random, in short: no hang, and the bits of none."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from support.programs import without_switches
from tools.kept import read_pieces
from tools.starts import KINDS, Start, StartedJob, checked, result_of, stress_jobs

CHECKOUT = Path(__file__).parents[2]
JOB = StartedJob("ddp", 0, 3)


def test_starts_with_delays_have_the_bits_of_plain_ddp(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tools.starts", "stress", str(2 * KINDS), str(tmp_path / "starts.jsonl")]
    done = subprocess.run(command, capture_output=True, text=True, env=without_switches(), cwd=CHECKOUT, timeout=1500)
    assert done.returncode == 0, done.stdout + done.stderr
    starts = read_pieces(tmp_path / "starts.jsonl", Start)
    assert [start.job for start in starts] == stress_jobs(2 * KINDS)
    assert {(start.job.kind, start.job.ranks) for start in starts if start.job.prophet} == {
        (kind, ranks) for kind in range(KINDS) for ranks in (2, 4)
    }
    assert all(start.result for start in starts)
    assert sum(start.changes for start in starts) > KINDS, "cuts and sequences changed again and again"


@pytest.mark.parametrize("key", ["losses", "weights", "changes"])
def test_what_differs_is_said(key: str) -> None:
    row = {"losses": "a", "weights": "b", "changes": 1, "first_at": 0.5}
    plain, same = result_of(replace(JOB, prophet=False), [row, row]), result_of(JOB, [row, dict(row)])
    assert checked([same, plain]) == [plain, same] and not same.wrong
    *_, other = checked([plain, result_of(JOB, [row, {**row, key: 2}])])
    wrong = "losses or weights differ from a start of the engine alone"
    assert other.wrong == ("ranks changed cuts at different times: [1, 2]" if key == "changes" else wrong)
