"""Functions that stand between a program and torch: nobody who reads a warning or a traceback is led astray."""

from __future__ import annotations

import inspect
import sys
import traceback
import types
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch

from prophet_scheduler.frontends.importlib_bootstrap import passed_over
from prophet_scheduler.frontends.torch.between import after, call_before


def caught(action: Callable[[], object]) -> Exception:
    with pytest.raises(Exception) as raised:
        action()
    return raised.value


def files_of(error: Exception) -> list[str]:
    """The files of a traceback, from the one that catches on."""
    return [frame.filename for frame in traceback.extract_tb(error.__traceback__)]


def test_a_warning_passes_over_what_stands_between() -> None:
    def torchs(level: int) -> None:
        warnings.warn("too old", stacklevel=level)

    def between(level: int) -> None:
        torchs(level)

    def over(level: int) -> None:
        torchs(level)

    for function, level in ((torchs, 2), (passed_over(over), 2)):
        with pytest.warns(UserWarning) as warned:
            function(level)
            line = sys._getframe().f_lineno - 1
        assert (warned[0].filename, warned[0].lineno) == (__file__, line)
    with pytest.warns(UserWarning) as warned:
        between(2)
    assert warned[0].lineno == between.__code__.co_firstlineno + 1


@pytest.mark.parametrize("show", [sys.__excepthook__, traceback.print_exception])
def test_a_traceback_shows_what_was_passed_over(capsys: pytest.CaptureFixture[str], show: Callable[..., Any]) -> None:
    @passed_over
    def over() -> None:
        raise ValueError("made for a test")  # this line is shown

    error = caught(over)
    show(type(error), error, error.__traceback__)
    assert "this line is shown" in capsys.readouterr().err


class Script:
    """Somebody's class with a function in C and one in Python."""

    in_c = len

    def __init__(self) -> None:
        self.seen: list[object] = []

    def __len__(self) -> int:
        raise ValueError("made for a test")

    def in_python(self, number: int = 1, *, factor: int = 2) -> int:
        """Multiply."""
        return number * factor


def test_a_function_of_python_is_called_after_what_comes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    original = Script.in_python
    monkeypatch.setattr(
        Script, "in_python", after(lambda script, *args, **kwargs: script.seen.append((args, kwargs)), original)
    )
    script = Script()
    assert [script.in_python(), script.in_python(2), script.in_python(3, factor=4)] == [2, 4, 12]
    assert script.seen == [((), {}), ((2,), {}), ((3,), {"factor": 4})]
    assert Script.in_python.__doc__ == "Multiply."
    assert inspect.signature(Script.in_python) == inspect.signature(original)


def test_a_function_in_c_is_called_after_what_comes_first_with_no_frame_between(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    script = Script()
    monkeypatch.setattr(Script, "in_c", len)
    call_before(Script, "in_c", lambda *args: script.seen.append(args))
    error = caught(lambda: script.in_c())
    assert isinstance(error, ValueError) and script.seen == [(script,)]
    assert files_of(error)[1:] == [__file__, __file__], "the lambda here, and __len__"
    assert Script.in_c.__name__ == "len" and inspect.signature(Script.in_c) == inspect.signature(len)
    listed = after(lambda *args, **kwargs: script.seen.append((args, kwargs)), sorted)
    assert listed([1, 3, 2], reverse=True) == [3, 2, 1]
    assert script.seen[1:] == [(([1, 3, 2],), {"reverse": True})]


@pytest.mark.parametrize("original", [len, lambda value: len(value)])
def test_where_what_comes_first_fails_nothing_is_called(original: Callable[[Any], int]) -> None:
    def fails(_value: object) -> None:
        raise KeyError("made for a test")

    script = Script()
    assert isinstance(caught(lambda: after(fails, original)(script)), KeyError)


@pytest.mark.filterwarnings("ignore:`torch.jit")
def test_scripts_of_torch_warn_of_the_programs_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def add(a: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        return torch.add(a, a, out=out)

    script: Any = torch.jit.script(add)  # type: ignore[no-untyped-call]
    kind, seen = torch.jit.ScriptFunction, list[object]()
    monkeypatch.setattr(kind, "__call__", kind.__call__)
    call_before(kind, "__call__", lambda *args: seen.append(args))
    with pytest.warns(UserWarning, match="resized") as warned:
        script(torch.ones(2), torch.ones(5))
        line = sys._getframe().f_lineno - 1
    assert len(seen) == 1
    assert (warned[0].filename, warned[0].lineno) == (__file__, line)


def test_what_stands_in_a_module_can_be_hashed() -> None:
    # torch.compile has a table of torch's functions.
    module, seen = types.ModuleType("module"), list[object]()
    vars(module)["length"] = len
    call_before(module, "length", lambda *args: seen.append(args))
    assert vars(module)["length"]([1, 2]) == 2 and seen == [([1, 2],)]
    assert {vars(module)["length"]: 1}
