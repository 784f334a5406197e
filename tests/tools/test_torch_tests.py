"""torch's own tests of DistributedDataParallel and FSDP2 under Prophet, in short; `make torch-tests` runs them all."""

from __future__ import annotations

import ast
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
import torch

from prophet_scheduler.cli.options import exit_status
from support.programs import clean_environ
from tools import torch_tests
from tools.torch_tests import BothEnds, OneEnd
from tools.torch_tests_ranks import WithoutCuda, WithoutGpus, error_line

CHECKOUT = Path(__file__).parents[2]
BREADTH = (
    "test_accumulate_gradients_no_sync",
    "test_ddp_comm_hook_logging",
    "test_ddp_control_flow_different_across_ranks",
    "test_ddp_grad_div_uneven_inputs",
    "test_ddp_logging_data_cpu",
    "test_ddp_multiple_nested_unused_params_error",
    "test_ddp_python_error_logged",
    "test_ddp_shared_grad_acc_unused_params",
    "test_ddp_static_graph_nested_types",
    "test_detect_ddp_is_actually_static",
    "test_skip_all_reduce_unused_parameters",
    "test_static_graph_api_cpu",
)
PASSED, FAILED = OneEnd("passed", ""), OneEnd("failed", "RuntimeError: no")


def test_torchs_own_tests_pass_under_prophet_and_ctrl_c_leaves_nothing_behind(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tools.torch_tests", "--each", *BREADTH, "test_ddp_uneven_inputs"]
    with (tmp_path / "log").open("wb") as log:
        program = subprocess.Popen(command, cwd=CHECKOUT, stdout=subprocess.PIPE, stderr=log, env=clean_environ())
    assert program.stdout is not None
    rows = [program.stdout.readline().decode().strip().split("\t") for _ in BREADTH]
    left = psutil.Process(program.pid).children(recursive=True)  # The last test takes a minute.
    os.kill(program.pid, signal.SIGINT)
    assert program.wait(60) == 130, (tmp_path / "log").read_text()
    assert len(left) >= 2 and not psutil.wait_procs(left, 60)[1]
    assert rows == [[name, "passed", "passed"] for name in BREADTH]


def test_tests_of_fsdp2_in_torchs_sources_run_in_processes_and_threads(tmp_path: Path) -> None:
    folder = tmp_path / "test/distributed"
    folder.mkdir(parents=True)
    shutil.copy(CHECKOUT / "tests/tools/sources_case.py", folder / "test_small.py")
    (folder / "test_old.py").write_text("from torch.distributed.fsdp import fully_shard, gone\n")
    command = [sys.executable, "-m", "tools.torch_tests", "--each", "--sources", str(tmp_path)]
    done = subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True, env=clean_environ())
    rows = [line.split("\t") for line in done.stdout.splitlines() if "\t" in line]
    assert (done.returncode, [[name, plain[:7], own[:7]] for name, plain, own in rows]) == (
        1,
        [
            ["test_old", "failed:", "failed:"],
            ["test_small.InProcesses.test_average", "passed", "passed"],
            ["test_small.InProcesses.test_counts_collectives", "passed", "failed:"],
            ["test_small.InThreads.test_skipped", "skipped", "skipped"],
            ["test_small.InThreads.test_steps", "passed", "passed"],
        ],
    ), done.stdout + done.stderr


def test_a_difference_counts_unless_it_has_a_reason(capsys: pytest.CaptureFixture[str]) -> None:
    compared = [BothEnds("one", PASSED, PASSED), BothEnds("two", PASSED, FAILED), BothEnds("three", FAILED, FAILED)]
    assert torch_tests.unexplained(compared, {}) == 1
    assert torch_tests.unexplained(compared, {"two": "for a reason"}) == 0
    said = capsys.readouterr().out.splitlines()
    assert [line.split(";")[-1].strip() for line in said] == ["NO REASON IS KNOWN", "for a reason"]


def test_every_reason_is_of_a_test_that_torch_has_or_of_its_sources() -> None:
    written = (Path(torch.__file__).parent / "testing/_internal/distributed/distributed_test.py").read_text()
    assert all(why and (f"def {name}(" in written or "." in name) for name, why in torch_tests.reasons().items())


def test_an_unknown_test_is_one_line_and_status_2(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    @contextmanager
    def running(python: str, sources: str, more: dict[str, str]) -> Iterator[SimpleNamespace]:
        yield SimpleNamespace(release="2.0", tests=["test_of_something"])

    monkeypatch.setattr(torch_tests, "running", running)
    assert exit_status(lambda: torch_tests.main(["test_of_nothing"])) == 2
    assert capfd.readouterr().err.strip() == "prophet: torch 2.0 has no test test_of_nothing"


@pytest.mark.parametrize(
    ("written", "becomes"),
    [
        ("net = DDP(model.cuda(self.rank), device_ids=[self.rank])", "net = DDP(model.cpu())"),
        ("x = torch.ones(2, device=rank).to(self.rank)", "x = torch.ones(2, device='cpu').to('cpu')"),
        ("torch.cuda.set_device(rank)", "_NoGpu.set_device(rank)"),
        ("y = x.to(torch.device('cuda:0'))", "y = x.to(torch.device('cpu'))"),
        ("@skip_if_lt_x_gpu(2)\ndef test(self):\n    pass", "def test(self):\n    pass"),
        ("z = torch.zeros(2, device=x.device)", "z = torch.zeros(2, device=x.device)"),
    ],
)
def test_a_gpu_becomes_the_processor(written: str, becomes: str) -> None:
    assert ast.unparse(WithoutGpus().visit(ast.parse(written))) == becomes


def test_a_gpu_named_in_words_becomes_the_processor() -> None:
    written = "@unittest.skipIf(not TEST_CUDA, 'no')\ndef test():\n    return mesh('cuda', 'nccl', device='meta')"
    becomes = "@unittest.skipIf(not True, 'no')\ndef test():\n    return mesh('cpu', 'gloo', device='meta')"
    assert ast.unparse(WithoutCuda().visit(ast.parse(written))) == becomes


def test_the_line_of_an_error_is_that_of_the_last_one() -> None:
    first = "Traceback (most recent call last):\n  File\nKeyError: 1\n\nDuring handling:\n\n"
    second = "Traceback (most recent call last):\n  File\n    x\nRuntimeError: what\nmore\n"
    assert error_line(first + second) == "RuntimeError: what"
