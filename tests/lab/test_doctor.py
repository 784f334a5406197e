"""The doctor: what it finds on this machine and others, and its last line, which has the one command to run next."""

from __future__ import annotations

import importlib.metadata
import importlib.util
from collections.abc import Callable, Iterator
from importlib.machinery import ModuleSpec

import pytest

from prophet_scheduler.engines.registry import engines
from prophet_scheduler.engines.spec import EngineSpec
from prophet_scheduler.lab import doctor
from prophet_scheduler.lab.contenders import Contender
from prophet_scheduler.lab.doctor import Finding

NO_TORCH = Finding("PyTorch", False, "not installed; `pip install torch`")
NO_BYTEPS = Finding("BytePS", False, "not installed; `python -m prophet_byteps.build install` builds it")
OLD_TORCH = Finding("Prophet for DDP", False, "torch 2.3 is older than 2.4; jobs keep DistributedDataParallel as it is")
NO_MXNET = Finding("MXNet", False, "not installed; `pip install mxnet==1.9.1 numpy==1.23.5`")
START_DDP = "PROPHET_SCHEDULER=prophet torchrun --nproc-per-node 2 train.py"
START_BYTEPS = "BYTEPS_SCHEDULER=prophet bpslaunch python train.py"

Lacking = Callable[[dict[tuple[str, str], Finding]], None]


@pytest.fixture
def lacking(monkeypatch: pytest.MonkeyPatch) -> Lacking:
    """A machine on which this is what lacks, by engine and framework."""

    def lacks(findings: dict[tuple[str, str], Finding]) -> None:
        def needed(engine: EngineSpec, framework: str, with_prophet: bool) -> Iterator[Finding]:
            yield Finding("anything", True, "is here")
            if (engine.name, framework) in findings:
                yield findings[engine.name, framework]

        monkeypatch.setattr(doctor, "_needed", needed)

    return lacks


@pytest.mark.parametrize(
    ("findings", "line"),
    [
        ({}, f"ready for DistributedDataParallel and BytePS; run next: {START_DDP}"),
        (
            {("byteps", "torch"): NO_BYTEPS, ("byteps", "mxnet"): NO_BYTEPS},
            f"ready for DistributedDataParallel; run next: {START_DDP}",
        ),
        (
            {("byteps", "torch"): NO_TORCH, ("ddp", "torch"): NO_TORCH},
            f"ready for BytePS; run next: {START_BYTEPS}",  # with MXNet
        ),
        (
            {("byteps", "torch"): NO_BYTEPS, ("byteps", "mxnet"): NO_BYTEPS, ("ddp", "torch"): NO_TORCH},
            "not ready, PyTorch: not installed; run next: pip install torch",
        ),
        (
            {("byteps", "torch"): NO_BYTEPS, ("byteps", "mxnet"): NO_BYTEPS, ("ddp", "torch"): OLD_TORCH},
            "not ready, BytePS: not installed; run next: python -m prophet_byteps.build install",
        ),
        (
            {("byteps", "torch"): OLD_TORCH, ("byteps", "mxnet"): NO_MXNET, ("ddp", "torch"): OLD_TORCH},
            "not ready, Prophet for DDP: torch 2.3 is older than 2.4; the lines above say what to do",
        ),
    ],
)
def test_verdict(lacking: Lacking, findings: dict[tuple[str, str], Finding], line: str) -> None:
    lacking(findings)
    assert doctor.verdict() == (line.startswith("ready"), line)


def test_engines_with_prophet() -> None:
    enabled = [spec for spec in engines().values() if spec.enable]
    assert {spec.name for spec in enabled} == {"byteps", "ddp"}
    assert all(spec.hook or spec.check for spec in enabled)


def test_examine_covers_experiments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PROPHET_FUSON", "0")
    examined = doctor.examine()
    of_ddp = ["DistributedDataParallel", "Prophet for DDP", "NCCL"]
    of_byteps = ["BytePS", "BytePS's faults", "PyTorch", "hook", "MLfabric"]
    items = [*of_byteps, *of_ddp, "MXNet", "hook (MXNet)", "testbed", "tc", "delay", "variables"]
    assert [finding.item for finding in examined if not finding.item.startswith("NIC ")] == items
    assert any(finding.item.startswith("NIC ") for finding in examined)
    assert all("\n" not in finding.line and finding.line for finding in examined)


def test_unknown_variables_are_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PROPHET_FUSON", "PROPHET_XYZ", "PROPHET_CREDIT_BYTES"):
        monkeypatch.setenv(name, "4")
    (finding,) = (finding for finding in doctor.examine() if finding.item == "variables")
    assert str(finding).splitlines() == [
        "warning  variables: Prophet does not know these, so they have no effect",
        "           PROPHET_FUSON  did you mean PROPHET_FUSION?",
        "           PROPHET_XYZ    Prophet has none like it",
    ]
    for name in ("PROPHET_FUSON", "PROPHET_XYZ"):
        monkeypatch.delenv(name)
    assert "variables" not in {finding.item for finding in doctor.examine()}


@pytest.mark.parametrize(
    ("absent", "missed", "looked_at"),
    [("mxnet", {"MXNet", "hook (MXNet)"}, {"PyTorch"}), ("torch", {"PyTorch", "hook", "NCCL"}, {"hook (MXNet)"})],
)
def test_one_framework_suffices(
    absent: str, missed: set[str], looked_at: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == absent else find_spec(name))
    items = {finding.item for finding in doctor.examine()}
    assert not missed & items and looked_at <= items


Packages = dict[str, str]


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> Packages:
    """A machine with these packages alone, by name: a version, or the place of one that was built in its source."""
    packages: Packages = {}

    def version(name: str) -> str:
        if packages.get(name, "/").startswith("/"):
            raise importlib.metadata.PackageNotFoundError(name)
        return packages[name]

    def find_spec(name: str) -> ModuleSpec | None:
        return ModuleSpec(name, None, origin=packages[name]) if name in packages else None

    monkeypatch.setattr(importlib.metadata, "version", version)
    monkeypatch.setattr(importlib.util, "find_spec", find_spec)
    return packages


def test_missing_byteps_and_source_build(installed: Packages) -> None:
    line = doctor.obstacle(Contender("stock", "stock"))
    assert line is not None and line.startswith("BytePS: not installed; `python -m prophet_byteps.build install`")
    installed |= {"byteps": "/src/byteps/__init__.py", "torch": "/src/torch/__init__.py"}
    places = {finding.item: (finding.ok, finding.line) for finding in doctor.examine()}
    assert places["BytePS"] == (True, "in /src/byteps/__init__.py")
    assert places["PyTorch"] == (True, "in /src/torch/__init__.py")


def test_obstacle_of_each_policy(installed: Packages) -> None:
    installed |= {"mxnet": "1.9.1", "numpy": "1.23.5", "torch": "2.13.0"}
    kvstore, ddp = Contender("k", "mxnet-kvstore", framework="mxnet"), Contender("d", "ddp-gloo")
    assert (doctor.obstacle(kvstore), doctor.obstacle(ddp)) == (None, None)
    installed["numpy"] = "2.0.1"
    line = "MXNet: 1.9.1 cannot be imported beside NumPy 2.0.1; `pip install mxnet==1.9.1 numpy==1.23.5`"
    assert (doctor.obstacle(kvstore), doctor.obstacle(ddp)) == (line, None)
    (found,) = (finding for finding in doctor.examine() if finding.item == "MXNet")
    assert str(found) == f"missing  {line}"
    del installed["mxnet"]
    assert doctor.obstacle(kvstore) == "MXNet: not installed; `pip install mxnet==1.9.1 numpy==1.23.5`"
