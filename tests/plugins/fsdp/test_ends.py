"""Ends of FSDP2 jobs under Prophet: as they are without, and never by hanging."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

from prophet_scheduler.core.units import format_size
from support.forks import run_ranks
from support.programs import clean_environ, end_together

CASE = Path(__file__).with_name("end_cases.py")
LIMIT_S = 120.0


def command(rank: int, meeting: Path, averages: bool = True) -> list[str]:
    return [str(CASE), str(rank), str(meeting), *["sums"] * (not averages)]


@pytest.mark.parametrize("averages", [True, False])
def test_a_rank_whose_peer_is_gone_gets_torch_s_error_and_the_first_says_what_iterations_took(
    tmp_path: Path, averages: bool
) -> None:
    environ = clean_environ() | {"PROPHET_SCHEDULER": "prophet", "GLOO_SOCKET_IFNAME": "lo", "PROPHET_QUIET": "0"}
    commands = [command(rank, tmp_path / "meeting", averages) for rank in range(2)]
    said = run_ranks({tmp_path / f"rank{rank}": (each, environ) for rank, each in enumerate(commands)}, LIMIT_S)
    first, second = ([line for line in log.splitlines() if "Prophet" in line] for log in said)
    assert [re.findall("^caught (?=.)", log, re.MULTILINE) for log in said] == [["caught "], []], said
    layers = 4 * (64 * 64 + 64) * 4
    *sums, begins, ends = first
    assert "Prophet: schedules FSDP2 over gloo, 2 ranks" in begins
    assert f"{format_size(3 * layers)} an iteration" in begins, "gathered twice and reduced once"
    assert ends.startswith("Prophet: 3 iterations; the last 2 took ")
    assert ["are averages under Prophet" in line for line in sums] == [True] * (not averages) and not second


def test_a_wrong_setting_ends_the_process_with_one_line(tmp_path: Path) -> None:
    environ = clean_environ() | {"PROPHET_SCHEDULER": "best", "GLOO_SOCKET_IFNAME": "lo"}
    commands = [[sys.executable, "-P", *command(rank, tmp_path / "meeting")] for rank in range(2)]
    for status, _, said in end_together(commands, [environ] * 2, LIMIT_S):
        assert (status, said.count("Prophet: ")) == (2, 1)
        assert "Prophet: PROPHET_SCHEDULER: unknown policy 'best'" in said
