"""Training scripts over FSDP2, each with the same bits under Prophet as without.

Every `fsdp_*.py` in this folder is a script that knows nothing of Prophet, as torchrun would start it. Each is run
three times, with data of its own on each rank: as it is, with the average that FSDP2 means (averaging.py), and with
PROPHET_SCHEDULER=prophet on a rough ride (rough_fsdp.py); and so once more with turns of FSDP2's own collectives, which
then add as averaging.py does (turned_fsdp.py). What it reports must be equal, rank by rank.
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
COMMON = (
    "torch",
    "torch._dynamo",
    "torch.distributed._composable.replicate_with_fsdp",
    "torch.distributed.checkpoint",
    "torch.distributed.fsdp",
)
MODES: Mapping[str, tuple[dict[str, str], tuple[str, ...]]] = {
    "plain": ({}, COMMON),
    "prophet": ({"PROPHET_SCHEDULER": "prophet"}, (*COMMON, "rough_fsdp")),
    "turns": ({"PROPHET_SCHEDULER": "prophet"}, (*COMMON, "rough_fsdp", "turned_fsdp")),
}
PROGRAMS = {"PROGRAMS": os.environ["PROGRAMS"]} if "PROGRAMS" in os.environ else {}
JOBS_AT_A_TIME = 3
LIMIT_S = 300.0 + 5 * int(PROGRAMS.get("PROGRAMS", 0))
RANDOM = "fsdp_random", "fsdp_random_more"
SCRIPTS = sorted(path.stem for path in FOLDER.glob("fsdp_*.py"))
RANKS = {
    **{"fsdp_three_ranks": (3,), "fsdp_four_ranks": (4,), "fsdp_groups": (2, 4), "fsdp_hosts": (5,)},
    "fsdp_replicate": (2, 3),
}
AT_ONCE = {
    *("muon", "compiled", "stepped_at_once", "reductions_read", "fsdp_extension", "uneven", "hooks"),
    *("kept_after_forward", "scaled", "norms", "gradients_kept", "backward_in_a_thread", "fsdp_event_loop"),
    *("penalties_into_gradients", "gradient_in_a_graph"),
}
"""Scripts and ways whose updates are not late, since something looks at all gradients before each step, or may."""
SAYS_MORE = {"fsdp_compile": 2, "fsdp_extension": 1}
"""Number of lines of Prophet's that a script gets, as with DistributedDataParallel."""
NOT_AHEAD = {"stepped_at_once", "reductions_read", "replicated", "many_roots", "fsdp_replicate", "root_only"}
"""Scripts and ways that gather one thing or nothing, or say themselves what is gathered ahead."""
NOT_LATE = {"float16", "sums", "stepped_at_once"}
"""Ways whose reductions have to be there at once: FSDP2 divides their results a second time, or a hook makes a step."""


@pytest.fixture(scope="module")
def jobs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ahead]:
    """Jobs of all chosen scripts."""
    jobs = Ahead(request, tmp_path_factory.mktemp("scripts"), JOBS_AT_A_TIME)
    with contextlib.ExitStack() as stack:
        servers = {mode: stack.enter_context(Ranks(*how)) for mode, how in MODES.items()}
        stack.callback(jobs.close)
        for name, ranks in [(str(each["name"]), each["ranks"]) for each in jobs.chosen]:
            for mode in modes_of(name):
                script = FOLDER / f"{name}.py"
                jobs.add(mode, f"{name}-{ranks}", servers[mode].run, script, LIMIT_S, ranks, PROGRAMS)
        yield jobs


def modes_of(name: str) -> list[str]:
    return [mode for mode in MODES if mode != "turns" or name != "fsdp_hosts"]  # which adds in an order of its own


@pytest.mark.parametrize(("name", "ranks"), [(name, count) for name in SCRIPTS for count in RANKS.get(name, (2,))])
def test_a_script_ends_with_the_bits_of_a_correct_average(jobs: Ahead, name: str, ranks: int) -> None:
    job = f"{name}-{ranks}"
    reports = {mode: jobs.result(mode, job) for mode in modes_of(name)}
    plain = reports.pop("plain")
    assert len({result["weights"] for result in plain}) == 1, (
        "the ranks differ without Prophet: the script shows nothing"
    )
    for mode, scheduled in reports.items():
        for rank, (expected, measured) in enumerate(zip(plain, scheduled, strict=True)):
            changed = [value for value in expected if measured[value] != expected[value]]
            assert not changed, f"{mode}: rank {rank} ended with other {' and '.join(changed)}"
    falls_back = "fall_back" in name
    for rank in range(ranks):
        if "turns" in reports:
            turned = json.loads((jobs.place("turns", job) / f"rank{rank}" / "rough.json").read_text())
            own = {way for way, each in turned.items() if each.get("own")}
            assert bool(own) != falls_back, "FSDP2's own collectives had no turn"
        did = json.loads((jobs.place("prophet", job) / f"rank{rank}" / "rough.json").read_text())
        for way, each in did.items():
            counts = Counter(each)
            assert (counts.total() > 0) != falls_back, (way, counts)
            if name in RANDOM:
                continue  # What else Prophet does depends on chance.
            late, ahead = counts["late"] or way in NOT_LATE, counts["ahead"] or {name, way} & NOT_AHEAD
            assert falls_back or all((counts["reduced"], late, ahead)), (way, counts)
            at_once = name in AT_ONCE or way in AT_ONCE or way in NOT_LATE
            assert falls_back or (counts["updates"] > 0) != at_once, (way, counts)
        log = (jobs.place("prophet", job) / f"rank{rank}" / "log").read_text()
        said = [line for line in log.splitlines() if "Prophet:" in line]
        assert len(said) == (rank == 0) * (falls_back + SAYS_MORE.get(name, 0)), log
