"""One rank of a job that trains the same model under one policy after another, and without Prophet to begin with.

Run as `policies_job.py STORE RANK RANKS OUT POLICY...`, with PROPHET_SCHEDULER set so that Prophet is loaded. In each
run the first rank wants the policy's own decision after the first round, made from a profile and a network that are
given, so that the cut changes in the middle of it. OUT gets what the run came to, a line of JSON for each.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from prophet.core.cut import Borders, blocks_of
from prophet.core.network import Network
from prophet.core.profile import GradientProfile, Profile
from prophet.policies import get_definition, get_policy
from prophet.policies.algorithms.collective import CollectivePolicy
from prophet.policies.algorithms.collective_groups import make_grouping
from prophet.policies.algorithms.sequence import make_sequence
from prophet_ddp import takeover
from prophet_ddp.control import Decision
from prophet_ddp.rounds import Rounds

WIDTH = 1040
"""A matrix of so many rows and columns is larger than the largest block that a parameter server takes."""
ROUNDS = 11
"""The first decision is read after round 4, and one more could be after round 8."""
NETWORK = Network(bandwidth=31.25e6, overhead_s=0.002)


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


def decision_of(name: str, rounds: Rounds) -> Decision:
    """What the policy would have with gradients that come in four steps."""
    sizes, kinds = rounds.layout
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


def train(name: str, rank: int) -> dict[str, Any]:
    """One run; of Prophet only where a policy is named."""
    os.environ["PROPHET_SCHEDULER"] = name
    takeover.settings.cache_clear()
    model = nn.parallel.DistributedDataParallel(Model()) if name else plain()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    noise = torch.Generator().manual_seed(10 + rank)
    said: dict[str, Any] = {"policy": name}
    issued: list[int] = []
    for number in range(ROUNDS):
        if name and number == ROUNDS - 1:
            _record(model.reducer.rounds, issued)  # type: ignore[union-attr,arg-type]
        loss = model(torch.rand(8, 20, generator=noise)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if name and number == 0:
            rounds: Rounds = model.reducer.rounds  # type: ignore[union-attr,assignment]
            if rank == 0:
                rounds.control.want(decision_of(name, rounds))
    if name:
        rounds.flush()
        wanted = decision_of(name, rounds)
        said["decided"] = rounds.decision == wanted
        said["wanted"] = [
            sum(rounds.blocks_under(wanted.cut)[place].size_bytes for place in places) for places in wanted.collectives
        ]
        said["issued"] = issued
        said["joined"] = sum(len(places) > 1 for places in wanted.collectives)
        said["waits"] = rounds.barrier
    digest = hashlib.sha256()
    for tensor in model.state_dict().values():
        digest.update(tensor.numpy().tobytes())
    for state in optimizer.state.values():
        digest.update(state["exp_avg"].numpy().tobytes())
    said["weights"] = digest.hexdigest()
    return said


def _record(rounds: Rounds, issued: list[int]) -> None:
    """From the next round on all-reduces leave their bytes."""
    rounds.flush()
    issuer: Any = rounds._issuer
    original = issuer.all_reduce

    def all_reduce(tensor: torch.Tensor) -> Any:
        issued.append(tensor.nbytes)
        return original(tensor)

    issuer.all_reduce = all_reduce


def plain() -> nn.Module:
    """DistributedDataParallel as it is."""
    told, takeover.settings = takeover.settings, lambda: None  # type: ignore[assignment]
    try:
        return nn.parallel.DistributedDataParallel(Model())
    finally:
        takeover.settings = told


def main(store: str, rank: int, ranks: int, out: Path, names: Sequence[str]) -> None:
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=ranks)
    torch.set_num_threads(1)
    with out.open("w", encoding="utf-8") as file:
        for name in ("", *names):
            file.write(json.dumps(train(name, rank)) + "\n")
            file.flush()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4]), sys.argv[5:])
