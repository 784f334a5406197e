"""Gradients' lives on two ranks whose programs and operations interleave at random, beside sums and updates by hand.

A job is drawn: what each rank looks at, writes and clears between backward and the next one, which blocks are wished
for, and when. The oracle knows no rounds, no blocks and no late updates: it adds two gradients and steps.
"""

from __future__ import annotations

import contextlib
import random
import weakref
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from prophet_ddp.assembly import OnProcessors
from prophet_ddp.control import Control, Decision
from prophet_ddp.events import EventLog
from prophet_ddp.layout import Channel, RoundTerms
from prophet_ddp.progress import WARM_UP
from prophet_ddp.rounds import ModuleRounds
from prophet_scheduler.core.cut import UNIT_BYTES, Cut
from prophet_scheduler.frontends.torch import guards, steps
from prophet_scheduler.frontends.torch.probation import STEPS
from support.front_end import forget
from support.interleaved import Interleaving, RankWire

RANKS = 2
RATE, MOMENTUM, MOST = 0.1, 0.9, 0.05
WIDTH, HIDDEN, OUT = 16, 64, 33
PARAMS = 6

Values = list[torch.Tensor]


class Model(nn.Module):
    """Two layers, and one beside them that a pass may leave out."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH, HIDDEN)
        self.second = nn.Linear(HIDDEN, OUT)
        self.beside = nn.Linear(WIDTH, OUT)

    def forward(self, inputs: torch.Tensor, whole: bool) -> torch.Tensor:
        return output(inputs, whole, self.first, self.second, self.beside)


def output(inputs: torch.Tensor, whole: bool, first: Any, second: Any, beside: Any) -> torch.Tensor:
    found: torch.Tensor = second(torch.tanh(first(inputs)))
    return found + beside(inputs) if whole else found


def loss(found: torch.Tensor) -> torch.Tensor:
    return found.square().mean()


def inputs_of(rank: int, number: int) -> torch.Tensor:
    return torch.randn(3, WIDTH, generator=torch.Generator().manual_seed(10 * number + rank))


@dataclass(frozen=True)
class Deed:
    """Something that a program does to its gradients and parameters; `place` is one of them."""

    kind: str
    place: int = 0


LOOKS = ("gradient", "parameter", "state")
KINDS = (*LOOKS, "write", "clear", "zero", "clip", "rate", "pause")


@dataclass(frozen=True)
class Iteration:
    """Iteration of the job. Each tuple has a value for each rank."""

    whole: tuple[bool, bool]
    accumulates: bool
    before: tuple[list[Deed], list[Deed]]
    """Deeds between backward and step()."""
    steps: tuple[bool, bool]
    after: tuple[list[Deed], list[Deed]]
    wish: tuple[int, int, bool] | None
    """Units of a block, the seed of an order, and if rounds have two phases: the first rank's wish."""


deeds = st.lists(st.builds(Deed, st.sampled_from(KINDS), st.integers(0, PARAMS - 1)), max_size=4)
iterations = st.builds(
    Iteration,
    whole=st.tuples(st.booleans(), st.booleans()),
    accumulates=st.booleans(),
    before=st.tuples(deeds, deeds),
    steps=st.sampled_from([(True, True)] * 3 + [(True, False), (False, False)]),
    after=st.tuples(deeds, deeds),
    wish=st.none() | st.tuples(st.integers(1, 4), st.integers(0, 99), st.booleans()),
)


@dataclass
class Oracle:
    """One rank's model, gradients and optimizer, of plain tensors; `seen` has what its looks have to find."""

    params: Values
    gradients: list[torch.Tensor | None] = field(default_factory=lambda: [None] * PARAMS)
    momenta: list[torch.Tensor | None] = field(default_factory=lambda: [None] * PARAMS)
    had: set[int] = field(default_factory=set)
    """Parameters with a gradient since the last round."""
    rate: float = RATE
    seen: list[list[torch.Tensor | None]] = field(default_factory=list)

    def backward(self, inputs: torch.Tensor, whole: bool) -> None:
        params = [param.clone().requires_grad_() for param in self.params]
        layers = [lambda x, at=at: nn.functional.linear(x, params[at], params[at + 1]) for at in (0, 2, 4)]
        found = torch.autograd.grad(loss(output(inputs, whole, *layers)), params, allow_unused=True)
        for place, gradient in enumerate(found):
            if gradient is not None:
                before = self.gradients[place]
                self.gradients[place] = gradient if before is None else before + gradient
                self.had.add(place)

    def do(self, deed: Deed) -> None:
        place, mine = deed.place, self.gradients
        gradient = mine[place]
        if deed.kind == "gradient":
            self.seen.append([None if gradient is None else gradient.clone()])
        elif deed.kind == "parameter":
            self.seen.append([self.params[place].clone()])
        elif deed.kind == "state":
            self.seen.append([param.clone() for param in self.params])
        elif deed.kind == "write" and gradient is not None:
            mine[place] = gradient * 2
        elif deed.kind == "clear":
            mine[place] = None
        elif deed.kind == "zero":
            mine[:] = [None] * PARAMS
        elif deed.kind == "clip":
            norms = [torch.linalg.vector_norm(each) for each in mine if each is not None]
            if norms:
                factor = torch.clamp(MOST / (torch.linalg.vector_norm(torch.stack(norms)) + 1e-6), max=1.0)
                mine[:] = [None if each is None else each * factor for each in mine]
        elif deed.kind == "rate":
            self.rate /= 2

    def step(self) -> None:
        for place, gradient in enumerate(self.gradients):
            if gradient is not None:
                before = self.momenta[place]
                momentum = gradient.clone() if before is None else before * MOMENTUM + gradient
                self.momenta[place] = momentum
                self.params[place] = self.params[place].add(momentum, alpha=-self.rate)


def average(ranks: Sequence[Oracle], varies: bool) -> None:
    """Put the average of both ranks' gradients in the place of each, unless it varies and none has one."""
    for place in range(PARAMS):
        mine = [each.gradients[place] for each in ranks]
        if not varies or any(place in each.had for each in ranks):
            total = sum((torch.zeros(()) if gradient is None else gradient) / RANKS for gradient in mine)
            assert isinstance(total, torch.Tensor)
            for each in ranks:
                each.gradients[place] = total.clone()
    for each in ranks:
        each.had.clear()


def expected(job: Sequence[Iteration], varies: bool) -> list[Oracle]:
    """Return both ranks after the job."""
    torch.manual_seed(0)
    model = Model()
    ranks = [Oracle([param.detach().clone() for param in model.parameters()]) for _ in range(RANKS)]
    for number, iteration in enumerate(job):
        for rank, each in enumerate(ranks):
            for part in range(1 + iteration.accumulates):
                each.backward(inputs_of(rank, 2 * number + part), iteration.whole[rank] or not varies)
        average(ranks, varies)
        for rank, each in enumerate(ranks):
            for deed in iteration.before[rank]:
                each.do(deed)
            if iteration.steps[rank]:
                each.step()
            for deed in iteration.after[rank]:
                each.do(deed)
    return ranks


class LateRounds(ModuleRounds):
    """Rounds of a program whose ways to its parameters are known, so that updates are late from the first step on."""

    barrier = False  # type: ignore[assignment]


class Rank:
    """One rank's program under Prophet."""

    rounds_type: type[ModuleRounds] = LateRounds

    def __init__(self, wire: RankWire, job: Sequence[Iteration], varies: bool, arranges: bool) -> None:
        steps.install()
        self._wire, self._rank, self._job, self._varies = wire, wire.rank, job, varies
        self._control = Control(wire.issuer, wire.rank, RANKS)
        channel = Channel(wire.issuer, self._control, EventLog(open=False), RANKS, lambda error, _iteration: error, str)
        terms = RoundTerms(
            lambda _sizes: Cut.uniform(UNIT_BYTES), uses_vary=varies, arranges=arranges, divides=not varies
        )
        torch.manual_seed(0)
        self.model = Model()
        self.rounds = self.rounds_type(self.model.named_parameters(), 1, channel, terms, OnProcessors())
        self.optimizer = torch.optim.SGD(self.model.parameters(), RATE, momentum=MOMENTUM)
        self.seen: list[list[torch.Tensor | None]] = []
        self.begun = 0

    def run(self) -> None:
        for number, iteration in enumerate(self._job):
            self.begun = number + 1
            self.backward(iteration, number)
            for deed in iteration.before[self._rank]:
                self._do(deed)
            if iteration.steps[self._rank]:
                self.optimizer.step()
            if self._rank == 0 and iteration.wish is not None:
                self._wish(*iteration.wish)
            for deed in iteration.after[self._rank]:
                self._do(deed)
            self._wire.pause()

    def backward(self, iteration: Iteration, number: int) -> None:
        whole = iteration.whole[self._rank] or not self._varies
        for part in range(1 + iteration.accumulates):
            inputs, syncs = inputs_of(self._rank, 2 * number + part), part == iteration.accumulates
            if syncs:
                self.rounds.forward_begins()
            found = self.model(inputs, whole)
            if syncs:
                self.rounds.forward_ends([found] if self._varies else ())
            loss(found).backward()
            self.rounds.validate()

    def _wish(self, units: int, seed: int, divides: bool) -> None:
        cut = Cut.uniform(units * UNIT_BYTES)
        divides = divides and self.rounds.divisible
        layout = self.rounds.layout
        blocks = layout.blocks_under(layout.division(cut).cut if divides else cut)
        chance, places = random.Random(seed), range(len(blocks))
        order, gathers = (tuple(chance.sample(places, len(blocks))) for _ in range(2))
        self._control.want(Decision(cut, order, at_once=chance.randint(1, 4), gathers=gathers if divides else ()))

    def _do(self, deed: Deed) -> None:
        params = list(self.model.parameters())
        param = params[deed.place]
        if deed.kind == "gradient":
            self.seen.append([None if param.grad is None else param.grad.clone()])
        elif deed.kind == "parameter":
            self.seen.append([param.detach().clone()])
        elif deed.kind == "state":
            self.seen.append([each.clone() for each in self.model.state_dict().values()])
        elif deed.kind == "write" and param.grad is not None:
            param.grad.mul_(2)
        elif deed.kind == "clear":
            param.grad = None
        elif deed.kind == "zero":
            self.optimizer.zero_grad()
        elif deed.kind == "clip":
            nn.utils.clip_grad_norm_(params, MOST)
        elif deed.kind == "rate":
            self.optimizer.param_groups[0]["lr"] /= 2
        elif deed.kind == "pause":
            self._wire.pause()

    def look(self) -> Values:
        """Return the weights."""
        return [param.detach().clone() for param in self.model.parameters()]


@dataclass(frozen=True)
class Terms:
    """Terms of a job, and what happens at its end: the ranks that drop their module while averages are under way."""

    varies: bool = False
    arranges: bool = False
    drops: tuple[bool, ...] = (False,) * RANKS


@dataclass
class Found:
    """Findings of one rank by its looks, and its weights in the end, with `begun` iterations and the `error` of one."""

    seen: list[list[torch.Tensor | None]]
    last: Values
    begun: int
    error: str


def found_by(wire: RankWire, job: Sequence[Iteration], terms: Terms) -> Found:
    """Run the job on one rank."""
    try:
        rank = Rank(wire, job, terms.varies, terms.arranges)
        error = ""
        try:
            rank.run()
        except ConnectionError as what:
            error = str(what)
        if terms.drops[wire.rank]:
            return Found(rank.seen, dropped(wire, rank), rank.begun, error)
        last = rank.look()
        rank.rounds.flush()  # Some gradient may not have been looked at.
        assert not any(slot.life.to_come for slot in rank.rounds.slots)
        if error:
            with contextlib.suppress(ConnectionError, RuntimeError):
                rank.backward(job[-1], 0)
            same(rank.look(), last)
        return Found(rank.seen, last, rank.begun, error)
    finally:
        forget()


def dropped(wire: RankWire, rank: Rank) -> Values:
    """Drop a rank's module, and all but one of its parameters. Return that one's value."""
    rounds, held = rank.rounds, rank.model.first.weight
    gone = weakref.ref(rank.model.second.weight)
    del rank.model, rank.optimizer
    rounds.dropped()
    wire.pause()
    guards.forget_dropped()
    assert gone() is None
    value = held.detach().clone()
    rounds.flush()
    assert not rounds.slots
    return [value]


@pytest.fixture(scope="module")
def ranks() -> Iterator[Interleaving]:
    with Interleaving(RANKS, found_by) as ranks:
        yield ranks


def same(found: Sequence[torch.Tensor | None], wanted: Sequence[torch.Tensor | None]) -> None:
    for one, other in zip(found, wanted, strict=True):
        assert (one is None) == (other is None)
        assert one is None or other is None or torch.equal(one, other)


seeds = st.integers(0, 2**16)
terms = st.builds(Terms, st.booleans(), st.booleans(), st.just((False,) * RANKS) | st.tuples(*[st.booleans()] * RANKS))


@given(job=st.lists(iterations, min_size=1, max_size=5), seed=seeds, terms=terms)
@settings(max_examples=120)
def test_ranks_find_what_sums_and_steps_by_hand_give(
    ranks: Interleaving, job: list[Iteration], seed: int, terms: Terms
) -> None:
    for rank, (oracle, found) in enumerate(zip(expected(job, terms.varies), ranks.run(seed, job, terms), strict=True)):
        assert not found.error
        for values, wanted in zip(found.seen, oracle.seen, strict=True):
            same(values, wanted)
        same(found.last, oracle.params[:1] if terms.drops[rank] else oracle.params)


looks = st.lists(st.builds(Deed, st.sampled_from((*LOOKS, "pause")), st.integers(0, PARAMS - 1)), max_size=3)
plain_iterations = st.builds(
    Iteration,
    whole=st.just((True, True)),
    accumulates=st.booleans(),
    before=st.tuples(looks, looks),
    steps=st.just((True, True)),
    after=st.tuples(looks, looks),
    wish=st.none() | st.tuples(st.integers(1, 4), st.integers(0, 99), st.booleans()),
)


@given(job=st.lists(plain_iterations, min_size=2, max_size=4), seed=seeds, failing=st.integers(0, 40))
@settings(max_examples=60)
def test_after_an_error_no_rank_waits_and_each_parameter_is_of_one_of_two_steps(
    ranks: Interleaving, job: list[Iteration], seed: int, failing: int
) -> None:
    after = [[oracle.params for oracle in expected(job[:count], False)] for count in range(len(job) + 1)]
    for rank, found in enumerate(ranks.run(seed, job, Terms(), failing=failing)):
        made = []
        for place, value in enumerate(found.last):
            made.append([count for count, params in enumerate(after) if torch.equal(params[rank][place], value)])
            assert made[-1], "a parameter of no step"
        assert max(map(max, made)) <= found.begun
        assert max(map(max, made)) - min(map(max, made)) <= 1
        if not found.error:
            same(found.last, after[-1][rank])


class RankOnProbation(Rank):
    """Rank whose first steps that could leave pending updates wait for them."""

    rounds_type = ModuleRounds


def counted_by(wire: RankWire, job: Sequence[Iteration], terms: Terms) -> int:
    """Run the job on one rank. Return the number of iterations whose times count."""
    try:
        rank = RankOnProbation(wire, job, terms.varies, terms.arranges)
        rank.run()
        count = len(rank.rounds.pace.take_iterations())
        rank.rounds.flush()
        return count
    finally:
        forget()


def test_iterations_that_wait_only_to_learn_a_programs_ways_do_not_count() -> None:
    reads_all = [Deed("gradient", place) for place in range(PARAMS)]
    job = [
        Iteration((True, True), False, (before, before), (True, True), ([], []), None)
        for before in [reads_all] * 5 + [[]] * 4
    ]
    with Interleaving(RANKS, counted_by) as ranks:
        counts = ranks.run(0, job, Terms())
    assert counts == [len(job) - 1 - WARM_UP - STEPS] * RANKS, "the last one never ends"
