"""A program: for each name in its arguments, the modules of policies that are imported for that policy alone."""

from __future__ import annotations

import pkgutil
import sys

from prophet_scheduler import policies


def imported() -> list[str]:
    files = [module.name for module in pkgutil.iter_modules(policies.__path__) if not module.ispkg]
    return [file for file in files if f"prophet_scheduler.policies.{file}" in sys.modules]


if __name__ == "__main__":
    for name in sys.argv[1:]:
        for file in imported():
            del sys.modules[f"prophet_scheduler.policies.{file}"]
        policies.get_policy(name).plan(None, None)
        print(name, *imported())
