"""Reasons why MLfabric is ahead of a ring or behind it, cell by cell: tables and sentences computed from the runs.

Rule of this file: words from values; mlfabric_real.py puts the page together. The paper's own numbers are the only ones
written here. Seconds are those of a real run or virtual, as each table says.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from prophet_mlfabric.studies.settings import Setting
from prophet_mlfabric.studies.tables import PAPER_TABLE_2, RingComparison
from prophet_scheduler.lab.records import ConvergenceResult
from tools.markdown import table
from tools.mlfabric_simulated import IN_STEP, OURS, RELEASED, RING, PaperCell, SimulatedCell
from tools.words import span

Pair = tuple[ConvergenceResult | None, ConvergenceResult | None]
"""Results of a contender in one cell, real and simulated."""
CameTo = Mapping[str, Mapping[str, Pair]]
"""Results by contender, then by cell such as `c1-n1`."""

NEAR = 0.02
"""Largest share that MLfabric may be behind BytePS's own asynchronous mode."""
FAR_AHEAD = 1.7
"""The paper's lead over the ring from which on MLfabric has to be ahead here."""
PAPERS_RING_S = 1.6
"""Seconds of an iteration of the paper's ring in C2-N1: 8 times the 0.2 s of an undisturbed one (section 2)."""


def both(pair: Pair, key: str) -> tuple[float | None, float | None]:
    """Return one value of a contender's result, real and simulated."""
    real, simulated = (None if result is None else getattr(result, key) for result in pair)
    return real, simulated


def ratio(came_to: CameTo, name: str, other: str) -> tuple[float | None, float | None]:
    """Return the time to the loss of `other` over MLfabric's, real and simulated: above 1 if MLfabric is ahead."""
    ours, theirs = (both(came_to[policy][name], "time_to_loss_s") for policy in (OURS, other))
    real, simulated = (
        None if mine is None or its is None else its / mine for mine, its in zip(ours, theirs, strict=True)
    )
    return real, simulated


def of_paper(name: str) -> float:
    """Return the paper's ratio to the ring, of a cell such as `c1-n1`."""
    compute, _, network = name.upper().partition("-")
    return PAPER_TABLE_2[compute, network]


def said(came_to: CameTo) -> str:
    """Return where MLfabric stands on real transfers, in two sentences."""
    names = list(came_to[OURS])
    pairs = {name: ratio(came_to, name, RELEASED)[0] for name in names}
    there = {name: value for name, value in pairs.items() if value is not None}
    if not there:
        return "No cell was measured in which MLfabric and BytePS's own asynchronous mode both came to the loss."
    behind = {name: value for name, value in there.items() if value < 1 - NEAR}
    named = "".join(f"; {name.upper()}: {value:.2f}" for name, value in behind.items())
    first = (
        f"**Of {len(there)} cells MLfabric is more than {NEAR:.0%} behind BytePS's own asynchronous mode in"
        f" {len(behind)}{named} (its time to the loss over MLfabric's: {min(there.values()):.2f} to"
        f" {max(there.values()):.2f}).**"
    )
    rings = {name: ratio(came_to, name, RING)[0] for name in names}
    far = [name for name, value in rings.items() if value is not None and of_paper(name) >= FAR_AHEAD]
    ahead = [name for name in far if (rings[name] or 0.0) > 1]
    second = (
        f" Against the ring the paper has it ahead by {FAR_AHEAD} or more in {len(far)} of these cells; here it is"
        f" ahead in {len(ahead)} of them."
    )
    return first + (second if far else "")


def same_clusters(came_to: CameTo, cells: Mapping[str, SimulatedCell]) -> str:
    """Return the text on the configs' clusters: the simulation's error, and the parts of MLfabric's and ring's time."""
    if not cells:
        return ""
    comparisons = {name: cell.comparison for name, cell in cells.items()}
    any_cell = next(iter(cells.values()))
    workers, update_s = any_cell.workers, any_cell.update_s
    steps = 2 * (workers - 1)
    ahead, behind = _divided(comparisons)
    each = comparisons.values()
    computing = span([comparison.computing_s for comparison in each], _seconds)
    transfers = span([comparison.transfers_s for comparison in each], _seconds)
    summed = span([comparison.updates_a_message for comparison in each], "{:.1f}".format)
    words = f"""\
A ring is {steps} steps in which every worker waits for its neighbour: one slow computation and one slow link hold all
up. Its computing lasts {computing}, where one that is not slow lasts {any_cell.compute_s:g} s, and its transfers
{transfers}, where links that nobody else uses take {steps / workers * update_s:.2f} s. MLfabric waits for nobody, but
all updates go to one NIC: {workers} take {workers * update_s:.2f} s of it, whoever is slow, less what is summed on
the way ({summed} updates a message). So MLfabric is ahead {_where(ahead)}, where a ring's iteration is the longer one,
and behind {_where(behind)}."""
    return "\n".join(
        (
            "## Why MLfabric is ahead of the ring, or behind it",
            "",
            "Simulated, for equally many updates; the losses are not in it. Means of an iteration of the ring, and of"
            f" {workers} updates of MLfabric.",
            "",
            _comparison_table(comparisons, workers, (), lambda name, each: (f"{each.ratio:.2f}",)),
            words,
            _nearness(came_to),
        )
    )


def _nearness(came_to: CameTo) -> str:
    """Return how far the simulation is from the real runs; "" if there are none."""
    parts = []
    for policy in (OURS, RELEASED, IN_STEP, RING):
        pairs = [both(pair, "update_s") for pair in came_to[policy].values()]
        shares = [simulated / real for real, simulated in pairs if real and simulated]
        if shares:
            parts.append(f"{span(shares, '{:.2f}'.format)} of `{policy}`'s")
    if not parts:
        return ""
    rings = [ratio(came_to, name, RING) for name in came_to[OURS]]
    known = [(real > 1, simulated > 1) for real, simulated in rings if real is not None and simulated is not None]
    agreed = sum(real == simulated for real, simulated in known)
    return (
        f"\nSimulated seconds an applied update are {', '.join(parts)} real ones. Who of MLfabric and the ring is first"
        f" at the loss is the same, real and simulated, in {agreed} of {len(known)} cells.\n"
    )


def papers_cluster(cells: Mapping[str, PaperCell]) -> str:
    """Return the text on the paper's 30 workers, beside its Table 2."""
    if not cells:
        return ""
    setting = Setting()
    update_s = setting.model_bytes / setting.bandwidth
    comparisons = {name: cell.comparison for name, cell in cells.items()}
    ahead, behind = _divided(comparisons)

    def ratios(name: str, each: RingComparison) -> tuple[str, str]:
        return f"{each.ratio:.2f} ({span(cells[name].ratios, '{:.2f}'.format)})", f"{of_paper(name):.2f}"

    each = comparisons.values()
    needed = span([comparison.needed(update_s, setting.workers) for comparison in each], "{:.1f}".format)
    summed = span([comparison.updates_a_message for comparison in each], "{:.1f}".format)
    words = f"""\
For equally many updates simulated MLfabric is ahead {_where(ahead)}, and behind {_where(behind)}. {setting.workers}
updates of {update_s:.2f} s each take the server's NIC {setting.workers * update_s:.1f} s. MLfabric is as fast as the
ring with {needed} updates in a message, on a NIC that is never idle; Algorithm 3 sums {summed}, as many as costs
the NIC no waiting."""
    if "c2-n1" in comparisons:
        words += "\n\n" + _papers_ring(comparisons["c2-n1"], setting)
    return "\n".join(
        (
            "## The paper's 30 workers, simulated",
            "",
            f"Two workers on each of {setting.machines} machines, 10 Gbit/s, 100 MB, 100 ms of computing, delay bound"
            " 30; seconds are means for as many updates as workers, of the median of three seeds. The last two columns"
            " are the ring's time over MLfabric-A's: simulated at equally many updates (range of the seeds), and the"
            " paper's Table 2, to one accuracy. [The papers' tables](papers.md) have the time to a loss, and more.",
            "",
            _comparison_table(comparisons, setting.workers, ("the paper's",), ratios),
            words,
            "",
        )
    )


def _papers_ring(c2_n1: RingComparison, setting: Setting) -> str:
    """Return what the paper's text says of its own ring, beside the simulated one."""
    steps = 2 * (setting.machines - 1)
    transfers_s = steps / setting.machines * setting.model_bytes / setting.bandwidth
    calm_s = setting.compute_s * (1 - setting.overlap) + transfers_s
    waits_s = c2_n1.computing_s - setting.compute_s
    step_ms = (PAPERS_RING_S - c2_n1.ring_s) / steps * 1e3
    return f"""\
What the paper's text says of its own ring in C2-N1 does not agree with itself. Workers are idle, neither computing nor
sending, for 50% of the time (section 7.2), and for {c2_n1.idle(setting.compute_s):.0%} here. But an iteration takes 8
times an undisturbed one's 0.2 s (section 2), {PAPERS_RING_S:g} s, and here {c2_n1.ring_s:.2f} s; workers that wait
{waits_s:.2f} s for a slow computation are idle for {waits_s / PAPERS_RING_S:.0%} of {PAPERS_RING_S:g} s. What takes the
rest is not in the text. A step's latency is not: each of {steps} would have to cost {step_ms:.0f} ms more, and
undisturbed steps do not (0.15 s an iteration by section 7.3, {calm_s:.2f} here). Beside a ring of {PAPERS_RING_S:g} s
simulated MLfabric would be {PAPERS_RING_S / c2_n1.mlfabric_s:.1f} times as fast."""


def _comparison_table(
    comparisons: Mapping[str, RingComparison],
    workers: int,
    more: Sequence[str],
    ratios: Callable[[str, RingComparison], Sequence[str]],
) -> str:
    """Return a row for each cell. `ratios` are its last columns: the ring's time over MLfabric's, and `more`."""
    rows = [
        (
            name.upper(),
            f"{each.ring_s:.2f} = {each.computing_s:.2f} + {each.transfers_s:.2f}",
            f"{each.mlfabric_s:.2f}",
            f"{each.updates_a_message:.1f}",
            f"{each.busy:.0%}",
            *ratios(name, each),
        )
        for name, each in comparisons.items()
    ]
    columns = (
        "cell",
        "ring (s) = computing + transfers",
        f"{OURS}, {workers} updates (s)",
        "updates a message",
        "server's NIC receives",
        f"{RING} / {OURS}",
        *more,
    )
    return table(columns, rows)


def _divided(comparisons: Mapping[str, RingComparison]) -> tuple[list[str], list[str]]:
    ahead = [name.upper() for name, each in comparisons.items() if each.ratio > 1]
    return ahead, [name.upper() for name in comparisons if name.upper() not in ahead]


def _where(names: Iterable[str]) -> str:
    listed = ", ".join(names)
    return f"in {listed}" if listed else "nowhere"


def _seconds(value: float) -> str:
    return f"{value:.2f} s"
