"""Training scripts with DistributedDataParallel on several releases of torch, each in a fresh environment.

Rule of this file: the releases and scripts, and one line about each release. An installed wheel of this checkout is
tested. tests/scripts/test_ddp_scripts.py runs the scripts and compares bits. This needs pip's index, and some gigabytes
for each release.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from prophet_scheduler.cli.options import exit_status
from prophet_scheduler.core.errors import UserError
from tools.release import ROOT, Environment, outcome, run

RELEASES = ("2.4.0", "2.5.1", "2.6.0", "2.7.1", "2.8.0", "2.9.1", "2.10.0", "2.11.0", "2.12.1", "2.13.0", "2.14.1")
"""Newest release of each minor version that Prophet supports, but for the first minor version its first release."""
TEST = "tests/scripts/test_ddp_scripts.py::test_a_script_ends_with_the_bits_of_plain_ddp"
SCRIPTS = (
    *("accumulation", "checkpoint", "closure", "compile", "frozen", "gan", "grads_handled", "no_sync", "optimizers"),
    *("plain", "scaler", "swa", "threads", "tied", "unused"),
)
"""Scripts that use many parts of torch, none newer than the first release."""


def tried(release: str, wheel: Path, place: Path) -> tuple[bool, str]:
    """Return True if all scripts end with the bits of plain DDP, and a few words about the result."""
    began_s = time.monotonic()
    try:
        environment = Environment(sys.executable, place / "environment")
        environment.pip("install", f"torch=={release}", "numpy", "pytest", "hypothesis", str(wheel))
    except UserError as error:
        return False, f"cannot be installed: {error}"
    installed_s = time.monotonic()
    tests = [f"{TEST}[ddp_{script}-2]" for script in SCRIPTS]
    done = outcome(environment.program("python"), "-P", "-m", "pytest", "-q", *tests, cwd=ROOT)
    said = done.stdout.strip().splitlines()
    failed = [line for line in said if line.startswith(("FAILED", "ERROR"))]
    words = "; ".join([said[-1] if said else done.stderr[-200:], *failed])
    return done.returncode == 0, f"{words} ({installed_s - began_s:.0f} s to install)"


def try_all(releases: Sequence[str]) -> int:
    """Test each release with this Python and print a line about it. Return 1 if one failed."""
    all_well = True
    with tempfile.TemporaryDirectory() as name:
        built = Path(name, "built")
        run(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(built), str(ROOT))
        (wheel,) = built.iterdir()
        for release in releases:
            with tempfile.TemporaryDirectory() as place:
                well, words = tried(release, wheel, Path(place))
            print(f"torch {release:7} {words}", flush=True)
            all_well = all_well and well
    return 0 if all_well else 1


def main(arguments: list[str] | None = None) -> int:
    """Return exit status 1 if a release cannot be installed or a script's result differs from plain DDP's."""
    parser = argparse.ArgumentParser(prog="python -m tools.torches", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("releases", nargs="*", default=RELEASES, help="releases of torch; default: all supported")
    options = parser.parse_args(arguments)
    return exit_status(lambda: try_all(options.releases))


if __name__ == "__main__":
    sys.exit(main())
