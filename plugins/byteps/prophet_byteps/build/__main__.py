"""Build BytePS: install it, build its wheel, print the path of the cached wheel, or remove everything cached."""

from __future__ import annotations

import argparse
import sys

from rich.console import Console

from prophet_scheduler.core.errors import UserError

from .build import install, provide
from .cuda import with_cuda
from .recipe import key_of
from .rules import rules_of
from .store import Store
from .toolchain import find_toolchain


def main(arguments: list[str] | None = None) -> int:
    """Run one subcommand and return the exit status: 0, 2 for an error that the user can fix, 130 after Ctrl-C."""
    parser = argparse.ArgumentParser(prog="python -m prophet_byteps.build", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("install", help="build BytePS for the CPU unless it is cached, and install it here")
    for name, does in (
        ("build", "build BytePS for the CPU unless it is cached, and print the path of the wheel"),
        ("path", "print the path of the cached wheel"),
    ):
        add = commands.add_parser(name, help=does).add_argument
        add("--uncorrected", action="store_true", help="leave in the faults that BytePS was released with")
        add("--cuda", action="store_true", help="PyTorch's part for GPUs, built for torch's CUDA")
    commands.add_parser("clean", help="remove every cached wheel and source")
    options = parser.parse_args(arguments)
    store = Store.of_user()
    try:
        if options.command == "install":
            install(store, Console(highlight=False))
        elif options.command == "clean":
            store.clear()
        else:
            rules = rules_of(corrected=not options.uncorrected, cuda=options.cuda)
            toolchain = with_cuda(find_toolchain()) if options.cuda else find_toolchain()
            if options.command == "build":
                print(provide(store, toolchain, Console(highlight=False, stderr=True), rules))
            else:
                wheel = store.wheel(key_of(toolchain, rules))
                if wheel is None:
                    chosen = [f"--{name}" for name in ("cuda", "uncorrected") if getattr(options, name)]
                    command = " ".join(["build", *chosen] if chosen else ["install"])
                    raise UserError(
                        f"engine: nothing cached fits this machine; run: python -m prophet_byteps.build {command}"
                    )
                print(wheel)
    except UserError as error:
        print(f"prophet: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("prophet: interrupted; nothing was changed", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
