"""The native hook under threads (tests/native/stress.cc), plainly and with the compiler's check for data races."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
STRESS = ROOT / "tests" / "native" / "stress.cc"
NATIVE = ROOT / "prophet" / "core" / "native"
HOOK = ROOT / "plugins" / "byteps" / "prophet_byteps" / "native" / "hook.cc"


def build(out: Path, source: Path, *flags: str) -> Path:
    subprocess.run(
        ["g++", "-std=c++17", "-O1", "-g", "-pthread", *flags, str(source), "-o", str(out), "-ldl"], check=True
    )
    return out


def has_race_check(folder: Path) -> bool:
    """Whether this machine's compiler has the check, and this kernel lets it run."""
    empty = folder / "empty.cc"
    empty.write_text("int main() {}\n")
    built = subprocess.run(["g++", "-fsanitize=thread", str(empty), "-o", str(folder / "empty")], capture_output=True)
    return built.returncode == 0 and subprocess.run([str(folder / "empty")], capture_output=True).returncode == 0


@pytest.mark.parametrize("check", [[], ["-fsanitize=thread"]], ids=["plain", "races"])
def test_every_task_passes_once_through_suspends_new_plans_and_stepping_aside(check: list[str], tmp_path: Path) -> None:
    if check and not has_race_check(tmp_path):
        pytest.skip("this compiler cannot check for data races here")
    # Calls must go through the procedure linkage table, as they do between BytePS's files.
    shared = [f"-I{NATIVE}", "-fPIC", "-fno-inline", "-shared", *check]
    hook = build(tmp_path / "hook.so", HOOK, *shared)
    core = build(tmp_path / "core.so", STRESS, *shared)
    program = build(tmp_path / "stress", STRESS, "-DSTRESS_MAIN", *check)
    done = subprocess.run([str(program), str(hook), str(core)], capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stdout + done.stderr[:5000]
