"""torch's own tests of DistributedDataParallel, on processors: a program that runs each in processes of its own.

Rule of this file: how a test that the installed torch ships runs without a GPU, and its outcome. The tests' module is
read from the wheel, rewritten as a syntax tree (WithoutGpus) and run; nothing of it is kept. This process imports it
once and forks the ranks of each test that a line of its input names; a line of JSON answers. torch_tests.py chooses the
tests, and compares them. A test that torch skips for gloo's sake is run all the same.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
import json
import os
import select
import signal
import sys
import tempfile
import time
import traceback
import types
from collections.abc import Mapping
from pathlib import Path
from typing import Any

MODULE = "torch.testing._internal.distributed.distributed_test"
RANKS = 2
GPU_DECORATORS = {"skip_if_no_gpu", "skip_if_lt_x_gpu", "require_n_gpus_for_nccl_backend", "nccl_skip_if_lt_x_gpu"}
RANK_NAMES = {"rank", "device", "device_id", "self.rank", "self.device", "torch.cuda.current_device()"}
"""Arguments of `.to()` for a GPU in torch's tests."""


class WithoutGpus(ast.NodeTransformer):
    """Rewriter of tests made for a GPU a rank: every device is the processor, and no test asks for a GPU."""

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        """Drop decorators that skip a test without a GPU, or because torch's own machines had trouble with it."""
        node.decorator_list = [each for each in node.decorator_list if not _skips(each)]
        return self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> ast.AST:
        """Replace a GPU by the processor in a call."""
        self.generic_visit(node)
        node.keywords = [each for each in node.keywords if each.arg not in ("device_ids", "output_device")]
        for keyword in node.keywords:
            if keyword.arg == "device" and _names_gpu(keyword.value):
                keyword.value = _processor(keyword.value)
        text = ast.unparse(node.func)
        if text == "torch.device":
            return ast.copy_location(ast.Call(node.func, [_processor(node)], []), node)
        if isinstance(node.func, ast.Attribute):
            if node.func.attr == "cuda":
                node.func.attr, node.args, node.keywords = "cpu", [], []
            elif node.func.attr == "to" and len(node.args) == 1 and ast.unparse(node.args[0]) in RANK_NAMES:
                node.args = [_processor(node)]
        return node

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        """Replace torch.cuda, except for what needs no GPU."""
        self.generic_visit(node)
        if isinstance(node.value, ast.Attribute) and ast.unparse(node.value) == "torch.cuda":
            return ast.copy_location(ast.Attribute(ast.Name("_NoGpu", ast.Load()), node.attr, node.ctx), node)
        return node


def _skips(decorator: ast.expr) -> bool:
    text = ast.unparse(decorator)
    return text.split("(")[0] in GPU_DECORATORS or (text.startswith("unittest.skip") and "pytorch/issues" in text)


def _names_gpu(node: ast.expr) -> bool:
    return not (isinstance(node, ast.Constant) and node.value == "cpu") and ast.unparse(node) != "x.device"


def _processor(node: ast.expr) -> ast.expr:
    return ast.copy_location(ast.Constant("cpu"), node)


class _NoGpu:
    """Stand-in for torch.cuda where there is none."""

    def __getattr__(self, name: str) -> Any:
        import torch

        ours = {
            "set_device": lambda *args, **kwargs: None,
            "synchronize": lambda *args, **kwargs: None,
            "current_device": lambda: "cpu",
            "device_count": lambda: RANKS,
            "Stream": torch.Stream,
        }
        return ours[name] if name in ours else getattr(torch.cuda, name)


def load() -> Any:
    """Return the class of all tests of the installed torch, for processors."""
    spec = importlib.util.find_spec(MODULE)
    assert spec is not None and spec.origin is not None
    tree = ast.fix_missing_locations(WithoutGpus().visit(ast.parse(Path(spec.origin).read_text())))
    module = types.ModuleType(MODULE)
    sys.modules[MODULE] = module
    vars(module).update(__file__=spec.origin, __package__=spec.parent, _NoGpu=_NoGpu())
    exec(compile(tree, spec.origin, "exec", dont_inherit=True), vars(module))
    names: Any = module
    names.init_multigpu_helper = lambda size, backend: {rank: [rank] for rank in range(size)}
    kind = type("TorchTests", (names.TestDistBackend, names.DistributedTest._DistTestBase), {})
    from torch.testing._internal.common_utils import instantiate_parametrized_tests

    return instantiate_parametrized_tests(kind)


def run(kind: Any, name: str, limit_s: float) -> dict[str, str]:
    """Run one test: `outcome` is passed, skipped, failed or hung, and `line` the first line of why."""
    from torch.testing._internal import common_distributed

    with tempfile.TemporaryDirectory() as folder:
        common_distributed.initialize_temp_directories()
        try:
            ranks = {_fork(kind, name, rank, Path(folder)): rank for rank in range(RANKS)}
            skips = {skip.exit_code: skip.message for skip in common_distributed.TEST_SKIPS.values()}
            generic = common_distributed.TEST_SKIPS["generic"].exit_code
            skips[generic] = getattr(getattr(kind, name), "__unittest_skip_why__", skips[generic])
            return _outcome(_wait(ranks, limit_s), Path(folder), skips)
        finally:
            common_distributed.cleanup_temp_dir()


def _fork(kind: Any, name: str, rank: int, folder: Path) -> int:
    pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        log = os.open(folder / f"log{rank}", os.O_WRONLY | os.O_CREAT)
        for number in (1, 2):
            os.dup2(log, number)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        kind._event_listener = staticmethod(lambda *args: None)  # It would hear a parent that there is not.
        # Torch sends the traceback that ended a rank to its parent, which reads this file.
        outbox = types.SimpleNamespace(send=(folder / f"error{rank}").write_text, close=lambda: None)
        kind._run(rank, name, str(folder / "meeting"), outbox)
    except SystemExit as ended:
        status = ended.code if isinstance(ended.code, int) else 1
    except BaseException:
        (folder / f"error{rank}").write_text(traceback.format_exc())
    finally:
        sys.stdout.flush()
        os._exit(status)


def _wait(ranks: Mapping[int, int], limit_s: float) -> dict[int, int | None]:
    """Return the status of each rank; None if it still ran. One that fails ends all, as in torch's own runner."""
    ends_at = time.monotonic() + limit_s
    statuses: dict[int, int | None] = dict.fromkeys(ranks.values())
    running = {os.pidfd_open(pid): pid for pid in ranks}
    try:
        while running:
            ready = select.select(list(running), [], [], max(0.0, ends_at - time.monotonic()))[0]
            for pidfd in ready:
                pid = running.pop(pidfd)
                os.close(pidfd)
                statuses[ranks[pid]] = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
            if not ready or any(status in (1, 10) or (status or 0) < 0 for status in statuses.values()):
                break
    finally:
        for pidfd, pid in running.items():
            os.kill(pid, signal.SIGKILL)
            os.close(pidfd)
            os.waitpid(pid, 0)
    return statuses


def _outcome(statuses: Mapping[int, int | None], folder: Path, skips: Mapping[int, str]) -> dict[str, str]:
    errors = sorted(folder.glob("error*"), key=lambda path: path.stat().st_mtime_ns)
    if errors:
        return {"outcome": "failed", "line": error_line(errors[0].read_text())}
    if any(status is None for status in statuses.values()):
        return {"outcome": "hung", "line": "a rank did not end"}
    status = next((status for status in statuses.values() if status), 0)
    if status in skips:
        return {"outcome": "skipped", "line": skips[status]}
    return {"outcome": "failed" if status else "passed", "line": f"status {status}" if status else ""}


def error_line(text: str) -> str:
    """Return the first line of the last error of a traceback."""
    after = text[text.rfind("Traceback (most recent call last)") :].splitlines()[1:]
    return next((line for line in after if line and not line.startswith(" ")), "")


def main() -> None:
    """Print the tests, and then run that of each line of input, for at most `limit_s` seconds."""
    limit_s = float(sys.argv[1])
    os.environ.update(BACKEND="gloo", WORLD_SIZE=str(RANKS), TEMP_DIR=tempfile.gettempdir())
    os.environ.update(MASTER_ADDR="127.0.0.1", TORCH_DISABLE_ADDR2LINE="1")
    own = bool(os.environ.get("PROPHET_SCHEDULER"))
    if own:
        importlib.import_module("prophet_ddp.autoload")  # Where the package is not installed nobody else does.
    kind = load()
    import torch

    if own:
        importlib.import_module("prophet_ddp.takeover")  # once, and not in each rank
    watched = hasattr(torch.nn.parallel.DistributedDataParallel.__init__, "__wrapped__")
    if own != watched:
        sys.exit("Prophet stands behind DistributedDataParallel" if watched else "Prophet does not come to it")
    names = [name for name in dir(kind) if name.startswith("test")]
    print(json.dumps({"torch": torch.__version__, "tests": names}), flush=True)
    for line in sys.stdin:
        print(json.dumps(run(kind, line.strip(), limit_s)), flush=True)


if __name__ == "__main__":
    main()
