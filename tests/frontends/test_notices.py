"""Tests of the notices to users, each given once in a process."""

from __future__ import annotations

import logging

import pytest

from prophet_scheduler.core.settings import CHOSEN, FUSION, LAB_BATCH
from prophet_scheduler.frontends import notices
from prophet_scheduler.frontends.notices import warn_of_no_policy, warn_of_unknown_variables


@pytest.fixture(autouse=True)
def nothing_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notices, "_warned", set())
    monkeypatch.setattr(notices, "_first", None)


def test_what_is_misspelt_is_one_warning_with_what_is_near(caplog: pytest.LogCaptureFixture) -> None:
    environ = {"PROPHET_FUSON": "0", "PROPHET_RECORDS": "here", "PROPHET_XYZ": "1", FUSION: "1", "HOME": "/"}
    for _ in range(2):
        warn_of_unknown_variables(environ)
    assert [record.getMessage() for record in caplog.records] == [
        "Prophet: knows nothing of PROPHET_FUSON (did you mean PROPHET_FUSION?), PROPHET_RECORDS (did you mean "
        "PROPHET_RECORD?), PROPHET_XYZ: what is set there has no effect"
    ]


def test_what_prophet_sets_itself_is_known_and_never_advised(caplog: pytest.LogCaptureFixture) -> None:
    warn_of_unknown_variables(
        [CHOSEN, LAB_BATCH, "PROPHET_CREDIT_BYTES", "BYTEPS_SCHEDULING_CREDIT", "BUILD_SCHEDULER"]
    )
    assert not caplog.records
    warn_of_unknown_variables(["PROPHET_CHOSEN_PARTITION_BYTES", "PROPHET_LAB_BATCHES"])
    assert "PROPHET_CHOSEN_PARTITION_BYTES (did you mean PROPHET_PARTITION_BYTES?), PROPHET_LAB_BATCHES:" in caplog.text


def test_what_switches_prophet_on_is_known_by_its_nearly_right_names(caplog: pytest.LogCaptureFixture) -> None:
    warn_of_no_policy("PROPHET_SCHEDULER", "DDP", {"PROPHET_SHEDULER": "prophet", "BYTEPS_SCEDULER": "prophet"})
    assert caplog.messages == [
        "Prophet: knows nothing of BYTEPS_SCEDULER (did you mean BYTEPS_SCHEDULER?), PROPHET_SHEDULER (did you mean "
        "PROPHET_SCHEDULER?): what is set there has no effect"
    ]


def test_another_engines_variable_does_not_switch_prophet_on(caplog: pytest.LogCaptureFixture) -> None:
    warn_of_no_policy("PROPHET_SCHEDULER", "DDP", {"BYTEPS_SCHEDULER": "", "PROPHET_RECORD": "here"})
    assert not caplog.messages
    warn_of_no_policy("PROPHET_SCHEDULER", "DDP", {"BYTEPS_SCHEDULER": "prophet"})
    assert caplog.messages == [
        "Prophet: stays off: BYTEPS_SCHEDULER is set, and for DDP it is PROPHET_SCHEDULER that switches Prophet on"
    ]


@pytest.mark.parametrize("text", ["has failed", "Prophet has failed", "Prophet: has failed", "%s failed"])
def test_every_line_says_once_who_says_it(caplog: pytest.LogCaptureFixture, text: str) -> None:
    for logger in (notices.logger, logging.getLogger("prophet_scheduler")):
        logger.warning(text, *["has"] * text.count("%s"))
    assert [line.replace("has failed", "failed") for line in caplog.messages] == ["Prophet: failed"] * 2


def test_the_first_rank_speaks_for_all_but_of_what_is_a_ranks_own(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notices, "_first", None)
    notices.warn_once("alone")
    notices.speaks(False)
    for _ in range(2):
        notices.warn_once("of all")
        notices.warn_once("of this one", of_this_rank=True)
    notices.speaks(True)  # This rank is the first of another module's.
    notices.speaks(False)
    notices.warn_once("of all")
    assert caplog.messages == ["Prophet: alone", "Prophet: of this one", "Prophet: of all"]
