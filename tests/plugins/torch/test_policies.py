"""Every policy that runs on DistributedDataParallel, in two ranks over gloo: what travels, and the same weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

from prophet_scheduler.policies import collective_policies, get_definition
from support.forks import run_ranks
from support.programs import clean_environ

JOB = Path(__file__).with_name("policies_job.py")
LIMIT_S = 900.0
RANKS = 2
VARYING = ["vary:p3", "vary:fifo", "vary:caramel"]
HALF = ["half:caramel", "half:pace", "half:prophet"]
LEARNING = ["learn:caramel", "learn:pace", "learn:tictac"]


def run(folder: Path, names: list[str]) -> list[dict[str, dict[str, Any]]]:
    """By rank, and by policy: what the run came to."""
    outs = [folder / f"rank{rank}.jsonl" for rank in range(RANKS)]
    environ = clean_environ() | {"PROPHET_SCHEDULER": "fifo", "PROPHET_MONITOR_S": "0.2"}
    commands = [
        [str(JOB), str(folder / "store"), str(rank), str(RANKS), str(out), *names] for rank, out in enumerate(outs)
    ]
    run_ranks({folder / f"rank{rank}": (command, environ) for rank, command in enumerate(commands)}, LIMIT_S)
    rows = [[json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()] for out in outs]
    return [{row["policy"]: row for row in of_rank} for of_rank in rows]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, dict[str, Any]]]:
    return run(tmp_path_factory.mktemp("policies"), [*collective_policies(), *HALF, *LEARNING, *VARYING])


@pytest.mark.parametrize("name", [*collective_policies(), *HALF, *VARYING])
def test_the_weights_are_those_without_prophet(runs: list[dict[str, dict[str, Any]]], name: str) -> None:
    """To the last bit, with the optimizer's state and the buffers, over a change of the cut."""
    for of_rank in runs:
        assert of_rank[name]["weights"] == of_rank[name]["without"]


@pytest.mark.parametrize("name", collective_policies())
def test_what_was_decided_is_what_travels_on_every_rank(runs: list[dict[str, dict[str, Any]]], name: str) -> None:
    assert all(of_rank[name]["decided"] for of_rank in runs)
    assert all(of_rank[name]["issued"] == runs[0][name]["wanted"] for of_rank in runs)


@pytest.mark.parametrize("name", HALF)
def test_half_precision_takes_two_bytes_an_element(runs: list[dict[str, dict[str, Any]]], name: str) -> None:
    for of_rank in runs:
        row = of_rank[name]
        assert row["issued"] == row["wanted"], "cut, learned and sent in the same bytes"
        assert sum(row["issued"]) == 2 * row["elements"]


@pytest.mark.parametrize("name", collective_policies())
def test_step_waits_where_the_system_does_that_it_is_named_after(
    runs: list[dict[str, dict[str, Any]]], name: str
) -> None:
    """After the first steps, in which all do."""
    assert runs[0][name]["waits"] == get_definition(name).waits


@pytest.mark.parametrize("name", collective_policies())
def test_two_phases_are_prophets_own(runs: list[dict[str, dict[str, Any]]], name: str) -> None:
    """A paper's policy that clips is what the paper says, and waits for all averages."""
    assert all(of_rank[name]["divides"] == (name == "prophet") for of_rank in runs)


def test_groups_are_larger_than_a_parameter_servers_blocks_and_cuts_smaller(
    runs: list[dict[str, dict[str, Any]]],
) -> None:
    counts = {name: len(row["issued"]) for name, row in runs[0].items() if name in collective_policies()}
    assert counts["ddp"] < counts["mg-wfbp"] <= counts["caramel-no-batching-no-scheduling"]
    assert max(runs[0]["ddp"]["issued"]) > 4_096_000
    assert runs[0]["caramel"]["joined"] > 0, "no batch had parts that do not lie together"


@pytest.mark.parametrize("name", LEARNING)
def test_a_policy_decides_by_itself_on_all_ranks_in_one_round(runs: list[dict[str, dict[str, Any]]], name: str) -> None:
    for of_rank in runs:
        row = of_rank[name]
        assert row["changed"]
        assert row["collectives"] == row["gradients"] if "tictac" in name else row["collectives"] < row["gradients"]
        assert row["weights"] == row["without"]
        assert row["rounds"] == runs[0][name]["rounds"]
