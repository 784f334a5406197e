"""Tests that a rank imports of Prophet what it uses, and no more. Every import adds to the start of a job."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

from support.programs import clean_environ, run_together

CASE = Path(__file__).with_name("import_cases.py")
MOST = 86
"""Largest number of modules of prophet_scheduler and of the plugin on a rank that decides nothing."""
FOREIGN = (
    "prophet_scheduler.cli",
    "prophet_scheduler.lab",
    "prophet_scheduler.models",
    "prophet_scheduler.simulate",
    "prophet_mlfabric",
    "prophet_mxnet",
    "prophet_papers",
)
SELDOM = (
    *(
        "prophet_ddp.device_arena",
        "prophet_scheduler.core.event_record",
        "prophet_scheduler.policies.algorithms.collective_groups",
    ),
    "numpy.typing",
)
"""Modules needed only on GPUs, by records that are asked for, by policies with groups, and by type checkers."""
LEARNING = {
    *(f"prophet_scheduler.learn.{name}" for name in ("profiler", "bandwidth", "wire", "serial")),
    *(f"prophet_scheduler.session.{name}" for name in ("session", "choosing", "tuner")),
}


@pytest.fixture(scope="module")
def imported(tmp_path_factory: pytest.TempPathFactory) -> list[set[str]]:
    """Return the modules of a job that trains, by rank."""
    meeting = tmp_path_factory.mktemp("imports") / "meeting"
    environ = clean_environ() | {"PROPHET_SCHEDULER": "prophet"}
    commands = [[sys.executable, "-P", str(CASE), str(rank), str(meeting)] for rank in range(2)]
    return [set(printed.split()) for printed in run_together(commands, [environ] * 2, 60)]


def test_the_rank_that_decides_has_what_learns(imported: list[set[str]]) -> None:
    assert imported[0] >= LEARNING


def test_the_others_do_without(imported: list[set[str]]) -> None:
    assert "prophet_ddp.rounds" in imported[1]
    assert not LEARNING & imported[1]
    assert len(imported[1]) <= MOST, sorted(imported[1])


def test_none_has_what_is_for_experiments_or_seldom_needed(imported: list[set[str]]) -> None:
    for modules in imported:
        assert not [name for name in modules if name.startswith((*FOREIGN, *SELDOM))]
