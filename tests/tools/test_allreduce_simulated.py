"""An all-reduce run beside its simulation: which contenders the simulator knows, and how each is simulated."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic_core import to_jsonable_python

from prophet_scheduler.core.errors import UserError
from prophet_scheduler.core.profile import GradientProfile, Profile
from prophet_scheduler.lab.config import Cell
from prophet_scheduler.lab.records import CellResult
from prophet_scheduler.lab.simulated import (
    COPIED_RATE,
    ISSUE_S,
    MESSAGE_S,
    RENEWED_RATE,
    UPDATED_RATE,
    handled,
    prepared,
)
from prophet_scheduler.policies.ddp import DDP_FIRST_BUCKET_BYTES, MEBIBYTE
from prophet_scheduler.simulate import Costs
from support.configs import REPLAY, loaded
from support.results import cell as result
from support.results import failed, policy
from tools import kept, studies
from tools.figures import compared
from tools.kept import Point, Provenance, Study
from tools.studies import simulated_cell

SMALL: dict[str, Any] = {**REPLAY["job"], "profile": "resnet18", "iterations": 6}
RAW: dict[str, Any] = {
    **REPLAY,
    "engine": "ddp",
    "job": SMALL,
    "policies": ["ddp-gloo", "ddp-gloo-1", "ddp-gloo-50", "ddp-horovod", "ddp-p3", "ddp-fifo", "ddp-prophet"],
}


def cell_of(folder: Path, **more: Any) -> Cell:
    (only,) = loaded({**RAW, **more}, folder).cells
    return only


def measured(place: Cell, **links: float) -> CellResult:
    """Return results in which every policy took a second."""
    times = {contender.name: policy(1.0) for contender in place.policies}
    return result(**times).model_copy(update={"setting": dict(place.setting), "links": links})


def times(place: Cell, **links: float) -> dict[str, float]:
    simulated = simulated_cell(place, measured(place, **links))
    assert simulated is not None
    return {name: shown.rest_s or 0.0 for name, shown in simulated.policies.items()}


def test_every_contender_of_ddp_is_simulated_as_that_engine_runs_it(tmp_path: Path) -> None:
    place = cell_of(tmp_path)
    seconds = times(place)
    assert list(seconds) == [contender.name for contender in place.policies]
    sent_s = 25.6e6 * 8 / 250e6
    # One bucket of everything is sent when backward has ended, and forward waits for it.
    assert seconds["ddp-gloo-50"] == pytest.approx(0.6 + sent_s + 0.3, rel=0.01)
    for name in ("ddp-prophet", "ddp-p3"):
        assert 0.9 < seconds[name] < 0.9 * 1.1, "what can be hidden is"
    assert seconds["ddp-prophet"] < seconds["ddp-fifo"] <= seconds["ddp-gloo-50"]
    assert seconds["ddp-gloo-1"] < seconds["ddp-gloo"]


def test_ddp_that_is_told_a_bucket_size_has_no_smaller_first_bucket(tmp_path: Path) -> None:
    sizes = {}
    place = cell_of(tmp_path)
    for contender in place.policies[:2]:
        planned = prepared(place, contender)
        assert planned is not None
        sizes[contender.name] = planned.job.sizes[-1]  # what backward generates first
    assert DDP_FIRST_BUCKET_BYTES <= sizes["ddp-gloo"] < 4 * MEBIBYTE
    assert MEBIBYTE <= sizes["ddp-gloo-1"] < 4 * MEBIBYTE


def test_an_all_reduce_of_four_ranks_takes_half_as_long_again(tmp_path: Path) -> None:
    four = cell_of(tmp_path, cluster={"workers": 4, "bandwidth": "250mbit"}, policies=["ddp-gloo-50"])
    assert times(four)["ddp-gloo-50"] == pytest.approx(0.9 + 1.5 * 25.6e6 * 8 / 250e6, rel=0.01)


def test_a_link_without_a_limit_has_the_rate_that_was_measured(tmp_path: Path) -> None:
    place = cell_of(tmp_path, cluster={"workers": 2, "bandwidth": "none"}, policies=["ddp-gloo-50"])
    links = {f"worker{number} {way}": 500e6 for number in (0, 1) for way in ("up", "down")}
    assert times(place, **links)["ddp-gloo-50"] == pytest.approx(0.9 + 25.6e6 * 8 / 500e6, rel=0.01)


def test_what_the_simulator_does_not_know_is_left_out(tmp_path: Path) -> None:
    byteps = {"name": "byteps-prophet", "base": "prophet", "engine": "byteps"}
    seconds = times(cell_of(tmp_path, policies=["ddp-gloo", byteps, "mxnet-kvstore"]))
    assert list(seconds) == ["ddp-gloo", "byteps-prophet"]
    training = cell_of(tmp_path, job={"kind": "digits", "iterations": 6, "warmup": 2})
    assert simulated_cell(training, measured(training)) is None


def test_what_is_kept_is_simulated(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is missing; run first: make allreduce"):
        studies.simulate_again(tmp_path, tmp_path, names="allreduce")

    raw = {**RAW, "policies": ["ddp-gloo-50", "ddp-prophet", "ddp-p3"], "sweep": [{"cluster": {"bandwidth": "1gbit"}}]}
    raw["sweep"] += [{"cluster": {"bandwidth": "250mbit"}}]
    experiment = loaded(raw, tmp_path)
    near, far = experiment.cells
    points = [Point(measured(near), 2), Point(measured(far), 2)]
    points[0].cell.policies["ddp-p3"] = failed("it hung")
    study = Study(to_jsonable_python(experiment.source), points)
    where = Provenance("2026-01-01", "abc", "a processor", 2)
    kept.keep(tmp_path, "allreduce", Study, study, where)
    studies.simulate_again(tmp_path, tmp_path, names="allreduce")
    stored = kept.kept(tmp_path, "allreduce", Study)
    assert stored is not None and stored.measured == where
    assert [point.cell for point in stored.data.points] == [point.cell for point in points], "what was measured stays"
    assert len(compared(stored.data.points)) == 5


def test_processors_copy_update_and_issue(tmp_path: Path) -> None:
    place = cell_of(tmp_path, cluster={**REPLAY["cluster"], "bandwidth": "2.5gbit"})
    by_name = {contender.name: contender for contender in place.policies}

    def costs_of(name: str, replayed: bool = False) -> Costs:
        planned = prepared(place.of(by_name[name]), by_name[name], replayed=replayed)
        assert planned is not None
        return planned.cluster.costs

    ddp, ours = costs_of("ddp-gloo"), costs_of("ddp-prophet")
    assert ddp.operation_s == pytest.approx(2 * MESSAGE_S), "a rank sends two messages, on a machine of its own"
    assert ours.operation_s - ddp.operation_s == pytest.approx(ISSUE_S), "Prophet issues its blocks in Python"
    assert costs_of("ddp-gloo", replayed=True).operation_s == pytest.approx(4 * MESSAGE_S)
    assert costs_of("ddp-gloo", replayed=True).operation_rate == pytest.approx(ddp.operation_rate / 2)


def test_a_gradient_leaves_when_it_is_copied_and_a_layer_waits_for_its_update() -> None:
    small, large = 16 << 20, 64 << 20
    rows = (GradientProfile("a", small, 1.0, 0.5), GradientProfile("b", large, 1.0, 0.5))
    first, last = handled(Profile("two", rows), back=False).gradients
    large_s = large / RENEWED_RATE + large / COPIED_RATE
    assert last.generation_s == pytest.approx(1.0 + large_s), "to memory that is new, and to where it leaves from"
    assert first.generation_s == pytest.approx(1.0 + large_s + 2 * small / COPIED_RATE), "the last layer's comes first"
    assert first.forward_s == pytest.approx(0.5 + small / UPDATED_RATE)
    back, _ = handled(Profile("two", rows), back=True).gradients
    assert back.forward_s == pytest.approx(0.5 + small / UPDATED_RATE + small / COPIED_RATE)
