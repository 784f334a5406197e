"""Environment and settings of this rank.

Rule of this file: reading them. A wrong setting ends the process on every rank, since all have the same environment.
"""

from __future__ import annotations

import os
import secrets
from collections import ChainMap
from collections.abc import Callable, Mapping
from pathlib import Path

import torch.distributed as dist

from prophet_scheduler.core import settings as names
from prophet_scheduler.core.errors import UserError
from prophet_scheduler.core.settings import Settings, from_environ
from prophet_scheduler.frontends.ending import WRONG, end_process
from prophet_scheduler.policies import get_definition


def environ_of_rank() -> Mapping[str, str]:
    """Return the environment, with a LOCAL_RANK that tells this process from others on its machine. Launchers set it
    for the ranks they start. A process of torch.multiprocessing has none, or its parent's, and gets its rank instead.
    """
    if not dist.is_initialized():
        return os.environ
    rank = str(dist.get_rank())
    launched = os.environ.get(names.LOCAL_RANK) and os.environ.get("RANK", rank) == rank
    return os.environ if launched else ChainMap({names.LOCAL_RANK: rank}, os.environ)


def settings_for(what: str, *checks: Callable[[Settings], object]) -> Settings:
    """Return this process's settings, for scheduling `what`. A wrong one, or a check's UserError, ends the process."""
    try:
        read = from_environ(environ_of_rank(), names.DDP_SCHEDULER, names.LOCAL_RANK)
        watched = read.policy == names.OBSERVE
        if not watched and (why := get_definition(read.policy, names.DDP_SCHEDULER).servers_only):
            raise UserError(f"{names.DDP_SCHEDULER} is {read.policy!r}, which {what} does not run, since {why}")
        for check in checks:
            check(read)
        return read
    except UserError as error:
        if dist.is_initialized():
            from prophet_ddp import meeting

            meeting.end_together()
        end_process(str(error), WRONG)


def own_host() -> str:
    """Return an identifier that ranks of one host share, and others do not: of a machine's network, or a container's.

    A rank that cannot tell counts as alone on its host.
    """
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot} {Path('/proc/self/ns/net').stat().st_ino}"
    except OSError:
        return secrets.token_hex()
