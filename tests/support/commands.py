"""The `prophet` command, called in this process through its entry point."""

from __future__ import annotations

import signal
import sys

import pytest

from prophet_scheduler.cli import main as cli


class Command:
    """Calls `prophet ARGUMENTS`, which returns its exit status, its output and its errors."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self._monkeypatch, self._capsys = monkeypatch, capsys

    def __call__(self, *arguments: object) -> tuple[int, str, str]:
        self._monkeypatch.setattr(sys, "argv", ["prophet", *map(str, arguments)])
        before = signal.getsignal(signal.SIGTERM)
        try:
            with pytest.raises(SystemExit) as left:
                cli.main()
        finally:
            signal.signal(signal.SIGTERM, before)
        return int(left.value.code or 0), *self._capsys.readouterr()

    def refuses(self, *arguments: object) -> str:
        """Call it with bad input: status 2, no output, and one line of errors, which is returned."""
        status, out, error = self(*arguments)
        assert (status, out, error.count("\n")) == (2, "", 1) and error.startswith("prophet: ")
        return error
