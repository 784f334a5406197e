"""Configs that are run for a page: what each has, what is run again, and what is not taken."""

from __future__ import annotations

from pathlib import Path

import pytest

from prophet_scheduler.core.errors import UserError
from prophet_scheduler.lab.config import Cell, Experiment, load_experiment
from prophet_scheduler.lab.records import read_results, write_results
from prophet_scheduler.lab.results import lower_bound
from prophet_scheduler.lab.simulated import prepare, prepare_experiment
from support.configs import REPLAY, written
from support.results import Session, cell, failed, policy
from tools import figures, studies

CONFIGS = Path(__file__).parents[2] / studies.CONFIGS
POINT = cell(stock=policy(1.7), prophet=policy(0.93))


@pytest.fixture
def session(monkeypatch: pytest.MonkeyPatch) -> Session:
    made = Session(POINT)
    monkeypatch.setattr(studies, "run_session", made.run)
    return made


def config(folder: Path, *rates: str) -> Path:
    sweep = [{"cluster": {"bandwidth": rate}} for rate in rates]
    return written({**REPLAY, "policies": ["stock", "prophet"], "sweep": sweep}, folder)


def of(name: str) -> Experiment:
    return load_experiment(CONFIGS / studies.STUDIES[name])


def names_of(experiment: Experiment) -> list[list[str]]:
    return [[contender.name for contender in place.policies] for place in experiment.cells]


def test_cells_that_are_there_are_not_run_again(session: Session, tmp_path: Path) -> None:
    file = config(tmp_path, "250mbit", "1gbit")
    once = studies.measured(file, tmp_path / "out")
    assert session.ran == ["cell0", "cell1"]
    assert [dict(point.cell.setting) for point in once.points] == [{"bandwidth": 250e6}, {"bandwidth": 1e9}]
    assert studies.measured(file, tmp_path / "out") == once
    assert session.ran == ["cell0", "cell1"]


def test_a_cell_that_was_refused_is_all_that_is_run_again(session: Session, tmp_path: Path) -> None:
    session.refuses["cell0"] = "bandwidth of worker0: leave the machine idle"
    file = config(tmp_path, "250mbit", "1gbit")
    with pytest.raises(UserError, match="leave the machine idle; run it again"):
        studies.measured(file, tmp_path / "out")
    session.refuses.clear()
    assert len(studies.measured(file, tmp_path / "out").points) == 2
    assert session.ran == ["cell0", "cell1", "cell0"]


def test_results_of_another_config_or_with_a_failure_are_not_taken(session: Session, tmp_path: Path) -> None:
    file, out = config(tmp_path, "250mbit"), tmp_path / "out"
    session.run(load_experiment(file), out / "cell0")
    assert studies.measured_before(load_experiment(file), out / "cell0")
    assert not studies.measured_before(load_experiment(file, repeats=7), out / "cell0")
    assert not studies.measured_before(load_experiment(config(tmp_path, "1gbit")), out / "cell0")
    assert not studies.measured_before(load_experiment(file), out / "cell1")
    results = read_results(out / "cell0" / "results.json")
    broken = POINT.model_copy(update={"policies": {**POINT.policies, "p3": failed("hung")}})
    write_results(results.model_copy(update={"cells": [broken]}), out / "cell0" / "results.json")
    assert not studies.measured_before(load_experiment(config(tmp_path, "250mbit")), out / "cell0")


def test_a_study_is_simulated_alone_or_beside_the_real_run(session: Session, tmp_path: Path) -> None:
    file = written(REPLAY, tmp_path)
    (point,) = studies.simulated(file).points
    assert point.workers == 2 and point.cell.ratios["prophet"] > 1.5
    (both,) = studies.study("validation", file, tmp_path / "out").points
    assert both.cell.times_s == POINT.times_s
    assert both.simulated is not None and both.simulated.rests_s == pytest.approx(point.cell.rests_s)


def test_every_config_is_there_and_what_is_simulated_can_be() -> None:
    for name in studies.STUDIES:
        experiment = of(name)
        assert experiment.cells
        if name.endswith("-simulated"):
            assert prepare_experiment(experiment)


def test_all_reduces_are_compared_with_several_bucket_sizes_on_two_and_four_ranks() -> None:
    experiment = of("allreduce")
    assert experiment.engine == "ddp" and experiment.repeats == 1
    assert {place.cluster.workers for place in experiment.cells} == {2, 4}
    for place, names in zip(experiment.cells, names_of(experiment), strict=True):
        assert {"ddp-gloo", "ddp-prophet"} <= set(names)
        assert sum(name.startswith("ddp-gloo-") for name in names) >= 2
        if place.profile is None:
            assert place.cluster.workers == 2, "four ranks that compute have half a core each"
            assert len({place.job_of(shown).iterations for shown in place.policies}) == 1, "weights can be compared"


def test_the_eighth_has_every_claimed_model_and_policy() -> None:
    experiment = of("eighth")
    assert set(names_of(experiment)[0]) >= {f"ddp-{name}" for name in ("pace", "caramel", "fifo", "horovod", "tictac")}
    profiles = {str(place.setting["profile"]) for place in experiment.cells}
    assert profiles == {"resnet50", "vgg16", "transformer-untied", "seq2seq", "inception-v3"}


def test_blocks_are_compared_with_six_sizes_in_every_cell() -> None:
    for names in names_of(of("blocks")):
        assert {"stock", "prophet", "ddp-gloo", "mxnet-kvstore", "mxnet-p3"} <= set(names)
        assert sum(name.startswith("fixed-") for name in names) == 6
    simulated = of("blocks-simulated")
    first = simulated.cells[0]
    fixed = [shown for shown in first.policies if shown.name.startswith("fixed-")]
    assert [prepare(first, shown).options.adapts for shown in fixed] == [False] * 6
    sizes = [max(prepare(first, shown).job.sizes) for shown in fixed]
    assert sizes == [128 << 10, 256 << 10, 512 << 10, 1 << 20, 2 << 20, 4_096_000]
    assert all(1.002 < (figures.any_blocks_s(place) or 0) / bound_s < 1.06 for place, bound_s in bounds(simulated))


def bounds(experiment: Experiment) -> list[tuple[Cell, float]]:
    known = [(place, lower_bound(place)) for place in experiment.cells]
    assert len(known) == 18
    return [(place, bound_s or 0.0) for place, bound_s in known]


@pytest.mark.parametrize("name", ["ablation", "ablation-simulated"])
def test_every_part_is_left_out_once_on_six_networks(name: str) -> None:
    several = names_of(of(name))
    assert len(several) == 6
    for names in several:
        assert names[:3] == ["stock", "prophet", "order-alone"]
        assert sum(one.startswith("one-") for one in names) == 6
        assert names[-3:] == ["no-fusion", "prophet-paper", "p3"]
