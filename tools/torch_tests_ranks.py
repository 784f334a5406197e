"""torch's own tests of DistributedDataParallel and FSDP2 on the CPU: a program that runs each in its own processes.

Rule of this file: how a test of torch runs without a GPU, and its outcome. The tests' modules are read from the wheel
or torch's sources, rewritten as syntax trees (WithoutGpus) and run; nothing of them is stored. This process imports
them once. For each line of its input, it forks a process for the test of that name, which forks the ranks as torch
spawns them, and answers with a line of JSON.
torch_tests.py chooses the tests, and compares outcomes. Tests that torch skips because of issues with gloo do run.
"""

from __future__ import annotations

import ast
import contextlib
import importlib
import importlib.util
import json
import multiprocessing
import os
import re
import sys
import tempfile
import types
import unittest
from pathlib import Path
from typing import Any

import psutil

FORK = multiprocessing.get_context("fork")
MODULE = "torch.testing._internal.distributed.distributed_test"
RANKS = 2
GPUS = 4
"""Number of GPUs, and so maximum ranks, that tests in torch's sources find."""
OF_FSDP2 = re.compile(r"\bfully_shard\b|_composable.* import .*\breplicate\b")
"""Text in files with tests of FSDP2 or replicate()."""
LEFT_OUT = re.compile("_compile|_mem|_overlap")
"""Names of files to skip: tests of compilers, a GPU's memory and its streams."""
GPU_DECORATORS = {"skip_if_no_gpu", "skip_if_lt_x_gpu", "require_n_gpus_for_nccl_backend", "nccl_skip_if_lt_x_gpu"}
GPU_FLAGS = {"TEST_CUDA", "HAS_CUDA", "HAS_GPU"}
RANK_NAMES = {"rank", "device", "device_id", "self.rank", "self.device", "torch.cuda.current_device()"}
"""Arguments of `.to()` that mean a GPU in torch's tests."""


class WithoutGpus(ast.NodeTransformer):
    """Rewriter of tests made for one GPU per rank: every device becomes the CPU, and no test requires a GPU."""

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        """Drop decorators that skip a test without a GPU, or because torch's own machines had trouble with it."""
        node.decorator_list = [each for each in node.decorator_list if not _skips(each)]
        return self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> ast.AST:
        """Replace a GPU by the CPU in a call."""
        self.generic_visit(node)
        node.keywords = [each for each in node.keywords if each.arg not in ("device_ids", "output_device")]
        for keyword in node.keywords:
            if keyword.arg == "device" and _names_gpu(keyword.value):
                keyword.value = _processor(keyword.value)
        text = ast.unparse(node.func)
        if text == "torch.device" and _names_gpu(node.args[0]):
            return ast.copy_location(ast.Call(node.func, [_processor(node)], []), node)
        if isinstance(node.func, ast.Attribute):
            if node.func.attr == "cuda":
                node.func.attr, node.args, node.keywords = "cpu", [], []
            elif node.func.attr == "to" and len(node.args) == 1 and ast.unparse(node.args[0]) in RANK_NAMES:
                node.args = [_processor(node)]
        return node

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        """Replace torch.cuda by a stand-in."""
        self.generic_visit(node)
        if isinstance(node.value, ast.Attribute) and ast.unparse(node.value) == "torch.cuda":
            return ast.copy_location(ast.Attribute(ast.Name("_NoGpu", ast.Load()), node.attr, node.ctx), node)
        return node


class WithoutCuda(WithoutGpus):
    """Rewriter that also replaces names of devices and backends in strings."""

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        """Replace the names of CUDA and NCCL in a string."""
        if isinstance(node.value, str):
            words = node.value.replace("cpu:gloo,cuda:nccl", "gloo").replace("cuda", "cpu").replace("nccl", "gloo")
            return ast.copy_location(ast.Constant(words), node)
        return node

    def visit_Name(self, node: ast.Name) -> ast.AST:
        """Make flags say that there are GPUs."""
        there = node.id in GPU_FLAGS and isinstance(node.ctx, ast.Load)
        return ast.copy_location(ast.Constant(True), node) if there else node


def _skips(decorator: ast.expr) -> bool:
    text = ast.unparse(decorator)
    return text.split("(")[0] in GPU_DECORATORS or (text.startswith("unittest.skip") and "pytorch/issues" in text)


def _names_gpu(node: ast.expr) -> bool:
    return not (isinstance(node, ast.Constant) and node.value in ("cpu", "meta")) and ast.unparse(node) != "x.device"


def _processor(node: ast.expr) -> ast.expr:
    return ast.copy_location(ast.Constant("cpu"), node)


class _NoGpu:
    """Stand-in for torch.cuda without a GPU."""

    def __getattr__(self, name: str) -> Any:
        import torch

        ours = {
            "set_device": lambda *args, **kwargs: None,
            "synchronize": lambda *args, **kwargs: None,
            "current_device": lambda: "cpu",
            "device_count": lambda: int(os.environ["WORLD_SIZE"]),
            "Stream": torch.Stream,
            "current_stream": torch.cpu.current_stream,
            "_sleep": lambda cycles: None,
        }
        return ours[name] if name in ours else getattr(torch.cuda, name)


def load(name: str, path: Path, rewriter: WithoutGpus) -> Any:
    """Return a module of tests, rewritten for the CPU."""
    tree = ast.fix_missing_locations(rewriter.visit(ast.parse(path.read_text())))
    module = types.ModuleType(name)
    sys.modules[name] = module
    vars(module).update(__file__=str(path), __package__=name.rpartition(".")[0], _NoGpu=_NoGpu())
    exec(compile(tree, str(path), "exec", dont_inherit=True), vars(module))
    return module


def shipped() -> dict[str, tuple[Any, str]]:
    """Return the tests of the installed torch: the class and the method of each, by name."""
    spec = importlib.util.find_spec(MODULE)
    assert spec is not None and spec.origin is not None
    names = load(MODULE, Path(spec.origin), WithoutGpus())
    names.init_multigpu_helper = lambda size, backend: {rank: [rank] for rank in range(size)}

    def set_up(test: Any) -> None:
        super(names.TestDistBackend, test).setUp()  # its own setUp needs a decorator that is gone
        names.initialize_temp_directories()
        test._spawn_processes()

    kind = type("TorchTests", (names.TestDistBackend, names.DistributedTest._DistTestBase), {"setUp": set_up})
    from torch.testing._internal.common_utils import instantiate_parametrized_tests

    return {name: (kind, name) for name in dir(instantiate_parametrized_tests(kind)) if name.startswith("test")}


def of_sources(folder: Path) -> dict[str, tuple[Any, str]]:
    """Return the tests of FSDP2 and replicate() in torch's sources: the class and the method of each, by name."""
    import torch
    from torch.testing._internal import common_fsdp, common_utils, inductor_utils

    vars(torch.accelerator)["device_count"] = lambda: GPUS
    for helpers in (common_fsdp, common_utils):
        vars(helpers)["get_cycles_per_ms"] = lambda: 0
    # Names that tests import, from other releases of torch.
    vars(common_fsdp).setdefault("test_compiled_fsdp", getattr(common_fsdp, "compiled_fsdp_test", None))
    vars(inductor_utils).setdefault("HAS_CUDA", True)
    tests: dict[str, tuple[Any, str]] = {}
    for path in sorted((folder / "test/distributed").rglob("test_*.py")):
        if LEFT_OUT.search(path.stem) or not OF_FSDP2.search(path.read_text()):
            continue
        try:
            kinds = vars(load(path.stem, path, WithoutCuda())).values()
        except Exception as error:
            tests[path.stem] = error, ""
            continue
        for kind in kinds:
            if isinstance(kind, type) and issubclass(kind, unittest.TestCase) and kind.__module__ == path.stem:
                place, names = f"{path.stem}.{kind.__name__}", filter(re.compile("test").match, dir(kind))
                tests |= {f"{place}.{name}": (kind, name) for name in names}
    return tests


def run(kind: Any, name: str, limit_s: float) -> dict[str, str]:
    """Run one test: `outcome` is passed, skipped, failed or hung, and `line` the first line of the reason."""
    if isinstance(kind, Exception):
        return {"outcome": "failed", "line": f"{type(kind).__name__}: {kind}"}
    inbox, outbox = FORK.Pipe(duplex=False)
    process = FORK.Process(target=_run_here, args=(kind, name, outbox))
    process.start()
    outbox.close()
    try:
        return inbox.recv() if inbox.poll(limit_s) else {"outcome": "hung", "line": "it did not end"}
    except EOFError:
        return {"outcome": "failed", "line": "its process ended"}
    finally:
        own = psutil.Process(process.pid)
        for each in (*own.children(recursive=True), own):
            with contextlib.suppress(psutil.NoSuchProcess):
                each.kill()
        process.join()


def _run_here(kind: Any, name: str, outbox: Any) -> None:
    """Run one test, whose ranks are forked from this process or its threads, and send its outcome."""
    nothing = os.open(os.devnull, os.O_WRONLY)
    for number in (1, 2):
        os.dup2(nothing, number)
    if hasattr(kind, "_spawn_processes"):
        vars(getattr(kind, name)).pop("__unittest_skip__", None)  # torch's mark is about its own machines
    result = unittest.TestResult()
    unittest.TestSuite([kind(name)]).run(result)
    if failed := [*result.errors, *result.failures]:
        outbox.send({"outcome": "failed", "line": error_line(failed[0][1])})
    elif result.skipped:
        outbox.send({"outcome": "skipped", "line": result.skipped[0][1]})
    else:
        outbox.send({"outcome": "passed", "line": ""})


def error_line(text: str) -> str:
    """Return the first line of the last error of a traceback."""
    after = text[text.rfind("Traceback (most recent call last)") :].splitlines()[1:]
    return next((line for line in after if line and not line.startswith(" ")), "")


def main() -> None:
    """Print the list of tests, then run the test named by each line of input. Arguments: the maximum seconds of a test,
    and the folder of torch's sources or "".
    """
    limit_s, sources = float(sys.argv[1]), sys.argv[2]
    os.environ.update(BACKEND="gloo", WORLD_SIZE=str(GPUS if sources else RANKS), TEMP_DIR=tempfile.gettempdir())
    os.environ.update(MASTER_ADDR="127.0.0.1", TORCH_DISABLE_ADDR2LINE="1")
    own = bool(os.environ.get("PROPHET_SCHEDULER"))
    plugins = ("prophet_ddp", "prophet_fsdp") if own else ()
    for plugin in plugins:
        importlib.import_module(f"{plugin}.autoload")  # nothing else does if the package is not installed
    tests = of_sources(Path(sources)) if sources else shipped()
    import torch
    from torch.testing._internal.common_distributed import MultiProcessTestCase

    several: Any = MultiProcessTestCase
    check_first = several._check_return_codes

    def check_all(test: Any, function: Any, elapsed_s: float) -> None:
        """torch itself looks only at the first rank's status, and at failed tests."""
        check_first(test, function, elapsed_s)
        test.assertEqual({process.exitcode for process in test.processes}, {0})

    several._spawn_processes = lambda test: test._start_processes(FORK.Process)
    several._check_return_codes = check_all

    for plugin in plugins:
        importlib.import_module(f"{plugin}.takeover")  # once here, not in each rank
    watched = hasattr(torch.nn.parallel.DistributedDataParallel.__init__, "__wrapped__")
    if own != watched:
        sys.exit("Prophet has taken over DistributedDataParallel" if watched else "Prophet has not taken over")
    print(json.dumps({"torch": torch.__version__, "tests": list(tests)}), flush=True)
    for line in sys.stdin:
        print(json.dumps(run(*tests[line.strip()], limit_s)), flush=True)


if __name__ == "__main__":
    main()
