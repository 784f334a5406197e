"""Prophet in a worker that trains asynchronously: MLfabric over BytePS's asynchronous servers.

Rule of this file: start and end of such a process, around prophet_mlfabric/torch/asynchronous.py.
If BYTEPS_SCHEDULER is `mlfabric`, autoload.py makes this agent in place of agent.py's Agent.

An invalid setting ends the process before anything is sent. Without the hook a pull also pushes (zeros) and a push also
pulls: the weights are the same, but no traffic is saved. Without a coordinator updates go in order of arrival. Either
is one warning.
"""

from __future__ import annotations

import functools
import logging
import os
from collections.abc import Mapping, MutableMapping
from types import ModuleType
from typing import TYPE_CHECKING, Any

from prophet_byteps import hook as hook_module
from prophet_byteps.hook import Hook
from prophet_byteps.library import Library
from prophet_mlfabric.settings import coordinator_from_environ
from prophet_scheduler.core import settings as names
from prophet_scheduler.core.cut import MOST_BLOCK_BYTES
from prophet_scheduler.core.errors import UserError
from prophet_scheduler.core.plan import Plan
from prophet_scheduler.core.settings import Settings, from_environ
from prophet_scheduler.core.status import AgentStatus
from prophet_scheduler.frontends.ending import STALLED, WRONG, at_end, end_process
from prophet_scheduler.frontends.records import require_records, write_records

if TYPE_CHECKING:  # not imported before the settings are known to be valid
    from prophet_mlfabric.client import CoordinatorClient
    from prophet_mlfabric.replica import JobReplica
    from prophet_mlfabric.torch.replicating import ReplicatingWorker

WELCOME_S = 5.0
"""Maximum seconds that a worker waits for its coordinator at the start of a job."""

logger = logging.getLogger("prophet_scheduler")


class AsynchronousAgent:
    """Prophet in one worker of an asynchronous job."""

    def __init__(self, settings: Settings, library: Library | None, hook: Hook | None, no_hook: str = "") -> None:
        self.settings = settings
        self.replica: JobReplica | None = None
        """None until BytePS is initialized."""
        self._library = library
        self._hook = hook
        self._aside = no_hook
        self._coordinator: CoordinatorClient | None = None
        self._taken = False
        self.replicating: ReplicatingWorker | None = None
        self._died: tuple[int, ...] | None = None
        """Dead workers; None until this worker has left."""

    @classmethod
    def prepare(cls, framework: str, environ: MutableMapping[str, str]) -> AsynchronousAgent:
        """Check the settings and load the hook, before BytePS's library is loaded. Raises UserError with one line."""
        settings = from_environ(environ)
        require_records(settings)
        check_job(framework, environ)
        library, hook, no_hook = hook_module.load_for(framework)
        if names.users_own_partition_bytes(environ) is None:
            # No block is larger, so each is one key.
            environ[names.BYTEPS_PARTITION_BYTES] = environ[names.CHOSEN] = str(MOST_BLOCK_BYTES)
        return cls(settings, library, hook, no_hook)

    def start(self, module: ModuleType) -> None:
        """Attach the hook for one-way tasks, and patch the BytePS module just imported."""
        if self._hook is not None and self._library is not None:
            try:
                self._hook.attach(self._library, self.settings.watchdog_s)
                # In order of arrival: all of an update is needed at once.
                self._hook.set_plan(Plan(policy=names.MLFABRIC))
                if not self._hook.go_one_way():
                    self._aside = "this BytePS lacks the exports that let a task go one way only"
            except Exception as error:
                self._aside, self._hook = str(error), None
        if self._aside:
            self.step_aside(self._aside)
        self._wrap_init(module)
        install(module, self)
        at_end(self._finish)

    def _wrap_init(self, module: Any) -> None:
        """Connect to the coordinator once the worker's number is known, and leave it before BytePS is shut down.

        The replica is checked first: if it is wrong, this worker exits before anybody waits for it.
        """
        init, shutdown = module.init, module.shutdown

        @functools.wraps(init)
        def init_and_connect(*args: Any, **kwargs: Any) -> Any:
            from prophet_mlfabric.replica import JobReplica

            try:
                self.replica = self.replica or JobReplica.from_environ(os.environ)
            except UserError as error:
                end_process(str(error), WRONG)
            result = init(*args, **kwargs)
            if self._coordinator is None and module.size() > 1:
                self._coordinator = connect(module.rank(), os.environ, self.replica.file is not None)
                at_end(self._leave_at_exit)  # runs before BytePS's own, which init() has registered
            return result

        @functools.wraps(shutdown)
        def leave_and_shut_down(*args: Any, **kwargs: Any) -> Any:
            if self._leave():
                return None  # BytePS's shutdown would wait for the dead; the process ends without it
            return shutdown(*args, **kwargs)

        module.init, module.shutdown = init_and_connect, leave_and_shut_down

    def take_coordinator(self) -> CoordinatorClient | None:
        """Return the coordinator to the first optimizer that asks, and None to others: it counts one model."""
        if not self._taken:
            self._taken = True
            return self._coordinator
        if self.replica is not None and self.replica.of_one_model:
            raise ValueError(f"{names.REPLICA} and {names.RESUME} are of one optimizer's model, but this is another")
        if self._coordinator is not None:
            logger.warning("updates of another optimizer go in order of arrival: a coordinator counts one model")
        return None

    def step_aside(self, why: str) -> None:
        """Warn once; from now on all transfers go both ways."""
        self._aside = why
        logger.warning("the hook stepped aside: %s; pulls also push zeros, and pushes also pull", why)
        if self._hook is not None:
            self._hook.step_aside(why)

    def _leave(self) -> tuple[int, ...]:
        """Finish this worker's work for others, before BytePS is shut down. Harmless when repeated.

        Wait until all others have left or died, and return the dead.
        """
        if self._died is not None:
            return self._died
        self._died = ()
        try:
            if self.replicating is not None:
                self.replicating.close()
            if self._coordinator is not None:
                self._died = self._coordinator.wait_for_others()
                self._coordinator.close()
        except Exception as error:
            logger.warning("Prophet could not leave its coordinator cleanly: %s", error)
        return self._died

    def _leave_at_exit(self) -> None:
        """Leave the job. If a worker has died, exit here, since BytePS's own shutdown waits for every worker."""
        if died := self._leave():
            self._finish()
            who = f"worker {died[0]} has" if len(died) == 1 else f"workers {', '.join(map(str, died))} have"
            end_process(f"{who} died: this worker ends without waiting for BytePS's end, which waits for all", STALLED)

    def _finish(self) -> None:
        write_records(self.settings, self._status)

    def _status(self) -> AgentStatus:
        return AgentStatus(
            policy=names.MLFABRIC,
            stepped_aside=self._aside,
            plans=0,
            agent_cpu_s=0.0,
            partition_bytes=MOST_BLOCK_BYTES,
            push_credit=None,
            hook=self._hook.status() if self._hook else None,
        )


def check_job(framework: str, environ: Mapping[str, str]) -> None:
    """Raise UserError if this job's updates cannot be scheduled."""
    scheduler = f"{names.SCHEDULER}={names.MLFABRIC}"
    if names.in_step(environ):
        raise UserError(
            f"{scheduler} schedules asynchronous updates; set {names.BYTEPS_ENABLE_ASYNC}=1 for workers and servers"
        )
    if framework != "torch":
        raise UserError(f"{scheduler} supports only PyTorch; leave it out of a job in {framework}")
    if (servers := environ.get(names.DMLC_NUM_SERVER, "1")) != "1":
        what = f"{names.DMLC_NUM_SERVER} is {servers}, make it 1"
        raise UserError(f"{scheduler} schedules the link of one server; {what}")
    if environ.get(names.BYTEPS_LOCAL_SIZE, "1") not in ("", "1"):
        raise UserError(f"{scheduler} needs one process a machine; {names.BYTEPS_LOCAL_SIZE} has to be 1")
    coordinator_from_environ(environ)


def connect(worker: int, environ: Mapping[str, str], replicates: bool = False) -> CoordinatorClient | None:
    """Connect this worker to its coordinator. Return None, with a warning, if the environment names none or it fails.

    The process exits if the coordinator refuses it, for instance for a wrong token. A coordinator that does not answer
    within WELCOME_S is not waited for: the client keeps trying.
    """
    try:
        if worker == 0:
            from prophet_scheduler.frontends.notices import warn_of_unknown_variables

            warn_of_unknown_variables(environ)
        settings = coordinator_from_environ(environ)
        if settings is None:
            logger.warning("%s is not set: updates go in order of arrival, and none is dropped", names.COORDINATOR)
            return None
        from prophet_mlfabric.client import CoordinatorClient

        client = CoordinatorClient(settings, worker, replicates)
        client.wait_welcome(WELCOME_S)
    except UserError as error:
        end_process(str(error), WRONG)
    except Exception as error:
        logger.warning("updates go in order of arrival: %s: %s", type(error).__name__, error)
        return None
    return client


def check(framework: str) -> tuple[tuple[str, bool, str], ...]:
    """Return (item, True if it is fine, a line about it) for each requirement of a worker on this machine."""
    ok, line = hook_module.check_compatibility(framework)
    return (("MLfabric", ok, line),)


def install(bps: Any, agent: AsynchronousAgent) -> None:
    """Replace the functions of `bps`, the module byteps.torch, that an asynchronous job needs changed."""
    original = bps.DistributedOptimizer

    @functools.wraps(original)
    def distributed_optimizer(
        optimizer: Any, named_parameters: Any = None, compression: Any = None, backward_passes_per_step: int = 1
    ) -> Any:
        from prophet_mlfabric.byteps.wire import BLOCK_BYTES, wrap
        from prophet_mlfabric.torch.replicating import ReplicatingWorker, begin, names_of, parameters_of

        if bps.size() > 1 and compression not in (None, bps.Compression.none):
            raise ValueError(f"{names.SCHEDULER}={names.MLFABRIC} does not compress updates; leave compression out")
        named = list(named_parameters) if named_parameters is not None else None
        coordinator, replica = agent.take_coordinator(), agent.replica
        try:
            before = 0 if replica is None else begin(replica, optimizer, named)
        except UserError as error:
            end_process(str(error), WRONG)
        if bps.size() == 1:
            return original(optimizer, named, compression or bps.Compression.none, backward_passes_per_step)
        block_bytes = agent.settings.partition_bytes or BLOCK_BYTES
        wrapped = wrap(bps, optimizer, coordinator, block_bytes, agent.settings.stall_s)
        wrapped.asynchronous.start(before)
        if coordinator is not None and replica is not None and replica.file is not None:
            of_parameters = names_of(parameters_of(optimizer), named)
            agent.replicating = ReplicatingWorker(wrapped.asynchronous, of_parameters, coordinator, replica.file)
        return wrapped

    bps.DistributedOptimizer = distributed_optimizer
    broadcast_parameters = bps.broadcast_parameters

    @functools.wraps(broadcast_parameters)
    def broadcast(params: Any, root_rank: int, prefix: str = "Parameter.") -> None:
        if bps.size() == 1:
            return broadcast_parameters(params, root_rank, prefix)  # type: ignore[no-any-return]
        from prophet_mlfabric.byteps.wire import broadcast_tensors

        entries = sorted(params.items()) if isinstance(params, Mapping) else list(params)
        tensors = [entry[1] if isinstance(entry, tuple) else entry for entry in entries]
        broadcast_tensors(bps, tensors, root_rank, agent.settings.stall_s)
        return None

    bps.broadcast_parameters = broadcast
