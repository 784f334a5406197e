"""A BytePS core without BytePS: tests/native/fake_core.cc, compiled as the test needs it."""

from __future__ import annotations

from pathlib import Path

from tools.native_stress import SOURCES, build


def build_core(folder: Path, *macros: str) -> Path:
    # Calls must go through the procedure linkage table, as between BytePS's files.
    return build(folder / "core.so", SOURCES / "fake_core.cc", "-fPIC", "-fno-inline", "-shared", *macros)
