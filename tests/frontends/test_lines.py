"""Tests of the lines that a job prints where it begins and where it ends."""

from __future__ import annotations

from dataclasses import replace

import pytest

from prophet_scheduler.core.status import AgentStatus, ArmStatus
from prophet_scheduler.frontends.lines import begins, ends, plain_words
from prophet_scheduler.watch.status import LiveStatus, Predicted, Spread, WorkerName

AGENT = AgentStatus("prophet", "", 2, 0.1, 1 << 20, None)
SPREAD = Spread(0.306, 0.3, 0.33, 0.31, 50, 0.312)
STATUS = LiveStatus(WorkerName("train", 0, "ddp"), 0.0, 9.0, 100, AGENT, SPREAD, predicted=Predicted(0.3, 0.364))


def test_a_line_at_the_start_and_one_at_the_end(capsys: pytest.CaptureFixture[str]) -> None:
    begins("DistributedDataParallel over gloo", "2 ranks", 25_600_000, "prophet")
    ends(100, SPREAD, "no more is known")
    ends(1, None, "")
    assert capsys.readouterr().err.splitlines() == [
        "Prophet: schedules DistributedDataParallel over gloo, 2 ranks, 25.6MB an iteration, policy prophet",
        "Prophet: 100 iterations; the last 50 took 0.312 s on average (median 0.306 s); no more is known",
        "Prophet: 1 iterations, too few to time",
    ]


def test_what_the_engine_alone_would_take_comes_with_how_sure_that_is() -> None:
    predicted = "DDP without Prophet is predicted to take 0.364 s"
    assert plain_words(STATUS, "DDP") == f"{predicted} (with Prophet the prediction is 2% too low)"
    high = replace(STATUS, predicted=Predicted(0.32, 0.364))
    assert plain_words(high, "DDP") == f"{predicted} (with Prophet the prediction is 5% too high)"
    assert plain_words(replace(STATUS, predicted=Predicted(None, 0.364)), "DDP") == predicted
    assert plain_words(replace(STATUS, predicted=Predicted()), "DDP").endswith("not known yet")
    arm = ArmStatus((), "torch's reducer", 0.37, 0.0352, 0.013, 9)
    believed = "DDP without Prophet is estimated to take 35.2 ms ± 1% (9 iterations measured)"
    assert plain_words(STATUS, "DDP", arm) == believed


def test_an_engine_that_has_its_own_order_again_is_not_predicted() -> None:
    aside = replace(STATUS, agent=replace(AGENT, stepped_aside="a hook is registered"))
    assert plain_words(aside, "DDP") == "DDP has its own order: a hook is registered"
    given = replace(STATUS, agent=replace(AGENT, given_back="35 ms and 36 ms"))
    assert plain_words(given, "DDP") == "DDP then went on without Prophet, which was faster"
