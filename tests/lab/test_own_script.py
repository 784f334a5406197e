"""`prophet testbed` without a testbed: what ranks are told, what they say, and how they end."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from prophet_scheduler.core.errors import UserError
from prophet_scheduler.lab import doctor, own_script
from prophet_scheduler.lab.own_script import (
    Links,
    compare_on_testbed,
    parse_change,
    parse_pattern,
    run_on_testbed,
    run_ranks,
    seconds_in,
)
from prophet_scheduler.lab.session import worker_cores
from prophet_scheduler.lab.testbed import namespaces
from support.commands import Command

WORKERS = ("worker0", "worker1")
Step = tuple[bytes, int | None]
"""Text that a rank writes before each look, and its exit status then."""


class PlayedRank:
    def __init__(self, steps: Sequence[Step], log: Path) -> None:
        self._steps, self._log = list(steps), log

    def poll(self) -> int | None:
        words, code = self._steps.pop(0)
        self._steps = self._steps or [(b"", code)]
        with self._log.open("ab") as log:
            log.write(words)
        return code


class PlayedNodes:
    """Nodes whose ranks do these steps; `started` has each one's command and environment."""

    def __init__(self, **steps: Sequence[Step]) -> None:
        self._steps = steps
        self.started: dict[str, tuple[list[str], Mapping[str, str], Path]] = {}

    def address(self, name: str) -> str:
        return f"10.0.0.{WORKERS.index(name) + 1}"

    def interface(self, name: str) -> str:
        return "net0"

    def popen(self, name: str, argv: Sequence[str], *, env: Mapping[str, str], log: Path, cwd: Path) -> PlayedRank:
        self.started[name] = (list(argv), env, cwd)
        log.touch()
        return PlayedRank(self._steps[name], log)


def ran(nodes: Any, shell: Mapping[str, str] | None = None) -> tuple[int, list[str]]:
    """(exit status, what was said)."""
    said: list[str] = []
    status = run_ranks(["python", "train.py"], WORKERS, nodes, said.append, {} if shell is None else shell)
    return status, said


def test_ranks_get_variables_of_torchrun() -> None:
    nodes = PlayedNodes(worker0=[(b"", 0)], worker1=[(b"", 0)])
    shell = {"PROPHET_SCHEDULER": "prophet", "RANK": "7", "OMP_NUM_THREADS": "3"}
    assert ran(nodes, shell) == (0, [])
    for rank, worker in enumerate(WORKERS):
        argv, env, cwd = nodes.started[worker]
        assert (argv, cwd) == (["python", "train.py"], Path.cwd())
        wanted = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
        wanted |= {"MASTER_ADDR": "10.0.0.1", "GLOO_SOCKET_IFNAME": "net0"}
        assert {name: env[name] for name in wanted} == wanted
        assert (env["PROPHET_SCHEDULER"], env["OMP_NUM_THREADS"], env["PYTHONUNBUFFERED"]) == ("prophet", "3", "1")
        assert env["MASTER_PORT"].isdecimal()


def test_output_is_passed_on_line_by_line() -> None:
    nodes = PlayedNodes(
        worker0=[(b"one\ntw", None), (b"o\n", None), (b"last", 0)], worker1=[(b"", None), (b"\xff\n", 0)]
    )
    assert ran(nodes) == (0, ["one", "two", "\ufffd", "last"])


def test_failed_rank_ends_the_run() -> None:
    nodes = PlayedNodes(worker0=[(b"", None)], worker1=[(b"", None), (b"no such file\n", 3)])
    assert ran(nodes) == (1, ["no such file", "worker1 ended with status 3"])


def test_impossible_run_makes_no_testbed(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("print()")
    for command in ("./no_such_command", str(script), str(tmp_path)):
        with pytest.raises(UserError, match=f"^{command}: no such command; give what each worker runs"):
            run_on_testbed([command], Links(2, 250e6, 0.0), print)


def test_variants_alternate(monkeypatch: pytest.MonkeyPatch) -> None:
    shells: list[Mapping[str, str]] = []
    said: list[str] = []
    times = iter([1.2, 1.0, 1.0, 1.3, 1.1, 1.0])

    def run(command: object, names: object, nodes: object, say: Callable[[str], None], shell: Mapping[str, str]) -> int:
        shells.append(shell)
        say(f"took {next(times)} s")
        return 0

    monkeypatch.setattr(own_script, "testbed_of", lambda command, links: contextlib.nullcontext(((), None)))
    monkeypatch.setattr(own_script, "run_ranks", run)
    change, pattern = ["FASTER=1"], "took (.*) s"
    assert compare_on_testbed(["true"], Links(2, 250e6, 0.0), change, 3, pattern, said.append) == 0
    assert ["FASTER" in shell for shell in shells] == [False, True, True, False, False, True]
    assert said[1] == "pair 2: 1.300 s without, 1.000 s with it, 1.30 times"
    assert said[-1] == "with FASTER=1: 1.20 ± 0.06 times as fast", "1.2, 1.3 and 1.1"


def test_seconds_are_last_match_of_pattern() -> None:
    pattern = parse_pattern(r"iteration \d+: ([0-9.]+) s")
    assert seconds_in(["iteration 1: 0.5 s", "iteration 20: 0.31 s", "weights 7c"], pattern) == 0.31
    with pytest.raises(UserError, match=r"--seconds: .* finds nothing in what the command printed"):
        seconds_in(["loss 1.0"], pattern)
    for took in ("nan-", "nan", "0.0", "inf"):
        with pytest.raises(UserError, match=f"finds '{took}', not a number above 0"):
            seconds_in([f"took {took}"], parse_pattern(r"took (\S+)"))
    with pytest.raises(UserError, match="finds None, not a number above 0"):
        seconds_in(["took long"], parse_pattern(r"took (?:([0-9.]+) s|long)"))
    for text, wrong in (("took s", "needs a group"), ("took (", "is not a regular expression")):
        with pytest.raises(UserError, match=f"^--seconds: .*{wrong}"):
            parse_pattern(text)


def test_change_is_parsed() -> None:
    assert parse_change(["A=1", "B=x=y", "C="]) == {"A": "1", "B": "x=y", "C": ""}
    with pytest.raises(UserError, match=r"^--compare: 'prophet' is not a variable; write e.g. PROPHET_SCHEDULER="):
        parse_change(["A=1", "prophet"])


@pytest.mark.netns
def test_comparison_on_testbed(prophet: Command) -> None:
    script = "import os, time; time.sleep(0.1); print('took', 1.0 if os.environ.get('FASTER') else 1.5, 's')"
    options = ["testbed", "--bandwidth", "1gbit", "--compare", "FASTER=1", "--pairs", "2", "--seconds", "took (.*) s"]
    status, out, _ = prophet(*options, sys.executable, "-c", script)
    assert (status, out.splitlines()[-1]) == (0, "with FASTER=1: 1.50 ± 0.00 times as fast")
    status, out, _ = prophet(*options, sys.executable, "-c", "print('no'); raise SystemExit(3)")
    assert status == 1 and "ended with status 3" in out


def test_seconds_need_compare(prophet: Command) -> None:
    line = prophet.refuses("testbed", "--bandwidth", "1gbit", "--seconds", "took (.*) s", "true")
    assert line == "prophet: --seconds is for --compare; leave it out, or give both\n"


def test_root_without_namespaces(monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing(*command: str) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess(command, 1, "", "unshare failed: Operation not permitted")

    monkeypatch.setattr(namespaces, "try_alone", nothing)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    with pytest.raises(UserError) as caught:
        run_on_testbed(["true"], Links(2, 250e6, 0.0), print)
    assert str(caught.value) in {finding.line for finding in doctor.examine()}


def test_options_after_command_belong_to_it(prophet: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[tuple[object, ...]] = []

    def run(command: Sequence[str], links: Links, say: object) -> int:
        called.append((list(command), links))
        return 1

    monkeypatch.setattr(own_script, "run_on_testbed", run)
    options = ["--bandwidth", "250mbit", "--workers", "3", "--delay", "2ms"]
    assert prophet("testbed", *options, "python", "train.py", "--workers", "8")[0] == 1
    assert called == [(["python", "train.py", "--workers", "8"], Links(3, 250e6, 0.002))]


@pytest.mark.parametrize("options", [("--bandwidth", "fast"), ("--delay", "-1ms")])
def test_wrong_rate_or_delay_is_named(options: tuple[str, str], prophet: Command) -> None:
    line = prophet.refuses("testbed", "--bandwidth", "1gbit", *options, "true")
    assert line.startswith("prophet: {}: {!r} is not a ".format(*options))


def test_cores_of_workers() -> None:
    assert worker_cores([0, 1], 2) == {"worker0": (0,), "worker1": (1,)}
    assert worker_cores([2, 3, 5, 7, 8], 2) == {"worker0": (2, 3), "worker1": (5, 7)}
    assert worker_cores([4], 1) == {"worker0": (4,)}
    assert worker_cores([0, 1], 3) == {}, "with fewer cores than workers all share all"
