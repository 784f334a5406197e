"""Programs that tests start: an environment without this shell's switches, and `prophet run` as typed.

Rule of this file: helpers for any program; BytePS's roles are in roles.py, free ports in tools/ports.py.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

SWITCHES = ("BYTEPS_", "DMLC_", "PROPHET_")
"""Prefixes of variables that would switch something on."""
THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


LATE_NS = 1_000_000
"""Maximum lateness of a sleep in a worker of stock BytePS, in tests that ignore times. A dozen of its threads sleep for
a microsecond again and again, which would take most of two cores (docs/decisions/waiting-instead-of-polling.md)."""
LATE = ("sh", "-c", f'echo {LATE_NS} > /proc/self/timerslack_ns; exec "$@"', "sh")
"""Prefix of a command that sets this for it and its children."""


def without_switches() -> dict[str, str]:
    """Return this process's environment without the variables that switch something on.

    Jobs start from threads of their own while pytest changes variables; `list` is atomic, `items` is not.
    """
    return {name: os.environ.get(name, "") for name in list(os.environ) if not name.startswith(SWITCHES)}


def clean_environ() -> dict[str, str]:
    """Return `without_switches`, with one thread for each library's loops, without the cache and without lines of jobs
    that work.

    The front ends check the states of gradients there (frontends/torch/life.py).
    """
    own = {"PROPHET_CACHE": "off", "PROPHET_QUIET": "1", "PROPHET_VALIDATE": "1"}
    return without_switches() | dict.fromkeys(THREADS, "1") | own


def torchrun_variables(rank: int, ranks: int, port: int) -> dict[str, str]:
    """Return the variables that torchrun sets for a rank of a job on this machine."""
    return {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "WORLD_SIZE": str(ranks),
        "LOCAL_WORLD_SIZE": str(ranks),
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
    }


def end_together(
    commands: Sequence[Sequence[str]], environs: Sequence[Mapping[str, str]], limit_s: float, folder: Path | None = None
) -> list[tuple[int, str, str]]:
    """Run programs at once to their ends. Return each one's status, output and errors. Fail if one is late."""
    pipe = subprocess.PIPE
    programs = [
        subprocess.Popen(command, env=environ, cwd=folder, stdout=pipe, stderr=pipe, text=True)
        for command, environ in zip(commands, environs, strict=True)
    ]
    try:
        said = [program.communicate(timeout=limit_s) for program in programs]
    finally:
        for program in programs:
            program.kill()
    return [(program.returncode, *texts) for program, texts in zip(programs, said, strict=True)]


def run_together(commands: Sequence[Sequence[str]], environs: Sequence[Mapping[str, str]], limit_s: float) -> list[str]:
    """Run programs at once to their ends. Return each one's output. Fail with their errors if one fails or is late."""
    ended = end_together(commands, environs, limit_s)
    assert [status for status, *_ in ended] == [0] * len(ended), "\n".join(errors[-4000:] for *_, errors in ended)
    return [printed for _, printed, _ in ended]


def prophet_run(config: str, folder: Path, limit_s: float, late: bool = False) -> Path:
    """Run an experiment in `folder`; with `late`, sleeps may end late. Return the folder of its results.

    If it fails, fail with its output.
    """
    (folder / "config.yaml").write_text(config, encoding="utf-8")
    command = [str(Path(sys.executable).with_name("prophet")), "run", "config.yaml", "--out", "out"]
    words = [*(LATE if late else ()), *command]
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True, timeout=limit_s)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder / "out"
