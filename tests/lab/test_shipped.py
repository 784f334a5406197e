"""Configs that come with Prophet."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from prophet_scheduler.cli import main as cli
from prophet_scheduler.lab.shipped import FOLDER, config_path, shipped


@pytest.mark.parametrize("named", ["quickstart", "quickstart.yaml", "configs/quickstart.yaml"])
def test_a_config_is_found_by_its_name(named: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert config_path(Path(named)) == FOLDER / "quickstart.yaml"
    own = tmp_path / named
    own.parent.mkdir(exist_ok=True)
    own.write_text("name: mine")
    assert config_path(Path(named)) == Path(named), "a file of one's own comes first"


def test_what_is_no_config_stays_as_it_was_written() -> None:
    for named in (Path("no-such-config"), Path("/configs/quickstart.yaml"), Path("../setup.py")):
        assert config_path(named) == named


def test_the_list_has_every_config_with_its_first_sentence() -> None:
    listed = dict(shipped())
    assert (
        listed["quickstart"] == "A first look: real training on real data over a slow network, with and without Prophet"
    )
    assert "papers/tictac" in listed and all(listed.values())
    done = CliRunner().invoke(cli.app, ["simulate", "--list"])
    assert done.exit_code == 0 and all(name in done.output for name in listed)
