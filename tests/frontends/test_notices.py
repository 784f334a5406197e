"""What is said to the people who train, once in a process."""

from __future__ import annotations

import logging

import pytest

from prophet_scheduler.core.settings import CHOSEN, FUSION, LAB_BATCH
from prophet_scheduler.frontends import notices
from prophet_scheduler.frontends.notices import warn_of_unknown_variables


@pytest.fixture(autouse=True)
def nothing_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notices, "_warned", set())


def test_what_is_misspelt_is_one_warning_with_what_is_near(caplog: pytest.LogCaptureFixture) -> None:
    environ = {"PROPHET_FUSON": "0", "PROPHET_RECORDS": "here", "PROPHET_XYZ": "1", FUSION: "1", "HOME": "/"}
    for _ in range(2):
        warn_of_unknown_variables(environ)
    assert [record.getMessage() for record in caplog.records] == [
        "Prophet: knows nothing of PROPHET_FUSON (did you mean PROPHET_FUSION?), PROPHET_RECORDS (did you mean "
        "PROPHET_RECORD?), PROPHET_XYZ: what is set there has no effect"
    ]


def test_what_prophet_sets_itself_is_known_and_never_advised(caplog: pytest.LogCaptureFixture) -> None:
    warn_of_unknown_variables([CHOSEN, LAB_BATCH, "PROPHET_CREDIT_BYTES", "BYTEPS_SCHEDULE"])
    assert not caplog.records
    warn_of_unknown_variables(["PROPHET_CHOSEN_PARTITION_BYTES", "PROPHET_LAB_BATCHES"])
    assert "PROPHET_CHOSEN_PARTITION_BYTES (did you mean PROPHET_PARTITION_BYTES?), PROPHET_LAB_BATCHES:" in caplog.text


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
    notices.speaks(True)  # It is the first of another module's ranks.
    notices.speaks(False)
    notices.warn_once("of all")
    assert caplog.messages == ["Prophet: alone", "Prophet: of this one", "Prophet: of all"]
