"""torch's own tests of DistributedDataParallel and FSDP2: those that pass plain must pass under Prophet.

Rule of this file: which tests run, how results are compared, and the list of tests that may differ, each with a reason
(torch_tests.yaml). torch_tests_ranks.py runs the tests: one such program runs them plain and one under Prophet, side by
side. `make torch-tests` runs all DDP tests that the installed torch ships. `--sources` names a folder of torch's
sources, whose tests of FSDP2 and replicate() run instead. `--python` names an interpreter with another torch.
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
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import yaml
from rich.console import Console
from rich.progress import track

from prophet_scheduler.cli.options import exit_status
from prophet_scheduler.core import settings
from prophet_scheduler.core.errors import UserError

ROOT = Path(__file__).parents[1]
LIMIT_S = 120.0
"""Maximum seconds of a test; most take about a second."""
UNKNOWN = "NO REASON IS KNOWN"
THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


class OneEnd(NamedTuple):
    """Outcome of one test: passed, skipped, failed or hung, and the first line of the reason."""

    outcome: str
    line: str

    def __str__(self) -> str:
        return f"{self.outcome}: {self.line}" if self.line else self.outcome


class BothEnds(NamedTuple):
    """Outcomes of one test, plain and under Prophet."""

    name: str
    plain: OneEnd
    prophet: OneEnd


class Runner:
    """A running program that runs tests one by one. `release` is its torch's, `tests` are the names of the tests."""

    def __init__(self, program: subprocess.Popen[str]) -> None:
        """Wait until the program has started. Raises UserError if it fails."""
        self._program = program
        line = self._answer()
        self.release, self.tests = str(line["torch"]), list(line["tests"])

    def run(self, name: str) -> OneEnd:
        """Run a test and return its outcome."""
        assert self._program.stdin is not None
        self._program.stdin.write(f"{name}\n")
        self._program.stdin.flush()
        return OneEnd(**self._answer())

    def _answer(self) -> dict[str, str]:
        assert self._program.stdout is not None and self._program.stderr is not None
        line = self._program.stdout.readline()
        if not line:
            last = self._program.stderr.read().strip().splitlines()
            raise UserError(f"torch's tests do not run: {last[-1] if last else 'reason unknown'}")
        return dict(json.loads(line))


@contextmanager
def running(python: str, sources: str, more: dict[str, str]) -> Iterator[Runner]:
    """Run the program with `python`'s torch, and with `more` in its environment."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(settings.PREFIX)}
    ours = [str(ROOT / folder) for folder in ("", "prophet", "plugins/torch")]
    paths = [*ours, *filter(None, [inherited.get("PYTHONPATH")])]
    environ = inherited | dict.fromkeys(THREADS, "1") | {"PYTHONPATH": os.pathsep.join(paths)} | more
    command, pipe = [python, "-m", "tools.torch_tests_ranks", str(LIMIT_S), sources], subprocess.PIPE
    with tempfile.TemporaryDirectory() as folder:
        environ["TMPDIR"] = folder
        # In its own session, so that its ranks are killed with it.
        program = subprocess.Popen(
            command, cwd=ROOT, env=environ, stdin=pipe, stdout=pipe, stderr=pipe, text=True, start_new_session=True
        )
        try:
            yield Runner(program)
        finally:
            os.killpg(program.pid, signal.SIGKILL)
            program.communicate()


def compare(python: str, sources: str, wanted: Sequence[str]) -> Iterator[tuple[str, BothEnds]]:
    """Run the `wanted` tests, or all if it is empty, plain and under Prophet. Yield torch's release and the outcomes.

    Raises UserError for a name that this torch does not have, and for sources without tests.
    """
    own = {settings.DDP_SCHEDULER: "prophet", settings.CACHE: "off"}
    # The pool must exit last: it waits for a running test, which ends when its runner is killed.
    with ThreadPoolExecutor(1) as pool, running(python, sources, {}) as plain, running(python, sources, own) as prophet:
        if not plain.tests:
            raise UserError(f"{sources} has no tests of FSDP2")
        unknown = sorted(set(wanted) - set(plain.tests))
        if unknown:
            raise UserError(f"torch {plain.release} has no test {unknown[0]}")
        for name in track(wanted or plain.tests, "torch's tests", console=Console(stderr=True), transient=True):
            beside = pool.submit(prophet.run, name)
            yield plain.release, BothEnds(name, plain.run(name), beside.result())


def reasons() -> dict[str, str]:
    """Return the reasons why tests may differ, by name."""
    text = Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8")
    return {str(name): str(why) for name, why in (yaml.safe_load(text) or {}).items()}


def unexplained(compared: Iterable[BothEnds], known: dict[str, str]) -> int:
    """Print the differences, and return the number not in `known`. If both sides fail, errors are not compared."""
    differing = [each for each in compared if each.plain.outcome != each.prophet.outcome]
    for each in differing:
        print(f"{each.name}: plain {each.plain}; under Prophet {each.prophet}; {known.get(each.name, UNKNOWN)}")
    return sum(each.name not in known for each in differing)


def main(arguments: Sequence[str] | None = None) -> int:
    """Return exit status 1 if a test differs without a reason."""
    parser = argparse.ArgumentParser(prog="python -m tools.torch_tests", description=__doc__)
    parser.add_argument("tests", nargs="*", help="names of tests; default: all")
    parser.add_argument("--python", default=sys.executable, help="interpreter with torch and Prophet's requirements")
    parser.add_argument("--sources", type=os.path.abspath, help="folder of torch's sources, for their tests of FSDP2")
    parser.add_argument("--each", action="store_true", help="print the outcome of each test")
    options = parser.parse_args(arguments)
    compared, torch = [], ""
    for release, each in compare(options.python, options.sources or "", options.tests):
        compared.append(each)
        torch = f"torch {release}"
        if options.each:
            print(f"{each.name}\t{each.plain}\t{each.prophet}", flush=True)
    for side in ("plain", "prophet"):
        counts = sorted(Counter(getattr(each, side).outcome for each in compared).items())
        print(f"{torch}, {side}: " + ", ".join(f"{count} {what}" for what, count in counts))
    return 1 if unexplained(compared, reasons()) else 0


if __name__ == "__main__":
    sys.exit(exit_status(main))
