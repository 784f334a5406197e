"""Everything that shapes the built wheel, and the key under which the wheel is kept.

If something changes the wheel but not the key, a stale wheel may be installed. So add such things here.
"""

from __future__ import annotations

import hashlib
import json
import platform
import sysconfig
from collections.abc import Sequence

from .rules import HERE, SHA256, VERSION, Rule, rules_of
from .toolchain import Toolchain

RULES = rules_of()

PARTS = {"torch": "BYTEPS_WITH{}_PYTORCH", "mxnet": "BYTEPS_WITH{}_MXNET", "tensorflow": "BYTEPS_WITH{}_TENSORFLOW"}
"""Switches in setup.py for BytePS's parts (WITH and WITHOUT), by the name of the part's Python module."""


def frameworks(toolchain: Toolchain) -> tuple[str, ...]:
    """Return the parts to build: one for each installed framework, at least one."""
    return tuple(name for name in ("torch", "mxnet") if getattr(toolchain, name) is not None)


def build_environment(toolchain: Toolchain) -> dict[str, str]:
    """Return the environment that selects the parts to build. With WITH, the build fails if that part fails."""
    wanted = frameworks(toolchain)
    return {switch.format("" if name in wanted else "OUT"): "1" for name, switch in PARTS.items()}


def key_of(toolchain: Toolchain, rules: Sequence[Rule] = RULES) -> str:
    """Return sixteen hexadecimal digits that differ between wheels that are not interchangeable.

    They cover this package, the interpreter, the tools, the release, and the `rules`.
    """
    cuda = toolchain.cuda
    sources = [*(() if cuda else sorted((HERE / "include").glob("*.h"))), HERE / "build_hooks.py"]
    ingredients = {
        "byteps": f"{VERSION} {SHA256}",
        "rules": [(rule.file, rule.old, rule.new, rule.count) for rule in rules],
        "own_sources": {source.name: source.read_text(encoding="utf-8") for source in sources},
        "parts": build_environment(toolchain),
        "python": f"{platform.python_version()} {sysconfig.get_config_var('SOABI')}",
        "torch": f"{toolchain.torch} CUDA {cuda.version} ({', '.join(cuda.wheels)})" if cuda else toolchain.torch,
        "mxnet": toolchain.mxnet,
        "compiler": toolchain.compiler,
        "machine": f"{platform.machine()} {toolchain.machine_flags}",
        "zmq": toolchain.zmq.version,
    }
    return hashlib.sha256(json.dumps(ingredients, sort_keys=True).encode()).hexdigest()[:16]
