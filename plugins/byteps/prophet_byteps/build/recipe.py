"""Everything that shapes the built wheel, and the key under which it is kept.

A part that changed the wheel without changing the key would let a stale wheel be installed: add it here.
"""

from __future__ import annotations

import hashlib
import json
import platform
import sysconfig
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from . import compatibility, corrections
from .releases import NEWEST, Release
from .rules import Rule
from .toolchain import Toolchain

HERE = Path(__file__).parent

RULES = (*compatibility.RULES, *corrections.RULES)
UNCORRECTED = compatibility.RULES
"""BytePS with the faults it was released with, which a job meets on a BytePS that was not built here."""

PARTS = {"torch": "BYTEPS_WITH{}_PYTORCH", "mxnet": "BYTEPS_WITH{}_MXNET", "tensorflow": "BYTEPS_WITH{}_TENSORFLOW"}
"""BytePS's parts by the name of their Python module, and the switches for them in setup.py (WITH and WITHOUT)."""


def frameworks(toolchain: Toolchain) -> tuple[str, ...]:
    """Return the parts that can be built here: one for each installed framework, at least one."""
    return tuple(name for name in ("torch", "mxnet") if getattr(toolchain, name) is not None)


def build_environment(toolchain: Toolchain) -> dict[str, str]:
    """Return the environment that selects the parts to build. WITH makes a failure of that part the build's failure."""
    wanted = frameworks(toolchain)
    return {switch.format("" if name in wanted else "OUT"): "1" for name, switch in PARTS.items()}


@dataclass(frozen=True)
class Recipe:
    """The ingredients of one wheel. Equal recipes make interchangeable wheels."""

    byteps: str
    rules: Sequence[tuple[str, str, str, int]]
    """File, old text, new text and count of every edit, in order; reasons do not shape the wheel."""
    own_sources: dict[str, str]
    """Text of the stand-in headers and build hooks, by name."""
    parts: dict[str, str]
    python: str
    torch: str | None
    """Version of torch, with the CUDA of a CUDA build."""
    mxnet: str | None
    compiler: str
    machine: str
    zmq: str

    def key(self) -> str:
        """Return sixteen hexadecimal digits that differ between different recipes."""
        return hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()[:16]


def recipe_for(toolchain: Toolchain, rules: Sequence[Rule] = RULES, release: Release = NEWEST) -> Recipe:
    """Return the recipe of this package, interpreter and tools, for a release edited by the `rules` that apply."""
    stand_ins = [] if toolchain.cuda else sorted((HERE / "include").glob("*.h"))
    sources = [*stand_ins, HERE / "build_hooks.py"]
    return Recipe(
        byteps=f"{release.version} {release.sha256}",
        rules=[(rule.file, rule.old, rule.new, rule.count) for rule in release.fitted(rules)],
        own_sources={source.name: source.read_text(encoding="utf-8") for source in sources},
        parts=build_environment(toolchain),
        python=f"{platform.python_version()} {sysconfig.get_config_var('SOABI')}",
        torch=f"{toolchain.torch} {toolchain.cuda.described}" if toolchain.cuda else toolchain.torch,
        mxnet=toolchain.mxnet,
        compiler=toolchain.compiler,
        machine=f"{platform.machine()} {toolchain.machine_flags}",
        zmq=toolchain.zmq.version,
    )
