"""Launcher of the testbed's processes. This file runs by path with `python -I -S`, so that it starts in milliseconds
and ignores the job's environment. It uses only the standard library, and each command imports only what it needs.

    launch.py hold COUNT BUFFER      makes COUNT network namespaces and keeps them until standard input closes;
                                     a byte on it ends the processes in all but the last, and a line answers;
                                     TCP buffers in them may grow to BUFFER bytes, or to Linux's default if larger
    launch.py enter NETNS ARGV...    runs ARGV in the network namespace, with its own /dev/shm
    launch.py alone ARGV...          runs ARGV in a new network namespace
    launch.py on CORES ARGV...       runs ARGV on these CPU cores only (numbers separated by commas)
    launch.py user ARGV...           runs ARGV as root of a new user namespace
    launch.py relay NEAR FAR DELAY   relays frames between two interfaces, each DELAY seconds after its arrival
    launch.py relay try              exits with status 0 if the kernel allows a relay

The namespaces have no name in the file system: they exist while the holder has them open. The holder's standard input
is a pipe from the harness. It closes when the harness exits, even by SIGKILL; the holder then ends every process in its
namespaces.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import time
from pathlib import Path

CLONE_NEWNS = 0x00020000
CLONE_NEWUSER = 0x10000000
CLONE_NEWNET = 0x40000000
MS_REC = 0x4000
MS_PRIVATE = 1 << 18

GRACE_S = 2.0  # between SIGTERM and SIGKILL
POLL_S = 0.02

# Linux's defaults: on a host tuned for long fast links, deep socket buffers would hide the scheduler's effect.
TCP_WMEM = (4096, 16384, 4194304)
TCP_RMEM = (4096, 131072, 6291456)
SYSCTLS = {
    "ipv4/tcp_congestion_control": "reno",
    # A connection must not reuse what an earlier one, maybe of another policy, learned about the link.
    "ipv4/tcp_no_metrics_save": "1",
}

_libc = ctypes.CDLL(None, use_errno=True)


def _call(name: str, *arguments: object) -> None:
    """Call a libc function. Raises OSError if it fails."""
    if getattr(_libc, name)(*arguments) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")


def sysctls(buffer_bytes: int) -> dict[str, str]:
    """Return the sysctls of each namespace; TCP buffers may grow to `buffer_bytes`, or to the default if larger."""
    buffers = {"ipv4/tcp_wmem": TCP_WMEM, "ipv4/tcp_rmem": TCP_RMEM}
    sizes = {key: f"{least} {begin} {max(most, buffer_bytes)}" for key, (least, begin, most) in buffers.items()}
    return SYSCTLS | sizes


def hold(count: int, buffer_bytes: int) -> None:
    """Write the namespaces' file descriptors to standard output, in one line, and serve until standard input closes.

    A byte of input ends every process in all namespaces but the last, which belongs to the network itself; an empty
    line confirms it.
    """
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    opened = []
    for _ in range(count):
        _call("unshare", CLONE_NEWNET)
        opened.append(os.open("/proc/self/ns/net", os.O_RDONLY))
        for key, value in sysctls(buffer_bytes).items():
            # A read-only /proc/sys, as in many containers, refuses this; but rates are checked before a link is used.
            with contextlib.suppress(OSError):
                Path("/proc/sys/net", key).write_text(value)
    namespaces = [_identity(os.fstat(descriptor)) for descriptor in opened]
    print(*opened, flush=True)
    while os.read(0, 1):
        end_processes_in(set(namespaces[:-1]))
        print(flush=True)
    end_processes_in(set(namespaces))


def end_processes_in(namespaces: set[tuple[int, int]]) -> None:
    """Send SIGTERM to all processes but this one, and SIGKILL to the rest after GRACE_S; return when none is left."""
    deadline = time.monotonic() + GRACE_S
    warned: set[int] = set()
    while left := _processes_in(namespaces):
        late = time.monotonic() >= deadline
        for process in left:
            if late or process not in warned:
                warned.add(process)
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL if late else signal.SIGTERM)
        time.sleep(POLL_S)


def _processes_in(namespaces: set[tuple[int, int]]) -> set[int]:
    processes = set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            # Ignore zombies, which have no namespace, and other users' processes, which cannot be inspected.
            with contextlib.suppress(OSError):
                if _identity((entry / "ns/net").stat()) in namespaces:
                    processes.add(int(entry.name))
    return processes


def _identity(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino


def enter(namespace: str, argv: list[str]) -> None:
    descriptor = os.open(namespace, os.O_RDONLY)
    _call("setns", descriptor, CLONE_NEWNET)
    os.close(descriptor)
    own_shared_memory()
    run(argv)


def own_shared_memory() -> None:
    """Give this process and its children their own /dev/shm. Raises OSError."""
    _call("unshare", CLONE_NEWNS)
    _call("mount", b"none", b"/", None, MS_REC | MS_PRIVATE, None)
    _call("mount", b"tmpfs", b"/dev/shm", b"tmpfs", 0, None)


def user(argv: list[str]) -> None:
    uid, gid = os.geteuid(), os.getegid()
    _call("unshare", CLONE_NEWUSER)
    Path("/proc/self/setgroups").write_text("deny")  # otherwise the kernel refuses a gid map from a non-root user
    Path("/proc/self/uid_map").write_text(f"0 {uid} 1")
    Path("/proc/self/gid_map").write_text(f"0 {gid} 1")
    run(argv)


def relay(arguments: list[str]) -> int:
    """Run native/relay.cc, which does the work and prints the output, and return its exit status."""
    from importlib.machinery import EXTENSION_SUFFIXES

    try:
        library = ctypes.CDLL(str(Path(__file__).with_name("_relay" + EXTENSION_SUFFIXES[0])))
    except OSError as error:
        sys.exit(f"it is not compiled; install Prophet again ({error})")
    if arguments == ["try"]:
        status: int = library.prophet_relay_try()
    else:
        near, far, delay_s = arguments
        status = library.prophet_relay(near.encode(), far.encode(), ctypes.c_double(float(delay_s)))
    return status


def run(argv: list[str]) -> None:
    # Python ignores these two signals; the program must not inherit that.
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)
    os.execvp(argv[0], argv)


def main(arguments: list[str]) -> None:
    try:
        match arguments:
            case ["hold", count, buffer_bytes]:
                hold(int(count), int(buffer_bytes))
            case ["enter", namespace, *argv]:
                enter(namespace, argv)
            case ["alone", *argv]:
                _call("unshare", CLONE_NEWNET)
                run(argv)
            case ["on", cores, *argv]:
                os.sched_setaffinity(0, map(int, cores.split(",")))
                run(argv)
            case ["user", *argv]:
                user(argv)
            case ["relay", *rest]:
                sys.exit(relay(rest))
    except OSError as error:
        sys.exit(f"testbed: {' '.join(arguments[:3])}: {error}")


if __name__ == "__main__":
    main(sys.argv[1:])
