"""Permission to create namespaces: as root, or as root of a user namespace."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from prophet_scheduler.core.errors import UserError
from prophet_scheduler.core.settings import USER_NAMESPACE

LAUNCHER = Path(__file__).with_name("launch.py")


def launcher(*arguments: str) -> list[str]:
    """Return the command line of launch.py."""
    return [sys.executable, "-I", "-S", str(LAUNCHER), *arguments]


def try_alone(*argv: str) -> subprocess.CompletedProcess[str]:
    """Run `argv` in its own network namespace, created as root or through a user namespace, and wait for it."""
    alone = launcher("alone", *argv)
    command = alone if os.geteuid() == 0 else launcher("user", *alone)
    return subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)


def require_namespaces() -> str:
    """Return how to create namespaces: as "root", or as "user" if `reexec_in_user_namespace` is needed or was done.

    Raises UserError with advice if neither works.
    """
    tried = try_alone("true")
    if tried.returncode != 0:
        reason = (tried.stderr.strip().splitlines() or ["no reason given"])[-1]
        raise UserError(
            "the testbed needs root, or user namespaces for users (sysctl user.max_user_namespaces above 0 and, on"
            f" Ubuntu, kernel.apparmor_restrict_unprivileged_userns=0; in a container, CAP_SYS_ADMIN): {reason}"
        )
    return "user" if os.geteuid() != 0 or USER_NAMESPACE in os.environ else "root"


def reexec_in_user_namespace() -> None:
    """Unless already root, re-execute the same command line as root of a new user namespace, once.

    Only the user namespace is new; the host's network and files stay the same. Call this before anything that must not
    happen twice. Raises UserError like `require_namespaces`.
    """
    if os.geteuid() == 0:
        require_namespaces()  # root of a container may lack the permission
        return
    if USER_NAMESPACE in os.environ:
        raise UserError(f"{USER_NAMESPACE} is set, but this process is not root of a user namespace: unset it")
    require_namespaces()
    sys.stdout.flush()
    sys.stderr.flush()
    command = launcher("user", sys.executable, *sys.orig_argv[1:])
    os.execve(command[0], command, {**os.environ, USER_NAMESPACE: "1"})
