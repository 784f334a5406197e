"""Switches Prophet on in a process that imports BytePS with BYTEPS_SCHEDULER set.

Rule of this file: the moment of loading, and nothing that could stop a job. A line in site-packages
(prophet-autoload.pth) looks at the variable and imports this module only where it is set. The native
hook must be loaded before BytePS's library is, and finds BytePS's functions after, so an import hook
stands around BytePS's modules. Whatever goes wrong is one warning, and stock BytePS.

One part of BytePS a process: each brings a whole BytePS with it, and the hook takes over the functions of
one. A second part that is imported later finds its own functions first, so the hook never sees its tasks.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import logging
import os
import sys
from collections.abc import Sequence
from types import ModuleType

FRAMEWORKS = {"byteps.torch": "torch", "byteps.mxnet": "mxnet"}
"""BytePS modules that bring a scheduled queue with them, and the folder of their library."""

logger = logging.getLogger("prophet")

_hooked: str | None = None  # the framework whose part of BytePS the hook was loaded for


class _Loader(importlib.abc.Loader):
    """BytePS's own loader, with Prophet switched on around it."""

    def __init__(self, inner: importlib.abc.Loader, framework: str) -> None:
        self._inner = inner
        self._framework = framework

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        return self._inner.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        global _hooked
        if _hooked not in (None, self._framework):
            self._keep_apart()
            self._inner.exec_module(module)
            return
        job = None
        try:
            from prophet.plugins.byteps.agent import Job

            job = Job.prepare(self._framework, os.environ)
            _hooked = self._framework
        except Exception as error:
            logger.warning("Prophet stays off: %s; this job runs with stock BytePS", error)
        self._inner.exec_module(module)
        if job is None:
            return
        try:
            job.start(module)
        except Exception as error:
            job.step_aside(str(error))

    def _keep_apart(self) -> None:
        """The hook is in front of all libraries that are loaded from now on; this one must not meet it."""
        say = f"Prophet schedules byteps.{_hooked} in this process, so byteps.{self._framework} runs with stock BytePS"
        try:
            from prophet.plugins.byteps.hook import keep_apart

            keep_apart(self._framework)
            logger.warning("%s", say)
        except Exception as error:
            logger.warning("%s, which may fail: %s", say, error)


class _Finder(importlib.abc.MetaPathFinder):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname not in FRAMEWORKS:
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader, FRAMEWORKS[fullname])
        return spec


def install() -> None:
    """Watches for BytePS from now on; nothing else happens until it is imported."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


install()
