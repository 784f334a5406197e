"""Tests of the situation from a profile with a network or a folder of `prophet run`, and of each error in them."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from prophet_scheduler.core.errors import UserError
from prophet_scheduler.core.network import Network
from prophet_scheduler.core.profile import Profile
from prophet_scheduler.core.status import AgentStatus, HookStatus
from prophet_scheduler.lab.advice import Situation
from prophet_scheduler.lab.advice_sources import LinkOptions, of_profile, of_run
from prophet_scheduler.lab.config import Experiment
from prophet_scheduler.lab.records import CellResult, Results, write_results
from prophet_scheduler.models.profiles import save_profile
from support.configs import DIGITS, REPLAY, changed, loaded
from support.profiles import resnet50
from support.results import cell, failed, policy

SMALL = resnet50(5_000_000)


def left(folder: Path, raw: dict[str, Any], *cells: CellResult) -> Path:
    """Write the files of `prophet run` for made-up runs."""
    experiment: Experiment = loaded(raw, folder)
    pairs = zip(cells, experiment.cells, strict=False)
    shown = [made.model_copy(update={"setting": dict(place.setting)}) for made, place in pairs]
    config: Any = dict(experiment.source)
    write_results(Results(schema=1, config=config, cells=shown), folder / "results.json")
    return folder


def rate(situation: Situation, node: str = "worker0") -> float | None:
    return situation.cell.cluster.bandwidth.rate(node)


def test_a_profile_is_put_on_the_links_that_options_say() -> None:
    links = LinkOptions(1e9, 2e9, 0.005, workers=4, servers=2, workers_per_host=2)
    situation = of_profile(SMALL, "p3", links)
    assert (rate(situation), rate(situation, "server1")) == (1e9, 2e9)
    assert situation.cell.cluster.delay.of("worker3") == 0.005
    assert (situation.contender.name, situation.workers_per_host) == ("p3", 2)
    assert rate(of_profile(SMALL, "prophet", LinkOptions(1e9)), "server0") is None


def test_a_job_of_which_nothing_is_said_runs_on_ddp_without_prophet(tmp_path: Path) -> None:
    assert of_profile(SMALL, None, LinkOptions(1e9)).contender.name == "ddp-gloo"
    status = AgentStatus("prophet", "", 0, 0.0, 1 << 20, None, network=Network(1e7))
    hook = HookStatus(True, "", 0, 0, 0, 0, 0)
    for name, written in (("ddp-prophet", status), ("prophet", dataclasses.replace(status, hook=hook))):
        path = tmp_path / f"{name}.json"
        path.write_text(json.dumps(dataclasses.asdict(written)), encoding="utf-8")
        assert of_profile(SMALL, None, LinkOptions(), path).contender.name == name


def test_computing_of_a_built_in_profile_is_said_to_be_the_profiles() -> None:
    (line,) = of_profile(resnet50(), None, LinkOptions(1e9)).assumed
    assert line.startswith("computing takes 0.6 s backward, 0.3 s forward, as in the profile; ")
    mine = dataclasses.replace(SMALL, name="mine")
    assert not of_profile(mine, None, LinkOptions(1e9)).assumed


@pytest.mark.parametrize(("name", "workers", "share"), [("prophet", 4, 1.0), ("ddp-prophet", 4, 1.5)])
def test_the_rate_can_be_what_a_job_measured(tmp_path: Path, name: str, workers: int, share: float) -> None:
    status = AgentStatus("prophet", "", 1, 0.1, 131072, None, network=Network(25e6))
    path = tmp_path / "status.json"
    path.write_text(json.dumps(dataclasses.asdict(status)))
    situation = of_profile(SMALL, name, LinkOptions(workers=workers), path)
    assert rate(situation) == pytest.approx(200e6 * share), "the rate of gradients, of which a ring sends more"
    path.write_text(json.dumps(dataclasses.asdict(dataclasses.replace(status, network=None))))
    with pytest.raises(UserError, match="measured no network; give --bandwidth"):
        of_profile(SMALL, name, LinkOptions(), path)


@pytest.mark.parametrize(
    ("links", "line"),
    [
        (LinkOptions(), "--bandwidth is missing"),
        (LinkOptions(1e9, workers=0), "--workers is 0"),
        (LinkOptions(1e9, servers=0), "--servers is 0"),
        (LinkOptions(1e9, workers_per_host=3), "--workers-per-host is 3, but there are only 2 workers"),
    ],
)
def test_a_cluster_that_cannot_be_is_one_line(links: LinkOptions, line: str) -> None:
    with pytest.raises(UserError, match=line):
        of_profile(SMALL, "prophet", links)


def test_a_run_has_its_profile_its_cluster_and_what_was_measured(tmp_path: Path) -> None:
    folder = left(tmp_path, REPLAY, cell(stock=policy(1.7), prophet=policy(0.95)))
    situation, measured_s = of_run(folder)
    assert (situation.contender.name, measured_s, rate(situation)) == ("prophet", 0.95, 250e6)
    assert situation.profile.total_bytes == 25_600_000
    stock, stock_s = of_run(folder, "stock")
    assert (stock.contender.name, stock_s) == ("stock", 1.7)
    with pytest.raises(UserError, match="--policy: 'p3' was not measured there; stock, prophet were"):
        of_run(folder, "p3")


def test_of_several_cells_one_is_chosen_unless_the_folder_has_only_that(tmp_path: Path) -> None:
    raw = {**REPLAY, "sweep": [{"cluster": {"bandwidth": rate}} for rate in ("100mbit", "1gbit")]}
    folder = left(tmp_path, raw, cell(prophet=policy(2.2)), cell(prophet=policy(0.9)))
    situation, measured_s = of_run(folder, number=1)
    assert (rate(situation), measured_s) == (1e9, 0.9)
    with pytest.raises(UserError, match=r"has 2 cells; choose one with --cell \(0: 100mbit; 1: 1gbit\)"):
        of_run(folder)
    with pytest.raises(UserError, match="--cell is 2"):
        of_run(folder, number=2)
    results = json.loads((folder / "results.json").read_text())
    results["cells"] = results["cells"][1:]
    (folder / "results.json").write_text(json.dumps(results))
    situation, measured_s = of_run(folder)
    assert (rate(situation), measured_s) == (1e9, 0.9)


def test_the_file_of_a_recorded_profile_need_not_be_there_any_more(tmp_path: Path) -> None:
    save_profile(SMALL, tmp_path / "job.json", source="a test")
    job = {"kind": "replay", "profile": "job.json", "iterations": 6, "warmup": 2}
    folder = left(tmp_path, changed(REPLAY, "job", job), cell(prophet=policy(0.95)))
    (tmp_path / "job.json").unlink()
    with pytest.raises(UserError, match="its config cannot be read any more"):
        of_run(folder)
    runs = folder / "runs" / "cell0" / "prophet-repeat1"
    runs.mkdir(parents=True)
    save_profile(SMALL, runs / "profile.json", source="a test")
    assert of_run(folder)[0].profile.gradients == SMALL.gradients


def test_real_training_is_advised_on_by_what_was_learned_of_it(tmp_path: Path) -> None:
    folder = left(tmp_path, DIGITS, cell(stock=policy(0.5), prophet=policy(0.4)))
    with pytest.raises(UserError, match="prophet left no profile"):
        of_run(folder)
    runs = folder / "runs" / "cell0" / "prophet-repeat1"
    runs.mkdir(parents=True)
    save_profile(SMALL, runs / "worker0.profile.json", source="a test")
    learned: Profile = of_run(folder)[0].profile
    assert learned.gradients == SMALL.gradients
    with pytest.raises(UserError, match="stock left no profile"):
        of_run(folder, "stock")


def test_a_run_in_which_all_failed_has_nothing_to_advise_on(tmp_path: Path) -> None:
    folder = left(tmp_path, REPLAY, cell(prophet=failed("it hung")))
    with pytest.raises(UserError, match="nothing was measured"):
        of_run(folder)
    with pytest.raises(UserError, match="cannot be read"):
        of_run(tmp_path / "none")
