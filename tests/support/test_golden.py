"""Golden files themselves: what differs is shown, and they are written only where that is asked for."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.golden import Golden


def test_what_was_written_is_held_to_the_last_digit(tmp_path: Path) -> None:
    Golden(tmp_path, write=True).check("papers/one", {"iteration_s": [0.1, 0.3]})
    kept = Golden(tmp_path, write=False)
    kept.check("papers/one", {"iteration_s": [0.1, 0.3]})
    with pytest.raises(pytest.fail.Exception, match=r"(?s)write-golden.*-  0\.3\n\+  0\.30000000000000004"):
        kept.check("papers/one", {"iteration_s": [0.1, 0.1 + 0.2]})


def test_a_file_that_is_not_there_fails_and_is_not_written(tmp_path: Path) -> None:
    with pytest.raises(pytest.fail.Exception, match=r"no .*none\.json; `pytest --write-golden` writes it"):
        Golden(tmp_path, write=False).check("none", 1)
    assert list(tmp_path.iterdir()) == []
