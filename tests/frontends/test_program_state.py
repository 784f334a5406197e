"""An update that comes late computes as it would have within step(): in the state that the program had there."""

from __future__ import annotations

import contextlib
import importlib
import inspect
import pkgutil
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Any

import pytest
import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from prophet_scheduler.frontends.torch import program_state, references, steps
from prophet_scheduler.frontends.torch.optimizer import updates_of
from support.front_end import LateRounds, forget

C: Any = torch._C
Way = Callable[[Callable[[], None]], Any]
"""Function that runs its argument while some state of the program is changed."""


class Functions(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


class Dispatched(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


def within(*contexts: Callable[[], AbstractContextManager[Any]]) -> Way:
    def way(function: Callable[[], None]) -> None:
        with contextlib.ExitStack() as stack:
            for context in contexts:
                stack.enter_context(context())
            function()

    return way


def having(read: Callable[[], Any], put: Callable[[Any], Any], value: Any) -> Way:
    @contextlib.contextmanager
    def context() -> Iterator[None]:
        before = read()
        put(value)
        assert read() == value, "this torch cannot be put into that state"
        try:
            yield
        finally:
            put(before)

    return within(context)


def flag(name: str, value: Any) -> Way:
    return having(getattr(C, f"_get_{name}"), getattr(C, f"_set_{name}"), value)


def precision(backend: str, op: str, value: str) -> Way:
    return having(
        lambda: C._get_fp32_precision_getter(backend, op),
        lambda each: C._set_fp32_precision_setter(backend, op, each),
        value,
    )


def default_device(function: Callable[[], None]) -> None:
    torch.set_default_device("meta")
    try:
        function()
    finally:
        torch.set_default_device(None)


def traced(function: Callable[[], None]) -> None:
    def run(x: torch.Tensor) -> torch.Tensor:
        function()
        return x + 1

    torch.jit.trace(run, torch.ones(1), check_trace=False)


def of_transform(transform: Any) -> Way:
    def way(function: Callable[[], None]) -> None:
        def run(x: torch.Tensor) -> torch.Tensor:
            function()
            return x.sum()

        transform(run)(torch.ones(2, 2))

    return way


LASTING: Mapping[str, tuple[str, Way]] = {
    "set_default_device": ("function modes", default_device),
    "torch.device": ("function modes", within(lambda: torch.device("meta"))),
    "no_grad": ("grad mode", within(torch.no_grad)),
    "inference_mode": ("inference mode", within(torch.inference_mode)),
    "grad within inference_mode": ("inference mode", within(torch.inference_mode, torch.enable_grad)),
    "no forward mode": ("forward mode", having(C._is_fwd_grad_enabled, C._set_fwd_grad_enabled, False)),
    "one thread of backward": (
        "several threads of backward",
        within(lambda: torch.autograd.set_multithreading_enabled(False)),
    ),
    "autocast": ("autocast", within(lambda: torch.autocast("cpu"))),
    "autocast in half": ("autocast", within(lambda: torch.autocast("cpu", torch.float16))),
    "autocast without a cache": ("autocast", within(lambda: torch.autocast("cpu", cache_enabled=False))),
    "no torch function": ("function state", within(C.DisableTorchFunctionSubclass)),
    "below autograd": ("dispatch keys", within(C._AutoDispatchBelowAutograd)),
    "default dtype": ("default dtype", having(torch.get_default_dtype, torch.set_default_dtype, torch.float64)),
    "default dtype of half": (
        "default dtype",
        having(torch.get_default_dtype, torch.set_default_dtype, torch.bfloat16),
    ),
    "deterministic": (
        "deterministic algorithms",
        having(C._get_deterministic_algorithms, C._set_deterministic_algorithms, True),
    ),
    "deterministic, with warnings": (
        "deterministic algorithms",
        having(
            torch.is_deterministic_algorithms_warn_only_enabled,
            lambda value: C._set_deterministic_algorithms(value, warn_only=value),
            True,
        ),
    ),
    "memory not filled": ("memory filled", flag("deterministic_fill_uninitialized_memory", False)),
    "anomaly mode": ("anomaly mode", within(lambda: torch.autograd.set_detect_anomaly(True, check_nan=False))),
    "one thread more": (
        "threads",
        having(torch.get_num_threads, torch.set_num_threads, torch.get_num_threads() + 1),
    ),
    "denormals": ("denormals", having(program_state._flushes_denormals, torch.set_flush_denormal, True)),
    "matmul precision": (
        "matmul precision",
        having(torch.get_float32_matmul_precision, torch.set_float32_matmul_precision, "medium"),
    ),
    "fp32 precision": ("fp32_precision generic all", precision("generic", "all", "tf32")),
    "fp32 precision of a GPU": ("fp32_precision cuda all", precision("cuda", "all", "tf32")),
    "fp32 precision of mkldnn": ("fp32_precision mkldnn all", precision("mkldnn", "all", "bf16")),
    "a GPU's products": ("fp32_precision cuda matmul", precision("cuda", "matmul", "tf32")),
    "mkldnn's products": ("fp32_precision mkldnn matmul", precision("mkldnn", "matmul", "bf16")),
    "no mkldnn": ("mkldnn", having(C._get_mkldnn_enabled, C._set_mkldnn_enabled, False)),
    "mkldnn deterministic": ("mkldnn deterministic", flag("mkldnn_deterministic", True)),
    "implicit replication": ("implicit replication", flag("dtensor_allow_implicit_replication", True)),
}
"""Row of the table and way, by a name for each way."""

PASSING: Mapping[str, tuple[str, Way]] = {
    "a function mode": ("function modes", within(Functions)),
    "function modes and a device": ("function modes", within(Functions, lambda: torch.device("meta"), Functions)),
    "a dispatch mode": ("dispatch modes", within(Dispatched)),
    "grad of torch.func": ("functorch levels", of_transform(torch.func.grad)),
    "vmap": ("functorch levels", of_transform(torch.func.vmap)),
    "saved tensors hooks": (
        "saved tensors hooks",
        within(
            lambda: torch.autograd.graph.saved_tensors_hooks(lambda x: x, lambda x: x), torch.autograd.graph.save_on_cpu
        ),
    ),
    "a trace": ("tracing", traced),
}
"""States that are of no use after the program has left them: no update is late under them."""


def compiling(function: Callable[[], None]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(vars(torch.compiler), "_is_compiling_flag", True)
        function()


AT_USE: Mapping[str, tuple[str, Way]] = {**LASTING, **PASSING, "a compilation": ("compiling", compiling)}


class Job:
    """Job with a parameter that is updated late and one that torch updates as always; it notes the state at each."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        steps.install()
        self.late, self.plain = nn.Linear(2, 1, bias=False), nn.Linear(2, 1, bias=False)
        self.optimizer = torch.optim.SGD(self.late.parameters(), 0.1)
        self.plain_optimizer = torch.optim.SGD(self.plain.parameters(), 0.1)
        self.rounds = LateRounds(self.late)
        for model in (self.late, self.plain):
            model(torch.ones(1, 2)).sum().backward()
        self.states: list[list[Any]] = []
        self.watched: list[bool] = []
        module: Any = importlib.import_module("torch.optim.sgd")
        functional = module.sgd

        def sgd(*args: Any, **kwargs: Any) -> None:
            self.states.append(named(program_state.of_now()))
            self.watched.append(any(map(references.is_watch, torch.overrides._get_current_function_mode_stack())))
            functional(*args, **kwargs)

        monkeypatch.setattr(module, "sgd", sgd)

    def step(self) -> None:
        self.plain_optimizer.step()
        self.optimizer.step()

    def use(self) -> None:
        updates = updates_of(self.optimizer)
        assert updates is not None
        updates.flush()


def named(values: Any) -> list[Any]:
    """Return the values, with types in place of modes, since other objects of a type may do the same."""
    modes, dispatched, *others = values
    return [[type(mode) for mode in modes], [type(mode) for mode in dispatched], *others]


@pytest.fixture
def job(monkeypatch: pytest.MonkeyPatch) -> Iterator[Job]:
    yield Job(monkeypatch)
    forget()


@pytest.mark.parametrize("name", AT_USE)
def test_what_the_program_sets_after_step_is_none_to_the_update_and_stays_the_programs(job: Job, name: str) -> None:
    row, way = AT_USE[name]
    of_row = [state.name for state in program_state.TABLE].index(row)
    at_step = program_state.of_now()[of_row]
    job.step()
    assert len(job.states) == 1, "the update came at once"

    def use() -> None:
        before = program_state.of_now()
        assert before[of_row] != at_step, "the way changes nothing of that row"
        job.use()
        after = program_state.of_now()
        assert after == before or row == "tracing"

    way(use)
    plain, late = job.states
    assert late == plain


@pytest.mark.parametrize("name", LASTING)
def test_what_holds_at_step_holds_in_the_update(job: Job, name: str) -> None:
    _, way = LASTING[name]
    way(job.step)
    assert len(job.states) == 1, "the update came at once"
    before = program_state.of_now()
    job.use()
    assert program_state.of_now() == before
    plain, late = job.states
    assert late == plain


@pytest.mark.parametrize("name", sorted(PASSING.keys() - {"grad of torch.func", "a trace"}))
def test_nothing_is_late_where_what_holds_at_step_is_over_after_it(job: Job, name: str) -> None:
    """The two that are left out raise in torch's own step()."""
    _, way = PASSING[name]
    way(job.step)
    plain, late = job.states
    assert late == plain
    way(job.use)
    assert len(job.states) == 2


def test_every_row_of_the_table_has_a_way() -> None:
    assert {state.name for state in program_state.TABLE} == {row for row, _ in AT_USE.values()}


def test_the_watch_is_where_it_was_after_an_update_under_a_default_device(job: Job) -> None:
    default_device(job.step)
    assert references.watching_here()
    job.use()
    job.late(torch.ones(1, 2)).sum().backward()
    job.step()
    assert references.watching_here()
    default_device(job.use)
    assert not references.watching_here()
    assert torch.overrides._get_current_function_mode_stack() == []
    default_device(lambda: job.late(torch.ones(1, 2, device="cpu")).sum().backward())  # The device is aside then.
    assert references.watching_here()


def test_an_update_pays_nothing_for_the_watch_that_it_ends(job: Job) -> None:
    job.step()
    assert references.watching_here()
    job.late(torch.ones(1, 2))
    _, late = job.watched
    assert not late


class Sets:
    """Names in torch that set state: by a pattern of names, the row of the table, or a reason why none is needed."""

    ROWS: Mapping[str, str] = {
        "set_default_device|device": "function modes",
        "TorchFunctionMode|BaseTorchFunctionMode|_push_on_torch_function_stack": "function modes",
        "TorchDispatchMode|BaseTorchDispatchMode|_push_on_torch_dispatch_stack|_set_dispatch_mode": "dispatch modes",
        "_push_mode": "dispatch modes",
        "_DisableTorchDispatch|_disable_current_modes|_disable_infra_mode|_EnablePreDispatch": "dispatch modes",
        "push_dynamic_layer_stack|_set_dynamic_layer_keys_included|_DisableFuncTorch": "functorch levels",
        "_push_saved_tensors_default_hooks|saved_tensors_hooks|save_on_cpu": "saved tensors hooks",
        "disable_saved_tensors_hooks|_swap_with_cloned|_?allow_mutation_on_saved_tensors.*": "saved tensors hooks",
        "_set_tracing_state|_set_value_trace": "tracing",
        "inference_mode|_InferenceMode": "inference mode",
        "(_?set_grad_enabled|enable_grad|no_grad)": "grad mode",
        "_set_fwd_grad_enabled|dual_level": "forward mode",
        "_?set_multithreading_enabled": "several threads of backward",
        "set_autocast_.*|autocast|_UnmanagedAutocast|_DisableAutocast": "autocast",
        "_set_torch_function_state|DisableTorchFunction(Subclass)?": "function state",
        "_EnableTorchFunction|_enable_torch_function": "function state",
        ".*Dispatch(Key|Below).*|.*PythonDispatcher|_RestorePythonTLSSnapshot": "dispatch keys",
        "_set_meta_in_tls_dispatch_include|enable_reentrant_dispatch": "dispatch keys",
        "_(en|dis)able_functionalization": "dispatch keys",
        "_?set_default_(dtype|tensor_type)": "default dtype",
        "(_set|use)_deterministic_algorithms|set_deterministic_debug_mode": "deterministic algorithms",
        "_set_deterministic_fill_uninitialized_memory": "memory filled",
        "set_anomaly_enabled|(set_)?detect_anomaly": "anomaly mode",
        "set_num_threads": "threads",
        "set_flush_denormal": "denormals",
        "_?set_float32_matmul_precision": "matmul precision",
        "_set_fp32_precision_setter": "fp32_precision generic all",
        "_set_cublas_allow_tf32": "fp32_precision cuda matmul",
        "_set_onednn_allow_tf32": "fp32_precision mkldnn matmul",
        "_set_mkldnn_enabled": "mkldnn",
        "_set_mkldnn_deterministic": "mkldnn deterministic",
        "_set_dtensor_allow_implicit_replication": "implicit replication",
        "_disable_dynamo": "compiling",
    }
    REASONS: Mapping[str, str] = {
        ".*(cudnn|miopen|nnpack).*|_use_.*": "no optimizer convolves, and none has a recurrent layer",
        ".*(sdp|rocm_fa).*": "no optimizer attends",
        "_set_qengine": "no optimizer quantizes",
        "_set_cublas_allow_(fp16|bf16).*|_set_cublaslt_prefer_.*|_set_sm_carveout_experimental|"
        "_set_(blas|linalg)_preferred_backend|_set_cpu_allow_fp16.*|"
        "preferred_(blas|linalg)_library": "set once for a process, as libraries are chosen",
        ".*rng_state.*|_set_generator_metaclass": "no optimizer draws",
        "set_num_interop_threads": "can be set once, and no optimizer forks",
        ".*warn.*|_set_backcompat.*|set_printoptions|.*signal.*|_set_thread_name": "only says something",
        "(_set_)?check_sparse_tensor_invariants": "checks, and changes nothing; sparse gradients are not late",
        "_set_(conj|neg|creation_meta|tensor_metadata|skip_next_torch_function)|"
        "_set_storage_.*_error_msg": "of one tensor, or of one call",
        "(_push_)?node_creation_hook": "hears of a graph's nodes, and no optimizer makes any",
        "_set_autograd_fallback_mode|_set_view_replay_enabled|_force_original_view_tracking|_set_grad_layout.*|"
        "enforce_grad_layout_policy|_set_override_stale.*|set_override_stale.*|_unsafe_preserve_version_counter|"
        "_MultiHandle|_CloneArgBeforeMutateMode": "of backward, or of views that it goes through",
        "_set_cached_tensors_enabled": "of graphs of a GPU",
        "_set_dtensor.*|_set_only_lift_cpu_tensors": "of tensors that this wrapper does not average",
        "_set_graph_.*|_?set_fusion_strategy|enable_onednn_fusion|strict_fusion": "of what torch.jit compiles",
        "_set_should_use_format.*|_set_default_mobile.*|_enable_mobile.*|_set_worker_pids|set_module": "of other uses",
        "_set_throw_on_mutable_data_ptr": "torch's own checks of its operators",
        ".*profiler.*|_enable_record_function|_set_empty_test_observer|.*execution_trace_observer|profile|emit_.*|"
        "record_function|_RecordFunctionFast|_set_.*_enabled_val": "observes, and changes nothing",
        "_set_vmap_fallback.*|set_inplace_requires_grad_allowed|set_single_level.*": "within a level of functorch",
        "set_(overwrite|swap)_module_params_on_conversion": "of modules",
        "Stream|StreamContext|set_stream|_CudaStreamBase": "streams.py has those",
        "set_fastpath_enabled": "of modules",
        "set_flags": "as the functions that set each flag",
        "(en|dis)able_(operations|dispatch_keys)": "chooses kernels, once for a process",
        "verbose": "only says something",
    }
    MODULES = (
        *("torch", "torch._C", "torch._C._autograd", "torch._C._functorch", "torch._C._profiler", "torch.__future__"),
        *("torch.autograd", "torch.autograd.graph", "torch.autograd.grad_mode", "torch.autograd.forward_ad"),
        *("torch.autograd.anomaly_mode", "torch.autograd.profiler", "torch.amp.autocast_mode", "torch.overrides"),
        *("torch.random", "torch.jit", "torch.sparse", "torch.nn.attention", "torch.backends"),
    )

    @classmethod
    def names(cls) -> set[str]:
        backends: Any = importlib.import_module("torch.backends")
        modules = [*cls.MODULES, *(f"torch.backends.{each.name}" for each in pkgutil.iter_modules(backends.__path__))]
        found = set()
        for module in map(importlib.import_module, modules):
            for name, value in inspect.getmembers(module):
                if name.startswith("__") or name.endswith(("_is_enabled", "_enabled_error_message")):
                    continue
                own = getattr(value, "__module__", None) in (module.__name__, "torch._C", None)
                sets = re.match("_?(set|use|enable|disable|allow|preferred|push|force)_", name)
                if (sets and own) or (inspect.isclass(value) and own and hasattr(value, "__enter__")):
                    found.add(name)
        return found


def test_everything_that_this_torch_can_set_is_in_the_table_or_can_have_no_part_in_an_update() -> None:
    known = [re.compile(pattern) for pattern in (*Sets.ROWS, *Sets.REASONS)]
    names = Sets.names()
    assert len(names) > 100
    assert not sorted(name for name in names if not any(pattern.fullmatch(name) for pattern in known))
    assert set(Sets.ROWS.values()) <= {state.name for state in program_state.TABLE}


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.AdamW, torch.optim.Adafactor, torch.optim.RAdam])
def test_no_optimizer_draws(kind: Any) -> None:
    param = nn.Parameter(torch.ones(3, 3))
    param.grad = torch.ones(3, 3)
    before = torch.get_rng_state()
    kind([param], lr=0.1).step()
    assert torch.equal(torch.get_rng_state(), before)
