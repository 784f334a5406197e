"""PACE's and Caramel's experiments with real all-reduces at an eighth of their size: configs/eighth.yaml and its page.

Rule of this file: what the papers claim, what it is held against, and the page docs/results/eighth.md. `make eighth`
runs it, for about a quarter of an hour on a quiet machine.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from prophet_scheduler.engines.registry import engines
from prophet_scheduler.lab.records import CellResult
from tools import kept
from tools.cells import page_writer, study_main
from tools.kept import Point, Study
from tools.markdown import shown, table
from tools.provenance import Provenance
from tools.real_tables import all_cells
from tools.words import speedup, verdict

CONFIG = Path("configs/eighth.yaml")
PAGE = "eighth.md"
NAME = "eighth"
COMMAND = "make eighth"
DDP = engines()["ddp"]
STOCK = DDP.stock
WFBP, HOROVOD, TICTAC, PACE, CARAMEL, OURS = (
    DDP.called_here(policy) for policy in ("fifo", "horovod", "tictac", "pace", "caramel", "prophet")
)
NEAR = 0.01
"""Share behind which a policy counts as level."""


@dataclass(frozen=True)
class Claim:
    """Claim of a paper: one policy is so many times as fast as another. `profiles` are the models that it covers."""

    policy: str
    other: str
    said: str
    profiles: frozenset[str]


PACES = frozenset({"resnet50", "vgg16", "transformer-untied", "seq2seq"})
CLAIMS = (
    Claim(PACE, WFBP, "1.20 to 1.36 (PACE, Fig. 8)", PACES),
    Claim(PACE, HOROVOD, "1.03 to 1.32 (PACE, Fig. 8)", PACES),
    Claim(PACE, TICTAC, "1.13 to 1.21 (PACE, Fig. 8)", PACES),
    Claim(CARAMEL, HOROVOD, "1.35 (Caramel, Fig. 11: 92% of the GPU in use, and 68%)", frozenset({"inception-v3"})),
)

INTRODUCTION = f"""# PACE and Caramel at an eighth

Made by `{COMMAND}` from `{CONFIG}`. Real here: PyTorch's DistributedDataParallel, gloo's all-reduces, the gradients,
the optimizers, the network (shaped veth pairs between namespaces on one machine). Computing is sleeping, for as long as
the papers' GPUs compute. Gradients and rates are an eighth of the papers', and two ranks stand for 8 workers: each
all-reduce takes as long on the wire as a ring of 8 on 10 Gbit/s. `{WFBP}` is WFBP, each gradient whole in order of
arrival; all but `{STOCK}` run [as their systems would](../policies/baselines.md#on-distributeddataparallel), on
Prophet's front end. PACE's own graphs, GPUs, negotiation and NCCL are not here, so signs and order are what can be
compared."""
CLAIMED = "How many times as fast one is as another at rest, and what the paper says (a range is over its models)."


def page(results: Path) -> str:
    """Return the page, made from the kept data."""
    return kept.study_page(results, INTRODUCTION, NAME, COMMAND, text)


def text(data: Study, measured: Provenance) -> str:
    """Return the measurements: where Prophet stands, the papers' claims, and all cells."""
    return kept.joined(
        measured.line(),
        said([point.cell for point in data.points]),
        "## Beside what the papers say",
        CLAIMED,
        claims(data.points),
        "## Every contender",
        all_cells(data.points, STOCK),
    )


def said(cells: Sequence[CellResult]) -> str:
    """Return in which cells Prophet is behind another, and by how much."""
    compared, behind = 0, []
    for cell in cells:
        times = cell.times_s
        ours = times.pop(OURS, None)
        if ours is None or not times:
            continue
        compared += 1
        fastest = min(times, key=times.__getitem__)
        if (late := ours / times[fastest] - 1) > NEAR:
            behind.append(f"{cell.setting.get('profile')}: {late:.1%} behind {fastest}")
    if not compared:
        return "Nothing was measured in which Prophet and another ran."
    return verdict(f"Of {compared} cells Prophet is more than {NEAR:.0%} behind another in {len(behind)}.", behind)


def claims(points: Sequence[Point]) -> str:
    """Return a row for each claim and cell that it covers."""
    rows = []
    for claim in CLAIMS:
        for cell in (point.cell for point in points):
            model = str(cell.setting.get("profile"))
            if model in claim.profiles:
                ours = speedup(cell.rests_s, OURS, claim.other)
                rows.append(
                    (
                        model,
                        claim.policy,
                        claim.other,
                        shown(speedup(cell.rests_s, claim.policy, claim.other), ".2f"),
                        claim.said,
                        shown(ours, ".2f"),
                    )
                )
    return table(("model", "policy", "over", "here", "the paper", f"{OURS}, over the same"), rows)


write_page = page_writer(NAME, PAGE, page)


def main(arguments: list[str] | None = None) -> int:
    """Run and write the page; exit status 2 with one line for an error of the user's."""
    return study_main(NAME, __doc__, CONFIG, write_page, arguments)


if __name__ == "__main__":
    sys.exit(main())
