"""The job scripts' parts, without BytePS: what a model hands over, when, and what is recorded."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from prophet.core.profile import GradientProfile, Profile
from prophet.lab.jobs import progress_path
from prophet.lab.jobs.common import Recorder, arguments
from prophet.lab.jobs.compute import ComputeClock
from prophet.lab.jobs.datasets import batches, digits, random_images
from prophet.lab.jobs.pytorch.replay import ReplayLayer, ReplayModel
from prophet.lab.jobs.pytorch.weights import model_record

PROFILE = Profile(
    "three",
    (GradientProfile("a", 40, 0.6, 0.1), GradientProfile("b", 80, 0.2, 0.15), GradientProfile("c", 400, 0.2, 0.05)),
)


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


def test_an_iteration_takes_its_profiles_time_and_hands_over_gradients_in_steps() -> None:
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


def test_the_hosts_time_runs_beside_the_compute_and_not_on_top() -> None:
    clock = VirtualClock(host_s=0.001)
    began = clock.now_s
    iterate(model_on(clock))
    assert clock.now_s - began == pytest.approx(0.9, abs=0.01)


def test_waiting_for_parameters_is_on_top() -> None:
    clock = VirtualClock()
    model = model_on(clock)
    began = clock.now_s
    model.layers[1].register_forward_pre_hook(lambda module, args: clock.sleep(0.25))
    iterate(model)
    assert clock.now_s - began == pytest.approx(0.9 + 0.25)


def test_gradients_differ_by_worker_and_not_by_run() -> None:
    first, again, other = (model_on(VirtualClock(), seed).layers[2].gradient for seed in (0, 0, 1))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_the_digest_sees_every_bit() -> None:
    model = torch.nn.Linear(3, 2)
    before = model_record(model)[1]
    assert before == model_record(model)[1]
    with torch.no_grad():
        model.bias[1] = torch.nextafter(model.bias[1], torch.tensor(9.0))
    assert before != model_record(model)[1]


def test_the_recorder_writes_times_between_starts_and_counts_progress(tmp_path: Path) -> None:
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


@pytest.mark.parametrize("path", ["byteps", "no.such.package:Exchange", "prophet.engines.exchange:Nothing"])
def test_an_exchange_that_cannot_be_loaded_is_a_line_and_status_2(
    path: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["job", "--spec", "spec.json", "--out", "out.json", "--exchange", path])
    with pytest.raises(SystemExit) as ended:
        arguments(None)
    assert ended.value.code == 2
    assert f"{path!r} cannot be loaded" in capsys.readouterr().err


@pytest.mark.parametrize("kind", ["mlp", "cnn"])
def test_the_digits_models_fit_the_data_and_are_a_few_megabytes(kind: str) -> None:
    pytest.importorskip("sklearn")
    from prophet.lab.jobs.pytorch.digits import accuracy, make_model

    data = digits()
    assert (len(data.images), len(data.test_images)) == (1437, 360)
    model = make_model(kind)
    assert model(torch.from_numpy(data.images[:5])).shape == (5, 10)
    assert 2e6 < sum(p.numel() * 4 for p in model.parameters()) < 8e6
    assert 0 <= accuracy(model, torch.from_numpy(data.test_images), torch.from_numpy(data.test_labels)) < 0.5
    assert sorted(set(data.labels.tolist())) == list(range(10))


def test_workers_share_the_training_images_and_test_on_all() -> None:
    pytest.importorskip("sklearn")
    whole, first, second = digits(), digits(0, 2), digits(1, 2)
    assert len(first.images) + len(second.images) == len(whole.images)
    assert (first.images[1] == whole.images[2]).all() and (second.images[1] == whole.images[3]).all()
    assert (first.test_images == second.test_images).all()


def test_a_pass_takes_every_sample_that_fills_a_batch_once_and_then_again_in_another_order() -> None:
    made = batches(10, 3, seed=4)
    first, second = ([next(made).tolist() for _ in range(3)] for _ in range(2))
    for one_pass in (first, second):
        assert len({sample for batch in one_pass for sample in batch}) == 9
    assert first != second
    assert [next(batches(10, 3, seed=4)).tolist()] == first[:1]
    assert sorted(next(batches(2, 5, seed=0)).tolist()) == [0, 1], "fewer samples than a batch are one batch"


def test_random_images_are_the_same_from_the_same_seed() -> None:
    images, labels = random_images(4, 32, 1000, seed=1)
    assert (images.shape, images.dtype.name, labels.shape) == ((4, 3, 32, 32), "float32", (4,))
    assert labels.min() >= 0 and labels.max() < 1000
    again, other = random_images(4, 32, 1000, seed=1)[0], random_images(4, 32, 1000, seed=2)[0]
    assert (images == again).all() and not (images == other).all()


@pytest.mark.parametrize("kind", ["resnet18", "resnet50"])
def test_the_resnets_have_the_parameters_of_the_zoo(kind: str) -> None:
    from prophet.lab.jobs.pytorch.resnet import make_resnet
    from prophet.models import zoo

    model = make_resnet(kind, 1000)
    # In the zoo a block's shortcut comes before its body; sizes are the same.
    assert sorted(p.numel() for p in model.parameters()) == sorted(layer.elements for layer in zoo.layers(kind))
    assert make_resnet(kind, 10)(torch.zeros(2, 3, 32, 32)).shape == (2, 10)
