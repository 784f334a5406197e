"""The job scripts' parts, without BytePS: what a model hands over, when, and what is recorded."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from prophet.experiment.jobs import progress_path  # noqa: E402
from prophet.experiment.jobs.common import Recorder, weights_sha256  # noqa: E402
from prophet.experiment.jobs.replay import ComputeClock, ReplayModel  # noqa: E402
from prophet.model import GradientProfile, Profile  # noqa: E402

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
        layer.weight.register_post_accumulate_grad_hook(
            lambda _, index=index: ready.append((index, clock.now_s - began - 0.3))
        )
    iterate(model)
    assert clock.now_s - began == pytest.approx(0.9)
    assert [index for index, _ in ready] == [2, 1, 0]
    assert [time_s for _, time_s in ready] == [pytest.approx(0.2), pytest.approx(0.2), pytest.approx(0.6)]
    assert [layer.weight.grad.numel() * 4 for layer in model.layers] == [40, 80, 400]
    assert all(torch.equal(layer.weight.grad, layer.gradient) for layer in model.layers)


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
    one, again, other = (model_on(VirtualClock(), seed).layers[2].gradient for seed in (0, 0, 1))
    assert torch.equal(one, again)
    assert not torch.equal(one, other)


def test_the_digest_sees_every_bit() -> None:
    model = torch.nn.Linear(3, 2)
    before = weights_sha256(model)
    assert before == weights_sha256(model)
    with torch.no_grad():
        model.bias[1] = torch.nextafter(model.bias[1], torch.tensor(9.0))
    assert before != weights_sha256(model)


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
    recorder.write(torch.nn.Linear(2, 2), {"accuracy": 0.5})
    result = json.loads(out.read_text())
    starts = [mark["start"] for mark in result["marks"]]
    assert result["iteration_s"] == [starts[1] - starts[0], starts[2] - starts[1]]
    assert list(result["marks"][0]) == ["start", "backward", "backward_end"]
    assert result["start_s"] > 0 and result["accuracy"] == 0.5


@pytest.mark.parametrize("kind", ["mlp", "cnn"])
def test_the_digits_models_fit_the_data_and_are_a_few_megabytes(kind: str) -> None:
    pytest.importorskip("sklearn")
    from prophet.experiment.jobs.digits import accuracy, digits, make_model

    images, test_images, labels, test_labels = digits()
    assert (len(images), len(test_images)) == (1437, 360)
    model = make_model(kind)
    assert model(images[:5]).shape == (5, 10)
    assert 2e6 < sum(p.numel() * 4 for p in model.parameters()) < 8e6
    assert 0 <= accuracy(model, test_images, test_labels) < 0.5
    assert sorted(set(labels.tolist())) == list(range(10))
