"""The README's picture: a worker's computing and sending in one iteration, with DDP and under Prophet.

Rule of this file: from simulated runs of one cell of configs/allreduce.yaml to docs/images/iteration.svg. Nothing is
measured, and every run draws the same picture; that config's page has the measured times. The drawing is a template
beside the picture. Times are seconds.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import jinja2

from prophet_scheduler.core.profile import Profile
from prophet_scheduler.lab.config import load_experiment
from prophet_scheduler.lab.report.from_run import pair_events
from prophet_scheduler.simulate.run import WORKER, SimulatedRun
from tools.figures import OURS, STOCK
from tools.studies import contenders_simulated

CONFIG = Path("configs/allreduce.yaml")
ROOT = Path(__file__).parents[1]
PICTURE = Path("docs/images/iteration.svg")
SHOWN = {
    STOCK: "DistributedDataParallel as it comes",
    f"{STOCK}-2": "with its best bucket size, 2 MB",
    OURS: "with Prophet",
}
"""Contenders of the config's first cell, from top to bottom."""

COLOURS = ((0x35, 0x66, 0xB8), (0x2A, 0x9D, 0x8F), (0xE0, 0xB0, 0x40), (0xD9, 0x5F, 0x3B))
"""Colors from the first layers to the last; layers between have mixed colors."""
JOINED_S = 0.0005
"""Maximum gap in seconds between spans of one step that are drawn as one."""


class Span(NamedTuple):
    """Time span, counted from the start of backward, of a `step` of the stepwise pattern; 0 is the first layers'."""

    start_s: float
    end_s: float
    step: int


@dataclass(frozen=True)
class Panel:
    """One iteration of a worker, from the start of backward to the start of the next backward."""

    title: str
    backward_s: float
    """Seconds of backward."""
    iteration_s: float
    computing: list[Span]
    sending: list[Span]


def steps_of(profile: Profile) -> list[int]:
    """Return the step in which each gradient is generated; 0, the last one, generates the first layers' gradients."""
    times = sorted({gradient.generation_s for gradient in profile.gradients}, reverse=True)
    return [times.index(gradient.generation_s) for gradient in profile.gradients]


def panel(title: str, run: SimulatedRun, profile: Profile) -> Panel:
    """Return the last complete iteration of the recorded worker."""
    marks = run.marks[WORKER]
    last = len(marks) - 2
    began, ended = float(marks["backward_s"][last]), float(marks["backward_s"][last + 1])
    steps = steps_of(profile)
    # Operations are the layers in forward, then the steps of backward, the last layers first.
    by_operation = [*steps, *range(max(steps), -1, -1)]
    columns = (run.computing[name].tolist() for name in ("started_s", "finished_s", "operation"))
    computing = [
        Span(start_s - began, end_s - began, by_operation[operation])
        for start_s, end_s, operation in zip(*columns, strict=True)
        if began <= start_s < ended
    ]
    backward_s = float(marks["end_s"][last]) - began
    return Panel(title, backward_s, ended - began, merged(computing), merged(_sent(run, profile, last, began, ended)))


def _sent(run: SimulatedRun, profile: Profile, iteration: int, began: float, ended: float) -> Iterator[Span]:
    """Yield the spans on the wire: each begins when it is issued, or when the previous one ends if that is later."""
    members, steps = run.job_of(iteration).members_by_id, steps_of(profile)
    before = began
    for transfer in sorted(pair_events(run.events), key=lambda transfer: transfer.finish_s):
        if not began < transfer.finish_s <= ended:
            continue
        start_s = max(before, transfer.start_s)
        before = transfer.finish_s
        # A bucket has gradients of many steps, the last layers' first.
        parts = sorted(members[transfer.gradient], reverse=True)
        sizes = [min(profile.gradients[place].size_bytes, transfer.size_bytes) for place in parts]
        ends = list(itertools.accumulate(sizes, initial=0))
        scale = (transfer.finish_s - start_s) / ends[-1]
        for place, (first, end) in zip(parts, itertools.pairwise(ends), strict=True):
            yield Span(start_s - began + first * scale, start_s - began + end * scale, steps[place])


def merged(spans: Iterable[Span]) -> list[Span]:
    """Return the spans sorted by time, with neighbors of the same step joined."""
    joined: list[Span] = []
    for span in sorted(spans):
        if joined and joined[-1].step == span.step and span.start_s - joined[-1].end_s < JOINED_S:
            joined[-1] = joined[-1]._replace(end_s=span.end_s)
        else:
            joined.append(span)
    return joined


def colour(share: float) -> str:
    """Return the color for a position from the first layers (0) to the last (1)."""
    place = share * (len(COLOURS) - 1)
    low = min(int(place), len(COLOURS) - 2)
    mixed = (a + (b - a) * (place - low) for a, b in zip(COLOURS[low], COLOURS[low + 1], strict=True))
    return "#" + "".join(f"{round(value):02x}" for value in mixed)


def drawing(panels: list[Panel]) -> str:
    """Return the picture as SVG, which loads nothing else and follows the reader's light or dark mode."""
    latest = max(span.step for each in panels for span in (*each.computing, *each.sending)) or 1
    env = jinja2.Environment(trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True)
    template = env.from_string((ROOT / f"{PICTURE}.j2").read_text(encoding="utf-8"))
    return template.render(panels=panels, latest=latest, colour=colour)


def panels() -> list[Panel]:
    """Simulate the contenders. The working directory must be the checkout."""
    cell = load_experiment(CONFIG, tuple(SHOWN)).cells[0]
    assert cell.wire is not None  # a replay
    return [panel(SHOWN[name], run, cell.wire) for name, run in contenders_simulated(cell).items()]
