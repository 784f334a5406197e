"""The parts of the Gluon job scripts, in one process and without a network."""

from __future__ import annotations

import threading

import pytest

mx = pytest.importorskip("mxnet", exc_type=ImportError)

from prophet_mxnet.exchanges import ordered_parameters
from prophet_mxnet.jobs.digits import accuracy, make_network
from prophet_mxnet.jobs.replay import ReplayNetwork
from prophet_mxnet.jobs.training import model_record
from prophet_scheduler.core.profile import GradientProfile, Profile
from prophet_scheduler.lab.jobs.compute import ComputeClock
from prophet_scheduler.lab.jobs.datasets import digits

PROFILE = Profile(
    "three",
    (GradientProfile("a", 40, 0.6, 0.1), GradientProfile("b", 80, 0.2, 0.15), GradientProfile("c", 400, 0.2, 0.05)),
)


class VirtualClock:
    """Time passes in `sleep` only; backward sleeps in a thread of MXNet's."""

    def __init__(self) -> None:
        self.now_s = 50.0
        self.slept: list[tuple[float, bool]] = []

    def sleep(self, duration_s: float) -> None:
        self.slept.append((duration_s, threading.current_thread() is threading.main_thread()))
        self.now_s += duration_s

    def compute(self) -> ComputeClock:
        return ComputeClock(lambda: self.now_s, self.sleep)


def test_a_replay_takes_its_profiles_time_forward_on_the_host_and_backward_beside_it() -> None:
    clock = VirtualClock()
    network = ReplayNetwork(PROFILE, clock.compute(), seed=0)
    network.initialize()
    parameters = ordered_parameters(network)
    assert [parameter.shape for parameter in parameters] == [(10,), (20,), (100,)]
    source = mx.nd.ones((1,))
    source.attach_grad()
    network.clock.begin_iteration()
    with mx.autograd.record():
        flow = network(source)
    assert clock.now_s == pytest.approx(50.3)
    network.clock.begin_backward()
    flow.backward()
    source.grad.wait_to_read()
    assert clock.now_s == pytest.approx(50.9)
    # One sleep a layer, then one a step of the pattern.
    assert [slept for slept, _ in clock.slept] == [pytest.approx(s) for s in (0.1, 0.15, 0.05, 0.2, 0.4)]
    assert [on_host for _, on_host in clock.slept] == [True] * 3 + [False] * 2
    for parameter in parameters:
        gradient = parameter.grad().asnumpy()
        assert gradient.shape == parameter.shape and 0 < gradient.min() < gradient.max() < 1


def test_gradients_of_workers_differ() -> None:
    def first_gradient(seed: int) -> list[float]:
        network = ReplayNetwork(PROFILE, VirtualClock().compute(), seed)
        network.initialize()
        source = mx.nd.ones((1,))
        source.attach_grad()
        with mx.autograd.record():
            flow = network(source)
        flow.backward()
        gradient: list[float] = ordered_parameters(network)[0].grad().asnumpy().tolist()
        return gradient

    assert first_gradient(1) == first_gradient(1) != first_gradient(2)


def test_the_digits_network_is_that_of_pytorch() -> None:
    pytest.importorskip("sklearn")
    pytest.importorskip("torch")
    from prophet_scheduler.lab.jobs.pytorch.digits import make_model

    network = make_network()
    network.initialize(mx.init.Xavier())
    sizes = [parameter.data().size for parameter in ordered_parameters(network)]
    assert sizes == [parameter.numel() for parameter in make_model().parameters()]
    data = digits()
    assert network(mx.nd.array(data.images[:5])).shape == (5, 10)
    assert 0 <= accuracy(network, mx.nd.array(data.test_images), mx.nd.array(data.test_labels)) < 0.5


def test_the_digest_is_of_values_by_place() -> None:
    networks = [make_network() for _ in range(2)]
    for network in networks:
        mx.random.seed(3)
        network.initialize(mx.init.Xavier(), force_reinit=True)
    (names, digest), (other_names, other_digest) = map(model_record, networks)
    assert names != other_names, "Gluon counts the blocks of a process"
    assert digest == other_digest
    weight = ordered_parameters(networks[1])[0]
    weight.set_data(weight.data() * 2)
    assert model_record(networks[1])[1] != digest
