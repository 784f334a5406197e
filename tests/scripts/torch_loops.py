"""Loops of libraries, which hold the optimizer within one of their own, and an optimizer that has trained before."""

import io

import byteps.torch as bps
import torch
from torch import nn
from ways import adam, batch, classifier, loss_of, run_byteps, train, way


class AcceleratedOptimizer(torch.optim.Optimizer):
    """Forwards to the optimizer that it holds."""

    def __init__(self, optimizer):
        self.optimizer = optimizer

    @property
    def state(self):
        return self.optimizer.state

    @property
    def param_groups(self):
        return self.optimizer.param_groups

    @property
    def defaults(self):
        return self.optimizer.defaults

    def zero_grad(self, set_to_none=None):
        self.optimizer.zero_grad()

    def step(self, closure=None):
        with self.optimizer.skip_synchronize():
            self.optimizer.step(closure)

    def state_dict(self):
        return self.optimizer.state_dict()


@way(make=lambda params: torch.optim.AdamW(params, lr=1e-2), backward_passes_per_step=2)
def hugging_face(model, optimizer):
    """As Hugging Face's Trainer runs it: accumulation, clipping, a scheduler, logs and checkpoints."""
    optimizer = AcceleratedOptimizer(optimizer)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer.optimizer, lambda step: max(0.0, 1 - step / 8))
    logs, total = [], torch.tensor(0.0)
    saved = io.BytesIO()
    for micro in range(12):
        model.train()
        loss = loss_of(model, *batch()) / 2
        loss.backward()
        total += loss.detach()
        if micro % 2 == 1:
            optimizer.optimizer.synchronize()
            norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
            model.zero_grad()
            logs.append({"loss": total.item(), "grad_norm": norm.item(), "learning_rate": scheduler.get_last_lr()[0]})
            total -= total
        if micro == 7 and bps.rank() == 0:
            torch.save([model.state_dict(), optimizer.state_dict(), scheduler.state_dict()], saved)
    saved.seek(0)
    return logs, torch.load(saved) if bps.rank() == 0 else []


class LightningOptimizer:
    """Looks like the optimizer that it holds."""

    def __init__(self, optimizer):
        self.__dict__ = {key: value for key, value in vars(optimizer).items() if key != "step"}
        self.__class__ = type(f"Lightning{type(optimizer).__name__}", (type(self), type(optimizer)), {})
        self._optimizer = optimizer

    def step(self, closure):
        with self._optimizer.skip_synchronize():
            return self._optimizer.step(closure)


@way(make=adam)
def lightning(model, optimizer):
    """As Lightning runs it for engines like BytePS: averages are awaited in a closure that step() calls, and step()
    does not wait again.
    """
    proxy = LightningOptimizer(optimizer)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    losses = []
    for _ in range(6):
        inputs, labels = batch()

        def closure(inputs=inputs, labels=labels):
            loss = loss_of(model, inputs, labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.synchronize()
            nn.utils.clip_grad_norm_([p for group in proxy.param_groups for p in group["params"]], 0.5)
            return loss

        losses.append(proxy.step(closure).item())
        scheduler.step()
    return losses


models, inner, steps = [], [], []


def kept():
    models.append(classifier())
    return models[0]


def trained(params):
    inner.append(torch.optim.SGD(params, lr=0.1, momentum=0.9))
    inner[0].register_step_post_hook(lambda *_: steps.append(len(steps)))
    for _ in range(3):  # before there is any other worker, on the same data
        train(models[0], inner[0])
    return inner[0]


@way(kept, trained)
def wrapped_late(model, optimizer):
    """It has a state, hooks and other defaults by then; the wrapped one begins anew."""
    seen = [len(optimizer.state), optimizer.defaults["lr"], optimizer.defaults["momentum"]]
    losses = [train(model, optimizer) for _ in range(5)]
    inner[0].param_groups[0]["lr"] = 0.01  # the groups are one
    losses += [train(model, optimizer) for _ in range(3)]
    optimizer.add_param_group({"params": [nn.Parameter(torch.ones(3))]})
    return losses, seen, [optimizer.param_groups[1]["lr"], len(steps), len(inner[0].state), len(optimizer.state)]


@way(make=lambda params: torch.optim.Adagrad(params, lr=0.1, initial_accumulator_value=0.1))
def state_from_the_beginning(model, optimizer):
    return [train(model, optimizer) for _ in range(3)]


run_byteps()
