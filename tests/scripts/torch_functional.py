"""What DistributedDataParallel has no part in: gradients by torch.func, graphs by torch.jit, parameters in the loss
after the forward pass, and models that workers train in different orders.
"""

import threading
import warnings

import byteps.torch as bps
import torch
from torch import nn
from ways import adam, batch, loss_of, run_byteps, train, way


@way()
def per_sample(model, optimizer):
    """Norms by grad and vmap, logged before each step."""
    params, norms = dict(model.named_parameters()), []

    def loss_at(params, inputs, label):
        output = torch.func.functional_call(model, params, (inputs[None],))
        return nn.functional.cross_entropy(output, label[None])

    gradients = torch.func.vmap(torch.func.grad(loss_at), in_dims=(None, 0, 0))
    for _ in range(6):
        detached = {name: p.detach() for name, p in params.items()}
        norms.append(sum(grad.flatten(1).pow(2).sum(1) for grad in gradients(detached, *batch()).values()))
        train(model, optimizer)
    return norms


@way(lambda: nn.ParameterList([nn.Parameter(torch.randn(32, 128) * 0.1), nn.Parameter(torch.randn(128, 10) * 0.1)]))
def of_a_function(weights, optimizer):
    """Its arguments are the parameters, which are in no module that is called."""
    kept, sharpness = tuple(weights), []

    def loss_at(params, inputs, labels):
        first, second = params
        return nn.functional.cross_entropy(torch.tanh(inputs @ first) @ second, labels)

    for _ in range(6):
        inputs, labels = batch()
        sharpness.append([grad.norm() for grad in torch.func.grad(loss_at)(kept, inputs, labels)])
        optimizer.zero_grad()
        loss_at(kept, inputs, labels).backward()
        optimizer.step()
    return sharpness


@way(make=adam)
def penalties(model, optimizer):
    """L1 and L2 over a kept list, after the forward pass but before backward."""
    kept, losses = list(model.parameters()), []
    start = [p.detach().clone() for p in kept]
    for _ in range(6):
        penalty = torch.stack([p.abs().sum() for p in kept]).sum()
        loss = loss_of(model, *batch()) + 1e-4 * penalty
        loss = loss + 1e-2 * sum(torch.sum((p - p0) ** 2) for p, p0 in zip(kept, start, strict=True))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


@way()
def traced_and_scripted(model, optimizer):
    """In mid-training. Both share the model's parameters, and evaluate after each step."""
    scores, copies = [], []
    for iteration in range(7):
        train(model, optimizer)
        inputs, _ = batch()
        if iteration == 3:
            with warnings.catch_warnings(action="ignore"):
                copies = [torch.jit.trace(model, inputs), torch.jit.script(model)]
        with torch.no_grad():
            scores += [copy(inputs).logsumexp(1).mean().item() for copy in copies]
    return scores


class Training:
    """A model with random numbers of its own."""

    def __init__(self, name, width):
        torch.manual_seed(1)
        self.model = nn.Sequential(nn.Linear(32, width), nn.Tanh(), nn.Linear(width, 100))
        named = [(f"{name}.{each}", param) for each, param in self.model.named_parameters()]
        self.optimizer = bps.DistributedOptimizer(
            torch.optim.SGD(self.model.parameters(), lr=0.1), named_parameters=named
        )
        self.random = torch.Generator().manual_seed(100 + bps.rank())
        self.losses = []

    def backward(self):
        self.optimizer.zero_grad()
        inputs = torch.randn(16, 32, generator=self.random)
        labels = torch.randint(100, (16,), generator=self.random)
        loss = nn.functional.cross_entropy(self.model(inputs), labels)
        loss.backward()
        self.losses.append(loss.item())

    def train(self):
        for _ in range(4):
            self.backward()
            self.optimizer.step()


@way()
def at_once(model, optimizer):
    """Several models more: by one thread, in another order on each worker, and by a thread for each."""
    tasks = [Training("first", 64), Training("second", 96)]
    for _ in range(4):
        for task in tasks if bps.rank() == 0 else tasks[::-1]:
            task.backward()
        for task in tasks:
            task.optimizer.step()
    actors = [Training(f"actor{number}", 400) for number in range(3)]
    threads = [threading.Thread(target=actor.train) for actor in actors]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    trained = [*tasks, *actors]
    return [each.model for each in trained], [each.losses for each in trained]


run_byteps()
