"""The native hook against a stand-in for BytePS's core: each case of hook_cases.py in a process of its own."""

from __future__ import annotations

import ctypes
import importlib.machinery
import importlib.metadata
import importlib.util
import os
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from plugins.byteps import hook_cases, hook_plan_cases
from plugins.byteps.hook_core import cases_of
from prophet_byteps import hook
from prophet_byteps.library import HookError, inspect_library
from prophet_scheduler.core import plan_codec
from prophet_scheduler.core.events import EVENT_DTYPE, EVENT_VERSION
from support.fake_core import build_core
from support.forks import ForkServer

TESTS = Path(__file__).parents[2]
OLD_STRINGS = "-D_GLIBCXX_USE_CXX11_ABI=0"


@pytest.fixture(scope="session", params=["", OLD_STRINGS], ids=["new-strings", "old-strings"])
def core(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With the task layout of BytePS's PyTorch part, and with that of its MXNet part."""
    return build_core(tmp_path_factory.mktemp("core"), *filter(None, [request.param]))


@pytest.fixture(scope="module")
def server() -> Iterator[ForkServer]:
    """It has imported what a case imports, and has no hook and no core."""
    with ForkServer(("numpy", "plugins.byteps.hook_core"), {"PYTHONPATH": str(TESTS)}) as server:
        yield server


def run_case(server: ForkServer, folder: Path, name: str, core: Path, cases: ModuleType = hook_cases) -> None:
    process = server.fork([str(cases.__file__), name, str(core)], folder, os.environ)
    status = process.wait(400)
    said = (folder / "log").read_text()
    assert (status, said.splitlines()[-1:]) == (0, [f"{name} holds"]), said


@pytest.mark.parametrize("name", [name for name in cases_of(hook_cases) if name not in hook_cases.OF_OTHER_CORES])
def test_hook(name: str, server: ForkServer, tmp_path: Path, core: Path) -> None:
    run_case(server, tmp_path, name, core)


@pytest.mark.parametrize("core", [""], indirect=True)
@pytest.mark.parametrize("name", cases_of(hook_plan_cases))
def test_plans_of_a_hook(name: str, server: ForkServer, tmp_path: Path, core: Path) -> None:
    run_case(server, tmp_path, name, core, cases=hook_plan_cases)


def test_a_byteps_that_looks_at_its_partition_size_unseen(server: ForkServer, tmp_path: Path) -> None:
    (name,) = hook_cases.OF_OTHER_CORES
    run_case(server, tmp_path, name, build_core(tmp_path, "-DCORE_WITHOUT_A_FLAG"))


class Native(SimpleNamespace):
    """A hook's shared object as far as it says what it was compiled with."""

    def __getattr__(self, function: str) -> Any:
        return None

    def prophet_hook_layouts(self, out: Any) -> None:
        layouts = hook._Layouts(*self.versions, 256)
        ctypes.memmove(out, ctypes.byref(layouts), ctypes.sizeof(layouts))


THIS = (EVENT_VERSION, EVENT_DTYPE.itemsize, plan_codec.VERSION)


def test_a_hook_of_this_prophet_is_taken() -> None:
    assert hook.check_layouts(Native(versions=THIS)) == 256  # type: ignore[arg-type]


@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_hook_of_another_prophet_is_refused_with_a_line(place: int) -> None:
    other = [number + (at == place) for at, number in enumerate(THIS)]
    with pytest.raises(HookError, match=r"is from another Prophet .* reinstall Prophet$"):
        hook.check_layouts(Native(versions=other))  # type: ignore[arg-type]


@pytest.mark.parametrize("functions", [{}, {"prophet_hook_layouts": lambda layouts: None}], ids=["oldest", "older"])
def test_a_hook_of_an_older_release_is_refused_before_it_is_in_front_of_byteps(functions: dict[str, Any]) -> None:
    older: Any = SimpleNamespace(**functions)
    with pytest.raises(HookError, match=r"is from an older Prophet; reinstall Prophet$"):
        hook.check_layouts(older)


def test_the_layout_is_told_by_the_library(core: Path, request: pytest.FixtureRequest) -> None:
    assert inspect_library(core).old_string_abi == ("old-strings" in request.node.name)


def test_a_library_without_what_the_hook_takes_over_is_refused(tmp_path: Path, core: Path) -> None:
    other = tmp_path / "c_lib.so"
    other.write_bytes(core.read_bytes().replace(b"12DequeueGroupEv", b"12DequeueWronglyv"[:16]))
    with pytest.raises(HookError, match="DequeueGroup"):
        inspect_library(other)


def test_a_byteps_with_a_stage_more_is_refused(tmp_path: Path) -> None:
    """As some lines of BytePS's development are: what its stages are numbered is not known."""
    with pytest.raises(HookError, match=r"has other stages .* \(CoordinateAllgather\)"):
        inspect_library(build_core(tmp_path, "-DCORE_WITH_ANOTHER_STAGE"))


@pytest.mark.parametrize(("name", "said"), [(b"8PushLoopEv", "Push"), (b"14DecompressLoopEv", "Decompress")])
def test_a_byteps_with_a_stage_less_is_refused(tmp_path: Path, core: Path, name: bytes, said: str) -> None:
    other = tmp_path / "c_lib.so"
    other.write_bytes(core.read_bytes().replace(name, name[:-1] + b"x"))
    with pytest.raises(HookError, match=rf"has other stages .* \({said}\)"):
        inspect_library(other)


def installed(folder: Path, core: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A BytePS as a build in its source leaves it: importable, and no package that pip knows."""
    library = folder / "byteps" / "torch" / f"c_lib{importlib.machinery.EXTENSION_SUFFIXES[0]}"
    library.parent.mkdir(parents=True)
    library.write_bytes(core.read_bytes())
    spec = importlib.machinery.ModuleSpec("byteps", None, is_package=True)
    spec.submodule_search_locations = [str(folder / "byteps")]
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: spec)


@pytest.mark.parametrize("version", ["0.2.5", "0.9", None])
def test_the_version_of_byteps_does_not_matter(
    version: str | None, tmp_path: Path, core: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stated(name: str) -> str:
        if version is None:
            raise importlib.metadata.PackageNotFoundError(name)
        return version

    installed(tmp_path, core, monkeypatch)
    monkeypatch.setattr(importlib.metadata, "version", stated)
    fits, line = hook.check_compatibility()
    assert fits
    assert line.startswith(f"BytePS {version or 'without a version'} (torch, ")
    fits, line = hook.check_compatibility("mxnet")
    assert (fits, line) == (False, "this BytePS was built without its mxnet part (no c_lib in byteps/mxnet)")


def test_no_byteps_is_said_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert hook.check_compatibility() == (False, "no BytePS is installed in this Python")
