"""A fresh process gets the model in mid-training."""

import torch
import torch.multiprocessing
from ways import batch, run_byteps, train, way


def evaluate(model, inputs, connection):
    with torch.no_grad():
        connection.send(model(inputs).logsumexp(1).mean().item())


@way()
def model_sent(model, optimizer):
    """Right after a step."""
    context = torch.multiprocessing.get_context("spawn")
    held_out, _ = batch()
    for _ in range(4):
        train(model, optimizer)
    receiving, sending = context.Pipe(duplex=False)
    child = context.Process(target=evaluate, args=(model, held_out, sending))
    child.start()
    score = receiving.recv()
    child.join()
    return score, [train(model, optimizer) for _ in range(2)]


if __name__ == "__main__":
    run_byteps()
