"""Report of a training script in this folder to its test: digests of its weights and of what it logs.

Rule of this file: it reads values as any program does, and writes `result.json` in the working folder.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np


def report(weights: Any, **logged: Any) -> None:
    """Writes down digests of `weights`, which all workers must share, and of what this worker logged.

    A value is a torch module, a tensor or array of any framework, a number, text, or a list or dict of these.
    Raises ValueError where a number is not finite: such a script shows nothing.
    """
    values = {"weights": weights, **logged}
    digests = {}
    for name, value in values.items():
        digest = hashlib.sha256()
        count = _add(digest, name, value)
        if count == 0:
            raise ValueError(f"{name} holds no numbers")
        digests[name] = digest.hexdigest()
    Path("result.json").write_text(json.dumps(digests))


def _add(digest: Any, name: str, value: Any) -> int:
    """Adds the value's bits and shape to the digest; returns how many numbers it holds."""
    if hasattr(value, "state_dict"):
        value = value.state_dict()
    if isinstance(value, Mapping):
        digest.update(repr([str(key) for key in value]).encode())
        return sum(_add(digest, f"{name}.{key}", each) for key, each in value.items())
    if isinstance(value, str) or value is None:
        digest.update(repr(value).encode())
        return 0
    if hasattr(value, "asnumpy"):
        value = value.asnumpy()
    elif hasattr(value, "detach"):
        value = value.detach().double().numpy()  # exact for narrower types
    elif isinstance(value, Iterable) and not isinstance(value, np.ndarray):
        return sum(_add(digest, f"{name}[{place}]", each) for place, each in enumerate(value))
    elif isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{name} is {value}")
    array = np.asarray(value)
    if not np.isfinite(array).all():
        raise ValueError(f"{name} is not finite")
    digest.update(repr((array.shape, str(array.dtype))).encode() + array.tobytes())
    return int(array.size)
