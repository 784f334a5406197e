"""The distributions of a release: built, and looked at as who installs them will find them.

Rule of this file: the source distribution and the wheel of the checkout, and nothing that is uploaded. The wheel is
built from the source distribution, so that one is known to build. What is checked:

- both have the version of prophet/__init__.py, which has an entry of its own in the changelog;
- the source distribution has every file that git tracks, and no other;
- the wheel has the packages' files, the native parts, and the autoload where Python reads it;
- both have metadata that an index accepts (`twine check`);
- the wheel in an environment of its own: the command runs, the native parts load, the autoload acts only where it is
  asked to.

`make release` runs it, for about two minutes; the index of pip is needed.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tarfile
import tempfile
import venv
import zipfile
from collections.abc import Iterable, Mapping
from pathlib import Path

from prophet import __version__
from prophet.core.errors import UserError
from prophet.core.settings import SCHEDULER
from tools.exit_status import exit_status

NAME = "byteps_prophet"
AUTOLOAD = "prophet-autoload.pth"
MADE_BY_BUILDING = ("PKG-INFO", "setup.cfg", f"{NAME}.egg-info/")
"""In every source distribution, and in no checkout."""
PACKAGES = {"prophet": "prophet/", "plugins/byteps/prophet_byteps": "prophet_byteps/"}
"""Folders of the checkout, and where the wheel has them."""
INSTALLED = (".py", ".pyi", ".typed", ".json", ".css", ".js")
"""Files of a package that are installed, by suffix; C++ is compiled."""
NATIVE = ("prophet/core/_native.", "prophet/lab/testbed/_relay.", "prophet_byteps/_hook.")
USE = """
import sys
from prophet.core import _native
from prophet_byteps.hook import Hook
Hook.load()
"""
"""Fails where a native part is missing or does not load."""
ASK_FOR_AUTOLOAD = "import sys; print('prophet_byteps.autoload' in sys.modules)"


def sdist_problems(names: Iterable[str], tracked: Iterable[str]) -> list[str]:
    """What is wrong with the files of a source distribution, given those that git tracks, in one line each."""
    packed = {name for name in names if not name.startswith(MADE_BY_BUILDING)}
    wanted = set(tracked)
    return [
        *(f"the source distribution lacks {name}; name it in MANIFEST.in" for name in sorted(wanted - packed)),
        *(f"the source distribution has {name}, which git does not track" for name in sorted(packed - wanted)),
    ]


def wheel_problems(names: Iterable[str], tracked: Iterable[str]) -> list[str]:
    """What is wrong with the files of a wheel, given those that git tracks, in one line each."""
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
    """Raises UserError unless the changelog's newest entry is that of the version."""
    newest = next((line for line in text.splitlines() if line.startswith("## ")), "## nothing")
    if newest.removeprefix("## ").split()[:1] != [version]:
        raise UserError(f"CHANGELOG.md: the newest entry is {newest[3:]!r} and the version is {version}; add its entry")


def release(folder: Path) -> int:
    """Builds both distributions into `folder` and checks them. Raises UserError with all that is wrong."""
    check_changelog(Path("CHANGELOG.md").read_text(encoding="utf-8"))
    tracked = run("git", "ls-files").splitlines()
    for old in folder.glob(f"{NAME}-*"):
        old.unlink()
    print("building the source distribution, and the wheel from it")
    run(sys.executable, "-m", "build", "--quiet", "--outdir", str(folder))
    sdist, wheel = only(folder, f"{NAME}-{__version__}.tar.gz"), only(folder, f"{NAME}-{__version__}-*.whl")
    problems = [*sdist_problems(names_of_sdist(sdist), tracked), *wheel_problems(names_of_wheel(wheel), tracked)]
    if problems:
        raise UserError("; ".join(problems))
    print("checking them, and the wheel in an environment of its own")
    run(sys.executable, "-m", "twine", "check", "--strict", str(sdist), str(wheel))
    with tempfile.TemporaryDirectory() as place:
        check_installed(wheel, Path(place))
    changed = " with changes that are not committed" if run("git", "status", "--porcelain") else ""
    print(f"{sdist} and {wheel} are good, from commit {run('git', 'rev-parse', '--short', 'HEAD').strip()}{changed}")
    return 0


def only(folder: Path, pattern: str) -> Path:
    """The one file of that pattern. Raises UserError where there is none."""
    match list(folder.glob(pattern)):
        case [file]:
            return file
    raise UserError(f"{folder}: the build left no {pattern}; the version must be that of prophet/__init__.py")


def names_of_sdist(sdist: Path) -> list[str]:
    """Its files, without the folder that everything is in."""
    with tarfile.open(sdist) as archive:
        return [member.name.split("/", 1)[1] for member in archive.getmembers() if member.isfile()]


def names_of_wheel(wheel: Path) -> list[str]:
    """Its files."""
    with zipfile.ZipFile(wheel) as archive:
        return [name for name in archive.namelist() if not name.endswith("/")]


def check_installed(wheel: Path, place: Path) -> None:
    """Installs the wheel into an environment in `place` and uses it. Raises UserError."""
    venv.create(place, with_pip=True)
    python = str(place / "bin" / "python")
    run(python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", str(wheel.resolve()))
    shown = run(str(place / "bin" / "prophet"), "--version", cwd=place)
    if __version__ not in shown.split():
        raise UserError(f"the installed command says {shown.strip()!r} and not {__version__}")
    packages = run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=place).strip()
    if not (Path(packages) / AUTOLOAD).is_file():
        raise UserError(f"{AUTOLOAD} is not at the top of site-packages, where Python reads it")
    run(python, "-c", USE, cwd=place)
    for environ, expected in (({}, "False"), ({SCHEDULER: "prophet"}, "True")):
        if run(python, "-c", ASK_FOR_AUTOLOAD, cwd=place, environ=environ).strip() != expected:
            raise UserError(f"the autoload does not go by {SCHEDULER}: with {environ} it should say {expected}")


def run(*command: str, cwd: Path | None = None, environ: Mapping[str, str] | None = None) -> str:
    """What the command prints. Raises UserError with its last line where it fails.

    It sees nothing of this checkout and of this process's settings but `environ`.
    """
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "PROPHET_", "BYTEPS_"))}
    try:
        done = subprocess.run(command, cwd=cwd, env=kept | dict(environ or {}), capture_output=True, text=True)
    except FileNotFoundError:
        raise UserError(f"{command[0]} is not installed") from None
    if done.returncode != 0:
        words = (done.stderr + done.stdout).strip().splitlines()
        raise UserError(f"{' '.join(command[:4])} ended with status {done.returncode}: {words[-1] if words else ''}")
    return done.stdout


def main(arguments: list[str] | None = None) -> int:
    """Exit status 2 with one line where something is wrong with what was built."""
    parser = argparse.ArgumentParser(prog="python -m tools.release", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("dist"), help="where the distributions go (default: dist)")
    options = parser.parse_args(arguments)
    return exit_status(lambda: release(options.out))


if __name__ == "__main__":
    sys.exit(main())
