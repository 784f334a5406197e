"""Files of tokens."""

from __future__ import annotations

from pathlib import Path

import pytest

from prophet_mlfabric.settings import load_tokens, token_of
from prophet_scheduler.core.errors import UserError

WRITE = "write `TENANT TOKEN`, a tenant once, and a token without spaces of 16 characters or more"
LINES = "# jobs\n\na  0123456789abcdef\nb fedcba9876543210\n"


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("", "file has no tenant: write a line `TENANT TOKEN`"),
        ("a", f"file, line 1: {WRITE}"),
        ("a b c", f"file, line 1: {WRITE}"),
        ("a 0123456789abcde", f"file, line 1: {WRITE}"),
        (LINES + "a 0123456789abcdeF", f"file, line 5: {WRITE}"),
    ],
)
def test_invalid_lines_are_refused_without_showing_a_token(tmp_path: Path, text: str, line: str) -> None:
    (tmp_path / "file").write_text(text)
    with pytest.raises(UserError) as error:
        load_tokens(tmp_path / "file")
    assert str(error.value) == f"{tmp_path}/{line}"


def test_several_tenants_need_a_choice(tmp_path: Path) -> None:
    several, single = tmp_path / "several", tmp_path / "single"
    several.write_text(LINES)
    single.write_text(LINES.splitlines()[2])
    assert load_tokens(several) == {"a": "0123456789abcdef", "b": "fedcba9876543210"}
    assert token_of(single, None) == ("a", "0123456789abcdef")
    assert token_of(several, "b") == ("b", "fedcba9876543210")
    with pytest.raises(UserError, match="has 2 tenants: say in PROPHET_COORDINATOR_TENANT"):
        token_of(several, None)
    with pytest.raises(UserError, match="has no tenant c"):
        token_of(several, "c")


def test_unreadable_files_are_named(tmp_path: Path) -> None:
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    for file in (tmp_path / "missing", tmp_path / "binary", Path("/dev/zero")):
        with pytest.raises(UserError, match=f"{file}: cannot be read .*; give a file with lines"):
            load_tokens(file)
