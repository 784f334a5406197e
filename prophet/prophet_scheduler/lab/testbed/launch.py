"""The processes inside the testbed: programs of one file, run by path with `python -I -S`, so that they start in
milliseconds and read nothing of the job's environment. They use only the standard library, and only what each needs.

    launch.py hold COUNT BUFFER      makes COUNT network namespaces and keeps them until standard input ends;
                                     a byte on it ends the processes in all but the last, and a line answers;
                                     buffers of TCP in them may grow to BUFFER bytes, or as far as Linux lets them
    launch.py enter NETNS ARGV...    runs ARGV in the network namespace, with its own /dev/shm
    launch.py alone ARGV...          runs ARGV in its own network namespace
    launch.py on CORES ARGV...       runs ARGV on these processor cores alone: numbers separated by commas
    launch.py user ARGV...           runs ARGV as root of a new user namespace
    launch.py relay NEAR FAR DELAY   passes frames on between two interfaces, each DELAY seconds after it came
    launch.py relay try              ends with status 0 if the kernel allows a relay

The namespaces have no name in the file system: they exist because the holder has them open. The holder's standard input
is a pipe from the harness, so it ends with the harness however that dies, SIGKILL included; the holder then ends every
process in its namespaces.
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

# Linux's own defaults: a host tuned for long fast links would hide the scheduler behind deep socket buffers.
TCP_WMEM = (4096, 16384, 4194304)
TCP_RMEM = (4096, 131072, 6291456)
SYSCTLS = {
    "ipv4/tcp_congestion_control": "reno",
    # A connection must not reuse what an earlier one, maybe another policy's, learned of the link.
    "ipv4/tcp_no_metrics_save": "1",
}

_libc = ctypes.CDLL(None, use_errno=True)


def _call(name: str, *arguments: object) -> None:
    """Make one libc call. Raises OSError."""
    if getattr(_libc, name)(*arguments) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")


def sysctls(buffer_bytes: int) -> dict[str, str]:
    """Return the settings of each namespace; TCP's buffers may grow to `buffer_bytes`, if that is more than usual."""
    buffers = {"ipv4/tcp_wmem": TCP_WMEM, "ipv4/tcp_rmem": TCP_RMEM}
    sizes = {key: f"{least} {begin} {max(most, buffer_bytes)}" for key, (least, begin, most) in buffers.items()}
    return SYSCTLS | sizes


def hold(count: int, buffer_bytes: int) -> None:
    """Write the file descriptors of the namespaces to standard output, one line, and serve until input ends.

    A byte of input ends every process in the namespaces but the last, which is the network's own; an empty line
    confirms it.
    """
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    opened = []
    for _ in range(count):
        _call("unshare", CLONE_NEWNET)
        opened.append(os.open("/proc/self/ns/net", os.O_RDONLY))
        for key, value in sysctls(buffer_bytes).items():
            # A read-only /proc/sys, as in many containers, refuses this; the rate is checked before it is used.
            with contextlib.suppress(OSError):
                Path("/proc/sys/net", key).write_text(value)
    namespaces = [_identity(os.fstat(descriptor)) for descriptor in opened]
    print(*opened, flush=True)
    while os.read(0, 1):
        end_processes_in(set(namespaces[:-1]))
        print(flush=True)
    end_processes_in(set(namespaces))


def end_processes_in(namespaces: set[tuple[int, int]]) -> None:
    """Send SIGTERM to all but this process and SIGKILL to the rest after GRACE_S; return when none is left."""
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
            # A zombie has no namespace, and another user's process cannot be inspected: neither is ours to end.
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
    Path("/proc/self/setgroups").write_text("deny")  # without this the kernel refuses a gid map from a user
    Path("/proc/self/uid_map").write_text(f"0 {uid} 1")
    Path("/proc/self/gid_map").write_text(f"0 {gid} 1")
    run(argv)


def relay(arguments: list[str]) -> int:
    """Return the exit status of native/relay.cc, which does the work and prints the output."""
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
    # Python ignores these two signals; a program must not inherit that.
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
