"""The command that builds BytePS, with stand-ins for the machine's tools, the source and the compiler."""

from __future__ import annotations

from pathlib import Path

import pytest

from prophet_byteps.build import __main__ as command
from prophet_byteps.build import build
from prophet_byteps.build.store import Store
from prophet_byteps.build.toolchain import Toolchain, ZeroMQ

ZMQ = ZeroMQ(Path("/x/zmq.h"), Path("/x/libzmq.so"), "4.3.4")
TOOLS = Toolchain("g++ 12.2", "-march=x86-64-v3", ZMQ, torch="2.13.0", mxnet="1.9.1")


def compile_nothing(monkeypatch: pytest.MonkeyPatch, folder: Path) -> list[tuple[object, Toolchain]]:
    """Make empty wheels from now on and keep them in `folder`. Return a list that gets each wheel's rules and tools."""
    made: list[tuple[object, Toolchain]] = []

    def compile_wheel(source: Path, rules: object, tools: Toolchain, workplace: Path, *_: object) -> Path:
        made.append((rules, tools))
        wheel = workplace / "byteps.whl"
        wheel.write_text("a wheel")
        return wheel

    store = Store(folder / "engine")
    monkeypatch.setattr(Store, "of_user", lambda: store)
    monkeypatch.setattr(command, "find_toolchain", lambda: TOOLS)
    monkeypatch.setattr(build, "fetch", lambda *_: folder)
    monkeypatch.setattr(build, "build", compile_wheel)
    return made
