"""Advice that was followed: what is counted and kept. Nothing is run here; sessions are simulated."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import yaml

from prophet_scheduler.lab import session
from prophet_scheduler.lab.config import Experiment, load_experiment
from prophet_scheduler.lab.records import CellResult, Results, write_results
from support.configs import REPLAY
from support.results import policy
from tools import advise, studies
from tools.advise import CHANGES

ROOT = Path(__file__).parents[2]


def test_the_config_has_a_pair_for_each_change() -> None:
    experiment = load_experiment(ROOT / advise.CONFIG)
    assert len(experiment.cells) == 2 * len(CHANGES)
    for number in range(len(CHANGES)):
        now, then = experiment.cells[2 * number : 2 * number + 2]
        assert len(now.policies) == len(then.policies) == 1
        assert (now.setting, now.policies) != (then.setting, then.policies)


def test_every_pair_runs_and_is_advised_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All jobs take a second; what is predicted is the simulator's."""
    job = {**REPLAY["job"], "profile": "resnet18", "total_bytes": "5MB", "backward_s": 0.1, "forward_s": 0.05}
    raw: dict[str, Any] = {**copy.deepcopy(REPLAY), "job": job, "policies": ["ddp-gloo"]}
    raw["sweep"] = [{"cluster": {"bandwidth": "100mbit"}}, {"policies": ["ddp-prophet"]}]
    config = tmp_path / "pairs.yaml"
    config.write_text(yaml.safe_dump(raw))

    def run(experiment: Experiment, out: Path) -> int:
        (only,) = experiment.cells
        shown = CellResult(setting=dict(only.setting), policies={only.policies[0].name: policy(1.0)})  # type: ignore[arg-type]
        out.mkdir(parents=True)
        source: Any = dict(experiment.source)
        write_results(Results(schema=1, config=source, repeats=experiment.repeats, cells=[shown]), out / "results.json")
        return 0

    monkeypatch.setattr(studies, "run_session", run)
    monkeypatch.setattr(session, "run_session", run)
    monkeypatch.setattr(advise, "CONFIG", config)
    monkeypatch.setattr(advise, "CHANGES", ("prophet",))
    out = tmp_path / "out"
    advised = advise.measure(out, tmp_path)
    (followed,) = advised["rows"]
    assert [followed[key] for key in ("change", "now_s", "real_s")] == ["prophet", 1.0, 1.0]
    assert followed["predicted_s"] < 0.95 and followed["predicted_s"] != followed["uncalibrated_s"]
