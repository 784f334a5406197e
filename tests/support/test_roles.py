"""Traces of a role that hangs."""

from __future__ import annotations

import os
import subprocess
import sys

from support.roles import write_stacks


def test_what_still_runs_says_where_it_is_and_ends() -> None:
    # It answers a line with a line, and waits for the next.
    process = subprocess.Popen(
        [sys.executable, "-u", "-m", "fileinput"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env={**os.environ, "PYTHONFAULTHANDLER": "1"},
        start_new_session=True,
    )
    assert process.stdin is not None and process.stdout is not None
    with process:
        process.stdin.write(b"a line\n")
        process.stdin.flush()
        assert b"a line" in process.stdout.readline()
        write_stacks([process])
        said = process.stdout.read().decode()
    assert process.returncode < 0
    assert "most recent call first" in said and "fileinput.py" in said, said
