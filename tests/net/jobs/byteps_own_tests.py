"""Runs a file of BytePS's own tests on a machine without a GPU, with stand-ins for packages that only they need.

Usage: python byteps_own_tests.py FILE   The file is BytePS's, unchanged; it starts its own scheduler and server. What
is smaller than there: the network (25,000 parameters), its images (32 x 32, four batches) and the choice of parameters.
"""

from __future__ import annotations

import importlib
import os
import sys
import unittest
from collections.abc import Callable, Iterable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import mxnet
import numpy as np
from mxnet.gluon.model_zoo import vision

BATCHES = 4
CLASSES = 16
SIDE = 32
CASES = 1
"""First parameters of each test's grid."""


def expand(cases: Iterable[tuple[Any, ...]]) -> Callable[[Callable[..., None]], None]:
    """Do as parameterized.expand: make a test for each tuple of parameters, in the class that is being defined."""
    grid = [case for written in cases for case in readings(written)]
    body = sys._getframe(1).f_locals

    def decorate(function: Callable[..., None]) -> None:
        for number, case in enumerate(grid[:CASES]):
            body[f"{function.__name__}_{number}"] = lambda self, case=case: function(self, *case)

    return decorate


def readings(case: tuple[Any, ...]) -> list[tuple[Any, ...]]:
    """test_dithering.py has "linear, natural" for two strings: one or the other is meant."""
    meant = [part.strip() for value in case if isinstance(value, str) for part in value.split(",") if "," in value]
    return [tuple(number if isinstance(v, str) and "," in v else v for v in case) for number in meant] or [case]


def get_model(name: str) -> Any:
    """A ResNet in little, each parameter large enough to choose 5 of its elements; `name` is the large one's."""
    return vision.ResNetV2(vision.BasicBlockV2, [1, 1], [16, 16, 32], classes=CLASSES)


def fake_data(batch_size: int, **_: Any) -> list[tuple[Any, Any]]:
    images = mxnet.nd.random.normal(-1, 1, shape=(BATCHES, batch_size, 3, SIDE, SIDE))
    labels = mxnet.nd.random.randint(0, CLASSES, (BATCHES, batch_size, 1))
    return [(images[number], labels[number]) for number in range(BATCHES)]


def stand_in(name: str, **contents: Any) -> None:
    module = ModuleType(name)
    vars(module).update(contents)
    sys.modules[name] = module


def next_port() -> None:
    """The next test's scheduler listens elsewhere: the port of the one before may still be taken for a moment."""
    meta = importlib.import_module("meta_test").MetaTest
    port = str(int(os.environ["DMLC_PS_ROOT_PORT"]) + 1)
    for environ in (os.environ, meta.SCHEDULER_ENV, meta.SERVER_ENV):
        environ["DMLC_PS_ROOT_PORT"] = port


def once_a_test(bps: ModuleType) -> None:
    """test_onebit.py calls init() again in a job that has begun, after which BytePS's threads are there twice."""
    init, shutdown = bps.init, bps.shutdown
    running = False

    def init_once() -> None:
        nonlocal running
        if not running:
            init()
        running = True

    def shut_down() -> None:
        nonlocal running
        shutdown()
        running = False
        next_port()

    vars(bps).update(init=init_once, shutdown=shut_down)


def main(file: Path) -> None:
    np.random.seed(0)
    mxnet.random.seed(0)
    mxnet.gpu = lambda number=0: mxnet.cpu()
    stand_in("gluoncv")
    stand_in("gluoncv.model_zoo", get_model=get_model)
    stand_in("numba", jit=lambda **_: lambda function: function)
    stand_in("tqdm", tqdm=lambda iterable: iterable)
    stand_in("parameterized", parameterized=type("parameterized", (), {"expand": staticmethod(expand)}))
    once_a_test(importlib.import_module("byteps.mxnet"))
    sys.path.insert(0, str(file.parent))
    # BytePS's, beside the file: int() of numba leaves 64 bits unsigned, and nothing needs a rest after each test.
    vars(importlib.import_module("utils")).update(fake_data=fake_data, int=np.uint64)
    vars(importlib.import_module("meta_test")).update(time=SimpleNamespace(sleep=lambda seconds: None))
    unittest.main(module=file.stem, argv=[file.name, "-v"])


if __name__ == "__main__":
    main(Path(sys.argv[1]))
