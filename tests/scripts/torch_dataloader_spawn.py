"""A DataLoader worker that is a fresh process, started in mid-training with a copy of the model."""

import copy

import byteps.torch as bps
import torch
from report import report
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Scored(Dataset):
    def __init__(self, model):
        self.model = model
        self.inputs, self.labels = torch.randn(64, 32), torch.randint(10, (64,))

    def __len__(self):
        return 64

    @torch.no_grad()
    def __getitem__(self, index):
        return self.inputs[index], self.labels[index], self.model(self.inputs[index]).logsumexp(0)


def main():
    bps.init()
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(32, 96), nn.ReLU(), nn.Linear(96, 128), nn.ReLU(), nn.Linear(128, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    optimizer = bps.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    bps.broadcast_parameters(model.state_dict(), root_rank=0)

    torch.manual_seed(100 + bps.rank())

    def train(inputs, labels, weights):
        optimizer.zero_grad()
        loss = (weights.softmax(0) * nn.functional.cross_entropy(model(inputs), labels, reduction="none")).sum()
        loss.backward()
        optimizer.step()

    for _ in range(4):
        train(torch.randn(16, 32), torch.randint(10, (16,)), torch.zeros(16))
    loader = DataLoader(Scored(copy.deepcopy(model)), batch_size=16, num_workers=1, multiprocessing_context="spawn")
    scores = []
    for inputs, labels, score in loader:
        train(inputs, labels, score)
        scores.append(score)
    report(model, scores=scores)


if __name__ == "__main__":
    main()
