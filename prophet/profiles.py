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

_GRADIENT_KEYS: dict[str, tuple[str, tuple[type, ...]]] = {
    "name": ("text", (str,)),
    "bytes": ("a whole number", (int,)),
    "generation_s": ("a number of seconds", (int, float)),
    "forward_s": ("a number of seconds", (int, float)),
}


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
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror})") from None
    except UnicodeDecodeError:
        raise UserError(f"{path}: is not a profile (not UTF-8 text)") from None
    except json.JSONDecodeError as error:
        raise UserError(f"{path}: is not JSON (line {error.lineno}: {error.msg})") from None
    if not isinstance(record, dict):
        raise UserError(f"{path}: must be a mapping with the keys schema, name, source, gradients")
    if record.get("schema") != PROFILE_SCHEMA:
        raise UserError(f"{path}: 'schema' is {record.get('schema')!r}; this Prophet reads schema {PROFILE_SCHEMA}")
    gradients = record.get("gradients")
    if not isinstance(gradients, list):
        raise UserError(f"{path}: 'gradients' must be a list")
    name = record.get("name", path.stem)
    if not isinstance(name, str):
        raise UserError(f"{path}: 'name' is {name!r}; it must be text")
    parsed = tuple(_gradient(f"{path}: gradients[{index}]", item) for index, item in enumerate(gradients))
    try:
        return Profile(name, parsed)
    except UserError as error:
        raise UserError(f"{path}: {error}") from None


def _gradient(where: str, item: Any) -> GradientProfile:
    if not isinstance(item, dict):
        raise UserError(f"{where} must be a mapping with the keys {', '.join(_GRADIENT_KEYS)}")
    unknown = sorted(set(item) - set(_GRADIENT_KEYS))
    if unknown:
        raise UserError(f"{where}: unknown key '{unknown[0]}'; known are {', '.join(_GRADIENT_KEYS)}")
    for key, (wanted, kinds) in _GRADIENT_KEYS.items():
        if key not in item:
            raise UserError(f"{where}: '{key}' is missing; give {wanted}")
        if not isinstance(item[key], kinds) or isinstance(item[key], bool):
            raise UserError(f"{where}: '{key}' is {item[key]!r}; it must be {wanted}")
    return GradientProfile(item["name"], item["bytes"], float(item["generation_s"]), float(item["forward_s"]))


def resnet50(
    total_bytes: int = 102_228_128, steps: int = 13, backward_s: float = 0.6, forward_s: float = 0.3
) -> Profile:
    """ResNet-50's 161 gradients in `steps` steps, from its layer shapes, scaled to `total_bytes`.

    The shares of bytes are the real ones (He et al. 2016: 25.56 million parameters, 102.2 MB). Computing
    times are shares of each layer's multiplications at 224x224 pixels; backward is cut into `steps`
    intervals of equal time, at whose ends the gradients computed in them appear together. Sizes are whole
    float32 elements, at least one. Raises UserError where `total_bytes` is too small for that.
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
    sizes = [max(4, count * total_bytes // elements // 4 * 4) for _, count, _ in layers]
    largest = sizes.index(max(sizes))
    sizes[largest] += (total_bytes - sum(sizes)) // 4 * 4  # what rounding left over
    if sizes[largest] < 4:
        raise UserError(f"profile resnet50: total_bytes is {total_bytes}, too small to scale to; give at least 10 kB")
    gradients = tuple(
        GradientProfile(name, sizes[i], generation[i], forward_s * cost / work)
        for i, (name, _, cost) in enumerate(layers)
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
