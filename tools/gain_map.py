"""Map of Prophet's gains over DDP: simulated jobs from much communication to little, and a figure of them.

Rule of this file: the jobs, their gains, and the figure. It takes about three minutes. Times are seconds, sizes bytes.
A gain is another contender's time over Prophet's, so 1 is no gain.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray
from rich.progress import track

from prophet_scheduler.engines.ddp import BUCKET_CAP_MB
from prophet_scheduler.engines.topology import ALL_REDUCE
from prophet_scheduler.lab.config import Cell, experiment_of
from prophet_scheduler.lab.results import lower_bound
from tools.figures import OURS, STOCK
from tools.kept import Point
from tools.studies import contenders_simulated

Array: TypeAlias = NDArray[np.float64]
FIGURE = "map.png"
RATE = 1e9
"""Bits per second of each rank's link."""
MODELS = {
    "ResNet-50": ("resnet50", 102_200_000),
    "BERT-base": ("bert-base", 438_000_000),
    "VGG-16": ("vgg16", 553_000_000),
}
"""Profile, and bytes of the gradients."""
RATIOS = (0.2, 0.33, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 5.0)
"""Seconds of computing over the seconds that a rank's bytes take at RATE."""
SHOWN = (0.33, 1.0, 3.0)
"""Ratios in the page's table."""
RANKS = (2, 4, 8)
DELAYS_MS = (0, 5, 20)
"""Delay of each link in each direction; a message from rank to rank crosses two links."""
BUCKETS_MB = (1, 2, 5, 10, 25, 50, 100)
"""Bucket sizes, beside DDP's default, of which the best is taken."""
BUCKETS = [{"name": f"{STOCK}-{mb}", "base": STOCK, "env": {BUCKET_CAP_MB: str(mb)}} for mb in BUCKETS_MB]
BACKWARD = 2 / 3
"""Share of backward in computing."""
WARM_UP = 3
LITTLE = 0.05
"""Gain over the best bucket size below which a change is not worthwhile."""
COLOURS = {2: "#2f6db3", 4: "#e08214", 8: "#7b3294"}
"""By number of ranks."""
STYLES: Mapping[str, Mapping[str, Any]] = {
    "Prophet over DDP as it comes": {},
    "Prophet over its best bucket size": {"ls": "--"},
    "the bound over DDP as it comes": {"ls": ":"},
}
"""Lines of Gains."""
LIMIT: Mapping[str, Any] = {"label": "limit of what an order can hide", "color": "gray", "lw": 1}
NOTHING: Mapping[str, Any] = {"label": f"under {LITTLE:.0%} to gain over the best size", "color": "0.9", "lw": 0}


@dataclass(frozen=True)
class Curve:
    """One model on one network: lower bound and iteration time of each contender, with a value for each of RATIOS."""

    model: str
    ranks: int
    delay_ms: int
    bound_s: Sequence[float]
    times_s: Mapping[str, Sequence[float]]


class Gains(NamedTuple):
    """Gains of a curve over unmodified DDP and over its best bucket size. `possible` is the bound's over the former."""

    over_default: Array
    over_best: Array
    possible: Array

    @property
    def of_bound(self) -> Array:
        """Prophet's times over the bound."""
        return self.possible / self.over_default


def gains(curve: Curve) -> Gains:
    ours_s, default_s = np.array(curve.times_s[OURS]), np.array(curve.times_s[STOCK])
    best_s = np.min([times_s for name, times_s in curve.times_s.items() if name != OURS], axis=0)
    return Gains(default_s / ours_s, best_s / ours_s, default_s / np.array(curve.bound_s))


def limit(ratio: float) -> float:
    """Return the maximum gain of an order alone: from no overlap to perfect overlap (TicTac's 1 + S)."""
    return (1 + ratio) / max(1.0, ratio)


def chosen(curves: Iterable[Curve], which: str, ratios: Iterable[float], **network: int) -> list[float]:
    """Return field `which` of Gains for all models at these ratios, on networks with these `ranks` and `delay_ms`."""
    places = [RATIOS.index(ratio) for ratio in ratios]
    alike = (curve for curve in curves if all(getattr(curve, key) == value for key, value in network.items()))
    return [float(getattr(gains(curve), which)[place]) for curve in alike for place in places]


def errors(points: Iterable[Point]) -> list[tuple[float, float]]:
    """Return, by cell, real gains over simulated ones less 1: over unmodified DDP, and over its best bucket size."""
    rows = []
    for point in points:
        times = {name: np.array(both) for name, both in point.real_and_simulated_s.items()}
        if OURS in times:
            best_s = np.min([both for name, both in times.items() if name.startswith(STOCK)], axis=0)
            real, simulated = np.array([times[STOCK], best_s]).T / times[OURS][:, None]
            rows.append(tuple((real / simulated - 1).tolist()))
    return rows


def cells(model: str, ranks: int, delay_ms: int) -> Sequence[Cell]:
    profile, size_bytes = MODELS[model]
    communication_s = size_bytes * 8 * ALL_REDUCE.worker_share(ranks) / RATE
    computing = [ratio * communication_s for ratio in RATIOS]
    job = {"kind": "replay", "profile": profile, "total_bytes": size_bytes, "batch_size": 1}
    config = {
        "engine": "ddp",
        "job": {**job, "iterations": 2 * WARM_UP, "warmup": WARM_UP},
        "cluster": {"workers": ranks, "bandwidth": RATE, "delay": f"{delay_ms}ms"},
        "policies": [STOCK, *BUCKETS, OURS],
        "sweep": [{"job": {"backward_s": BACKWARD * each, "forward_s": (1 - BACKWARD) * each}} for each in computing],
    }
    return experiment_of(config, Path(FIGURE)).cells


def times_of(cell: Cell) -> tuple[float, dict[str, float]]:
    """Simulate a cell of DDP and Prophet. Return the bound, and the mean iteration by contender."""
    bound_s, runs = lower_bound(cell), contenders_simulated(cell)
    assert bound_s is not None  # Every cell is a replay with a rate.
    return round(bound_s, 5), {name: round(float(np.mean(run.iteration_s(WARM_UP))), 5) for name, run in runs.items()}


def simulated(model: str, ranks: int, delay_ms: int) -> Curve:
    bounds_s, times_s = zip(*map(times_of, cells(model, ranks, delay_ms)), strict=True)
    return Curve(model, ranks, delay_ms, bounds_s, {name: [times[name] for times in times_s] for name in times_s[0]})


def draw(curves: Sequence[Curve], path: Path) -> None:
    """Draw a panel for each delay and model: gains, the bound, the limit, and in gray where little can be gained."""
    from matplotlib import pyplot
    from matplotlib.lines import Line2D
    from matplotlib.patches import Rectangle

    size = len(DELAYS_MS), len(MODELS)
    figure, panels = pyplot.subplots(*size, sharex=True, sharey="row", figsize=(9.5, 9.2), layout="constrained")
    fine = np.geomspace(RATIOS[0], RATIOS[-1], 200)
    for (delay_ms, model), axes in zip(itertools.product(DELAYS_MS, MODELS), panels.flat, strict=True):
        most_left = np.ones(len(RATIOS))
        for curve in reversed([curve for curve in curves if (curve.model, curve.delay_ms) == (model, delay_ms)]):
            found = gains(curve)
            most_left = np.maximum(most_left, found.over_best * found.of_bound)
            for values, style in zip(found, STYLES.values(), strict=True):
                axes.plot(RATIOS, values, color=COLOURS[curve.ranks], **style)
        if np.any(little := most_left < 1 + LITTLE):
            axes.axvspan(np.min(np.array(RATIOS)[little]), np.max(np.array(RATIOS)[little]), **NOTHING)
        axes.plot(fine, [limit(ratio) for ratio in fine], **LIMIT)
        axes.axhline(1, color="black", linewidth=0.8)
        axes.grid(alpha=0.25)
        axes.set(xscale="log", xlim=(RATIOS[0], RATIOS[-1]), title=f"{model}, delay {delay_ms} ms")
        axes.set_xticks([0.2, 0.5, 1, 2, 5], labels=["0.2", "0.5", "1", "2", "5"])
        axes.minorticks_off()
    figure.supylabel("times as fast as DDP")
    figure.supxlabel("seconds of computing / seconds of communication")
    lines = [Line2D([], [], color=colour, label=f"{ranks} ranks") for ranks, colour in COLOURS.items()]
    lines += [Line2D([], [], color="black", label=label, **style) for label, style in STYLES.items()]
    handles = [*lines, Line2D([], [], **LIMIT), Rectangle((0, 0), 1, 1, **NOTHING)]
    title = f"What Prophet gains over DDP, simulated, on links of {RATE / 1e9:g} Gbit/s"
    figure.legend(handles=handles, title=title, loc="outside upper center", ncols=3)
    figure.savefig(path, dpi=130)
    pyplot.close(figure)


def measure(out: Path, results: Path) -> list[Curve]:
    """Simulate all, and draw the figure in `results`. Raises OSError."""
    networks = list(itertools.product(MODELS, RANKS, DELAYS_MS))
    curves = [simulated(*each) for each in track(networks, "map")]
    draw(curves, results / FIGURE)
    return curves
