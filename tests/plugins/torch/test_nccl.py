"""Tests of when Prophet takes over on GPUs, and of the threads that wait for a device's events; no GPU is needed."""

from __future__ import annotations

import queue
import threading
from typing import Any

import pytest
import torch

from prophet_ddp import device_arena, nccl
from prophet_scheduler.core.errors import UserError
from prophet_scheduler.core.settings import DDP_NCCL, DDP_SCHEDULER, LOCAL_RANK, Settings, from_environ
from prophet_scheduler.frontends.torch import guards

GPU = torch.device("cuda", 0)
ASKED = Settings("prophet", nccl=True)


def why_not(
    *devices: torch.device,
    backend: str = "nccl",
    whole: bool = True,
    bound: bool = False,
    told: Settings = ASKED,
    **environ: str,
) -> str | None:
    return nccl.why_not(set(devices or (GPU,)), backend, whole, bound, told, environ)


@pytest.mark.parametrize("backend", ["nccl", "cuda:nccl", "cpu:gloo,cuda:nccl"])
def test_where_it_was_asked_for_it_takes_over(backend: str) -> None:
    assert why_not(backend=backend) is None
    assert why_not(backend=backend, bound=True) is None
    assert why_not(TORCH_NCCL_BLOCKING_WAIT="0", TORCH_NCCL_ASYNC_ERROR_HANDLING="3") is None


def test_without_the_variable_the_warning_names_it() -> None:
    reason = why_not(told=Settings("prophet"))
    assert reason is not None
    assert f"{DDP_NCCL}=1" in reason


@pytest.mark.parametrize(
    ("reason", "how"),
    [
        ("parameters are on cpu and cuda", {"devices": (GPU, torch.device("cpu"))}),
        ("parameters are on meta", {"devices": (torch.device("meta"),)}),
        ("2 GPUs", {"devices": (GPU, torch.device("cuda", 1))}),
        ("backend is gloo, not nccl", {"backend": "gloo"}),
        ("bound to a device", {"whole": False, "bound": True}),
        ("pace plans from a trace of forward", {"told": Settings("pace", nccl=True)}),
        ("tictac plans from a trace of forward", {"told": Settings("tictac", nccl=True)}),
        ("TORCH_NCCL_BLOCKING_WAIT", {"TORCH_NCCL_BLOCKING_WAIT": "1"}),
        ("NCCL_ASYNC_ERROR_HANDLING is 0", {"NCCL_ASYNC_ERROR_HANDLING": "0"}),
        ("TORCH_NCCL_ASYNC_ERROR_HANDLING is 2", {"TORCH_NCCL_ASYNC_ERROR_HANDLING": "2"}),
    ],
)
def test_what_it_cannot_live_with_keeps_torchs_reducer(reason: str, how: dict[str, Any]) -> None:
    found = why_not(*how.pop("devices", ()), **how)
    assert found is not None
    assert reason in found


def test_the_variable_is_read_for_this_engine_alone() -> None:
    environ = {DDP_SCHEDULER: "prophet", "BYTEPS_SCHEDULER": "prophet"}
    assert not from_environ(environ, DDP_SCHEDULER, LOCAL_RANK).nccl
    assert from_environ(environ | {DDP_NCCL: "1"}, DDP_SCHEDULER, LOCAL_RANK).nccl
    assert not from_environ(environ | {DDP_NCCL: "1"}).nccl
    with pytest.raises(UserError, match=f"{DDP_NCCL} is 'yes'; it must be 0 or 1"):
        from_environ(environ | {DDP_NCCL: "yes"}, DDP_SCHEDULER, LOCAL_RANK)


class Streams(device_arena.DeviceStreams):
    """Streams with threading events in place of a device's; `entered` has the threads that set their device."""

    def __init__(self) -> None:
        super().__init__(torch.device("cpu"))
        self.entered: list[str] = []

    def _make(self) -> None:
        return None

    def enter_thread(self) -> None:
        self.entered.append(threading.current_thread().name)

    def synchronize(self, event: Any) -> None:
        if isinstance(event, Exception):
            raise event
        assert event.wait(30.0)


def test_the_watcher_tells_in_the_order_in_which_it_was_asked_and_of_errors() -> None:
    streams = Streams()
    watcher = device_arena.EventWatcher("some-name", streams)
    told: queue.SimpleQueue[tuple[str, BaseException | None]] = queue.SimpleQueue()
    first, second = threading.Event(), threading.Event()
    watcher.when([first], lambda error: told.put(("first", error)))
    watcher.when([second, first], lambda error: told.put(("second", error)))
    broken = RuntimeError("CUDA error: unspecified launch failure")
    watcher.when([broken, threading.Event()], lambda error: told.put(("third", error)))
    second.set()
    assert told.empty(), "nothing overtakes"
    first.set()
    watcher.close(30.0)
    assert [told.get_nowait() for _ in range(3)] == [("first", None), ("second", None), ("third", broken)]
    assert told.empty()
    assert streams.entered == ["some-name"]


def test_a_cuda_graph_runs_after_all_updates(monkeypatch: pytest.MonkeyPatch) -> None:
    guards.install()
    done: list[str] = []
    owner = type("Owner", (), {"flush": lambda self: done.append("updated")})()
    monkeypatch.setitem(guards.pending.kept, owner, [])
    try:
        torch.cuda.CUDAGraph.replay(None)  # type: ignore[arg-type]  # there is none without a GPU
    except (AttributeError, TypeError, RuntimeError):
        done.append("replayed")
    assert done == ["updated", "replayed"]
