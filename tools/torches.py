"""Training scripts with DistributedDataParallel on several releases of torch, each in a fresh environment.

Rule of this file: the releases and scripts, and one line about each release. An installed wheel of this checkout is
tested. tests/scripts/test_ddp_scripts.py runs the scripts and compares bits. This needs pip's index, and some gigabytes
for each release.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from prophet_scheduler.cli.options import exit_status
from prophet_scheduler.core.errors import UserError
from tools.release import ROOT, Environment, outcome, run

RELEASES = ("2.4.0", "2.5.1", "2.6.0", "2.7.1", "2.8.0", "2.9.1", "2.10.0", "2.11.0", "2.12.1", "2.13.0", "2.14.1")
"""Newest release of each minor version that Prophet supports, but for the first minor version its first release."""
TEST = "tests/scripts/test_ddp_scripts.py::test_a_script_ends_with_the_bits_of_plain_ddp"
SCRIPTS = (
    *("compile", "dropped", "gradients_kept", "grads", "loops", "optimizer_parts", "optimizer_ways"),
    *("plain", "steps", "threads", "unused"),
)
"""Scripts that use many parts of torch, none newer than the first release. There `memory` differs (installing.md)."""


def tried(release: str, wheel: Path, place: Path) -> bool:
    """Run all scripts, print a line about it, and return True if they end with the bits of plain DDP."""
    try:
        environment = Environment(sys.executable, place)
        environment.pip("install", f"torch=={release}", "numpy", "pytest", "hypothesis", str(wheel))
    except UserError as error:
        print(f"torch {release:7} cannot be installed: {error}", flush=True)
        return False
    tests = [f"{TEST}[ddp_{script}-2]" for script in SCRIPTS]
    done = outcome(environment.program("python"), "-P", "-m", "pytest", "-q", *tests, cwd=ROOT)
    said = done.stdout.strip().splitlines() or [done.stderr[-200:]]
    print(f"torch {release:7}", "; ".join([said[-1], *(line for line in said if line.startswith(("FAILED", "ERROR")))]))
    return done.returncode == 0


def main(arguments: list[str] | None = None) -> int:
    """Return exit status 1 if a release cannot be installed or a script's result differs from plain DDP's."""
    parser = argparse.ArgumentParser(prog="python -m tools.torches", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("releases", nargs="*", default=RELEASES, help="releases of torch; default: all supported")
    options = parser.parse_args(arguments)

    def work() -> int:
        with tempfile.TemporaryDirectory() as name:
            place = Path(name)
            run(
                sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", f"{place}/built", str(ROOT)
            )
            (wheel,) = Path(place, "built").iterdir()
            well = [tried(release, wheel, place / release) for release in options.releases]
            return int(not all(well))

    return exit_status(work)


if __name__ == "__main__":
    sys.exit(main())
