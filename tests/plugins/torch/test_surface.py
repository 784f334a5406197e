"""Tests of all that DistributedDataParallel, its reducer and its logger offer in the installed torch.

A new release of torch that has more fails here, until somebody has decided what becomes of it under Prophet.
"""

from __future__ import annotations

import datetime
import inspect
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as c10d
from torch.nn.parallel import DistributedDataParallel

from prophet_ddp import texts
from prophet_ddp.ddp_logger import DdpLogger
from prophet_ddp.progress import Uses
from prophet_ddp.reducer import HANDED_BACK, LateReducer

NO_METHOD = {
    "_pybind11_conduit_v1_": "how C++ takes an object for its own: torch's functions get no reducer of Prophet's"
}
SERVED = {
    *("prepare_for_forward", "prepare_for_backward", "get_backward_stats", "set_logger", "_delay_all_reduce"),
    *("_rebuild_buckets", "_get_local_used_map", "_set_ddp_runtime_logging_sample_rate", "_set_static_graph"),
    *("_check_reducer_finalized", "_ddp_graph_static"),
}
"""Methods of torch's Reducer that LateReducer has."""

NOTICED = {
    **dict.fromkeys(("join_hook", "_register_buffer_comm_hook", "_register_builtin_comm_hook"), "takeover._install"),
    "register_comm_hook": "takeover._watch_comm_hooks",
    "__init__": "autoload.stand_behind",
}
"""Attributes of DistributedDataParallel, with what notices a use of each."""
BY_REDUCER_OR_LOGGER = {
    *("_get_ddp_logging_data", "_set_ddp_runtime_logging_sample_rate", "_set_static_graph", "_remove_autograd_hooks"),
    *("_check_reducer_finalized", "_set_sparse_metadata", "_update_process_group", "_pre_forward", "_post_forward"),
    *("_match_unused_params_allreduce", "_match_all_reduce_for_bwd_pass", "_log_and_throw", "_ddp_init_helper"),
    *("_sync_module_buffers", "_fire_reducer_autograd_hook", "_setup_in_backward_optimizers", "_register_fused_optim"),
}
"""DistributedDataParallel's own code that calls a reducer or a logger."""
BY_ITSELF = {
    *("_active_ddp_module", "_register_accum_grad_hook", "_delayed_all_reduce_hook", "_register_delay_all_reduce_hook"),
    *("_root_copy_hook", "_module_wait_for_copy_hook", "_build_params_for_reducer", "_assign_modules_buffers"),
    *("_build_debug_param_to_name_mapping", "_get_parameters", "_check_default_group", "no_sync", "forward", "scatter"),
    *(
        "_get_active_ddp_module",
        "_inside_ddp_forward",
        "_run_ddp_forward",
        "_clear_grad_buffer",
        "_lazy_init",
        "gather",
    ),
    *("gather", "to_kwargs", "train", "_check_global_requires_backward_grad_sync", "_check_and_sync_module_buffers"),
    *(
        "join",
        "_sync_final_model",
        "join_device",
        "join_process_group",
        "_distributed_broadcast_coalesced",
        "_find_common_rank",
    ),
    *("_check_sync_bufs_post_fwd", "_check_sync_bufs_pre_fwd", "will_sync_module_buffers", "_sync_buffers"),
    *("_default_broadcast_coalesced", "_passing_sync_batchnorm_handle", "_check_comm_hook"),
    *("_distributed_rank", "_get_data_parallel_params", "_set_params_and_buffers_to_ignore_for_model"),
    *("_find_common_rank", "_set_ddp_sink_clone", "broadcast_buffers", "__getstate__", "__setstate__"),
}
"""DistributedDataParallel's own code that needs neither."""
PYTHONS = {"__module__", "__annotations__", "__doc__", "__abstractmethods__", "_abc_impl"}


def names_of(kind: type) -> set[str]:
    return {name for name in dir(kind) if not name.startswith("__")}


def test_every_method_of_torchs_reducer_is_served_or_handed_back() -> None:
    reducer: Any = c10d.Reducer
    theirs = names_of(reducer) - set(NO_METHOD)
    assert theirs - SERVED - set(HANDED_BACK) == set(), "undecided"
    assert not SERVED & set(HANDED_BACK)
    assert all(name in vars(LateReducer) for name in SERVED)
    assert (SERVED | set(HANDED_BACK)) - theirs == set(), "torch has it no more"


def test_every_method_of_torchs_logger_is_served() -> None:
    own = {name for name in names_of(c10d.Logger) - set(NO_METHOD) if name not in vars(DdpLogger)}
    assert own == set(), "undecided"


def test_every_attribute_of_ddp_is_known() -> None:
    known = [set(NOTICED), BY_REDUCER_OR_LOGGER, BY_ITSELF, PYTHONS]
    theirs = set(vars(DistributedDataParallel))
    assert theirs - set().union(*known) == set(), "undecided"
    assert sum(map(len, known)) == len(set().union(*known)), "two say something of it"
    assert set().union(*known) - theirs <= PYTHONS, "torch has it no more"


def test_what_needs_neither_reducer_nor_logger_does_not_look_at_them() -> None:
    theirs = vars(DistributedDataParallel)
    # A pickled module has neither, and the module that is loaded from it has torch's own.
    for name in BY_ITSELF - {"_active_ddp_module", "__setstate__"}:
        value = theirs[name]
        code = inspect.unwrap(getattr(value, "fget", getattr(value, "__func__", value))).__code__
        assert not {"reducer", "logger"} & set(code.co_names), name


@pytest.fixture
def torch_logger() -> Iterator[Any]:
    store = c10d.HashStore()
    dist.init_process_group("gloo", store=store, rank=0, world_size=1, timeout=datetime.timedelta(seconds=30))
    try:
        yield DistributedDataParallel(torch.nn.Linear(3, 2))
    finally:
        dist.destroy_process_group()


EARLY = [*range(1, 11)]


class Rounds:
    """The part of ModuleRounds that a logger looks at."""

    resting = False
    sparse = None
    layout = SimpleNamespace(buckets=None)
    uses = Uses((), vary=False, counted=False)

    def __init__(self, ddp: Any) -> None:
        self.registered = [Slot(param) for param in ddp.parameters()]

    def forward_begins(self) -> None:
        """Begins nothing."""

    def check_finished(self) -> None:
        """All rounds have finished."""

    def keep_counts(self) -> None:
        """The graph is static."""


class Slot:
    """A parameter."""

    def __init__(self, param: torch.Tensor) -> None:
        self.param = param


def iteration(logger: DdpLogger, rounds: Rounds, order: tuple[int, ...] = (1, 0)) -> None:
    logger.set_runtime_stats_and_log()
    logger.buckets_change()
    logger.forward_ended()
    times = logger.times
    if times is None:
        return
    for place in order:
        times.gradient_ready(rounds.registered[place])  # type: ignore[arg-type]
    times.started()
    times.backward_end = times.backward_start + 5_000_000
    times.comm_start = times.backward_start + 1_000_000
    times.comm_end = times.comm_start + 9_000_000


def test_times_are_those_of_the_iteration_before_and_averages_those_of_all(torch_logger: Any) -> None:
    rounds: Any = Rounds(torch_logger)
    logger = DdpLogger(rounds, torch_logger.logger, torch_logger)
    assert "backward_compute_time" not in logger._get_ddp_logging_data().ints_map
    for _ in range(3):
        iteration(logger, rounds)
    data = logger._get_ddp_logging_data().ints_map
    assert data["iteration"] == 2
    assert data["backward_compute_time"] == data["avg_backward_compute_time"] == 5_000_000
    assert data["backward_comm_time"] == 9_000_000
    assert data["backward_compute_comm_overlap_time"] == 4_000_000


def test_what_has_not_come_back_is_0_until_it_has(torch_logger: Any) -> None:
    rounds: Any = Rounds(torch_logger)
    logger = DdpLogger(rounds, torch_logger.logger, torch_logger)
    iteration(logger, rounds)
    late = logger.times
    assert late is not None
    late.comm_end = 0
    iteration(logger, rounds)
    assert logger._get_ddp_logging_data().ints_map["backward_comm_time"] == 0
    late.comm_end = late.comm_start + 7
    assert logger._get_ddp_logging_data().ints_map["backward_comm_time"] == 7


@pytest.mark.parametrize(("rate", "looked_at"), [(2, [*EARLY, 12, 14]), (100, EARLY), (7, [*EARLY, 14])])
def test_times_are_taken_as_often_as_torch_takes_them(torch_logger: Any, rate: int, looked_at: list[int]) -> None:
    rounds: Any = Rounds(torch_logger)
    logger = DdpLogger(rounds, torch_logger.logger, torch_logger)
    logger.sample_rate = rate
    seen = []
    for count in range(15):
        iteration(logger, rounds)
        if count and logger._get_ddp_logging_data().ints_map["iteration"] == count:
            seen.append(count)
    assert seen == looked_at


def test_a_functions_error_is_kept_where_torch_keeps_it(torch_logger: Any) -> None:
    logger = DdpLogger(Rounds(torch_logger), torch_logger.logger, torch_logger)  # type: ignore[arg-type]
    sparse = torch.zeros(2, 2).to_sparse()
    with pytest.raises(RuntimeError, match="sparse"):
        assign: Any = c10d._compute_bucket_assignment_by_size
        assign([sparse], [4], [False], [], logger)
    data = logger._get_ddp_logging_data()
    assert (data.ints_map["has_error"], data.strs_map["error"]) == (1, "No support for sparse tensors.")


def test_what_only_torchs_reducer_has_is_asked_of_it() -> None:
    asked = []

    class Torchs:
        """torch's reducer."""

        def __getattr__(self, name: str) -> Any:
            return lambda *values: asked.append((name, values))

    def hand_back(why: str) -> Torchs:
        assert why
        return Torchs()

    late = LateReducer.__new__(LateReducer)
    late._hand_back = hand_back
    for name in HANDED_BACK:
        getattr(late, name)(3)
    assert asked == [(name, (3,)) for name in HANDED_BACK]
    with pytest.raises(AttributeError, match="has no something_new"):
        late.something_new  # noqa: B018


def test_a_static_graph_must_be_said_before_training(torch_logger: Any) -> None:
    rounds: Any = Rounds(torch_logger)
    logger = DdpLogger(rounds, torch_logger.logger, torch_logger)
    late = LateReducer(rounds, logger, lambda why: None)
    late._set_static_graph()
    logger.set_runtime_stats_and_log()
    with pytest.raises(RuntimeError) as caught:
        late._set_static_graph()
    assert str(caught.value) == texts.STATIC_LATE == logger._get_ddp_logging_data().strs_map["error"]
