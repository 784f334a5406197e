"""Cases of test_ends.py: programs of two ranks, or a few more, that end in many ways. end_ranks.py runs them.

A case gets its rank. It calls `mark()` at the moment from which the time until the other ranks' end counts.
"""

from __future__ import annotations

import atexit
import os
import resource
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch._dynamo  # the first optimizer imports it, which takes seconds
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

LIMIT_S = 60.0
LOOK_S = 0.05
kept: list[nn.Module] = []
"""Modules kept for as long as the process lasts."""


def prophet() -> bool:
    """Return True if this process was started with Prophet."""
    return "PROPHET_SCHEDULER" in os.environ


def model(width: int = 32) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Linear(width, width) for _ in range(6)))


def trained(ddp: nn.Module, steps: int, during: Callable[[int], None] = lambda step: None) -> None:
    """Train for some steps, with `during(step)` between backward and the step."""
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
    for step in range(steps):
        optimizer.zero_grad()
        ddp(torch.ones(4, 32)).square().mean().backward()
        during(step)
        optimizer.step()
    print("weights", sum(float(param.detach().double().sum()) for param in ddp.parameters()))


def until_ended(rank: int) -> None:
    """Waits for the end of that rank, which does not wait for this one; at most until a case is over."""
    ended = Path(f"ended{rank}")
    for _ in range(int(LIMIT_S / LOOK_S)):
        if ended.exists():
            return
        time.sleep(LOOK_S)


def mark() -> None:
    """Count the other ranks' time from here on."""
    own = Path(f"mark.{os.getpid()}")
    own.write_text(repr(time.monotonic()))
    own.replace("mark")  # whole or not at all: another rank's end may end this one in between


def killed_in_backward(rank: int, dies: int = 1) -> None:
    """A rank dies while others wait for its gradients."""

    def die(_gradient: Any) -> None:
        if rank == dies and steps[0] == 5:
            mark()
            os.kill(os.getpid(), signal.SIGKILL)
        steps[0] += 1

    steps = [0]
    inner = model()
    inner[3].get_parameter("weight").register_hook(die)
    trained(DistributedDataParallel(inner), 10)


def killed_in_forward(rank: int) -> None:
    """A rank dies at the beginning of an iteration."""
    steps = [0]

    def die(*_: Any) -> None:
        if rank == 1 and steps[0] == 5:
            mark()
            os.kill(os.getpid(), signal.SIGKILL)
        steps[0] += 1

    inner = model()
    inner.register_forward_pre_hook(die)
    trained(DistributedDataParallel(inner), 10)


killed_of_three = killed_of_five = killed_in_backward


def first_killed_of_three(rank: int) -> None:
    """The rank with the store dies."""
    killed_in_backward(rank, dies=0)


def saves_after_a_death(rank: int) -> None:
    """A rank dies; the other catches torch's error, and saves what there is of two models."""
    modules = [DistributedDataParallel(model()) for _ in range(2)]
    optimizers = [torch.optim.Adam(module.parameters()) for module in modules]

    def die() -> None:
        mark()
        os.kill(os.getpid(), signal.SIGKILL)

    step = 0
    try:
        for step in range(1, 9):
            for module, optimizer in zip(modules, optimizers, strict=True):
                optimizer.zero_grad()
                module(torch.ones(4, 32) * (rank + 1)).square().mean().backward()
                if rank == 1 and step == 5 and module is modules[1]:
                    die()
                optimizer.step()
            if step < 5:  # all ranks have all updates of these
                for module in modules:
                    module.state_dict()
    except RuntimeError as error:
        print("caught", step, error)
    for _ in range(2):
        for module, optimizer in zip(modules, optimizers, strict=True):
            for name, param in module.named_parameters():
                assert param.isfinite().all(), name
            torch.save({"model": module.state_dict(), "optimizer": optimizer.state_dict()}, "saved.pt")
            steps = {int(state["step"]) for state in optimizer.state_dict()["state"].values()}
            print("saved", sorted(steps))
    try:
        for _ in range(2):  # The first may discover the loss, which is one line: the program has had the error.
            modules[0](torch.ones(4, 32)).square().mean().backward()
            modules[0].state_dict()
    except RuntimeError as error:
        print("again", error)


def want_two_phases(ddp: Any) -> None:
    from prophet_ddp.control import Decision
    from prophet_scheduler.core.cut import UNIT_BYTES, Cut

    rounds, cut = ddp.reducer.rounds, Cut.uniform(UNIT_BYTES)
    places = tuple(range(len(rounds.layout.blocks_under(rounds.layout.division(cut).cut))))
    rounds.channel.control.want(Decision(cut, places, gathers=places))


def killed_in_two_phases(rank: int) -> None:
    """A rank dies after backward, while others wait for norms and for what it owns."""

    def die(step: int) -> None:
        if prophet() and step == 1 and rank == 0:
            want_two_phases(ddp)
        if rank == 1 and step == 8:
            assert not prophet() or ddp.reducer.rounds.layout.phases
            mark()
            os.kill(os.getpid(), signal.SIGKILL)
        nn.utils.clip_grad_norm_(ddp.parameters(), 0.01)

    ddp: Any = DistributedDataParallel(model())
    trained(ddp, 12, die)


def late(rank: int) -> None:
    """A rank is later than the process group allows; it ends once the other has."""
    if prophet():
        from prophet_scheduler.frontends.torch import updates

        updates.COMPLAIN_S = 2.0

    def wait(step: int) -> None:
        if rank == 1 and step == 3:
            mark()
            until_ended(0)

    trained(DistributedDataParallel(model()), 10, wait)


def without(rank: int) -> None:
    """A rank has no Prophet. The others say so, and end."""
    if prophet():
        from prophet_ddp import meeting

        meeting.AGREE_LIMIT_S = 2.0
    ddp = DistributedDataParallel(model())
    mark()
    trained(ddp, 3)


def comes_late(rank: int) -> None:
    """Nothing in the constructor waits, and a rank comes after the others have begun to say that it is late."""
    if prophet():
        from prophet_ddp import meeting

        meeting.AGREE_LIMIT_S = 0.5
        if rank == 1:
            until("waiting for it", Path("rank0.log"))
    ddp = DistributedDataParallel(model(), init_sync=False)
    mark()
    trained(ddp, 3)


def few_descriptors(rank: int) -> None:
    """One rank has too few file descriptors left for connections of Prophet's, and for one module of two."""
    first = DistributedDataParallel(model())
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    if rank == 1:
        resource.setrlimit(resource.RLIMIT_NOFILE, (len(list(Path("/proc/self/fd").iterdir())), limits[1]))
    ddp = DistributedDataParallel(model())
    resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    mark()
    trained(first, 3)
    trained(ddp, 3)


def no_descriptor_in_mid_job(rank: int, without: int = 1) -> None:
    """One rank has no file descriptor left when rounds are to have two phases."""

    def clip(step: int) -> None:
        if prophet() and step == 1:
            if rank == 0:
                want_two_phases(ddp)
            if rank == without:
                taken = len(list(Path("/proc/self/fd").iterdir())) - 1  # except that of the folder
                resource.setrlimit(resource.RLIMIT_NOFILE, (taken, limits[1]))
        if step == 7:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
            assert not prophet() or not (ddp.reducer.rounds.layout.phases or ddp.reducer.rounds.divisible)
        nn.utils.clip_grad_norm_(ddp.parameters(), 0.01)

    ddp: Any = DistributedDataParallel(model())
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    mark()
    trained(ddp, 10, clip)


def no_descriptor_at_the_first_rank(rank: int) -> None:
    """The first rank has no file descriptor left."""
    no_descriptor_in_mid_job(rank, without=0)


def cannot_connect(rank: int) -> None:
    """One rank fails in the middle of connecting: no other waits for it."""
    if prophet() and rank == 0:
        from prophet_ddp import wide_gloo

        wide_gloo._devices = fails
    began_s = time.monotonic()
    ddp = DistributedDataParallel(model())
    assert time.monotonic() - began_s < LIMIT_S / 2
    mark()
    trained(ddp, 3)


def earlier_life(rank: int) -> None:
    """The store has what an earlier life of the job left in it, in the middle of its start."""
    if prophet():
        from prophet_ddp import meeting

        module: Any = meeting
        make = module.PrefixStore
        names = set[str]()

        def used(name: str, store: Any) -> Any:
            part = make(name, store)
            if name.startswith("prophet/") and name not in names:
                names.add(name)
                if rank == 0:
                    part.set("first", "0123")
                    part.set("0123/1", "stale")
                    store.set(name, "")
                store.wait([name])
            return part

        module.PrefixStore = used
    ddp = DistributedDataParallel(model())
    mark()
    trained(ddp, 3)


def fails() -> Any:
    """Raises."""
    raise OSError("no such interface")


def until(words: str, log: Path) -> None:
    """Waits until `words` are in `log`, at most until a case is over."""
    for _ in range(int(LIMIT_S / LOOK_S)):
        if words in log.read_text():
            return
        time.sleep(LOOK_S)


def differing(rank: int) -> None:
    """Ranks were told different policies, as run_rank does."""
    mark()
    trained(DistributedDataParallel(model()), 3)


differing_fusion = no_place = differing


def other_models(rank: int) -> None:
    """Ranks have different models: torch's own error."""
    mark()
    trained(DistributedDataParallel(model(32 if rank == 0 else 33)), 3)


def failing(kind: type[Exception]) -> Callable[..., None]:
    def fail(*_: Any) -> None:
        raise kind("made for a test")

    return fail


def making_fails(rank: int) -> None:
    """One rank cannot make what it needs, after the ranks have agreed to go on with Prophet."""
    if prophet() and rank == 0:
        from prophet_ddp import assembly

        vars(assembly)["ModuleAgent"] = failing(ValueError)
    ddp: Any = DistributedDataParallel(model())
    print("reducer", type(ddp.reducer).__name__)
    trained(ddp, 20)


def asking_fails(rank: int) -> None:
    """One rank cannot even find out whether it could take over."""
    if prophet() and rank == 1:
        from prophet_ddp import takeover

        vars(takeover)["why_not"] = failing(AttributeError)
    ddp: Any = DistributedDataParallel(model())
    print("reducer", type(ddp.reducer).__name__)
    trained(ddp, 20)


def loading_fails(rank: int) -> None:
    """The takeover cannot be imported, as with another torch; two modules are made."""
    sys.modules["prophet_ddp.takeover"] = None  # type: ignore[assignment]
    DistributedDataParallel(model())
    trained(DistributedDataParallel(model()), 20)


def only_made(rank: int) -> None:
    """Ranks make their modules and end."""
    DistributedDataParallel(model())


def hook_fails(rank: int) -> None:
    """The program's own hook raises on all ranks; the program catches it, and DDP's error comes next."""
    inner = model()

    def fail(_gradient: Any) -> None:
        raise ValueError("made for a test")

    handle = inner[3].get_parameter("weight").register_hook(fail)
    ddp = DistributedDataParallel(inner)
    try:
        trained(ddp, 1)
    except ValueError as error:
        print("caught", error)
    handle.remove()
    try:
        trained(ddp, 1)
    except RuntimeError as error:
        print("then", str(error).split(":")[0])
    mark()
    dist.destroy_process_group()


def one_fails(rank: int) -> None:
    """One rank raises between backward and step; nobody catches it."""

    def fail(step: int) -> None:
        if step == 4 and rank == 1:
            mark()
            raise ValueError("made for a test")

    try:
        trained(DistributedDataParallel(model()), 10, fail)
    finally:
        dist.destroy_process_group()


def destroyed(rank: int) -> None:
    """Updates are under way when the process group ends; the weights are looked at afterwards."""
    ddp = DistributedDataParallel(model())
    if not prophet():
        kept.append(
            ddp
        )  # torch's own deadlock is not what this case asks about (prophet_scheduler/engines/ddp/torch_exchange.py)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
    for _ in range(8):
        optimizer.zero_grad()
        ddp(torch.ones(4, 32) * (rank + 1)).square().mean().backward()
        if rank == 1:
            time.sleep(0.02)
        optimizer.step()
    mark()
    dist.destroy_process_group()
    print("weights", sum(float(param.detach().double().sum()) for param in ddp.parameters()))


def leaves_first(rank: int) -> None:
    """One rank ends without a look at the last backward pass's averages; the other looks at them a second later."""
    ddp = DistributedDataParallel(model())
    trained(ddp, 4)
    ddp(torch.ones(4, 32) * (rank + 1)).square().mean().backward()
    if rank == 0:
        mark()
        ddp.zero_grad()
        return
    time.sleep(1.0)
    print("gradients", sum(float(param.grad.double().sum()) for param in ddp.parameters() if param.grad is not None))


def leaves_at_once(rank: int) -> None:
    """One rank looks at nothing after its last step, and ends as multiprocessing ends what it has forked: no exit
    handler runs.
    """
    ddp = DistributedDataParallel(model(1000))
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
    for _ in range(4):
        optimizer.zero_grad()
        ddp(torch.ones(4, 1000) * (rank + 1)).square().mean().backward()
        optimizer.step()
    if rank == 0:
        mark()
        os._exit(0)
    print("weights", sum(float(param.detach().double().sum()) for param in ddp.parameters()))


def one_more(rank: int) -> None:
    """One rank has an iteration more than the other, and looks at nothing that comes of it."""
    ddp = DistributedDataParallel(model())
    trained(ddp, 4)
    if rank == 0:
        mark()
        optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
        ddp(torch.ones(4, 32)).square().mean().backward()
        optimizer.step()


def one_more_destroyed(rank: int) -> None:
    """The same with programs that end their process group."""
    one_more(rank)
    dist.destroy_process_group()


def aborted(rank: int) -> None:
    """One rank is stuck; the other aborts the process group and goes on to a step."""
    ddp = DistributedDataParallel(model())
    trained(ddp, 4)
    if rank == 1:
        until_ended(0)
        return
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
    ddp(torch.ones(4, 32)).square().mean().backward()
    mark()
    dist.distributed_c10d._abort_process_group()
    try:
        optimizer.step()
        trained(ddp, 1)
    except RuntimeError as error:
        print("error", error)


def forks(rank: int) -> None:
    """A forked process ends as processes do, with averages under way in the one it was forked from."""
    ddp = DistributedDataParallel(model())

    def fork(step: int) -> None:
        if step == 5:
            pid = os.fork()
            if pid == 0:
                atexit._run_exitfuncs()
                os._exit(0)  # torch's process group would wait for its threads, which no fork has
            os.waitpid(pid, 0)

    mark()
    trained(ddp, 8, fork)


def fork_reads(rank: int) -> None:
    """A forked process looks at gradients and weights, with averages under way in the one it was forked from."""
    ddp = DistributedDataParallel(model())

    def fork(step: int) -> None:
        if step == 5:
            if rank == 1:
                time.sleep(0.2)
            pid = os.fork()
            if pid == 0:
                grads = (param.grad for param in ddp.parameters())
                print("gradients", sum(float(grad.double().sum()) for grad in grads if grad is not None))
                print("child", sum(float(param.detach().double().sum()) for param in ddp.parameters()), flush=True)
                os._exit(0)
            os.waitpid(pid, 0)

    mark()
    trained(ddp, 8, fork)


def interrupted(rank: int) -> None:
    """Ctrl-C on all ranks, in mid-training."""

    def interrupt() -> None:
        time.sleep(0.5)
        mark()  # the mark of the last rank counts
        os.kill(os.getpid(), signal.SIGINT)

    ddp = DistributedDataParallel(model())
    threading.Thread(target=interrupt, daemon=True).start()
    trained(ddp, 100_000)


def interrupted_and_kept(rank: int) -> None:
    """Ctrl-C between steps, on all ranks after the same one; the program catches it and keeps its weights."""

    def interrupt(step: int) -> None:
        if step == 5:
            mark()
            raise KeyboardInterrupt

    ddp = DistributedDataParallel(model())
    try:
        trained(ddp, 10, interrupt)
    except KeyboardInterrupt:
        print("weights", sum(float(value.double().sum()) for value in ddp.state_dict().values()))


class OwnStep(torch.optim.Optimizer):
    """Optimizer of another library, like LAMB and LARS."""

    def __init__(self, params: Any) -> None:
        super().__init__(params, {"lr": 0.1})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for param in group["params"]:
                param.sub_(param.grad / param.grad.norm(), alpha=group["lr"])


def says(rank: int) -> None:
    """All ranks have the same to say: of an optimizer with a step() of its own, of a second module's hook, and of a
    third one's parameter that was set anew.
    """

    def hook(_state, bucket):  # type: ignore[no-untyped-def]  # torch reads annotations.
        dist.all_reduce(bucket.buffer())
        future: Any = torch.futures.Future()
        future.set_result(bucket.buffer() / dist.get_world_size())
        return future

    first, second = DistributedDataParallel(model()), DistributedDataParallel(model())
    second.register_comm_hook(None, hook)  # type: ignore[no-untyped-call]
    for module in (first, second):
        optimizer = OwnStep(module.parameters())
        for _ in range(4):
            optimizer.zero_grad()
            module(torch.ones(4, 32) * (rank + 1)).square().mean().backward()
            optimizer.step()
    third = DistributedDataParallel(model(), find_unused_parameters=True, gradient_as_bucket_view=True)
    with torch.no_grad():
        third.module[0].weight.set_(third.module[0].weight.detach().clone())
    third(torch.ones(4, 32)).sum().backward()
    print("weights", sum(float(param.detach().double().sum()) for param in first.parameters()))


CASES: dict[str, Callable[[int], None]] = {
    name: value for name, value in list(globals().items()) if callable(value) and getattr(value, "__doc__", None)
}
