"""Rules for every engine's description, so that an experiment can run it."""

from __future__ import annotations

import ast
import importlib.util
import pkgutil
import re
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from prophet_scheduler import plugins
from prophet_scheduler.core import settings
from prophet_scheduler.core.errors import UserError
from prophet_scheduler.engines.registry import engine_of, engines, peers, scheduled_engine
from prophet_scheduler.engines.spec import STOCK, EngineSpec, Framework, RunNetwork, Variant, is_worker
from prophet_scheduler.lab.cluster_config import Bandwidth, ClusterConfig
from prophet_scheduler.lab.config import Cell
from prophet_scheduler.lab.contenders import Contender, ContenderEntry, expand_policies, known_policies
from prophet_scheduler.lab.doctor import obstacle
from prophet_scheduler.lab.job_config import ReplayJob
from prophet_scheduler.lab.launchers import command, environment, nodes_of
from prophet_scheduler.lab.narrow_link import narrow_link
from prophet_scheduler.lab.simulated import prepare
from prophet_scheduler.models import zoo
from prophet_scheduler.policies import all_definitions

ROOT = Path(__file__).parent.parent.parent
CLUSTER = ClusterConfig.model_construct(workers=3, servers=2, bandwidth=Bandwidth(1e9))
ADDRESSES = {node: f"10.0.0.{place}" for place, node in enumerate(CLUSTER.nodes)}
NETWORK = RunNetwork(3, 2, ADDRESSES, "veth7", 23007, "/sockets/here")

every_engine = pytest.mark.parametrize("engine", engines().values(), ids=list(engines()))
VARIANTS = [(engine, variant) for engine in engines().values() for variant in engine.variants]
every_variant = pytest.mark.parametrize(
    ("engine", "variant"), VARIANTS, ids=[f"{engine.name}-{variant.name}" for engine, variant in VARIANTS]
)


def contender(variant: Variant, framework: Framework) -> Contender:
    entry = ContenderEntry.model_construct(name=variant.name, framework=framework)
    (only,) = expand_policies([entry], "config.yaml: policies")
    return only


def test_the_entry_points_are_the_engines() -> None:
    assert list(engines()) == ["byteps", "byteps_async", "ddp", "kvstore"]
    assert scheduled_engine().name == "byteps"
    assert {spec.name for spec in peers().values()} == {"byteps_async", "ddp", "kvstore"}
    assert {"ddp-gloo", "ddp-gloo-25", "ddp-prophet", "mxnet-kvstore", "mxnet-p3"} <= set(peers())


def test_exactly_one_engine_has_what_all_are_compared_with() -> None:
    assert scheduled_engine().variant(STOCK) is not None
    names = [variant.name for _, variant in VARIANTS]
    assert len(names) == len(set(names)) >= 5
    assert all(engine_of(variant.name) is engine for engine, variant in VARIANTS)
    assert engine_of("prophet") is scheduled_engine(), "a policy runs on the engine that is scheduled"


def test_every_policy_that_can_runs_on_distributed_data_parallel() -> None:
    assert {name for name in known_policies() if name.startswith("ddp-") and not name.startswith("ddp-gloo")} == {
        f"ddp-{name}" for name, definition in all_definitions().items() if not definition.servers_only
    }


@every_engine
def test_its_first_variant_is_the_engine_as_its_users_run_it(engine: EngineSpec) -> None:
    assert engine.stock == engine.variants[0].name
    assert engine.variants[0].policy is None
    if engine.scheduled:
        assert (engine.stock, engine.called_here("p3")) == (STOCK, "p3")
    else:
        assert engine.called_here(STOCK) == engine.stock
    for variant in engine.variants:
        assert engine.called_here(variant.name) == (engine.stock if variant.name == STOCK else variant.name)
        assert variant.policy is None or engine.called_here(variant.policy) == variant.name
        assert variant.policy is None or engine.check is not None, "the doctor knows whether Prophet can run there"


@every_engine
def test_its_words_and_settings_are_complete(engine: EngineSpec) -> None:
    assert engine.name.isidentifier() and engine.words and engine.unsimulated
    assert engine.frameworks and engine.variants and engine.settings
    assert engine.topology.worker_share(3) >= 1
    assert engine.topology.through_servers == ("server" in engine.programs)


@every_engine
def test_the_shells_variables_of_an_engine_reach_no_job(engine: EngineSpec) -> None:
    foreign = {**{f"{prefix}OF_ANOTHER_JOB": "9" for prefix in engine.prefixes}, **dict.fromkeys(engine.names, "9")}
    for other in engines().values():
        env = environment(contender(other.variants[0], other.frameworks[0]), "worker0", NETWORK, foreign)
        assert not {name for name in foreign if env.get(name) == "9"}
        assert env["OMP_NUM_THREADS"] == "1"


@every_variant
def test_every_node_with_a_role_has_a_program_and_an_environment(engine: EngineSpec, variant: Variant) -> None:
    for framework in engine.frameworks:
        runner = contender(variant, framework)
        nodes = nodes_of(engine, CLUSTER)
        workers = [node for node in nodes if is_worker(node)]
        assert workers == ["worker0", "worker1", "worker2"]
        environments = [environment(runner, node, NETWORK, {"PATH": "/bin"}) for node in nodes]
        assert len({tuple(sorted(env.items())) for env in environments}) == len(nodes)
        for node, env in zip(nodes, environments, strict=True):
            argv = command(runner, node, "replay", ["--out", "x"])
            assert ("--exchange" in argv) == is_worker(node)
            assert variant.env.items() <= env.items()
            assert env["PATH"] == "/bin"


@every_variant
def test_its_exchange_is_there_for_each_of_its_frameworks(engine: EngineSpec, variant: Variant) -> None:
    methods = {"torch": ("distribute", "averaged", "close"), "mxnet": ("trainer",)}
    for framework in engine.frameworks:
        argv = command(contender(variant, framework), "worker0", "replay", [])
        path = argv[argv.index("--exchange") + 1]
        module, _, name = path.partition(":")
        assert importlib.util.find_spec(module) is not None and name
        pytest.importorskip(framework, exc_type=ImportError)
        exchange = pkgutil.resolve_name(path)
        assert all(callable(getattr(exchange, method)) for method in methods[framework])


@every_variant
def test_a_contenders_settings_come_last_and_only_its_engines_own_are_taken(
    engine: EngineSpec, variant: Variant
) -> None:
    # `base` says which policy runs.
    names = [*(name for name in variant.env if name != settings.SCHEDULER), f"{engine.settings[0]}MINE"]
    entry = ContenderEntry(name="mine", base=variant.name, env=dict.fromkeys(names, "77"))
    (mine,) = expand_policies([entry], "config.yaml: policies")
    env = environment(mine, "worker0", NETWORK, {})
    assert {env[name] for name in names} == {"77"}


@every_variant
def test_what_cannot_be_simulated_is_said_with_what_to_do(engine: EngineSpec, variant: Variant) -> None:
    for framework in engine.frameworks:
        runner = contender(variant, framework)
        job = ReplayJob(kind="replay", iterations=4, warmup=1)
        cell = Cell({}, job, CLUSTER, (runner,), zoo.profile("resnet18"))
        if framework in engine.simulated:
            assert engine.partition is not None
            assert prepare(cell, runner).options.partition_bytes == engine.partition.default_bytes
            continue
        with pytest.raises(UserError, match=re.escape(engine.unsimulated)):
            prepare(cell, runner)


@every_engine
def test_what_the_doctor_looks_at_can_be_looked_at(engine: EngineSpec) -> None:
    for framework in engine.frameworks:
        reason = obstacle(contender(engine.variants[0], framework))
        assert reason is None or "\n" not in reason


def test_a_plugin_that_is_not_installed_is_said_with_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = replace(scheduled_engine(), hook="no_such_plugin.hook:check", package=None)
    monkeypatch.setattr("prophet_scheduler.lab.contenders.engine_of", lambda base: engine)
    pytest.importorskip("torch")
    reason = obstacle(Contender(STOCK, STOCK))
    assert reason == "hook: no_such_plugin is not installed; `pip install .` in Prophet's checkout"


def refusing(framework: str) -> list[tuple[str, bool, str]]:
    return [("Toy", True, "is here"), ("Prophet for toys", False, "it is too old")]


def test_what_prophet_lacks_on_an_engine_stops_its_policies_there_and_nothing_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip("torch")
    variants = (Variant("toy"), Variant("toy-prophet", policy="prophet"))
    engine = replace(engines()["ddp"], variants=variants, check=f"{__name__}:refusing")
    monkeypatch.setattr("prophet_scheduler.lab.contenders.engine_of", lambda base: engine)
    assert obstacle(Contender("toy", "toy")) is None
    assert obstacle(Contender("toy-prophet", "toy-prophet")) == "Prophet for toys: it is too old"
    missing = replace(engine, check="no_such_plugin.checks:check")
    monkeypatch.setattr("prophet_scheduler.lab.contenders.engine_of", lambda base: missing)
    reason = obstacle(Contender("toy-prophet", "toy-prophet"))
    assert reason == "DistributedDataParallel: no_such_plugin is not installed; `pip install .` in Prophet's checkout"


def test_no_other_file_names_an_engine_or_a_variant() -> None:
    names = {*engines(), *(variant.name for _, variant in VARIANTS)} - {STOCK, "ddp"}  # ddp is a policy's name as well
    places = [
        ROOT / folder
        for folder in (
            "prophet/prophet_scheduler/lab",
            "prophet/prophet_scheduler/simulate",
            "prophet/prophet_scheduler/cli",
            "prophet/prophet_scheduler/core",
            "tools",
        )
    ]
    files = [file for place in places for file in place.rglob("*.py")]
    assert len(files) > 50
    named = [
        (file.name, node.lineno, node.value)
        for file in files
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant) and node.value in names
    ]
    assert named == []


NEW_ENGINE = """
from prophet_scheduler.engines.spec import EngineSpec, Variant
from prophet_scheduler.engines.topology import ALL_REDUCE

ENGINE = EngineSpec(
    name="toy",
    words="A toy",
    exchanges={"torch": "toy.torch_exchange:Toy"},
    environment=lambda node, network: {"TOY_RANK": node.removeprefix("worker"), "TOY_PORT": str(network.port)},
    prefixes=("TOY_",),
    settings=("TOY_",),
    variants=(Variant("toy-ring", {"TOY_RING": "1"}),),
    topology=ALL_REDUCE,
    unsimulated="since it is a toy",
)
"""


@pytest.fixture
def with_a_new_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Install one more distribution, which has an engine."""
    (tmp_path / "toy.py").write_text(NEW_ENGINE, encoding="utf-8")
    metadata = tmp_path / "toy-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: toy\nVersion: 1.0\n", encoding="utf-8")
    (metadata / "entry_points.txt").write_text("[prophet.engines]\ntoy = toy:ENGINE\n", encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    for cached in (plugins.entries, engines):
        cached.cache_clear()
    yield
    for cached in (plugins.entries, engines):
        cached.cache_clear()
    sys.modules.pop("toy", None)


@pytest.mark.usefixtures("with_a_new_engine")
def test_a_new_engine_as_a_contender_is_one_distribution() -> None:
    assert list(engines()) == ["byteps", "byteps_async", "ddp", "kvstore", "toy"]
    assert known_policies()[-1] == "toy-ring"
    mine = contender(engines()["toy"].variants[0], "torch")
    assert nodes_of(mine.engine, CLUSTER) == ["worker0", "worker1", "worker2"]
    argv = command(mine, "worker1", "replay", [])
    assert argv[1:] == [
        "-m",
        "prophet_scheduler.lab.jobs.pytorch.replay",
        "--exchange",
        "toy.torch_exchange:Toy",
    ]
    env = environment(mine, "worker1", NETWORK, {"TOY_RING": "9", "PATH": "/bin"})
    assert {key: env[key] for key in ("TOY_RANK", "TOY_PORT", "TOY_RING")} == {
        "TOY_RANK": "1",
        "TOY_PORT": "23007",
        "TOY_RING": "1",
    }
    assert narrow_link(CLUSTER, mine.engine.topology) == "worker uplink"
