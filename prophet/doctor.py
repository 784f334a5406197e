"""`prophet doctor`: what this machine can do, one line an item, and what to do where it cannot.

Rule of this file: looking, never changing anything.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import socket
from dataclasses import dataclass

import psutil

from prophet.errors import UserError


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


def require_engine() -> None:
    """Raises UserError where no experiment on real BytePS can run, with what to do."""
    for look in (_byteps, _framework, _hook):
        finding = look()
        if not finding.ok:
            raise UserError(f"{finding.item}: {finding.line}")


def _byteps() -> Finding:
    try:
        version = importlib.metadata.version("byteps")
    except importlib.metadata.PackageNotFoundError:
        what = "not installed; `python -m prophet.tools.engine install` builds it for this machine's processors"
        return Finding("BytePS", False, what)
    return Finding("BytePS", True, version)


def _framework() -> Finding:
    if importlib.util.find_spec("torch") is None:
        return Finding("PyTorch", False, "not installed; `pip install 'byteps-prophet[experiments]'`")
    return Finding("PyTorch", True, importlib.metadata.version("torch"))


def _hook() -> Finding:
    from prophet.plugins.byteps.hook import check_compatibility

    return Finding("hook", *check_compatibility())


def _mxnet() -> list[Finding]:
    """Nothing where MXNet is not installed: no experiment needs it."""
    if importlib.util.find_spec("mxnet") is None:
        return []
    from prophet.plugins.byteps.hook import check_compatibility

    version = importlib.metadata.version("mxnet")
    return [Finding("MXNet", True, version), Finding("hook (MXNet)", *check_compatibility("mxnet"))]


def _namespaces() -> Finding:
    try:
        from prophet.tools.testbed import require_namespaces
    except ImportError as error:
        return Finding("testbed", False, f"{error.name} is missing; `pip install 'byteps-prophet[experiments]'`")
    try:
        how = require_namespaces()
    except UserError as error:
        return Finding("testbed", False, str(error))
    return Finding("testbed", True, f"network namespaces as {'root' if how == 'root' else 'an ordinary user'}")


def _traffic_control() -> Finding:
    from prophet.tools.testbed.network import require_tools

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
