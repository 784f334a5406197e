"""Tokens: with which a tenant's workers prove that they may speak to a coordinator.

Rule of this file: text and files to tokens. What a proof is, messages.py says.
"""

from __future__ import annotations

import re
from pathlib import Path

from prophet_scheduler.core.errors import UserError
from prophet_scheduler.core.settings import COORDINATOR_TENANT

LEAST_TOKEN = 16
"""Characters of a token: a shorter one could be guessed from one proof that was overheard."""
_LINE = re.compile(r"(?P<tenant>[A-Za-z0-9._:-]{1,128})\s+(?P<token>\S+)")


def parse_tokens(text: str, where: str) -> dict[str, str]:
    """Tokens by tenant, from lines `TENANT TOKEN`; empty lines and those that begin with # do not count.

    `where` names the text in errors. Raises UserError, which never has a token in it.
    """
    tokens: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        stripped = line.strip()
        if not stripped or stripped.startswith("#"):
            continue
        match = _LINE.fullmatch(stripped)
        if match is None:
            raise UserError(f"{where}, line {number}: write `TENANT TOKEN`, a name and a token without spaces")
        if len(match["token"]) < LEAST_TOKEN:
            raise UserError(f"{where}, line {number}: a token has at least {LEAST_TOKEN} characters")
        if match["tenant"] in tokens:
            raise UserError(f"{where}, line {number}: tenant {match['tenant']} has a token already")
        tokens[match["tenant"]] = match["token"]
    if not tokens:
        raise UserError(f"{where} has no tenant: write a line `TENANT TOKEN`")
    return tokens


def load_tokens(path: Path) -> dict[str, str]:
    """The same from a file. Raises UserError."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        raise UserError(f"{path}: cannot be read ({reason}); give a file with lines `TENANT TOKEN`") from None
    return parse_tokens(text, str(path))


def token_of(file: Path, tenant: str | None, where: str = COORDINATOR_TENANT) -> tuple[str, str]:
    """The tenant and its token from a file of tokens; the only one where `tenant` is None. Raises UserError.

    `where` is the variable or option that says the tenant.
    """
    tokens = load_tokens(file)
    if tenant is None:
        if len(tokens) > 1:
            raise UserError(f"{file} has {len(tokens)} tenants: say in {where} which one this job is")
        tenant = next(iter(tokens))
    if tenant not in tokens:
        raise UserError(f"{file} has no tenant {tenant}, which {where} says")
    return tenant, tokens[tenant]
