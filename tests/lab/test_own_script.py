"""`prophet testbed` without a testbed: what ranks are told, what they say, and how they end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from typer.testing import CliRunner

from prophet_scheduler.cli import main as cli
from prophet_scheduler.core.errors import UserError
from prophet_scheduler.lab import own_script
from prophet_scheduler.lab.own_script import run_on_testbed, run_ranks
from prophet_scheduler.lab.runner import Edges

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
        return PlayedRank(self._steps[name], log)


def ran(nodes: PlayedNodes, shell: Mapping[str, str] | None = None) -> tuple[int, list[str], list[float]]:
    """(exit status, what was said, what was slept)."""
    said: list[str] = []
    slept: list[float] = []
    edges = Edges(sleep=slept.append)
    status = run_ranks(["python", "train.py"], WORKERS, nodes, said.append, edges, {} if shell is None else shell)
    return status, said, slept


def test_ranks_are_told_what_torchrun_tells_them() -> None:
    nodes = PlayedNodes(worker0=[(b"", 0)], worker1=[(b"", 0)])
    shell = {"PROPHET_SCHEDULER": "prophet", "RANK": "7", "OMP_NUM_THREADS": "3"}
    assert ran(nodes, shell) == (0, [], [])
    for rank, worker in enumerate(WORKERS):
        argv, env, cwd = nodes.started[worker]
        assert (argv, cwd) == (["python", "train.py"], Path.cwd())
        wanted = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
        wanted |= {"MASTER_ADDR": "10.0.0.1", "GLOO_SOCKET_IFNAME": "net0"}
        assert {name: env[name] for name in wanted} == wanted
        assert (env["PROPHET_SCHEDULER"], env["OMP_NUM_THREADS"], env["PYTHONUNBUFFERED"]) == ("prophet", "3", "1")
        assert env["MASTER_PORT"].isdecimal()


def test_lines_are_said_once_and_whole() -> None:
    nodes = PlayedNodes(
        worker0=[(b"one\ntw", None), (b"o\n", None), (b"last", 0)], worker1=[(b"", None), (b"\xff\n", 0)]
    )
    status, said, slept = ran(nodes)
    assert (status, said) == (0, ["one", "two", "\ufffd", "last"])
    assert len(slept) == 2


def test_a_rank_that_fails_ends_it() -> None:
    nodes = PlayedNodes(worker0=[(b"", None)], worker1=[(b"", None), (b"no such file\n", 3)])
    assert ran(nodes)[:2] == (1, ["no such file", "worker1 ended with status 3"])


def test_one_worker_alone_sends_nothing() -> None:
    with pytest.raises(UserError, match="--workers is 1; it must be 2 or more"):
        run_on_testbed(["true"], 1, 250e6, 0.0, print)


def test_a_command_that_there_is_not_is_said_before_a_testbed_is_made(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("print()")
    for command in ("./no_such_command", str(script), str(tmp_path)):
        with pytest.raises(UserError, match=f"^{command}: no such command; give what each worker runs"):
            run_on_testbed([command], 2, 250e6, 0.0, print)


def test_what_follows_the_command_is_the_commands(monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[tuple[object, ...]] = []

    def run(command: Sequence[str], *network: object) -> int:
        called.append((list(command), *network[:3]))
        return 1

    monkeypatch.setattr(own_script, "run_on_testbed", run)
    options = ["testbed", "--bandwidth", "250mbit", "--workers", "3", "--delay", "2ms"]
    done = CliRunner().invoke(cli.app, [*options, "python", "train.py", "--workers", "8"])
    assert done.exit_code == 1
    assert called == [(["python", "train.py", "--workers", "8"], 3, 250e6, 0.002)]


@pytest.mark.parametrize(
    ("options", "line"), [(["--bandwidth", "fast"], "--bandwidth: 'fast'"), (["--delay", "-1ms"], "--delay: '-1ms'")]
)
def test_a_wrong_rate_or_delay_is_named(options: list[str], line: str) -> None:
    done = CliRunner().invoke(cli.app, ["testbed", "--bandwidth", "1gbit", *options, "true"])
    assert isinstance(done.exception, UserError) and str(done.exception).startswith(line)
