"""Profiles from traces of torch.profiler."""

from __future__ import annotations

import gzip
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from prophet_scheduler.core.errors import UserError
from prophet_scheduler.core.profile import GradientProfile
from prophet_scheduler.models.profiles import load_profile

Events = list[dict[str, Any]]
SHAPES = {"first": ([4, 3], "float"), "second": ([5], "c10::Half")}


def event(name: str, ts: float, args: Mapping[str, Any], dur: float = 1.0, cat: str = "cpu_op") -> dict[str, Any]:
    return {"ph": "X", "cat": cat, "name": name, "ts": ts, "dur": dur, "args": args}


def forward(number: int, ts: float) -> dict[str, Any]:
    return event("aten::linear", ts, {"Sequence number": number, "Fwd thread id": 0})


def backward(number: int, ts: float, dur: float = 5.0) -> dict[str, Any]:
    name = "autograd::engine::evaluate_function: AddmmBackward0"
    return event(name, ts, {"Sequence number": number, "Fwd thread id": 1}, dur)


def gradient(name: str, ts: float) -> dict[str, Any]:
    shape, kind = SHAPES.get(name, ([], ""))
    return event("torch::autograd::AccumulateGrad", ts, {"Input Dims": [shape], "Input type": [kind]})


def kernel(launched: float, end: float, name: str = "gemm") -> Events:
    """Return a kernel that runs for 5 microseconds, and its launch."""
    launch = event("cudaLaunchKernel", launched, {"correlation": launched}, cat="cuda_runtime")
    return [launch, event(name, end - 5, {"correlation": launched}, 5.0, "kernel")]


def step(ts: float) -> dict[str, Any]:
    return event("Optimizer.step#SGD.step", ts, {}, 10.0, "user_annotation")


def iteration(began: float, number: int) -> Events:
    """Return an iteration of two layers on a processor: 100 and 200 microseconds forward, 300 and 500 backward."""
    return [
        forward(number, began),
        forward(number + 1, began + 100),
        backward(number + 1, began + 300),
        gradient("second", began + 600),
        backward(number, began + 610),
        gradient("first", began + 1100),
        step(began + 1101),
    ]


def rows_of(events: Events, folder: Path) -> Sequence[GradientProfile]:
    path = folder / "job.pt.trace.json"
    path.write_text(json.dumps({"schemaVersion": 1, "traceEvents": [{"ph": "M", "name": "process_name"}, *events]}))
    return load_profile(path).gradients


def test_times_and_sizes_of_a_job_on_processors(tmp_path: Path) -> None:
    first, second = rows_of([step(0), *iteration(10, 5), *iteration(1121, 7)], tmp_path)
    assert (first.name, first.size_bytes) == ("gradient0 4x3", 48)
    assert (second.name, second.size_bytes) == ("gradient1 5", 10)
    assert (first.forward_s, first.generation_s) == pytest.approx((100e-6, 800e-6))
    assert (second.forward_s, second.generation_s) == pytest.approx((200e-6, 300e-6))


def test_on_a_gpu_a_gradient_is_there_once_its_kernels_have_ended(tmp_path: Path) -> None:
    events = [
        *iteration(0, 1),  # before the trace begins to count
        *(forward(10, 1200), *kernel(1201, 1300)),
        *(forward(11, 1210), *kernel(1211, 1450)),
        *(backward(11, 1220), *kernel(1221, 1600), gradient("second", 1228)),
        *(
            backward(10, 1230),
            *kernel(1231, 1900),
            *kernel(1232, 9000, "ncclDevKernel_AllReduce"),
            gradient("first", 1238),
        ),
        step(1240),
        event("Optimizer.step#SGD.step", 1905.0, {}, 10.0, "gpu_user_annotation"),
    ]
    first, second = rows_of(events, tmp_path)
    assert (first.forward_s, first.generation_s) == pytest.approx((189e-6, 450e-6)), "from the end of the step before"
    assert (second.forward_s, second.generation_s) == pytest.approx((150e-6, 150e-6))


def test_the_last_of_several_backward_passes_counts(tmp_path: Path) -> None:
    twice = [*iteration(3000, 9)[:-1], *iteration(5000, 13)]
    first, second = rows_of([step(-10), *iteration(10, 5), *twice], tmp_path)
    assert (first.generation_s, second.forward_s) == pytest.approx((800e-6, 200e-6))
    assert first.forward_s == pytest.approx((5100 - 1121) * 1e-6), "the first pass counts as forward"


def test_a_pass_within_another_is_a_part_of_it(tmp_path: Path) -> None:
    checkpointed = [
        *(step(0), forward(5, 10), forward(6, 110)),
        *(backward(6, 310, dur=400.0), forward(7, 320), backward(7, 400), gradient("second", 500)),
        *(backward(5, 720), gradient("first", 900), step(1000)),
    ]
    first, second = rows_of([*iteration(-2000, 1), *checkpointed], tmp_path)
    assert (first.generation_s, second.generation_s) == pytest.approx((590e-6, 190e-6))


def test_sparse_gradients_are_left_out_by_name(tmp_path: Path) -> None:
    events = iteration(0, 1)
    events.insert(-1, gradient("sparse", 1100.5))
    (tmp_path / "job.json.gz").write_bytes(gzip.compress(json.dumps({"traceEvents": events}).encode()))
    profile = load_profile(tmp_path / "job.json.gz")
    assert profile.name == "job (without 1 sparse gradients)" and len(profile.gradients) == 2


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b'{"traceEvents": []}', "no backward pass"),
        (b'{"traceEvents": [{"ph": 3}]}', "neither a profile nor a trace"),
        (b'{"traceEvents": [', "neither a profile nor a trace"),
        (b"\x1f\x8bdamaged", "neither a profile nor a trace"),
        (json.dumps({"traceEvents": [backward(1, 0), gradient("", 1)]}).encode(), "record_shapes=True"),
        (json.dumps({"traceEvents": [backward(1, 0), gradient("first", -9)]}).encode(), "no backward pass"),
    ],
)
def test_an_unusable_trace_is_one_line(content: bytes, why: str, tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_bytes(content)
    with pytest.raises(UserError, match=why) as raised:
        load_profile(path)
    assert str(path) in str(raised.value)


def test_what_torch_writes_is_read(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU(), torch.nn.Linear(4, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with torch.profiler.profile(record_shapes=True) as profiler:
        for _ in range(3):
            model(torch.randn(5, 3)).sum().backward()
            optimizer.step()
    profiler.export_chrome_trace(str(tmp_path / "own.json"))
    profile = load_profile(tmp_path / "own.json")
    sizes = [param.nbytes for param in model.parameters()]
    assert sorted(row.size_bytes for row in profile.gradients[:2]) == sorted(sizes[:2])
    assert sorted(row.size_bytes for row in profile.gradients[2:]) == sorted(sizes[2:])
    assert profile.backward_s > 0 and profile.forward_s > 0
