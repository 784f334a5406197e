"""Tests of which tensors have their own partition size: by their first push, and by what all workers have said."""

from __future__ import annotations

import itertools
import struct
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from prophet_byteps import agreement, hook
from prophet_byteps.agreement import Agreement, Answer
from prophet_byteps.torch.own_pushes import OwnPushes
from support.exchanges import QuietExchange

SIZE = 512 << 10


def ops_of_byteps(sent: list[tuple[Any, int]]) -> Any:
    """Return BytePS's functions, which call each other as they do there; `sent` gets names and priorities."""
    ops = SimpleNamespace()

    def _do_push_pull_async(
        tensor: Any, output: Any, average: Any, name: Any, version: int = 0, priority: int = 0
    ) -> None:
        sent.append((name, priority))

    def push_pull_async(
        tensor: Any, average: bool = True, name: Any = None, version: int = 0, priority: int = 0
    ) -> None:
        ops._do_push_pull_async(tensor, tensor, average, name, version, priority)

    def push_pull(
        tensor: Any, average: bool = True, name: Any = None, version: int = 0, priority: int = 0, compression: int = 7
    ) -> None:
        assert compression == 7
        ops.push_pull_async(tensor, average, name, version, priority)

    def poll(handle: int, patience: int = 3) -> int:
        return patience

    ops._do_push_pull_async = ops._do_push_pull_group_sync = _do_push_pull_async
    ops.push_pull_async, ops.push_pull, ops.poll = push_pull_async, push_pull, poll
    return ops


class FakeHook:
    """The hook of this process, which has seen BytePS look at its partition size or not."""

    def __init__(self, sizes_apart: bool = True) -> None:
        self.sizes_apart = sizes_apart
        self.on = False
        self.given: dict[str, int] = {}

    def turn_on_sizes(self) -> None:
        self.on = True

    def give_size(self, name: str, size: int) -> None:
        assert self.on
        self.given[name] = size


class Sum(QuietExchange):
    """Sum of the pages of this worker and of another, which says `other`: (whether it can, the size that it wants)."""

    def __init__(self, other: tuple[int, int]) -> None:
        self._other = other

    def declare(self, name: str) -> None: ...

    def send(self, name: str, page: bytes) -> Answer:
        own = struct.unpack_from("<II", page)
        summed = struct.pack("<II", *(a + b for a, b in zip(own, self._other, strict=True)))
        answers = itertools.chain([None], itertools.repeat(summed.ljust(len(page), b"\0")))
        return lambda: next(answers)


@pytest.fixture
def loaded(monkeypatch: pytest.MonkeyPatch) -> FakeHook:
    fake = FakeHook()
    monkeypatch.setattr(hook, "_loaded", fake)
    return fake


@pytest.fixture
def agree(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    def agree(pushes: OwnPushes, other: tuple[int, int] = (1, 0), wanted: int = SIZE) -> None:
        group = Agreement(Sum(other), 0, 2)
        agreement.activate(group)
        pushes.agree(0, 2, wanted)

    yield agree
    agreement.activate(None)


def test_a_tensor_has_a_size_where_its_first_push_has_a_priority(loaded: FakeHook, agree: Callable[..., None]) -> None:
    sent: list[tuple[Any, int]] = []
    ops = ops_of_byteps(sent)
    early = ops.push_pull_async  # as in modules that were loaded before
    pushes = OwnPushes(ops)
    agree(pushes)
    ops.push_pull_async(1, name="keyword", priority=-3)
    early(1, True, "place", 0, -4)
    ops.push_pull(1, name="whole", priority=5)
    ops.push_pull(1, name="zero", priority=0)
    ops._do_push_pull_group_sync(1, 1, True, "group", 0, -1)
    ops.push_pull_async(1, priority=-2)
    given = ["byteps.keyword", "byteps.place", "byteps.whole", "byteps.zero", "byteps.group", "byteps.noname.0"]
    assert loaded.given == dict.fromkeys(given, SIZE)
    ops.push_pull_async(1, name="plain")
    ops.push_pull_async(1, True, "plain", 0, -9)
    ops.push_pull(1, name="plain too")
    ops.push_pull_async(1, name="prophet.block.0.1", priority=-1)
    assert list(loaded.given) == given, "none, or Prophet's own"
    assert sent[:4] == [("keyword", -3), ("place", -4), ("whole", 5), ("zero", 0)]
    assert [type(priority) for _, priority in sent] == [int] * len(sent)
    assert ops.poll(1) == 3


def test_no_worker_has_sizes_if_one_cannot(loaded: FakeHook, agree: Callable[..., None]) -> None:
    for other, apart in (((0, 0), True), ((1, 0), False)):
        loaded.sizes_apart = apart
        pushes = OwnPushes(ops := ops_of_byteps([]))
        agree(pushes, other)
        ops.push_pull_async(1, name="urgent", priority=-1)
        assert (pushes.size, loaded.given, loaded.on) == (0, {}, False)


def test_another_worker_may_say_the_size(loaded: FakeHook, agree: Callable[..., None]) -> None:
    pushes = OwnPushes(ops := ops_of_byteps([]))
    agree(pushes, (1, 65536), wanted=0)
    ops.push_pull_async(1, name="urgent", priority=-1)
    assert loaded.given == {"byteps.urgent": 65536}


def test_a_byteps_that_begins_anew_has_new_first_pushes(loaded: FakeHook, agree: Callable[..., None]) -> None:
    pushes = OwnPushes(ops := ops_of_byteps([]))
    agree(pushes)
    ops.push_pull_async(1, name="late")
    agree(pushes, wanted=65536)
    ops.push_pull_async(1, name="late", priority=-1)
    assert loaded.given == {"byteps.late": 65536}


def test_a_cross_barriers_gradients_are_urgent_in_forward_order(loaded: FakeHook, agree: Callable[..., None]) -> None:
    sent: list[tuple[Any, int]] = []
    pushes = OwnPushes(ops := ops_of_byteps(sent))
    agree(pushes)
    pushes.in_forward_order(["Gradient.first", "Gradient.second"])
    for name in ("Gradient.second", "Gradient.first", "Parameter.first"):
        ops.push_pull_async(1, name=name)
    ops.push_pull_async(1, name="Gradient.first", priority=-7)
    assert sent == [("Gradient.second", -2), ("Gradient.first", -1), ("Parameter.first", 0), ("Gradient.first", -7)]
    assert loaded.given == {"byteps.Gradient.second": SIZE, "byteps.Gradient.first": SIZE}


def test_a_byteps_without_these_functions_is_left_alone(loaded: FakeHook, agree: Callable[..., None]) -> None:
    pushes = OwnPushes(SimpleNamespace(poll=print))
    agree(pushes)
    assert pushes.size == 0
