"""torch.multiprocessing hands the model to a fresh process, right after a step."""

import byteps.torch as bps
import torch
import torch.multiprocessing
from report import report
from torch import nn


def evaluate(model, inputs, connection):
    with torch.no_grad():
        connection.send(model(inputs).logsumexp(1).mean().item())


def main():
    bps.init()
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(32, 96), nn.ReLU(), nn.Linear(96, 128), nn.ReLU(), nn.Linear(128, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    optimizer = bps.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    bps.broadcast_parameters(model.state_dict(), root_rank=0)

    torch.manual_seed(100 + bps.rank())
    context = torch.multiprocessing.get_context("spawn")
    held_out, scores = torch.randn(64, 32), []
    for iteration in range(6):
        inputs, labels = torch.randn(16, 32), torch.randint(10, (16,))
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(inputs), labels).backward()
        optimizer.step()
        if iteration == 3:
            receiving, sending = context.Pipe(duplex=False)
            child = context.Process(target=evaluate, args=(model, held_out, sending))
            child.start()
            scores.append(receiving.recv())
            child.join()
    report(model, scores=scores)


if __name__ == "__main__":
    main()
