"""Known stacks over DistributedDataParallel: the same bits under Prophet as without, and Prophet is on.

Each `stack_*.py` in this folder trains with a library that makes the DistributedDataParallel itself, as torchrun
would start it. It is run as it is, and with PROPHET_SCHEDULER=prophet on a rough ride (rough.py). The libraries are
not part of `make setup`: `make stacks` installs them and runs these tests.
"""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from scripts.ranks import Ranks

pytest.importorskip("torch")

FOLDER = Path(__file__).parent
STACKS = {
    "stack_accelerate": "accelerate",
    "stack_lightning": "pytorch_lightning",
    "stack_lightning_manual": "pytorch_lightning",
    "stack_transformers": "transformers",
}
"""Each script with the library that it is about."""
STATUS = "status.json"
TORCHRUN = {
    "TORCHELASTIC_RUN_ID": "a-test",
    "GROUP_RANK": "0",
    "GROUP_WORLD_SIZE": "1",
    "HF_HUB_OFFLINE": "1",
    "TOKENIZERS_PARALLELISM": "false",
}
"""Variables that torchrun sets besides ranks and addresses, and some that keep libraries from asking a hub."""
MODES: dict[str, tuple[dict[str, str], tuple[str, ...]]] = {
    "plain": (TORCHRUN, ()),
    "prophet": (
        {**TORCHRUN, "PROPHET_SCHEDULER": "prophet", "PROPHET_STATUS_OUT": STATUS},
        ("prophet_ddp.takeover", "rough"),
    ),
}
LIMIT_S = 400.0


@pytest.fixture(scope="module")
def servers() -> Iterator[dict[str, Ranks]]:
    """Ranks for each mode, with the installed libraries imported."""
    there = sorted({library for library in STACKS.values() if importlib.util.find_spec(library) is not None})
    common = ("torch", "torch._dynamo", *there)
    with Ranks(MODES["plain"][0], common) as plain:
        settings, modules = MODES["prophet"]
        with Ranks(settings, (*common, *modules)) as scheduled:
            yield {"plain": plain, "prophet": scheduled}


@pytest.mark.parametrize("name", STACKS)
def test_a_stack_ends_with_the_bits_of_plain_ddp(servers: dict[str, Ranks], tmp_path: Path, name: str) -> None:
    pytest.importorskip(STACKS[name], reason="`make stacks` installs it")

    def run(mode: str) -> list[dict[str, Any]]:
        return servers[mode].run(FOLDER / f"{name}.py", tmp_path / mode, LIMIT_S)

    with ThreadPoolExecutor(len(MODES)) as pool:
        plain, scheduled = pool.map(run, MODES)
    assert plain[0]["weights"] == plain[1]["weights"], "the ranks differ without Prophet: the script shows nothing"
    for rank, (expected, reported) in enumerate(zip(plain, scheduled, strict=True)):
        changed = [value for value in expected if reported.get(value) != expected[value]]
        assert not changed, f"rank {rank} ended with other {' and '.join(changed)}"
        place = tmp_path / "prophet" / f"rank{rank}"
        status = json.loads((place / (f"status.{rank}.json" if rank else STATUS)).read_text())
        assert (status["policy"], status["stepped_aside"]) == ("prophet", "")
        assert json.loads((place / "rough.json").read_text())[""]["operations"] > 0, "Prophet averaged nothing"
