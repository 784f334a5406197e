"""`prophet coordinate`: options, error lines, and the end of the process."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from prophet_mlfabric.cli.commands import coordinate, summary
from prophet_mlfabric.coordination import Coordination, Terms
from prophet_mlfabric.messages import Done, Hello
from prophet_scheduler.core.errors import UserError


@pytest.fixture
def tokens(tmp_path: Path) -> Path:
    file = tmp_path / "tokens"
    file.write_text("job 0123456789abcdef\n")
    file.chmod(0o644)
    return file


def test_options_become_terms_in_bytes_and_seconds(tokens: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    served: list[Any] = []
    monkeypatch.setattr("prophet_mlfabric.server.coordinator", lambda *of: served.append(of))
    with pytest.raises(UserError, match=r"^--listen is 'here'"):
        coordinate(tokens, "here", 30, "8gbit", "800mbit", "50ms", "3s", 2.5, None)
    terms = Terms(30, 1e8, 1e9, 0.05, 3.0, divergence_bound=2.5)
    assert served == [({"job": "0123456789abcdef"}, terms)]


@pytest.mark.parametrize(
    ("wrong", "line"),
    [
        ({"delay_bound": 0}, "--delay-bound 0: "),
        ({"rate": "fast"}, "--rate: 'fast' is not a rate"),
        ({"server_rate": "-1"}, "--server-rate: '-1' is not a rate"),
        ({"batch": "soon"}, "--batch: 'soon' is not a time"),
        ({"dead_after": "1s"}, "--dead-after 1s: a worker may reconnect; give 2s or more"),
    ],
)
def test_invalid_options_are_named(tokens: Path, wrong: dict[str, Any], line: str) -> None:
    with pytest.raises(UserError, match=f"^{line}"):
        coordinate(tokens, **{"listen": "nowhere", **wrong})


def test_wrong_files_and_addresses_are_refused_before_listening(tmp_path: Path, tokens: Path) -> None:
    for token_file, status, listen, line in (
        (tmp_path / "none", None, "127.0.0.1:0", "none: cannot be read"),
        (tokens, tokens / "status.json", "127.0.0.1:0", "--status: .*/tokens is not a folder"),
        (tokens, None, "nowhere", "--listen "),
        (tokens, None, "no..name:1", "--listen is 'no..name:1'; it must be HOST:PORT"),
        (tokens, None, "127.0.0.1:99999", "--listen is '127.0.0.1:99999'; it must be HOST:PORT, the port 0 to 65535"),
    ):
        with pytest.raises(UserError, match=line):
            coordinate(token_file, listen, status=status)


def test_a_taken_port_gives_one_line_with_advice(tokens: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(UserError, match=f"^--listen {address}: Address already in use; choose another port$"):
            coordinate(tokens, address)
    assert capsys.readouterr().out == "", "what is wrong is said alone"


def test_the_summary_has_a_line_for_each_busy_job() -> None:
    busy, idle = Coordination(Terms(), 1), Coordination(Terms(), 1)
    busy.join(Hello(tenant="busy", worker=0, incarnation=1, node="machine"), 0.0)
    busy.receive(0, Done(update=0, version=0, size_bytes=10), 0.0)
    assert summary({"busy": busy, "idle": idle}) == [
        "busy: 1 updates applied, greatest delay 0; 0 dropped, 0 lost, 1 without a grant, 0 requests refused"
    ]


def test_sigterm_ends_the_coordinator_which_writes_its_status(tmp_path: Path, tokens: Path) -> None:
    status = tmp_path / "status.json"
    program = [sys.executable, "-u", "-m", "prophet_scheduler.cli.main", "coordinate"]
    command = [*program, "--token-file", str(tokens), "--listen", "127.0.0.1:0", "--status", str(status)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stderr is not None
        assert process.stdout.readline() == f"{tokens} can be read by everybody on this machine: chmod o-r {tokens}\n"
        assert process.stdout.readline().startswith("listening on tcp://127.0.0.1:")
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=240)
    assert (process.returncode, errors) == (130, "")
    assert json.loads(status.read_text())["tenants"]["job"]["version"] == 0
