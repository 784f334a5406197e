"""Training scripts over DistributedDataParallel, each with the same bits under Prophet as without.

Every `ddp_*.py` in this folder is a script that knows nothing of Prophet, as torchrun would start it. So is every
`torch_*.py`, which is written for BytePS, with over_ddp/ in BytePS's place. Each is run twice, with data of its own on
each rank: as it is, and with PROPHET_SCHEDULER=prophet on a rough ride (rough.py), where averages outlast the compute
beside them. What it reports must be equal, rank by rank. With more than two ranks sums are rounded in another order, so
there weights are compared by value.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from scripts.jobs import Ahead
from scripts.ranks import Ranks

torch = pytest.importorskip("torch")

FOLDER = Path(__file__).parent
COMMON = ("torch", "torch._dynamo", "numpy")
MODES: Mapping[str, tuple[dict[str, str], tuple[str, ...]]] = {
    "plain": ({}, COMMON),
    "prophet": ({"PROPHET_SCHEDULER": "prophet"}, (*COMMON, "prophet_ddp.takeover", "rough")),
}
JOBS_AT_A_TIME = 3
LIMIT_S = 180.0
PROGRAMS = {"PROGRAMS": os.environ["PROGRAMS"]} if "PROGRAMS" in os.environ else {}
MANY = "ddp_many_ranks"
MANY_RANKS = (3, 4)
HALF = "ddp_clip_half"
CLIPPING = (HALF, "ddp_clipping", MANY)
"""Scripts whose updates must outlast step(), in rounds of two phases."""
CLIPS_NOTHING = ("linear", "branches")
"""Ways of theirs of which that is not so."""

NOT_OVER_DDP = {
    "torch_functional": "torch's reducer knows no transform, no trace of torch.jit, and one order of models",
    "torch_parallel": "BytePS's own wrapper is another one than torch's",
    "torch_compile": "slow; ddp_compile has its ways",
    "torch_averages_awaited": "ddp_ scripts have its ways",
    **dict.fromkeys(("torch_own_pushes", "torch_own_pushes_cross_barrier"), "they push through BytePS themselves"),
    "torch_spawn": "slow; who sends a parameter is the front end's on any engine",
}
UNUSED = ("torch_unused",)
"""Scripts whose parameters have no gradient at times, which DistributedDataParallel must be told."""
FALLS_BACK = {
    **{"ddp_fall_back_own_hook": 3, "ddp_fall_back_reducer": 7, "ddp_fall_back_rpc": 1},
}
"""Number of modules of a script that go on with DistributedDataParallel as it is."""

SCRIPTS = sorted(
    path.stem
    for pattern in ("ddp_*.py", "torch_*.py")
    for path in FOLDER.glob(pattern)
    if path.stem not in NOT_OVER_DDP and path.stem != MANY
)


def did(place: Path, rank: int) -> dict[str, Counter[str]]:
    """Return what Prophet did on a rank of a job, by the way that trained."""
    counts = json.loads((place / f"rank{rank}" / "rough.json").read_text())
    return {way: Counter(each) for way, each in counts.items()}


def assert_clipped_late(name: str, counts: dict[str, Counter[str]]) -> None:
    """Of a script that clips, require that updates were late and rounds had two phases, in each way that does."""
    for way, each in counts.items():
        if name in CLIPPING and way not in CLIPS_NOTHING:
            assert min(each["late"], each["in two phases"]) > 0, f"nothing was late {way}"


def ranks_of(name: str) -> int:
    return 4 if name.startswith("ddp_four_ranks") else 2


@pytest.fixture(scope="module")
def jobs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ahead]:
    """Jobs of all chosen scripts."""
    jobs = Ahead(request, tmp_path_factory.mktemp("scripts"), JOBS_AT_A_TIME)
    with contextlib.ExitStack() as stack:
        servers = {mode: stack.enter_context(Ranks(*how)) for mode, how in MODES.items()}
        stack.callback(jobs.close)
        for name, ranks in [(str(each["name"]), each["ranks"]) for each in jobs.chosen]:
            settings = PROGRAMS | ({"FIND_UNUSED": "1"} if name in UNUSED else {})
            for mode, server in servers.items():
                jobs.add(mode, f"{name}-{ranks}", server.run, FOLDER / f"{name}.py", LIMIT_S, ranks, settings)
        yield jobs


@pytest.mark.parametrize(("name", "ranks"), [(name, ranks_of(name)) for name in SCRIPTS])
def test_a_script_ends_with_the_bits_of_plain_ddp(jobs: Ahead, name: str, ranks: int) -> None:
    plain = jobs.result("plain", f"{name}-{ranks}")
    for other in plain[1:]:
        assert other["weights"] == plain[0]["weights"], "the ranks differ without Prophet: the script shows nothing"
    scheduled = jobs.result("prophet", f"{name}-{ranks}")
    for rank, (expected, measured) in enumerate(zip(plain, scheduled, strict=True)):
        changed = [value for value in expected if measured.get(value) != expected[value]]
        assert not changed, f"rank {rank} ended with other {' and '.join(changed)}"
    place = jobs.place("prophet", f"{name}-{ranks}")
    for rank in range(ranks):
        for way, counts in did(place, rank).items():
            assert counts["operations"] > 0, f"Prophet averaged nothing {way}"
            assert name != "ddp_long" or counts["turns"] > 0, "torch's reducer had no turn"
            assert (name, way) != ("ddp_compile", "blocks") or counts["late"] > 0, "no update outlasted step()"
        assert_clipped_late(name, did(place, rank))
    if name not in FALLS_BACK:
        assert "DistributedDataParallel as it is" not in (place / "rank0" / "log").read_text()


@pytest.mark.parametrize("name", FALLS_BACK)
@pytest.mark.parametrize("ranks", [2])
def test_what_cannot_be_kept_falls_back_with_one_warning(jobs: Ahead, name: str, ranks: int) -> None:
    jobs.result("prophet", f"{name}-{ranks}")
    for rank in range(ranks):
        log = (jobs.place("prophet", f"{name}-{ranks}") / f"rank{rank}" / "log").read_text()
        said = log.count("goes on with DistributedDataParallel as it is")
        assert said == (FALLS_BACK[name] if rank == 0 else 0), log


@pytest.mark.parametrize("name", (MANY, HALF))
@pytest.mark.parametrize("ranks", MANY_RANKS)
def test_with_more_ranks_averages_are_within_rounding_and_alike_on_all(jobs: Ahead, name: str, ranks: int) -> None:
    jobs.result("plain", f"{name}-{ranks}")
    scheduled = jobs.result("prophet", f"{name}-{ranks}")
    assert all(result == scheduled[0] for result in scheduled), "the ranks differ"
    weights = [torch.load(jobs.place(mode, f"{name}-{ranks}") / "rank0" / "weights.pt") for mode in MODES]
    tolerance = {"rtol": 2e-2, "atol": 2e-3} if name == HALF else {"rtol": 1e-4, "atol": 1e-6}
    torch.testing.assert_close(*weights, **tolerance)
    # The first rank looks at gradients now and then, which leaves it few late updates.
    assert_clipped_late(name, did(jobs.place("prophet", f"{name}-{ranks}"), 1))
