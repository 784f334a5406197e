"""Checks of a distribution that is installed as its users install it.

Rule of this file: an environment and what is tried in it, each failure one UserError. release.py builds distributions.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
from pathlib import Path

from prophet_scheduler import __version__
from prophet_scheduler.core.errors import UserError
from prophet_scheduler.core.settings import CACHE, DDP_SCHEDULER, SCHEDULER, STATUS_OUT
from prophet_scheduler.lab.records import read_status
from tools.interpreters import Environment, Interpreter, outcome, run

AUTOLOAD = "prophet-autoload.pth"
ROOT = Path(__file__).parents[1]
USE = """
import sys
from prophet_scheduler.core import _native
from prophet_byteps.hook import Hook
Hook.load()
"""
"""Program that fails if a native part is missing or does not load."""
ASK_FOR_AUTOLOAD = """
import sys
print([name for name in ('prophet_byteps', 'prophet_ddp', 'prophet_fsdp') if f'{name}.autoload' in sys.modules])
"""
NO_COMPILER = "error: Prophet cannot be compiled on this machine: it has no working C++ compiler"
VERDICT = "verdict  not ready, PyTorch: not installed; run next: pip install torch"
SIMULATED = ("simulate", str(ROOT / "configs" / "replay-bandwidths.yaml"), "--policy", "prophet", "--repeats", "1")
DDP_JOB = ROOT / "tools" / "release_job.py"


def check_installed(wheel: Path, interpreter: Interpreter, place: Path, torch: str | None) -> None:
    """Install the wheel into an environment in `place` and use it. Raises UserError.

    With `torch`, the requirement of one, a job of DistributedDataParallel is run as well.
    """
    environment = Environment(interpreter, place / "environment")
    run(*environment.pip("install", "--quiet", str(wheel.resolve())))
    python, prophet = environment.program("python"), environment.program("prophet")
    shown = run(prophet, "--version", cwd=place)
    if __version__ not in shown.split():
        raise UserError(f"the installed command says {shown.strip()!r} and not {__version__}")
    packages = run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=place).strip()
    if not (Path(packages) / AUTOLOAD).is_file():
        raise UserError(f"{AUTOLOAD} is not at the top of site-packages, where Python reads it")
    run(python, "-c", USE, cwd=place)
    for environ, expected in (
        ({}, []),
        ({SCHEDULER: "prophet"}, ["prophet_byteps"]),
        ({DDP_SCHEDULER: "prophet"}, ["prophet_ddp", "prophet_fsdp"]),
    ):
        if run(python, "-c", ASK_FOR_AUTOLOAD, cwd=place, environ=environ).strip() != str(expected):
            raise UserError(f"the autoload does not go by its variables: with {environ} it should load {expected}")
    doctor = outcome(prophet, "doctor", cwd=place)
    if doctor.returncode != 2 or doctor.stdout.splitlines()[-1:] != [VERDICT]:
        raise UserError(f"the installed `prophet doctor` should end with {VERDICT!r}: {doctor.stdout}{doctor.stderr}")
    run(prophet, *SIMULATED, "--out", "simulated", cwd=place)
    if torch is not None:
        check_job(environment, place, torch)


def check_job(environment: Environment, place: Path, torch: str) -> None:
    """Run a job of two ranks with this torch, under Prophet. Raises UserError."""
    run(*environment.pip("install", "--quiet", torch))
    status = place / "status.json"
    settings = {DDP_SCHEDULER: "prophet", CACHE: "off", STATUS_OUT: str(status), "OMP_NUM_THREADS": "1"}
    torchrun = (environment.program("torchrun"), "--standalone", "--nproc-per-node", "2")
    run(*torchrun, str(DDP_JOB), cwd=place, environ=settings)
    if not status.exists():
        raise UserError("a job of DistributedDataParallel ran without Prophet: it left no status")
    if why := read_status(status).stepped_aside:
        raise UserError(f"a job of DistributedDataParallel ran without Prophet: {why}")


def own_torch() -> str | None:
    """Return the requirement of this Python's torch; None if it has none."""
    if importlib.util.find_spec("torch") is None:
        return None
    return f"torch=={importlib.metadata.version('torch').partition('+')[0]}"


def check_without_compiler(sdist: Path, interpreter: Interpreter, place: Path) -> None:
    """Check that without a compiler the source distribution ends in one line. Raises UserError."""
    environment = Environment(interpreter, place / "environment")
    broken = {"CC": "false", "CXX": "false"}
    done = outcome(*environment.pip("install", "--quiet", "--no-deps", str(sdist.resolve())), environ=broken)
    said = done.stdout + done.stderr
    if done.returncode == 0 or said.count(NO_COMPILER) != 1 or "Traceback" in said:
        raise UserError(f"{sdist.name} without a compiler should end in one line that says so, and says: {said}")
