"""Tests of what users' own tools see of a job of two ranks: its script, torch's profiler and its FlightRecorder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

from prophet_scheduler.lab.records import live_status
from support.forks import run_ranks
from support.programs import clean_environ, torchrun_variables
from tools.ports import free_port

CASE = Path(__file__).with_name("tools_case.py")


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """Return what each rank printed."""
    environ = clean_environ() | {"PROPHET_SCHEDULER": "prophet", "TORCH_FR_BUFFER_SIZE": "2000"}
    port, folder = free_port(), tmp_path_factory.mktemp("tools")
    places = [folder / f"rank{rank}" for rank in range(2)]
    run_ranks(
        {place: ([str(CASE)], environ | torchrun_variables(rank, 2, port)) for rank, place in enumerate(places)}, 120
    )
    return [json.loads((place / "log").read_text().splitlines()[-1]) for place in places]


def test_a_script_can_ask_what_its_job_does(said: list[dict[str, Any]]) -> None:
    for rank, says in enumerate(said):
        assert says["early"] is None
        status = live_status(says["status"])
        assert (status.worker.rank, status.worker.engine, status.agent.policy) == (rank, "ddp", "prophet")
        assert says["in a fork"] == 0, "a fork asks in vain"


def test_torchs_profiler_shows_what_is_sent_and_waited_for(said: list[dict[str, Any]]) -> None:
    for says in said:
        assert any(name.startswith("Prophet sends block ") for name in says["spans"]), says["spans"]


def test_torchs_flight_recorder_names_the_group(said: list[dict[str, Any]]) -> None:
    for says in said:
        assert says["groups"] == ["0", "prophet"]
