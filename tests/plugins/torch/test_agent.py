"""The agent of a module: what it learns from events, and when it asks for another cut or another sequence."""

from __future__ import annotations

import gc
import threading
from pathlib import Path
from statistics import median
from types import SimpleNamespace
from typing import Any

import pytest

from prophet_ddp import agent as agent_module
from prophet_ddp.agent import Agents
from prophet_ddp.control import FOR_GOOD, SMALL_CUT, TORCH, TORCH_CUT, TWO_PHASES, WHOLE, Decision
from prophet_ddp.sequencing import profile_of
from prophet_scheduler.core.arena import completions_at, generations_at, profile_under
from prophet_scheduler.core.cut import Cut, blocks_of, learning_cut
from prophet_scheduler.core.network import Network, Probe
from prophet_scheduler.core.profile import GradientProfile, Profile
from prophet_scheduler.learn.barrier import LEAST_ALIKE
from prophet_scheduler.models import zoo
from prophet_scheduler.policies import get_policy
from prophet_scheduler.policies.algorithms.chooser import SIZES
from prophet_scheduler.policies.algorithms.collective import CollectivePolicy, ForwardOrder
from prophet_scheduler.policies.algorithms.sequence import (
    MOST_AT_ONCE,
    backward_order,
    iteration_s,
    make_sequence,
    operations_at_once,
    play_sequence,
)
from prophet_scheduler.policies.algorithms.stock import stock_iteration_s
from prophet_scheduler.session.kept import Kept
from support.profiles import resnet50
from support.virtual_ddp import (
    NETWORK,
    PROFILE,
    TOTAL,
    TUTORIAL,
    Bursts,
    Clipping,
    Distant,
    Job,
    Restless,
    module_agent,
    trained,
    trained_with_turns,
    warm_start,
)


def test_a_job_that_asks_for_norms_gets_two_phases() -> None:
    job = Clipping()
    agent = module_agent(job)
    whole_s = trained(job, agent, 3)
    trained(job, agent, 30)
    assert job.divided and not job.decision.together
    assert job.record.barrier and not job.record.waits.holds, "norms alone are waited for"
    assert trained(job, agent, 10) < whole_s
    measured = agent.session.estimates.monitor.network
    assert measured is not None and measured.bandwidth == pytest.approx(NETWORK.bandwidth, rel=0.05)
    assert agent.session.estimates.monitor.network == measured, "what two phases take says nothing of it"
    job.network = Network(NETWORK.bandwidth / 3, NETWORK.overhead_s)
    trained(job, agent, 20)
    assert job.divided, "it is as much better on a slower network"


@pytest.mark.parametrize("before", range(6))
def test_two_phases_need_not_wait_for_looks_at_other_sizes(before: int) -> None:
    job = Clipping()
    agent = module_agent(job)
    job.asks = False
    trained(job, agent, before)
    job.asks = True
    trained(job, agent, LEAST_ALIKE)
    assert job.divided


def test_a_job_that_asks_no_more_has_all_reduces_again() -> None:
    job = Clipping()
    agent = module_agent(job)
    trained(job, agent, 30)
    assert job.divided
    job.asks = False
    trained(job, agent, 20)
    assert not job.divided and job.decision.cut == job.cut


def test_one_gradient_that_is_nearly_all_takes_no_longer_than_all_reduced() -> None:
    gradients = [GradientProfile("small", 4096, 0.1, 0.01), GradientProfile("large", 20_000_000, 0.0, 0.2)]
    job = Clipping(profile=Profile("one", tuple(gradients)))
    agent = module_agent(job)
    trained(job, agent, 30)
    assert agent.decided
    assert trained(job, agent, 1) <= job.profile.backward_s + NETWORK.transfer_s(20_004_096) + 0.21 + 0.02


def test_with_more_ranks_all_own_as_much_of_it() -> None:
    gradients = [GradientProfile("small", 4096, 0.1, 0.01), GradientProfile("large", 20_000_000, 0.0, 0.2)]
    job: Any = Clipping(profile=Profile("one", tuple(gradients)))
    job.ranks = 4
    agent = module_agent(job)
    trained(job, agent, 30)
    assert job.divided and job.decision.at_once >= job.ranks - 1
    assert list(job.decision.order) == sorted(job.decision.order, reverse=True)
    assert list(job.decision.gathers) == sorted(job.decision.order)


def test_it_asks_for_a_cut_and_its_order_within_a_few_iterations() -> None:
    job = Job()
    agent = module_agent(job)
    first_s = trained(job, agent, 1)
    trained(job, agent, 6)
    assert agent.decided, "two to warm up, three for a profile, and the one in which the last of them ends"
    decision = job.control.decisions[0]
    blocks = profile_under(PROFILE, decision.cut)
    assert sorted(decision.order) == list(range(len(blocks.gradients)))
    assert trained(job, agent, 40) < first_s
    best = iteration_s(blocks, make_sequence(blocks, NETWORK, ForwardOrder().plan(blocks, NETWORK)))
    assert job.iterate() < best * 1.01


def test_a_cut_is_not_judged_by_what_it_took_in_another_sequence() -> None:
    job = Job()
    agent = module_agent(job)
    first = job.cut
    took_s: dict[Cut, float] = {}
    for _ in range(120):
        cut = job.cut
        took_s[cut] = min(trained(job, agent, 1), took_s.get(cut, float("inf")))
    assert len(took_s) > 1, "others were tried"
    assert job.cut == min(took_s, key=took_s.__getitem__) == first


def test_while_it_learns_a_job_pays_little_for_messages() -> None:
    """Messages cost two milliseconds each, as over gloo at 2.5 Gbit/s."""
    profile = resnet50(100_000_000, backward_s=0.2, forward_s=0.1)
    began_s, total_s = [], []
    for cut in (None, learning_cut(profile.total_bytes)):
        job = Job(Network(312.5e6, 2e-3), cut, profile)
        agent = module_agent(job)
        began_s.append(trained(job, agent, 1))
        trained(job, agent, 39)
        total_s.append(job.now_s)
    assert began_s[0] < 0.6 * began_s[1]
    assert total_s[0] < total_s[1]


def test_where_iterations_wait_for_all_blocks_go_as_they_are_generated_until_they_do_not() -> None:
    """A job comes to clip by the norm of all gradients: from a cut and a sequence for priority, and back."""
    job = Job()
    agent = module_agent(job)
    trained(job, agent, 40)
    urgent_s = job.iterate()
    job.clips = True
    before_s = job.iterate()
    after_s = trained(job, agent, 40)
    assert job.order == backward_order(len(job.order))
    assert after_s < before_s
    best_s = min(
        iteration_s(blocks, play_sequence(blocks, NETWORK, backward_order(len(blocks.gradients))), barrier=True)
        for blocks in (profile_under(PROFILE, Cut.uniform(size)) for size in SIZES)
    )
    assert after_s < best_s * 1.01
    job.clips = False
    trained(job, agent, 40)
    assert job.iterate() <= 1.01 * urgent_s
    assert job.order != backward_order(len(job.order))


def test_a_policy_by_another_name_keeps_its_order_where_iterations_wait() -> None:
    job = Job(cut=Cut.uniform(1 << 20))
    agent = module_agent(job, CollectivePolicy(get_policy("p3")), adapts=False)
    trained(job, agent, 40)
    before = job.order
    job.clips = True
    trained(job, agent, 40)
    assert job.order == before != backward_order(len(before))


@pytest.mark.parametrize("seed", range(2))
def test_a_job_of_milliseconds_is_torchs_where_that_is_faster(seed: int) -> None:
    """Torch's reducer takes three quarters of Prophet's time, and has the rest of the job within half a minute."""
    job = Restless(seed)
    job.turns = SimpleNamespace(possible=True, believed={})
    trained_with_turns(job, module_agent(job), until_s=130.0)
    assert job.control.turns[-1:] == [FOR_GOOD]


def test_torchs_reducer_has_small_buckets_where_these_are_the_faster() -> None:
    job = Restless(0)
    job.torch_s = {TORCH_CUT: 6e-3, SMALL_CUT: 4.2e-3}
    job.turns = SimpleNamespace(possible=True, believed={})
    trained_with_turns(job, module_agent(job), until_s=200.0)
    assert job.control.turns[-1:] == [FOR_GOOD] and job.control.cut == SMALL_CUT


def test_torchs_reducer_has_no_turn_where_it_would_be_far_slower() -> None:
    job = Job()
    job.turns = SimpleNamespace(possible=True, believed={})
    trained(job, module_agent(job), 60)
    assert job.control.turns == []


def test_a_job_that_asks_for_norms_may_have_torchs_reducer_too_after_its_first_rounds() -> None:
    job = Clipping()
    job.turns = SimpleNamespace(possible=True, believed={})
    agent = module_agent(job)
    job.pace.ended = 0
    trained(job, agent, 15)
    assert TWO_PHASES in agent._choosing.believed() and TORCH not in agent._choosing.believed()
    job.pace.ended = 20
    trained(job, agent, 15)
    assert {WHOLE, TWO_PHASES, TORCH} == agent._choosing.believed().keys()


def test_rounds_call_for_the_agent_until_nothing_better_is_looked_for() -> None:
    job = Job()
    agent = module_agent(job)
    called = []
    for _ in range(60):
        trained(job, agent, 1)
        called.append(job.pace.on_round is not None)
    assert called[0] and not called[-1]


def test_the_most_urgent_block_has_its_turn_when_it_is_there_however_fast_the_wire_would_be() -> None:
    """Blocks come back in bursts, between which the wire idles: by what they cost, the last one's turn would be 38 ms
    late."""
    network = Network(31.25e6, 0.0, 0.05)
    job = Bursts(network, zoo.profile("vgg19", total_bytes=TOTAL, backward_s=0.6, forward_s=0.3))
    agent = module_agent(job, adapts=False, alone=Probe(4 << 10, network.ack_delay_s))
    job._take(Cut.uniform(512 << 10), None)
    job.held = Decision(job.cut, job.order, at_once=4, unordered=True)
    trained(job, agent, 30)
    assert job.late_s <= network.transfer_s(512 << 10)
    as_they_cost = operations_at_once(network, 512 << 10, MOST_AT_ONCE)
    assert abs(job.decision.at_once - as_they_cost) <= 1, "and not as they come back"


@pytest.mark.parametrize("message_s", [0.0, 1e-3, 4e-3])
@pytest.mark.parametrize("delay_s", [0.0, 0.01, 0.04, 0.12, 0.2])
def test_it_is_safe_to_leave_on(delay_s: float, message_s: float) -> None:
    """A hundred iterations together take no longer than 101 of DDP's, however dear operations turn out."""
    network = Network(83e6, 0.5e-3, delay_s)
    job = Distant(network, TUTORIAL, message_s)
    agent = module_agent(job, alone=Probe(4 << 10, delay_s))
    trained(job, agent, 100)
    stock_s = stock_iteration_s(TUTORIAL, network, ranks=2) + 2 * message_s
    took_s = [seconds for _, seconds in job.had]
    assert sum(took_s) <= 101 * stock_s
    assert max(took_s) <= 2 * stock_s
    assert median(took_s[-20:]) <= stock_s


def test_a_cut_that_is_far_worse_than_predicted_is_had_once_and_not_again() -> None:
    """The processor is the bottleneck, and nothing says so before the cut is tried."""
    job = Distant(Network(31.25e6, 0.1e-3), resnet50(9_000_000, backward_s=0.05, forward_s=0.1), message_s=0.03)
    agent = module_agent(job)
    trained(job, agent, 100)
    first_s = job.had[0][1]
    bad = [cut for cut, seconds in job.had if seconds > 1.5 * first_s]
    assert len(bad) == len(set(bad)) <= 2
    assert job.had[-1][1] <= first_s


REVERSED = list(reversed(range(len(PROFILE.gradients))))
DECODER_FIRST = [*range(len(REVERSED) // 2, len(REVERSED)), *range(len(REVERSED) // 2)]


@pytest.mark.parametrize("registered", [REVERSED, DECODER_FIRST])
def test_a_module_that_registers_its_layers_in_another_order_has_the_sequence_that_forward_needs(
    registered: list[int],
) -> None:
    settled_s = []
    for order in (None, registered):
        job = Distant(NETWORK, PROFILE, registered=order)
        trained(job, module_agent(job), 80)
        settled_s.append(job.had[-1][1])
        if order is not None:
            agent = module_agent(job, CollectivePolicy(get_policy("p3")), adapts=False)
            assert not agent._sequencer._policy.learns_order
    assert settled_s[1] <= 1.03 * settled_s[0]


def test_nothing_is_wanted_before_anything_is_known() -> None:
    job = Job()
    agent = module_agent(job)
    assert agent.turn(job.now_s)
    trained(job, agent, 1)
    assert job.control.decisions == []
    assert not agent.decided


def test_where_nothing_changes_nothing_more_is_wanted() -> None:
    job = Job()
    agent = module_agent(job)
    trained(job, agent, 80)
    wanted = len(job.control.decisions)
    trained(job, agent, 60)
    assert len(job.control.decisions) <= wanted + 2, "one more look at the next best, and back"
    assert wanted <= 12


def test_the_next_start_begins_where_the_last_one_ended(tmp_path: Path) -> None:
    network = Network(312.5e6, 2e-3)
    profile = resnet50(100_000_000, backward_s=0.2, forward_s=0.1)
    job = Job(network, profile=profile)
    agent = module_agent(job, warm=warm_start(tmp_path))
    settled_s = trained(job, agent, 40)
    settled = job.cut
    agent.leave()
    assert not job.record.began_warm
    again = Job(network, profile=profile)
    assert again.cut != settled
    other = module_agent(again, warm=warm_start(tmp_path))
    trained(again, other, 1)
    (decision,) = again.control.decisions
    assert decision.cut == settled and again.record.began_warm
    assert again.iterate() < settled_s * 1.02, "in its second iteration"
    trained(again, other, 40)
    assert again.cut == settled
    assert again.record.kept_was_dropped == ""


def test_what_was_kept_of_another_network_is_dropped(tmp_path: Path) -> None:
    job = Job(Network(312.5e6, 2e-3))
    agent = module_agent(job, warm=warm_start(tmp_path))
    trained(job, agent, 60)
    agent.leave()
    again = Job(Network(20e6, 1e-4))
    other = module_agent(again, warm=warm_start(tmp_path))
    took_s = trained(again, other, 60)
    assert again.record.kept_was_dropped.startswith("a block takes")
    cold = Job(Network(20e6, 1e-4))
    assert took_s < trained(cold, module_agent(cold), 60) * 1.01


def test_a_profile_that_the_user_names_gives_the_first_sequence(tmp_path: Path) -> None:
    kept = Kept(PROFILE, NETWORK, Cut.uniform(1 << 20))
    given = warm_start(tmp_path, PROFILE)
    given.first_cut([gradient.size_bytes for gradient in PROFILE.gradients])
    begins_with = given.take()
    assert begins_with is not None and begins_with.network is None and begins_with.cut is None
    assert begins_with.profile.total_bytes == kept.profile.total_bytes
    job = Job()
    agent = module_agent(job, warm=warm_start(tmp_path, PROFILE))
    trained(job, agent, 40)
    assert job.record.began_warm and agent.decided


def test_a_narrower_network_moves_the_sequence_or_the_cut() -> None:
    job = Job(Network(250e6, 1e-4))
    agent = module_agent(job)
    trained(job, agent, 80)
    before = job.control.decisions[-1]
    job.network = Network(20e6, 1e-4)
    trained(job, agent, 60)
    after = job.control.decisions[-1]
    assert after != before
    blocks = profile_under(PROFILE, after.cut)
    stale = profile_under(PROFILE, before.cut)
    assert iteration_s(blocks, play_sequence(blocks, job.network, after.order)) <= iteration_s(
        stale, play_sequence(stale, job.network, before.order)
    )


def test_a_cut_that_is_given_stays_and_its_order_is_learned() -> None:
    cut = Cut.uniform(1 << 20)
    job = Job(cut=cut)
    first_s = job.iterate()
    agent = module_agent(job, CollectivePolicy(get_policy("p3")), adapts=False)
    last_s = trained(job, agent, 40)
    assert {decision.cut for decision in job.control.decisions} == {cut}
    assert last_s < first_s


def test_it_does_not_keep_a_module_that_is_gone() -> None:
    job = Job()
    agent = module_agent(job)
    now_s = job.now_s
    assert agent.turn(now_s)
    del job
    gc.collect()
    assert not agent.turn(now_s + 1)


def test_a_block_is_complete_when_the_last_of_its_parts_is_generated() -> None:
    learned = Profile(
        "learned",
        (GradientProfile("c", 4096, 0.4), GradientProfile("b", 4096, 0.2), GradientProfile("a", 8192, 0.1)),
        (3, 2, 0),
    )
    assert completions_at(learned, [0, 1, 2, 3]) == [0.1, 0.1, 0.2, 0.4]
    assert completions_at(learned, [0]) == [0.4]
    assert completions_at(learned, [0, 2]) == [0.1, 0.4]
    seen = profile_of(blocks_of([16384], [0], Cut.uniform(8192)), learned, {0: 1, 2: 0})
    assert seen.ids == (2, 0)
    assert [gradient.generation_s for gradient in seen.gradients] == [0.4, 0.1]


def test_blocks_are_generated_when_their_places_are() -> None:
    coarse = Profile(
        "learned",
        (GradientProfile("a", 8192, 0.3, 0.2), GradientProfile("b", 4096, 0.1, 0.1)),
        (0, 2),
    )
    seen = profile_of(blocks_of([12288], [0], Cut.uniform(4096)), coarse)
    assert seen.ids == (0, 1, 2)
    assert [gradient.generation_s for gradient in seen.gradients] == [0.3, 0.3, 0.1]
    assert [gradient.forward_s for gradient in seen.gradients] == pytest.approx([0.1, 0.1, 0.1])
    assert generations_at(coarse, [0, 1, 2]) == [0.3, 0.3, 0.1]
    assert seen.total_bytes == coarse.total_bytes


class Failing:
    """A module's agent that raises in its first turn."""

    decided = False

    def __init__(self) -> None:
        self.ended = threading.Event()

    def turn(self, now: float) -> bool:
        raise ValueError("made for a test")

    def end(self) -> None:
        self.ended.set()


def test_a_failure_is_one_warning_and_nobody_has_turns_any_more(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(agent_module, "SEEKING_S", 0.0)
    monkeypatch.setattr("atexit.register", lambda *_: None)
    agents: Any = Agents()
    first, second = Failing(), Failing()
    agents.add(first)
    assert first.ended.wait(30)
    agents.add(second)
    assert second.ended.is_set()
    agents._end()
    assert [record.getMessage() for record in caplog.records] == [
        "Prophet: has stopped learning: ValueError: made for a test; blocks and their order stay as they are"
    ]


def test_modules_that_are_gone_have_no_more_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agent_module, "SEEKING_S", 0.0)
    monkeypatch.setattr("atexit.register", lambda *_: None)
    turns: list[str] = []
    left: list[str] = []
    over = threading.Event()

    class Turning:
        decided = False

        def __init__(self, name: str, most: int) -> None:
            self.name, self.most = name, most

        def turn(self, now: float) -> bool:
            turns.append(self.name)
            if turns.count("stays") >= 5:
                over.set()
            return turns.count(self.name) < self.most

        def leave(self) -> None:
            left.append(self.name)

    agents: Any = Agents()
    agents.add(Turning("gone", 2))
    agents.add(Turning("stays", 1 << 30))
    assert over.wait(30)
    agents._end()
    assert turns.count("gone") == 2
    assert left == ["gone", "stays"], "each is told when its module or the process ends"
