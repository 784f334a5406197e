"""Tests of what `prophet top` shows of statuses that nobody sent, and of when it ends."""

from __future__ import annotations

import dataclasses
import json
import os
import sys
import termios
from collections.abc import Callable
from dataclasses import replace
from io import StringIO
from typing import Any

import pytest
from rich.console import Console

from prophet_scheduler.cli.top import Document, TopEdges, of_job, print_lines, show, statuses
from prophet_scheduler.cli.top_view import view
from prophet_scheduler.core.cut import Cut, Segment
from prophet_scheduler.core.errors import UserError
from prophet_scheduler.core.network import Network
from prophet_scheduler.core.status import AgentStatus, ArmStatus, Observed, ObservedTimes, describe_cut
from prophet_scheduler.watch.status import (
    Flow,
    ForwardWait,
    LiveStatus,
    Predicted,
    Spread,
    UrgencyBand,
    WorkerName,
)

AGENT = AgentStatus(
    policy="prophet",
    stepped_aside="",
    plans=4,
    agent_cpu_s=0.3,
    partition_bytes=4_096_000,
    push_credit=2 << 20,
    network=Network(31.25e6, 0.0003),
    cut=Cut.uniform(1 << 20).segments,
    recuts=2,
    recut_reason="predicted 0.93 s an iteration",
    arena=True,
)
BANDS = tuple(
    UrgencyBand(place, f"block {place}", place, 100 * place, place % 2, 50 * (place % 2)) for place in range(8)
)


def status(rank: int = 0, job: str = "train-29500", **more: Any) -> LiveStatus:
    made = LiveStatus(
        worker=WorkerName(job, rank, "ddp", workers=2, pid=100 + rank),
        time_s=1000.0,
        since_s=120.0,
        iterations=128,
        agent=AGENT,
        iteration=Spread(0.93, 0.91, 0.96, 0.94, 50),
        sent=Flow(3_200_000_000, 27.5e6, 0.88),
        received=Flow(3_200_000_000, 27.5e6, 0.88),
        all_reduce=True,
        urgency=BANDS,
        forward_waits=ForwardWait("layer1.0.conv1.weight", 0.0125, "the wire, or a rank that has not joined yet"),
        predicted=Predicted(0.929, 1.669),
        last_recut_ago_s=61.0,
    )
    return replace(made, **more)


def text_of(console: Console) -> str:
    assert isinstance(console.file, StringIO)
    return console.file.getvalue()


def screen(shown: list[LiveStatus], width: int = 140, now: float = 1000.5) -> str:
    console = Console(file=StringIO(), width=width, color_system=None)
    console.print(view(shown, now, width))
    return text_of(console)


def test_workers_are_side_by_side() -> None:
    text = screen([status(0), status(1)])
    heads = [line for line in text.splitlines() if "worker 0" in line]
    assert len(heads) == 1 and "worker 1" in heads[0]
    assert "train-29500" in text and "DistributedDataParallel, policy prophet" in text
    for shown in (
        "930ms  910ms to 960ms",
        "1.669s, 1.79 times as long",
        "88%  220mbit",
        "3.2GB",
        "layer1.0.conv1.weight",
        "a rank that has not joined",
        "250mbit, 300us a message",
        "of 1MiB",
        "2 times, 61s ago: predicted 0.93 s an",
        "4 plans, 0.25% of a core",
    ):
        assert text.count(shown) in (2, 4), shown


def test_transfers_are_shown_by_urgency() -> None:
    (line,) = (line for line in screen([status()]).splitlines() if "waiting" in line)
    assert "│ ▂▃▄▅▆▇█│ 28  2.8kB" in line
    empty = screen([status(urgency=(UrgencyBand(0, "block 0"),))])
    assert "│ │ 0" in empty


def test_columns_fit_terminal_width() -> None:
    text = screen([status(rank) for rank in range(6)], width=120)
    assert [line.split().count("worker") for line in text.splitlines() if "worker " in line] == [3, 3]


def test_each_job_has_its_table() -> None:
    text = screen([status(0, "a-1"), status(1, "a-1"), status(0, "b-2")])
    assert text.index("a-1") < text.index("b-2")
    assert text.count("worker 0") == 2


def test_unknown_rows_are_left_out() -> None:
    bare = LiveStatus(WorkerName("job", 0, "byteps"), 1000.0, 0.5, 0, replace(AGENT, network=None, cut=(), recuts=0))
    text = screen([bare])
    assert "not known yet" in text and "BytePS" in text
    assert "link" not in text and "stock" not in text and "cut changed" not in text


@pytest.mark.parametrize(
    ("more", "shown"),
    [
        ({"agent": replace(AGENT, stepped_aside="no hook")}, "stepped aside: no hook"),
        ({"agent": replace(AGENT, given_back="it was faster")}, "torch's reducer took over: it was faster"),
        ({"time_s": 980.0}, "silent for 20 s"),
        ({}, "128 iterations in 120s"),
    ],
)
def test_first_row_reports_problems(more: dict[str, Any], shown: str) -> None:
    assert shown in screen([status(**more)])


def test_cut_in_words() -> None:
    assert describe_cut(()) == ""
    assert describe_cut((Segment(0, 1 << 17), Segment(1 << 20, 1 << 20))) == "of 128KiB to 1MiB, 2 stretches"


def documents(*shown: LiveStatus) -> list[Document]:
    return [json.loads(json.dumps(dataclasses.asdict(each))) for each in shown]


def test_job_is_found_by_prefix() -> None:
    known = documents(status(0, "train-1"), status(0, "other-2"))
    assert of_job(known, None) == known
    assert [document["worker"]["job"] for document in of_job(known, "tra")] == ["train-1"]
    with pytest.raises(UserError, match=r"no job 'x' runs .*; running: other-2, train-1"):
        of_job(known, "x")
    with pytest.raises(UserError, match="you have no job under Prophet on this machine"):
        of_job([], None)


class Played:
    """Workers that give these answers, one look after another, and then are gone."""

    def __init__(self, *looks: list[Document]) -> None:
        self.looks = list(looks)
        self.slept: list[float] = []

    def edges(self, console: Console | None = None) -> TopEdges:
        return TopEdges(self.ask, lambda: 1000.5, self.slept.append, console or Console(file=StringIO()))

    def ask(self) -> list[Document]:
        return self.looks.pop(0) if self.looks else []


@pytest.mark.parametrize("run", [print_lines, show])
def test_top_ends_with_the_job(run: Callable[..., None]) -> None:
    played = Played(documents(status()), documents(status()))
    run(None, None, played.edges())
    assert played.slept == [1.0, 1.0]
    with pytest.raises(UserError):
        run(None, 1, Played().edges())


@pytest.mark.parametrize("run", [print_lines, show])
def test_top_waits_for_a_job(run: Callable[..., None], capsys: pytest.CaptureFixture[str]) -> None:
    played = Played([], [], documents(status()))
    console = Console(file=StringIO(), width=100)
    run(None, None, played.edges(console))
    assert played.slept == [1.0, 1.0, 1.0]
    printed = capsys.readouterr()
    assert printed.err.count("waiting for one") == 1, "once"
    assert "train-29500" in printed.out + text_of(console)


def test_q_ends_top_and_restores_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    ours, theirs = os.openpty()
    with open(theirs) as keyboard:  # noqa: PTH123, as it has no path
        monkeypatch.setattr(sys, "stdin", keyboard)
        before = termios.tcgetattr(keyboard)
        os.write(ours, b"xq")
        console = Console(file=StringIO(), width=100, force_terminal=True)
        show(None, None, TopEdges(lambda: documents(status()), lambda: 1000.5, console=console))
        assert termios.tcgetattr(keyboard) == before
    os.close(ours)
    in_place, _, after = text_of(console).partition("\x1b[?1049l")
    assert "\x1b[?1049h" in in_place and "q to leave" in in_place, "on a screen of its own"
    assert after.count("train-29500") == 1, "the last one stays"


def test_json_has_one_document_per_line(capsys: pytest.CaptureFixture[str]) -> None:
    shown = documents(status(0), status(1))
    print_lines(None, 2, Played(shown, shown, shown).edges())
    lines = capsys.readouterr().out.splitlines()
    assert [json.loads(line)["worker"]["rank"] for line in lines] == [0, 1, 0, 1]


def test_last_screen_stays_visible(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    shown = documents(status())
    console = Console(file=StringIO(), width=100, force_terminal=True)
    show(None, 2, Played(shown, shown).edges(console))
    assert text_of(console).count("train-29500") == 3, "drawn for each look, and once more at the end"
    pipe = Console(file=StringIO(), width=100)
    show(None, 2, Played(shown, shown).edges(pipe))
    assert text_of(pipe).count("train-29500") == 2 and "\x1b" not in text_of(pipe), "each a screen of its own"


@pytest.mark.parametrize("width", [20, 40])
def test_narrow_terminal(width: int) -> None:
    lines = screen([status(0), status(1)], width).splitlines()
    assert max(map(len, lines)) <= width


def test_unreadable_status_is_skipped() -> None:
    (good,) = documents(status())
    assert len(statuses([good, {**good, "schema": 2}, {"worker": {}}])) == 1


def test_arms_are_shown_fastest_first() -> None:
    seen = ArmStatus((Segment(0, 1 << 18),), "", 0.97, 0.953, 0.012, 9)
    other = ArmStatus((Segment(0, 1 << 20),), "two phases", 0.99, 1.02, 0.05, 0)
    text = screen([status(agent=replace(AGENT, arms=(seen, other), tuner="rests: nothing else is worth a try"))], 200)
    lines = [line.strip() for line in text.splitlines()]
    (first,) = (place for place, line in enumerate(lines) if line.startswith("believed"))
    assert "of 256KiB: 953ms ± 1.2%" in lines[first] and "two phases of 1MiB: 1.02s ± 5.0%" in text
    assert "rests: nothing else is worth a try" in text


def test_advice_on_observed_job_is_renewed_each_minute() -> None:
    times = ObservedTimes(iteration_s=1.5, backward_s=0.4, network_s=1.0, others_s=0.0, error_s=0.01, looks=20)
    seen = Observed(2, 200, times, (30_000_000,), (0.4,))
    first = status(agent=replace(AGENT, policy="observe", observed=seen))
    later = status(agent=replace(AGENT, policy="observe", observed=replace(seen, iterations=300)))
    console = Console(file=StringIO(), width=200)
    played = Played(documents(first, status(1)), documents(later, status(1)), documents(later, status(1)))
    show(None, 3, replace(played.edges(console), now=iter([0.0, 0.0, 0.0, 1.0, 1.0, 99.0, 99.0, 99.0]).__next__))
    text = text_of(console)
    assert text.count("67% ± 1% waits for the network") == 3 and text.count("would help: twice the rate") == 3
    assert text.count("of 200 iterations") == 2 and text.count("of 300 iterations") == 1
    assert "forward waits for" not in text and "sent" not in text
