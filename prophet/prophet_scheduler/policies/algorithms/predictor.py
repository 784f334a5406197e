"""Prediction of an iteration under a cut and a credit, with the simulator's core on a virtual clock.

Rule of this file: pure functions of a profile, a network and the shape of a cluster; chooser.py searches among
candidates. Times are in seconds, sizes in bytes.

The simulation runs two iterations, the second up to the start of its backward pass. Forward needs every tensor, so
nothing of an iteration is left when the next backward starts, and one period is nearly as good as many. All workers are
alike. A worker measures its rate while all send, so the servers' links together have at least the workers' rate, and
each at least one worker's. No worker can see whether the links have exactly this rate or more than enough; the job's
measured iteration time shows which prediction is closer.
"""

from __future__ import annotations

import functools
import math

from prophet_scheduler.core._native import ClusterSpec, Exchange, OperationSpec, Simulation
from prophet_scheduler.core.choice import Shape
from prophet_scheduler.core.cut import MOST_BLOCK_BYTES, Cut, blocks_of
from prophet_scheduler.core.iteration import HEADER_BYTES, Iteration, Layout, Load, loads_of
from prophet_scheduler.core.network import Network
from prophet_scheduler.core.plan import Plan, QueuePlan
from prophet_scheduler.core.plan_codec import encode_plan
from prophet_scheduler.core.profile import Profile
from prophet_scheduler.core.settings import DEFAULT_WATCHDOG_S

MOST_MACHINES = 8
"""Maximum simulated workers or servers, which may stand for more: the cost grows with their number."""
EVENTS_A_TENSOR = 30
"""Cost of making a tensor, in simulated events."""
LAYOUTS_KEPT = 16


class Predictor:
    """Predictions for one profile, network and shape. Without `arena`, gradients travel in partitions of one size.

    `wide_servers`: the servers' links have no limit. `message_s`: server time per message, during which the wire may
    continue; it stands for scarce processors anywhere. `barrier`: forward begins when everything is back.
    """

    def __init__(
        self,
        profile: Profile,
        network: Network,
        shape: Shape,
        arena: bool = True,
        wide_servers: bool = False,
        barrier: bool = False,
    ) -> None:
        self.profile = profile
        self.network = network
        self._arena = arena
        self._barrier = barrier
        self.wide_servers = wide_servers
        self.message_s = 0.0
        self._iteration = Iteration(profile)
        shrink = max(1.0, max(shape.workers, shape.servers) / MOST_MACHINES)
        self._workers = max(1, round(shape.workers / shrink))
        self._servers = max(1, round(shape.servers / shrink))
        self._credit_scale = self._servers / shape.servers
        self._made = functools.lru_cache(LAYOUTS_KEPT)(self._anew)

    def loads(self, cut: Cut) -> list[Load]:
        """Return the loads under the cut: blocks of the arena, or gradients in partitions."""
        sizes = [gradient.size_bytes for gradient in self.profile.gradients]
        if self._arena:
            return loads_of(blocks_of(sizes, [0] * len(sizes), cut))
        ids = self.profile.gradient_ids
        return [Load(id_, size, place) for place, (id_, size) in enumerate(zip(ids, sizes, strict=True))]

    def begin(self, cut: Cut, credit: int | None) -> Prediction:
        """Start a prediction for this cut, in forward order with this credit; None: arrival order without limit."""
        layout, operations = self._made(cut)
        spec = ClusterSpec()
        spec.operations = operations
        spec.tensors = layout.tensors
        spec.partition_bytes = MOST_BLOCK_BYTES if self._arena else cut.block_bytes_at(0)
        spec.workers, spec.servers = self._workers, self._servers
        spec.exchange = Exchange.SYNCHRONOUS
        spec.latency_s = self.network.ack_delay_s / 2
        spec.header_bytes = HEADER_BYTES
        spec.server_overhead_s = self.message_s
        # On a slow wire, a large block is still in flight when the watchdog releases the next ones.
        spec.watchdog_s = DEFAULT_WATCHDOG_S
        spec.iterations = 2
        spec.backward = self._iteration.backward
        spec.ends_at_backward = True
        simulation = Simulation(spec)
        rate, overhead_s = self.network.bandwidth, self.network.overhead_s
        for worker in range(self._workers):
            simulation.set_link(worker, [(0.0, rate)], [(0.0, rate)], overhead_s, 0.0)
        shared = rate * max(1.0, self._workers / self._servers)
        for server in range(0 if self.wide_servers else self._servers):
            simulation.set_link(self._workers + server, [(0.0, shared)], [(0.0, shared)], 0.0, 0.0)
        if credit is not None:
            push = QueuePlan(order={}, credit=max(1, round(credit * self._credit_scale)))
            simulation.set_plan(encode_plan(Plan(push=push, pull=QueuePlan(order={}))))
        return Prediction(simulation, self.profile.forward_s, EVENTS_A_TENSOR * len(layout.tensors))

    def _anew(self, cut: Cut) -> tuple[Layout, list[OperationSpec]]:
        layout = self._iteration.layout(self.loads(cut), barrier=self._barrier)
        return layout, self._iteration.operations(layout)


class Prediction:
    """A simulation run a little at a time. `cost` is its work so far, in events."""

    def __init__(self, simulation: Simulation, begins_s: float, made: int) -> None:
        self._simulation = simulation
        self._begins_s = begins_s
        self._made = made
        self.iteration_s = math.inf

    @property
    def cost(self) -> int:
        return self._made + self._simulation.events

    def run(self, events: int, most_s: float = math.inf) -> bool:
        """Run for at most this many events; give up beyond `most_s`. Return True once finished.

        `iteration_s` has the result then; it is infinite after giving up.
        """
        until_s = self._begins_s + most_s
        if self._simulation.run(until_s, events):
            marks = self._simulation.marks["backward_s"]
            self.iteration_s = float((marks[:, 1] - marks[:, 0]).max())
            return True
        return self._simulation.now >= until_s
