"""Memory that NumPy holds: how much is remembered of it."""

from __future__ import annotations

import threading

import pytest

pytest.importorskip("torch")

import torch

from prophet_scheduler.frontends.torch import aliases


def key_of(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


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
    assert all(aliases.lent(key_of(tensor)) for tensor in held)
    # Of threads that look for what is gone at once, one may have set the limit by a count of before.
    aliases._note(torch.zeros(3))
    assert len(aliases._lent) <= aliases._most_lent + 1
