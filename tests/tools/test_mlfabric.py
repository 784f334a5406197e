"""`python -m tools.mlfabric`: what it prints, and that bad input is one line and exit status 2."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TypeAlias

import pytest
from _pytest.capture import CaptureResult

from tools import mlfabric

Capture: TypeAlias = pytest.CaptureFixture[str]


def train(capsys: Capture, *arguments: str) -> tuple[int, CaptureResult[str]]:
    status = mlfabric.main(["train", "--seconds", "3", *arguments])
    return status, capsys.readouterr()


@pytest.mark.parametrize("method", ["mlfabric-a", "mlfabric-s", "mlfabric-stale", "async", "rr-sync"])
def test_a_job_is_trained(capsys: Capture, method: str) -> None:
    status, printed = train(capsys, "--method", method, "--json")
    summary = json.loads(printed.out)
    assert status == 0 and summary["updates_applied"] > 0
    assert 0 < summary["loss_above_least"] < summary["loss"] < 0.6932


def test_bounds_are_kept_and_shown(capsys: Capture) -> None:
    _, printed = train(capsys, "--delay-bound", "8", "--divergence-bound", "2", "--momentum", "0.5", "--json")
    summary = json.loads(printed.out)
    assert summary["greatest_delay"] == 8 and summary["updates_dropped"] > 0
    assert 0 < summary["greatest_divergence"] <= 2
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
        (["--profile", "no-such.json"], "no-such.json: no such profile file"),
        (["--workers", "3", "--machines", "4"], "3 workers on 4 machines"),
    ],
)
def test_bad_input_is_one_line(capsys: Capture, arguments: list[str], line: str) -> None:
    status, printed = train(capsys, *arguments)
    assert status == 2 and printed.out == ""
    assert line in printed.err and printed.err.startswith("prophet: ") and printed.err.count("\n") == 1


def test_a_profile_gives_size_and_computing_time(capsys: Capture, tmp_path: Path) -> None:
    parse = mlfabric._arguments().parse_args
    of_profile = mlfabric.setting_of_arguments(parse(["train", "--profile", "resnet50", "--compute-s", "0.2"]))
    assert (of_profile.model_bytes, of_profile.compute_s) == (102_228_128, 0.2)
    (tmp_path / "bad.json").write_text('{"schema": 1, "name": "x", "gradients": []}')
    status, printed = train(capsys, "--profile", str(tmp_path / "bad.json"))
    assert status == 2 and printed.err.count("\n") == 1 and "bad.json" in printed.err


def test_the_scheduler_is_timed(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mlfabric, "PAPER_SCHEDULING_MS", {10: 30.0, 20: 440.0})
    assert mlfabric.main(["scheduler", "--repeats", "1"]) == 0
    assert "20 updates" in capsys.readouterr().out
    assert mlfabric.main(["scheduler", "--repeats", "0"]) == 2
