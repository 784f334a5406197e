"""Command `prophet doctor`: one line for each ability of this machine, advice on missing ones, and a verdict.

Rule of this file: inspect, never change anything.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import importlib.util
import os
import pkgutil
import re
import socket
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import psutil

from prophet_scheduler import plugins
from prophet_scheduler.core.errors import UserError
from prophet_scheduler.core.optional import INSTALL
from prophet_scheduler.engines.registry import engines
from prophet_scheduler.engines.spec import EngineSpec, Framework
from prophet_scheduler.lab.contenders import Contender
from prophet_scheduler.policies import unknown_variables

_FRAMEWORKS = {"torch": "PyTorch", "mxnet": "MXNet"}
_COMMAND = re.compile(r"`([^`]+)`")
MXNET_NUMPY = (1, 23)
"""Last NumPy with which MXNet 1.9.1 can be imported (it uses np.bool)."""


@dataclass(frozen=True)
class Finding:
    """One item: `ok` or not, and a line with the result or advice. A `warning` does not keep jobs from running;
    `rows` have its details in two columns.
    """

    item: str
    ok: bool
    line: str
    warning: bool = False
    rows: tuple[tuple[str, str], ...] = ()

    @property
    def command(self) -> str | None:
        """Command between backticks in `line`; None if there is none."""
        named = _COMMAND.search(self.line)
        return named[1] if named else None

    def __str__(self) -> str:
        state = "warning" if self.warning else "ok" if self.ok else "missing"
        width = max((len(name) for name, _ in self.rows), default=0)
        more = (f"\n{'':11}{name:{width}}  {text}" for name, text in self.rows)
        return f"{state:7}  {self.item}: {self.line}{''.join(more)}"


def examine() -> list[Finding]:
    """Return all findings that matter for jobs and experiments on this machine."""
    specs = tuple(engines().values())
    pytorch = [_framework("torch")]
    pytorch += [row for spec in specs for row in _plugin(spec, "torch", with_prophet=pytorch[0].ok)]
    mxnet = _mxnet()
    if mxnet and not pytorch[0].ok:
        pytorch = []  # one framework is enough for a job
    # Several engines may share a package.
    whole = {spec.package.distribution: spec for spec in reversed(specs) if spec.package is not None}.values()
    packages = [row for spec in specs if spec in whole for row in (*_package(spec), *_faults(spec))]
    return [*packages, *pytorch, *mxnet, *_testbed(), *_interfaces(), *_variables(os.environ)]


def verdict() -> tuple[bool, str]:
    """Return whether jobs can start under Prophet here, and a line with the engines and the command to run next."""
    # An engine that comes with the framework needs nothing else, so it is the first choice of a new user.
    specs = sorted((spec for spec in engines().values() if spec.enable), key=lambda spec: spec.package is not None)
    lacks = {spec.name: _lacks(spec) for spec in specs}
    ready = [spec for spec in specs if lacks[spec.name] is None]
    if ready:
        return True, f"ready for {' and '.join(spec.words for spec in ready)}; run next: {ready[0].enable}"
    nearest = [finding for spec in specs if (finding := lacks[spec.name]) is not None]
    first = next((finding for finding in nearest if finding.command), nearest[0])
    reason = f"not ready, {first.item}: {first.line.partition(';')[0]}"
    todo = f"run next: {first.command}" if first.command else "the lines above say what to do"
    return False, f"{reason}; {todo}"


def _lacks(engine: EngineSpec) -> Finding | None:
    """Return the first thing that a job under Prophet lacks; None if a job can start in any of the frameworks."""
    needs = (_needed(engine, framework, True) for framework in engine.frameworks)
    missing = [next((finding for finding in each if not finding.ok), None) for each in needs]
    return None if None in missing else missing[0]


def obstacle(contender: Contender) -> str | None:
    """Reason, in one line with advice, why no job can start under `contender` on this machine; None if it can."""
    findings = _needed(contender.engine, contender.framework, contender.recorded)
    return next((f"{finding.item}: {finding.line}" for finding in findings if not finding.ok), None)


def _needed(engine: EngineSpec, framework: Framework, with_prophet: bool) -> Iterator[Finding]:
    # Lazily, one after the other: without the framework, the check of the hook would fail.
    yield from _package(engine)
    yield _framework(framework)
    yield from _plugin(engine, framework, with_prophet)


def _package(engine: EngineSpec) -> Iterator[Finding]:
    """Check the engine's package; yield nothing if the engine comes with the framework."""
    if engine.package is None:
        return
    version = _version(engine.package.distribution)
    yield Finding(engine.words, version is not None, version or engine.package.install)


def _version(package: str) -> str | None:
    """Version of an installed package, or the location of one built in its source folder; None if neither exists."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        spec = importlib.util.find_spec(package)
        return None if spec is None else f"in {spec.origin}"


def _faults(engine: EngineSpec) -> Iterator[Finding]:
    """Check for known faults; yield nothing if none are known, or if the engine or Prophet's plugin is missing."""
    faults = None
    with contextlib.suppress(ModuleNotFoundError):  # the finding on the hook reports it
        faults = engine.faults and pkgutil.resolve_name(engine.faults)()
    if faults:
        none, line, rows = faults
        yield Finding(f"{engine.words}'s faults", True, line, warning=not none, rows=rows)


def _framework(framework: Framework) -> Finding:
    install, version = INSTALL[framework], _version(framework)
    wrong = plugins.absent(framework)
    if version is None or importlib.util.find_spec(framework) is None:
        wrong = f"not installed; `{install}`"
    elif framework == "mxnet":
        numpy = importlib.metadata.version("numpy")
        if tuple(map(int, numpy.split(".")[:2])) > MXNET_NUMPY:
            wrong = f"{version} cannot be imported beside NumPy {numpy}; `{install}`"
    return Finding(_FRAMEWORKS[framework], not wrong, wrong or version or "")


def _plugin(engine: EngineSpec, framework: Framework, with_prophet: bool = True) -> Iterator[Finding]:
    """Run the engine's check of its hook and, `with_prophet`, of what the plugin needs, if the engine has these."""
    if framework not in engine.frameworks:
        return
    hook = "hook" if framework == "torch" else f"hook ({_FRAMEWORKS[framework]})"
    for item, check in ((hook, engine.hook), (engine.words, engine.check if with_prophet else None)):
        if check is None:
            continue
        try:
            found = pkgutil.resolve_name(check)(framework)
        except ModuleNotFoundError as error:
            yield Finding(item, False, f"{error.name} is not installed; `pip install .` in Prophet's checkout")
        else:
            yield from [Finding(item, *found)] if check is engine.hook else (Finding(*row) for row in found)


def _mxnet() -> list[Finding]:
    """Check MXNet; return nothing if it is not installed, since no experiment needs it."""
    if importlib.util.find_spec("mxnet") is None:
        return []
    hooks = [row for spec in engines().values() for row in _plugin(spec, "mxnet", with_prophet=False)]
    return [_framework("mxnet"), *hooks]


def _testbed() -> Iterator[Finding]:
    from prophet_scheduler.lab.testbed import require_namespaces
    from prophet_scheduler.lab.testbed.delay import require_relay
    from prophet_scheduler.lab.testbed.network import require_tools

    def namespaces() -> str:
        return f"network namespaces as {'root' if require_namespaces() == 'root' else 'an ordinary user'}"

    for item, require, line in (
        ("testbed", namespaces, ""),
        ("tc", require_tools, "iproute2's ip and tc are here"),
        ("delay", require_relay, "links can have one, through a relay on packet sockets"),
    ):
        try:
            yield Finding(item, True, require() or line)
        except UserError as error:
            yield Finding(item, False, f"{error}{'; experiments without cluster.delay run' * (item == 'delay')}")


def _variables(names: Iterable[str]) -> Iterator[Finding]:
    """Warn of unknown variables with Prophet's prefix."""
    if unknown := unknown_variables(names):
        near = (f"did you mean {near}?" if near else "Prophet has none like it" for near in unknown.values())
        line = "Prophet does not know these, so they have no effect"
        yield Finding("variables", True, line, warning=True, rows=tuple(zip(unknown, near, strict=True)))


def _interfaces() -> Iterator[Finding]:
    states = psutil.net_if_stats()
    for name, addresses in psutil.net_if_addrs().items():
        ours = [entry.address for entry in addresses if entry.family == socket.AF_INET]
        if ours and states[name].isup:
            speed = f"{states[name].speed} Mbit/s" if states[name].speed else "speed unknown"
            yield Finding(f"NIC {name}", True, f"{', '.join(ours)} ({speed})")
