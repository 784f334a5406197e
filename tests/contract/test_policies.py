"""Duties of every policy: plans at any stage of knowledge, for the given ids, and options that can be set."""

from __future__ import annotations

import copy
import dataclasses
import itertools
import pkgutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import prophet_papers
from prophet_scheduler import policies
from prophet_scheduler.core import settings
from prophet_scheduler.core.cut import Borders, blocks_of
from prophet_scheduler.core.errors import UserError
from prophet_scheduler.core.network import Network
from prophet_scheduler.core.plan import Plan, QueuePlan
from prophet_scheduler.core.policy import Policy
from prophet_scheduler.core.profile import GradientProfile, Profile
from prophet_scheduler.policies import Option, get_definition, get_policy, policy_from_environ, policy_names
from prophet_scheduler.policies.algorithms.collective import CollectivePolicy
from prophet_scheduler.policies.algorithms.collective_groups import make_grouping
from prophet_scheduler.policies.algorithms.sequence import make_sequence

NETWORK = Network(bandwidth=31.25e6, overhead_s=0.0005, ack_delay_s=0.004)
STEPS, STEP = 6, 4
"""Number of steps, and of gradients in each step: small ones and a large one."""
GRADIENTS = tuple(
    GradientProfile(f"g{step * STEP + place}", 4_000_000 if place == 2 else 4_096, 0.5 - 0.08 * step, 0.002)
    for step in range(STEPS)
    for place in range(STEP)
)
PROFILE = Profile("steps", GRADIENTS)
IDS = tuple(1000 + 7 * place for place in range(len(GRADIENTS)))
"""Ids with holes, as a second optimizer of a process would have."""
STAGES = {"nothing": (None, None), "profile": (PROFILE, None), "both": (PROFILE, NETWORK)}

OPTIONS = [(name, option) for name in policy_names() for option in get_definition(name).all_options]

each_policy = pytest.mark.parametrize("name", policy_names())
each_option = pytest.mark.parametrize(("name", "option"), OPTIONS, ids=[f"{n}.{o.name}" for n, o in OPTIONS])


def plan_of(policy: Policy, stage: str, ids: tuple[int, ...] = ()) -> Plan:
    profile, network = STAGES[stage]
    return policy.plan(dataclasses.replace(profile, ids=ids) if profile else None, network, jitter_s=0.001)


def renamed(plan: Plan) -> Plan:
    """Return the plan for the same gradients under IDS."""

    def half(queue: QueuePlan) -> QueuePlan:
        order = None if queue.order is None else {IDS[gradient]: rank for gradient, rank in queue.order.items()}
        return dataclasses.replace(
            queue, order=order, groups={IDS[gradient]: group for gradient, group in queue.groups.items()}
        )

    return dataclasses.replace(
        plan,
        push=half(plan.push),
        pull=half(plan.pull),
        generation_s={IDS[gradient]: time_s for gradient, time_s in plan.generation_s.items()},
        size_bytes={IDS[gradient]: size for gradient, size in plan.size_bytes.items()},
    )


@pytest.mark.parametrize("stage", STAGES)
@each_policy
def test_it_plans_at_every_stage_of_knowledge(name: str, stage: str) -> None:
    plan = plan_of(get_policy(name), stage)
    assert plan.policy == name
    for half in (plan.push, plan.pull):
        assert half.credit is None or half.credit >= 1
        assert [deadline.time_s for deadline in half.deadlines] == sorted(d.time_s for d in half.deadlines)
        assert set(half.groups) <= set(plan.size_bytes), "the queue must know how long a group takes"
        if half.deadlines:
            assert plan.network is not None and plan.generation_s, "no prediction without these"
    if stage == "nothing":
        assert not (plan.push.deadlines or plan.push.groups or plan.generation_s or plan.size_bytes)
    elif plan.push.order:
        assert set(plan.push.order) == set(PROFILE.gradient_ids), "every gradient has its place"


@pytest.mark.parametrize("stage", ["profile", "both"])
@each_policy
def test_it_plans_for_the_ids_that_the_profile_has(name: str, stage: str) -> None:
    assert plan_of(get_policy(name), stage, IDS) == renamed(plan_of(get_policy(name), stage))


@each_policy
def test_a_plan_follows_from_the_arguments_alone(name: str) -> None:
    """The learner keeps the last plan to compare with, and the simulator must do what a job does."""
    policy = get_policy(name)
    first = plan_of(policy, "both")
    kept = copy.deepcopy(first)
    plan_of(policy, "nothing")
    plan_of(policy, "both", IDS)
    assert first == kept, "a plan that was given away has changed"
    assert plan_of(policy, "both") == plan_of(get_policy(name), "both") == kept


@each_policy
def test_a_name_begins_with_that_of_its_file(name: str) -> None:
    """The prefix lets the file be found without importing the others."""
    file = get_policy(name).__class__.__module__.rpartition(".")[2].replace("_", "-")
    assert f"{name}-".startswith(f"{file}-")


@each_policy
def test_its_definition_says_what_people_need(name: str) -> None:
    definition = get_definition(name)
    assert definition.summary and "\n" not in definition.summary and not definition.summary.endswith(".")
    assert not definition.page or (Path(__file__).parents[2] / "docs" / definition.page).is_file()


@each_policy
def test_it_says_whether_its_plans_have_groups(name: str) -> None:
    """An engine of collectives asks before the first plan."""
    assert bool(plan_of(get_policy(name), "both").push.groups) == get_definition(name).groups


@each_policy
def test_it_runs_on_collectives_or_says_in_a_line_why_not(name: str) -> None:
    definition = get_definition(name)
    if definition.servers_only:
        assert "\n" not in definition.servers_only and not definition.servers_only.endswith(".")
        assert not definition.groups and not definition.waits, "these say how it runs there"
        return
    sizes = [gradient.size_bytes for gradient in GRADIENTS]
    whole = blocks_of(sizes, [0] * len(sizes), Borders.of_gradients(sizes))
    profile = dataclasses.replace(PROFILE, ids=tuple(block.id for block in whole))
    if definition.groups:
        made = make_grouping(get_policy(name), profile, NETWORK, 0.001, sizes, [0] * len(sizes))
        order = tuple(itertools.chain(*made.collectives))
    else:
        plan = CollectivePolicy(get_policy(name)).plan(profile, NETWORK, 0.001)
        order = make_sequence(profile, NETWORK, plan).order
    assert sorted(order) == list(range(len(order))) and len(order) > 1


def test_only_the_file_of_the_policy_is_imported() -> None:
    program = Path(__file__).with_name("policy_modules.py")
    command = [sys.executable, str(program), *policy_names()]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=240)
    imported = {name: files for name, *files in (line.split() for line in done.stdout.splitlines())}
    assert list(imported) == policy_names()
    files = {
        f"{package.__name__}.{module.name}"
        for package in (policies, prophet_papers)
        for module in pkgutil.iter_modules(package.__path__)
        if not module.ispkg
    }
    assert {name: len(loaded) for name, loaded in imported.items()} == dict.fromkeys(imported, 1)
    assert {file for loaded in imported.values() for file in loaded} == files, "a file without a policy"


assert OPTIONS, "there are options to look at"


@each_option
def test_an_option_that_is_left_out_has_its_default(name: str, option: Option) -> None:
    said = str(int(option.default)) if isinstance(option.default, bool) else str(option.default)
    left_out, set_to_it = policy_from_environ(name, {}), policy_from_environ(name, {option.variable: said})
    assert plan_of(left_out, "both") == plan_of(set_to_it, "both") == plan_of(get_policy(name), "both")


@each_option
def test_a_value_that_is_none_is_one_line_that_names_the_variable(name: str, option: Option) -> None:
    with pytest.raises(UserError, match=f"^{option.variable} is 'soon'; it must be [^\n]+$"):
        policy_from_environ(name, {option.variable: "soon"})
    if not isinstance(option.default, bool):
        with pytest.raises(UserError, match=f"^{option.variable} is '-1'; it must be a number of at least"):
            policy_from_environ(name, {option.variable: "-1"})


@each_option
def test_its_variable_is_nobody_elses(name: str, option: Option) -> None:
    general: dict[str, Any] = {value: key for key, value in vars(settings).items() if isinstance(value, str)}
    assert option.variable not in general
    assert option.help and not option.help.endswith(".")


@pytest.mark.parametrize(
    "name", ["oracle", "", "algorithms", "mg_wfbp", "tictac-tao", "../fifo", "prophet.prophet", "P3"]
)
def test_what_is_no_name_lists_those_that_are(name: str) -> None:
    with pytest.raises(UserError) as caught:
        get_policy(name)
    message = str(caught.value)
    assert message.startswith(f"unknown policy {name!r}; ")
    assert message.endswith(f"known policies are {', '.join(policy_names())}")
