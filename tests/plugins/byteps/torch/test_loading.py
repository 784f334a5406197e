"""Parts of optimizers are imported with the first one; if that fails, BytePS's own optimizer serves."""

from __future__ import annotations

import sys

import pytest
import torch

from support.torch_network import Network


def test_where_it_cannot_be_imported_bytepss_barrier_stays_with_one_warning(
    network: Network, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "prophet_byteps.torch.optimizer", None)
    network.workers = 2
    model = torch.nn.Linear(4, 4)
    bare = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(2):
        assert network.DistributedOptimizer(bare, named_parameters=model.named_parameters()) is bare
    assert network.fell_back == [bare, bare]
    (record,) = caplog.records
    assert record.getMessage().startswith(
        "Prophet: this optimizer keeps BytePS's barrier: Prophet's cannot be loaded (ModuleNotFoundError: "
    )
