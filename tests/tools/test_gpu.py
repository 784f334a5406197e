"""Jobs on a GPU: which they are, and the worker's program, which runs on a processor as well."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from support.programs import clean_environ, run_together, torchrun_variables
from tools import gpu, kept, measure
from tools.gpu import GpuJob, GpuRun
from tools.ports import free_port


def test_a_machine_without_a_gpu_is_told_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    assert measure.main(["gpu", "--out", str(tmp_path / "out")]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_an_unknown_engine_is_one_line_and_nothing_is_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert measure.main(["gpu", "engine=horovod", "--results", str(tmp_path)]) == 2
    assert "engine=horovod: its engines are byteps, ddp" in capsys.readouterr().err
    assert not (tmp_path / "data").exists()


def test_runs_of_one_engine_are_kept_beside_those_of_the_other(tmp_path: Path) -> None:
    byteps, ddp = (
        next(GpuRun(job, "stock", 4, [1.0], "aa", 0) for job in gpu.JOBS if job.engine == engine)
        for engine in gpu.BASES
    )
    assert gpu.beside_others([ddp], tmp_path) == [ddp]
    kept.keep(tmp_path, "gpu", list[GpuRun], [byteps, replace(ddp, digest="bb")])
    assert gpu.beside_others([ddp], tmp_path) == [byteps, ddp]


@pytest.mark.parametrize(
    ("programs", "limit_s", "failure"),
    [
        (("", "", "input()"), 60.0, ""),
        (("", "input()", "raise SystemExit(3)"), 60.0, "server0 ended with status 3"),
        (("", "raise SystemExit(3)", "input()"), 60.0, "worker1 ended with status 3"),
        (("", "input()", "input()"), 0.0, "not over after 0 s"),
    ],
)
def test_a_run_is_over_when_its_workers_are_or_something_fails(
    programs: tuple[str, ...], limit_s: float, failure: str
) -> None:
    with contextlib.ExitStack() as stack:
        processes = {}
        for node, program in zip((*gpu.WORKERS, "server0"), programs, strict=True):
            own = subprocess.Popen([sys.executable, "-I", "-S", "-c", program], stdin=subprocess.PIPE)
            processes[node] = stack.enter_context(own)
            stack.callback(own.kill)
        assert gpu.failure_of(processes, limit_s) == failure


def test_the_program_trains_with_the_same_bits_on_all_ranks(tmp_path: Path) -> None:
    port, job = free_port(), GpuJob("ddp", "small", "none", 7, ("half", "clips", "looks"))
    command = [sys.executable, *gpu.command_of(job, tmp_path)]
    own = clean_environ() | {"CUDA_VISIBLE_DEVICES": ""}
    run_together([command] * 2, [own | torchrun_variables(rank, 2, port) for rank in range(2)], 120)
    results = [json.loads((tmp_path / f"{worker}.json").read_text()) for worker in gpu.WORKERS]
    for result in results:
        assert len(result["seconds"]) == 7 and result["device_bytes"] == 0
    looks = len([0, 3, 6]) + len([0, 4])
    assert len(results[0]["seen"]) == 7 + looks
    assert results[0]["seen"][0] == results[1]["seen"][0], "both look at the same average"
    assert results[0]["seen"][2] != results[1]["seen"][2], "each has a loss of its own"
