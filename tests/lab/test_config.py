"""Configs: what they mean, and one clear line for everything that can be wrong with them."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from prophet_scheduler.core.errors import UserError
from prophet_scheduler.lab.config import load_experiment
from prophet_scheduler.lab.results_view import describe_setting
from support.configs import DIGITS, REPLAY, changed, loaded, written

CONFIGS = Path(__file__).parents[2] / "configs"

TRAFFIC = {"node": "worker0", "until_s": 9, "rate": "1mbit"}
KILLED = {"kind": "killed", "node": "worker0"}
STOPPED = {"kind": "stopped", "node": "server0", "until_s": 5}
SLOW = {"kind": "slow-link", "node": "worker1", "until_s": 1, "rate": "20mbit"}
SERIES = [{"at_s": 0, "rate": "250mbit"}, {"at_s": 2, "rate": "100mbit"}]
MIX = {"shares": [1.0, 0.1], "chances": [0.5, 0.5], "until_s": 20}
MXNET_P3 = {"name": "mine", "base": "mxnet-p3"}


def p3(**keys: Any) -> list[Any]:
    return [{"name": "p3", **keys}]


BAD: dict[str, list[tuple[Any, str]]] = {
    # key: (value, what the line says after the file's name)
    "colour": [(1, "colour: unknown key; the keys here are name, engine, repeats, time_limit_s, job, cluster")],
    "name": [("a/b", "name: it must match pattern")],
    "engine": [("horovod", "engine: it must be 'byteps' or 'byteps_async' or 'ddp' or 'kvstore' or 'simulator'")],
    "repeats": [
        ("two", "repeats: it must be a valid integer, not 'two'"),
        (True, "repeats: it must be a valid integer, not True"),
        (0, "repeats: it must be greater than or equal to 1, not 0"),
    ],
    "time_limit_s": [
        ("soon", "time_limit_s: it must be a valid number, not 'soon'"),
        (float("inf"), "time_limit_s: it must be a finite number"),
    ],
    "cluster": [
        (None, "cluster: is missing"),
        ({"bandwidth": SERIES, "faults": [SLOW]}, "cluster: faults: the rate of worker1 cannot be slow-link where"),
        ({"bandwidth": SERIES, "rate_mix": MIX}, "cluster: rate_mix: bandwidth already changes the workers' rates"),
        ({"bandwidth": "none", "rate_mix": MIX}, "cluster: rate_mix: .* must be a rate for each of them"),
    ],
    "cluster.rate_mix": [
        ({**MIX, "chances": [0.5, 0.4]}, r"cluster.rate_mix: 2 shares need as many chances, which add up to 1"),
        ({**MIX, "chances": [1.0]}, r"cluster.rate_mix: 2 shares need as many chances"),
        ({**MIX, "shares": [1.5, 0.1]}, r"cluster.rate_mix.shares\[0\]: it must be less than or equal to 1"),
        ({**MIX, "rates": [1]}, "cluster.rate_mix.rates: unknown key; the keys here are shares, chances, period_s"),
    ],
    "cluster.rack": [(1, "cluster.rack: unknown key; the keys here are workers, servers, bandwidth")],
    "cluster.workers": [
        (0, "cluster.workers: it must be greater than or equal to 1, not 0"),
        (2.5, "cluster.workers: it must be a valid integer, not 2.5"),
    ],
    "cluster.servers": [(0, "cluster.servers: it must be greater than or equal to 1, not 0")],
    "cluster.bandwidth": [
        (None, "cluster.bandwidth: is missing"),
        ("fast", "cluster.bandwidth: 'fast' is not a rate; write e.g. 250mbit"),
        (0, "cluster.bandwidth: 0 is too small for a rate"),
        ({"worker0": "slow"}, "cluster.bandwidth: 'slow' is not a rate"),
        ({"worker7": "1gbit"}, "cluster: bandwidth names 'worker7'; the nodes are default, scheduler"),
        ({}, "cluster.bandwidth: names no node"),
        ([{"at_s": 0}], "cluster.bandwidth: {'at_s': 0} is not a point of a series"),
        ([{"at_s": 5, "rate": "1gbit"}], "cluster.bandwidth: a series of rates starts with at_s: 0"),
        ([{"at_s": "now", "rate": "1gbit"}], "cluster.bandwidth: at_s is 'now'; it must be 0 or more"),
        ([{"at_s": 0, "rate": "none"}], "cluster.bandwidth: 'none' is not a rate"),
    ],
    "cluster.delay": [
        ("far", "cluster.delay: 'far' is not a time; write e.g. 5ms"),
        (-0.001, "cluster.delay: -0.001 is not a time"),
        ({"worker0": "1ms"}, "cluster.delay: {'worker0': '1ms'} is not a time"),
    ],
    "cluster.traffic": [
        ([{"node": "worker0"}], r"cluster.traffic\[0\].until_s: is missing"),
        ([{"nodes": []}], r"cluster.traffic\[0\].nodes: unknown key; the keys here are node, from_s"),
        ([{**TRAFFIC, "node": "worker7"}], "cluster: traffic names 'worker7'; the nodes are scheduler"),
        ([{**TRAFFIC, "from_s": 9}], r"cluster.traffic\[0\]: until_s is 9; it must be above from_s, 9"),
        ([TRAFFIC, {**TRAFFIC, "from_s": 5}], "cluster: traffic at worker0 from 5 s begins before the previous one"),
    ],
    "cluster.faults": [
        ([{"kind": "fire"}], r"cluster.faults\[0\].kind: it must be 'link-down', 'slow-link', .*, not 'fire'"),
        ([{"kind": "killed"}], r"cluster.faults\[0\]: killed needs node; give it a value"),
        ([{"kind": "killed", "nod": 1}], r"cluster.faults\[0\].nod: unknown key; the keys here are kind"),
        ([{**KILLED, "node": "worker7"}], "cluster: faults names 'worker7'; the nodes are sched"),
        ([{**STOPPED, "rate": "1mbit"}], r"cluster.faults\[0\]: rate is not a key of stopped; leave it out"),
        (
            [{**STOPPED, "kind": "slow-link", "rate": "1kbit"}],
            r"cluster.faults\[0\]: bandwidth of server0: 0.001 Mbit/s cannot be emulated here",
        ),
        ([{**STOPPED, "from_s": 5}], r"cluster.faults\[0\]: until_s is 5; it must be above from_s, 5"),
        ([{**STOPPED, "every_s": 5}], r"cluster.faults\[0\]: every_s is 5; it must be above the 5 s that the fault"),
        ([KILLED, {**KILLED, "from_s": 5}], "cluster: faults: killed of worker0 from 5 s begins before the previous"),
        ([{"kind": "messages-dropped", "percent": 1}] * 2, "cluster: faults: messages-dropped appears twice; keep"),
    ],
    "job": [
        (3, "job: it must be a mapping"),
        ({**DIGITS["job"], "total_bytes": "1MB"}, r"job.total_bytes: unknown key; the keys here are .*target_accuracy"),
        ({"kind": "synthetic", "image_size": 16}, "job.image_size: it must be greater than or equal to 32, not 16"),
        ({"kind": "synthetic", "model": "vgg19"}, "job.model: it must be 'resnet18' or 'resnet50', not 'vgg19'"),
        ({"kind": "transformer", "clip_norm": -1}, "job.clip_norm: it must be greater than or equal to 0"),
        ({"kind": "transformer", "compile": "all"}, "job.compile: it must be 'no', 'blocks' or 'whole', not 'all'"),
    ],
    "job.kind": [
        (None, "job.kind: is missing"),
        ("video", "job.kind: 'video' is not a kind of job; use digits, synthetic, transformer, replay, asynchr"),
    ],
    "job.speed": [(1, "job.speed: unknown key; the keys here are iterations, warmup")],
    "job.compression": [("fp8", "job.compression: it must be 'none' or 'fp16', not 'fp8'")],
    "job.total_bytes": [("lots", "job.total_bytes: 'lots' is not a size; write e.g. 25.6MB")],
    "job.backward_s": [(-1, "job.backward_s: it must be greater than 0, not -1")],
    "job.warmup": [(5, "job: warmup is 5; with 6 iterations it can be at most 4")],
    "job.profile": [("lenet", r"job.profile: .*lenet is missing; name a profile file or a built-in profile \(resn")],
    "policies": [
        ([], "policies: .* at least 1 item"),
        (p3(credits=4), r"policies\[0\].credits: unknown key; the keys here are name, base"),
        ([{"name": "ddp-gloo", "framework": "mxnet"}], r"policies\[0\].framework: ddp-gloo is for torch"),
        (
            [{**MXNET_P3, "framework": "torch"}],
            r"policies\[0\].framework: mxnet-p3 is for mxnet only; for torch take async-stock",
        ),
        ([{"name": "stock", "framework": "jax"}], r"policies\[0\].framework: it must be 'torch' or 'mxnet'"),
        ([{"name": "ddp-gloo", "partition_bytes": "1MB"}], r"policies\[0\]: partition_bytes is a setting of"),
        (
            [{**MXNET_P3, "env": {"BYTEPS_PARTITION_BYTES": "1"}}],
            r"policies\[0\].env: BYTEPS_PARTITION_BYTES is not a policy setting; MXNET_... and DMLC_PS_... and PS_",
        ),
        (["profet"], r"policies\[0\]: unknown policy 'profet'; did you mean prophet\? the known ones are stock,"),
        (["p3", ""], r"policies\[1\]: unknown policy ''; the known ones are"),
        ([7], r"policies\[0\]: .* not 7"),
        (["p3", "p3"], "policies: 'p3' appears twice; rename one and give it a base"),
        ([{"name": "mine", "base": "yours"}], r"policies\[0\]: unknown policy 'yours'; the known ones are"),
        (p3(credit_bytes="4MB"), r"policies\[0\]: credit_bytes is a setting of bytescheduler"),
        (p3(partition_bytes="x"), r"policies\[0\].partition_bytes: 'x' is not a size"),
        (p3(partition_bytes=[]), r"policies\[0\].partition_bytes: it must have at least 1"),
        (p3(env={"PATH": "/"}), r"policies\[0\].env: PATH is not a policy setting"),
        (p3(env={"BYTEPS_SCHEDULER": "fifo"}), r"policies\[0\].env: BYTEPS_SCHEDULER is no"),
        (p3(env={"PROPHET_FUSON": "0"}), r"no variable PROPHET_FUSON; did you mean PROPHET_FUSION\?"),
        (p3(base="ddp-p3", env={"PROPHET_XYZ": "0"}), r"\[0\].env: Prophet has no variable PROPHET_XYZ; leave it out"),
        (
            [{"name": "stock", "env": {"BYTEPS_PARTITION_BYTES": "lots"}}],
            r"policies\[0\]: BYTEPS_PARTITION_BYTES is 'lots'; it must be a whole number of bytes",
        ),
        (
            ["stock", {"name": "ddp-prophet", "env": {"PROPHET_MONITOR_S": "soon"}}],
            r"policies\[1\]: PROPHET_MONITOR_S is 'soon'; it must be a number of at least 0.1",
        ),
        (
            [{"name": "bytescheduler", "env": {"PROPHET_CREDIT_BYTES": "-1"}}],
            r"policies\[0\]: PROPHET_CREDIT_BYTES is '-1'; it must be a number of at least",
        ),
        (
            [{"name": "ddp-gloo", "env": {"PROPHET_LAB_BUCKET_CAP_MB": "abc"}}],
            r"policies\[0\]: PROPHET_LAB_BUCKET_CAP_MB is 'abc'; it must be a number of at least 0",
        ),
        (
            [{"name": "bytescheduler", "credit_bytes": []}],
            r"policies\[0\].credit_bytes: is an empty list; give it a value",
        ),
    ],
    "sweep": [
        ([], "sweep: must be a list of points"),
        ([{"repeats": 3}], r"sweep\[0\]: must be a mapping that varies job, cluster, policies"),
        ([{}, {"cluster": {"bandwidth": "fast"}}], r"sweep\[1\].cluster.bandwidth: 'fast' is not a rate"),
    ],
}
EACH = [(key, value, line) for key, wrong in BAD.items() for value, line in wrong]


@pytest.mark.parametrize(("key", "value", "line"), EACH, ids=[f"{key}={value}" for key, value, _ in EACH])
def test_mistake_is_one_line_with_key(key: str, value: Any, line: str, tmp_path: Path) -> None:
    path = written(changed(REPLAY, key, value), tmp_path)
    with pytest.raises(UserError, match=line) as caught:
        load_experiment(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("content", "line"),
    [
        (b"- a\n- b\n", "must be a mapping with the keys name"),
        (b"job: [unclosed\n", "is not YAML in line 2"),
        (b"\xff\xfe\x00", "not UTF-8 text"),
        (b"name: 2026-13-45\n", r"is not YAML \(month must be in 1..12\)"),
        (b"[" * 5000, r"is not YAML \(maximum recursion depth"),
    ],
)
def test_file_that_is_no_config(content: bytes, line: str, tmp_path: Path) -> None:
    path = tmp_path / "odd.yaml"
    path.write_bytes(content)
    with pytest.raises(UserError, match=line) as caught:
        load_experiment(path)
    assert "\n" not in str(caught.value)
    with pytest.raises(UserError, match=r"none.yaml: cannot be read \(No such file"):
        load_experiment(tmp_path / "none.yaml")


def test_default_name_is_file_name(tmp_path: Path) -> None:
    path = written(changed(REPLAY, "name", None), tmp_path).rename(tmp_path / "my first try.yaml")
    assert load_experiment(path).name == "my-first-try"


def test_bad_recorded_profile_is_named(tmp_path: Path) -> None:
    gradient = {"name": "g", "bytes": -4, "generation_s": 0.5, "forward_s": 0.1}
    (tmp_path / "bad.json").write_text(json.dumps({"schema": 1, "name": "bad", "gradients": [gradient]}))
    with pytest.raises(UserError, match=r"bad\.json.* 'bytes' is -4; it must be above 0"):
        loaded(changed(REPLAY, "job.profile", "bad.json"), tmp_path)


@pytest.mark.parametrize("path", sorted(CONFIGS.glob("*.yaml")), ids=lambda path: path.stem)
def test_shipped_configs_are_valid(path: Path) -> None:
    experiment = load_experiment(path)
    assert experiment.name == path.stem
    for cell in experiment.cells:
        assert cell.engine.called_here("prophet") in {policy.name for policy in cell.policies}


def test_bandwidth_of_workers_and_named_nodes(tmp_path: Path) -> None:
    uniform = loaded(REPLAY, tmp_path).cells[0].cluster
    assert [uniform.bandwidth.rate(node) for node in uniform.nodes] == [None, None, 250e6, 250e6]
    named = changed(REPLAY, "cluster.bandwidth", {"default": "1gbit", "worker1": "100mbit", "server0": 2_000_000_000})
    cluster = loaded(named, tmp_path).cells[0].cluster
    assert [cluster.bandwidth.rate(node) for node in cluster.nodes] == [None, 2e9, 1e9, 100e6]


def test_unshaped_link(tmp_path: Path) -> None:
    points = [{"cluster": {"bandwidth": "none"}}, {"cluster": {"bandwidth": {"default": "1gbit", "worker1": "none"}}}]
    first, second = loaded({**REPLAY, "sweep": points}, tmp_path).cells
    assert [first.cluster.bandwidth.rate(node) for node in first.cluster.nodes] == [None] * 4
    assert [second.cluster.bandwidth.rate(node) for node in second.cluster.nodes] == [None, None, 1e9, None]
    assert (first.setting, second.setting) == ({"bandwidth": None}, {"bandwidth": {"default": 1e9, "worker1": None}})
    assert describe_setting(first.setting) == "not shaped"


def test_sweep_over_delays(tmp_path: Path) -> None:
    points = [{"cluster": {"delay": delay}} for delay in (0, "5ms")]
    cells = loaded({**REPLAY, "sweep": points}, tmp_path).cells
    assert [cell.setting["delay"] for cell in cells] == [0.0, 0.005]
    assert [describe_setting(cell.setting) for cell in cells] == ["250mbit, delay 0s", "250mbit, delay 5ms"]
    (steady,) = loaded(changed(REPLAY, "cluster.delay", "5ms"), tmp_path).cells
    assert steady.setting == {"bandwidth": 250e6, "delay": 0.005}, "it is not varied, and is told"


def test_traffic_and_series_of_rates(tmp_path: Path) -> None:
    raw = changed(REPLAY, "cluster.traffic", [{"node": "worker1", "from_s": 5, "until_s": 10, "rate": "80mbit"}])
    (cell,) = loaded(raw, tmp_path).cells
    assert cell.setting["traffic"] == [{"node": "worker1", "from_s": 5.0, "until_s": 10.0, "rate": 80e6}]
    assert describe_setting(cell.setting) == "250mbit, others' 80mbit at worker1 5-10s"
    series = [{"at_s": 0, "rate": "250mbit"}, {"at_s": 20, "rate": "100mbit"}]
    bandwidth = loaded(changed(REPLAY, "cluster.bandwidth", series), tmp_path).cells[0].cluster.bandwidth
    assert bandwidth.rate("worker0") == 250e6
    assert bandwidth.changes == ((20.0, 100e6),)
    assert bandwidth.as_setting() == [{"at_s": 0.0, "rate": 250e6}, {"at_s": 20.0, "rate": 100e6}]


def test_sweep_overrides_leaves(tmp_path: Path) -> None:
    points = [{"cluster": {"bandwidth": "1gbit"}, "job": {"total_bytes": "80MB"}}, {"cluster": {"workers": 1}}]
    first, second = loaded({**REPLAY, "sweep": points}, tmp_path).cells
    assert first.setting == {"bandwidth": 1e9, "total_bytes": 80_000_000}
    assert (first.cluster.workers, first.job.iterations, first.job.warmup) == (2, 6, 2)
    assert first.profile is not None and first.profile.total_bytes == pytest.approx(80e6, rel=1e-4)
    assert second.setting == {"bandwidth": 250e6, "workers": 1}
    assert second.profile is not None and second.profile.total_bytes == pytest.approx(25.6e6, rel=1e-4)
    raw = {**changed(REPLAY, "cluster.bandwidth", None), "sweep": [{"cluster": {"bandwidth": {"worker0": "1gbit"}}}]}
    assert loaded(raw, tmp_path).cells[0].setting == {"bandwidth": {"worker0": 1e9}}, "the base leaves it out"


def test_sweep_point_with_kind_replaces_job(tmp_path: Path) -> None:
    points = [{}, {"job": DIGITS["job"]}, {"job": {"kind": "replay", "total_bytes": "1MB"}}]
    first, second, third = loaded({**REPLAY, "sweep": points}, tmp_path).cells
    assert (first.setting, first.job.kind) == ({"bandwidth": 250e6}, "replay")
    assert (second.setting, second.profile) == ({"bandwidth": 250e6, "job": "digits mlp"}, None)
    assert third.setting == {"bandwidth": 250e6, "job": "replay resnet50"}
    assert third.job.iterations == 30, "nothing of the base's job is left"
    with pytest.raises(UserError, match=r"yaml: name: it must be a valid string, not False"):
        loaded({**REPLAY, "name": False, "sweep": points}, tmp_path)


def test_environment_of_policies(tmp_path: Path) -> None:
    entries = ["stock", "stock-credit", "p3", {"name": "big", "base": "prophet", "partition_bytes": "4MB"}]
    policies = loaded(changed(REPLAY, "policies", entries), tmp_path).cells[0].policies
    assert [(policy.name, policy.hooked, policy.env) for policy in policies] == [
        ("stock", False, {}),
        ("stock-credit", False, {}),
        ("p3", True, {"BYTEPS_SCHEDULER": "p3"}),
        ("big", True, {"BYTEPS_SCHEDULER": "prophet", "BYTEPS_PARTITION_BYTES": "4000000"}),
    ]


def test_framework_and_engine_of_policies(tmp_path: Path) -> None:
    entries = ["stock", "prophet", {"name": "mxnet-stock", "base": "stock", "framework": "mxnet"}]
    entries += ["ddp-gloo", "mxnet-kvstore", {"name": "small", "base": "mxnet-p3", "env": {"MXNET_X": "1"}}]
    raw = changed(REPLAY, "policies", entries)
    by_name = {p.name: (p.framework, p.engine.name, p.hooked) for p in loaded(raw, tmp_path).cells[0].policies}
    assert by_name == {
        "stock": ("torch", "byteps", False),
        "prophet": ("torch", "byteps", True),
        "mxnet-stock": ("mxnet", "byteps", False),
        "ddp-gloo": ("torch", "ddp", False),
        "mxnet-kvstore": ("mxnet", "kvstore", False),
        "small": ("mxnet", "kvstore", False),
    }


def test_policies_of_other_engine(tmp_path: Path) -> None:
    entries: list[Any] = ["stock", "prophet", "ddp-gloo-5", {"name": "big", "base": "p3", "partition_bytes": "4MB"}]
    entries += [{"name": "byteps-prophet", "base": "prophet", "engine": "byteps"}]
    raw = {**changed(REPLAY, "policies", entries), "engine": "ddp"}
    cell = loaded(raw, tmp_path).cells[0]
    assert cell.engine.name == "ddp"
    assert [(p.name, p.base, p.engine.name, p.recorded) for p in cell.policies] == [
        ("ddp-gloo", "ddp-gloo", "ddp", False),
        ("ddp-prophet", "ddp-prophet", "ddp", True),
        ("ddp-gloo-5", "ddp-gloo-5", "ddp", False),
        ("big", "ddp-p3", "ddp", True),
        ("byteps-prophet", "prophet", "byteps", True),
    ]
    assert cell.policies[3].env == {"PROPHET_PARTITION_BYTES": "4000000"}
    chosen = loaded(raw, tmp_path, policies=["p3", "byteps-prophet", "ddp-gloo"]).cells[0].policies
    assert [policy.name for policy in chosen] == ["ddp-p3", "byteps-prophet", "ddp-gloo"]
    by_default = loaded(
        changed(REPLAY, "policies", ["ddp-prophet", {"name": "x", "base": "p3", "engine": "ddp"}]), tmp_path
    )
    assert [policy.base for policy in by_default.cells[0].policies] == ["ddp-prophet", "ddp-p3"]


@pytest.mark.parametrize(
    ("engine", "entry", "words"),
    [
        ("ddp", "bytescheduler", "'bytescheduler' does not run on DistributedDataParallel; Prophet's policies there"),
        ("kvstore", "prophet", "'prophet' does not run on MXNet's KVStore; Prophet has no policies there"),
        ("ddp", {"name": "x", "base": "prophet", "engine": "horovod"}, "engine: it must be 'byteps' or"),
        ("ddp", {"name": "ddp-gloo", "partition_bytes": "1MB"}, "partition_bytes is a setting of BytePS, not of ddp-"),
    ],
)
def test_policy_unknown_to_engine(engine: str, entry: Any, words: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=re.escape(words)):
        loaded({**changed(REPLAY, "policies", [entry]), "engine": engine}, tmp_path)


def test_lists_of_options_make_all_combinations(tmp_path: Path) -> None:
    entry = {"name": "bytescheduler", "credit_bytes": ["256KiB", "4MB"], "partition_bytes": ["128KiB", "1MiB"]}
    policies = loaded(changed(REPLAY, "policies", [entry]), tmp_path).cells[0].policies
    assert [policy.name for policy in policies] == [
        "bytescheduler-256KiB-128KiB",
        "bytescheduler-256KiB-1MiB",
        "bytescheduler-4MB-128KiB",
        "bytescheduler-4MB-1MiB",
    ]
    assert policies[0].env == {
        "BYTEPS_SCHEDULER": "bytescheduler",
        "PROPHET_CREDIT_BYTES": "262144",
        "BYTEPS_PARTITION_BYTES": "131072",
    }


def test_command_line_chooses_policies(tmp_path: Path) -> None:
    raw = changed(REPLAY, "policies", ["stock", {"name": "mine", "base": "p3"}])
    experiment = loaded(raw, tmp_path, policies=["mine", "fifo", "mine"], repeats=5)
    assert [policy.name for policy in experiment.cells[0].policies] == ["mine", "fifo"]
    assert experiment.repeats == 5
    with pytest.raises(UserError, match="--policy: unknown policy 'yours'; the known ones are stock, mine, stock-cr"):
        loaded(raw, tmp_path, policies=["yours"])


@pytest.mark.parametrize(
    ("key", "value", "line"), [("compression", "fp16", "fp16 is for policies"), ("clip_norm", 1.0, "replays clip only")]
)
def test_half_precision_and_clipping_are_for_torch(key: str, value: object, line: str, tmp_path: Path) -> None:
    raw = {**REPLAY, "policies": ["ddp-gloo", "ddp-prophet", "stock"]}
    (cell, _) = loaded({**raw, "sweep": [{"job": {key: value}}, {}]}, tmp_path).cells
    assert cell.setting[key] == value
    with pytest.raises(UserError, match=f"job.{key}: {line} in torch, and mxnet-kvstore trains in mxnet"):
        loaded(changed({**raw, "policies": ["mxnet-kvstore"]}, f"job.{key}", value), tmp_path)


def test_transformer_is_for_torch(tmp_path: Path) -> None:
    job = {"kind": "transformer", "clip_norm": 0.5}
    cell = loaded(changed(REPLAY, "job", job), tmp_path).cells[0]
    assert cell.job.model_dump()["clip_norm"] == 0.5 and cell.profile is None
    (varied,) = loaded({**REPLAY, "sweep": [{"job": job}]}, tmp_path).cells
    assert varied.setting["job"] == "transformer small"
    raw = {**REPLAY, "job": job, "policies": ["stock", "mxnet-kvstore"]}
    with pytest.raises(UserError, match=r"job.kind: transformer runs only in torch, and mxnet-kvstore trains in"):
        loaded(raw, tmp_path)


LINK_DOWN = {"kind": "link-down", "node": "worker0", "from_s": 2, "until_s": 10}
LOSS = {"kind": "messages-dropped", "percent": 2}


def test_faults_in_setting(tmp_path: Path) -> None:
    slow = {**SLOW, "every_s": 5}
    again = {"kind": "killed", "node": "worker1", "from_s": 30, "until_s": 40}
    raw = changed(REPLAY, "cluster.faults", [LINK_DOWN, slow, again, LOSS])
    (cell,) = loaded(raw, tmp_path).cells
    assert cell.setting["faults"] == [LINK_DOWN, {**slow, "rate": 20e6}, again, LOSS]
    assert describe_setting(json.loads(json.dumps(cell.setting))) == (
        "250mbit, worker0 link-down 2-10s, worker1 slow-link to 20mbit 0-1s every 5s,"
        " worker1 killed 30-40s and started anew, 2% of messages dropped"
    )
    (cell,) = loaded(REPLAY, tmp_path).cells
    assert "faults" not in cell.setting


@pytest.mark.parametrize(
    ("fault", "line"),
    [
        ({**LINK_DOWN, "node": "server0"}, "cluster.faults[0].node: server0 has no part in ddp-gloo; leave the policy"),
        (LOSS, "cluster.faults[0]: DistributedDataParallel cannot drop messages; leave ddp-gloo out"),
    ],
)
def test_fault_without_effect_is_named(fault: object, line: str, tmp_path: Path) -> None:
    raw = changed(REPLAY, "policies", ["stock", "ddp-gloo"])
    with pytest.raises(UserError, match=re.escape(line)):
        loaded(changed(raw, "cluster.faults", [fault]), tmp_path)
    assert loaded(changed(changed(REPLAY, "policies", ["stock"]), "cluster.faults", [fault]), tmp_path)
