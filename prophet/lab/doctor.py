"""`prophet doctor`: what this machine can do, one line an item, and what to do where it cannot.

Rule of this file: looking, never changing anything.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import socket
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import psutil

from prophet.core.errors import UserError
from prophet.core.optional import INSTALL
from prophet.lab.contenders import Framework, Policy

_FRAMEWORKS = {"torch": "PyTorch", "mxnet": "MXNet"}
MXNET_NUMPY = (1, 23)
"""The last NumPy that MXNet 1.9.1 can be imported with (it uses np.bool)."""


@dataclass(frozen=True)
class Finding:
    """One item: `ok` or not, and a line that says what was found or what to do."""

    item: str
    ok: bool
    line: str


def examine() -> list[Finding]:
    """Everything that matters for running jobs and experiments here."""
    pytorch, mxnet = [_framework(), _hook()], _mxnet()
    if mxnet and not pytorch[0].ok:
        pytorch = []  # one framework is enough for a job
    return [_byteps(), *pytorch, *mxnet, _namespaces(), _traffic_control(), *_interfaces()]


def obstacle(policy: Policy) -> str | None:
    """Why no job can start under `policy` on this machine, in one line that says what to do; None where it can."""
    byteps = policy.engine == "byteps"
    looks: list[tuple[bool, Callable[[], Finding]]] = [
        (byteps, _byteps),
        (True, partial(_framework, policy.framework)),
        (byteps, partial(_hook, policy.framework)),
    ]
    findings = (look() for needed, look in looks if needed)
    return next((f"{finding.item}: {finding.line}" for finding in findings if not finding.ok), None)


def _byteps() -> Finding:
    try:
        version = importlib.metadata.version("byteps")
    except importlib.metadata.PackageNotFoundError:
        what = "not installed; `python -m prophet_byteps.build install` builds it for this machine's processors"
        return Finding("BytePS", False, what)
    return Finding("BytePS", True, version)


def _framework(framework: Framework = "torch") -> Finding:
    name, install = _FRAMEWORKS[framework], INSTALL[framework]
    if importlib.util.find_spec(framework) is None:
        return Finding(name, False, f"not installed; `{install}`")
    version = importlib.metadata.version(framework)
    if framework == "mxnet" and tuple(map(int, importlib.metadata.version("numpy").split(".")[:2])) > MXNET_NUMPY:
        numpy = importlib.metadata.version("numpy")
        return Finding(name, False, f"{version} cannot be imported beside NumPy {numpy}; `{install}`")
    return Finding(name, True, version)


def _hook(framework: Framework = "torch") -> Finding:
    from prophet_byteps.hook import check_compatibility

    return Finding("hook", *check_compatibility(framework))


def _mxnet() -> list[Finding]:
    """Nothing where MXNet is not installed: no experiment needs it."""
    if importlib.util.find_spec("mxnet") is None:
        return []
    from prophet_byteps.hook import check_compatibility

    version = importlib.metadata.version("mxnet")
    return [Finding("MXNet", True, version), Finding("hook (MXNet)", *check_compatibility("mxnet"))]


def _namespaces() -> Finding:
    from prophet.lab.testbed import require_namespaces

    try:
        how = require_namespaces()
    except UserError as error:
        return Finding("testbed", False, str(error))
    return Finding("testbed", True, f"network namespaces as {'root' if how == 'root' else 'an ordinary user'}")


def _traffic_control() -> Finding:
    from prophet.lab.testbed.network import require_tools

    try:
        require_tools()
    except UserError as error:
        return Finding("tc", False, str(error))
    return Finding("tc", True, "iproute2's ip and tc are here")


def _interfaces() -> list[Finding]:
    states = psutil.net_if_stats()
    findings = []
    for name, addresses in psutil.net_if_addrs().items():
        ours = [entry.address for entry in addresses if entry.family == socket.AF_INET]
        if not ours or not states[name].isup:
            continue
        speed = f"{states[name].speed} Mbit/s" if states[name].speed else "speed unknown"
        findings.append(Finding(f"NIC {name}", True, f"{', '.join(ours)} ({speed})"))
    return findings
