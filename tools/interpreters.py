"""Pythons that a release has wheels for, as far as this machine has them, and their environments.

Rule of this file: finding interpreters and running commands for them. release.py and release_checks.py build and check.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from prophet_scheduler.core.errors import UserError

DISTRIBUTION = "prophet-scheduler"
_CLASSIFIER = "Programming Language :: Python :: "
_ASK = "import sys; print('%d.%d' % sys.version_info[:2])"


@dataclass(frozen=True)
class Interpreter:
    """Python to build for: `version` such as 3.13, and the program."""

    version: str
    program: str


def supported() -> list[str]:
    """Return the versions that the distribution's classifiers name, the oldest first."""
    classifiers = importlib.metadata.metadata(DISTRIBUTION).get_all("Classifier") or []
    return [line.removeprefix(_CLASSIFIER) for line in classifiers if line.startswith(_CLASSIFIER)]


def version_of(program: str) -> str:
    """Return the program's version, such as 3.13. Raises UserError."""
    return run(program, "-I", "-c", _ASK).strip()


def interpreters(
    named: Sequence[str],
    versions: Sequence[str],
    ask: Callable[[str], str] = version_of,
    which: Callable[[str], str | None] = shutil.which,
) -> list[Interpreter]:
    """Return one interpreter for each available version, in that order: one of those `named`, this one, or pythonX.Y in
    PATH.

    Raises UserError if a named one is of no such version.
    """
    programs: dict[str, str] = {}
    for program in (*named, sys.executable):
        version = ask(program)
        if version in versions:
            programs.setdefault(version, program)
        elif program in named:
            raise UserError(f"--python: {program} is Python {version}; wheels are for {', '.join(versions)}")
    for version in versions:
        program_in_path = which(f"python{version}")
        if version in programs or program_in_path is None:
            continue
        with contextlib.suppress(UserError):  # pyenv's are in PATH for versions that it has and was not told to use
            if ask(program_in_path) == version:
                programs[version] = program_in_path
    return [Interpreter(version, programs[version]) for version in versions if version in programs]


class Environment:
    """Virtual environment of an interpreter, initially empty; this Python's pip fills it."""

    def __init__(self, interpreter: Interpreter, folder: Path) -> None:
        """Make the environment. Raises UserError if the interpreter cannot."""
        self.folder = folder
        run(interpreter.program, "-m", "venv", "--without-pip", str(folder))

    def program(self, name: str) -> str:
        """Return the path of a command in it."""
        return str(self.folder / "bin" / name)

    def pip(self, *arguments: str) -> tuple[str, ...]:
        """Return the command that runs pip for it."""
        return (sys.executable, "-m", "pip", "--python", self.program("python"), *arguments)


def run(*command: str, cwd: Path | None = None, environ: Mapping[str, str] | None = None) -> str:
    """Return the command's output. Raises UserError with its last line if it fails."""
    done = outcome(*command, cwd=cwd, environ=environ)
    if done.returncode != 0:
        words = (done.stderr + done.stdout).strip().splitlines()
        raise UserError(f"{' '.join(command[:4])} ended with status {done.returncode}: {words[-1] if words else ''}")
    return done.stdout


def outcome(
    *command: str, cwd: Path | None = None, environ: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Return how the command ended. Raises UserError if there is no such command.

    It sees nothing of this checkout, and none of this process's settings but `environ`.
    """
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "PROPHET_", "BYTEPS_"))}
    try:
        return subprocess.run(command, cwd=cwd, env=kept | dict(environ or {}), capture_output=True, text=True)
    except OSError as error:
        raise UserError(f"{command[0]} cannot be run ({error.strerror})") from None
