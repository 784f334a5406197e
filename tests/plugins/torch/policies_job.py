"""One rank of a job that trains the same model under one policy after another, and without Prophet.

Run as `policies_job.py STORE RANK RANKS OUT POLICY...`, with PROPHET_SCHEDULER set so that Prophet is loaded. In each
run the first rank wants the policy's own decision after the first round, made from a profile and a network that are
given, so that the cut changes in the middle of it. `learn:POLICY` decides by itself, from what it measures, and
`half:POLICY` uses torch's hook that sends half precision. With `vary:POLICY` not every rank uses all parameters in each
round, and two rounds make a step. OUT gets the result of each run, a line of JSON.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import json
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook

from prophet_ddp import agent, takeover
from prophet_ddp.agent import Agents, WatchingAgent
from prophet_ddp.control import Decision
from prophet_ddp.rounds import ModuleRounds
from prophet_scheduler.core.cut import Borders, blocks_of
from prophet_scheduler.core.network import Network
from prophet_scheduler.core.profile import GradientProfile, Profile
from prophet_scheduler.policies import get_definition, get_policy
from prophet_scheduler.policies.algorithms.collective import CollectivePolicy
from prophet_scheduler.policies.algorithms.collective_groups import make_grouping
from prophet_scheduler.policies.algorithms.sequence import make_sequence

WIDTH = 1040
"""A matrix with this many rows and columns is larger than the largest block that a parameter server takes."""
ROUNDS = 14
"""The first decision is read after round 4, and forward passes are no longer traced by then."""
NETWORK = Network(bandwidth=31.25e6, overhead_s=0.002)
MOST_ROUNDS = 20_000
"""Number of rounds by which a policy has decided, on any machine."""
ROUNDS_AFTER = 6
VARYING_ROUNDS = 24


class Model(nn.Module):
    """Small and large gradients, of two kinds."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.first = nn.Sequential(nn.Linear(20, WIDTH), nn.BatchNorm1d(WIDTH), nn.Linear(WIDTH, WIDTH), nn.Tanh())
        self.exact = nn.Linear(WIDTH, 30).double()
        self.last = nn.Sequential(nn.Linear(30, 400), nn.LayerNorm(400), nn.Linear(400, 300), nn.Linear(300, 1))

    def forward(self, flow: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.last(self.exact(self.first(flow).double()).float())
        return result


class Varying(nn.Module):
    """Ranks take turns in using a part."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(2)
        self.first, self.some, self.never, self.last = (nn.Linear(20, 20) for _ in range(4))

    def forward(self, flow: torch.Tensor, use: bool) -> torch.Tensor:
        flow = self.first(flow)
        result: torch.Tensor = self.last(self.some(flow) if use else flow)
        return result


def decision_of(name: str, rounds: ModuleRounds) -> Decision:
    """Return the policy's decision for gradients that come in four steps."""
    sizes, kinds = rounds.layout.sizes, rounds.layout.kinds
    whole = blocks_of(sizes, kinds, Borders.of_gradients(sizes))
    steps = [4 - 4 * place // len(sizes) for place in range(len(sizes))]
    rows = tuple(
        GradientProfile(f"g{place}", size, 0.1 * step, 0.01)
        for place, (size, step) in enumerate(zip(sizes, steps, strict=True))
    )
    profile = Profile("given", rows, tuple(block.id for block in whole))
    policy = get_policy(name)
    if get_definition(name).groups:
        made = make_grouping(policy, profile, NETWORK, 0.001, sizes, kinds)
        together = tuple(len(places) for places in made.collectives)
        return Decision(made.cut, tuple(itertools.chain(*made.collectives)), together)
    order = make_sequence(profile, NETWORK, CollectivePolicy(policy).plan(profile, NETWORK, 0.001)).order
    return Decision(Borders.of_gradients(sizes), order)


class _Nobody(Agents):
    """Looks after no module."""

    def add(self, agent: WatchingAgent) -> None:
        pass


def _switch(name: str, learns: bool) -> None:
    made = Agents() if learns else _Nobody()
    for module in (agent, takeover):
        vars(module)["agents"] = made
    os.environ["PROPHET_SCHEDULER"] = name or "fifo"  # Prophet is there, and takes over nothing.
    takeover.settings.cache_clear()


def _without_prophet(made: Callable[[], nn.Module]) -> nn.Module:
    """Make a module of DistributedDataParallel as it is."""
    take_over, takeover.take_over = takeover.take_over, lambda ddp, told, synced=True: None
    try:
        return made()
    finally:
        takeover.take_over = take_over


def _digest(tensors: Iterable[torch.Tensor]) -> str:
    digest = hashlib.sha256()
    for tensor in tensors:
        digest.update(tensor.numpy().tobytes())
    return digest.hexdigest()


class Run:
    """Run of the job, under Prophet only if a policy is named."""

    def __init__(self, name: str, rank: int, learns: bool = False, half: bool = False) -> None:
        _switch(name, learns)
        made = functools.partial(nn.parallel.DistributedDataParallel, Model())
        self.model = made() if name else _without_prophet(made)
        if half:
            self.model.register_comm_hook(None, fp16_compress_hook)  # type: ignore[operator]
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=1e-3)
        self.noise = torch.Generator().manual_seed(10 + rank)

    @property
    def rounds(self) -> ModuleRounds:
        found: ModuleRounds = self.model.reducer.rounds  # type: ignore[union-attr,assignment]
        return found

    def step(self) -> None:
        loss = self.model(torch.rand(8, 20, generator=self.noise)).square().mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()

    def weights(self) -> str:
        """A digest of the weights, the buffers and the optimizer's state."""
        states = (state["exp_avg"] for state in self.optimizer.state.values())
        return _digest([*self.model.state_dict().values(), *states])


def given(name: str, rank: int, half: bool = False) -> dict[str, Any]:
    """A run with the decision that is given."""
    run = Run(name, rank, half=half)
    issued: list[int] = []
    for number in range(ROUNDS):
        if number == ROUNDS - 1:
            _record(run.rounds, issued)
        run.step()
        if number == 0 and rank == 0:
            run.rounds.channel.control.want(decision_of(name, run.rounds))
    rounds = run.rounds
    rounds.flush()
    wanted = decision_of(name, rounds)
    return {
        "policy": f"half:{name}" if half else name,
        "weights": run.weights(),
        "without": without(rank, ROUNDS, half)["weights"],
        "decided": rounds.layout.decision == wanted,
        "wanted": [
            sum(rounds.layout.blocks_under(wanted.cut)[place].size_bytes for place in places)
            for places in wanted.collectives
        ],
        "issued": issued,
        "elements": sum(slot.param.numel() for slot in rounds.slots),
        "joined": sum(len(places) > 1 for places in wanted.collectives),
        "waits": rounds.barrier,
        "divides": rounds.layout.may_divide,
    }


def learned(name: str, rank: int) -> dict[str, Any]:
    """A run in which the policy decides by itself. Ranks come to it in the same round."""
    run = Run(name, rank, learns=True)
    run.step()
    first = run.rounds.layout.decision
    count = 1
    while run.rounds.layout.decision == first and count < MOST_ROUNDS:
        run.step()
        count += 1
    for _ in range(ROUNDS_AFTER):
        run.step()
    decision = run.rounds.layout.decision
    said = {
        "policy": f"learn:{name}",
        "rounds": count,
        "changed": decision != first,
        "collectives": len(decision.collectives) if decision is not None else 0,
        "gradients": len(run.rounds.slots),
        "weights": run.weights(),
    }
    return {**said, "without": without(rank, count + ROUNDS_AFTER)["weights"]}


@functools.cache  # no policy has a part in it
def without(rank: int, count: int, half: bool = False) -> dict[str, Any]:
    """Run `count` rounds of DistributedDataParallel as it is."""
    run = Run("", rank, half=half)
    for _ in range(count):
        run.step()
    return {"policy": "", "weights": run.weights()}


def varying(name: str, rank: int) -> dict[str, Any]:
    """A run in which gradients are missing, with steps after one round and after two."""
    weights = []
    for own in (name, ""):
        _switch(own, learns=True)
        made = functools.partial(nn.parallel.DistributedDataParallel, Varying(), find_unused_parameters=True)
        model = made() if own else _without_prophet(made)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        noise = torch.Generator().manual_seed(20 + rank)
        for number in range(VARYING_ROUNDS):
            model(torch.rand(4, 20, generator=noise), (number // 2 + rank) % 3 > 0).square().mean().backward()
            if number % 5 not in (1, 3):
                optimizer.step()
                optimizer.zero_grad(set_to_none=number % 2 == 0)
        weights.append(_digest(model.state_dict().values()))
    return {"policy": f"vary:{name}", "weights": weights[0], "without": weights[1]}


def _record(rounds: ModuleRounds, issued: list[int]) -> None:
    """From the next round on, all-reduces note their bytes in `issued`."""
    rounds.flush()
    issuer: Any = rounds.channel.issuer
    original = issuer.groups.all_reduce

    def all_reduce(tensor: torch.Tensor) -> Any:
        if tensor.dtype != torch.int64:  # A page is no gradient.
            issued.append(tensor.nbytes)
        return original(tensor)

    issuer.groups.all_reduce = all_reduce


RUNS: dict[str, Callable[[str, int], dict[str, Any]]] = {
    "": given,
    "half": functools.partial(given, half=True),
    "learn": learned,
    "vary": varying,
}


def main(store: str, rank: int, ranks: int, out: Path, names: Sequence[str]) -> None:
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=ranks)
    torch.set_num_threads(1)
    with out.open("w", encoding="utf-8") as file:
        for name in names:
            how, _, own = name.rpartition(":")
            said = RUNS[how](own, rank)
            file.write(json.dumps(said) + "\n")
            file.flush()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4]), sys.argv[5:])
