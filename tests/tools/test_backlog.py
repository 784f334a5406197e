"""How the ends of starts are counted, kept and shown."""

from __future__ import annotations

import pytest

from tools import backlog
from tools.builds import Ended, Limits, ManyGradientsJob, Marks
from tools.provenance import Provenance

TRAINED = Ended("trained", Marks(True, 5, "1f"))
ENDS = [
    ("stock", TRAINED),
    ("stock", Ended("stopped", Marks(), "nothing moved for 30 s")),
    ("stock", Ended("stopped", Marks(True, 2), "nothing moved for 30 s")),
    ("prophet", TRAINED),
    ("prophet", Ended("late", Marks(True), "not over after 240 s")),
]
STARTS = [backlog.counted(policy, ended, 10.0 + n) for n, (policy, ended) in enumerate(ENDS)]


def shown(starts: list[backlog.Start]) -> str:
    data = backlog.Starts("released", ManyGradientsJob(3000, 4096, 5), 100e6, Limits(), starts)
    return backlog.text(data, Provenance("2026-01-02", "abc1234", "a machine", 2))


def test_a_stop_at_the_start_is_counted_apart_from_one_in_training() -> None:
    page = shown(STARTS)
    assert "| stock | 3 | 1 | 1 | 1 | 0 | 10 |" in page
    assert "| prophet | 2 | 1 | 0 | 0 | 1 | 13 |" in page
    assert "- prophet: not over after 240 s, in training" in page
    assert "3,000 gradients of 4096 bytes" in page
    assert "workers at 100Mbit " in page.replace("mbit", "Mbit")


def test_the_page_says_whether_the_weights_are_alike() -> None:
    assert "All that trained have the same weights." in shown(STARTS)
    assert "None trained." in shown(STARTS[1:3])
    other = backlog.counted("prophet", Ended("trained", Marks(True, 5, "2e")), 1.0)
    assert "Weights differ." in shown([*STARTS, other])


def test_a_wrong_rate_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        backlog.main(["--rate", "fast"])
    assert "'fast' is not a rate" in capsys.readouterr().err
