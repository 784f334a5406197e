"""One worker of the suite's job, on the engine and in the case that its environment names.

Rule of this file: an ordinary training loop through an engine's exchange (prophet_scheduler/engines/exchange.py), and
what is done to Prophet from outside before it begins. A new engine adds a class like those at the end. The job prints
what the tests read, one line each: the digest of the weights and, where blocks were forced, what held on this worker
in each round. It takes engine and case from CONTRACT_ENGINE and CONTRACT_CASE.
"""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import json
import os
import pkgutil
import random
import threading
from collections.abc import Callable
from typing import Any, Protocol

import torch

from prophet_scheduler.core.cut import Cut, Segment
from prophet_scheduler.core.network import Network
from prophet_scheduler.core.plan import Plan, QueuePlan
from prophet_scheduler.core.profile import Profile
from prophet_scheduler.engines.exchange import TorchJobExchange
from prophet_scheduler.engines.registry import engines

ROUNDS = 32
CUTS = (
    Cut.uniform(64 * 1024),
    Cut((Segment(0, 128 * 1024), Segment(1 << 20, 1 << 20))),
    Cut((Segment(0, 16 * 1024), Segment(256 * 1024, 512 * 1024), Segment(1 << 20, 256 * 1024))),
)
FAILURE = "made for a test"
PATIENCE_S = 120.0
"""Longest wait for a failure that has to come about."""


class Forced(Protocol):
    """Changes that the suite makes to Prophet on one engine, in a worker's process, before the exchange is made."""

    def fail(self) -> threading.Event:
        """Make the agent of this worker, which decides, fail at each turn; the event is set when it has failed."""
        ...

    def recut(self, rank: int) -> Callable[[Any], object]:
        """Make every worker wish for cuts of its own, at every chance, and report a network of its own.

        Returns a function of the model that tells what holds in the round just sent, comparable between workers.
        """
        ...


CLIP_NORM = 0.05


def train(
    exchange: TorchJobExchange, after: Callable[[Any], None] = lambda called: None, clip_norm: float | None = None
) -> None:
    """Train the job; `after` is called after each step, with the module whose forward is called. `clip_norm`: the norm
    that all gradients together have at most.
    """
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(64, 4096), torch.nn.Tanh(), torch.nn.Linear(4096, 64))
    called, optimizer = exchange.distribute(model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9))
    torch.manual_seed(100 + exchange.rank)
    for _ in range(ROUNDS):
        optimizer.zero_grad()
        called(torch.randn(8, 64)).square().mean().backward()
        if clip_norm is None:
            optimizer.step()
        else:
            with exchange.averaged(optimizer):
                torch.nn.utils.clip_grad_norm_(model.parameters(), clip_norm)
                optimizer.step()
        after(called)
    digest = hashlib.sha256(b"".join(value.numpy().tobytes() for value in model.state_dict().values()))
    print("weights", digest.hexdigest(), flush=True)
    exchange.close()


def alone(engine: str, rank: int) -> None:
    """The job as it is, with or without Prophet."""
    train(exchange_of(engine))


def half_and_clipped(engine: str, rank: int) -> None:
    """Gradients travel in half precision, and every iteration looks at all averages before it uses any."""
    train(exchange_of(engine, compression="fp16"), clip_norm=CLIP_NORM)


def agent_fails(engine: str, rank: int) -> None:
    """The agent of the worker that decides has failed before the first round."""
    failed = FORCED[engine]().fail() if rank == 0 else None
    exchange = exchange_of(engine)

    def await_failure(_called: Any) -> None:
        if failed is not None:
            assert failed.wait(PATIENCE_S), "the agent has never had a turn"

    train(exchange, await_failure)


def recuts(engine: str, rank: int) -> None:
    """Blocks are cut anew all the time, and each worker wants other ones."""
    held: list[object] = []
    holds = FORCED[engine]().recut(rank)
    train(exchange_of(engine), lambda called: held.append(holds(called)))
    print("held", json.dumps(held), flush=True)


def exchange_of(engine: str, **how: str) -> TorchJobExchange:
    exchange: TorchJobExchange = pkgutil.resolve_name(engines()[engine].exchanges["torch"])(**how)
    return exchange


class ForwardOrder:
    """A policy without wishes of its own: what forward needs first goes first, with little in flight."""

    name = "prophet"

    def plan(self, profile: Profile | None, network: Network | None, jitter_s: float = 0.0) -> Plan:
        queue = QueuePlan(order={}, credit=128 * 1024)
        return Plan(push=queue, pull=queue, policy=self.name)


class ForcedBytePS:
    """Changes by way of the board on which agent and front end leave each other notes (cutting.py)."""

    def fail(self) -> threading.Event:
        from prophet_byteps.agent import Agent

        return _failing(Agent, "_turn")

    def recut(self, rank: int) -> Callable[[Any], object]:
        from prophet_byteps.cutting import CutBoard, Wish
        from prophet_scheduler.policies import prophet as policy

        boards: list[CutBoard] = []
        make: Any = CutBoard.__init__

        def make_and_keep(board: CutBoard, *args: Any) -> None:
            make(board, *args)
            boards.append(board)

        wanted = itertools.cycle(CUTS[rank:] + CUTS[:rank])
        network = Network(bandwidth=1e6 * (1 + rank))
        forced: Any = CutBoard
        forced.__init__ = make_and_keep
        forced.said = lambda board: (Wish(next(wanted)), network)
        of_file: Any = policy.POLICIES
        of_file["prophet"] = dataclasses.replace(of_file["prophet"], build=lambda options, size: ForwardOrder())

        def holds(_called: Any) -> object:
            (cut,) = {board.in_force.cut for board in boards}
            return None if cut is None else [[segment.start, segment.block_bytes] for segment in cut.segments]

        return holds


class ForcedDdp:
    """Changes at the end of a round, where the rank that decides says what it wants (control.py)."""

    def fail(self) -> threading.Event:
        from prophet_ddp.agent import ModuleAgent

        return _failing(ModuleAgent, "turn")

    def recut(self, rank: int) -> Callable[[Any], object]:
        from prophet_ddp.agent import ModuleAgent
        from prophet_ddp.control import Decision
        from prophet_ddp.rounds import ModuleRounds

        wanted = itertools.cycle(CUTS[rank:] + CUTS[:rank])
        chance = random.Random(rank)
        forced: Any = ModuleRounds
        original = forced._end

        def end(rounds: ModuleRounds) -> None:
            cut = next(wanted)
            order = list(range(len(rounds.layout.blocks_under(cut))))
            chance.shuffle(order)
            rounds.channel.control.want(Decision(cut, tuple(order)))
            original(rounds)

        forced._end = end
        agent: Any = ModuleAgent
        agent._turn = lambda self, rounds, now: rounds.record.keep(rounds.log.drain())

        def holds(called: Any) -> object:
            rounds: ModuleRounds = called.reducer.rounds
            decision = rounds.layout.decision
            assert decision is not None
            blocks = rounds.layout.blocks_under(decision.cut)
            return [blocks[place].id for place in decision.order]

        return holds


FORCED: dict[str, Callable[[], Forced]] = {"byteps": ForcedBytePS, "ddp": ForcedDdp}
"""Changes by the engine's name."""


def _failing(holder: Any, method: str) -> threading.Event:
    failed = threading.Event()

    def fail(*_: Any) -> None:
        failed.set()
        raise ValueError(FAILURE)

    setattr(holder, method, fail)
    return failed


if __name__ == "__main__":
    torch.set_num_threads(1)
    number = int(os.environ.get("DMLC_WORKER_ID") or os.environ["RANK"])
    known = {case.__name__: case for case in (alone, half_and_clipped, agent_fails, recuts)}
    known[os.environ["CONTRACT_CASE"]](os.environ["CONTRACT_ENGINE"], number)
