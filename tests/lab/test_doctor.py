"""The doctor's last line: on which engines a job can start under Prophet, and the one command to run next."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from prophet_scheduler.engines.registry import engines
from prophet_scheduler.engines.spec import EngineSpec
from prophet_scheduler.lab import doctor
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
def test_the_verdict(lacking: Lacking, findings: dict[tuple[str, str], Finding], line: str) -> None:
    lacking(findings)
    assert doctor.verdict() == (line.startswith("ready"), line)


def test_what_is_to_be_run_is_between_backticks() -> None:
    assert (NO_TORCH.command, OLD_TORCH.command) == ("pip install torch", None)


def test_an_engine_that_is_enabled_by_one_command_is_one_that_prophet_runs_on() -> None:
    enabled = [spec for spec in engines().values() if spec.enable]
    assert {spec.name for spec in enabled} == {"byteps", "ddp"}
    assert all(spec.hook or spec.check for spec in enabled)
