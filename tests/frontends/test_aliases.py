"""Memory that NumPy holds: how much is remembered of it."""

from __future__ import annotations

import threading

import pytest

pytest.importorskip("torch")

import torch

from prophet_scheduler.frontends.torch import aliases


def test_what_is_gone_is_forgotten_and_what_is_held_is_not() -> None:
    held = [torch.zeros(3) for _ in range(50)]
    for tensor in held:
        aliases._note(tensor)
    errors: list[Exception] = []

    def lend() -> None:
        try:
            for _ in range(3 * aliases._MOST_LENT):
                aliases._note(torch.zeros(3))
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=lend) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    assert all(aliases.is_unseen(tensor.untyped_storage()) for tensor in held)
    # Of threads that look for what is gone at once, one may have set the limit by a count of before.
    aliases._note(torch.zeros(3))
    assert len(aliases._lent) <= aliases._most_lent + 1


def test_a_storage_that_somebody_keeps_is_told_from_one_that_is_asked_for() -> None:
    tensor = torch.nn.Parameter(torch.zeros(3))
    for _ in range(2):
        asked = tensor.untyped_storage()
        assert not aliases.is_unseen(asked) and not aliases.is_kept(asked)
        kept = [asked]
        assert aliases.is_unseen(asked) and aliases.is_kept(asked)
        del kept, asked
