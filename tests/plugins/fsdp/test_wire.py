"""Blocks between ranks: what comes of them, in which order they are asked for, and what an error does."""

from __future__ import annotations

import datetime
import functools
import threading
import weakref
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from prophet_fsdp.wire import AT_ONCE, Reduction, ShardGroups, ShardWire, between_replicas

LIMIT_S = 60.0
BLOCK_BYTES = 16
TIMEOUT = datetime.timedelta(minutes=30)


class Work:
    """torch's Work of a send or a receive, which ends when the test's network says so."""

    def __init__(self) -> None:
        self._ended = threading.Event()
        self._error: Exception | None = None

    def wait(self, timeout: datetime.timedelta) -> None:
        assert timeout == TIMEOUT
        assert self._ended.wait(LIMIT_S)
        if self._error is not None:
            raise self._error

    def end(self, error: Exception | None = None) -> None:
        self._error = error
        self._ended.set()


class Network:
    """Ranks in one process. A receive ends when its send is there, or, on a rank that was held, at once."""

    def __init__(self, ranks: int, hosts: str = "") -> None:
        self.held: set[int] = set()
        """Ranks whose receives wait for `release`."""
        self.asked: defaultdict[int, list[tuple[int, Work]]] = defaultdict(list)
        """By rank, the numbers of the blocks that it asks for."""
        self._released: set[int] = set()
        self._lock = threading.Lock()
        self._routes: list[tuple[int, int]] = []
        self._sends: dict[tuple[Any, ...], tuple[Any, Work]] = {}
        self._receives: dict[tuple[Any, ...], tuple[Any, Work]] = {}
        self.wires = [
            ShardWire(
                ShardGroups(_Group(self, "upward", rank), _Group(self, "downward", rank), rank, ranks, TIMEOUT, hosts),
                BLOCK_BYTES,
            )
            for rank in range(ranks)
        ]

    def send(self, way: str, source: int, target: int, tag: int, data: Any) -> Work:
        assert (target > source) == (way == "upward"), "data has connections of its own in each direction"
        self._routes.append((source, target))
        return self._put(self._sends, (source, target, tag), data)

    def crossed(self, hosts: str) -> int:
        """Return how many blocks have gone from one host to another."""
        return sum(hosts[source] != hosts[target] for source, target in self._routes)

    def receive(self, way: str, source: int, target: int, tag: int, data: Any) -> Work:
        assert (target > source) == (way == "upward")
        work = self._put(self._receives, (source, target, tag), data)
        with self._lock:
            self.asked[target].append((tag, work))
            if target in self._released:
                work.end()
        return work

    def release(self, rank: int) -> None:
        """End all receives of a rank, whatever was sent."""
        with self._lock:
            self._released.add(rank)
            for _, work in self.asked[rank]:
                work.end()

    def _put(self, mine: dict[tuple[Any, ...], tuple[Any, Work]], key: tuple[int, int, int], data: Any) -> Work:
        work = Work()
        with self._lock:
            assert key not in mine
            mine[key] = data, work
            if key in self._sends and key in self._receives and key[1] not in self.held:
                (sent, leaves), (place, comes) = self._sends.pop(key), self._receives.pop(key)
                place.copy_(sent)
                leaves.end()
                comes.end()
        return work


class _Group:
    def __init__(self, network: Network, way: str, rank: int) -> None:
        self._network, self._way, self._rank = network, way, rank

    def send(self, tensors: list[Any], target: int, tag: int) -> Work:
        return self._network.send(self._way, self._rank, target, tag, tensors[0])

    def recv(self, tensors: list[Any], source: int, tag: int) -> Work:
        return self._network.receive(self._way, source, self._rank, tag, tensors[0])


@pytest.fixture
def connect() -> Iterator[Callable[..., Network]]:
    networks: list[Network] = []

    def make(ranks: int, hosts: str = "") -> Network:
        networks.append(Network(ranks, hosts))
        return networks[-1]

    yield make
    for network in networks:
        for wire in network.wires:
            wire.close(0.0)


@pytest.mark.parametrize("ranks", [2, 3, 4])
@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16, torch.uint8])
def test_a_gathering_brings_every_part_to_every_rank(connect: Callable[[int], Network], ranks: int, kind: Any) -> None:
    network = connect(ranks)
    whole = torch.arange(ranks * 13).to(kind)
    outputs = [torch.zeros(ranks * 13).to(kind) for _ in range(ranks)]
    for rank, output in enumerate(outputs):
        output.view(ranks, -1)[rank].copy_(whole.view(ranks, -1)[rank])
    begun = [wire.gather(output, 0, 0) for wire, output in zip(network.wires, outputs, strict=True)]
    for wire, transfer, output in zip(network.wires, begun, outputs, strict=True):
        wire.wait(transfer)
        assert torch.equal(output, whole)


@pytest.mark.parametrize("ranks", [2, 3, 4])
@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("average", [True, False])
def test_a_reduction_adds_up_in_the_order_of_ranks(
    connect: Callable[[int], Network], ranks: int, kind: Any, average: bool
) -> None:
    network = connect(ranks)
    inputs = torch.randn(ranks, ranks * 29, generator=torch.Generator().manual_seed(1)).to(kind)
    outputs = [torch.full((29,), torch.nan).to(kind) for _ in range(ranks)]
    begun = [
        wire.reduce(outputs[rank], inputs[rank].clone(), average, 1, 0)
        for rank, wire in reversed([*enumerate(network.wires)])
    ]
    expected = inputs[0].clone()
    for other in inputs[1:]:
        expected.add_(other)
    if average:
        expected.div_(ranks)
    for rank, transfer in zip(reversed(range(ranks)), begun, strict=True):
        network.wires[rank].wait(transfer)
        assert torch.equal(outputs[rank], expected.view(ranks, -1)[rank])


@pytest.mark.parametrize("ranks", [2, 3])
def test_a_reduction_of_the_whole_has_all_elements_on_each_rank(connect: Callable[[int], Network], ranks: int) -> None:
    network = connect(ranks)
    inputs = torch.randn(ranks, 29, generator=torch.Generator().manual_seed(1))
    outputs = [torch.full((29,), torch.nan) for _ in range(ranks)]
    begun = [
        wire.reduce(output, own.clone(), True, 1, 0, whole=True)
        for wire, output, own in zip(network.wires, outputs, inputs, strict=True)
    ]
    expected = functools.reduce(torch.add, inputs) / ranks
    for wire, transfer, output in zip(network.wires, begun, outputs, strict=True):
        wire.wait(transfer)
        assert torch.equal(output, expected)


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_replicas_have_the_sum_after_all_stages(connect: Callable[[int], Network], ranks: int) -> None:
    network, several = connect(ranks), 6
    inputs = torch.randn(several, ranks, 130, generator=torch.Generator().manual_seed(1))
    begun = []
    for rank, wire in enumerate(network.wires):
        for number, own in enumerate(inputs[:, rank]):
            result, stages = between_replicas(wire, rank, ranks, own.clone(), False, several - number, 0)
            begun.append((number, Reduction(stages), result))
    begun[several - 1][1].wait()  # Nobody else has to look.
    for number, reduction, result in begun:
        reduction.wait()
        assert reduction.there
        assert torch.equal(result, functools.reduce(torch.add, inputs[number]))


HOSTS = ["aabb", "aaabb", "abab", "aab", "abbccc", "aaaabbbb"]


@pytest.mark.parametrize("hosts", HOSTS)
def test_parts_come_to_all_ranks_of_several_hosts_and_sums_to_their_own(
    connect: Callable[..., Network], hosts: str
) -> None:
    """Whole numbers have the same sum in any order."""
    ranks = len(hosts)
    network = connect(ranks, hosts)
    chance = torch.Generator().manual_seed(1)
    inputs = torch.randint(-99, 99, (ranks, ranks * 13), generator=chance).to(torch.float32)
    outputs, sums = torch.zeros(ranks, ranks * 13), torch.full((ranks, 13), torch.nan)
    begun = []
    for rank, wire in enumerate(network.wires):
        outputs[rank].view(ranks, -1)[rank] = rank + 1
        begun += [(wire, wire.gather(outputs[rank], 1, 0)), (wire, wire.reduce(sums[rank], inputs[rank], False, 0, 0))]
    for wire, transfer in begun:
        wire.wait(transfer)
    assert torch.equal(outputs, torch.arange(1, ranks + 1).repeat_interleave(13).expand(ranks, -1))
    assert torch.equal(sums.flatten(), inputs.sum(0))
    assert all(wire.quiet(LIMIT_S) for wire in network.wires), "all have passed on what others wait for"


def test_the_ranks_of_a_host_are_added_up_there(connect: Callable[..., Network]) -> None:
    network = connect(4, "aabb")
    inputs = torch.randn(4, 4 * 29, generator=torch.Generator().manual_seed(1))
    sums = torch.full((4, 29), torch.nan)
    for transfer, wire in [
        (wire.reduce(own, mine, True, 0, 0), wire) for wire, own, mine in zip(network.wires, sums, inputs, strict=True)
    ]:
        wire.wait(transfer)
    parts = inputs.view(4, 4, 29)
    first, second = parts[0] + parts[1], parts[2] + parts[3]
    assert torch.equal(sums[:2], (first + second)[:2] / 4)
    assert torch.equal(sums[2:], (first + parts[2] + parts[3])[2:] / 4)


@pytest.mark.parametrize("hosts", HOSTS)
def test_each_part_crosses_to_another_host_once(connect: Callable[..., Network], hosts: str) -> None:
    network = connect(len(hosts), hosts)
    ranks, others = len(hosts), len(set(hosts)) - 1
    begun = [wire.gather(torch.empty(ranks), 0, 0) for wire in network.wires]
    for wire, transfer in zip(network.wires, begun, strict=True):
        wire.wait(transfer)
    assert network.crossed(hosts) == ranks * others
    begun = [wire.reduce(torch.empty(1), torch.empty(ranks), True, 0, 0) for wire in network.wires]
    for wire, transfer in zip(network.wires, begun, strict=True):
        wire.wait(transfer)
    assert network.crossed(hosts) == 2 * ranks * others


def test_a_rank_that_is_ahead_passes_on_what_slow_ones_wait_for(connect: Callable[..., Network]) -> None:
    """Ranks 0 and 3 have begun one collective; rank 2, by which they are connected, waits for blocks of more urgent
    ones that rank 0 has not begun."""
    network = connect(4, "aabb")
    outputs = torch.zeros(4, 4 * 80)
    first = [wire.gather(own, 9, 0) for wire, own in zip(network.wires[1:], outputs[1:], strict=True)]
    for rank in (1, 2):
        for _ in range(3):
            network.wires[rank].gather(torch.empty(4 * 80), 0, 0)
    outputs[0, :80] = 1.0
    first.insert(0, network.wires[0].gather(outputs[0], 9, 0))
    ended = threading.Thread(target=network.wires[3].wait, args=[first[3]], daemon=True)
    ended.start()
    ended.join(LIMIT_S / 6)
    assert not ended.is_alive() and bool((outputs[3, :80] == 1).all())


def test_a_reduction_keeps_no_gradient_that_it_has_sent(connect: Callable[[int], Network]) -> None:
    network, ranks = connect(3), 3
    reductions, gradients = [], []
    for rank, wire in enumerate(network.wires):
        gradient = torch.ones(130)
        gradients.append(weakref.ref(gradient))
        reductions.append(Reduction(between_replicas(wire, rank, ranks, gradient, False, 1, 0)[1]))
        del gradient
    for reduction in reductions:
        reduction.wait()
    assert [gradient() for gradient in gradients] == [None] * ranks


def test_the_more_urgent_is_asked_for_first_and_a_few_blocks_at_a_time(connect: Callable[[int], Network]) -> None:
    network = connect(2)
    wire = network.wires[0]
    network.held.add(0)
    wire.reduce(torch.empty(40), torch.empty(80), True, 1, 0)
    assert [tag for tag, _ in network.asked[0]] == [2 * number for number in range(AT_ONCE)], "of the first rank's part"
    urgent = wire.gather(torch.empty(16), 0, 0)
    network.release(0)
    wire.wait(urgent)
    asked = [tag for tag, _ in network.asked[0]]
    assert asked[AT_ONCE : AT_ONCE + 2] == [21, 23], "the ten blocks before have the lower numbers, of either part"


def test_an_error_reaches_all_that_wait_and_nothing_more_begins(connect: Callable[[int], Network]) -> None:
    network = connect(2)
    network.held.add(0)
    transfer = network.wires[0].gather(torch.empty(2), 0, 0)
    network.asked[0][0][1].end(RuntimeError("connection closed by peer"))
    with pytest.raises(RuntimeError, match="closed by peer"):
        network.wires[0].wait(transfer)
    with pytest.raises(RuntimeError, match="closed by peer"):
        network.wires[0].gather(torch.empty(2), 0, 0)


def test_a_rank_that_is_interrupted_as_a_collective_begins_waits_for_nothing_more(
    connect: Callable[[int], Network], monkeypatch: pytest.MonkeyPatch
) -> None:
    network = connect(2)

    def interrupted(*_: object) -> None:
        raise SystemExit(3)

    with monkeypatch.context() as patch, pytest.raises(SystemExit):
        patch.setattr(network, "send", interrupted)
        network.wires[0].gather(torch.empty(2), 0, 0)
    network.wires[0].quiet(None)
    with pytest.raises(SystemExit):
        network.wires[0].gather(torch.empty(2), 0, 0)


def test_a_rank_is_quiet_when_the_others_have_its_data(connect: Callable[[int], Network]) -> None:
    network = connect(2)
    network.wires[0].gather(torch.empty(2), 0, 0)
    assert not network.wires[0].quiet(0.0)
    network.wires[1].gather(torch.empty(2), 0, 0)
    assert network.wires[0].quiet(LIMIT_S)
