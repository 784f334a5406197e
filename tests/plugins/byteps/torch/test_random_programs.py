"""Random programs over BytePS, which must end with the bits of BytePS's own optimizer on a network without delay."""

from __future__ import annotations

import contextlib
import os
import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from prophet_byteps.cutting import CutBoard
from prophet_byteps.torch import keyed_arena
from prophet_byteps.torch import keys as torch_engine
from prophet_scheduler.core.cut import UNIT_BYTES, Cut, Segment
from support.byteps_programs import Program
from support.torch_network import Network, average, install, same

PROGRAMS = int(os.environ.get("PROGRAMS", "30"))

bps: Any = pytest.importorskip("byteps.torch")


@contextlib.contextmanager
def stock(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Any]]:
    """Yield BytePS's own DistributedOptimizer, over a network of two workers that averages in place."""
    flying: dict[int, tuple[torch.Tensor, torch.Tensor, bool]] = {}

    def push(tensor: torch.Tensor, average: bool, name: str) -> int:
        flying[len(flying)] = tensor, tensor.detach().clone(), average
        return len(flying) - 1

    def synchronize(handle: int) -> torch.Tensor:
        tensor, sent, averaged = flying[handle]
        flying[handle] = sent, sent, False
        assert torch.equal(tensor, sent), "a program that races"
        return tensor.copy_(average(tensor)) if averaged else tensor

    with monkeypatch.context() as patches:
        for name, function in (("byteps_push_pull", push), ("synchronize", synchronize)):
            patches.setattr(bps, name, function)
        patches.setattr(bps, "size", lambda: 2)
        patches.setattr(bps, "rank", lambda: 0)
        patches.setattr(bps, "declare", lambda name: None)
        yield bps.DistributedOptimizer


class Cuts:
    """Stand-in for the agreement on cuts of one optimizer: another cut in each round."""

    def __init__(self, draws: random.Random) -> None:
        self.random, self.started = draws, False
        self.pool = [self.cut() for _ in range(4)]

    def cut(self) -> Cut:
        starts = sorted({0, *(self.random.randrange(1, 40) for _ in range(self.random.randrange(4)))})
        return Cut(tuple(Segment(start * UNIT_BYTES, self.random.randint(1, 9) * UNIT_BYTES) for start in starts))

    def declare(self) -> None: ...
    def ask(self, sizes: list[int], base: int = 0) -> None: ...
    def first(self) -> Cut:
        return self.pool[0]

    def begins_otherwise(self, cut: Cut, why: str) -> None: ...
    def round_begins(self, why_not: Callable[[Cut], str]) -> Cut | None:
        first, self.started = not self.started, True
        return None if first or self.random.random() < 0.5 else self.random.choice(self.pool)

    def round_ends(self) -> None: ...


def compare(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """Run a program with BytePS's optimizer and with Prophet's."""
    with stock(monkeypatch) as wrap:
        truth = Program(bps, wrap, lambda: None, number)
        expected = truth.run()
    with monkeypatch.context() as patches:
        draws = random.Random(-1 - number)
        network = Network()
        network.Compression = bps.Compression

        def arrive() -> None:
            network.newest_first = draws.random() < 0.5
            for _ in range(draws.choice((0, 0, 1, 3))):
                if network.flying:
                    network.deliver()

        cuts = draws.random() < 0.4
        if cuts:
            patches.setattr(torch_engine.Engine, "cuts", lambda self, number: Cuts(draws))
            patches.setattr(keyed_arena, "MOST_NAMES", 10**6)
            patches.setattr(keyed_arena, "_FINE_BYTES", 100)
        install(patches, network, fusion=draws.random() < 0.5, **({"board": CutBoard(None)} if cuts else {}))
        patches.setattr(bps, "rank", lambda: 0)
        patches.setattr(bps, "byteps_push_pull", lambda tensor, average, name: 0)
        patches.setattr(bps, "synchronize", lambda handle: None)
        program = Program(bps, network.DistributedOptimizer, arrive, number)
        found = program.run()
        assert not network.fell_back
        network.shutdown()
    wrong = [name for name in found if not same(found[name], expected[name])]
    assert not wrong, (number, wrong, type(program.model).__name__, program.optimizers[0], *program.log)


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("number", range(PROGRAMS))
def test_a_random_program_ends_with_bytepss_bits(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, number: int
) -> None:
    compare(monkeypatch, number)
    assert not caplog.messages
