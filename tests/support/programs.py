"""Programs that tests start: an environment without what this shell has switched on, and `prophet run` as typed.

Rule of this file: what holds of any program; BytePS's roles are in roles.py. A free port is tools/ports.py's.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

SWITCHES = ("BYTEPS_", "DMLC_", "PROPHET_")
"""How the variables begin that would switch something on."""
THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


LATE_NS = 1_000_000
"""How late a sleep may end in a worker of stock BytePS where no time is looked at: a dozen of its threads sleep for a
microsecond again and again, which would take most of two cores (docs/decisions/waiting-instead-of-polling.md)."""
LATE = ("sh", "-c", f'echo {LATE_NS} > /proc/self/timerslack_ns; exec "$@"', "sh")
"""Before a command: the same for it, and for what it starts."""


def without_switches() -> dict[str, str]:
    """This process's environment, and nothing in it that would switch something on."""
    return {name: value for name, value in os.environ.items() if not name.startswith(SWITCHES)}


def clean_environ() -> dict[str, str]:
    """`without_switches`, with one thread for each library's loops, and nothing kept."""
    return without_switches() | dict.fromkeys(THREADS, "1") | {"PROPHET_CACHE": "off"}


def torchrun_variables(rank: int, ranks: int, port: int) -> dict[str, str]:
    """What torchrun tells a rank of a job on this machine."""
    return {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "WORLD_SIZE": str(ranks),
        "LOCAL_WORLD_SIZE": str(ranks),
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
    }


def run_together(commands: Sequence[Sequence[str]], environs: Sequence[Mapping[str, str]], limit_s: float) -> list[str]:
    """Runs programs at once to their ends; what each printed. Fails with what they said where one does, or is late."""
    programs = [
        subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for command, environ in zip(commands, environs, strict=True)
    ]
    try:
        said = [program.communicate(timeout=limit_s) for program in programs]
    finally:
        for program in programs:
            program.kill()
    errors = "\n".join(text[-4000:] for _, text in said)
    assert [program.returncode for program in programs] == [0] * len(programs), errors
    return [printed for printed, _ in said]


def prophet_run(config: str, folder: Path, limit_s: float, late: bool = False) -> Path:
    """Runs an experiment in `folder`, late with the ends of sleeps where `late`. Returns the folder of its results.

    Fails with what it said.
    """
    (folder / "config.yaml").write_text(config, encoding="utf-8")
    command = [str(Path(sys.executable).with_name("prophet")), "run", "config.yaml", "--out", "out"]
    words = [*(LATE if late else ()), *command]
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True, timeout=limit_s)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder / "out"
