"""Forward passes are traced in a job's first iterations: what the agent finds, and the bits of a plain optimizer."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch.nn.modules import module as torch_module

from prophet_byteps.cutting import CutBoard
from prophet_byteps.torch import front_end
from prophet_byteps.tracing import NOTHING, TraceBoard
from prophet_papers.tictac import TicTac
from prophet_scheduler.core.cut import MOST_BLOCK_BYTES, Cut
from prophet_scheduler.core.graph import Graph
from prophet_scheduler.core.profile import GradientProfile, Profile
from prophet_scheduler.frontends.torch import awaited
from prophet_scheduler.frontends.torch.trace import PASSED_OVER, TRACED
from support.torch_network import Network, Twins, train, twins_of

LAST = 1 + PASSED_OVER + TRACED
"""The step in which the trace ends: it begins with the first gradient, of an iteration whose forward pass is over."""


class Job:
    """A front end whose policy plans with a trace. `graphs` are those that the policy was made of."""

    def __init__(self, network: Network, make: Callable[[Graph], TicTac] | None = TicTac, fusion: bool = False) -> None:
        self.graphs: list[Graph] = []
        cuts = CutBoard(Cut.uniform(MOST_BLOCK_BYTES))

        def keep(graph: Graph) -> TicTac:
            assert make is not None
            self.graphs.append(graph)
            return make(graph)

        self.board = cuts.trace = TraceBoard("tictac", keep if make is not None else None)
        front_end.install(network, fusion, board=cuts)


def hooks() -> tuple[int, int]:
    return len(torch_module._global_forward_pre_hooks), len(awaited._before)


def both(network: Network, steps: int) -> Twins:
    """Return twins that Adam has trained for so many steps."""
    twins = twins_of(network, lambda params: torch.optim.Adam(params, 1e-2))
    twins.train(steps=steps)
    return twins


def test_no_update_outlasts_its_step_while_it_lasts_and_the_bits_stay(any_order: Network) -> None:
    before = hooks()
    job = Job(any_order)
    twins = both(any_order, LAST - 1)
    assert not any_order.flying and job.board.found is NOTHING
    assert hooks() == (before[0] + 1, before[1] + 1)
    twins.train(first=LAST - 1, steps=1)
    assert any_order.flying, "the last forward pass was traced"
    assert job.board.found.policy is not None and hooks() == before
    twins.train(first=LAST, steps=3)
    assert twins.alike()


@pytest.mark.parametrize("fusion", [False, True])
def test_the_graph_is_of_what_travels(network: Network, fusion: bool) -> None:
    job = Job(network, fusion=fusion)
    blocks = both(network, LAST).optimizer._prophet._keyed.arena.blocks
    (graph,) = job.graphs
    assert [(transfer.name, transfer.size_bytes) for transfer in graph.transfers] == [
        (f"gradient{block.id}", block.data.nbytes) for block in blocks
    ]
    assert set(job.board.found.forward_s) == {block.id for block in blocks}
    # What the profiler learns is named so.
    rows = tuple(GradientProfile(f"gradient{block.id}", block.data.nbytes, 1.0) for block in blocks)
    profile = Profile("learned", rows, tuple(block.id for block in blocks))
    policy = job.board.found.policy
    assert isinstance(policy, TicTac) and set(policy.order(profile, None)) == set(profile.ids)


def test_a_policy_that_takes_no_graph_has_the_times(network: Network) -> None:
    job = Job(network, make=None)
    blocks = both(network, LAST).optimizer._prophet._keyed.arena.blocks
    assert job.board.found.policy is None
    assert set(job.board.found.forward_s) == {block.id for block in blocks}


def test_a_job_with_several_optimizers_has_no_graph(network: Network, caplog: pytest.LogCaptureFixture) -> None:
    job = Job(network)
    both(network, LAST)
    assert job.board.found is not NOTHING
    both(network, 1)
    assert job.board.found is NOTHING
    before = hooks()
    both(network, LAST)
    assert hooks() == before
    assert caplog.messages == [
        "Prophet: has no trace of this model: the job has several optimizers; tictac assumes its layers run one after "
        "another"
    ]


def test_wrapping_a_second_optimizer_ends_the_trace(network: Network) -> None:
    before = hooks()
    job = Job(network)
    _, _, model, optimizer = both(network, 3)
    both(network, 1)
    train(model, optimizer, first=3, steps=1)
    assert hooks() == before and job.board.found is NOTHING and not optimizer._prophet._keyed.tracing


@pytest.mark.parametrize("method", ["before_compilation", "keep_barrier"])
def test_compilation_or_use_out_of_sight_ends_the_trace(
    network: Network, method: str, caplog: pytest.LogCaptureFixture
) -> None:
    before = hooks()
    job = Job(network)
    twins = both(network, 4)
    getattr(twins.optimizer._prophet, method)()
    assert hooks() == before and job.board.closed and len(caplog.records) == 1
    twins.train(first=4, steps=LAST)
    assert job.board.found is NOTHING and twins.alike()


def test_a_policy_that_cannot_take_the_graph_is_one_warning(network: Network, caplog: pytest.LogCaptureFixture) -> None:
    def fail(graph: Graph) -> TicTac:
        raise KeyError("gradient0")

    job = Job(network, make=fail)
    twins = both(network, LAST + 1)
    assert job.board.found is NOTHING and twins.alike()
    (record,) = caplog.records
    assert "KeyError: 'gradient0'; tictac assumes its layers" in record.getMessage()
