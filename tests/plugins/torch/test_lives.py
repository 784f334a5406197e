"""Tests of how a job begins each of its lives if a launcher restarts its ranks, with one store for all lives."""

from __future__ import annotations

import datetime
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
import torch.distributed as dist

from prophet_ddp import autoload, lives
from support.programs import without_switches

CASE = Path(__file__).with_name("lives_case.py")
CHECKOUT = Path(__file__).parents[3]
LAUNCHED = {"TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_MAX_RESTARTS": "3"}
C10D: Any = dist.distributed_c10d
HASH_STORE: Any = vars(dist)["HashStore"]
LIMIT_S = 300.0


def test_a_life_connects_to_no_rank_of_the_one_before_whichever_rank_is_first(tmp_path: Path) -> None:
    environ = without_switches() | {"PYTHONPATH": str(CHECKOUT)}
    result = subprocess.run(
        [sys.executable, "-P", str(CASE)], cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=LIMIT_S
    )
    printed = result.stdout.split()
    assert printed.count("statuses") == 2 and printed.count("0") == 4, result.stdout + result.stderr
    weights = [word for word in printed if word[0] in "-0123456789" and word != "0"]
    assert len(weights) == 4 and len(set(weights)) == 1, result.stdout


class Torch:
    """Stand-in for torch's `rendezvous` and `init_process_group`; it keeps the arguments of the latter."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.store = HASH_STORE()
        self.begun: list[dict[str, Any]] = []

        def init(
            backend: Any = None,
            init_method: Any = None,
            timeout: Any = None,
            world_size: int = -1,
            rank: int = -1,
            store: Any = None,
            device_id: Any = None,
        ) -> None:
            self.begun.append({"backend": backend, "store": store, "rank": rank, "ranks": world_size})

        for module in (C10D, dist, dist.device_mesh):
            monkeypatch.setattr(module, "init_process_group", init)
        monkeypatch.setattr(C10D, "rendezvous", lambda *of, **more: iter([(self.store, 0, 2)]))
        self.own = init


@pytest.fixture
def torchs(monkeypatch: pytest.MonkeyPatch) -> Torch:
    return Torch(monkeypatch)


@pytest.mark.parametrize(
    "environ",
    [{}, {"TORCHELASTIC_USE_AGENT_STORE": "True"}, LAUNCHED | {"TORCHELASTIC_MAX_RESTARTS": "0"}],
    ids=["no launcher", "an older one", "no restarts"],
)
def test_where_no_rank_is_restarted_torch_begins_as_always(
    torchs: Torch, environ: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in LAUNCHED:
        monkeypatch.delenv(name, raising=False)
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    autoload.keep_lives_apart()
    assert C10D.init_process_group is torchs.own


@pytest.mark.parametrize(
    "told", [{"backend": "nccl"}, {"backend": "gloo", "store": HASH_STORE()}, {"init_method": "tcp://127.0.0.1:1"}]
)
def test_where_gloo_does_not_begin_in_the_launchers_store_nobody_is_waited_for(
    torchs: Torch, told: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in LAUNCHED.items():
        monkeypatch.setenv(name, value)
    autoload.keep_lives_apart()
    dist.init_process_group(**told)
    (begun,) = torchs.begun
    assert begun["store"] is told.get("store") and begun["rank"] == -1


def test_a_rank_that_does_not_come_is_torchs_error_in_torchs_time(torchs: Torch) -> None:
    lives.begin_apart()
    with pytest.raises(dist.DistStoreError, match=r"^rank 1 has not reached init_process_group within 0\.2 s$"):
        dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=0.2))
    assert torchs.begun == []
