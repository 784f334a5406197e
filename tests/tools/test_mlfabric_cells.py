"""MLfabric's cells: what their configs compare, what is kept, and the same cluster, job and sums simulated."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from prophet_mlfabric.studies.settings import COMPUTE, GBIT, NETWORK, Computations
from prophet_mlfabric.studies.tables import PAPER_TABLE_2
from prophet_mlfabric.studies.training import SgdProblem
from prophet_scheduler.core.errors import UserError
from prophet_scheduler.lab.config import Cell, load_experiment
from prophet_scheduler.lab.job_config import AsynchronousJob
from prophet_scheduler.lab.jobs.datasets import batches, digits
from prophet_scheduler.lab.jobs.pytorch.asynchronous import CLASSES, LOOKED_AT, Features, computing_s
from support.results import Session, cell, policy
from tools import mlfabric_cells, studies
from tools.mlfabric_cells import (
    CELLS,
    OURS,
    RELEASED,
    RING,
    DigitsTrainee,
    cluster_of,
    simulate_cell,
)

ROOT = Path(__file__).parents[2]
CONFIGS = ROOT / mlfabric_cells.CONFIGS
CONTENDERS = [RELEASED, OURS, "in-step", RING]


@pytest.mark.parametrize("name", CELLS)
def test_each_config_is_the_papers_cell(name: str) -> None:
    compute, network = name.split("-")
    experiment = load_experiment(CONFIGS / f"{name}.yaml")
    (place,) = experiment.cells
    job, mix = place.job, place.cluster.rate_mix
    assert isinstance(job, AsynchronousJob) and mix is not None
    stragglers, traffic = COMPUTE[compute.upper()], NETWORK[network.upper()]
    assert (job.slow_chance, job.slow_factor) == (stragglers.chance, stragglers.factor)
    wanted = {rate / (10 * GBIT): chance for rate, chance in zip(traffic.rates, traffic.chances, strict=True) if chance}
    assert dict(zip(mix.shares, mix.chances, strict=True)) == pytest.approx(
        {min(mix.shares, key=lambda share: abs(share - wanted_share)): c for wanted_share, c in wanted.items()}
    )
    assert sorted(mix.shares) == pytest.approx(sorted(wanted))
    assert mix.period_s == traffic.period_s
    assert [contender.name for contender in place.policies] == CONTENDERS
    engines = [contender.engine.name for contender in place.policies]
    assert engines[0] == engines[1] and len(set(engines)) == 3


def test_cells_are_measured_and_simulated_by_name(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    session = Session(cell(**dict.fromkeys(CONTENDERS, policy(1.0))))
    monkeypatch.setattr(studies, "run_session", session.run)
    monkeypatch.setattr(mlfabric_cells, "CONFIGS", CONFIGS)
    monkeypatch.setattr(mlfabric_cells, "CELLS", ("c1-n1", "c1-n2"))
    for _ in range(2):
        real = mlfabric_cells.measure(tmp_path, tmp_path)
        assert list(real["cells"]) == ["c1-n1", "c1-n2"]
        assert all(list(study.cells[0].policies) == CONTENDERS for study in real["cells"].values())
    assert session.ran == ["cell0", "cell0"], "what is there is not run again"
    monkeypatch.setattr(mlfabric_cells, "simulate_cell", lambda cell: cell.setting)
    monkeypatch.setattr(mlfabric_cells, "paper_cell", lambda compute, network, problem: (compute, network))
    simulated: Any = mlfabric_cells.simulate(tmp_path, tmp_path)
    assert list(simulated.cells) == ["c1-n1", "c1-n2"] and simulated.paper["c1-n2"] == ("C1", "N2")


def small(name: str = "c2-n3", **job: Any) -> Cell:
    """A config's cell with a small update, on links as much slower, and few iterations."""
    (cell,) = load_experiment(CONFIGS / f"{name}.yaml").cells
    changed = {"features": 64, "iterations": 6, "warmup": 1, "target_loss": 2.0, "learning_rate": 2.0, **job}
    link = cell.cluster.bandwidth
    rates = {node: None if rate is None else rate / 256 for node, rate in link.nodes.items()}
    slower = replace(link, default=None if link.default is None else link.default / 256, nodes=rates)
    cluster = cell.cluster.model_copy(update={"bandwidth": slower})
    return replace(cell, job=cell.job.model_copy(update=changed), cluster=cluster)


def asynchronous(cell: Cell) -> AsynchronousJob:
    assert isinstance(cell.job, AsynchronousJob)
    return cell.job


def test_rates_are_the_configs_draw_over_time() -> None:
    (cell,) = load_experiment(CONFIGS / "c1-n2.yaml").cells
    _, setting, rates = cluster_of(cell)
    mix = cell.cluster.rate_mix
    assert mix is not None
    for at_s, worker, share in mix.draw(cell.cluster.workers):
        up, down = rates.at(at_s + 0.1)
        assert up[worker] == down[worker] == pytest.approx(share * 25e6 / 8)
        assert up[setting.server] == 25e6 / 8
    assert setting.model_bytes == 655_360


def test_slow_computations_are_those_of_the_real_job() -> None:
    job, setting, _ = cluster_of(small())
    simulated = Computations(setting)
    for rank in range(setting.workers):
        real = computing_s(job.compute_s, job.slow_chance, job.slow_factor, job.seed, rank)
        assert [simulated.next_s(rank) for _ in range(60)] == [next(real) for _ in range(60)]


def test_an_update_is_torchs_step_on_the_same_samples() -> None:
    job = asynchronous(small())
    trainee = DigitsTrainee(job, 5)
    worker = 3
    data, features = digits(worker, 5), Features(job.features)
    model = nn.Linear(job.features, CLASSES, bias=False)
    nn.init.zeros_(model.weight)
    optimizer = torch.optim.SGD(model.parameters(), lr=job.learning_rate)
    order = batches(len(data.images), job.batch_size, job.seed + worker)
    for _ in range(3):
        chosen = torch.from_numpy(next(order))
        inputs = features.of(torch.from_numpy(data.images)[chosen])
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(inputs), torch.from_numpy(data.labels)[chosen]).backward()
        optimizer.step()
        update, norm = trainee.compute(worker, trainee.read())
        assert norm == pytest.approx(float(np.linalg.norm(update)))
        trainee.apply([update])
        assert np.allclose(trainee.read(), model.weight.detach().numpy().T, atol=1e-5)
    every = digits()
    with torch.no_grad():
        seen = features.of(torch.from_numpy(every.images[:LOOKED_AT]))
        loss = nn.functional.cross_entropy(model(seen), torch.from_numpy(every.labels[:LOOKED_AT]))
    trainee.begin(worker, trainee.read(), 1.0)
    assert trainee.convergence[worker].losses == pytest.approx([float(loss)], rel=1e-5)


def test_a_cell_has_what_a_real_one_has_and_one_config_gives_one_result() -> None:
    cell = small()
    simulated = simulate_cell(cell)
    assert simulated == simulate_cell(cell)
    assert list(simulated.contenders) == [RELEASED, OURS, RING]
    for name, result in simulated.contenders.items():
        assert result.update_s is not None and result.update_s > 0
        assert result.time_to_loss_s is not None
        counted = (result.sent or 0) + (result.dropped or 0)
        assert counted == (5 * 6 if name == OURS else 0)
    ours = simulated.contenders[OURS]
    assert ours.greatest_delay is not None and ours.greatest_delay <= 10
    assert (ours.uncoordinated, ours.applied_otherwise) == (0, 0)
    assert simulated.comparison.ring_s == pytest.approx(5 * (simulated.contenders[RING].update_s or 0), rel=0.3)


def test_a_loss_that_is_not_reached_has_no_time() -> None:
    result = simulate_cell(small(target_loss=1e-6)).contenders[RING]
    assert result.time_to_loss_s is None and result.update_s is not None


def test_what_cannot_be_simulated_is_one_line() -> None:
    (other,) = load_experiment(ROOT / "configs" / "replay-resnet50.yaml").cells
    with pytest.raises(UserError, match="job of kind asynchronous"):
        cluster_of(other)


def test_the_papers_cell_is_the_median_seeds() -> None:
    assert set(PAPER_TABLE_2) == {(compute, network) for compute in COMPUTE for network in NETWORK}
    problem = SgdProblem.synthetic(samples=400, dimensions=8, seed=3)
    cell = mlfabric_cells.paper_cell("C1", "N1", problem, horizon_s=12.0, excess=0.3)
    assert len(cell.ratios) == 3 and sorted(cell.ratios)[1] == cell.comparison.ratio
    assert cell.to_target > 0 and 0 <= cell.dropped < 1
