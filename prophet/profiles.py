"""Profiles from files and from the shelf.

Rule of this file: reading, checking and writing the JSON form of a Profile, and the built-in ones, which
are made from layer shapes. Learning a profile from a running job is profiler.py's.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

from prophet.errors import UserError
from prophet.model import PROFILE_SCHEMA, GradientProfile, Profile

_GRADIENT_KEYS = {"name": str, "bytes": int, "generation_s": float, "forward_s": float}


def save_profile(profile: Profile, path: Path, source: str) -> None:
    """Writes `profile` as JSON, whole or not at all; `source` says how it was made."""
    record = {
        "schema": PROFILE_SCHEMA,
        "name": profile.name,
        "source": source,
        "gradients": [
            {"name": g.name, "bytes": g.size_bytes, "generation_s": g.generation_s, "forward_s": g.forward_s}
            for g in profile.gradients
        ],
    }
    unfinished = path.with_name(path.name + ".part")
    unfinished.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    unfinished.replace(path)


def load_profile(path: Path) -> Profile:
    """Reads a profile. Raises UserError naming the file, the key and what to do."""
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"{path}: no such profile file; record one with PROPHET_PROFILE_OUT=FILE") from None
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: cannot be read ({error})") from None
    except json.JSONDecodeError as error:
        raise UserError(f"{path}: is not JSON (line {error.lineno}: {error.msg})") from None
    if not isinstance(record, dict) or record.get("schema") != PROFILE_SCHEMA:
        raise UserError(f"{path}: 'schema' must be {PROFILE_SCHEMA}; this is not a profile that Prophet knows")
    gradients = record.get("gradients")
    if not isinstance(gradients, list):
        raise UserError(f"{path}: 'gradients' must be a list")
    parsed = tuple(_gradient(path, index, item) for index, item in enumerate(gradients))
    name = record.get("name", path.stem)
    if not isinstance(name, str):
        raise UserError(f"{path}: 'name' must be text")
    try:
        return Profile(name, parsed)
    except UserError as error:
        raise UserError(f"{path}: {error}") from None


def _gradient(path: Path, index: int, item: Any) -> GradientProfile:
    where = f"{path}: gradients[{index}]"
    if not isinstance(item, dict):
        raise UserError(f"{where} must be a mapping with the keys {', '.join(_GRADIENT_KEYS)}")
    unknown = sorted(set(item) - set(_GRADIENT_KEYS))
    if unknown:
        raise UserError(f"{where}: unknown key '{unknown[0]}'; known are {', '.join(_GRADIENT_KEYS)}")
    values: dict[str, Any] = {"name": f"gradient{index}", "forward_s": 0.0, **item}
    for key, kind in _GRADIENT_KEYS.items():
        if key not in values:
            raise UserError(f"{where}: '{key}' is missing")
        value = values[key]
        fits = isinstance(value, (int, float) if kind is float else kind) and not isinstance(value, bool)
        if not fits:
            raise UserError(
                f"{where}: '{key}' is {value!r}; it must be {'a number' if kind is float else kind.__name__}"
            )
    return GradientProfile(values["name"], values["bytes"], float(values["generation_s"]), float(values["forward_s"]))


def resnet50(
    total_bytes: int = 102_228_128, steps: int = 13, backward_s: float = 0.6, forward_s: float = 0.3
) -> Profile:
    """ResNet-50's 161 gradients in `steps` steps, from its layer shapes, scaled to `total_bytes`.

    The shares of bytes are the real ones (He et al. 2016: 25.56 million parameters, 102.2 MB). Computing
    times are shares of each layer's multiplications at 224x224 pixels; backward is cut into `steps`
    intervals of equal time, at whose ends the gradients computed in them appear together.
    """
    layers = _resnet50_layers()
    elements = sum(count for _, count, _ in layers)
    work = sum(cost for _, _, cost in layers)
    generation = [0.0] * len(layers)
    done = 0
    for index in reversed(range(len(layers))):
        done += layers[index][2]
        step = max(1, math.ceil(done * steps / work))
        generation[index] = backward_s * step / steps
    gradients = tuple(
        GradientProfile(name, max(4, count * total_bytes // elements // 4 * 4), generation[i], forward_s * cost / work)
        for i, (name, count, cost) in enumerate(layers)
    )
    return Profile("resnet50", gradients)


def _resnet50_layers() -> list[tuple[str, int, int]]:
    """(name, elements, multiplications) of every parameter tensor, in forward order."""
    layers: list[tuple[str, int, int]] = []

    def convolution(name: str, inputs: int, outputs: int, kernel: int, pixels: int) -> None:
        weights = inputs * outputs * kernel * kernel
        layers.append((f"{name}.weight", weights, weights * pixels * pixels))
        layers.append((f"{name}.bn.weight", outputs, 0))
        layers.append((f"{name}.bn.bias", outputs, 0))

    convolution("conv1", 3, 64, 7, 112)
    channels, pixels = 64, 56
    for stage, (blocks, width, stride) in enumerate(((3, 64, 1), (4, 128, 2), (6, 256, 2), (3, 512, 2)), start=1):
        for block in range(blocks):
            name = f"layer{stage}.{block}"
            out_pixels = pixels // stride if block == 0 else pixels
            convolution(f"{name}.conv1", channels, width, 1, pixels)
            convolution(f"{name}.conv2", width, width, 3, out_pixels)
            convolution(f"{name}.conv3", width, 4 * width, 1, out_pixels)
            if block == 0:
                convolution(f"{name}.downsample", channels, 4 * width, 1, out_pixels)
            channels, pixels = 4 * width, out_pixels
    layers.append(("fc.weight", 2048 * 1000, 2048 * 1000))
    layers.append(("fc.bias", 1000, 0))
    return layers


BUILTIN: dict[str, Callable[..., Profile]] = {"resnet50": resnet50}
"""Profiles by name; each takes total_bytes, steps, backward_s and forward_s."""
