"""The files that a process leaves: those that were asked for, whatever becomes of one of them."""

from __future__ import annotations

from pathlib import Path
from typing import NoReturn

import numpy as np
import pytest

from prophet_scheduler.core.event_record import load_record
from prophet_scheduler.core.events import EVENT_DTYPE
from prophet_scheduler.core.profile import GradientProfile, Profile
from prophet_scheduler.core.settings import Settings
from prophet_scheduler.core.status import AgentStatus
from prophet_scheduler.frontends.records import event_buffer, write_records
from prophet_scheduler.lab.records import read_status
from prophet_scheduler.models.profiles import load_profile

PROFILE = Profile("learned", (GradientProfile("gradient0", 8, 0.2),))


def status() -> AgentStatus:
    return AgentStatus("p3", "", 2, 0.25, 4096, 1)


def fail() -> NoReturn:
    raise RuntimeError("made for a test")


def settings(folder: Path) -> Settings:
    return Settings("p3", profile_out=folder / "p.json", events_out=folder / "e.npz", status_out=folder / "s.json")


def test_what_was_asked_for_is_written(tmp_path: Path) -> None:
    kept = event_buffer()
    kept.keep(np.zeros(3, EVENT_DTYPE))
    write_records(settings(tmp_path), status, lambda: PROFILE, lambda: kept.record(2.0, 5))
    assert load_profile(tmp_path / "p.json").gradients == PROFILE.gradients
    record = load_record(tmp_path / "e.npz")
    assert (len(record.events), record.watchdog_s, record.most_in_flight) == (3, 2.0, 5)
    assert read_status(tmp_path / "s.json") == status()


def test_nothing_is_asked_for_a_file_that_nobody_wants(tmp_path: Path) -> None:
    write_records(Settings("p3", status_out=tmp_path / "s.json"), status, fail, fail)
    assert [path.name for path in tmp_path.iterdir()] == ["s.json"]


def test_what_there_is_none_of_is_not_written(tmp_path: Path) -> None:
    write_records(settings(tmp_path), status)
    assert [path.name for path in tmp_path.iterdir()] == ["s.json"]


def test_a_file_that_cannot_be_written_is_one_warning_and_the_others_are_there(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_records(settings(tmp_path), status, lambda: PROFILE, fail)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["p.json", "s.json"]
    assert [record.getMessage() for record in caplog.records] == [
        "Prophet: could not write its records: RuntimeError: made for a test"
    ]
