"""Replays a recorded job in MXNet: its gradients, at its times, through a real network; computing is sleeping.

Rule of this file: an ordinary Gluon script; MXNet's engine decides what runs when, as in any job. What is emulated:

- Gradients with the same generation time come from one autograd function: this is the stepwise pattern, which bulk
  execution causes in MXNet. Its backward runs in MXNet's thread for custom operators, sleeps until that time, and hands
  over gradients prepared earlier. `trainer.step()` was called long before: each transfer waits in the engine for its
  gradient, and gradients that become ready together leave by their priorities from the trainer.
- Forward waits on the host, layer by layer, for the layer's parameter (`wait_to_read`), and sleeps as long as the layer
  took. In a real job operators would wait in the engine; either way a layer starts when its parameter is ready.
- An iteration ends when its backward does: a device computes one thing at a time. Transfers go on.
"""

from __future__ import annotations

import itertools
from pathlib import Path

import mxnet as mx

from prophet_mxnet.jobs.training import model_record
from prophet_scheduler.core.profile import GradientProfile, Profile
from prophet_scheduler.engines.exchange import GluonJobExchange
from prophet_scheduler.lab.jobs.common import begin
from prophet_scheduler.lab.jobs.compute import ComputeClock
from prophet_scheduler.models.profiles import load_profile


class ReplayStep:
    """Gradients of the profile with the same generation time, and their prepared values, in forward order."""

    def __init__(self, profiles: tuple[GradientProfile, ...], gradients: tuple[mx.nd.NDArray, ...]) -> None:
        self.generation_s = profiles[0].generation_s
        self.forward_s = [profile.forward_s for profile in profiles]
        self.gradients = gradients


class _Compute(mx.autograd.Function):  # type: ignore[misc]
    """Identity on its input; the gradients of the weights are the prepared ones of the step."""

    def __init__(self, step: ReplayStep, clock: ComputeClock) -> None:
        super().__init__()
        self._step = step
        self._clock = clock

    def forward(self, flow: mx.nd.NDArray, *weights: mx.nd.NDArray) -> mx.nd.NDArray:
        for weight, forward_s in zip(weights, self._step.forward_s, strict=True):
            self._clock.call_module()
            weight.wait_to_read()
            self._clock.forward(forward_s)
        return flow.copy()

    def backward(self, upstream: mx.nd.NDArray) -> tuple[mx.nd.NDArray, ...]:
        self._clock.backward_until(self._step.generation_s)
        return (upstream, *self._step.gradients)


class ReplayNetwork(mx.gluon.Block):  # type: ignore[misc]
    """Network with a float32 parameter for each gradient, rounded down to whole elements. `seed` is this worker's."""

    def __init__(self, profile: Profile, clock: ComputeClock, seed: int) -> None:
        super().__init__(prefix="replay_")
        self.clock = clock
        self._steps: list[tuple[ReplayStep, list[mx.gluon.Parameter]]] = []
        mx.random.seed(seed)
        place = itertools.count()
        for _, group in itertools.groupby(profile.gradients, key=lambda gradient: gradient.generation_s):
            members = tuple(group)
            shapes = [(max(1, gradient.size_bytes // 4),) for gradient in members]
            prepared = tuple(mx.nd.random.uniform(shape=shape) for shape in shapes)
            parameters = [self.params.get(f"weight{next(place):05}", shape=shape, init="zeros") for shape in shapes]
            self._steps.append((ReplayStep(members, prepared), parameters))

    def forward(self, flow: mx.nd.NDArray) -> mx.nd.NDArray:
        for step, parameters in self._steps:
            flow = _Compute(step, self.clock)(flow, *(parameter.data() for parameter in parameters))
        return flow


def main() -> None:
    exchange: GluonJobExchange
    spec, recorder, exchange = begin(__doc__)
    clock = ComputeClock()
    network = ReplayNetwork(load_profile(Path(spec.profile)), clock, spec.seed + exchange.rank)
    network.initialize()
    trainer = exchange.trainer(network, {"learning_rate": 1e-3})
    source = mx.nd.ones((1,))
    source.attach_grad()  # MXNet stops at an input without a gradient, and would skip the first step's gradients
    mx.nd.waitall()
    for _ in range(spec.iterations):
        recorder.iteration_starts()
        clock.begin_iteration()
        with mx.autograd.record():
            flow = network(source)
        recorder.backward_starts()
        clock.begin_backward()
        flow.backward()
        trainer.step(exchange.divisor)
        source.grad.wait_to_read()
        recorder.backward_ends()
        recorder.iteration_ends()
    recorder.write(*model_record(network), exchange.rank)


if __name__ == "__main__":
    main()
