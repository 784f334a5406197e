"""One model, two optimizers: Adam for the encoder and SGD for the head, one backward pass."""

import byteps.torch as bps
import torch
from report import report
from torch import nn

bps.init()
torch.manual_seed(1)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(32, 128), nn.ReLU(), nn.Linear(128, 96), nn.ReLU())
        self.head = nn.Linear(96, 100)

    def forward(self, inputs):
        return self.head(self.encoder(inputs))


model = Model()
encoder_optimizer = bps.DistributedOptimizer(
    torch.optim.Adam(model.encoder.parameters(), lr=1e-3), named_parameters=model.encoder.named_parameters("encoder")
)
head_optimizer = bps.DistributedOptimizer(
    torch.optim.SGD(model.head.parameters(), lr=0.1), named_parameters=model.head.named_parameters("head")
)
bps.broadcast_parameters(model.state_dict(), root_rank=0)
torch.manual_seed(100 + bps.rank())
losses = []
for _ in range(6):
    inputs, labels = torch.randn(16, 32), torch.randint(10, (16,))
    model.zero_grad()
    loss = nn.functional.cross_entropy(model(inputs), labels)
    loss.backward()
    head_optimizer.step()
    encoder_optimizer.step()
    losses.append(loss.item())
report(model, losses=losses)
