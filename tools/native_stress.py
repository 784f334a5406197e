"""Stress test of the hook's threads (tests/native/stress.cc): build it, plain or with a compiler's checks, and run it.

Rule of this file: compiling and running that program; the soak and the tests use its counts.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from prophet_byteps.build.store import Store

ROOT = Path(__file__).parents[1]
SOURCES = ROOT / "tests" / "native"
NATIVE = ROOT / "prophet" / "prophet_scheduler" / "core" / "native"
HOOK = ROOT / "plugins/byteps/prophet_byteps/native/hook.cc"
PLAIN = "plain"
KEPT_S = 30 * 86400.0
"""Seconds after which an unused build is removed."""
CHECKS: Mapping[str, tuple[str, ...]] = {
    "memory": ("-fsanitize=address,undefined", "-fno-sanitize-recover=all"),
    "races": ("-fsanitize=thread",),
}
"""Flags of the compiler's checks: for memory and undefined behavior (ASan, UBSan), and for data races (TSan)."""


@dataclass(frozen=True)
class StressProgram:
    """The built program, and the two libraries that it loads."""

    program: Path
    hook: Path
    core: Path


@dataclass(frozen=True)
class StressRun:
    """One run: numbers of tasks passed, of plans swapped meanwhile, of times that BytePS was suspended, and of times
    that the hook stepped aside with tasks in flight. `wrong` is empty, or the message of the program or the check.
    """

    check: str
    seed: int
    tasks: int
    plans: int
    suspensions: int
    asides: int
    seconds: float
    wrong: str = ""


def build(out: Path, source: Path, *flags: str, cache: Path | None = None) -> Path:
    """Compile a C++ program or library to `out`. If the source is the project's, keep the result in the folder `cache`
    (by default in the user's cache, like built engines), and reuse it if a build would give the same.
    """
    compiler = ["g++", "-std=c++17", "-O0", "-g", "-pthread", f"-I{NATIVE}", *flags]
    if not source.is_relative_to(ROOT):
        subprocess.run([*compiler, str(source), "-o", str(out), "-ldl"], check=True)
        return out
    cache = cache or Store.of_user().root.parent / "native"
    cache.mkdir(parents=True, exist_ok=True)
    # All that a build depends on: the compiler, its options, and the preprocessed source. The path of the checkout does
    # not matter.
    version = subprocess.run([compiler[0], "-v"], check=True, capture_output=True).stderr
    lines = subprocess.run([*compiler, "-E", str(source)], check=True, capture_output=True).stdout
    parts = b"\0".join([version, " ".join(compiler).encode(), lines])
    kept = cache / hashlib.sha256(parts.replace(str(ROOT).encode(), b"")).hexdigest()
    if not kept.exists():
        with tempfile.TemporaryDirectory(dir=cache) as folder:
            made = Path(folder, "made")
            subprocess.run([*compiler, str(source), "-o", str(made), "-ldl"], check=True)
            made.replace(kept)
        for file in cache.iterdir():
            with contextlib.suppress(OSError):  # another process may do the same
                if file.is_file() and time.time() - file.stat().st_mtime > KEPT_S:
                    file.unlink()
    os.utime(kept)
    shutil.copy(kept, out)
    return out


def build_stress(folder: Path, flags: tuple[str, ...] = ()) -> StressProgram:
    # Calls must go through the procedure linkage table, as they do between BytePS's files.
    shared = ("-fPIC", "-fno-inline", "-shared", *flags)
    return StressProgram(
        hook=build(folder / "hook.so", HOOK, *shared),
        core=build(folder / "core.so", SOURCES / "stress.cc", *shared),
        program=build(folder / "stress", SOURCES / "stress.cc", "-DSTRESS_MAIN", *flags),
    )


@functools.cache
def why_not(check: str) -> str:
    """Return why the check cannot run here; empty if it can."""
    with tempfile.TemporaryDirectory() as folder:
        empty = Path(folder, "empty.cc")
        empty.write_text("int main() {}\n")
        built = subprocess.run(["g++", *CHECKS[check], str(empty), "-o", f"{folder}/empty"], capture_output=True)
        if built.returncode != 0:
            return "this compiler cannot make the check"
        ran = subprocess.run([f"{folder}/empty"], capture_output=True)
        return "" if ran.returncode == 0 else "the check cannot run on this kernel"


def run_tasks(built: StressProgram, check: str, tasks: int, seed: int, limit_s: float) -> StressRun:
    """Pass about `tasks` tasks through the hook. The program must finish within `limit_s` seconds."""
    command = [str(part) for part in (built.program, built.hook, built.core, tasks, seed)]
    began = time.monotonic()
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=limit_s)
    except subprocess.TimeoutExpired:
        return StressRun(check, seed, 0, 0, 0, 0, limit_s, f"not over after {limit_s:g} s")
    took_s = time.monotonic() - began
    *said, last = done.stdout.splitlines() or [""]
    words = last.split()
    if words[::2] != ["tasks", "plans", "suspensions", "asides"]:
        said, words = [*said, last], ["0"] * 8
    wrong = " ".join([*said, *done.stderr.splitlines()])[:2000]
    if done.returncode != 0:
        wrong = f"status {done.returncode}: {wrong}"
    tasks, plans, suspensions, asides = map(int, words[1::2])
    return StressRun(check, seed, tasks, plans, suspensions, asides, took_s, wrong)
