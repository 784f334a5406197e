"""Imports of Prophet in a process: nothing if it is off, and little if it is on."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from support.forks import torch_server
from support.programs import without_switches

CASES = Path(__file__).with_name("import_cases.py")
MOST_AT_START = 40
"""Modules of the project, packages among them, in a process that has imported BytePS."""
MOST_OF_THE_LIBRARY = 68
"""Modules of prophet_scheduler in a job that trains, to its end; beside them are those of the plugin."""
FOREIGN = (
    "prophet_scheduler.cli",
    "prophet_scheduler.lab",
    "prophet_scheduler.models",
    "prophet_scheduler.simulate",
    "prophet_mlfabric",
    "prophet_mxnet",
    "prophet_papers",
)


def imported(case: str, *arguments: str, **environ: str) -> set[str]:
    command = [sys.executable, "-P", str(CASES), case, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, env={**without_switches(), **environ}, timeout=240)
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())


def imported_after_torch(case: str, folder: Path, policy: str) -> set[str]:
    """Return the modules of a program that begins with torch imported already, which takes longer than the rest."""
    environ = {**without_switches(), "BYTEPS_SCHEDULER": policy}
    status = torch_server().fork([str(CASES), case], folder, environ).wait(240)
    said = (folder / "log").read_text()
    assert status == 0, said
    return {line for line in said.splitlines() if line.startswith("prophet_")}


def of_policies(modules: set[str]) -> set[str]:
    return {name for name in modules if name.startswith("prophet_scheduler.policies.")}


def test_unset_means_that_an_interpreter_starts_without_prophet() -> None:
    assert imported("nothing") == set()


def test_set_means_that_it_starts_with_the_import_hook_alone() -> None:
    front_end = {"ending", "importlib_bootstrap", "notices", "threads"}
    library = {"prophet_scheduler", "prophet_scheduler.frontends"} | {
        f"prophet_scheduler.frontends.{n}" for n in front_end
    }
    hooks = {f"prophet_{plugin}{part}" for plugin in ("byteps", "ddp", "fsdp") for part in ("", ".autoload")}
    for variable in ("BYTEPS_SCHEDULER", "BYTEPS_SHEDULER", "PROPHET_SHEDULER"):
        assert imported("nothing", **{variable: "prophet"}) == hooks | library
    assert imported("nothing", BYTEPS_SCHEDULING_CREDIT="1", BYTEPS_SERVER_ENABLE_SCHEDULE="1") == set()


def test_the_agent_brings_no_policy_and_learns_nothing_yet() -> None:
    modules = imported("agent")
    assert "prophet_byteps.hook" in modules
    assert not of_policies(modules)
    assert not [name for name in modules if name.startswith((*FOREIGN, "prophet_scheduler.learn"))]


def test_the_agents_thread_imports_nothing(tmp_path: Path) -> None:
    assert "prophet_scheduler.policies.algorithms.chooser" in imported("begun", str(tmp_path))


@pytest.mark.engine
@pytest.mark.parametrize("policy", ["prophet", "p3", "bytescheduler", "fifo"])
def test_a_script_that_imports_byteps_has_its_policy_and_no_other(policy: str, tmp_path: Path) -> None:
    modules = imported_after_torch("byteps", tmp_path, policy)
    assert {"prophet_byteps.agent", "prophet_byteps.torch.front_end"} <= modules
    assert of_policies(modules) == {f"prophet_scheduler.policies.{policy}"}
    assert not [name for name in modules if name.startswith((*FOREIGN, "prophet_scheduler.learn"))]
    assert len(modules) <= MOST_AT_START, sorted(modules)


@pytest.mark.engine
def test_a_job_that_trains_has_what_its_policy_needs(tmp_path: Path) -> None:
    modules = imported_after_torch("training", tmp_path, "prophet")
    assert {
        "prophet_scheduler.core.arena",
        "prophet_scheduler.learn.profiler",
        "prophet_byteps.torch.rounds",
    } <= modules
    search = {f"prophet_scheduler.policies.algorithms{name}" for name in ("", ".chooser", ".predictor")}
    assert of_policies(modules) == {"prophet_scheduler.policies.prophet", *search}
    assert not [name for name in modules if name.startswith(FOREIGN)]
    library = {name for name in modules if name.partition(".")[0] == "prophet_scheduler"}
    assert len(library) <= MOST_OF_THE_LIBRARY, sorted(library)
