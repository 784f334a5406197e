"""FSDP2's own collectives have turns, and the faster of the two has the model in the end."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from itertools import cycle
from pathlib import Path

import pytest

pytest.importorskip("torch")

from prophet_fsdp.turns import BEFORE, FIRST, LENGTH, TURNS, OwnTurns
from support.forks import end_ranks
from support.programs import clean_environ, torchrun_variables
from tools.ports import free_port

CASE = Path(__file__).with_name("turns_case.py")
LIMIT_S = 120.0
ITERATIONS = BEFORE + 2 * TURNS * LENGTH + 5


def whose(late_s: Sequence[float], own_s: Sequence[float], peer: Sequence[float] = ()) -> str:
    """Return whose collectives each iteration uses: P for Prophet's, o for FSDP2's own. Iterations take the seconds of
    the two in turn. `peer` has what another rank measures; without it there is this rank alone.
    """
    turns, now, used = OwnTurns(possible=True), 0.0, ""
    late, own = cycle(late_s), cycle(own_s)
    for _ in range(ITERATIONS):
        used += "o" if turns.own else "P"
        now += next(own) if turns.own else next(late)
        if turns.iteration_ends(now):
            turns.decide([turns.measured, *([peer] if peer else [])])
    assert turns.settled
    return used


def test_one_turn_is_enough_where_all_iterations_show_the_same() -> None:
    before, turn = "P" * BEFORE, "o" * LENGTH
    assert whose([1.0, 1.1], [1.2, 1.3]) == (before + turn).ljust(ITERATIONS, "P")
    assert whose([1.0, 1.1], [0.8, 0.9]) == (before + turn).ljust(ITERATIONS, "o")


@pytest.mark.parametrize(("own_s", "kept"), [(2.0, "P"), (0.5, "o")])
def test_a_large_difference_ends_the_turn_after_one_measured_iteration(own_s: float, kept: str) -> None:
    assert whose([1.0, 1.1], [own_s]) == ("P" * BEFORE + "oo").ljust(ITERATIONS, kept)


@pytest.mark.parametrize(("own_s", "kept"), [([0.8, 1.05, 1.05], "P"), ([0.95, 0.95, 1.3], "o")])
def test_where_they_are_close_medians_decide_after_the_last_turn(own_s: Sequence[float], kept: str) -> None:
    turns = "o" * LENGTH + ("P" * LENGTH + "o" * LENGTH) * (TURNS - 1)
    assert whose([1.0], own_s) == ("P" * BEFORE + turns).ljust(ITERATIONS, kept)


def test_all_ranks_count() -> None:
    assert whose([1.0], [0.9], peer=(1.5, 1.0, -1.0)).endswith("P" * LENGTH), "0.9 and 1.5 s are more than 1.0 and 1.0"
    assert whose([1.0], [0.9], peer=(1.0, 1.05, 0.0)).count("o") > LENGTH * TURNS, "the peer is not sure"


def test_a_job_s_first_iterations_and_the_first_of_a_turn_are_not_measured() -> None:
    turns, now = OwnTurns(possible=True), 0.0
    for ended in range(BEFORE + LENGTH):
        now += 9.0 if ended < FIRST or ended == BEFORE else 2.0 if turns.own else 1.0
        decides = turns.iteration_ends(now)
    assert decides and turns.measured == (2.0, 1.0, -1.0)
    assert turns.words == f"FSDP2 without Prophet took 2 s (median of {LENGTH - 1} iterations)"


def test_a_model_that_may_not_try_them_keeps_prophets() -> None:
    turns = OwnTurns(possible=False)
    assert not any(turns.iteration_ends(float(now)) or turns.own for now in range(ITERATIONS))
    assert turns.words == "how long FSDP2 takes without Prophet is not known"


def run(folder: Path, *arguments: str) -> list[tuple[int, str]]:
    """Return the status and the output of each rank of a job."""
    port = free_port()
    told = {"PROPHET_SCHEDULER": "prophet", "PROPHET_STATUS_OUT": "status.json", "PROPHET_QUIET": "0"}
    environ = clean_environ() | told | {"GLOO_SOCKET_IFNAME": "lo"}
    command = [str(CASE), *arguments]
    return end_ranks(
        {folder / f"rank{rank}": (command, environ | torchrun_variables(rank, 2, port)) for rank in range(2)}, LIMIT_S
    )


@pytest.mark.parametrize("own_s", [0.5, 2.0])
def test_a_job_goes_on_with_what_was_faster(own_s: float, tmp_path: Path) -> None:
    (status, first), (status_too, second) = run(tmp_path, "1.0", str(own_s))
    assert status == status_too == 0, first + second
    written = [json.loads(path.read_text()) for path in sorted(tmp_path.glob("*/status*.json"))]
    counts = [re.findall(r"^(\d+) (-?\d+)$", log, re.MULTILINE) for log in (first, second)]
    ((owned, modes),) = [tuple(map(int, row)) for row in counts[0]]
    assert counts[0] == counts[1] and "Prophet:" not in second
    if own_s > 1:
        assert owned == 2 and modes
        assert [status["given_back"] for status in written] == ["", ""]
        assert "FSDP2 without Prophet took 2 s (one iteration)" in first
    else:
        assert owned > 2 * LENGTH and not modes, "no hook is watched any more"
        assert len(written) == 2
        assert all("0.5 s with them and 1 s under Prophet" in status["given_back"] for status in written)
        assert "has FSDP2's own collectives from now on: an iteration takes 0.5 s" in first
        assert "FSDP2 then went on without Prophet, which was faster" in first


def test_a_rank_that_fails_where_a_turn_ends_does_not_wait_for_the_others(tmp_path: Path) -> None:
    (status, first), (status_too, second) = run(tmp_path, "1.0", "2.0", "fails")
    assert status_too == 1 and "this backward pass fails" in second
    assert status != 0 and "Connection closed by peer" in first
