"""The process that delays one link: a program run by path, with `python -I -S`, in the bridge's namespace.

    relay.py NEAR FAR DELAY_S     passes frames on between the two interfaces, each DELAY_S seconds after it came
    relay.py try                  ends with status 0 if the kernel allows a relay

native/relay.cc does the work and prints the output.
"""

from __future__ import annotations

import ctypes
import sys
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

LIBRARY = Path(__file__).with_name("_relay" + EXTENSION_SUFFIXES[0])


def main(arguments: list[str]) -> int:
    try:
        library = ctypes.CDLL(str(LIBRARY))
    except OSError as error:
        print(f"it is not compiled; install Prophet again ({error})", file=sys.stderr)
        return 1
    match arguments:
        case ["try"]:
            status: int = library.prophet_relay_try()
        case [near, far, delay_s]:
            status = library.prophet_relay(near.encode(), far.encode(), ctypes.c_double(float(delay_s)))
        case _:
            raise ValueError(arguments)
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
