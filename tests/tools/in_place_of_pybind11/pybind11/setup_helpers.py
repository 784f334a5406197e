"""Part of pybind11 that setup.py needs."""

from __future__ import annotations

from typing import Any

from setuptools import Extension


def Pybind11Extension(name: str, sources: list[str], cxx_std: int, **more: Any) -> Extension:
    """An extension of this name, which nobody compiles."""
    return Extension(name, sources, **more)
