"""Weights as blocks, with counts of the updates in them."""

from __future__ import annotations

import pytest
import torch

from prophet_mlfabric.torch.weight_blocks import Counts, WeightBlocks, behind
from support.update_server import UpdateServer


def parameters(*shapes: tuple[int, ...]) -> list[torch.Tensor]:
    return [torch.nn.Parameter(torch.arange(float(torch.Size(shape).numel())).view(shape)) for shape in shapes]


def pulled(server: UpdateServer, worker: WeightBlocks) -> Counts:
    worker.memory.zero_()
    server.pull(worker.blocks, range(len(worker.blocks)))
    return worker.take()


def test_weights_and_counts_add_up_over_two_workers() -> None:
    models = [parameters((3, 2), (5,)) for _ in range(2)]
    with torch.no_grad():
        models[0][1] += 0.5
    workers = [WeightBlocks(model, 2, 16) for model in models]
    assert [len(block) for block in workers[0].blocks] == [4 + 3, 4 + 3, 3 + 3]
    assert workers[0].size_bytes == 4 * (7 + 7 + 6)
    server = UpdateServer([torch.zeros_like(block) for block in workers[0].blocks])
    assert workers[1].counts(0) == (0, 0, 0)
    workers[0].hold_weights()
    server.push(workers[0].blocks)
    for worker in workers:
        assert pulled(server, worker) == (0, 0, 1)
    assert all(torch.equal(a, b) for a, b in zip(*models, strict=True))
    for number, change in ((0, 0.25), (1, -2.0), (1, 1.0)):
        with torch.no_grad():
            models[number][0] += change
        assert workers[number].hold_update(number) == pytest.approx(abs(change) * 6**0.5)
        server.push(workers[number].blocks)
        counts = pulled(server, workers[number])
    assert counts == (1, 2, 1)
    assert torch.equal(models[1][0].data, torch.arange(6.0).view(3, 2) + 0.25 - 2.0 + 1.0)
    assert torch.equal(models[1][1].data, torch.arange(5.0) + 0.5)


def test_behind_names_blocks_that_lack_an_update() -> None:
    assert behind([(1, 0, 1), (0, 1, 1), (1, 1, 1)]) == [0, 1]
    assert behind([(1, 0, 1), (0, 1, 1)]) == [0, 1]
    assert behind([(4, 2, 1)]) == []


@pytest.mark.parametrize(
    ("model", "words"),
    [([], "there are none"), ([torch.zeros(2, dtype=torch.float64)], "one is torch.float64")],
)
def test_parameters_that_cannot_be_sent_are_refused(model: list[torch.Tensor], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        WeightBlocks(model, 2, 4096)
