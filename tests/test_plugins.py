"""Parts that are found by name: those of core alone, a line about those of an extra, and what its distribution has."""

from __future__ import annotations

import importlib.metadata
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from importlib.metadata import EntryPoints, PackageNotFoundError
from pathlib import Path

import pytest

from prophet_scheduler import __version__, plugins
from prophet_scheduler.core.errors import UserError
from prophet_scheduler.engines.registry import engines
from prophet_scheduler.lab.contenders import choose_policies
from prophet_scheduler.policies import get_definition, get_policy, policy_names

ROOT = Path(__file__).parents[1]
CORE = "prophet-scheduler"
GROUPS = (plugins.POLICIES, plugins.ENGINES, plugins.COMMANDS, plugins.AGENTS, plugins.FRONT_ENDS)
CACHED = (plugins.entries, engines)


@pytest.fixture
def core_alone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Nothing but `prophet-scheduler` is installed."""
    read = importlib.metadata.entry_points

    def entry_points(group: str) -> EntryPoints:
        return EntryPoints(entry for entry in read(group=group) if entry.dist is not None and entry.dist.name == CORE)

    def distribution(name: str) -> None:
        raise PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "entry_points", entry_points)
    monkeypatch.setattr(importlib.metadata, "distribution", distribution)
    for cached in CACHED:
        cached.cache_clear()
    yield
    for cached in CACHED:
        cached.cache_clear()


def line(name: str, extra: str) -> str:
    return f"{name} comes with the extra {extra}: `pip install ./plugins/{extra}` in Prophet's checkout"


@pytest.mark.usefixtures("core_alone")
def test_core_has_its_own_policies_and_engines() -> None:
    assert policy_names() == ["bytescheduler", "ddp", "fifo", "p3", "prophet", "prophet-paper"]
    assert [get_policy(name).plan(None, None).policy for name in policy_names()] == policy_names()
    assert list(engines()) == ["byteps", "ddp"]


@pytest.mark.usefixtures("core_alone")
@pytest.mark.parametrize(
    ("name", "extra"), [(name, extra) for extra, names in plugins.EXTRAS.items() for name in names]
)
def test_a_name_of_an_extra_is_one_line_that_says_which(name: str, extra: str) -> None:
    with pytest.raises(UserError) as caught:
        get_definition(name, "BYTEPS_SCHEDULER")
    assert str(caught.value) == f"BYTEPS_SCHEDULER: {line(name, extra)}"
    with pytest.raises(UserError) as caught:
        choose_policies([], [name])
    assert str(caught.value) == f"--policy: {line(name, extra)}"
    assert plugins.absent(f"ddp-{name}") == line(f"ddp-{name}", extra), "a variant of an engine"


@pytest.mark.usefixtures("core_alone")
@pytest.mark.parametrize(
    ("framework", "policy", "name"), [("mxnet", "prophet", "mxnet"), ("torch", "mlfabric", "mlfabric")]
)
def test_a_job_of_byteps_that_needs_a_plugin_is_refused(
    framework: str, policy: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))  # the autoload adds to it
    from prophet_byteps import autoload

    monkeypatch.setenv("BYTEPS_SCHEDULER", policy)
    with pytest.raises(UserError) as caught:
        autoload._prepare(framework)
    assert str(caught.value).endswith(line(name, name))


@pytest.mark.usefixtures("core_alone")
def test_a_name_of_no_extra_lists_those_that_are_here() -> None:
    with pytest.raises(UserError, match=r"^unknown policy 'tictax'; known policies are bytescheduler, ddp, fifo, p3, "):
        get_definition("tictax")


@pytest.mark.parametrize("extra", plugins.EXTRAS)
def test_the_names_of_an_extra_are_those_of_its_distribution(extra: str) -> None:
    ours = [e for e in importlib.metadata.distribution(f"prophet-{extra}").entry_points if e.group in GROUPS]
    variants = [variant.name for e in ours if e.group == plugins.ENGINES for variant in engines()[e.name].variants]
    assert sorted(plugins.EXTRAS[extra]) == sorted([*(e.name for e in ours), *variants])
    assert not any(plugins.absent(name) for name in plugins.EXTRAS[extra]), "it is installed"
    assert f"prophet-{extra}=={__version__}; extra == {extra!r}".replace("'", '"') in (
        importlib.metadata.requires(CORE) or []
    )


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the plugins' sources, with a wheel of each."""
    folder, version = tmp_path_factory.mktemp("wheels"), Path("prophet", "prophet_scheduler", "__init__.py")
    ignored = shutil.ignore_patterns("*.egg-info", "__pycache__", "build")
    for each in (*(f"plugins/{extra}" for extra in plugins.EXTRAS), "packages"):
        shutil.copytree(ROOT / each, folder / each, ignore=ignored)
    (folder / version).parent.mkdir(parents=True)
    shutil.copy(ROOT / version, folder / version)
    build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    subprocess.run([*build, *(f"./plugins/{extra}" for extra in plugins.EXTRAS)], cwd=folder, check=True, timeout=240)
    return folder


@pytest.mark.parametrize("extra", plugins.EXTRAS)
def test_a_distribution_has_its_package_and_wants_core_of_its_version(extra: str, sources: Path) -> None:
    package, here = f"prophet_{extra}", sources / "plugins" / extra
    with zipfile.ZipFile(sources / f"{package}-{__version__}-py3-none-any.whl") as wheel:
        packed = {name for name in wheel.namelist() if ".dist-info/" not in name}
        metadata = wheel.read(f"{package}-{__version__}.dist-info/METADATA").decode()
    modules = [path for path in (here / package).rglob("*") if path.suffix in (".py", ".typed")]
    assert packed == {str(path.relative_to(here)) for path in modules}
    assert f"Requires-Dist: {CORE}=={__version__}" in metadata
