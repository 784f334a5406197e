"""`python -m prophet.tools.mlfabric`: what it prints, and that bad input is one line and exit status 2."""

import json

import pytest
from prophet.tools import mlfabric


def train(capsys, *arguments):
    status = mlfabric.main(["train", "--seconds", "5", *arguments])
    return status, capsys.readouterr()


@pytest.mark.parametrize("method", ["mlfabric-a", "mlfabric-s", "mlfabric-stale", "async", "rr-sync"])
def test_a_job_is_trained(capsys, method):
    status, printed = train(capsys, "--method", method, "--json")
    found = json.loads(printed.out)
    assert status == 0 and found["updates_applied"] > 0
    assert 0 < found["loss_above_least"] < found["loss"] < 0.6932


def test_bounds_are_kept_and_shown(capsys):
    _, printed = train(capsys, "--delay-bound", "8", "--divergence-bound", "2", "--momentum", "0.5", "--json")
    found = json.loads(printed.out)
    assert found["greatest_delay"] == 8 and found["updates_dropped"] > 0
    assert 0 < found["greatest_divergence"] <= 2
    status, printed = train(capsys, "--delay-bound", "8")
    assert status == 0 and "updates dropped" in printed.out


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["--workers", "0"], "0 workers on 1 machines"),
        (["--bandwidth", "fast"], "'fast' is not a rate"),
        (["--model-size", "0"], "too small for a size"),
        (["--method", "rr-sync", "--delay-bound", "3"], "not ring"),
        (["--divergence-bound", "1e-6"], "give more"),
        (["--momentum", "2"], "momentum 2.0"),
        (["--learning-rate", "0"], "learning rate 0.0"),
        (["--seconds", "0"], "a job of 0.0 seconds"),
    ],
)
def test_bad_input_is_one_line(capsys, arguments, line):
    status, printed = train(capsys, *arguments)
    assert status == 2 and printed.out == ""
    assert line in printed.err and printed.err.startswith("prophet: ") and printed.err.count("\n") == 1


def test_the_scheduler_is_timed(capsys, monkeypatch):
    monkeypatch.setattr(mlfabric, "PAPER_SCHEDULING_MS", {10: 30.0, 20: 440.0})
    assert mlfabric.main(["scheduler", "--repeats", "1"]) == 0
    assert "20 updates" in capsys.readouterr().out
    assert mlfabric.main(["scheduler", "--repeats", "0"]) == 2
