"""Build of BytePS from its source release to an installed wheel: fetch, unpack, edit, compile, keep, install.

All external commands of a build run here, except those that inspect the machine (`toolchain.py`).
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from urllib.parse import unquote, urlparse

from rich.console import Console

from prophet_scheduler.core.errors import UserError

from .recipe import RULES, build_environment, frameworks, key_of
from .rules import HERE, SHA256, VERSION, Rule, apply_rules
from .store import Store
from .toolchain import Toolchain, find_toolchain

_EMPTY_ARCHIVE = b"!<arch>\n"
_STOOD_IN = ("nccl_static", "numa")
"""Libraries that BytePS links by name, although the stand-in headers define their functions inline."""


def install(store: Store, console: Console) -> Path:
    """Install BytePS into the running interpreter's environment, and build it first unless the store has it.

    Returns the wheel. Raises UserError if the machine lacks something, the build fails, or another BytePS is installed.
    """
    installed = _installed_from()
    if installed is not None and not store.holds(installed):
        raise UserError(
            f"engine: this environment already has another BytePS ({installed}); use another environment,"
            " or first run: pip uninstall byteps"
        )
    toolchain = find_toolchain()
    parts = frameworks(toolchain)
    engine = f"BytePS {VERSION} ({', '.join(parts)})"
    wheel = provide(store, toolchain, console)
    if installed == wheel:
        console.print(f"engine: {engine} is installed")
        return wheel
    console.print("engine: installing")
    _pip("install", "--no-deps", "--force-reinstall", str(wheel), failure="the built wheel cannot be installed")
    for part in parts:
        _check_import(part)
    console.print(f"engine: {engine} for the CPU is installed")
    return wheel


def provide(store: Store, toolchain: Toolchain, console: Console, rules: Sequence[Rule] = RULES) -> Path:
    """Return the wheel of BytePS for this interpreter and machine, edited by `rules`. Build it unless it is stored.

    Raises UserError if the source cannot be fetched, an edit does not fit it, or it does not compile.
    """
    key = key_of(toolchain, rules)
    with store.locked():
        wheel = store.wheel(key)
        if wheel is None:
            source = fetch(store, console)
            with store.workplace() as workplace:
                wheel = store.keep(build(source, rules, toolchain, workplace, store.log, console), key)
    return wheel


def fetch(store: Store, console: Console, sha256: str = SHA256) -> Path:
    """Return BytePS's source release, from the store or PyPI. Accept only the file for which the rules were written.

    pip runs a source's setup.py to read its metadata. So it also gets the digest, which it checks before that.
    """
    source = store.source / f"byteps-{VERSION}.tar.gz"
    if not source.is_file():
        console.print(f"engine: fetching the source of BytePS {VERSION}")
        with store.workplace() as workplace:
            wanted = workplace / "requirements.txt"
            wanted.write_text(f"byteps=={VERSION} --hash=sha256:{sha256}\n", encoding="utf-8")
            _pip(
                *("download", "--no-deps", "--no-build-isolation", "--no-binary", "byteps", "--require-hashes"),
                *("--dest", str(workplace), "--requirement", str(wanted)),
                failure="the source of BytePS cannot be fetched",
            )
            store.source.mkdir(exist_ok=True)
            (workplace / source.name).replace(source)
    if hashlib.sha256(source.read_bytes()).hexdigest() != sha256:
        source.unlink()
        raise UserError(f"engine: {source.name} is not the file that was published; it has been removed, try again")
    return source


def build(
    source: Path, rules: Sequence[Rule], toolchain: Toolchain, workplace: Path, log: Path, console: Console
) -> Path:
    """Build the wheel of the edited source in `workplace`, and return its path. The tools' output goes to `log`."""
    shutil.unpack_archive(source, workplace)
    tree = workplace / f"byteps-{VERSION}"
    apply_rules(rules, tree)
    shutil.copy(HERE / "build_hooks.py", tree / "pre_setup_local.py")
    _lay_out_zmq(toolchain, tree / "3rdparty" / "ps-lite" / "deps")
    environment = {
        **os.environ,
        **build_environment(toolchain),
        **_lay_out_cuda(toolchain, workplace / "cuda"),
        "PROPHET_ENGINE_MACHINE_FLAGS": toolchain.machine_flags,
    }
    command = _pip_command("wheel", "-v", "--no-deps", "--no-build-isolation", "--wheel-dir", str(workplace), str(tree))
    if _compile(command, environment, log, console) != 0:
        raise UserError(f"engine: BytePS does not compile here ({_first_error(log)}); the full output is in {log}")
    return next(workplace.glob("*.whl"))


def _lay_out_cuda(toolchain: Toolchain, home: Path) -> dict[str, str]:
    """Lay out CUDA and NCCL, or their stand-ins, in `home`. Returns the environment for BytePS's setup.py."""
    if toolchain.cuda is not None:
        return toolchain.cuda.lay_out(home)
    shutil.copytree(HERE / "include", home / "include")
    (home / "lib").mkdir()
    for library in _STOOD_IN:
        (home / "lib" / f"lib{library}.a").write_bytes(_EMPTY_ARCHIVE)
    return {"BYTEPS_NCCL_HOME": str(home)}


def _lay_out_zmq(toolchain: Toolchain, deps: Path) -> None:
    """Put libzmq where ps-lite would put the one that it downloads. The linker goes by content, not by suffix."""
    for name, target in (("include/zmq.h", toolchain.zmq.header), ("lib/libzmq.a", toolchain.zmq.library)):
        (deps / name).parent.mkdir(parents=True)
        (deps / name).symlink_to(target)


def _compile(command: list[str], environment: dict[str, str], log: Path, console: Console) -> int:
    """Run the build, showing the number of compiled files as progress. Returns the exit status."""
    files = 0
    message = "engine: building BytePS (a few minutes, once)"
    if not console.is_terminal:
        console.print(message)
    with (
        log.open("w", encoding="utf-8") as log_file,
        console.status(message) as status,
        subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as job,
    ):
        assert job.stdout is not None
        for line in job.stdout:
            log_file.write(line)
            if " -c " in line:
                files += 1
                status.update(f"{message}: {files} files")
    return job.returncode


def _first_error(log: Path) -> str:
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    return next((line.strip() for line in lines if "error:" in line), lines[-1].strip() if lines else "no reason given")


def _installed_from() -> Path | None:
    """Return the wheel or folder from which byteps was installed, as pip recorded it; None if there is no byteps.

    If pip recorded no origin, return the folder of the installed package.
    """
    try:
        byteps = metadata.distribution("byteps")
    except metadata.PackageNotFoundError:
        return None
    record = byteps.read_text("direct_url.json")
    if record is None:
        return Path(str(byteps.locate_file("byteps")))
    return Path(unquote(urlparse(json.loads(record)["url"]).path))


def _check_import(part: str) -> None:
    """Import an installed part in a separate process: two parts of BytePS cannot share one.

    Raises UserError with the last line of Python's error.
    """
    # With DMLC_ROLE set, MXNet would take itself for a worker and wait for its scheduler.
    environment = {name: value for name, value in os.environ.items() if name not in ("BYTEPS_SCHEDULER", "DMLC_ROLE")}
    done = subprocess.run(
        [sys.executable, "-c", f"import byteps.{part}"], env=environment, cwd="/", capture_output=True, text=True
    )
    if done.returncode != 0:
        words = done.stderr.strip().splitlines() or [f"exit status {done.returncode}"]
        raise UserError(f"engine: byteps.{part} as built cannot be imported: {words[-1]}")


def _pip(*arguments: str, failure: str) -> None:
    done = subprocess.run(_pip_command(*arguments), capture_output=True, text=True)
    if done.returncode != 0:
        errors = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
        raise UserError(f"engine: {failure}: {errors[-1] if errors else f'pip exited with status {done.returncode}'}")


def _pip_command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "pip", "--disable-pip-version-check", *arguments]
