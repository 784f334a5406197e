"""Numbers of results, and their tables."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from prophet_scheduler.core.bound import lower_bound_s
from prophet_scheduler.core.network import Network
from prophet_scheduler.lab.iterations import MEANS
from prophet_scheduler.lab.records import Results, read_results, write_results
from prophet_scheduler.lab.results import failures, lower_bound, summarize
from prophet_scheduler.lab.results_view import print_results
from prophet_scheduler.lab.runs import CellRuns, Run
from support.configs import DIGITS, REPLAY, changed, loaded
from support.fakes import agent_status, worker_record

LINKS = {"worker0 up": 249e6}
STOCK_ALONE = changed(REPLAY, "policies", ["stock"])


def run(iteration_s: Sequence[float], statuses: int = 0, **extra: Any) -> Run:
    workers = tuple(worker_record(iteration_s, **extra) for _ in range(2))
    return Run(Path("nowhere"), workers, tuple(agent_status() for _ in range(statuses)))


def failed(error: str = "hung") -> Run:
    return Run(Path("nowhere"), error=error, log_tail={"worker0": ["last [words]"]})


def printed(results: Results, width: int = 160) -> str:
    text = io.StringIO()
    print_results(results, Console(file=text, width=width))
    return text.getvalue()


def counted(folder: Path, runs: dict[str, list[Run]], raw: dict[str, Any] = REPLAY) -> Results:
    experiment = loaded(changed(raw, "policies", list(runs)), folder)
    return summarize(experiment, [CellRuns(experiment.cells[0], LINKS, runs)])


def summary(folder: Path, runs: dict[str, list[Run]], raw: dict[str, Any] = REPLAY) -> dict[str, Any]:
    """Return the content of results.json."""
    return counted(folder, runs, raw).as_json()


WARM = [9.0, 9.0]
"""The iterations in which an engine starts: no mean has them in it."""


def test_mean_over_all_repeats(tmp_path: Path) -> None:
    stock = [run([*WARM, 2.0, 2.0, 2.6]), run([*WARM, 1.8, 2.0, 2.2])]
    prophet = [run([*WARM, 1.0, 1.0, 1.0], statuses=2), run([*WARM, 1.0, 1.2, 1.1], statuses=2)]
    cell = summary(tmp_path, {"stock": stock, "prophet": prophet})["cells"][0]
    times = cell["policies"]["stock"]["iteration_s"]
    assert {name: times[name] for name in ("median", "p10", "p90")} == pytest.approx(
        {"median": 2.0, "p10": 1.82, "p90": 2.56}
    )
    assert times["mean"] == times["at_rest"] == pytest.approx(2.1)
    assert "first_50" not in times, "no repeat has so many"
    assert cell["policies"]["stock"]["repeats"] == [2.0, 2.0]
    assert cell["policies"]["stock"]["samples_per_s"] == pytest.approx(2 * 10 / 2.1)
    assert cell["policies"]["stock"]["wait_s"] == pytest.approx(2.1 - 0.9)
    assert cell["ratios"] == pytest.approx({"stock": 1.0, "prophet": 2.1 / 1.05}), "of means"
    assert cell["lower_bound_s"] == pytest.approx(0.9, abs=0.02)
    assert cell["compute_s"] == pytest.approx(0.9)
    assert cell["links"] == LINKS
    assert cell["setting"] == {"bandwidth": 250e6}


def test_every_iteration_is_kept(tmp_path: Path) -> None:
    first, second = worker_record([9.0, 1.0, 1.25]), worker_record([7.0, 1.0, 1.75])
    runs = [Run(Path("nowhere"), (first, second)), Run(Path("nowhere"), (second, second))]
    path = tmp_path / "results.json"
    write_results(counted(tmp_path, {"stock": [*runs, failed()]}), path)
    policy = read_results(path).cells[0].policies["stock"]
    assert policy.iterations == [[(9.0, 1.0, 1.25), (7.0, 1.0, 1.75)], [(7.0, 1.0, 1.75), (7.0, 1.0, 1.75)]]
    assert policy.iterations_s() == [[8.0, 1.0, 1.5], [7.0, 1.0, 1.75]]


def test_at_rest_since_blocks_changed(tmp_path: Path) -> None:
    times_s = [9.0] * 4 + [2.0] * 4 + [1.0] * 6
    rested = replace(run(times_s), recut_s=100.0 + sum(times_s[:8]))
    policies = summary(tmp_path, {"stock": [run(times_s)], "prophet": [rested]})["cells"][0]["policies"]
    assert policies["prophet"]["iteration_s"]["at_rest"] == 1.0
    assert policies["stock"]["iteration_s"]["at_rest"] == pytest.approx(8 / 7), "the last half, where nobody says"


def test_module_given_back_to_torch(tmp_path: Path) -> None:
    why = "an iteration takes 4.7 ms with torch's reducer and 5.7 ms under Prophet"
    given = replace(run([1.0] * 5), statuses=(agent_status(), agent_status(given_back=why)))
    policies = summary(tmp_path, {"stock": [run([1.0] * 5, statuses=2)], "prophet": [given]})["cells"][0]["policies"]
    assert policies["prophet"]["given_back"] == why
    assert "given_back" not in policies["stock"]


def test_processor_time_after_warm_up(tmp_path: Path) -> None:
    marks = [9.0, 9.5, 10.0, 10.2, 10.4, 10.6]  # after each of six iterations, two of them warm-up
    runs = {"stock": [run([1.0] * 5, processor_s=marks)], "prophet": [run([1.0] * 5, statuses=2)]}
    policies = summary(tmp_path, runs)["cells"][0]["policies"]
    assert policies["stock"]["processor_s"] == pytest.approx(0.2)
    assert "processor_s" not in policies["prophet"]


def test_cost_of_learning_workers(tmp_path: Path) -> None:
    workers = tuple(worker_record([1.0] * 5) for _ in range(2))
    idle = agent_status(agent_cpu_s=0.0, plans=0, network=None, push_credit=None)
    runs = {"ddp-prophet": [Run(Path("nowhere"), workers, (agent_status(), idle))]}
    agent = summary(tmp_path, runs)["cells"][0]["policies"]["ddp-prophet"]["agent"]
    assert agent["cpu_share"] == pytest.approx(0.05 / 5.0)
    assert (agent["plans"], agent["push_credit"], agent["watchdog_releases"]) == (2, 1_000_000, 0)
    assert agent["network"]["bandwidth"] == 31e6
    nobody = {"ddp-prophet": [Run(Path("nowhere"), workers, (idle, idle))]}
    assert summary(tmp_path, nobody)["cells"][0]["policies"]["ddp-prophet"]["agent"]["cpu_share"] == 0.0


def test_network_is_slowest_measured(tmp_path: Path) -> None:
    workers = tuple(worker_record([1.0] * 5) for _ in range(3))
    statuses = (agent_status(), agent_status(network=Network(29e6, 0.0, 0.0)), agent_status(network=None))
    agent = summary(tmp_path, {"prophet": [Run(Path("nowhere"), workers, statuses)]})["cells"][0]["policies"]["prophet"]
    assert agent["agent"]["network"]["bandwidth"] == 29e6


def test_stock_of_configs_engine_is_reference(tmp_path: Path) -> None:
    runs = {"ddp-gloo": [run([2.0] * 5)], "ddp-prophet": [run([1.0] * 5, statuses=2)]}
    cell = summary(tmp_path, runs, {**REPLAY, "engine": "ddp"})["cells"][0]
    assert cell["ratios"] == {"ddp-gloo": 1.0, "ddp-prophet": 2.0}
    assert cell["policies"]["ddp-prophet"]["same_weights_as_stock"] is True
    assert "same_weights_as_stock" not in cell["policies"]["ddp-gloo"]
    three = changed({**REPLAY, "engine": "ddp"}, "cluster.workers", 3)
    bounds = [lower_bound(loaded(raw, tmp_path).cells[0]) for raw in (changed(three, "engine", "byteps"), three)]
    assert bounds[0] is not None and bounds[1] is not None and bounds[1] > bounds[0], "each sends 4/3 of the bytes"
    without = summary(tmp_path, {"ddp-prophet": [run([1.0] * 5, statuses=2, weights_sha256="x")], **runs})["cells"][0]
    assert without["ratios"] == {}, "in a config for BytePS"
    assert without["policies"]["ddp-prophet"]["same_weights_as_stock"] is True, "of its own engine's"


def test_weights_with_three_workers(tmp_path: Path) -> None:
    raw = changed(DIGITS, "cluster.workers", 3)

    def models(*digests: str) -> Run:
        workers = tuple(worker_record([1.0] * 5, accuracy=0.95, weights_sha256=digest) for digest in digests)
        return Run(Path("nowhere"), workers)

    runs = {"ddp-gloo": [models("a", "a", "a"), models("b", "b", "b")], "stock": [models("a", "a", "c")]}
    policies = summary(tmp_path, runs, raw)["cells"][0]["policies"]
    assert policies["ddp-gloo"]["weights_sha256"] == ["a", "b"] and "error" not in policies["ddp-gloo"]
    assert policies["stock"]["error"] == "2 different models at the end of 1 runs from one seed"


def test_failed_repeat_is_an_error_beside_measurements(tmp_path: Path) -> None:
    results = counted(tmp_path, {"stock": [failed(), failed()], "prophet": [run([1.0] * 5, statuses=2), failed()]})
    policies = results.as_json()["cells"][0]["policies"]
    assert policies["stock"] == {"error": "repeat 1 of 2: hung (and 1 more)", "log_tail": {"worker0": ["last [words]"]}}
    assert policies["prophet"]["error"] == "repeat 2 of 2: hung"
    assert policies["prophet"]["iteration_s"]["median"] == 1.0
    assert results.cells[0].ratios == {}
    assert failures(results) == 2


def test_accuracy_and_weights_of_training(tmp_path: Path) -> None:
    runs = {
        "stock": [run([1.0] * 5, accuracy=0.97)],
        "prophet": [run([0.5] * 5, statuses=2, accuracy=0.96)],
        "p3": [run([0.5] * 5, statuses=2, accuracy=0.96, weights_sha256="other")],
    }
    cell = summary(tmp_path, runs, DIGITS)["cells"][0]
    assert cell["policies"]["stock"]["accuracy"] == 0.97
    assert cell["policies"]["prophet"]["same_weights_as_stock"] is True
    assert cell["policies"]["p3"]["same_weights_as_stock"] is False
    assert cell["lower_bound_s"] is None
    assert cell["policies"]["stock"]["wait_s"] is None
    three = summary(tmp_path, runs, changed(DIGITS, "cluster.workers", 3))["cells"][0]
    assert three["policies"]["prophet"]["same_weights_as_stock"] is True
    assert "same_weights_as_stock" not in three["policies"]["p3"], "the sum of three depends on who comes first"


def test_low_accuracy_or_different_models_are_failures(tmp_path: Path) -> None:
    runs = {
        "stock": [run([1.0] * 5, accuracy=0.42)],
        "prophet": [
            run([1.0] * 5, statuses=2, accuracy=0.95),
            run([1.0] * 5, statuses=2, accuracy=0.95, weights_sha256="other"),
        ],
    }
    policies = summary(tmp_path, runs, DIGITS)["cells"][0]["policies"]
    assert policies["stock"]["error"] == "accuracy 0.420, below the target of 0.9"
    assert policies["prophet"]["error"] == "2 different models at the end of 2 runs from one seed"


def test_bound_is_unknown(tmp_path: Path) -> None:
    series = [{"at_s": 0, "rate": "250mbit"}, {"at_s": 5, "rate": "1gbit"}]
    raw = changed(REPLAY, "cluster.bandwidth", series)
    assert summary(tmp_path, {"stock": [run([1.0] * 5)]}, raw)["cells"][0]["lower_bound_s"] is None
    for unknown in (
        changed(REPLAY, "cluster.bandwidth", "none"),
        {**REPLAY, "simulator": {"exchange": "asynchronous"}},
    ):
        assert lower_bound(loaded(unknown, tmp_path).cells[0]) is None


def test_bound_of_unshaped_link_uses_measured_rate(tmp_path: Path) -> None:
    raw = changed(STOCK_ALONE, "cluster.bandwidth", {"default": "none", "server0": "1gbit"})
    experiment = loaded(raw, tmp_path)
    links = {"worker0 up": 400e6, "worker0 down": 300e6, "worker1 up": 500e6, "worker1 down": 500e6, "server0 up": 9e8}
    results = summarize(experiment, [CellRuns(experiment.cells[0], links, {"stock": [run([1.0] * 5)]})])
    (cell,) = results.cells
    profile = experiment.cells[0].profile
    assert profile is not None
    assert cell.lower_bound_s == pytest.approx(lower_bound_s(profile, 300e6 / 8))
    assert results.as_json()["cells"][0]["bound_is_measured"] is True
    assert cell.narrow_link == "server", "of those with a limit"
    assert cell.setting == {"bandwidth": {"server0": 1e9}}
    assert "server0=1gbit" in printed(results) and "at the measured rate" in printed(results)


def test_bound_with_half_precision(tmp_path: Path) -> None:
    whole = loaded(REPLAY, tmp_path).cells[0]
    slow = changed(REPLAY, "cluster.bandwidth", "125mbit")
    half = loaded(changed(slow, "job.compression", "fp16"), tmp_path).cells[0]
    assert whole.profile == half.profile, "what is computed is the same"
    assert half.wire is not None and half.wire.total_bytes == pytest.approx(12.8e6, rel=1e-3)
    assert lower_bound(half) == pytest.approx(lower_bound(whole), rel=1e-6)
    as_it_is = lower_bound(loaded(slow, tmp_path).cells[0])
    assert as_it_is is not None and as_it_is > 1.2 * (lower_bound(half) or 0.0)


def test_bound_includes_delays(tmp_path: Path) -> None:
    near, far, ring = (
        loaded(changed({**REPLAY, "simulator": simulator}, "cluster.delay", delay), tmp_path).cells[0]
        for delay, simulator in ((0, {}), ("5ms", {}), ("5ms", {"exchange": "ring"}))
    )
    bound = lower_bound(near)
    assert bound is not None
    assert lower_bound(far) == pytest.approx(bound + 0.010)
    assert lower_bound(ring) == pytest.approx(bound + 0.010), "with two workers it carries as much"


def test_round_trips_and_delay_in_results(tmp_path: Path) -> None:
    experiment = loaded(changed(STOCK_ALONE, "cluster.delay", "5ms"), tmp_path)
    runs = {"stock": [run([1.0] * 5)]}
    done = CellRuns(experiment.cells[0], LINKS, runs, round_trips={"worker0": 0.01})
    (cell,) = summarize(experiment, [done]).as_json()["cells"]
    assert cell["round_trips"] == {"worker0": 0.01}
    assert cell["setting"] == {"bandwidth": 250e6, "delay": 0.005}
    assert "delayed by a relay" in cell["emulated"]
    assert "bound_is_measured" not in cell


def test_narrow_link_of_cell_and_peer(tmp_path: Path) -> None:
    runs = {"stock": [run([2.0] * 5)], "ddp-gloo": [run([1.0] * 5)]}
    cell = summary(tmp_path, runs)["cells"][0]
    assert cell["narrow_link"] == "worker uplink"
    assert not any("narrow_link" in policy for policy in cell["policies"].values())
    raw = changed(REPLAY, "cluster.bandwidth", {"default": "250mbit", "server0": "250mbit"})
    results = counted(tmp_path, runs, raw)
    cell = results.as_json()["cells"][0]
    assert cell["narrow_link"] == "server"
    assert cell["policies"]["ddp-gloo"]["narrow_link"] == "worker uplink"
    assert "narrow_link" not in cell["policies"]["stock"]
    for words in (
        "narrow link: server",
        "ddp-gloo: narrow_link worker uplink",
        "BytePS, DistributedDataParallel real",
    ):
        assert words in printed(results)


def test_models_are_compared_within_a_framework(tmp_path: Path) -> None:
    def mxnet(name: str) -> dict[str, str]:
        return {"name": f"mxnet-{name}", "base": name, "framework": "mxnet"}

    entries = ["stock", "ddp-gloo", "mxnet-kvstore", mxnet("stock"), mxnet("prophet")]
    digests = ["a", "a", "b", "b", "c"]
    experiment = loaded(changed(DIGITS, "policies", entries), tmp_path)
    names = [policy.name for policy in experiment.cells[0].policies]
    runs = {
        name: [run([1.0] * 5, accuracy=0.97, weights_sha256=digest)]
        for name, digest in zip(names, digests, strict=True)
    }
    outcomes = summarize(experiment, [CellRuns(experiment.cells[0], LINKS, runs)]).as_json()["cells"][0]["policies"]
    assert [outcomes[name].get("same_weights_as_stock") for name in names] == [None, True, True, None, False]


def test_results_are_written_whole(tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    results = counted(tmp_path, {"stock": [run([1.0] * 5)]})
    write_results(results, path)
    record = json.loads(path.read_text())
    assert (record["schema"], record["config"]["job"]["kind"]) == (2, "replay")
    with pytest.raises(ValueError):
        write_results(results.model_copy(update={"config": {"not a number": float("nan")}}), path)
    assert json.loads(path.read_text()) == record, "a failed write must leave the file alone"
    before = path.read_text()
    write_results(read_results(path), path)
    assert path.read_text() == before, "what is read and written again stays the same"


def test_table_fits_80_columns(tmp_path: Path) -> None:
    longer = [9.0, 9.0, *[1.5] * 60, *[1.0] * 60]
    runs = {"stock": [run([2.0] * 122)], "prophet": [run(longer, statuses=2)]}
    text = printed(counted(tmp_path, {**runs, "bytescheduler": [failed("ended [early]")]}), width=80)
    words = " ".join(text.split())
    assert words.startswith(MEANS)
    for said in ("250mbit", "lower bound", "compute replaced by sleeping", "ended [early]", "last [words]"):
        assert said in words
    rows = {line.split()[0]: line.split()[1:] for line in text.splitlines() if line.strip()}
    #                          mean, first 50, first 100, at rest, median, p10-p90, samples, x stock, x bound
    assert rows["prophet"] == ["1.250", "1.800", "1.460", "1.008", "1.250", "1.000-1.500", "16", "1.60", "1.39"]
    assert rows["bytescheduler"] == ["failed", *"--------"]
