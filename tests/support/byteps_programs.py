"""A random program over BytePS: what it does to gradients, parameters and optimizers is drawn from its number.

It is free of races: while BytePS may write to a gradient, the program leaves that alone.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import io
import random
import threading
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from support.random_models import Convolutions, Layers, Sequences, Tied
from support.torch_network import batch

ROUNDS = (4, 7, 11)


def scale(param: torch.Tensor) -> None:
    assert param.grad is not None
    param.grad.mul_(0.9)


OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "sgd": lambda params: torch.optim.SGD(params, 0.05),
    "momentum": lambda params: torch.optim.SGD(params, 0.05, momentum=0.9, weight_decay=1e-3, nesterov=True),
    "maximize": lambda params: torch.optim.SGD(params, 1e-3, momentum=0.5, maximize=True, foreach=True),
    "adam": lambda params: torch.optim.Adam(params, 1e-2, amsgrad=True, foreach=True),
    "single": lambda params: torch.optim.Adam(params, 1e-2, foreach=False),
    "fused": lambda params: torch.optim.AdamW(params, 1e-2, fused=True),
    "rms": lambda params: torch.optim.RMSprop(params, 1e-2, momentum=0.5, centered=True),
    "adagrad": lambda params: torch.optim.Adagrad(params, 1e-2),
    "nadam": lambda params: torch.optim.NAdam(params, 1e-2),
}


def params_of(optimizer: Any) -> list[Any]:
    return [param for group in optimizer.param_groups for param in group["params"]]


class Program:
    """One program, which draws the same on both sides. `arrive` lets some averages come in at this moment."""

    dropped: frozenset[int] = frozenset()
    """Numbers of actions to leave out, to reduce a program that fails."""

    def __init__(self, bps: Any, wrap: Callable[..., Any], arrive: Callable[[], None], number: int) -> None:
        self.bps = bps
        self.number, self.count = number, 0
        self.random = draws = random.Random(number)
        self.model: Any = draws.choice((Layers, Layers, Tied, Convolutions, Sequences))()
        self.make = OPTIMIZERS[draws.choice(sorted(OPTIMIZERS))]
        self.half = draws.random() < 0.15
        self.passes = draws.choice((1, 1, 1, 2, 3))
        self.arrive = arrive
        self.named = list(self.model.named_parameters())
        self.params = [param for _, param in self.named]
        halves = [self.named]
        if draws.random() < 0.3:
            halves = [self.named[:3], self.named[3:]]
        self.optimizers = [
            wrap(
                self.make([param for _, param in named]),
                named,
                bps.Compression.fp16 if self.half else bps.Compression.none,
                self.passes,
            )
            for named in halves
        ]
        if draws.random() < 0.3:
            self.bps.broadcast_parameters(self.model.state_dict(), 0)
            for optimizer in self.optimizers:
                self.bps.broadcast_optimizer_state(optimizer, 0)
        self.schedulers: list[Any] = []
        self.kept: list[torch.Tensor] = []
        self.states: list[Any] = []
        self.arrays: list[Any] = []
        self.hooks: list[Any] = []
        self.averages: list[torch.Tensor] = []
        self.seen: list[Any] = []
        self.saved: Any = None
        self.flat: list[torch.Tensor] = []
        self.batches = 0
        self.log: list[str] = []

    def one(self) -> Any:
        return self.random.choice(self.params)

    def some(self) -> list[Any]:
        return self.random.sample(self.params, self.random.randint(1, len(self.params)))

    def with_gradients(self) -> list[Any]:
        return [param for param in self.some() if param.grad is not None]

    def see(self, *values: Any) -> None:
        self.seen += [(self.log[-1:], value.detach().double().sum().item()) for value in values]

    def act(self, *actions: Callable[[], None], most: int = 2) -> None:
        for action in self.random.choices(actions, k=self.random.randint(0, most)):
            self.do(action)

    def do(self, action: Callable[[], None]) -> None:
        """Act, with draws that do not depend on actions before it."""
        before, self.count = self.random, self.count + 1
        if self.count not in self.dropped:
            self.random = random.Random(f"{self.number} {self.count}")
            self.log.append(f"{self.count}:{action.__name__}")
            self.arrive()
            action()
            self.random = before

    def loss(self) -> torch.Tensor:
        if isinstance(self.model, Layers):
            self.model.used = self.random.choice(((0, 1, 2), (0, 1, 2), (0,), (2, 1), (1, 2, 1), ()))
        self.batches += 1
        inputs, labels = batch(self.batches)
        loss: torch.Tensor = nn.functional.cross_entropy(self.model(inputs), labels)
        return loss

    def draw(self, *ways: str) -> str:
        way = self.random.choice(ways)
        self.log.append(way)
        return way

    # Before the gradients.

    def clears(self) -> None:
        how = self.draw("none", "none", "zeros", "model", "by hand", "not")
        if how == "model":
            self.model.zero_grad(set_to_none=self.random.random() < 0.5)
        elif how == "by hand":
            for param in self.params:
                param.grad = None
        elif how != "not":
            for optimizer in self.optimizers:
                optimizer.zero_grad(set_to_none=how == "none")

    def backward(self) -> None:
        how = self.draw("once", "once", "once", "sum", "penalty", "evaluates", "inputs")
        if how == "evaluates":
            self.evaluates()
        loss = self.loss()
        if how == "sum":
            loss = loss + self.loss()
        elif how == "penalty" and not isinstance(self.model, Sequences):  # Attention has no second derivative.
            trained = [param for param in self.params if param.requires_grad]
            grads = torch.autograd.grad(loss, trained, create_graph=True, allow_unused=True)
            loss = loss + 0.01 * sum(grad.square().sum() for grad in grads if grad is not None)
        if how == "inputs":
            trained = [param for param in self.some() if param.requires_grad]
            if trained:
                loss.backward(inputs=trained)
        else:
            loss.backward()
        self.seen.append(loss.item())

    def twice(self) -> None:
        loss = self.loss()
        loss.backward(retain_graph=True)
        loss.backward()

    def breaks_in_backward(self) -> None:
        trained = [param for param in self.params if param.requires_grad]
        hook = self.random.choice(trained).register_hook(lambda _: 1 / 0)
        with contextlib.suppress(ZeroDivisionError):
            self.loss().backward()
        hook.remove()

    def by_hand(self) -> None:
        """Set gradients without a backward pass."""
        trained = [param for param in self.params if param.requires_grad]
        grads = torch.autograd.grad(self.loss(), trained, allow_unused=True)
        how = self.draw("sets", "adds", "copies")
        for param, grad in zip(trained, grads, strict=True):
            if grad is None:
                continue
            if how == "sets" or param.grad is None:
                param.grad = grad
            elif how == "adds":
                param.grad += grad
            else:
                param.grad.copy_(grad)

    # While nothing of them flies.

    def reads_gradients(self) -> None:
        self.see(*(param.grad for param in self.with_gradients()))

    def changes_gradients(self) -> None:
        how, some = self.random.randrange(9), self.with_gradients()
        self.log.append(str(how))
        if how == 0 and some:
            torch._foreach_mul_([p.grad for p in some], 0.9)
        elif how == 7 and self.flat:
            self.flat[-1].mul_(0.9)
        elif how == 8 and not self.half:
            flat = torch.zeros(sum(param.numel() for param in self.params))
            parts = flat.split([param.numel() for param in self.params])
            for param, part in zip(self.params, parts, strict=True):
                if param.requires_grad:
                    part = part.view(param.shape)
                    if param.grad is not None:
                        part.copy_(param.grad)
                    param.grad = part
            self.flat.append(flat)
        for param in some:
            if how == 1:
                param.grad.data.clamp_(-0.1, 0.1)
            elif how == 2:
                param.grad[0] = 0.25
            elif how == 3:
                param.grad = param.grad + 0.01
            elif how == 4:
                param.grad = None
            elif how == 5:
                param.grad.zero_()
            elif how == 6:
                param.grad.numpy()[...] *= 0.5

    def clips(self) -> None:
        how = self.random.randrange(3)
        if how == 0:
            self.see(nn.utils.clip_grad_norm_(self.model.parameters(), 0.3))
        elif how == 1:
            self.see(nn.utils.clip_grad_norm_(self.some(), 0.2, norm_type=self.random.choice((1.0, float("inf")))))
        elif some := self.with_gradients():
            nn.utils.clip_grad_value_(some, 0.02)

    def keeps_gradients(self) -> None:
        for param in self.with_gradients():
            grad = param.grad
            if self.half:  # BytePS puts another memory into the tensor then.
                self.kept.append(grad)
                continue
            self.kept.append(self.random.choice((grad, grad.detach(), grad.flatten()[:3], grad.data, grad.clone())))
            if self.random.random() < 0.2:
                self.arrays.append(grad.numpy())

    # Step.

    def steps(self) -> None:
        optimizers = self.random.sample(self.optimizers, len(self.optimizers))
        ways = "no grad", "scaled", "clipped", "clipped", "again", "twice", "no update", "closure", "own closure"
        more = "frozen", "synced closure", "more", "fails", "raises", "read between"
        how = self.draw(*("all",) * 5, *ways, *more)
        for optimizer in optimizers:
            self.arrive()
            clip = functools.partial(nn.utils.clip_grad_norm_, params_of(optimizer), 0.3)
            if how == "all":
                optimizer.step()
            elif how == "no grad":
                with self.random.choice((torch.no_grad, torch.enable_grad))():
                    optimizer.step()
            elif how == "scaled":
                scaler: Any = torch.amp.GradScaler("cpu", init_scale=2.0)
                scaler.scale(torch.ones(1))
                optimizer.synchronize()
                scaler.unscale_(optimizer)
                with optimizer.skip_synchronize():
                    scaler.step(optimizer)
                scaler.update()
            elif how == "clipped":
                optimizer.synchronize()
            elif how == "again":
                optimizer.synchronize()
                optimizer.step()
            elif how == "twice":
                optimizer.step()
                optimizer.step()
            elif how == "no update":
                optimizer.synchronize()
            elif how == "closure":
                self.see(optimizer.step(lambda: torch.tensor(0.5)))
            elif how == "own closure":
                self.see(optimizer.step(clip))
            elif how == "synced closure":
                optimizer.synchronize()
                with optimizer.skip_synchronize():
                    optimizer.step(clip)
            elif how == "frozen":
                for param in self.params:
                    param.requires_grad_(False)
                optimizer.step()
                for name, param in self.named:
                    param.requires_grad_(name != "head.bias" or not isinstance(self.model, Tied))
            elif how == "more":
                optimizer.synchronize()
            elif how == "fails":
                with contextlib.suppress(ZeroDivisionError):
                    optimizer.step(lambda: 1 / 0)
            elif how == "raises":
                optimizer.synchronize()
                with contextlib.suppress(ZeroDivisionError), optimizer.skip_synchronize():
                    raise ZeroDivisionError
                optimizer.step()
            else:
                optimizer.step()
                self.see(*self.some())
        self.local_step(how, optimizers)

    def local_step(self, how: str, optimizers: list[Any]) -> None:
        if how == "clipped":
            self.act(self.reads_gradients, self.changes_gradients, self.clips, self.keeps_gradients, *self.after)
            for optimizer in optimizers:
                with optimizer.skip_synchronize():
                    optimizer.step()
        elif how == "no update":
            self.act(self.reads_gradients, self.changes_gradients, self.clips, self.keeps_gradients, *self.after)
        elif how == "more":
            self.act(self.changes_gradients, self.clips, *self.after)
            for _ in range(self.passes):
                self.loss().backward()
            self.fill()
            for optimizer in optimizers:
                optimizer.step()

    # At any moment.

    def reads_parameters(self) -> None:
        how, some = self.random.randrange(13), self.some()
        self.log.append(str(how))
        if how == 0:
            self.see(torch.cat([param.reshape(-1) for param in self.params]))
        elif how == 1:
            self.see(*copy.deepcopy(self.model).parameters())
        elif how == 2:
            named = dict(self.model.named_parameters())
            self.model.eval()
            self.see(torch.func.functional_call(self.model, named, (torch.ones(4, 6),)))
            self.model.train()
        elif how == 3:
            file = io.BytesIO()
            whole = self.random.random() < 0.5 and not isinstance(self.model, Sequences)  # Pickle cannot have its norm.
            torch.save(self.model if whole else self.model.state_dict(), file)
            loaded = torch.load(io.BytesIO(file.getvalue()), weights_only=False)
            self.see(*(loaded if isinstance(loaded, dict) else loaded.state_dict()).values())
        elif how == 4:
            self.see(*(torch.from_numpy(array.copy()) for array in self.arrays))
        elif how == 5:
            thread = threading.Thread(target=lambda: self.see(*some))
            thread.start()
            thread.join()
        elif how == 6:
            self.evaluates()
        elif how == 7:
            self.see(*(torch.stack([torch.stack((param, param)) for param in some[:1]])))
        elif how == 8:
            detached = {name: param.detach() for name, param in self.model.named_parameters()}
            call = lambda params: torch.func.functional_call(self.model, params, (torch.ones(4, 6),)).sum()  # noqa: E731
            self.model.eval()
            self.see(*torch.func.grad(call)(detached).values())
            self.model.train()
        elif how == 9:
            self.seen += [param.reshape(-1)[0].item() for param in some] + [float(param.norm()) for param in some]
        elif how == 10:
            self.seen += [param.tolist() for param in some]
        elif how == 11:
            self.seen += [str(param) for param in some]
        else:
            self.see(*some, *self.kept, *self.flat)

    def evaluates(self) -> None:
        self.model.eval()
        with self.random.choice((torch.no_grad, torch.inference_mode))():
            self.see(self.model(torch.ones(2, 6)))
        self.model.train()

    def writes_parameters(self) -> None:
        how, param = self.random.randrange(15), self.one()
        self.log.append(str(how))
        with torch.no_grad():
            if how == 0:
                param.mul_(0.99)
            elif how == 1:
                param.data = param.data.clone()
            elif how == 2 and self.saved:
                self.model.load_state_dict(self.saved)
            elif how == 3:
                param.set_(param.clone())
            elif how == 4:
                self.model.double().float()
            elif how == 5:
                torch._foreach_mul_([each.data for each in self.params], 0.999)
            elif how == 6:
                nn.utils.vector_to_parameters(
                    torch.cat([each.reshape(-1) for each in self.params]).mul(0.99), self.params
                )
            elif how == 7:
                param.data[:2] = 0.1
            elif how == 8:
                for array in self.arrays:
                    array *= 0.5
            elif how == 9:
                for kept in self.kept:
                    kept.detach().mul_(0.9)
            elif how == 10:
                torch.add(param, 0.01, out=param.data)
            elif how == 11:
                flat = torch.cat([each.detach().reshape(-1) for each in self.params])
                parts = flat.split([each.numel() for each in self.params])
                for each, part in zip(self.params, parts, strict=True):
                    each.data = part.view(each.shape)
                self.kept.append(flat)
            elif how == 12 and param.dim() == 2:
                param.data = param.data.t().contiguous().t()
            elif how == 13:
                self.model.half().float()
            else:
                self.saved = copy.deepcopy(self.model.state_dict())

    def keeps_parameters(self) -> None:
        how, param = self.random.randrange(4), self.one()
        if how == 0:
            ways = (param, param.data, param.detach(), param.reshape(-1)[1:], param.detach().flatten())
            self.kept.append(self.random.choice(ways))
        elif how == 1:
            self.arrays.append(param.detach().numpy())
        elif how == 2:
            storage = param.untyped_storage()
            self.kept.append(torch.empty(0).set_(storage))
        else:
            self.averages = self.averages or [p.detach().clone() for p in self.params]
            torch._foreach_lerp_(self.averages, [p.detach() for p in self.params], 0.3)

    def uses_optimizers(self) -> None:
        how, optimizer = self.random.randrange(16), self.random.choice(self.optimizers)
        self.log.append(str(how))
        group = optimizer.param_groups[-1]
        states = optimizer.state.values() if how in (2, 3) else self.states
        parts = [part for own in states for part in own.values() if isinstance(part, torch.Tensor)]
        if how == 0:
            group["lr"] *= 0.9
        elif how == 1:
            optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
        elif how == 2:
            self.see(*parts)
        elif how == 3:
            torch._foreach_mul_(parts or [torch.ones(1)], 0.5)
        elif how == 4:
            group["weight_decay"] = 1e-3
        elif how == 5:
            optimizer.state.clear()
        elif how == 6:
            optimizer.state.pop(self.one(), None)
        elif how == 7:
            optimizer.state = defaultdict(dict, optimizer.state)
        elif how == 8:
            group["params"] = list(reversed(group["params"]))
        elif how == 9 and not self.schedulers and len(group["params"]) > 1:
            moved = group["params"].pop()
            optimizer.param_groups.append({**group, "params": [moved], "lr": group["lr"] * 0.5})
        elif how == 10:
            own = optimizer.state.get(self.one(), {})
            for name, value in own.items():
                if isinstance(value, torch.Tensor):
                    own[name] = value.clone()
        elif how == 12 and len(optimizer.state) == len(params_of(optimizer)):
            self.bps.broadcast_optimizer_state(optimizer, 0)
        elif how == 13:
            self.states += [optimizer.state, *optimizer.state.values()]
        elif how == 14:
            self.see(*parts)
        elif how == 15:
            for part in parts:
                part.mul_(0.5)
        elif how == 11 and len(optimizer.param_groups) == 1:
            kinds = (
                lambda: torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9),
                lambda: torch.optim.lr_scheduler.StepLR(optimizer, 2),
                lambda: torch.optim.lr_scheduler.CyclicLR(optimizer, 1e-3, 1e-2, 3, cycle_momentum=False),
                lambda: torch.optim.lr_scheduler.LambdaLR(optimizer, lambda epoch: 1 / (1 + epoch)),
            )
            self.schedulers.append(self.random.choice(kinds)())

    def hooks_in(self) -> None:
        if self.hooks and self.random.random() < 0.5:
            self.hooks.pop(self.random.randrange(len(self.hooks))).remove()
            return
        param = self.one()
        if not param.requires_grad:
            return
        how = self.random.randrange(3)
        if how == 0:
            self.hooks.append(param.register_hook(lambda grad: grad * 0.9))
        elif how == 1:
            self.hooks.append(param.register_post_accumulate_grad_hook(scale))
        else:
            optimizer = self.random.choice(self.optimizers)
            hook_in = self.random.choice((optimizer.register_step_pre_hook, optimizer.register_step_post_hook))
            self.hooks.append(hook_in(lambda *_: self.see(*self.params)))

    def fails(self) -> None:
        hook = list(self.model.modules())[-1].register_forward_pre_hook(lambda *_: 1 / 0)
        with contextlib.suppress(ZeroDivisionError):
            self.see(self.loss())
        hook.remove()

    @property
    def after(self) -> tuple[Callable[[], None], ...]:
        return (
            *(self.reads_parameters, self.reads_parameters, self.writes_parameters, self.keeps_parameters),
            *(self.uses_optimizers, self.hooks_in, self.fails),
        )

    def fill(self) -> None:
        """Leave no gradient None, which BytePS could not send."""
        for param in self.params:
            if param.grad is None and param.requires_grad:
                param.grad = torch.zeros_like(param)

    def changes_passes(self) -> None:
        self.passes = self.random.choice((1, 2, 3))
        for optimizer in self.optimizers:
            optimizer.set_backward_passes_per_step(self.passes)

    def run(self) -> Any:
        still = (self.reads_gradients, self.changes_gradients, self.keeps_gradients, self.clips, self.clears)
        for turn in range(self.random.choice(ROUNDS)):
            self.log.append("\n")
            self.random = random.Random(f"{self.number} round {turn}")
            self.do(self.clears)
            self.act(*self.after, most=1)
            passes = self.random.choice((self.passes, self.passes, self.passes, 0, self.passes - 1))
            if not passes and self.random.random() < 0.7:
                self.do(self.by_hand)
            elif passes > 1 and self.random.random() < 0.2:
                self.do(self.twice)
                passes -= 2
            elif passes and self.random.random() < 0.1:
                self.do(self.breaks_in_backward)
                passes = 0
            for left in reversed(range(passes)):
                self.do(self.backward)
                if left:
                    self.act(*still, *self.after, most=1)
            self.fill()
            self.act(self.reads_parameters, self.fails, self.keeps_parameters, most=1)
            self.do(self.steps)
            for scheduler in self.schedulers:
                scheduler.step()
            self.act(*still, *self.after, most=3)
            if self.random.random() < 0.1:
                self.do(self.changes_passes)
        grads = [param.grad for param in self.params]
        kept = [*self.kept, *self.averages, *self.flat, *map(torch.from_numpy, self.arrays)]
        states = [optimizer.state_dict() for optimizer in self.optimizers]
        return {"seen": self.seen, "kept": kept, "states": states, "grads": grads, "model": self.model.state_dict()}
