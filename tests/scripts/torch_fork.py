"""Forked processes see the model: one evaluates it right after a step, a DataLoader's choose samples by it, and actors
read parameters in shared memory, as in Hogwild and A3C, or are sent them.
"""

import multiprocessing

import torch
import torch.multiprocessing
from torch import nn
from torch.utils.data import DataLoader, Dataset
from ways import batch, classifier, run_byteps, train, way

context = torch.multiprocessing.get_context("fork")
tasks, answers = context.SimpleQueue(), context.SimpleQueue()


def add_up():
    while (params := tasks.get()) is not None:
        answers.put([float(p.detach().double().sum()) for p in params])


actor = context.Process(target=add_up)
actor.start()  # before BytePS


@way()
def evaluation(model, optimizer):
    """A forked child evaluates the model and sends the score through a pipe."""
    held_out, scores = torch.randn(64, 32), []

    def evaluate(connection):
        with torch.no_grad():
            connection.send(model(held_out).logsumexp(1).mean().item())

    for _ in range(5):
        train(model, optimizer)
        receiving, sending = multiprocessing.Pipe(duplex=False)
        child = multiprocessing.get_context("fork").Process(target=evaluate, args=(sending,))
        child.start()
        scores.append(receiving.recv())
        child.join()
    return scores


class HardExamples(Dataset):
    """Dataset that picks, of two candidates, the one with the larger loss by the weights at the start of the epoch."""

    def __init__(self, model):
        self.model = model
        self.inputs, self.labels = torch.randn(64, 2, 32), torch.randint(10, (64, 2))

    def __len__(self):
        return 64

    @torch.no_grad()
    def __getitem__(self, index):
        losses = nn.functional.cross_entropy(self.model(self.inputs[index]), self.labels[index], reduction="none")
        return self.inputs[index, losses.argmax()], self.labels[index, losses.argmax()]


@way()
def data_loader(model, optimizer):
    """The loader's workers are forked anew for each epoch."""
    loader = DataLoader(HardExamples(model), batch_size=32, num_workers=2)
    losses = []
    for _ in range(3):
        for inputs, labels in loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(inputs), labels)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    return losses


@way()
def parameters_sent(model, optimizer):
    """Through torch's queue, after each step."""
    params, sums = list(model.parameters()), []
    for _ in range(6):
        train(model, optimizer)
        tasks.put(params)
        sums.append(answers.get())
    tasks.put(None)
    actor.join()
    return sums


def act(model):
    while (inputs := tasks.get()) is not None:
        with torch.no_grad():
            answers.put(float(model(inputs).logsumexp(1).mean()))


@way(lambda: classifier().share_memory())
def memory_shared(model, optimizer):
    other, scores = context.Process(target=act, args=(model,)), []
    other.start()
    for _ in range(6):
        train(model, optimizer)
        tasks.put(batch()[0])
        scores.append(answers.get())
    tasks.put(None)
    other.join()
    return scores


run_byteps()
