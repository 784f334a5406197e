"""The native hook against a stand-in for BytePS's core: each case of hook_cases.py in a process of its own."""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys
from pathlib import Path

import pytest

from plugins.byteps import hook_cases
from prophet_byteps import hook
from prophet_byteps.hook import HookError, inspect_library

FAKE_CORE = Path(__file__).parents[2] / "native" / "fake_core.cc"
OLD_STRINGS = "-D_GLIBCXX_USE_CXX11_ABI=0"


def build_core(folder: Path, *macros: str) -> Path:
    library = folder / "core.so"
    # Calls must go through the procedure linkage table, as they do between BytePS's files.
    command = [
        "g++",
        "-std=c++17",
        "-O1",
        "-fPIC",
        "-fno-inline",
        *macros,
        "-shared",
        str(FAKE_CORE),
        "-o",
        str(library),
    ]
    subprocess.run(command, check=True)
    return library


@pytest.fixture(scope="session", params=["", OLD_STRINGS], ids=["new-strings", "old-strings"])
def core(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With the task layout of BytePS's PyTorch part, and with that of its MXNet part."""
    return build_core(tmp_path_factory.mktemp("core"), *filter(None, [request.param]))


@pytest.fixture(scope="session")
def other_core(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_core(tmp_path_factory.mktemp("other"), OLD_STRINGS, "-DCORE_LAST_FIRST")


@pytest.mark.parametrize("name", hook_cases.CASES)
def test_hook(name: str, core: Path, other_core: Path) -> None:
    command = [sys.executable, "-P", hook_cases.__file__, name, str(core), str(other_core)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, f"{name} holds\n"), done.stderr


def test_the_layout_is_told_by_the_library(core: Path, request: pytest.FixtureRequest) -> None:
    assert inspect_library(core).old_string_abi == ("old-strings" in request.node.name)


def test_a_library_without_what_the_hook_takes_over_is_refused(tmp_path: Path, core: Path) -> None:
    other = tmp_path / "c_lib.so"
    other.write_bytes(core.read_bytes().replace(b"12DequeueGroupEv", b"12DequeueWronglyv"[:16]))
    with pytest.raises(HookError, match="DequeueGroup"):
        inspect_library(other)


def test_an_unknown_release_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "0.9")
    with pytest.raises(HookError, match=r"BytePS 0\.9 is unknown to this Prophet"):
        hook.find_library("torch")


def test_no_byteps_is_said_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", absent)
    assert hook.check_compatibility() == (False, "no BytePS is installed in this Python")
