"""`prophet advise`: its words, its table and its JSON."""

from __future__ import annotations

import io
import json
from pathlib import Path

from rich.console import Console

from prophet_scheduler.cli.advice_view import advice_table, left_out, verdict
from prophet_scheduler.lab.records import Advice, Suggestion
from prophet_scheduler.models.profiles import save_profile
from support.commands import Command
from support.profiles import resnet50


def suggestion(gain: float, helps: bool, **more: str) -> Suggestion:
    made = {"change": "half", "words": "half of the bytes", **more}
    return Suggestion(iteration_s=0.5, gain=gain, helps=helps, error=0.031, worst_error=None, **made)


def advice(*suggestions: Suggestion, held_back: bool = True, measured_s: float | None = None) -> Advice:
    return Advice(
        job="resnet50",
        policy="prophet",
        workers=2,
        servers=1,
        iteration_s=1.0,
        simulated_s=0.97,
        measured_s=measured_s,
        error=0.02,
        worst_error=0.17,
        computing_s=0.6,
        bound_s=0.9,
        waits=0.4,
        network_holds_back=held_back,
        suggestions=suggestions,
    )


def shown(value: Advice) -> str:
    console = Console(width=120, record=True, file=io.StringIO())
    console.print(advice_table(value))
    return console.export_text()


def test_verdict() -> None:
    assert verdict(advice()) == (
        "The network holds this job back: an iteration would take 1.000 s, computing alone 0.600 s; 40% of it is "
        "waiting. No schedule on this network could take less than 0.900 s."
    )
    assert verdict(advice(held_back=False, measured_s=1.0)) == (
        "The network does not hold this job back: an iteration takes 1.000 s, computing alone 0.600 s."
    )


def test_table_has_job_and_changes() -> None:
    text = shown(advice(suggestion(1.01, False), suggestion(1.9, True), measured_s=1.0))
    lines = [line.split() for line in text.splitlines() if line.strip()]
    assert "resnet50 under prophet, 2 workers, 1 servers" in text
    assert next(line for line in lines if "measured" in line)[-2:] == ["1.000", "1.00"]
    assert next(line for line in lines if "simulated" in line)[-3:] == ["1.00", "2%", "17%"]
    rows = [line for line in lines if line[0] == "half"]
    assert [row[-1] for row in rows] == ["yes", "no"], "the best first"
    assert rows[0][-3:] == ["3%", "-", "yes"]


def test_costs_left_out_are_listed() -> None:
    assert left_out(advice(suggestion(1.0, False), suggestion(1.0, False, leaves_out="rounding"))) == [
        "half of the bytes: leaves out rounding"
    ]


def test_command_prints_text_or_json(prophet: Command, tmp_path: Path) -> None:
    save_profile(resnet50(5_000_000), tmp_path / "job.json", source="a test")
    source = ["advise", tmp_path / "job.json", "--bandwidth", "40mbit", "--policy", "ddp-prophet"]
    status, out, _ = prophet(*source)
    assert status == 0 and out.startswith("The network holds this job back") and "half precision on the wire" in out
    status, out, _ = prophet(*source, "--json")
    record = json.loads(out)
    assert status == 0 and record["network_holds_back"] and record["suggestions"]
    assert "a folder that PROPHET_RECORD has left" in prophet.refuses("advise", tmp_path, "--bandwidth", "1gbit")
