"""torch's own tests of DistributedDataParallel, plain and under Prophet: what passes plain must pass under Prophet.

Rule of this file: which tests, how they are compared, and the list of those that may differ, with a reason each
(torch_tests.yaml). Who runs a test is torch_tests_ranks.py's: one such program for plain tests and one for those under
Prophet, side by side. `make torch-tests` runs all that the installed torch ships; `--python` names the interpreter of
another torch.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

import yaml
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from prophet_scheduler.core import settings
from prophet_scheduler.core.errors import UserError
from tools.command_line import exit_status

ROOT = Path(__file__).parents[1]
DIFFERENCES = Path(__file__).with_suffix(".yaml")
LIMIT_S = 120.0
"""Longest seconds of a test; most take about a second."""
UNKNOWN = "NO REASON IS KNOWN"
THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


@dataclass(frozen=True)
class TestEnd:
    """End of one test: passed, skipped, failed or hung, and the first line of why."""

    outcome: str
    line: str

    def __str__(self) -> str:
        return f"{self.outcome}: {self.line}" if self.line else self.outcome


@dataclass(frozen=True)
class BothEnds:
    """One test, plain and under Prophet."""

    name: str
    plain: TestEnd
    prophet: TestEnd

    @property
    def differs(self) -> bool:
        """True if their outcomes differ. If both fail, the error is not compared."""
        return self.plain.outcome != self.prophet.outcome


class Runner:
    """A program that runs tests one by one, of `python`'s torch, with `more` in its environment."""

    def __init__(self, python: str, more: dict[str, str], limit_s: float = LIMIT_S) -> None:
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(settings.PREFIX)}
        paths = [str(ROOT), str(ROOT / "plugins" / "torch"), *filter(None, [inherited.get("PYTHONPATH")])]
        environ = inherited | dict.fromkeys(THREADS, "1") | {"PYTHONPATH": os.pathsep.join(paths)} | more
        self._folder = tempfile.TemporaryDirectory()
        environ["TMPDIR"] = self._folder.name
        self._program = subprocess.Popen(
            [python, "-m", "tools.torch_tests_ranks", str(limit_s)],
            cwd=ROOT,
            env=environ,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,  # Its ranks end with it.
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.killpg(self._program.pid, signal.SIGKILL)
        self._program.communicate()
        self._folder.cleanup()

    def started(self) -> tuple[str, list[str]]:
        """Return the release of its torch, and the names of the tests. Raises UserError if it did not start."""
        line = self._answer()
        return str(line["torch"]), list(line["tests"])

    def run(self, name: str) -> TestEnd:
        """Return the end of a test."""
        assert self._program.stdin is not None
        self._program.stdin.write(f"{name}\n")
        self._program.stdin.flush()
        return TestEnd(**self._answer())

    def _answer(self) -> dict[str, str]:
        assert self._program.stdout is not None and self._program.stderr is not None
        line = self._program.stdout.readline()
        if not line:
            last = self._program.stderr.read().strip().splitlines()
            raise UserError(f"torch's tests do not run: {last[-1] if last else 'no word of why'}")
        return dict(json.loads(line))


def compare(python: str, wanted: Sequence[str], done: Callable[[BothEnds, int], None]) -> tuple[str, list[BothEnds]]:
    """Run the `wanted` tests, or all if none is named, plain and under Prophet; `done` gets each, and their number.
    Returns torch's release with them. Raises UserError for a name that this torch does not have.
    """
    own = {settings.DDP_SCHEDULER: "prophet", settings.CACHE: "off"}
    # The pool is left last: it waits for a test until its runner has ended.
    with ThreadPoolExecutor(1) as pool, Runner(python, {}) as plain, Runner(python, own) as prophet:
        release, names = plain.started()
        prophet.started()
        unknown = sorted(set(wanted) - set(names))
        if unknown:
            raise UserError(f"torch {release} has no test {unknown[0]}")
        chosen, found = list(wanted) or names, []
        for name in chosen:
            beside = pool.submit(prophet.run, name)
            found.append(BothEnds(name, plain.run(name), beside.result()))
            done(found[-1], len(chosen))
        return release, found


def reasons() -> dict[str, str]:
    """Return why tests may differ, by name."""
    return {str(name): str(why) for name, why in (yaml.safe_load(DIFFERENCES.read_text()) or {}).items()}


def report(compared: Iterable[BothEnds], known: dict[str, str], say: Callable[[str], None]) -> bool:
    """Report the differences. True if all of them are `known`."""
    differing = [each for each in compared if each.differs]
    for each in differing:
        say(f"{each.name}: plain {each.plain}; under Prophet {each.prophet}; {known.get(each.name, UNKNOWN)}")
    return all(each.name in known for each in differing)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(prog="python -m tools.torch_tests", description=__doc__)
    parser.add_argument("tests", nargs="*", help="names of tests; all where there is none")
    parser.add_argument("--python", default=sys.executable, help="an interpreter with torch and what Prophet needs")
    parser.add_argument("--each", action="store_true", help="print what came of each test")
    options = parser.parse_args(arguments)
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("starting", total=None)

        def done(compared: BothEnds, count: int) -> None:
            bar.update(task, advance=1, total=count, description=compared.name)
            if options.each:
                print(f"{compared.name}\t{compared.plain}\t{compared.prophet}", flush=True)

        release, compared = compare(options.python, options.tests, done)
    fine = report(compared, reasons(), print)
    sides = {"plain": [each.plain for each in compared], "Prophet": [each.prophet for each in compared]}
    for name, outcomes in sides.items():
        counts = sorted(Counter(outcome.outcome for outcome in outcomes).items())
        print(f"torch {release}, {name}: " + ", ".join(f"{count} {what}" for what, count in counts))
    return 0 if fine else 1


if __name__ == "__main__":
    sys.exit(exit_status(main))
