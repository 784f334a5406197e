"""Assembly of one module's parts under Prophet: its process group, its rounds, and its agent.

Rule of this file: which parts a module gets, by its options, the policy, and its hardware. takeover.py decides whether
it gets any, alike on all ranks; the parts have their own files.
"""

from __future__ import annotations

import datetime
import functools
import os
import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore, Store

from prophet_ddp import ends
from prophet_ddp.agent import ModuleAgent, WatchingAgent
from prophet_ddp.arena import DdpArena
from prophet_ddp.control import Control
from prophet_ddp.events import EventLog
from prophet_ddp.issuer import Issuer, RankGroups
from prophet_ddp.layout import Channel, RoundTerms
from prophet_ddp.lost_ranks import LostRanks, ended_rank
from prophet_ddp.meeting import timeout_of
from prophet_ddp.rounds import ModuleRounds
from prophet_ddp.wide_gloo import probe, wide_group
from prophet_scheduler.core.cut import Borders, Cut, learning_cut
from prophet_scheduler.core.profile import Profile
from prophet_scheduler.core.settings import DEFAULT_PARTITION_BYTES, Settings
from prophet_scheduler.frontends.notices import warn_of_untraced
from prophet_scheduler.frontends.torch.streams import streams_of
from prophet_scheduler.policies import Blocks, get_definition, policy_from_environ
from prophet_scheduler.policies.algorithms.sequence import LEAST_AT_ONCE, MOST_AT_ONCE, learning_sizes

if TYPE_CHECKING:
    from prophet_ddp.nccl import OnGpu
    from prophet_scheduler.frontends.warm import WarmStart

CPU = torch.device("cpu")
LONG_DELAY_S = 10e-3
"""Duration of a lone operation, in seconds, above which the maximum are in flight from the first round on."""


class OnProcessors:
    """Hardware of a module whose parameters are in main memory. nccl.OnGpu is that of a module on a GPU."""

    tried = True
    """True if jobs have been run on it. Otherwise features that were tried on processors alone stay off."""
    device = CPU
    closing = None
    """Function that releases what must end with the group; None if there is nothing."""
    arena = DdpArena
    """Function that makes the arena of a module."""
    streams = staticmethod(streams_of)
    """Function that returns the streams of the parameters on a device."""

    def new_group(self, group: dist.ProcessGroup, store: Store, timeout: datetime.timedelta) -> Any:
        """Make a process group of the ranks of `group`. All of them call it, and may meet in `store`."""
        meeting = PrefixStore("gloo", store)
        return wide_group(meeting, group.rank(), group.size(), timeout, functools.partial(ended_rank, group))

    connect = staticmethod(probe)
    """Function that returns once all ranks have connected to such a group, so that none goes on, or even exits, while
    another still connects. It returns the duration of a lone operation; None if that is meaningless.
    """


def assemble(
    ddp: Any,
    told: Settings,
    group: dist.ProcessGroup,
    named: Sequence[tuple[str, torch.Tensor]],
    number: int,
    store: Store,
    heard: bool,
) -> ModuleRounds:
    """Return a module's rounds, with all their parts. All ranks of its `group` call it, and meet in `store`. `named`
    has the averaged parameters; `number` is the module's in this process. `heard`: this rank reads the events of the
    module's blocks.
    """
    hardware = _hardware_of(ddp)
    timeout = timeout_of(group, hardware.device)
    ends.close_gone()
    members = dist.get_process_group_ranks(group)
    own = hardware.new_group(group, store, timeout)
    lost = LostRanks(store, members, group.rank())
    lost.say()
    alone = hardware.connect(own)  # Alike on all ranks.
    lost.look()
    log = EventLog(open=heard)

    def another(number: int) -> Any:
        made = hardware.new_group(group, PrefixStore(f"apart {number}", store), timeout)
        lost.say()
        return made

    issuer = Issuer(RankGroups(own, another, hardware.closing), log)
    ends.issuers.append(issuer)
    control = Control(issuer, group.rank(), group.size())
    channel = Channel(issuer, control, log, group.size(), lost.loss, lost.others, members, alone)
    adapts = told.partition_bytes is None and get_definition(told.policy).blocks is Blocks.ADAPTIVE
    whole = told.fusion and hardware.tried
    ours = whole and told.policy == "prophet"  # Other policies follow their papers.
    delay_s = alone.seconds if alone is not None else 0.0
    terms = RoundTerms(
        _first_cut(told, adapts, delay_s),
        first_at_once=MOST_AT_ONCE if delay_s > LONG_DELAY_S else LEAST_AT_ONCE,
        fusion=told.fusion,
        uses_vary=ddp.find_unused_parameters or ddp.static_graph,
        counted=ddp.static_graph,
        arranges=ours,
        divides=ours,
        in_place=ddp.gradient_as_bucket_view,
        adapts=adapts,
        may_leave=whole and adapts,
    )
    rounds = ModuleRounds(named, number, channel, terms, hardware)
    rounds.module = weakref.ref(ddp.module)
    if get_definition(told.policy).waits:
        rounds.wait_in_step()
    return rounds


def _hardware_of(ddp: Any) -> OnProcessors | OnGpu:
    # All averaged parameters are on one device: takeover.py has checked.
    device: torch.device = next(param.device for param in ddp.module.parameters() if param.requires_grad)
    if device == CPU:
        return OnProcessors()
    from prophet_ddp.nccl import OnGpu  # A job on processors needs none of it.

    return OnGpu(device)


def _first_cut(told: Settings, adapts: bool, delay_s: float) -> Callable[[Sequence[int]], Cut]:
    """Return the function that makes a job's first cut from the bytes of its gradients."""
    definition = get_definition(told.policy)
    if adapts:
        return lambda sizes: learning_cut(sum(sizes), learning_sizes(sum(sizes), delay_s))
    if definition.groups or (definition.blocks is Blocks.WHOLE and told.partition_bytes is None):
        return Borders.of_gradients
    size_bytes = told.partition_bytes or DEFAULT_PARTITION_BYTES
    return lambda sizes: Cut.uniform(size_bytes)


def deciding_agent(rounds: ModuleRounds, told: Settings) -> WatchingAgent:
    """Return the agent that decides for the module. Only the first rank of the module's group has it."""
    # Only one rank needs them.
    from prophet_ddp.grouping import GroupingAgent, WaitingAgent
    from prophet_scheduler.policies.algorithms.collective import ArrivalOrder, CollectivePolicy, ForwardOrder

    definition, terms, alone = get_definition(told.policy), rounds.terms, rounds.channel.alone
    if definition.traced or definition.of_graph is not None:
        from prophet_scheduler.frontends.torch.trace import ForwardTrace  # Few policies need it, on one rank only.

        params = [slot.param for slot in rounds.registered]
        rounds.trace = ForwardTrace(params, with_graph=definition.of_graph is not None)
    trace = rounds.trace
    partition_bytes = told.partition_bytes or DEFAULT_PARTITION_BYTES
    policy = policy_from_environ(told.policy, os.environ, partition_bytes)
    if definition.groups:
        return GroupingAgent(rounds, policy, trace, alone)
    if definition.of_graph is None or trace is None:
        own = told.policy == "prophet"
        chosen = CollectivePolicy(ForwardOrder(), ArrivalOrder()) if own else CollectivePolicy(policy)
        return ModuleAgent(rounds, chosen, told, terms.adapts, _warm_start(rounds, told), alone)

    def with_graph(rounds: ModuleRounds) -> ModuleAgent:
        layout = rounds.layout
        graph = trace.graph(layout.blocks_under(layout.cut)) if layout.cut is not None else None
        if graph is None:
            warn_of_untraced(told.policy, trace.why_not)
        ordered = policy_from_environ(told.policy, os.environ, partition_bytes, graph)
        return ModuleAgent(rounds, CollectivePolicy(ordered), told, terms.adapts, None, alone)

    return WaitingAgent(rounds, trace, with_graph)


def _warm_start(rounds: ModuleRounds, told: Settings) -> WarmStart:
    """Return the store of results kept from earlier runs of this job, for this module."""
    from prophet_scheduler.frontends.warm import WarmStart  # Only one rank needs it.

    where = {name: os.environ.get(name, "") for name in ("MASTER_ADDR", "GLOO_SOCKET_IFNAME", "LOCAL_WORLD_SIZE")}
    where |= {"engine": "ddp", "policy": told.policy, "fusion": str(told.fusion), "module": str(rounds.number)}
    where |= {"blocks": str(told.partition_bytes or "adaptive"), "ranks": str(list(rounds.channel.members))}
    return WarmStart(told.cache, where, rounds.terms.first_cut, profile_in(told))


@functools.cache
def profile_in(told: Settings) -> Profile | None:
    """Return the profile that the user supplies, or None. Raises UserError, with one line, for a bad file."""
    if told.profile_in is None:
        return None
    from prophet_scheduler.models.profiles import load_profile

    return load_profile(told.profile_in)
