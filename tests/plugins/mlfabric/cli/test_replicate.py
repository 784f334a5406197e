"""`prophet replicate`: one line for what is wrong, and a process that ends as it is told to."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from prophet_mlfabric.cli.commands import replicate
from prophet_mlfabric.replica import ReplicaModel, ReplicaStore, encoded
from prophet_scheduler.core.errors import UserError


@pytest.fixture
def tokens(tmp_path: Path) -> Path:
    file = tmp_path / "tokens"
    file.write_text("job 0123456789abcdef\nother 0123456789abcdeg\n")
    return file


def test_what_is_wrong_is_one_line_before_anything_listens(tmp_path: Path, tokens: Path) -> None:
    file = tmp_path / "model.npz"
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        for listen, token_file, tenant, model, line in (
            ("127.0.0.1:0", tmp_path / "none", "job", file, "none: cannot be read"),
            ("127.0.0.1:0", tokens, None, file, "has 2 tenants: say in --tenant which one this job is"),
            ("127.0.0.1:0", tokens, "third", file, "has no tenant third, which --tenant says"),
            ("nowhere", tokens, "job", file, "--listen is 'nowhere'; it must be HOST:PORT"),
            ("127.0.0.1:0", tokens, "job", tmp_path, "--file: .+ is a folder; name a file in it"),
            ("127.0.0.1:0", tokens, "job", tokens, "--file .+/tokens: not a replica of a model"),
            (f"127.0.0.1:{port}", tokens, "job", file, "--listen 127.0.0.1:.+: Address already in use; choose"),
            (
                f"127.0.0.1:{port}",
                tokens,
                "job",
                tmp_path / "of" / "model",
                "--listen 127.0.0.1:.+: Address already in use",
            ),
        ):
            with pytest.raises(UserError, match=line):
                replicate(token_file, model, listen, tenant)
    assert sorted(tmp_path.iterdir()) == [tokens]


def test_a_replica_ends_with_sigterm_as_with_ctrl_c_and_says_what_it_has(tmp_path: Path, tokens: Path) -> None:
    file = tmp_path / "of" / "model.npz"
    program = [sys.executable, "-u", "-m", "prophet_scheduler.cli.main", "replicate", "--token-file", str(tokens)]
    command = [*program, "--tenant", "job", "--file", str(file), "--listen", "127.0.0.1:0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stderr is not None
        line = process.stdout.readline()
        assert line.endswith(f" for job; {file} has no model yet\n")
        port = int(line.split()[2].rpartition(":")[2])
        model = ReplicaModel({"weight": np.zeros(3, np.float32)}, (4,), 0, 1.0)
        ReplicaStore("127.0.0.1", port, "job", "0123456789abcdef", 60.0).keep(encoded(model), 4)
        process.send_signal(signal.SIGTERM)
        output, errors = process.communicate(timeout=240)
    assert (process.returncode, errors) == (130, "")
    assert output == f"1 copies were kept; {file} has a model with 4 updates\n"
