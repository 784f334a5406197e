"""A program: for each name in its arguments, the modules of policies that are imported for that policy alone."""

from __future__ import annotations

import sys

from prophet_scheduler import plugins, policies

MODULES = {entry.module for entry in plugins.entries(plugins.POLICIES).values()}

if __name__ == "__main__":
    for name in sys.argv[1:]:
        for module in MODULES:
            sys.modules.pop(module, None)
        policies.get_policy(name).plan(None, None)
        print(name, *sorted(MODULES & sys.modules.keys()))
