"""Tests of what distributions say of the project: in one place, and the same to pip, conda and cibuildwheel."""

from __future__ import annotations

import importlib.metadata
import re
from pathlib import Path
from runpy import run_path
from typing import Any

import pytest
import tomllib
import yaml

import prophet_scheduler

ROOT = Path(__file__).parents[2]
ABOUT: dict[str, Any] = run_path(str(ROOT / "packages" / "about.py"))


def test_the_repository_is_said_once_for_all(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    place = tmp_path / "packages"
    place.mkdir()
    (tmp_path / "prophet").symlink_to(ROOT / "prophet")
    text = (ROOT / "packages" / "about.py").read_text()
    (place / "about.py").write_text(re.sub(r'^REPOSITORY = ".*"$', 'REPOSITORY = "https://here"', text, flags=re.M))
    monkeypatch.syspath_prepend(str(Path(__file__).with_name("in_place_of_pybind11")))
    said: list[dict[str, Any]] = []
    monkeypatch.setattr("setuptools.setup", lambda **given: said.append(given))
    for name in ("setup.py", *(f"plugins/{folder.parent.name}/setup.py" for folder in ROOT.glob("plugins/*/setup.py"))):
        copied = tmp_path / name
        copied.parent.mkdir(parents=True, exist_ok=True)
        copied.write_text((ROOT / name).read_text())
        (tmp_path / "README.md").touch()
        run_path(str(copied))
    assert len(said) == 4
    for given in said:
        assert given["project_urls"] == {"Source": "https://here", "Issues": "https://here/issues"}
        assert (given["version"], given["python_requires"]) == (prophet_scheduler.__version__, ">=3.10")


def test_the_conda_recipe_has_what_pip_installs() -> None:
    text = (ROOT / "packages" / "conda" / "meta.yaml").read_text()
    recipe = yaml.safe_load(text.replace("{{", "").replace("}}", ""))
    assert recipe["package"]["version"] == prophet_scheduler.__version__
    run = {line.replace(" ", "") for line in recipe["requirements"]["run"]}
    needed = [line for line in importlib.metadata.requires("prophet-scheduler") or () if "extra ==" not in line]
    assert run - {"python>=3.10"} == {line.partition(";")[0] for line in needed}


def test_cibuildwheel_makes_a_wheel_for_each_python() -> None:
    told = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["cibuildwheel"]
    assert told["build"].split() == [f"cp{python.replace('.', '')}-*" for python in ABOUT["PYTHONS"]]
