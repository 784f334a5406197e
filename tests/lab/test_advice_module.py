"""A user's own model as the source of advice: its sizes and order, its times, and one line for each mistake."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

from prophet_scheduler.core.errors import UserError
from prophet_scheduler.lab.advice_module import is_function, of_function

MODEL = """
import os
import torch
from torch import nn

def bare():
    return nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 8), nn.Linear(8, 8).requires_grad_(False))

def with_tensor():
    return bare(), torch.ones(4, 64)

class Named(nn.Module):
    def __init__(self):
        super().__init__()
        self.unused, self.used = nn.Linear(3, 3), nn.Linear(64, 2)

    def forward(self, *, words, wanted):
        return {"loss": (self.used(words) - wanted).square().mean(), "name": "x"}

def with_arguments():
    return Named(), {"words": torch.ones(4, 64), "wanted": torch.zeros(4, 2)}

def number():
    return 3

def elsewhere():
    os.chdir("/")
    return number()

def failing():
    return bare(), torch.ones(4, 63)
"""
OWN = ["0.weight", "0.bias", "2.weight", "2.bias"]


@pytest.fixture(autouse=True)
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The folder that the command is typed in has the user's file."""
    (tmp_path / "my_model.py").write_text(MODEL)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "my_model", raising=False)


def test_a_file_is_no_function(tmp_path: Path) -> None:
    assert is_function("my_model:bare") and not is_function("resnet50")
    (tmp_path / "a:b").touch()
    assert not is_function("a:b")


def test_with_an_example_the_model_is_timed_here() -> None:
    profile, sentence = of_function("my_model:with_tensor", None)
    sizes = {gradient.name: gradient.size_bytes for gradient in profile.gradients}
    assert sizes == {"0.weight": 64 * 256 * 4, "0.bias": 256 * 4, "2.weight": 256 * 8 * 4, "2.bias": 8 * 4}
    assert {gradient.name for gradient in profile.gradients[:2]} == {"0.weight", "0.bias"}, (
        "the first layer's come last"
    )
    assert profile.forward_s > 0 and profile.backward_s > 0
    assert "as measured on this machine's CPU" in sentence
    assert sys.path[0] != str(Path.cwd())


def test_a_model_with_named_arguments_has_its_own_loss_and_no_unused_gradients() -> None:
    profile, _ = of_function("my_model:with_arguments", None)
    assert {gradient.name for gradient in profile.gradients} == {"used.weight", "used.bias"}


@pytest.mark.parametrize("name", ["bare", "with_tensor"])
def test_what_an_iteration_takes_elsewhere_can_be_said(name: str) -> None:
    profile, sentence = of_function(f"my_model:{name}", 0.3)
    assert profile.forward_s + profile.backward_s == pytest.approx(0.3)
    assert sorted(gradient.name for gradient in profile.gradients) == sorted(OWN)
    assert "as given by --computing" in sentence


@pytest.mark.parametrize(
    ("source", "line"),
    [
        ("my_model:bare", "my_model:bare returned no example input; .+ or give --computing"),
        ("my_model:number", "my_model:number returned int; let it return a torch.nn.Module"),
        ("my_model:elsewhere", "my_model:elsewhere returned int"),
        ("my_model:failing", "my_model:failing: its model failed with its example: RuntimeError: "),
        ("my_model:gone", r"my_model:gone: cannot be called \(AttributeError: "),
        ("no_such_model:gone", r"no_such_model:gone: cannot be called \(ModuleNotFoundError: "),
    ],
)
def test_a_mistake_is_one_line(source: str, line: str) -> None:
    with pytest.raises(UserError, match=f"^{line}"):
        of_function(source, None)
