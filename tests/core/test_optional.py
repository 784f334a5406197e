"""Packages that may be missing: what is said, and that what is said installs what the extras ask for."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import re
import sys
from pathlib import Path

import pytest

from prophet_scheduler.core.optional import INSTALL, MissingPackage, need, require

DISTRIBUTIONS = {"sklearn": "scikit-learn"}


def test_what_is_there_is_imported() -> None:
    assert need("json.decoder", "a test") is json.decoder


def test_a_missing_package_is_one_line_with_what_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "plotly", None)
    with pytest.raises(MissingPackage, match=r"^pages: plotly.io is not installed; `pip install plotly`$"):
        need("plotly.io", "pages")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingPackage, match=r"^workers: torch is not installed; `pip install torch`$"):
        require(("torch", "workers"))


def test_all_that_lacks_is_named_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name != "torch" else object())
    with pytest.raises(MissingPackage) as caught:
        require(("sklearn", "digits"), ("torch", "workers"), ("plotly", "page"))
    lines = "digits: sklearn is not installed; page: plotly is not installed; `pip install scikit-learn plotly`"
    assert str(caught.value) == lines


def test_a_package_that_does_not_fit_its_neighbours_is_one_line_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "plotly.py").write_text("raise ImportError('built for NumPy 1\\nrun pip')")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "plotly", raising=False)
    with pytest.raises(MissingPackage, match=r"^pages: plotly cannot be imported \(built for NumPy 1\); `[^\n]*`$"):
        need("plotly", "pages")


@pytest.mark.parametrize("package", INSTALL)
def test_the_hints_are_those_of_the_extras(package: str) -> None:
    """A distribution that an extra pins is named with that version, and none that no extra has."""
    required = [line for line in importlib.metadata.requires("prophet-scheduler") or [] if "extra ==" in line]
    required += importlib.metadata.requires("prophet-mxnet") or []
    pinned = {re.split(r"[^\w.-]", line)[0]: line.partition(";")[0].strip() for line in required}
    named = [re.split(r"[^\w.-]", word)[0] for word in INSTALL[package].removeprefix("pip install ").split()]
    assert DISTRIBUTIONS.get(package, package) in named
    for name, word in zip(named, INSTALL[package].removeprefix("pip install ").split(), strict=True):
        assert name in pinned
        if package == "mxnet":
            assert word == pinned[name], "MXNet works with one NumPy only"
