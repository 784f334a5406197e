"""The command line of the engine: install it, say where its wheel is, remove what is cached."""

from __future__ import annotations

import argparse
import sys

from rich.console import Console

from prophet.errors import UserError

from .build import install
from .recipe import recipe_for
from .store import Store
from .toolchain import find_toolchain


def main(arguments: list[str] | None = None) -> int:
    """Run one subcommand and return the exit status: 0, 2 for an error the user can mend, 130 after Ctrl-C."""
    parser = argparse.ArgumentParser(prog="python -m prophet.tools.engine", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("install", help="build BytePS for the CPU unless it is cached, and install it here")
    commands.add_parser("path", help="print the path of the cached wheel")
    commands.add_parser("clean", help="remove every cached wheel and source")
    command = parser.parse_args(arguments).command
    store = Store.of_user()
    try:
        if command == "install":
            install(store, Console(highlight=False))
        elif command == "path":
            wheel = store.wheel(recipe_for(find_toolchain()).key())
            if wheel is None:
                raise UserError("engine: nothing cached fits this machine; run: python -m prophet.tools.engine install")
            print(wheel)
        else:
            store.clear()
    except UserError as error:
        print(f"prophet: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("prophet: interrupted; nothing was changed", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
