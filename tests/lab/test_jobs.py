"""The job scripts' parts, without BytePS: what a model hands over, when, and what is recorded."""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import pytest

torch = pytest.importorskip("torch")

from prophet_scheduler.core.profile import GradientProfile, Profile
from prophet_scheduler.lab.job_config import TransformerJob
from prophet_scheduler.lab.jobs.common import Recorder, begin
from prophet_scheduler.lab.jobs.compute import MOST_BEHIND_S, ComputeClock
from prophet_scheduler.lab.jobs.datasets import KNOWN, batches, digits, random_images, text
from prophet_scheduler.lab.jobs.pytorch.replay import ReplayLayer, ReplayModel
from prophet_scheduler.lab.jobs.pytorch.training import accuracy, model_record
from prophet_scheduler.lab.jobs.pytorch.transformer import SHAPES, job, make_model, make_optimizer, rate_of
from prophet_scheduler.lab.jobs.record import progress_path

PROFILE = Profile(
    "three",
    (GradientProfile("a", 40, 0.6, 0.1), GradientProfile("b", 80, 0.2, 0.15), GradientProfile("c", 400, 0.2, 0.05)),
)


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """PyTorch computes as in a job, where each worker has one thread."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


class VirtualClock:
    """Time passes in `sleep`, and by `host_s` at every look: the cost of the host."""

    def __init__(self, host_s: float = 0.0) -> None:
        self.now_s = 50.0
        self.host_s = host_s
        self.slept: list[float] = []

    def now(self) -> float:
        self.now_s += self.host_s
        return self.now_s

    def sleep(self, duration_s: float) -> None:
        self.slept.append(duration_s)
        self.now_s += duration_s

    def compute(self) -> ComputeClock:
        return ComputeClock(self.now, self.sleep)


def model_on(clock: VirtualClock, seed: int = 0) -> ReplayModel:
    return ReplayModel(PROFILE, clock.compute(), torch.Generator().manual_seed(seed))


def iterate(model: ReplayModel) -> None:
    model.clock.begin_iteration()
    flow = model(torch.ones(1))
    model.clock.begin_backward()
    flow.sum().backward()


def test_replay_follows_profile() -> None:
    clock = VirtualClock()
    model = model_on(clock)
    began = clock.now_s
    ready: list[tuple[int, float]] = []
    for index, layer in enumerate(model.layers):
        layer.get_parameter("weight").register_post_accumulate_grad_hook(
            lambda _, index=index: ready.append((index, clock.now_s - began - 0.3))
        )
    iterate(model)
    assert clock.now_s - began == pytest.approx(0.9)
    assert [index for index, _ in ready] == [2, 1, 0]
    assert [time_s for _, time_s in ready] == [pytest.approx(0.2), pytest.approx(0.2), pytest.approx(0.6)]
    gradients = [layer.get_parameter("weight").grad for layer in model.layers]
    assert [gradient.numel() * 4 for gradient in gradients if gradient is not None] == [40, 80, 400]
    for gradient, layer in zip(gradients, model.layers, strict=True):
        assert gradient is not None and isinstance(layer, ReplayLayer)
        assert torch.equal(gradient, layer.gradient)


def test_host_time_overlaps_compute() -> None:
    clock = VirtualClock(host_s=0.001)
    began = clock.now_s
    iterate(model_on(clock))
    assert clock.now_s - began == pytest.approx(0.9, abs=0.01)


@pytest.mark.parametrize(
    ("where", "place", "on_top_s"),
    [
        ("for parameters", 1, 0.5),
        *(("after forward", place, 0.5 - MOST_BEHIND_S) for place in range(3)),
        ("in backward", 2, 0.5 - MOST_BEHIND_S),
    ],
)
def test_waiting_extends_iteration(where: str, place: int, on_top_s: float) -> None:
    clock = VirtualClock()
    model = model_on(clock)
    began, layer = clock.now_s, model.layers[place]
    if where == "for parameters":
        layer.register_forward_pre_hook(lambda module, args: clock.sleep(0.5))
    elif where == "after forward":
        layer.register_forward_hook(lambda module, args, result: clock.sleep(0.5))
    else:
        layer.get_parameter("weight").register_hook(lambda gradient: clock.sleep(0.5))
    iterate(model)
    assert clock.now_s - began == pytest.approx(0.9 + on_top_s)


def test_gradients_depend_on_seed_and_digest_on_bits() -> None:
    first, again, other = (model_on(VirtualClock(), seed).layers[2].gradient for seed in (0, 0, 1))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    model = torch.nn.Linear(3, 2)
    before = model_record(model)[1]
    assert before == model_record(model)[1]
    with torch.no_grad():
        model.bias[1] = torch.nextafter(model.bias[1], torch.tensor(9.0))
    assert before != model_record(model)[1]


def test_recorder_writes_times_and_progress(tmp_path: Path) -> None:
    out = tmp_path / "worker0.json"
    recorder = Recorder(out)
    for iteration in range(3):
        recorder.iteration_starts()
        recorder.backward_starts()
        recorder.backward_ends()
        recorder.iteration_ends()
        assert progress_path(out).read_bytes().count(b"\n") == iteration + 1
    assert not out.exists()
    recorder.write({"weight": 12, "bias": 4}, "abc", 0, 0.5)
    result = json.loads(out.read_text())
    starts = [mark["start"] for mark in result["marks"]]
    assert result["iteration_s"] == [starts[1] - starts[0], starts[2] - starts[1]]
    assert list(result["marks"][0]) == ["start", "backward", "backward_end"]
    assert result["start_s"] > 0 and result["accuracy"] == 0.5
    assert (result["parameters"], result["parameter_bytes"]) == (["weight", "bias"], [12, 4])
    assert result["weights_sha256"] == "abc"


@pytest.mark.parametrize("compression", ["none", "fp16"])
def test_exchange_gets_compression(compression: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = tmp_path / "spec.json"
    spec.write_text(json.dumps({"kind": "digits", "iterations": 3, "warmup": 0, "compression": compression}))
    out = str(tmp_path / "out.json")
    monkeypatch.setattr("sys.argv", ["job", "--spec", str(spec), "--out", out, "--exchange", "builtins:dict"])
    assert begin(None)[2] == ({} if compression == "none" else {"compression": compression})


def test_digits_model() -> None:
    pytest.importorskip("sklearn")
    from prophet_scheduler.lab.jobs.pytorch import digits as script

    data = digits()
    assert (len(data.images), len(data.test_images)) == (1437, 360)
    model = script.make_model()
    assert model(torch.from_numpy(data.images[:5])).shape == (5, 10)
    assert 2e6 < sum(p.numel() * 4 for p in model.parameters()) < 8e6
    assert 0 <= accuracy(model, torch.from_numpy(data.test_images), torch.from_numpy(data.test_labels)) < 0.5
    assert sorted(set(data.labels.tolist())) == list(range(10))


def test_workers_share_training_images() -> None:
    pytest.importorskip("sklearn")
    whole, first, second = digits(), digits(0, 2), digits(1, 2)
    assert len(first.images) + len(second.images) == len(whole.images)
    assert (first.images[1] == whole.images[2]).all() and (second.images[1] == whole.images[3]).all()
    assert (first.test_images == second.test_images).all()


def test_batches_of_a_pass() -> None:
    made = batches(10, 3, seed=4)
    first, second = ([next(made).tolist() for _ in range(3)] for _ in range(2))
    for one_pass in (first, second):
        assert len({sample for batch in one_pass for sample in batch}) == 9
    assert first != second
    assert [next(batches(10, 3, seed=4)).tolist()] == first[:1]
    assert sorted(next(batches(2, 5, seed=0)).tolist()) == [0, 1], "fewer samples than a batch are one batch"


def test_random_images_depend_on_seed() -> None:
    images, labels = random_images(4, 32, 1000, seed=1)
    assert (images.shape, images.dtype.name, labels.shape) == ((4, 3, 32, 32), "float32", (4,))
    assert labels.min() >= 0 and labels.max() < 1000
    again, other = random_images(4, 32, 1000, seed=1)[0], random_images(4, 32, 1000, seed=2)[0]
    assert (images == again).all() and not (images == other).all()


@pytest.mark.parametrize("kind", ["resnet18", "resnet50"])
def test_resnets_have_parameters_of_zoo(kind: str) -> None:
    from prophet_scheduler.lab.jobs.pytorch.synthetic import make_resnet
    from prophet_scheduler.models import zoo

    model = make_resnet(kind)
    # In the zoo a block's shortcut comes before its body; sizes are the same.
    assert sorted(p.numel() for p in model.parameters()) == sorted(layer.elements for layer in zoo.layers(kind))
    assert model(torch.zeros(2, 3, 32, 32)).shape == (2, 1000)


def test_made_up_text_is_predictable() -> None:
    sentences, others = text(200, 33, 256, seed=1), text(200, 33, 256, seed=2)
    assert sentences.shape == (200, 33) and sentences.min() >= 0 and sentences.max() < 256
    assert (sentences == text(200, 33, 256, seed=1)).all() and not (sentences == others).all()
    follows = dict(zip(sentences[:, :-1].ravel().tolist(), sentences[:, 1:].ravel().tolist(), strict=True))
    pairs = list(zip(others[:, :-1].ravel().tolist(), others[:, 1:].ravel().tolist(), strict=True))
    known = sum(follows.get(word) == following for word, following in pairs) / len(pairs)
    assert KNOWN**2 - 0.05 < known < KNOWN, "what was last seen to follow a word in the one follows it in the other"


class Alone:
    """The exchange of a job with one worker; it notes whether gradients are those of all when they are changed."""

    rank, size = 0, 1

    def __init__(self) -> None:
        self.norms: list[float] = []

    def distribute(self, model: Any, optimizer: Any) -> tuple[Any, Any]:
        self.params = list(model.parameters())
        self.optimizer = optimizer
        self.rates: list[float] = []
        return model, optimizer

    @contextlib.contextmanager
    def averaged(self, optimizer: Any) -> Iterator[None]:
        assert optimizer is self.optimizer
        before = [param.detach().clone() for param in self.params]
        self.rates.append(optimizer.param_groups[0]["lr"])
        yield
        self.norms.append(float(torch.nn.utils.get_total_norm([param.grad for param in self.params])))
        assert not all(torch.equal(a, b) for a, b in zip(before, self.params, strict=True)), "it steps in here"

    def close(self) -> None: ...


def test_transformer_learns(tmp_path: Path) -> None:
    spec = TransformerJob(kind="transformer", iterations=40, batch_size=16)
    exchange = Alone()
    model, reached = job(spec, exchange, Recorder(tmp_path / "out.json"))
    assert 0.5 < reached < KNOWN + 0.05
    _, at_first = job(spec.model_copy(update={"iterations": 1}), Alone(), Recorder(tmp_path / "first.json"))
    assert at_first < 0.05
    assert len(exchange.norms) == 40 and max(exchange.norms) <= 1.0 + 1e-4
    assert exchange.rates[0] == pytest.approx(3e-4) and max(exchange.rates) == exchange.rates[9] == 3e-3
    again, _ = job(spec, Alone(), Recorder(tmp_path / "again.json"))
    assert model_record(model)[1] == model_record(again)[1], "the same bits in every run"


@pytest.mark.parametrize("what", ["blocks", "whole"])
def test_transformer_is_compiled(
    what: Literal["blocks", "whole"], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = []

    def backend(graph: Any, inputs: Any) -> Any:
        made.append(graph)
        return graph.forward

    monkeypatch.setattr(torch.nn.Module, "compile", functools.partialmethod(torch.nn.Module.compile, backend=backend))
    spec = TransformerJob(kind="transformer", iterations=3, warmup=0, batch_size=4, clip_norm=0.0, compile=what)
    exchange = Alone()
    try:
        job(spec, exchange, Recorder(tmp_path / "out.json"))
    finally:
        torch._dynamo.reset()
    layers, _, _ = SHAPES["small"]
    assert made and len(made) <= layers
    assert exchange.norms == [], "nothing was clipped"


def test_transformer_sizes_and_weight_decay() -> None:
    sizes = {kind: sum(param.nbytes for param in make_model(kind).parameters()) for kind in SHAPES}
    assert {kind: round(size / 1e6, 1) for kind, size in sizes.items()} == {"small": 1.9, "medium": 14.7}
    decayed, others = make_optimizer(make_model("small")).param_groups
    assert decayed["weight_decay"] > others["weight_decay"] == 0
    assert {param.dim() for param in others["params"]} == {1}
    assert [rate_of(step) for step in (0, 4, 9, 39)] == [0.1, 0.5, 1.0, 0.5]


def test_slow_computations_are_drawn_by_seed() -> None:
    from prophet_scheduler.lab.jobs.pytorch.asynchronous import computing_s

    def drawn(rank: int) -> list[float]:
        return list(itertools.islice(computing_s(0.1, 0.25, 4.0, seed=3, rank=rank), 400))

    times = drawn(1)
    assert set(times) == {0.1, 0.4}
    assert 0.15 < times.count(0.4) / len(times) < 0.35
    assert drawn(1) == times
    assert drawn(2) != times


def test_random_features() -> None:
    from prophet_scheduler.lab.jobs.pytorch.asynchronous import Features

    images = torch.rand(3, 1, 8, 8)
    made = Features(4096).of(images)
    assert made.shape == (3, 4096)
    assert torch.equal(made, Features(4096).of(images))
    assert torch.allclose(made.norm(dim=1), torch.ones(3), atol=0.05), "cosines of random phases"
