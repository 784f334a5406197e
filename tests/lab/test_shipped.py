"""Configs that come with Prophet."""

from __future__ import annotations

from pathlib import Path

import pytest

from prophet_scheduler.lab.shipped import FOLDER, config_path, shipped
from support.commands import Command


@pytest.mark.parametrize("named", ["quickstart", "quickstart.yaml", "configs/quickstart.yaml"])
def test_shipped_config_is_found_by_name(named: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert config_path(Path(named)) == FOLDER / "quickstart.yaml"
    own = tmp_path / named
    own.parent.mkdir(exist_ok=True)
    own.write_text("name: mine")
    assert config_path(Path(named)) == Path(named), "a file of one's own comes first"


def test_unknown_name_is_unchanged() -> None:
    for named in (Path("no-such-config"), Path("/configs/quickstart.yaml"), Path("../setup.py")):
        assert config_path(named) == named


def test_list_of_shipped_configs(prophet: Command) -> None:
    listed = dict(shipped())
    words = "A first look: real training on real data over a slow network, with and without Prophet"
    assert listed["quickstart"] == words
    assert "papers/tictac" in listed and all(listed.values())
    status, out, _ = prophet("simulate", "--list")
    assert status == 0 and all(name in out for name in listed)
