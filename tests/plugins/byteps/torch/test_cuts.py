"""Blocks that are cut anew while a job trains: the bits of a plain optimizer, and keys that keep their length."""

from __future__ import annotations

import _thread
import itertools
import random
import types
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from prophet_byteps import hook
from prophet_byteps.cutting import CutBoard
from prophet_byteps.torch import keyed_arena
from prophet_byteps.torch import keys as torch_engine
from prophet_byteps.torch.keyed_arena import names_reserved
from prophet_scheduler.core.cut import MOST_BLOCK_BYTES, UNIT_BYTES, Cut, Segment, blocks_of
from prophet_scheduler.frontends.torch import arena
from support.torch_network import (
    Network,
    Twins,
    install,
    loss_of,
    same,
    train,
    twins_of,
    wrap,
)

SEEDS = range(6)
ROUNDS = 24


class Mixed(nn.Module):
    """Gradients of several kinds and sizes, of which some do not appear in every round."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(11)
        self.first = nn.Linear(6, 211)
        self.scale = nn.Parameter(torch.ones(3, dtype=torch.float16))
        self.wide = nn.Linear(211, 67)
        self.exact = nn.Linear(67, 40).double()
        self.second_exact = nn.Linear(40, 67).double()
        self.empty = nn.Parameter(torch.zeros(0, 3))
        self.odd = nn.Linear(67, 67)
        self.strided = nn.Parameter(torch.randn(67, 31).t())
        self.narrow = nn.Linear(31, 90).half()
        self.last = nn.Linear(31, 3)
        self.with_odd = True

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        hidden = torch.tanh(self.wide(torch.tanh(self.first(inputs))))
        hidden = torch.tanh(self.second_exact(self.exact(hidden.double()))).float()
        if self.with_odd:
            hidden = hidden + self.odd(hidden)
        hidden = torch.tanh(hidden @ self.strided.t())
        half: torch.Tensor = self.narrow(hidden.half()).float().mean(1, keepdim=True)
        result: torch.Tensor = self.last(hidden) * self.scale + half
        return result


class Cuts:
    """Stand-in for the agreement on cuts: one cut for each round, and a record of when it is asked."""

    def __init__(self, cuts: list[Cut]) -> None:
        self.cuts = cuts
        self.asked: list[str] = []
        self.refused: list[tuple[Cut, str]] = []
        self.round = 0

    def declare(self) -> None:
        self.asked.append("declare")

    def ask(self, sizes: list[int], base: int = 0) -> None:
        self.asked.append("ask")

    def first(self) -> Cut:
        self.asked.append("first")
        return self.cuts[0]

    def restart(self, rank: int, workers: int) -> None:
        self.round = 0

    def begins_otherwise(self, cut: Cut, why: str) -> None:
        self.asked.append("otherwise")
        self.refused.append((self.cuts[0], why))

    def round_begins(self, why_not: Callable[[Cut], str]) -> Cut | None:
        self.asked.append("begins")
        cut = self.cuts[self.round % len(self.cuts)]
        if self.round and (why := why_not(cut)):
            self.refused.append((cut, why))
            return None
        return cut if self.round else None

    def round_ends(self) -> None:
        self.asked.append("ends")
        self.round += 1


def cutting(monkeypatch: pytest.MonkeyPatch, cuts: list[Cut], newest_first: bool = False) -> tuple[Network, Cuts]:
    network, control = Network(newest_first), Cuts(cuts)
    monkeypatch.setattr(torch_engine.Engine, "cuts", lambda self, number: control)
    install(monkeypatch, network, board=CutBoard(None))
    return network, control


def some_cut(chance: random.Random, total: int) -> Cut:
    units = total // UNIT_BYTES
    starts = {0, *(chance.randrange(1, units) for _ in range(chance.randrange(4)))}
    return Cut(tuple(Segment(start * UNIT_BYTES, chance.randint(1, 12) * UNIT_BYTES) for start in sorted(starts)))


def play(model: Mixed, optimizer: Any, chance: random.Random, accumulated: int) -> list[torch.Tensor]:
    """Play some rounds of what programs do, the same for the same chance. Return what was looked at on the way."""
    seen = []
    whole = False
    for number in range(ROUNDS):
        if chance.random() < 0.7 or not whole:
            optimizer.zero_grad(set_to_none=chance.random() < 0.5)
        whole = False
        for part in range(accumulated):
            model.with_odd = chance.random() < 0.6
            whole |= model.with_odd
            loss_of(model, 10 * number + part).backward()
        step = chance.random()
        if step < 0.3:
            optimizer.synchronize()
            seen.append(nn.utils.clip_grad_norm_(model.parameters(), 0.5))
            with optimizer.skip_synchronize():
                optimizer.step()
        else:
            optimizer.step()
        if chance.random() < 0.2:
            seen.append(model.wide.weight.detach().clone())
    return seen


def make(params: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(params, 0.05, momentum=0.9, weight_decay=1e-3)


def play_alike(network: Network, seed: int = 1, accumulated: int = 1) -> Twins:
    """Play the same without Prophet and with it, and return the twins, which must be alike."""
    twins = twins_of(network, make, Mixed, backward_passes_per_step=accumulated)
    seen = [play(*side, random.Random(seed), accumulated) for side in twins.sides]
    assert same(*seen)
    assert twins.alike()
    return twins


@pytest.mark.parametrize("newest_first", [False, True])
@pytest.mark.parametrize("seed", SEEDS)
def test_another_cut_in_every_round_to_the_last_bit(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, seed: int, newest_first: bool
) -> None:
    total = sum(sizes_of(Mixed()))
    chance = random.Random(seed)
    monkeypatch.setattr(keyed_arena, "MOST_NAMES", 10**6)
    monkeypatch.setattr(keyed_arena, "_FINE_BYTES", 100)  # so that names suffice
    pool = [some_cut(chance, total) for _ in range(7)]
    network, control = cutting(monkeypatch, [chance.choice(pool) for _ in range(ROUNDS)], newest_first)
    play_alike(network, seed, 1 + seed % 2)
    assert not caplog.records
    assert control.asked == ["declare", "ask", "first"] + ["begins", "ends"] * ROUNDS, (
        "every round once, whatever it had"
    )
    sent = Counter(name for name, _ in network.pushed)
    assert len(sent) > 60, "many blocks"
    assert max(sent.values()) > 1, "keys of former cuts are used again"


def test_workers_give_the_same_keys_to_the_same_blocks_in_any_order_of_gradients(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Keys are numbers of names in the order of declaration, and a server fixes a key's length."""
    chance = random.Random(5)
    total = sum(sizes_of(Mixed()))
    cuts = [some_cut(chance, total) for _ in range(5)]
    lengths: list[dict[int, list[int]]] = []
    for worker in range(2):
        with monkeypatch.context() as patches:
            network, _ = cutting(patches, cuts, newest_first=bool(worker))
            model = Mixed()
            optimizer = wrap(network, model, make(model.parameters()))
            pushed: dict[int, list[int]] = {}
            for number in range(5):
                optimizer.zero_grad()
                model.with_odd = number % 2 == worker  # A gradient that is missing leaves at the end.
                loss_of(model, number + 100 * worker).backward()
                optimizer.step()
                for name, tensor, _ in network.flying.values():
                    pushed.setdefault(network.declared.index(name), []).append(tensor.nbytes)
            lengths.append({key: sorted(sizes) for key, sizes in sorted(pushed.items())})
            optimizer.state_dict()
            assert len(network.declared) == len(set(network.declared)) == names_reserved(sizes_of(model))
    assert len(lengths[0]) > 20
    assert lengths[0].keys() == lengths[1].keys()
    assert {key: set(sizes) for key, sizes in lengths[0].items()} == {k: set(s) for k, s in lengths[1].items()}
    assert all(len(set(sizes)) == 1 for sizes in lengths[0].values())


def sizes_of(model: nn.Module) -> list[int]:
    return [param.nbytes for param in model.parameters()]


def test_blocks_are_those_of_the_cut_with_ids_in_forward_order(monkeypatch: pytest.MonkeyPatch) -> None:
    model = Mixed()
    cut = Cut((Segment(0, 2 * UNIT_BYTES), Segment(8 * UNIT_BYTES, 5 * UNIT_BYTES)))
    network, _ = cutting(monkeypatch, [cut])
    optimizer = wrap(network, model, make(model.parameters()))
    loss_of(model, 0).backward()
    pushed = {-priority - 1: name for name, priority in network.pushed}
    lengths = {id_: network.memory[name][1] - network.memory[name][0] for id_, name in pushed.items()}
    kinds = [(p.dtype if p.dtype != torch.float16 else None) for p in model.parameters()]
    expected = {block.id: block.size_bytes for block in blocks_of(sizes_of(model), kinds, cut)}
    assert lengths == expected
    assert len(expected) > 12
    optimizer.step()


def test_a_cut_that_needs_more_names_than_there_are_is_not_taken_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fine, coarse = Cut.uniform(UNIT_BYTES), Cut.uniform(MOST_BLOCK_BYTES)
    blocks = 2 * len(blocks_of(sizes_of(Mixed()), [p.dtype for p in Mixed().parameters()], coarse))
    monkeypatch.setattr(keyed_arena, "names_reserved", lambda sizes: blocks + 8)
    network, control = cutting(monkeypatch, [fine, fine, coarse, fine])
    play_alike(network)
    assert {cut for cut, _ in control.refused} == {fine}
    assert all(why.startswith("it takes ") for _, why in control.refused)
    assert len({name for name, _ in network.pushed}) == blocks + 2 * 2, "the halves are apart"


def test_all_optimizers_of_a_process_share_its_names(monkeypatch: pytest.MonkeyPatch) -> None:
    """BytePS can number only so many tensors. Those that come last have the coarsest blocks, which need few names."""
    reserved = names_reserved(sizes_of(Mixed()))
    monkeypatch.setattr(torch_engine, "MOST_NAMES_OF_ALL", reserved + 3)
    network, control = cutting(monkeypatch, [Cut.uniform(UNIT_BYTES)])
    declared = [len(network.declared)]
    for refused in (False, True, True):
        control.refused.clear()
        play_alike(network)
        assert bool(control.refused) == refused
        declared.append(len(set(network.declared)))
    first, second, third = (after - before for before, after in itertools.pairwise(declared))
    assert first == reserved
    assert second == third < reserved / 4


def test_a_fixed_size_with_more_blocks_than_names_is_left_to_bytepss_partitions(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Each key is a file that BytePS maps, and a process may map only so many."""
    network = Network()
    monkeypatch.setattr(keyed_arena, "MOST_NAMES", 10)
    board = CutBoard(Cut.uniform(UNIT_BYTES))
    install(monkeypatch, network, board=board)
    model = play_alike(network).model
    blocks = blocks_of(sizes_of(model), [p.dtype for p in model.parameters()], Cut.uniform(MOST_BLOCK_BYTES))
    assert len({name for name, _ in network.pushed}) == 2 * (len(blocks) + 2), "those of half precision are apart"
    assert board.in_force.cut == Cut.uniform(MOST_BLOCK_BYTES)


def test_a_use_that_was_missed_is_noticed_in_a_round_of_another_cut_too(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The first gradient of the round cuts anew, and so finishes the update that another one would have found."""
    cuts = [Cut.uniform(UNIT_BYTES), Cut.uniform(2 * UNIT_BYTES)]
    network, _ = cutting(monkeypatch, cuts)
    model = Mixed()
    optimizer = wrap(network, model, make(model.parameters()))
    weights = [model.first.weight, model.last.weight]
    train(model, optimizer, steps=3)
    assert network.flying

    sums: list[torch.Tensor] = []

    # In a thread that has no modes, nothing can be noticed before the gradient is there.
    def use() -> None:
        sums.append(weights[0].sum())
        over.release()

    over = _thread.allocate_lock()
    over.acquire()
    _thread.start_new_thread(use, ())
    over.acquire()
    sums.append(weights[1].sum())
    assert network.flying
    (sums[0] + sums[1]).backward()
    assert "was used before its update had arrived" in caplog.text
    optimizer.step()
    assert not network.flying


def test_many_keys_are_not_opened_all_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """BytePS has a thread for each tensor that is pushed for the first time."""
    monkeypatch.setattr(torch_engine, "MOST_OPENING", 4)
    network, _ = cutting(monkeypatch, [Cut.uniform(UNIT_BYTES)])
    most = 0
    push = network.byteps_push_pull

    def watched(*args: Any, **more: Any) -> int:
        nonlocal most
        handle = push(*args, **more)
        most = max(most, len(network.flying))
        return handle

    monkeypatch.setattr(network, "byteps_push_pull", watched)
    play_alike(network)
    assert most > 4, "only the first pushes wait"


def test_waiting_for_keys_to_open_ends_where_nothing_moves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_engine, "MOST_OPENING", 1)
    clock = iter(range(1000))
    monkeypatch.setattr(torch_engine, "time", types.SimpleNamespace(monotonic=lambda: next(clock)))
    monkeypatch.setattr(hook, "wait_activity", lambda limit_s: None)
    network = Network()
    engine = torch_engine.Engine(network)
    for number in range(5):
        network.declare(str(number))
        engine.push(torch.zeros(3), str(number), 0, new=True)
    assert len(network.flying) == 5


def test_workers_whose_gradients_are_of_other_kinds_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    """Devices, too, decide which gradients share a block, and one worker's model may be on several."""
    texts: list[str] = []
    for split in (False, True):
        with monkeypatch.context() as patches:
            network, _ = cutting(patches, [Cut.uniform(UNIT_BYTES)])
            patches.setattr(torch_engine.Engine, "announce", lambda self, number, text: texts.append(text))
            if split:
                patches.setattr(arena, "fusible_kind", lambda param, dtype: (dtype, param.numel() < 1000))
            model = Mixed()
            train(model, wrap(network, model, make(model.parameters())), steps=1)
    assert texts[0] != texts[1]
    assert texts[0].rpartition(",")[0] == texts[1].rpartition(",")[0]
